# libfa3ptx: `make help` lists what there is.
BUILD  ?= build
PREFIX ?= /usr/local
CXXFLAGS ?= -O2 -g

ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all
FORCE:
.PHONY: FORCE

## all         the library: $(BUILD)/libfa3ptx.a and .so (default)
all: $(BUILD)/libfa3ptx.a $(BUILD)/libfa3ptx.so
lib: all
.PHONY: all lib

# ---- Tools: ptxas and cuda.h, from CUDA_HOME, PATH, /usr/local/cuda, or the wheels of `make setup`
WHEELS    := $(BUILD)/cuda
CUDA_DIRS := $(CUDA_HOME) $(patsubst %/bin/ptxas,%,$(shell command -v ptxas)) /usr/local/cuda \
             $(wildcard $(WHEELS)/nvidia/*)
PTXAS     ?= $(firstword $(wildcard $(addsuffix /bin/ptxas,$(CUDA_DIRS))) ptxas-not-found)
CUDA_INC  ?= $(patsubst %/cuda.h,%,$(firstword $(wildcard $(addsuffix /include/cuda.h,$(CUDA_DIRS)))))
CPP_PTX   := $(CC) -E -x assembler-with-cpp -undef -nostdinc -Wundef -Werror
NEEDS_TOOLS = @test -x '$(PTXAS)' -a -n '$(CUDA_INC)' || \
  { echo 'No ptxas or no cuda.h: `make setup` fetches them, or set CUDA_HOME.' >&2; exit 1; }

# ---- Kernels: one row of src/kernels.def -> preprocessed PTX -> cubin, through the gate -----------
comma := ,
ROWS  := $(shell sed -n 's/^KERNEL(\(.*\)) *$$/\1/p' src/kernels.def | tr -d ' ')
NAMES := $(foreach r,$(ROWS),$(firstword $(subst $(comma), ,$r)))
col    = $(word $2,$(subst $(comma), ,$(filter $1$(comma)%,$(ROWS))))
defines = -DKERNEL_NAME=$1 -DROLE=ROLE_$(call col,$1,3) -DDTYPE=DTYPE_$(call col,$1,4) \
  -DHEAD_DIM=$(call col,$1,5) -DHEAD_DIM_V=$(call col,$1,6) \
  $(patsubst CAUSAL,-DCAUSAL=1,$(patsubst NONE,-DCAUSAL=0,$(filter-out ANY,$(call col,$1,7)))) \
  -DTILE_M=$(call col,$1,8) -DTILE_N=$(call col,$1,9) -DSTAGES=$(call col,$1,10) \
  -DTHREADS=$(call col,$1,11) -DSMEM_BYTES=$(call col,$1,13)
CUBINS  := $(NAMES:%=$(BUILD)/cubin/%.cubin)
PTXS    := $(NAMES:%=$(BUILD)/ptx/%.ptx)

# A row has a file of its own, so that editing one row rebuilds one kernel.
$(BUILD)/row/%: FORCE
	@mkdir -p $(@D); echo '$(filter $*$(comma)%,$(ROWS))' | cmp -s - $@ || \
	  echo '$(filter $*$(comma)%,$(ROWS))' > $@

$(BUILD)/ptx/%.ptx: $(BUILD)/row/%
	@mkdir -p $(@D); echo '  CPP    $*'
	@$(CPP_PTX) -MMD -MP -MF $@.d -MT $@ $(call defines,$*) ptx/$(call col,$*,2).ptx -o $@

$(BUILD)/cubin/%.cubin: $(BUILD)/ptx/%.ptx ptx/gate.awk
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  PTXAS  $*'
	@$(PTXAS) -arch=sm_90a -v -warn-spills -Werror $< -o $@ > $(@:cubin=log) 2>&1 || \
	  { cat $(@:cubin=log) >&2; exit 1; }
	@awk -v name=$* -v registers=$(call col,$*,12) -v exact=`grep -c -m1 setmaxnreg $<` \
	  -f ptx/gate.awk $(@:cubin=log)

# Two image objects with the same symbols: cubins for the library, PTX text for an emulated driver.
$(BUILD)/images_%.S: src/kernels.def Makefile
	@mkdir -p $(@D); for n in $(NAMES); do s=fa3ptx_image_$$n; \
	  printf '.globl %s, %s_end\n.hidden %s, %s_end\n' $$s $$s $$s $$s; \
	  printf '.balign 64\n%s: .incbin "$(BUILD)/$*/%s.$*"\n%s_end: .byte 0\n' $$s $$n $$s; done \
	  | { echo '.section .rodata'; cat; echo '.section .note.GNU-stack,"",%progbits'; } > $@
$(BUILD)/images_cubin.o: $(BUILD)/images_cubin.S $(CUBINS)
	@$(CC) -c $< -o $@
$(BUILD)/images_ptx.o: $(BUILD)/images_ptx.S $(PTXS)
	@$(CC) -c $< -o $@

# ---- Library: no exceptions, no RTTI, nothing of libstdc++, so that a C program links it alone -----
HOST_OBJS := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard src/*.cpp))
CXX_ALL    = $(CXX) -std=c++17 $(CXXFLAGS) -Wall -Wextra -Iinclude -I. -isystem $(CUDA_INC) -MMD -MP
SRC_FLAGS := -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics
$(BUILD)/src/%.o: src/%.cpp
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) $(SRC_FLAGS) -c $< -o $@

$(BUILD)/libfa3ptx.a: $(HOST_OBJS) $(BUILD)/images_cubin.o
	@rm -f $@; $(AR) rcs $@ $^
SONAME := libfa3ptx.so.0
$(BUILD)/$(SONAME): $(HOST_OBJS) $(BUILD)/images_cubin.o
	@echo '  LINK   $@'
	@$(CC) -shared -Wl,-soname,$(SONAME) -Wl,-z,defs $^ -o $@ -ldl -lpthread -lm
$(BUILD)/libfa3ptx.so: $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@

# ---- Tests: every tests/test_*.cpp is a program, the other tests/*.cpp support all of them.
# tests/ has the library's cubins in it, tests_emu/ the PTX text that the emulated driver runs.
PROGRAMS := $(patsubst tests/%.cpp,%,$(wildcard tests/test_*.cpp))
SUPPORT  := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/test_%,$(wildcard tests/*.cpp)))
-include tests/emu/emu.mk
$(BUILD)/tests/%.o: tests/%.cpp
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) -Itests -c $< -o $@
$(BUILD)/bench/%.o: bench/%.cpp
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) -Itests -c $< -o $@
$(BUILD)/libhost.a: $(HOST_OBJS)
	@rm -f $@; $(AR) rcs $@ $^
$(BUILD)/libsupport.a: $(SUPPORT)
	@rm -f $@; $(AR) rcs $@ $^
LINK = @mkdir -p $(@D); echo '  LINK   $@'; $(CXX) $(filter %.o %.a,$^) -o $@ -ldl -lpthread $1
ARCHIVES := $(BUILD)/libsupport.a $(BUILD)/libhost.a
$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(ARCHIVES) $(BUILD)/images_cubin.o
	$(call LINK)
$(BUILD)/tests_emu/test_%: $(BUILD)/tests/test_%.o $(ARCHIVES) $(BUILD)/images_ptx.o
	$(call LINK)
.PRECIOUS: $(BUILD)/%.o $(BUILD)/ptx/%.ptx $(BUILD)/row/%
-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
