#!/usr/bin/env python3
"""ablate.py - what each idea of the kernels is worth: builds without it beside the release.

The variants are those of ablations.def, built by `make ablations`.  All variants of a row (kernel,
length) are measured in rounds, in random order within a round, beside the release; the median
counts, and what carries over is the ratio to the release.  Results of the exact ones are compared
with cuDNN's before anything is timed; the others are wrong on purpose.

    ablate.py                                    every variant, 512 and 8192 rows
    ablate.py --only lazy,turns --seqlen 8192
    ablate.py --list                             what there is; needs no GPU

Needs PyTorch with CUDA and cuDNN, as compare.py does.  16k tokens in all, 2048 columns of heads.
"""
import argparse
import os
import statistics
import sys
import time
import types

import compare
import record
from fa3ptx import DETERMINISTIC, Library

ROOT = compare.ROOT
COLUMNS = ["change", "switch", "results", "d", "mask", "seqlen", "tflops", "release",
           "of_release", "error", "clock"]


class Ablation:
    """A line of ablations.def and the text below it."""

    def __init__(self, line, text):
        self.name, kernels, switches, self.results = (x.strip() for x in line.split("|"))
        self.kernels, self.switches, self.text = kernels.split(), switches.split(), text
        self.deterministic = self.switches == ["DETERMINISTIC"]
        self.call = kernels[:3]

    def serves(self, kernel):
        return any(kernel == k or (k.endswith("%") and kernel in (k[:-1], k[:-1] + "_causal"))
                   for k in self.kernels)


def read_ablations(path=os.path.join(compare.HERE, "ablations.def")):
    found = []
    with open(path, encoding="ascii") as file:
        for line in file:
            if line[:1].isalpha():
                found.append((line.strip(), []))
            elif line.strip() and not line.startswith("#"):
                found[-1][1].append(line.strip())
    return [Ablation(line, " ".join(text)) for line, text in found]


class Mixed:
    """Forward calls go to the release, as a backward needs them; backward ones to a variant."""

    def __init__(self, release, variant):
        self.libraries = {"forward": release, "backward": variant}
        self.lib, self.check = self, variant.check
        self.fa3ptx_forward, self.fa3ptx_backward = (
            release.lib.fa3ptx_forward, variant.lib.fa3ptx_backward)

    def workspace_size(self, name, args):
        return self.libraries[name].workspace_size(name, args)

    def kernel(self, name, args):
        return self.libraries[name].kernel(name, args)


def make_call(torch, release, library, tensors, row, call, ablation):
    """What runs a variant on this row; None if it has no kernel for it."""
    mixed = Mixed(release, library) if call == "bwd" else library
    ours = compare.Ours(torch, mixed, tensors, row, call, 1)
    if ablation and ablation.deterministic:
        ours.args.flags |= DETERMINISTIC
        ours.add_workspace(torch)
    return ours


def measure_row(torch, libraries, ablations, tensors, row, call, options, clocks):
    """The lines of the results file for a row."""
    release = libraries["release"]
    base = make_call(torch, release, release, tensors, row, call, None)
    chosen = [a for a in ablations if a.call == call and a.serves(base.kernel)]
    if not chosen:
        return []
    want = {n: x.clone() for n, x in compare.Cudnn(torch, tensors, row, call).results().items()}
    calls, errors = {"release": base}, {}
    for a in chosen:
        library = release if a.deterministic else libraries[a.name]
        calls[a.name] = make_call(torch, release, library, tensors, row, call, a)
        if calls[a.name].kernel != base.kernel:
            raise RuntimeError(f"{a.name} has no {base.kernel}")
    for name, ours in calls.items():
        ours.run(1)
        torch.cuda.synchronize()
        errors[name] = compare.difference(ours.results, want)
    clocks.since_last()
    times, _ = compare.measure(torch, {n: c.run for n, c in calls.items()}, options)
    sample = clocks.since_last()
    rate = {n: row.flops(call) / statistics.median(t) * 1e-12 for n, t in times.items()}
    lines = [("release", "", "exact", "release")]
    lines += [(a.text, " ".join(a.switches), a.results, a.name) for a in chosen]
    found = []
    for text, switches, results, name in lines:
        if results == "exact" and not errors[name] <= options.tolerance:
            raise RuntimeError(f"{name} of {base.kernel} is wrong: {errors[name]:.1e}")
        found.append(dict(
            change=text, switch=name, results=results, d=row.d,
            mask="causal" if row.causal else "none", seqlen=row.s, tflops=f"{rate[name]:.1f}",
            release=f"{rate['release']:.1f}", of_release=f"{rate[name] / rate['release']:.3f}",
            error=f"{errors[name]:.1e}" if results == "exact" else "",
            clock=f"{sample[0]:.0f}" if sample else ""))
    return found


def print_rows(call, found):
    first = found[0]
    print(f"# {call} d={first['d']} mask={first['mask']} seqlen={first['seqlen']}: release "
          f"{first['tflops']} TFLOP/s, {first['clock']} MHz")
    for r in found[1:]:
        mark = " " if r["results"] == "exact" else "*"
        print(f"  {r['tflops']:>6} {r['of_release']} {mark}{r['switch']:<12} {r['change']}",
              flush=True)


def read_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the builds")
    p.add_argument("--only", help="names, by commas")
    p.add_argument("--dir", choices=("fwd", "bwd", "both"), default="both")
    p.add_argument("--d", type=compare.number_list)
    p.add_argument("--seqlen", type=compare.number_list, default=[512, 8192])
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--ms", type=float, default=8, help="length of a measurement in a round")
    p.add_argument("--settle", type=float, default=0.05, help="seconds of load before each row")
    p.add_argument("--tolerance", type=float, default=1e-2)
    p.add_argument("--budget", type=float, default=1e9, help="start no row after these seconds")
    p.add_argument("--csv", metavar="FOLDER", help="write ablation_fwd.csv and ablation_bwd.csv")
    p.add_argument("--list", action="store_true")
    return p.parse_args()


def main():
    options = read_options()
    ablations = read_ablations()
    if options.only:
        ablations = [a for a in ablations if a.name in options.only.split(",")]
    if options.list:
        for a in ablations:
            print(f"{a.name:<12}{a.results:<6} {' '.join(a.kernels)}\n{'':18} {a.text}")
        return 0
    torch = record.pytorch()
    start = time.perf_counter()
    libraries = {"release": Library(os.path.join(options.build, "libfa3ptx.so"))}
    for a in ablations:
        if not a.deterministic:
            path = os.path.join(options.build, "ablation", a.name, "libfa3ptx.so")
            libraries[a.name] = Library(path)
    rows = compare.read_rows(types.SimpleNamespace(
        rows=os.path.join(compare.HERE, "peers.csv"), d=options.d, gqa=False,
        seqlen=options.seqlen, causal="both"))
    tensors = compare.Tensors(torch, torch.bfloat16,
                              max(r.b * r.s * r.hq * r.d for r in rows), False)
    matrix = tensors.pool["q"][:4096 * 4096].view(4096, 4096)
    compare.keep_busy(torch, [lambda n: [torch.mm(matrix, matrix) for _ in range(n)]], 1.0)
    clocks, failures = compare.Clocks(), 0
    for call in ("fwd", "bwd") if options.dir == "both" else (options.dir,):
        found = []
        for row in rows:
            if time.perf_counter() - start > options.budget:
                print("# out of time")
                break
            try:
                lines = measure_row(torch, libraries, ablations, tensors, row, call, options,
                                    clocks)
            except RuntimeError as error:
                failures += 1
                print(f"# {call} d={row.d} seqlen={row.s}: {error}", flush=True)
                continue
            if lines:
                print_rows(call, lines)
            found += lines
        if options.csv and found:
            record.write(os.path.join(options.csv, f"ablation_{call}.csv"), COLUMNS, found,
                         card=torch.cuda.get_device_name(), clocks=record.clocks(found),
                         rounds=f"{options.rounds} of {options.ms:g} ms")
    print("# * results are wrong on purpose: only the time means something")
    print(f"# {time.perf_counter() - start:.0f} s")
    clocks.stop()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
