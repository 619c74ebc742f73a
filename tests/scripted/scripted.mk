# A libcuda that does nothing but answer, for tests/test_calls.cpp.
SCRIPTED := $(BUILD)/scripted/libcuda.so.1
$(SCRIPTED): tests/scripted/driver.cpp
	@mkdir -p $(@D); echo '  LINK   $@'
	@$(CXX_ALL) -fPIC -shared -Wl,-soname,libcuda.so.1 $< -o $@
$(BUILD)/tests/test_calls $(BUILD)/tests_emu/test_calls: | $(SCRIPTED)
