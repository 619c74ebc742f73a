#!/bin/sh
# test_lineinfo.sh - LINEINFO=1 leaves a kernel's machine code as it is, and adds its source lines.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}"
row=$(grep -s -m 1 -x 'fwd_d[0-9]*_m128_bf16' "$BUILD/names")
if [ -z "$row" ]; then
  printf 'skipped 1: no forward of bf16 in this build\n0 passed, 0 failed, 1 skipped\n'
  exit
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
expect() { # WHAT CONDITION...
  what=$1
  shift
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $what"; fi
}
code() { readelf -x ".text.$row" "$1" 2>/dev/null | grep 0x; }

unset MAKEFLAGS MAKELEVEL
release=$dir/release/cubin/$row.cubin lines=$dir/lines/cubin/$row.cubin
make -s BUILD="$dir/release" "$release" >"$dir/log" 2>&1 || cat "$dir/log"
make -s LINEINFO=1 BUILD="$dir/lines" "$lines" >"$dir/log" 2>&1 || cat "$dir/log"
code "$release" >"$dir/code"
code "$lines" >"$dir/code_of_lines"
expect "$row has machine code" test -s "$dir/code"
expect 'LINEINFO=1 changes the machine code' cmp -s "$dir/code" "$dir/code_of_lines"
expect 'no line of fwd.ptx in .debug_line' \
  sh -c "readelf -p .debug_line '$lines' 2>/dev/null | grep -q 'fwd.ptx'"
bytes=$(readelf -SW "$lines" 2>/dev/null |
  awk '/ \.nv_debug_line_sass / { sub(/.*PROGBITS/, ""); print $3 }')
expect 'too few lines of PTX in .nv_debug_line_sass' test "$((0x${bytes:-0}))" -gt 4096
expect 'the release build carries lines' \
  sh -c "! readelf -SW '$release' 2>/dev/null | grep -q 'nv_debug_line_sass'"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
