#!/bin/sh
# test_readme.sh - README.md is true: its C compiles and is accepted, its table is kernels.def's,
# its links lead somewhere.   test_readme.sh --write   writes the table.
cd "$(dirname "$0")/.." || exit 1
: "${BUILD:=build}" "${CC:=gcc}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
report() { # WHAT FINDINGS: passes if there are no findings
  if [ -z "$2" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1)); printf 'FAILED: %s\n%s\n' "$1" "$2"; fi
}

# ---- The table: a line for each source, with what its rows are for ---
sed -n 's/^KERNEL(\(.*\)) *$/\1/p' src/kernels.def | tr -d ' ' | awk -F, '
  BEGIN {
    call["FWD_REF"] = call["FWD_FP8_REF"] = "forward, reference"
    call["FWD"] = call["FWD_FP8"] = "forward"
    call["FWD_PACKED"] = "forward, few query rows"
    call["BWD_REF_DQ"] = call["BWD_REF_DKV"] = "backward, reference"
    call["BWD"] = "backward"; call["BWD_PRE"] = "backward, before"
    call["BWD_POST"] = "backward, after"
    print "| source | call | dtype | head_dim (/ head_dim_v) | mask |"
    print "|---|---|---|---|---|"
  }
  function add(list, word) { return index("," list ",", ", " word ",") ? list : list ", " word }
  {
    id = $2
    if (!(id in seen)) { seen[id] = ++n; source[n] = id }
    i = seen[id]
    calls[i] = ($3 in call) ? call[$3] : tolower($3)
    types[i] = add(types[i], tolower($4))
    any = "any multiple of " ($4 == "E4M3" ? 16 : 8) " up to 256"
    dims[i] = add(dims[i], $5 == 0 ? any : $5 == $6 ? $5 : $5 "/" $6)
    masks[i] = add($7 == "ANY" ? add(masks[i], "none") : masks[i],
                   $7 == "ANY" ? "causal" : tolower($7))
  }
  END {
    for (i = 1; i <= n; i++)
      print "| [" source[i] "](ptx/" source[i] ".ptx) | " calls[i] " | " substr(types[i], 3) " | " \
        substr(dims[i], 3) " | " substr(masks[i], 3) " |"
  }
' >"$dir/table"
if [ "$1" = --write ]; then
  sed -e '/<!-- kernels:/,/<!-- end of kernels/{/<!--/!d' -e '}' README.md |
    sed "/<!-- kernels:/r $dir/table" >"$dir/README.md" && cp "$dir/README.md" README.md
  exit
fi
sed -n '/<!-- kernels:/,/<!-- end of kernels/{/<!--/!p}' README.md >"$dir/shown"
report 'the table of README.md is not that of src/kernels.def: sh tests/test_readme.sh --write' \
  "$(diff "$dir/shown" "$dir/table")"

# ---- The C: warning-free C11; null pointers are refused by name; good arguments pass ---------
sed -n '/^```c$/,/^```$/{/^```/!p}' README.md >"$dir/attend.c"
report 'the body of the C function takes more than twelve lines' \
  "$(sed -n '/^fa3ptx_status/,/^}/p' "$dir/attend.c" | awk 'END { if (NR > 12) print NR }')"
cat >>"$dir/attend.c" <<'C'
#include <stdio.h>
#include <string.h>
int main(void) {
  void *p[4] = {(void *)0x10000000, (void *)0x20000000, (void *)0x30000000, (void *)0x40000000};
  int status = attend(NULL, NULL, NULL, NULL, NULL, 2, 100, 8, 2, 128, NULL);
  if (status != FA3PTX_ERROR_INVALID_ARGUMENT || !strstr(fa3ptx_last_error(), "q.data"))
    return printf("null pointers: status %d, %s\n", status, fa3ptx_last_error()), 1;
  status = attend(p[0], p[1], p[2], p[3], NULL, 2, 100, 8, 2, 128, NULL);
  if (status != FA3PTX_ERROR_NO_DRIVER && status != FA3PTX_ERROR_NO_CONTEXT)
    return printf("no context yet: status %d, %s\n", status, fa3ptx_last_error()), 1;
  return 0;
}
C
so=${FA3PTX_LIBRARY:-$BUILD/libfa3ptx.so}
report 'the C of README.md' "$(
  "$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude "$dir/attend.c" -o "$dir/attend" \
    -L"$(dirname "$so")" -lfa3ptx 2>&1 &&
    LD_LIBRARY_PATH=$(dirname "$so") "$dir/attend" 2>&1 || echo "ended with status $?")"

# ---- Links ---------------------------------------------------------------------------------------
missing=''
for file in README.md ptx/README.md; do
  for link in $(grep -o '](\([^)#:]*\))' "$file" | sed 's/](\(.*\))/\1/'); do
    [ -e "$(dirname "$file")/$link" ] || missing="$missing$file leads to $link
"
  done
done
report 'a link leads nowhere' "$missing"

# ---- The guide: each kernel's barriers, as the kernel defines and lists them; names exist -------
names() { grep -oE 'MB_[A-Z_]+' | sort -u | tr '\n' ' '; }
for source in $(sed -n 's/^<!-- barriers: \(.*\) -->$/\1/p' ptx/README.md); do
  explained=$(sed -n "/^<!-- barriers: $source -->/,/^<!-- end -->/p" ptx/README.md | names)
  defined=$(grep -oE '^#define MB_[A-Z_]+' "ptx/$source" | names)
  listed=$(grep -E '^// (MBAR)?  +MB_' "ptx/$source" | grep -oE 'MB_[A-Z_]+\>' | names)
  differ=''
  [ "$explained" = "$defined" ] || differ="ptx/README.md: $explained
the source: $defined"
  [ "$listed" = "$defined" ] || differ="$differ
its header: $listed
the source: $defined"
  report "the barriers of $source" "$differ"
done
untold=''
for file in ptx/*; do
  [ "$file" = ptx/README.md ] || grep -qF "($(basename "$file"))" ptx/README.md ||
    untold="$untold $file"
done
report 'ptx/README.md leads to every file of ptx/, but not to' "$untold"
unknown=''
for name in $(grep -oE '`[A-Z][A-Z0-9]*_[A-Z0-9_]+`' ptx/README.md | tr -d '`' | sort -u) \
  $(grep -oE '`(L_[a-z_]+|plan_[a-z]+|add_map|k[A-Z][a-z]+)`' ptx/README.md | tr -d '`' | sort -u)
do grep -rqw "$name" ptx/*.ptx ptx/*.inc src Makefile tests/emu || unknown="$unknown $name"; done
report 'ptx/README.md names what is nowhere' "$unknown"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
