"""test_trace.py - traced kernels, and the timelines drawn in their headers.

Kernels with stamps (ptx/trace.inc) run, on the emulated driver where there is no GPU; what they
wrote down, and what an H200 wrote into bench/results/trace_*.csv, has to agree with the drawing
under TIME in the kernel's source, for every warpgroup and block:
  - of two drawn spans the one that begins first begins first;
  - a span drawn left of another ends before that begins; two that overlap do overlap;
  - of two spans the one that ends first ends first.
"""
import csv
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
TRACE = os.path.join(BUILD, "ablation", "trace", "trace")
# kernel: source, which of its drawings, name of its results file
KERNELS = {"fwd_d128_m128_bf16": ("fwd", 0, "fwd_d128"),
           "fwd_d128_m128_bf16_causal": ("fwd", 0, "fwd_d128_causal"),
           "fwd_d64_m192_bf16": ("fwd", 1, "fwd_d64"),
           "bwd_d128_bf16": ("bwd_d128", 0, "bwd_d128"),
           "bwd_d64_n192_bf16_causal": ("bwd_ahead", 0, "bwd_d64_causal")}
ROW = re.compile(r"//\s+(QK|softmax|PV|store O|S|dP|P|dV|dS|dK)\s+((?:[0-9n.]\S*\s*)+)$")
passed = failed = skipped = 0


def report(what, findings):
    global passed, failed
    if findings:
        failed += 1
        print(f"FAILED: {what}: " + "\n  ".join(findings[:5]))
    else:
        passed += 1


def drawings(source):
    """Each a list of spans (event, number, first column, last column); number: 0, 1 ... of blocks,
    "n" the last, "0'" of the next tile."""
    path = next(glob.iglob(os.path.join(ROOT, "ptx", source + ".[pi]*")))
    with open(path, encoding="ascii") as file:
        lines = re.split("#i[nf]", file.read())[0].split("\n")
    found, inside = [], False
    for line in lines:
        row = ROW.match(line)
        if row and not inside:
            found.append([])
        inside = bool(row)
        for token in re.finditer(r"([0-9]+|n)('?)[=~]+", line[row.start(2):] if row else ""):
            number = int(token[1]) if token[1].isdigit() and not token[2] else token[1] + token[2]
            left = row.start(2)
            found[-1].append((row[1], number, left + token.start(), left + token.end() - 1))
    return found


class Spans:
    """What a warpgroup did: (event, tile, number) -> (begin, end)."""

    def __init__(self, rows):
        self.at, tile, last = {}, {}, {}
        for r in rows:
            event, number = r["event"], int(r["number"])
            if event in last and (number <= last[event] or event == "store O"):
                tile[event] += 1
            tile.setdefault(event, 0)
            last[event] = number
            self.at[event, tile[event], number] = (int(r["begin"]), int(r["end"]))

    def last_block(self, tile):
        return max((n for e, t, n in self.at if e == "softmax" and t == tile), default=0)

    def find(self, event, tile, number, base):
        """The span that a drawn number stands for, base being block 0 of the drawing."""
        if event == "store O":
            return self.at.get((event, tile, 0))
        if number == "n":
            return self.at.get((event, tile, self.last_block(tile)))
        if number == "0'":
            return self.at.get((event, tile + 1, 0))
        return self.at.get((event, tile, number + base))


def disagreements(a, b, first, second):
    """a begins first in the drawing; first and second are what they stand for."""
    if first[0] > second[0]:
        yield "begins later"
    if a[3] < b[2] and first[1] > second[0]:
        yield "has not ended when it begins:"
    if a[3] >= b[2] and first[1] <= second[0]:
        yield "has ended when it begins:"
    if a[3] < b[3] and first[1] > second[1] or a[3] > b[3] and first[1] < second[1]:
        yield "ends in another order than"


def compare(drawing, rows, what):
    """The trace of a CTA with a drawing; each pair of spans has to be found somewhere."""
    findings, seen = [], set()
    for role in sorted({r["role"] for r in rows} - {"0"}):
        spans = Spans([r for r in rows if r["role"] == role])
        tiles = {t for _, t, _ in spans.at}
        for a, b in itertools.permutations(drawing, 2):
            blocks = isinstance(a[1], int) and isinstance(b[1], int)
            if a[2] >= b[2] or not blocks and (isinstance(a[1], int) or isinstance(b[1], int)):
                continue
            last = max(n for _, _, n in spans.at)
            for tile, base in itertools.product(tiles, range(last + 1) if blocks else [0]):
                first = spans.find(a[0], tile, a[1], base)
                second = spans.find(b[0], tile, b[1], base)
                if first and second:
                    seen.add((a, b))
                    findings += [f"{what}, warpgroup {role}, tile {tile}: {a[0]} {a[1]}+{base} {x} "
                                 f"{b[0]} {b[1]}" for x in disagreements(a, b, first, second)]
    numbers = [s for s in drawing if isinstance(s[1], int)]
    for a, b in itertools.permutations(numbers, 2):
        if a[2] < b[2] and (a, b) not in seen:
            findings.append(f"{what}: {a[0]} {a[1]} and {b[0]} {b[1]} are never both there")
    return findings


def read(path):
    with open(path, encoding="ascii") as file:
        return list(csv.DictReader(x for x in file if not x.startswith("#")))


def run_kernel(kernel, source, which):
    global skipped
    if not os.path.exists(TRACE):
        skipped += 1
        print(f"skipped 1: {kernel}: there is no {TRACE}")
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, x) for x in ("trace.csv", "trace.json")]
        ran = subprocess.run([TRACE, kernel, "--seqlen", "640", "--batch", "1", "--heads", "2",
                              "--csv", paths[0], "--json", paths[1]], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=300)
        if "no traced kernel" in ran.stdout or "no CUDA driver" in ran.stdout:
            skipped += 1
            print(f"skipped 1: {kernel}: {ran.stdout.strip()}")
            return
        report(f"the trace of {kernel} ran", [ran.stdout] if ran.returncode else [])
        if ran.returncode:
            return
        rows = read(paths[0])
        with open(paths[1], encoding="ascii") as file:
            events = json.load(file)["traceEvents"]
    report(f"{kernel}: what the two files say of a CTA", [] if len(rows) == sum(
        e["ph"] == "X" and e["pid"] == 0 for e in events) > 0 else ["other numbers of spans"])
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    report(f"{kernel}: every lane has a name", [str(e) for e in events if e["ph"] == "X" and (
        (e["pid"], e["tid"]) not in named or not e["dur"] > 0)])
    report(f"the drawing of {kernel}", compare(drawings(source)[which], rows, kernel))


def main():
    for kernel, (source, which, name) in KERNELS.items():
        run_kernel(kernel, source, which)
        for path in glob.glob(os.path.join(ROOT, "bench", "results", f"trace_{name}.csv")):
            report(path, compare(drawings(source)[which], read(path), os.path.basename(path)))
    # The comparison notices a drawing that is wrong: two events that trade places.
    def swapped(drawing, one, other):
        return [({one: other, other: one}.get(s[0], s[0]),) + s[1:] for s in drawing]
    made = [dict(role="1", event=e, number=j, begin=100 * j + b, end=100 * j + c) for j in range(4)
            for e, b, c in (("QK", 8, 12), ("softmax", 12, 18), ("PV", 109, 116))]
    made.sort(key=lambda r: (r["event"], r["number"]))
    drawing = drawings("fwd")[0]
    report("a made-up trace that agrees", compare(drawing, made, "made up"))
    for pair in (("QK", "PV"), ("QK", "softmax"), ("PV", "softmax")):
        report(f"a drawing in which {pair} trade places", [] if compare(
            swapped(drawing, *pair), made, "") else ["passes"])
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
