# libfa3ptx: `make help` lists what there is.
# LINEINFO=1: the same machine code with its PTX lines for profilers, in a folder of its own.
BUILD  ?= build$(if $(LINEINFO),/lines)
PREFIX ?= /usr/local
CXXFLAGS ?= -O2 -g

CORES := $(shell nproc 2>/dev/null || echo 2)
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(CORES)
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
CUDA_DIRS := $(CUDA_HOME) $(patsubst %/bin/ptxas,%,$(realpath $(shell command -v ptxas))) \
             /usr/local/cuda $(wildcard $(WHEELS)/nvidia/*)
PTXAS     ?= $(firstword $(wildcard $(addsuffix /bin/ptxas,$(CUDA_DIRS))) ptxas-not-found)
CUDA_INC  ?= $(patsubst %/cuda.h,%,$(firstword \
               $(wildcard $(addsuffix /include/cuda.h,$(CUDA_DIRS)))))
# 1204 is 12.4; without ptxas as if the newest.  Some idioms of ptx/ go by it.
PTXAS_RELEASE := $(or $(shell '$(PTXAS)' --version 2>/dev/null | \
  awk -F'release |[.,]' '/release/ { print $$3 * 100 + $$4 }'),9999)
CPP_PTX   := $(CC) -E -x assembler-with-cpp -undef -nostdinc -Wundef -Werror \
  -DPTXAS_RELEASE=$(PTXAS_RELEASE)
NEEDS_TOOLS = @test -x '$(PTXAS)' -a -n '$(CUDA_INC)' || \
  { echo 'No ptxas or no cuda.h: `make setup` fetches them, or set CUDA_HOME.' >&2; exit 1; }

# ---- Kernels: one row of src/kernels.def -> preprocessed PTX -> cubin, through the gate ----------
comma := ,
# HEAD_DIMS='64 128' DTYPES=bf16 leaves the other rows out of the build; what serves every head dim
# and the quantise calls stay.
ALL_ROWS := $(shell sed -n 's/^KERNEL(\(.*\)) *$$/\1/p' src/kernels.def | tr -d ' ')
KNOWN := $(shell printf '%s\n' $(ALL_ROWS:%='%') | \
  awk -F, '!seen[$$4]++ { print $$4, tolower($$4) } !seen[$$5]++ { print $$5 }')
$(if $(filter-out $(KNOWN),$(HEAD_DIMS) $(DTYPES)),$(error HEAD_DIMS and DTYPES: \
  $(filter-out $(KNOWN),$(HEAD_DIMS) $(DTYPES)) is none of $(KNOWN)))
ROWS  := $(shell printf '%s\n' $(ALL_ROWS:%='%') | \
  awk -F, -v dims=' $(HEAD_DIMS) ' -v types=' $(DTYPES) ' \
  'function in_list(list, word) { return list ~ /^ *$$/ || index(list, " " word " ") } \
   in_list(tolower(types), tolower($$4)) && ($$5 == 0 || $$3 == "QUANT" || in_list(dims, $$5))')
$(if $(ROWS),,$(error HEAD_DIMS and DTYPES leave no kernel))
NAMES := $(foreach r,$(ROWS),$(firstword $(subst $(comma), ,$r)))
col    = $(word $2,$(subst $(comma), ,$(filter $1$(comma)%,$(ROWS))))
defines = -DKERNEL_NAME=$1 -DROLE=ROLE_$(call col,$1,3) -DDTYPE=DTYPE_$(call col,$1,4) \
  -DHEAD_DIM=$(call col,$1,5) -DHEAD_DIM_V=$(call col,$1,6) \
  $(patsubst CAUSAL,-DCAUSAL=1,$(patsubst NONE,-DCAUSAL=0,$(filter-out ANY,$(call col,$1,7)))) \
  -DTILE_M=$(call col,$1,8) -DTILE_N=$(call col,$1,9) -DSTAGES=$(call col,$1,10) \
  -DTHREADS=$(call col,$1,11) -DSMEM_BYTES=$(call col,$1,13)
# What SM_END, the end of a source's map of shared memory, is for row $*.
smem_map = `printf '\#include "ptx/$(call col,$*,2).ptx"\nTHE_END SM_END\n' | $(CPP_PTX) -I. \
  $(call defines,$*) $(DEFINES) - 2>/dev/null | sed -n 's/^THE_END \([(0-9].*\)/\1/p'`
CUBINS := $(NAMES:%=$(BUILD)/cubin/%.cubin)
PTXS   := $(NAMES:%=$(BUILD)/ptx/%.ptx)

# A row has a file of its own, so that editing one row rebuilds one kernel; another ptxas, all.
$(BUILD)/row/%: FORCE
	@mkdir -p $(@D); echo '$(filter $*$(comma)%,$(ROWS)) $(PTXAS_RELEASE)' | cmp -s - $@ || \
	  echo '$(filter $*$(comma)%,$(ROWS)) $(PTXAS_RELEASE)' > $@

# A source that a row no longer names may be gone, though the last build's list still has it.
ptx/%.ptx: ;
$(BUILD)/ptx/%.ptx: $(BUILD)/row/%
	@mkdir -p $(@D); echo '  CPP    $*'
	@$(CPP_PTX) -MMD -MP -MF $@.d -MT $@ $(call defines,$*) $(DEFINES) \
	  ptx/$(call col,$*,2).ptx -o $@ || { \
	  echo $$(( $(smem_map) + 0 )) | sed -n 's/^[1-9]/its map of shared memory ends at &/p'; exit 1; }

$(BUILD)/cubin/%.cubin: $(BUILD)/ptx/%.ptx ptx/gate.awk $(if $(LINEINFO),ptx/lineinfo.awk)
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  PTXAS  $*'
	@$(if $(LINEINFO),awk -v root='$(CURDIR)' -f ptx/lineinfo.awk $< > $(@:cubin=ptx))
	@$(PTXAS) -arch=sm_90a -v -warn-spills -Werror \
	  $(if $(LINEINFO),-lineinfo $(@:cubin=ptx),$<) -o $@ > $(@:cubin=log) 2>&1 || \
	  { cat $(@:cubin=log) >&2; exit 1; }
	@awk -v name=$* -v registers=$(call col,$*,12) -v exact=`grep -c -m1 setmaxnreg $<` \
	  -f ptx/gate.awk $(@:cubin=log)

# Two image objects with the same symbols: cubins for the library, PTX text for an emulated driver.
$(BUILD)/names: FORCE
	@mkdir -p $(@D); echo '$(NAMES)' | tr ' ' '\n' | cmp -s - $@ || \
	  echo '$(NAMES)' | tr ' ' '\n' > $@
# $(call write_images,NAMES,FOLDER,SUFFIX)
write_images = for n in $1; do s=fa3ptx_image_$$n; \
	  printf '.globl %s, %s_end\n.hidden %s, %s_end\n' $$s $$s $$s $$s; \
	  printf '.balign 64\n%s: .incbin "$2/%s.$3"\n%s_end: .byte 0\n' $$s $$n $$s; done \
	  | { printf '.section .rodata\n.globl fa3ptx_images\n.hidden fa3ptx_images\n'; \
	    echo 'fa3ptx_images:'; cat; echo '.section .note.GNU-stack,"",%progbits'; }
$(BUILD)/images_%.S: $(BUILD)/names Makefile
	@mkdir -p $(@D); $(call write_images,$(NAMES),$(BUILD)/$*,$*) > $@
$(BUILD)/images_cubin.o: $(BUILD)/images_cubin.S $(CUBINS)
	@$(CC) -c $< -o $@
$(BUILD)/images_ptx.o: $(BUILD)/images_ptx.S $(PTXS)
	@$(CC) -c $< -o $@

# ---- Library: no exceptions, no RTTI, nothing of libstdc++, so that a C program links it alone --
HOST_OBJS := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard src/*.cpp))
CXX_ALL    = $(CXX) -std=c++17 $(CXXFLAGS) -Wall -Wextra -I. -Iinclude -isystem $(CUDA_INC) -MMD -MP
SRC_FLAGS := -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics
$(BUILD)/src/%.o: src/%.cpp
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) $(SRC_FLAGS) -c $< -o $@

$(BUILD)/libfa3ptx.a: $(HOST_OBJS) $(BUILD)/images_cubin.o
	@rm -f $@; $(AR) rcs $@ $^
SONAME := libfa3ptx.so.0
LINK_SHARED = $(CC) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,-z,defs $^ -o $@ -ldl -lpthread -lm
$(BUILD)/$(SONAME): $(HOST_OBJS) $(BUILD)/images_cubin.o
	@echo '  LINK   $@'
	@$(LINK_SHARED)
$(BUILD)/libfa3ptx.so: $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@

# ---- Tests: every tests/test_*.cpp is a program, the other tests/*.cpp support all of them.
# $(BUILD)/tests has the library's cubins in it, $(BUILD)/tests_emu the PTX text that the emulated
# driver runs; each holds every program and a shared library.
PROGRAMS := $(patsubst tests/%.cpp,%,$(wildcard tests/test_*.cpp)) abi_c
SUPPORT  := $(filter-out tests/test_% tests/demo.cpp,$(wildcard tests/*.cpp))
EMULATED := $(BUILD)/emu/libcuda.so.1
-include $(wildcard tests/*.mk tests/*/*.mk bench/*.mk)
$(BUILD)/tests/%.o $(BUILD)/bench/%.o: CXX_ALL += -Isrc -Itests
$(BUILD)/tests/%.o: tests/%.cpp
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) -c $< -o $@
$(BUILD)/bench/%.o: bench/%.cpp
	@mkdir -p $(@D); echo '  CXX    $<'
	@$(CXX_ALL) -c $< -o $@
$(BUILD)/libhost.a: $(HOST_OBJS)
	@rm -f $@; $(AR) rcs $@ $^
$(BUILD)/libsupport.a: $(SUPPORT:%.cpp=$(BUILD)/%.o)
	@rm -f $@; $(AR) rcs $@ $^
LINK_TEST = @mkdir -p $(@D); echo '  LINK   $@'; $(CXX) $(CXXFLAGS) $(LDFLAGS) \
  $(filter %.o %.a,$^) -o $@ -ldl -lpthread
ARCHIVES := $(BUILD)/libsupport.a $(BUILD)/libhost.a
# $(call flavour,FOLDER,IMAGES)
define flavour
$(BUILD)/$1/test_%: $(BUILD)/tests/test_%.o $(ARCHIVES) $(BUILD)/images_$2.o
	$$(LINK_TEST)
$(BUILD)/$1/demo: $(BUILD)/tests/demo.o $(ARCHIVES) $(BUILD)/images_$2.o
	$$(LINK_TEST)
$(BUILD)/$1/$(SONAME): $(HOST_OBJS) $(BUILD)/images_$2.o
	@mkdir -p $$(@D); $$(LINK_SHARED)
	@ln -sf $(SONAME) $(BUILD)/$1/libfa3ptx.so
$(BUILD)/$1/abi_c: tests/abi_c.c include/fa3ptx.h $(BUILD)/$1/$(SONAME)
	@echo '  CC     $$@'
	@$(CC) -std=c11 -pedantic -Wall -Wextra -Iinclude -isystem $(CUDA_INC) $$< -o $$@ \
	  -L$(BUILD)/$1 -lfa3ptx -Wl,-rpath,'$$$$ORIGIN' -ldl -lm
endef
$(eval $(call flavour,tests,cubin))
$(eval $(call flavour,tests_emu,ptx))
$(BUILD)/bench/bench: $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard bench/*.cpp)) $(ARCHIVES) \
  $(BUILD)/images_cubin.o
	$(LINK_TEST) -lbenchmark

# With a GPU the tests run on it; without one, on the emulated driver.
GPU   := $(wildcard /dev/nvidia[0-9]*)
WHERE := $(if $(GPU),tests,tests_emu)
SCRIPTS := $(wildcard $(if $(shell command -v python3),tests/test_*.py) tests/test_*.sh)
JOBS  ?= $(shell echo $$(($(CORES) < 16 ? $(CORES) : 16)))
RUN_TESTS = FA3PTX_TEST_JOBS=$(JOBS) FA3PTX_LIBRARY=$(BUILD)/$(WHERE)/libfa3ptx.so \
  BUILD='$(BUILD)' CC='$(CC)' CXX='$(CXX)' CUDA_INC='$(CUDA_INC)' \
  $(if $(GPU),,FA3PTX_LIBCUDA=$(EMULATED)) sh tests/run.sh
## demo        forward and backward on a small and a larger case, with errors and times
demo:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory $(BUILD)/$(WHERE)/demo $(if $(GPU),,$(EMULATED))
	@$(if $(GPU),,FA3PTX_LIBCUDA=$(EMULATED)) $(BUILD)/$(WHERE)/demo
## check       sets up what is missing, builds, runs every test; no GPU: on the emulated driver
check:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory all programs
	@$(if $(GPU),,echo 'No GPU here: the kernels run on the emulated driver$(comma) $(EMULATED).')
	@$(RUN_TESTS) $(PROGRAMS:%=$(BUILD)/$(WHERE)/%) $(SCRIPTS)
programs: $(PROGRAMS:%=$(BUILD)/$(WHERE)/%) $(if $(GPU),,$(EMULATED))
## gpu-check   all tests on the GPU, then small shapes under compute-sanitizer
SANITIZER = $(firstword $(shell command -v compute-sanitizer) \
  $(wildcard $(addsuffix /bin/compute-sanitizer,$(CUDA_DIRS))))
gpu-check:
	@test -n '$(GPU)' || { echo 'gpu-check needs a GPU: there is no /dev/nvidia*' >&2; exit 1; }
	@$(MAKE) --no-print-directory check
	@test -n '$(SANITIZER)' || echo 'no compute-sanitizer: `make setup-sanitizer` fetches it'
	@for tool in $(if $(SANITIZER),memcheck synccheck); do \
	  $(SANITIZER) --tool $$tool --target-processes all --error-exitcode 9 --print-limit 10 \
	    $(BUILD)/tests/test_kernels --here --case=$(SANITIZED) > $(BUILD)/$$tool.log 2>&1 \
	    && echo "compute-sanitizer $$tool: clean" \
	    || { grep '^=========' $(BUILD)/$$tool.log | head -n 60; tail -n 1 $(BUILD)/$$tool.log; \
	         echo "compute-sanitizer $$tool: FAILED, $(BUILD)/$$tool.log"; exit 1; }; done
SANITIZED ?= small
## bench       Google Benchmark over every kernel; ARGS=--benchmark_filter=... and the like
bench: $(BUILD)/bench/bench
	@$< $(ARGS)
## lint        style of sources, headers alone, exported symbols
lint: all
	@$(RUN_TESTS) tests/test_lint.sh
## size        bytes of each kernel in the library, and of the library
size: all
	@stat -c '%s %n' $(CUBINS) | sed -e 's|$(BUILD)/cubin/||' -e 's|.cubin$$||' | awk '{ \
	  printf "%9d  %s\n", $$1, $$2; sum += $$1 } END { printf "%9d  %d kernels\n", sum, NR }'
	@stat -c '%s %n' $(BUILD)/libfa3ptx.a $(BUILD)/$(SONAME) | awk '{ printf "%9d  %s\n", $$1, $$2 }'
## ptxas-matrix  every kernel through other releases of ptxas: PTXAS_LIST="path ...", or as wheels
PTXAS_RELEASES := cu12==12.4.* cu12==12.6.* cu12==12.8.* cu12==12.9.* 13.0.* latest
ptxas-matrix:
	@list='$(PTXAS_LIST)'; [ -n "$$list" ] || for r in $(PTXAS_RELEASES:%='%'); do \
	  dir=$(WHEELS)/ptxas/$$(echo $$r | tr -cd 'a-z0-9.'); \
	  case $$r in cu12*) wheel=nvidia-cuda-nvcc-$$r;; latest) wheel=nvidia-cuda-nvcc;; \
	    *) wheel=nvidia-cuda-nvcc==$$r;; esac; \
	  [ -d $$dir ] || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps \
	    --target $$dir "$$wheel" || exit 1; \
	  list="$$list $$(find $$dir -name ptxas -type f)"; done; \
	BUILD='$(BUILD)' ROWS='$(NAMES)' JOBS=$(CORES) sh tests/ptxas_matrix.sh $$list
ifneq ($(filter expand sass profile,$(MAKECMDGOALS)),)
$(if $(filter $(NAMES),$(K)),,$(error K='$(K)' names no row of src/kernels.def (in this build)))
endif
## expand K=   a kernel after the preprocessor, one instruction a line
expand: $(BUILD)/ptx/$(K).ptx
	@sed -e '/^#/d' -e 's/;[ \t]*/;\n/g' $< | sed -e 's/^[ \t]*//' -e '/^$$/d'
## sass K=     a kernel's machine code
sass: $(BUILD)/cubin/$(K).cubin
	@$(if $(NVDISASM),$(NVDISASM) -c $<,echo 'No nvdisasm: it comes with the CUDA toolkit, and as \
	  the wheel nvidia-cuda-nvdisasm.')
## profile K=  a kernel at seqlen 8192 in Nsight Compute, to be read line by line beside its source
profile:
	@command -v $(NCU) > /dev/null || \
	  { echo 'No ncu: Nsight Compute comes with the CUDA toolkit.'; exit 1; }
	@$(MAKE) --no-print-directory LINEINFO=1 BUILD=build/lines build/lines/bench/bench
	@$(NCU) --kernel-name $(K) --launch-skip 10 --launch-count 1 --set full --import-source yes \
	  --force-overwrite --export build/lines/$(K) \
	  build/lines/bench/bench --benchmark_filter='^$(K)/s8192' --benchmark_min_warmup_time=0
	@$(NCU) --import build/lines/$(K).ncu-rep --page source --print-source cuda,sass --csv | \
	  python3 bench/hot_lines.py
	@echo 'More in ncu-ui: build/lines/$(K).ncu-rep, page Source.'
NCU ?= ncu
NVDISASM = $(firstword $(shell command -v nvdisasm) \
  $(wildcard $(addsuffix /bin/nvdisasm,$(CUDA_DIRS))))

# The toolkit release that the kernels were tuned with.
TOOLKIT := 13.0.*
PIP     := PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --upgrade \
           --target $(WHEELS)
APT     := $(if $(filter 0,$(shell id -u)),,sudo -n) apt-get
HAS_HEADER = echo '\#include <$1>' | $(CXX) -E -x c++ - >/dev/null 2>&1
## setup       fetches what is missing: ptxas and cuda.h as wheels, doctest and benchmark by apt
setup:
	@test -x '$(PTXAS)' -a -n '$(CUDA_INC)' || \
	  $(PIP) 'nvidia-cuda-nvcc==$(TOOLKIT)' 'nvidia-cuda-runtime==$(TOOLKIT)' || \
	  { echo 'No ptxas or cuda.h, and no wheels: install the CUDA toolkit, set CUDA_HOME.'; exit 1; }
	@$(call HAS_HEADER,doctest/doctest.h) || $(APT) install -y -q doctest-dev || \
	  { echo 'No doctest: install the package doctest-dev for the tests.'; exit 1; }
	@$(call HAS_HEADER,benchmark/benchmark.h) || $(APT) install -y -q libbenchmark-dev || \
	  echo 'No Google Benchmark: install the package libbenchmark-dev for `make bench`.'
setup-sanitizer:
	@$(PIP) 'nvidia-cuda-sanitizer-api==$(TOOLKIT)'
## install     header, libraries and a pkg-config file under DESTDIR and PREFIX (/usr/local)
VERSION := $(shell awk '/define FA3PTX_VERSION/ \
  { printf "%d.%d.%d", $$3 / 10000, $$3 / 100 % 100, $$3 % 100 }' include/fa3ptx.h)
install: all
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 include/fa3ptx.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(BUILD)/libfa3ptx.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(BUILD)/$(SONAME) $(DESTDIR)$(PREFIX)/lib
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libfa3ptx.so
	printf '%s\n' 'prefix=$(PREFIX)' 'Name: fa3ptx' 'Version: $(VERSION)' \
	  'Description: FlashAttention-3 for NVIDIA Hopper' 'Cflags: -I$${prefix}/include' \
	  'Libs: -L$${prefix}/lib -lfa3ptx' 'Libs.private: -ldl -lpthread -lm' \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/fa3ptx.pc
## clean       removes $(BUILD), but for fetched tools
clean:
	@rm -rf $(filter-out $(WHEELS),$(wildcard $(BUILD)/*))
help:
	@sed -n 's/^## //p' $(filter-out %.d,$(MAKEFILE_LIST))
	@echo 'Variables: HEAD_DIMS DTYPES LINEINFO BUILD PREFIX DESTDIR CUDA_HOME PTXAS CUDA_INC CC CXX \
	  CXXFLAGS'
.PHONY: demo check programs gpu-check bench lint size ptxas-matrix expand sass profile setup \
  setup-sanitizer install clean help
.PRECIOUS: $(BUILD)/src/%.o $(BUILD)/tests/%.o $(BUILD)/bench/%.o \
  $(BUILD)/ptx/%.ptx $(BUILD)/row/% $(BUILD)/images_%.S
-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
