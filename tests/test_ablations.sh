#!/bin/sh
# test_ablations.sh - the variants of bench/ablations.def: all have been built, through the gates of
# every kernel (bench/ablate.mk); those whose results are meant to be right are.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}"
passed=0 failed=0 skipped=0
for name in $(sed -n '/^[a-z]/s/ *|.*//p' bench/ablations.def | sort -u); do
  check=$BUILD/ablation/$name/check
  if [ ! -x "$check" ]; then
    grep -q "^$name *|.*-D.*| exact" bench/ablations.def && # not wrong on purpose, nor a mode
      { skipped=$((skipped + 1)); echo "skipped 1: without $name: not in this build"; }
    continue
  fi
  answer=$(timeout 120 "$check" 2>&1) || echo "FAILED: without $name: $answer"
  counts=$(echo "$answer" |
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')
  set -- ${counts:-0 1 0}
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
