# The hardware probes: PTX text for the emulated driver, and beside it the cubin for a real one.
PROBES     := $(patsubst tests/probes/%.ptx,%,$(wildcard tests/probes/*.ptx))
PROBE_PTXS := $(PROBES:%=$(BUILD)/probes/%.ptx)
$(BUILD)/probes/%.ptx: tests/probes/%.ptx tests/probes/probe.inc
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  PROBE  $*'
	@$(CPP_PTX) $< -o $@
	@$(PTXAS) -arch=sm_90a $@ -o $(@:ptx=cubin) > $(@:ptx=log) 2>&1 || \
	  { cat $(@:ptx=log) >&2; exit 1; }
$(BUILD)/probes/h200.txt: $(wildcard tests/probes/h200.txt)
	@mkdir -p $(@D); cat $^ /dev/null > $@
$(BUILD)/tests/test_probes $(BUILD)/tests_emu/test_probes: | $(PROBE_PTXS) $(BUILD)/probes/h200.txt
