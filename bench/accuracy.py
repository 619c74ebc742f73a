#!/usr/bin/env python3
"""accuracy.py - forward error on inputs with outliers, as in table 3 of the FlashAttention-3 paper.

Q, K, V are N(0, 1) plus, with probability 0.001, N(0, 100) (a variance); batch 2, 16 heads, 4096
tokens, head dim 128.  RMSE of O against float64, of
    plain   attention with every intermediate in fp16, as written out in PyTorch: S, P and O
    ours    fa3ptx_forward, which keeps S and the sums in fp32 and rounds P and O only
The bound is the paper's ratio: 1.9e-4 to 3.2e-4.  --csv writes a results file (record.py), with
the E4M3 lines that `bench --benchmark_filter=fp8_accuracy` left in the file of --fp8.

Needs PyTorch with CUDA.  FA3PTX_LIBRARY: path of libfa3ptx.so, else build/.
"""
import argparse
import ctypes as C
import json
import math
import os
import sys

import record
from fa3ptx import FP16, Forward, Library, Tensor

torch = record.pytorch()

BATCH, HEADS, SEQLEN, DIM = 2, 16, 4096, 128
BOUND = 0.6  # of the plain error


def outliers(generator):
    shape = (BATCH, SEQLEN, HEADS, DIM)
    def normal():
        return torch.randn(shape, device="cuda", generator=generator)
    rare = torch.rand(shape, device="cuda", generator=generator) < 1e-3
    return (normal() + rare * 10 * normal()).half()


def forward(library, q, k, v):
    o = torch.full_like(q, float("nan"))
    args = Forward(struct_size=C.sizeof(Forward), batch=BATCH, seqlen_q=SEQLEN, seqlen_k=SEQLEN,
                   heads_q=HEADS, heads_kv=HEADS, head_dim=DIM, head_dim_v=DIM)
    for name, x in zip("qkvo", (q, k, v, o)):
        setattr(args, name, Tensor(x.data_ptr(), *x.stride()[:3], FP16, 0))
    library.check(library.lib.fa3ptx_forward(C.addressof(args),
                                             torch.cuda.current_stream().cuda_stream))
    return o


def write_csv(options, rmse):
    """The file's rows are ways; `fp16` is ours, `fp16_plain` what is written out above."""
    rows = [("fp16_plain", rmse["plain"]), ("fp16", rmse["ours"])]
    if options.fp8:
        with open(options.fp8, encoding="utf-8") as file:
            found = json.load(file)["benchmarks"]
        rows += [(b["name"].split("/")[1], b["rmse"]) for b in found]
        rows = list({way: (way, x) for way, x in reversed(rows)}.values())[::-1]
    record.write(options.csv, ["way", "rmse"], [(way, f"{x:.2e}") for way, x in rows],
                 card=torch.cuda.get_device_name(), clocks="not read")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fp8", help="JSON of Google Benchmark")
    p.add_argument("--csv", help="results file")
    options = p.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    library = Library(os.environ.get("FA3PTX_LIBRARY", os.path.join(root, "build/libfa3ptx.so")))
    generator = torch.Generator("cuda").manual_seed(1)
    q, k, v = (outliers(generator) for _ in range(3))
    ours = forward(library, q, k, v)
    squares = {"plain": 0.0, "ours": 0.0}
    for b in range(BATCH):
        for h in range(HEADS):
            x, y, z = (t[b, :, h] for t in (q, k, v))
            s = x.double() @ y.double().T / math.sqrt(DIM)
            exact = torch.softmax(s, -1) @ z.double()
            plain = torch.softmax((x @ y.T) * (1 / math.sqrt(DIM)), -1) @ z
            squares["plain"] += (plain.double() - exact).square().sum().item()
            squares["ours"] += (ours[b, :, h].double() - exact).square().sum().item()
    rmse = {name: math.sqrt(total / q.numel()) for name, total in squares.items()}
    ratio = rmse["ours"] / rmse["plain"]
    print(f"RMSE against float64, fp16: plain {rmse['plain']:.2e}, ours {rmse['ours']:.2e}, "
          f"ratio {ratio:.2f} (bound {BOUND})")
    if options.csv:
        write_csv(options, rmse)
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
