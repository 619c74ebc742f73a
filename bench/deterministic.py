#!/usr/bin/env python3
"""deterministic.py - what FA3PTX_FLAG_DETERMINISTIC costs, and that its bits repeat.

    deterministic.py                      every head dim, 8192 tokens, causal and not
    deterministic.py --repeats 1000       and that many runs of a smaller problem, bits compared
    deterministic.py --forward            the forward repeats its bits, with no flag

Cost: backward with the flag over backward without, medians of interleaved rounds (compare.py).
Needs PyTorch with CUDA.  FA3PTX_LIBRARY: path of libfa3ptx.so, else build/.
"""
import argparse
import os
import statistics
import sys

import compare
import record
from fa3ptx import DETERMINISTIC, Library


KEY = "head_dim causal seqlen".split()


def backward(torch, library, tensors, row, flags):
    ours = compare.Ours(torch, library, tensors, row, "bwd", 1)
    ours.args.flags = flags
    ours.add_workspace(torch)
    return ours


def cost(torch, library, tensors, row, options):
    runs = {flags: backward(torch, library, tensors, row, flags).run
            for flags in (0, DETERMINISTIC)}
    times, _ = compare.measure(torch, runs, options)
    plain, ordered = (statistics.median(times[flags]) for flags in (0, DETERMINISTIC))
    rate = [row.flops("bwd") / t * 1e-12 for t in (plain, ordered)]
    added = 100 * (ordered / plain - 1)
    print(f"d {row.d:3} {'causal' if row.causal else 'full':6} seqlen {row.s}: {rate[0]:.0f} -> "
          f"{rate[1]:.0f} TFLOP/s, {added:+.1f} % of time", flush=True)
    return {"ours": f"{rate[0]:.1f}", "deterministic": f"{rate[1]:.1f}", "added": f"{added:.1f}"}


def repeat(torch, ours, results, repeats, what):
    """Runs again and again; returns how many times a bit differed from the first run."""
    ours.run(1)
    first = {n: x.clone() for n, x in results.items()}
    changed = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(repeats - 1):
        for x in results.values():
            x.fill_(float("nan"))
        ours.run(1)
        same = [(x.view(torch.int16) == first[n].view(torch.int16)).all() for n, x in
                results.items()]
        changed += ~torch.stack(same).all()
    print(f"{what}: {repeats} runs, {changed.item()} differed", flush=True)
    return changed.item()


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--d", type=compare.number_list, default=[64, 96, 128, 192, 256])
    p.add_argument("--seqlen", type=compare.number_list, default=[8192])
    p.add_argument("--causal", choices=("yes", "no", "both"), default="both")
    p.add_argument("--repeats", type=int, default=0)
    p.add_argument("--forward", action="store_true")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--ms", type=float, default=12)
    p.add_argument("--settle", type=float, default=0.1)
    p.add_argument("--csv", help="results file whose rows are replaced (record.py)")
    options = p.parse_args()
    torch = record.pytorch()
    library = Library(os.environ.get("FA3PTX_LIBRARY") or
                      os.path.join(compare.ROOT, "build", "libfa3ptx.so"))
    tensors = compare.Tensors(torch, torch.bfloat16, 16384 * 2048, False)
    changed, rows = 0, []
    for d in options.d:
        for causal in {"both": (0, 1), "no": (0,), "yes": (1,)}[options.causal]:
            def row(seqlen, batch, heads, heads_kv):
                return compare.Row({"head_dim": d, "heads": heads, "heads_kv": heads_kv,
                                    "causal": causal, "seqlen": seqlen, "batch": batch,
                                    "fwd_target": 1, "bwd_target": 1, "fp8_target": 1})
            heads = 2048 // d
            if not options.forward:
                for seqlen in options.seqlen:
                    found = cost(torch, library, tensors,
                                 row(seqlen, 16384 // seqlen, heads, heads), options)
                    rows.append(dict(zip(KEY, (d, causal, seqlen)), **found))
            if options.repeats:
                small, what = row(1111, 2, 8, 4), f"d {d:3} {'causal' if causal else 'full':6}"
                ours = (compare.Ours(torch, library, tensors, small, "fwd", 1) if options.forward
                        else backward(torch, library, tensors, small, DETERMINISTIC))
                changed += repeat(torch, ours, ours.results, options.repeats, what)
                if rows:
                    rows[-1]["repeats"] = options.repeats
    if options.csv and not changed:
        record.merge(options.csv, KEY + "ours deterministic added repeats".split(), KEY, rows,
                     card=torch.cuda.get_device_name(),
                     rounds=f"{options.rounds} of {options.ms:g} ms")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
