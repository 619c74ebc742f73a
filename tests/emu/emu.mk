# The emulated driver: $(BUILD)/emu/libcuda.so.1. It is built for the vector units of this machine
# (EMU_ARCH overrides) and checks at cuInit that it runs on no lesser one.
EMU_CPU  := $(shell sed -n '/^flags/{p;q}' /proc/cpuinfo 2>/dev/null)
EMU_ARCH ?= $(if $(filter avx512vl,$(EMU_CPU)),x86-64-v4,$(if $(filter avx2,$(EMU_CPU)),x86-64-v3))
EMU_FLAGS = -O3 -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -fno-math-errno \
  -fno-trapping-math -Wno-psabi $(if $(EMU_ARCH),-march=$(EMU_ARCH) -mprefer-vector-width=512)
EMU_OBJS := $(patsubst tests/emu/%.cpp,$(BUILD)/emu/%.o,$(wildcard tests/emu/*.cpp))
$(BUILD)/emu/%.o: tests/emu/%.cpp
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) $(EMU_FLAGS) -c $< -o $@
$(BUILD)/emu/libcuda.so.1: $(EMU_OBJS)
	@echo '  LINK   $@'
	@$(CXX) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs $^ -o $@ -ldl -lpthread
