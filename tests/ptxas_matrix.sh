#!/bin/sh
# ptxas_matrix.sh - every kernel through several releases of ptxas, with all gates of the build.
#
#   BUILD=... [ROWS='name ...'] [JOBS=n] sh tests/ptxas_matrix.sh PTXAS ...
#
# Prints a table, release by kernel source: `ok` and the bytes of its cubins, or the number of
# kernels that fail; then each failure.  The kernels are preprocessed for each release (make's
# PTXAS_RELEASE).  PTX, cubins and reports stay in $BUILD/matrix/<release>.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}" "${JOBS:=2}"

if [ "$1" = --one ]; then # RELEASE PTXAS NAME: one kernel; its line of the result
  dir=$BUILD/matrix/$2 name=$4
  row=$(grep "^$name," "$BUILD/matrix.rows")
  if "$3" -arch=sm_90a -v -warn-spills -Werror "$dir/ptx/$name.ptx" -o "$dir/$name.cubin" \
    >"$dir/$name.log" 2>&1; then
    why=$(awk -v name="$name" -v registers="$(echo "$row" | cut -d, -f12)" \
      -v exact="$(grep -c -m1 setmaxnreg "$dir/ptx/$name.ptx")" -f ptx/gate.awk \
      "$dir/$name.log" 2>&1 | head -n 1)
  else
    why="kernel $name: $(grep -m1 -E 'error|fatal|spill' "$dir/$name.log" || echo 'ptxas crashed')"
  fi
  bytes=0
  [ -n "$why" ] || bytes=$(($(wc -c <"$dir/$name.cubin")))
  echo "$2 $(echo "$row" | cut -d, -f2) $bytes $why" >"$dir/$name.result"
  exit 0
fi

mkdir -p "$BUILD"
sed -n 's/^KERNEL(\(.*\)) *$/\1/p' src/kernels.def | tr -d ' ' >"$BUILD/matrix.rows"
: "${ROWS:=$(cut -d, -f1 "$BUILD/matrix.rows")}"
releases=''
for ptxas; do
  release=$("$ptxas" --version | sed -n 's/.* V\([0-9.]*\).*/\1/p')
  [ -n "$release" ] || { echo "$ptxas does not run" >&2; exit 1; }
  releases="$releases $release"
  dir=$BUILD/matrix/$release
  rm -rf "${dir:?}" && mkdir -p "$dir"
  for name in $ROWS; do echo "$dir/ptx/$name.ptx"; done |
    MAKEFLAGS='' xargs make -j"$JOBS" BUILD="$dir" PTXAS="$ptxas" HEAD_DIMS='' DTYPES='' >&2 ||
    exit 1
  for name in $ROWS; do echo "$release $ptxas $name"; done
done >"$BUILD/matrix.jobs" 2>"$BUILD/matrix.errors" || { cat "$BUILD/matrix.errors" >&2; exit 1; }
xargs -P "$JOBS" -L 1 sh tests/ptxas_matrix.sh --one <"$BUILD/matrix.jobs"
for release in $releases; do cat "$BUILD/matrix/$release"/*.result; done | awk '
  !($2 in place) { place[$2] = ++n; source[n] = $2 }
  !($1 in seen) { seen[$1] = ++m; release[m] = $1 }
  $3 == 0 { failed[$1, $2]++; line = $0; sub(/^[^ ]+ [^ ]+ 0 /, "", line); why[++w] = $1 ": " line }
  { bytes[$1, $2] += $3; count[$1, $2]++ }
  END {
    printf "%-14s", "source"
    for (j = 1; j <= m; j++) printf "%16s", release[j]
    for (i = 1; i <= n; i++) {
      printf "\n%-14s", source[i]
      for (j = 1; j <= m; j++) {
        at = release[j] SUBSEP source[i]
        printf "%16s", failed[at] ? failed[at] " of " count[at] " fail" : "ok " bytes[at]
      }
    }
    print ""
    for (i = 1; i <= w; i++) print why[i]
    exit w > 0
  }'
