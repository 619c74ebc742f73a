# The hazard programs, twice each (with the bug, without), and the lines that may be blamed.
HAZARDS     := $(patsubst tests/hazards/%.ptx,%,$(wildcard tests/hazards/*.ptx))
HAZARD_PTXS := $(foreach b,0 1,$(HAZARDS:%=$(BUILD)/hazards/%.$b.ptx))
# $(call hazard_rule,BUG): ptxas has to accept them as well, or they show nothing.
define hazard_rule
$$(BUILD)/hazards/%.$1.ptx: tests/hazards/%.ptx tests/hazards/hazard.inc tests/hazards/ring_body.inc
	$$(NEEDS_TOOLS)
	@mkdir -p $$(@D); echo '  HAZARD $$*.$1'
	@$$(CPP_PTX) -DBUG=$1 $$< -o $$@
	@$$(PTXAS) -arch=sm_90a $$@ -o $$(@:ptx=cubin) > $$(@:ptx=log) 2>&1 || \
	  { cat $$(@:ptx=log) >&2; exit 1; }
endef
$(foreach b,0 1,$(eval $(call hazard_rule,$b)))
$(BUILD)/hazards/flagged.txt: $(wildcard tests/hazards/*.ptx tests/hazards/*.inc)
	@mkdir -p $(@D); grep -n 'flagged: ' $^ > $@
$(BUILD)/tests/test_hazards $(BUILD)/tests_emu/test_hazards: \
  | $(HAZARD_PTXS) $(BUILD)/hazards/flagged.txt
