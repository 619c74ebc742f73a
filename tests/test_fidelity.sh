#!/bin/sh
# test_fidelity.sh - a GPU and the emulated driver on the same problems (fidelity/fidelity.cpp).
#
# Without a GPU there is nothing to hold the emulated driver against but itself under another
# schedule: that shows what order and atomics may change, and that the comparison can fail.
build=${BUILD:-build}
folder=$build/fidelity
emulated="$build/tests_emu/fidelity_run"
dump_emulated() {
  FA3PTX_LIBCUDA=$build/emu/libcuda.so.1 FA3EMU_SEED=$1 "$emulated" dump "$folder/$2"
}
mkdir -p "$folder"

dump_emulated 1 here || exit 1
if [ -x "$build/tests/fidelity_run" ] && ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  (unset FA3PTX_LIBCUDA && "$build/tests/fidelity_run" dump "$folder/other") || exit 1
  skipped=0
else
  dump_emulated 2 other || exit 1
  skipped=1
  echo 'skipped 1: no GPU to compare the emulated driver with; compared with another schedule'
fi
"$emulated" compare "$folder/other" "$folder/here" >"$folder/log"
sed '$d' "$folder/log"

"$emulated" damage "$folder/other"
if "$emulated" compare "$folder/other" "$folder/here" >/dev/null; then
  echo 'FAILED: a planted difference went unnoticed'
  echo '0 passed, 1 failed, 0 skipped'
  exit 1
fi
sed -n '$s/0 skipped/'$skipped' skipped/p' "$folder/log"
tail -n 1 "$folder/log" | grep -q ' 0 failed'
