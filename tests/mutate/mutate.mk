## mutate K=   drops each fence, wait, arrival and barrier of the rows K; lists what goes unnoticed
$(BUILD)/mutate: $(BUILD)/tests/mutate/mutate.o $(BUILD)/tests/mutate/trial.o \
  $(BUILD)/libsupport.a $(BUILD)/libhost.a $(BUILD)/images_ptx.o
	$(LINK_TEST)
mutate: $(BUILD)/mutate $(EMULATED)
	@FA3PTX_LIBCUDA=$(EMULATED) $< $(ARGS) $(K)
## mutate-table  the same as a table, a line a row (tests/mutate/README.md): about an hour for all
mutate-table: $(BUILD)/mutate $(EMULATED)
	@echo '| row | mutants | caught | equivalent | missed |'; echo '|---|---|---|---|---|'
	@FA3PTX_LIBCUDA=$(EMULATED) $< --table $(ARGS) $(K)
programs: $(BUILD)/mutate
.PHONY: mutate mutate-table
