#!/bin/sh
# run.sh PROGRAM... - runs test programs one after the other and adds up their last lines.
#
# A program ends on `N passed, N failed, N skipped`.  One that prints no such line counts as one
# test, by its exit status.  One whose status is not 0 though it counts no failure adds one.
passed=0 failed=0 skipped=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for program in "$@"; do
  echo "== $program"
  case $program in
    *.py) python3 "$program" >"$out" 2>&1 ;;
    *.sh) sh "$program" >"$out" 2>&1 ;;
    *) "$program" >"$out" 2>&1 ;;
  esac
  status=$?
  cat "$out"
  counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$out" |
    tail -n 1)
  if [ -z "$counts" ]; then
    if [ $status -eq 0 ]; then counts="1 0 0"; else counts="0 1 0"; fi
  fi
  set -- $counts
  if [ $status -ne 0 ] && [ "$2" -eq 0 ]; then
    echo "$program ended with status $status"
    set -- "$1" 1 "$3"
  fi
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
