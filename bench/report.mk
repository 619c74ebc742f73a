# report.mk - what is measured into bench/results/*.csv, and what the documents show of it.

## results     on a GPU: measures all that the documents show, into bench/results; then `report`
RESULTS_ALL += fwd bwd fp8 fp16 dims deterministic short small accuracy calls ptxas build
results: lib limit $(BUILD)/bench/bench
	@for what in $(RESULTS_ALL); do echo "== $$what"; \
	  $(MAKE) --no-print-directory results-$$what || exit 1; done
	@$(MAKE) --no-print-directory report
## report      tables, numbers and pictures of the documents, from bench/results
report:
	@python3 bench/report.py
.PHONY: results report $(RESULTS_ALL:%=results-%)

# One file each, to be had alone: make results-fwd, results-bwd ...; MORE='--d 64' and the like
# measures some of its rows, the others stay.
into    = --csv bench/results/$1.csv $(MORE)
CSV     = $(call into,$(patsubst results-%,%,$@))
PYTHON  = @FA3PTX_LIBRARY='$(abspath $(BUILD)/libfa3ptx.so)' python3
COMPARE = $(PYTHON) bench/compare.py --settle 0.05
LIMIT   = --limit '$(BUILD)/probe/*.cubin'
results-fwd: lib limit
	$(COMPARE) --dir fwd --gqa --rounds 7 --ms 10 $(LIMIT) $(CSV)
results-bwd: lib limit
	$(COMPARE) --dir bwd --gqa --rounds 5 --ms 9 $(LIMIT) $(CSV)
results-fp8: lib limit
	$(COMPARE) --dir fp8 --rounds 5 --ms 8 $(LIMIT) $(CSV)
results-fp16: lib
	$(COMPARE) --dtype fp16 --seqlen 512,2048,8192 --rounds 5 --ms 8 $(CSV)
results-dims: lib
	$(COMPARE) --rows bench/head_dims.csv --seqlen 512,2048,8192 --rounds 5 --ms 8 \
	  $(call into,dims_fwd)
	$(COMPARE) --rows bench/head_dims.csv --seqlen 512,2048,8192 --rounds 5 --ms 8 --dir bwd \
	  $(call into,dims_bwd)
results-deterministic: lib
	$(PYTHON) bench/deterministic.py --repeats 1000 $(CSV)
	$(PYTHON) bench/deterministic.py --d 128 --causal yes --seqlen 1024,2048,4096 $(CSV)
results-short: lib
	$(PYTHON) bench/short_queries.py --heads 32,64 --seqlen-k 1024,8192 --batch 16,64 $(CSV)
	$(PYTHON) bench/short_queries.py --heads 32 --seqlen-q 1 --batch 1 $(CSV)
results-small: lib
	$(PYTHON) bench/short_queries.py --small $(CSV)
results-accuracy: lib $(BUILD)/bench/bench
	@$(BUILD)/bench/bench --benchmark_filter=fp8_accuracy --benchmark_out_format=json \
	  --benchmark_out=$(BUILD)/fp8_accuracy.json
	$(PYTHON) bench/accuracy.py --fp8 $(BUILD)/fp8_accuracy.json $(CSV)
results-calls: $(BUILD)/bench/bench
	@python3 bench/google.py $(CSV) $< --benchmark_filter='^(host/|quantize/|copy)'
results-build:
	@python3 bench/build_cost.py $(CSV)

# Builds by other releases of ptxas in one run: PTXAS_LIST="path ...", as for ptxas-matrix; or
# PTXAS_LIBS="12.4=libfa3ptx.so ...", built elsewhere.
results-ptxas: lib
	@test -n '$(PTXAS_LIST)$(PTXAS_LIBS)' || \
	  echo 'results-ptxas: no PTXAS_LIST, so bench/results/ptxas.csv stays as it is'
	@also='$(PTXAS_LIBS:%=--also %)'; for p in $(PTXAS_LIST); do \
	  r=`$$p --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'`; \
	  $(MAKE) --no-print-directory PTXAS=$$p BUILD=$(BUILD)/ptxas/$$r \
	    HEAD_DIMS='64 128 256' DTYPES=bf16 lib > /dev/null || exit 1; \
	  also="$$also --also $$r=$(BUILD)/ptxas/$$r/libfa3ptx.so"; done; \
	test -z "$$also" || FA3PTX_LIBRARY='$(abspath $(BUILD)/libfa3ptx.so)' python3 \
	  bench/compare.py --seqlen 512,8192 --rounds 5 --ms 10 --settle 0.05 $$also $(CSV)
