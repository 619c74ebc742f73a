#!/bin/sh
# test_reduced.sh - a build with HEAD_DIMS=64 DTYPES=bf16: what is in it, and what it says.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}" "${CC:=gcc}"
small=$BUILD/reduced
passed=0 failed=0
report() { # WHAT FINDINGS: passes if there are no findings
  if [ -z "$2" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1)); printf 'FAILED: %s\n%s\n' "$1" "$2"; fi
}
report 'the reduced library does not build' "$(
  MAKEFLAGS='' make -s BUILD="$small" HEAD_DIMS=64 DTYPES=bf16 all 2>&1 >/dev/null)"
report 'kernels that should have been left out, or in' "$(
  sed -n 's/^KERNEL(\(.*\)) *$/\1/p' src/kernels.def | tr -d ' ' | awk -F, '
    $4 == "BF16" && ($5 == 0 || $5 == 64 || $3 == "QUANT") { print $1 }' |
    sort >"$small/expected"
  nm "$small/libfa3ptx.a" | sed -n 's/.* [rR] fa3ptx_image_\(.*\)$/\1/p' |
    grep -v '_end$' | sort | diff "$small/expected" -)"

cat >"$small/ask.c" <<'C'
#include <fa3ptx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) { /* DTYPE HEAD_DIM: kernel and text, or status and sentence */
  fa3ptx_forward_args a = {.struct_size = sizeof a};
  fa3ptx_plan_info info = {.struct_size = sizeof info};
  if (argc != 3) return 2;
  a.batch = 1, a.seqlen_q = a.seqlen_k = 256, a.heads_q = a.heads_kv = 1;
  a.head_dim = atoi(argv[2]);
  a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype =
      strcmp(argv[1], "bf16") ? FA3PTX_FP16 : FA3PTX_BF16;
  int status = fa3ptx_explain_forward(&a, &info);
  if (status == FA3PTX_OK) printf("%s\n%s\n", info.kernel, info.text);
  else printf("%d\n%s\n", status == FA3PTX_ERROR_UNSUPPORTED, fa3ptx_last_error());
  return 0;
}
C
report 'a C program against it' "$(
  "$CC" -std=c11 -Wall -Wextra -Werror -Iinclude "$small/ask.c" "$small/libfa3ptx.a" \
    -o "$small/ask" -ldl -lpthread -lm 2>&1)"
asked() { # WHAT DTYPE HEAD_DIM PATTERN: the answer matches
  answer=$("$small/ask" "$2" "$3" 2>&1)
  echo "$answer" | tr '\n' ' ' | grep -q "$4"
  report "$1" "$([ $? -eq 0 ] || echo "$answer")"
}
asked 'head dim 64 has its fast kernel' bf16 64 '^fwd_d64_.*_bf16 '
asked 'head dim 40 is filled up to 64' bf16 40 '^fwd_d64_.*_bf16 '
asked 'head dim 128 goes to the reference kernel, and why' bf16 128 \
  '^fwd_ref_bf16 .*this build leaves out the faster kernels'
asked 'fp16 is refused in words' fp16 64 '^1 no forward kernel of this build .* FP16, head_dim 64'

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
