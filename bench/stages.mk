# stages.mk - the stage kernels of bench/stages/stages.def, the program that times them, and the
# roofline report.  Nothing of it goes into the library.

# name,source,DEFINE;DEFINE;... of each row: the first line of it.
STAGE_ROWS := $(shell sed -n 's/^STAGE.\([^,]*\), *\([^,]*\), *\([^,]*\),$$/\1,\2,\3/p' \
  bench/stages/stages.def | tr ' ' ';')
STAGE_NAMES := $(foreach r,$(STAGE_ROWS),$(firstword $(subst $(comma), ,$r)))
stage_col = $(word $2,$(subst $(comma), ,$(filter $1$(comma)%,$(STAGE_ROWS))))
stage_define = $(filter $2=%,$(subst ;, ,$(call stage_col,$1,3)))
STAGE_PTXS := $(STAGE_NAMES:%=$(BUILD)/stages/%.ptx)
STAGE_CUBINS := $(STAGE_NAMES:%=$(BUILD)/stages/%.cubin)

$(BUILD)/stages/%.row: FORCE
	@mkdir -p $(@D); echo '$(filter $*$(comma)%,$(STAGE_ROWS))' | cmp -s - $@ || \
	  echo '$(filter $*$(comma)%,$(STAGE_ROWS))' > $@
$(BUILD)/stages/%.ptx: $(BUILD)/stages/%.row
	@$(CPP_PTX) -MMD -MP -MF $@.d -MT $@ -Iptx -Ibench/stages -DKERNEL_NAME=$* \
	  $(addprefix -D,$(subst ;, ,$(call stage_col,$*,3))) \
	  bench/stages/$(call stage_col,$*,2).ptx -o $@
# 65536 registers and what setmaxnreg needs: nothing to name in a row, the gate's limit is ptxas's.
$(BUILD)/stages/%.cubin: $(BUILD)/stages/%.ptx ptx/gate.awk
	$(NEEDS_TOOLS)
	@echo '  STAGE  $*'
	@$(PTXAS) -arch=sm_90a -v -warn-spills -Werror $< -o $@ > $(@:cubin=log) 2>&1 || \
	  { cat $(@:cubin=log) >&2; exit 1; }
	@awk -v name=$* -v registers=255 -v exact=0 -f ptx/gate.awk $(@:cubin=log)

STAGE_RUN := $(BUILD)/bench/stages/stage_run.o
COUNTS := $(BUILD)/bench/stages/counts.o
STAGE_LIBS := $(BUILD)/libsupport.a $(BUILD)/libhost.a
$(BUILD)/tests/test_stages $(BUILD)/tests_emu/test_stages: $(STAGE_RUN) $(COUNTS) | $(STAGE_PTXS) \
  $(STAGE_CUBINS)
$(BUILD)/bench/stages/stages.o $(BUILD)/bench/stages/roofline.o $(STAGE_RUN) $(COUNTS) \
  $(BUILD)/tests/test_stages.o: CXX_ALL += -Ibench/stages
$(BUILD)/bench/stages_bench: $(BUILD)/bench/stages/stages.o $(STAGE_RUN) $(STAGE_LIBS) \
  $(BUILD)/images_cubin.o | $(STAGE_CUBINS)
	$(LINK_TEST) -lbenchmark
$(BUILD)/bench/roofline: $(BUILD)/bench/stages/roofline.o $(STAGE_RUN) $(COUNTS) $(STAGE_LIBS) \
  $(BUILD)/images_cubin.o | $(STAGE_CUBINS)
	$(LINK_TEST)
## stages      bench: each step of the kernels alone, and what of its limit it reaches
stages: $(BUILD)/bench/stages_bench
	@$< $(ARGS)
## roofline    bench: which limit binds a problem; ARGS='--head-dim 128 --seqlen 8192 --causal'
roofline: $(BUILD)/bench/roofline
	@$< $(ARGS)
RESULTS_ALL += stages roofline
results-stages: $(BUILD)/bench/stages_bench
	@$< --csv=bench/results/stages.csv $(MORE)
results-roofline: $(BUILD)/bench/roofline
	@$< --csv bench/results/roofline.csv
.PHONY: stages roofline results-stages results-roofline
.PRECIOUS: $(BUILD)/stages/%.ptx $(BUILD)/stages/%.cubin $(BUILD)/stages/%.row
