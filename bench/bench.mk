# bench.mk - wgmma alone in the forward kernels' tiles: the limit that bench/compare.py can measure
# beside them.  A cubin's name says its shape, which is all that compare.py needs to launch it.

LIMIT_TILES := 64x192x128 128x128x128 256x128x64 # head_dim x TILE_M x TILE_N, bf16
LIMIT_TILES_E4M3 := 64x128x128 128x128x128 256x128x96
part   = $(word $2,$(subst x, ,$1))
# $(call limit,TILE,SUFFIX,BYTES)
bytes  = $(shell echo $$(( ($(call part,$1,2) + 2 * $(call part,$1,3)) * $(call part,$1,1) * $2 )))
shape  = d=$(call part,$1,1),M=$(call part,$1,2),N=$(call part,$1,3),smem=$(call bytes,$1,$2)
limit  = $(BUILD)/probe/limit$2,$(call shape,$1,$3).cubin
LIMITS := $(foreach t,$(LIMIT_TILES),$(call limit,$t,,2)) \
  $(foreach t,$(LIMIT_TILES_E4M3),$(call limit,$t,_e4m3,1))
field  = $(patsubst $2=%,%,$(filter $2=%,$(subst $(comma), ,$(basename $(notdir $1)))))

## limit       bench: wgmma alone, $(BUILD)/probe/*.cubin, for bench/compare.py --limit
limit: $(LIMITS)
.PHONY: limit
$(BUILD)/probe/limit%.cubin: bench/probe_wgmma.ptx $(wildcard ptx/*.inc) bench/stages/random.inc
	$(NEEDS_TOOLS)
	@mkdir -p $(@D); echo '  PTXAS  $(@F)'
	@$(CPP_PTX) -Iptx -DKERNEL_NAME=k -DDTYPE=DTYPE_$(if $(findstring e4m3,$@),E4M3,BF16) \
	  -DCAUSAL=0 -DHEAD_DIM=$(call field,$@,d) \
	  -DHEAD_DIM_V=$(call field,$@,d) -DTILE_M=$(call field,$@,M) -DTILE_N=$(call field,$@,N) \
	  -DTHREADS=$(shell echo $$(( 2 * $(call field,$@,M) + 128 ))) \
	  -DSMEM_BYTES=$(call field,$@,smem) $< -o $(@:cubin=ptx)
	@$(PTXAS) -arch=sm_90a -v -warn-spills -Werror $(@:cubin=ptx) -o $@ > $(@:cubin=log) 2>&1 || \
	  { cat $(@:cubin=log) >&2; exit 1; }
	@! grep -E 'C75[0-9][0-9]|Potential Performance' $(@:cubin=log) >&2
