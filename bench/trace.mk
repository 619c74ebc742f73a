# trace.mk - runs a kernel with stamps (ptx/trace.inc, the variant `trace` of ablations.def).

TRACE := $(BUILD)/ablation/trace
IMAGES_HERE := images_$(if $(wildcard /dev/nvidia[0-9]*),cubin,ptx).o
$(TRACE)/trace: $(BUILD)/bench/trace/trace.o $(BUILD)/libsupport.a $(BUILD)/libhost.a \
  $(TRACE)/$(IMAGES_HERE)
	$(LINK_TEST)

## trace K=    a kernel's events by the clock: $(BUILD)/trace/<K>.json (Perfetto), .csv
TRACE_K = $(or $(K),fwd_d128_m128_bf16)
trace: $(TRACE)/trace $(if $(GPU),,$(EMULATED))
	@mkdir -p $(BUILD)/trace
	@$(if $(GPU),,FA3PTX_LIBCUDA=$(EMULATED)) $< $(TRACE_K) --json $(BUILD)/trace/$(TRACE_K).json \
	  --csv $(BUILD)/trace/$(TRACE_K).csv $(ARGS)
.PHONY: trace
programs: $(TRACE)/trace
