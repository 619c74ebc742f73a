## mutate K=   drops each fence, wait, arrival and barrier of the rows K; lists what goes unnoticed
$(BUILD)/mutate: $(BUILD)/tests/mutate/mutate.o $(BUILD)/tests/mutate/trial.o \
  $(BUILD)/libsupport.a $(BUILD)/libhost.a $(BUILD)/images_ptx.o
	$(LINK_TEST)
mutate: $(BUILD)/mutate $(EMULATED)
	@FA3PTX_LIBCUDA=$(EMULATED) $< $(ARGS) $(K)
