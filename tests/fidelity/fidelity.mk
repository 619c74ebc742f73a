# The same problems on two drivers (tests/test_fidelity.sh): one program, with cubins and with PTX.
FIDELITY := $(BUILD)/tests_emu/fidelity $(if $(wildcard /dev/nvidia[0-9]*),$(BUILD)/tests/fidelity)
# $(call fidelity_rule,FOLDER,IMAGES)
define fidelity_rule
$(BUILD)/$1/fidelity: $(BUILD)/tests/fidelity/fidelity.o $(BUILD)/libsupport.a \
  $(BUILD)/libhost.a $(BUILD)/images_$2.o
	$$(LINK_TEST)
endef
$(eval $(call fidelity_rule,tests,cubin))
$(eval $(call fidelity_rule,tests_emu,ptx))
programs: $(FIDELITY) $(EMULATED)
