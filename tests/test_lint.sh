#!/bin/sh
# test_lint.sh - style of the sources, headers that stand alone, symbols of the library.
# Run by `make lint` and `make check`, which set BUILD, CC, CXX and CUDA_INC.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}" "${CC:=gcc}" "${CXX:=g++}" "${CUDA_INC:=/usr/local/cuda/include}"
passed=0 failed=0 skipped=0
sources=$(find include src ptx tests bench .ci -type f ! -name '*.pyc' | sort)

# report WHAT FINDINGS: passes if there are no findings.
report() {
  if [ -z "$2" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1)); printf 'FAILED: %s\n%s\n' "$1" "$2"; fi
}
skip() { skipped=$((skipped + 1)); echo "skipped 1: $1"; }

# ---- Text ---------------------------------------------------------------------------------------
tab=$(printf '\t')
report 'a line is longer than 100 columns (rows of the registries apart)' \
  "$(awk 'length > 100 && !/^((KERNEL|STAGE)\(|\/\/  )/ { print FILENAME ":" FNR ": " length }' \
       $(echo "$sources" | grep -v '\.md$\|\.csv$\|\.svg$') Makefile)"
report 'space at the end of a line' "$(grep -nE '[[:space:]]$' $sources Makefile)"
report 'a tab outside of makefiles' "$(grep -n "$tab" $(echo "$sources" | grep -v '\.mk$'))"
report 'a file is too long' "$(wc -l $sources | awk '
  /\.inc$/ && $1 > 250 || /\.ptx$/ && $1 > 600 || /src\/.*\.(cpp|h)$/ && $1 > 400')"

# ---- Headers and sources compile alone, without a warning ----------------------------------------
# alone COMPILER FILE FLAG...
alone() {
  compiler=$1 file=$2
  shift 2
  if command -v "$compiler" >/dev/null 2>&1; then
    report "$file alone: $compiler $1" "$(echo "#include \"$file\"" |
      "$compiler" -x "$@" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. - 2>&1)"
  else skip "$file alone: no $compiler"; fi
}
for compiler in "$CC" clang; do alone "$compiler" include/fa3ptx.h c -std=c11 -Wshadow; done
for compiler in "$CXX" clang++; do
  alone "$compiler" include/fa3ptx.h c++ -std=c++17 -Wshadow
  for file in src/*.h src/*.cpp; do
    alone "$compiler" "$file" c++ -std=c++17 -fno-exceptions -fno-rtti -isystem "$CUDA_INC"
  done
done

# ---- What the library shows and needs ------------------------------------------------------------
declared=$(sed -n 's/^FA3PTX_API .*\(fa3ptx_[a-z_]*\)(.*/\1/p' include/fa3ptx.h | sort)
shown=$(nm -D --defined-only "$BUILD/libfa3ptx.so" | awk '{ print $3 }' | sort)
[ "$declared" = "$shown" ] && differ='' || differ="header: $declared
library: $shown"
report 'the library shows what the header declares, and nothing else' "$differ"
report 'the library needs no C++ runtime and no CUDA runtime' \
  "$(nm -u "$BUILD/libfa3ptx.so" | grep -E ' (_Z|__cxa_[^f]|__gxx|cuda|cu[A-Z])')"

# ---- The registry and the files ------------------------------------------------------------------
rows=$(sed -n 's/^KERNEL(\(.*\)) *$/\1/p' src/kernels.def | tr -d ' ')
for row in $rows; do
  name=${row%%,*}
  grep -qx "$name" "$BUILD/names" || continue # left out by HEAD_DIMS or DTYPES
  says=$(echo "$row" | cut -d, -f12)
  used=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$BUILD/cubin/$name.log")
  # Where the launch need not be exact (no setmaxnreg), another ptxas may use one step of 8 more.
  most=$((used + $(grep -q setmaxnreg "$BUILD/ptx/$name.ptx" && echo 0 || echo 8)))
  [ "$says" -ge "$used" ] && [ "$says" -le $most ] ||
    wrong="$wrong$name: the row says $says registers, ptxas $used
"
done
report 'registers in src/kernels.def are what ptxas uses, to a step where they may' "$wrong"
unused=''
for file in ptx/*.ptx; do
  stem=$(basename "$file" .ptx)
  echo "$rows" | cut -d, -f2 | grep -qx "$stem" || unused="$unused$file is the source of no row
"
done
for file in ptx/*.inc; do
  grep -rqs "include \"\(\.\./\)*\(ptx/\)*$(basename "$file")\"" ptx tests ||
    unused="$unused$file is included by nothing
"
done
report 'every file of ptx/ is used' "$unused"

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
