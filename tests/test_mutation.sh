#!/bin/sh
# test_mutation.sh - a sample of the mutation run (mutate/README.md): nearly every fence, wait,
# arrival and barrier that is taken away from these kernels has to be noticed.
build=${BUILD:-build}
sample='fwd_d128_m128_bf16 quant_d128_e4m3_from_bf16 bwd_post_bf16'
FA3PTX_LIBCUDA=$build/emu/libcuda.so.1 "$build/mutate" $sample
case $? in
  0) echo '1 passed, 0 failed, 0 skipped' ;;
  2) echo '0 passed, 0 failed, 1 skipped' ;;
  *)
    echo 'FAILED: fewer than 95 of 100 mutants are caught'
    echo '0 passed, 1 failed, 0 skipped'
    exit 1
    ;;
esac
