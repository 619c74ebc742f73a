# trace.mk - runs a kernel with stamps (ptx/trace.inc, the variant `trace` of ablations.def).

TRACE := $(BUILD)/ablation/trace
$(TRACE)/trace: $(BUILD)/bench/trace/trace.o $(BUILD)/libsupport.a $(BUILD)/libhost.a \
  $(TRACE)/images_$(if $(wildcard /dev/nvidia[0-9]*),cubin,ptx).o
	$(LINK_TEST)
programs: $(if $(filter trace,$(ABLATION_NAMES)),$(TRACE)/trace)

## trace K=    a kernel's events by the clock: $(BUILD)/trace/<K>.json (Perfetto), .csv and .svg
TRACE_K = $(or $(K),fwd_d128_m128_bf16)
trace: $(TRACE)/trace $(if $(wildcard /dev/nvidia[0-9]*),,$(BUILD)/emu/libcuda.so.1)
	@mkdir -p $(BUILD)/trace
	@$(if $(GPU),,FA3PTX_LIBCUDA=$(EMULATED)) $< $(TRACE_K) --json $(BUILD)/trace/$(TRACE_K).json \
	  --csv $(BUILD)/trace/$(TRACE_K).csv $(or $(ARGS),$(if $(GPU),--blocks 58:70))
	@python3 bench/report_trace.py $(BUILD)/trace/$(TRACE_K).csv > $(BUILD)/trace/$(TRACE_K).svg
	@ls $(BUILD)/trace/$(TRACE_K).*

# $(call trace_results,NAME,ARGUMENTS): the seam between two tiles, or the middle of one.
trace_results = $(TRACE)/trace $2 --csv $(BUILD)/trace.csv > /dev/null && \
  python3 bench/report_trace.py $(BUILD)/trace.csv bench/results/trace_$1.csv trace $2
RESULTS_ALL += trace ablation
results-trace: $(TRACE)/trace
	@$(call trace_results,fwd_d64,fwd_d64_m192_bf16 --blocks 60:68)
	@$(call trace_results,fwd_d128,fwd_d128_m128_bf16 --blocks 59:69)
	@$(call trace_results,bwd_d128,bwd_d128_bf16 --cta 264 --blocks 40:46)
results-ablation: lib ablations
	@python3 bench/ablate.py --build $(BUILD) --csv bench/results
.PHONY: trace
