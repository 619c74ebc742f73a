# The same problems on two drivers (tests/test_fidelity.sh): one program, with cubins and with PTX.
FIDELITY := $(BUILD)/tests_emu/fidelity_run \
  $(if $(wildcard /dev/nvidia[0-9]*),$(BUILD)/tests/fidelity_run)
# $(call fidelity_rule,FOLDER,IMAGES)
define fidelity_rule
$(BUILD)/$1/fidelity_run: $(BUILD)/tests/fidelity/fidelity.o $(BUILD)/libsupport.a \
  $(BUILD)/libhost.a $(BUILD)/images_$2.o
	$$(LINK_TEST)
endef
$(eval $(call fidelity_rule,tests,cubin))
$(eval $(call fidelity_rule,tests_emu,ptx))
programs: $(FIDELITY) $(EMULATED)
