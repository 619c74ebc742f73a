# ablate.mk - the variants of bench/ablations.def: for each name a library with its kernels, and a
# program that checks those whose results are right.

# Lines without their spaces: name|kernels|switches|results, `~` between words.
ABLATIONS := $(shell sed -n '/^[a-z]/{s/ *| */|/g;s/ /~/g;p}' bench/ablations.def)
ablation_col = $(subst ~, ,$(word $2,$(subst |, ,$1)))
ablation_rows = $(filter $(call ablation_col,$1,2) $(if $(filter bwd_%,$(call ablation_col,$1,2)), \
  bwd_pre_bf16 bwd_post_bf16),$(NAMES))
ABLATION_NAMES := $(sort $(foreach l,$(ABLATIONS),$(if $(filter -%,$(call ablation_col,$l,3)), \
  $(if $(call ablation_rows,$l),$(firstword $(subst |, ,$l))))))
ABLATION := $(BUILD)/ablation

# $(call ablation_kernel,NAME,ROW,SWITCHES)
define ablation_kernel
ABLATION_$1 += $2
$(ABLATION)/$1/ptx/$2.ptx: $(BUILD)/row/$2 bench/ablations.def
	@mkdir -p $$(@D)
	@$$(CPP_PTX) -MMD -MP -MF $$@.d -MT $$@ $$(call defines,$2) -DABLATION $3 \
	  ptx/$(call col,$2,2).ptx -o $$@
$(ABLATION)/$1/cubin/$2.cubin: $(ABLATION)/$1/ptx/$2.ptx ptx/gate.awk
	$$(NEEDS_TOOLS)
	@mkdir -p $$(@D); echo '  PTXAS  $2 without $1'
	@$$(PTXAS) -arch=sm_90a -v -warn-spills -Werror $$< -o $$@ > $$(@:cubin=log) 2>&1 || \
	  { cat $$(@:cubin=log) >&2; exit 1; }
	@awk -v name='$2 without $1' -v registers=$(call col,$2,12) \
	  -v exact=`grep -c -m1 setmaxnreg $$<` -f ptx/gate.awk $$(@:cubin=log)
endef
$(foreach l,$(ABLATIONS),$(foreach n,$(filter $(firstword $(subst |, ,$l)),$(ABLATION_NAMES)), \
  $(if $(filter -%,$(call ablation_col,$l,3)),$(foreach r,$(call ablation_rows,$l), \
  $(if $(filter $r,$(ABLATION_$n)),,$(eval \
  $(call ablation_kernel,$n,$r,$(call ablation_col,$l,3))))))))

# $(call ablation_program,NAME)
define ablation_program
$(ABLATION)/$1/images_%.S: $(BUILD)/names Makefile bench/ablations.def
	@mkdir -p $$(@D); $$(call write_images,$(ABLATION_$1),$(ABLATION)/$1/$$*,$$*) > $$@
$(ABLATION)/$1/images_cubin.o: $(ABLATION)/$1/images_cubin.S \
  $(ABLATION_$1:%=$(ABLATION)/$1/cubin/%.cubin)
	@$$(CC) -c $$< -o $$@
$(ABLATION)/$1/images_ptx.o: $(ABLATION)/$1/images_ptx.S $(ABLATION_$1:%=$(ABLATION)/$1/ptx/%.ptx)
	@$$(CC) -c $$< -o $$@
$(ABLATION)/$1/libfa3ptx.so: $(HOST_OBJS) $(ABLATION)/$1/images_cubin.o
	@$$(LINK_SHARED)
$(ABLATION)/$1/check: $(BUILD)/bench/check/ablation.o $(BUILD)/libsupport.a $(BUILD)/libhost.a \
  $(ABLATION)/$1/images_$(if $(wildcard /dev/nvidia[0-9]*),cubin,ptx).o
	$$(LINK_TEST)
endef
$(foreach n,$(ABLATION_NAMES),$(eval $(call ablation_program,$n)))

## ablation    bench: every variant of bench/ablations.def beside the release, as a table; ARGS=...
ablation: $(ABLATION_NAMES:%=$(ABLATION)/%/libfa3ptx.so) all
	@python3 bench/ablate.py --build $(BUILD) $(ARGS)
ablations: $(ABLATION_NAMES:%=$(ABLATION)/%/libfa3ptx.so)
# `make check` builds them all and runs the exact ones on the emulated driver, or a GPU.
ABLATIONS_EXACT := $(filter $(foreach l,$(ABLATIONS),$(if $(filter exact,$(call \
  ablation_col,$l,4)),$(firstword $(subst |, ,$l)))),$(ABLATION_NAMES))
programs: $(ABLATIONS_EXACT:%=$(ABLATION)/%/check) $(ABLATION_NAMES:%=$(ABLATION)/%/images_cubin.o)
.PHONY: ablation ablations
-include $(wildcard $(ABLATION)/*/ptx/*.d)
