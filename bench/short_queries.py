#!/usr/bin/env python3
"""short_queries.py - few query rows over a long cache, grouped heads; cuDNN and flash beside it.

    short_queries.py                       seqlen_q 1 4 16 64, seqlen_k 1k 8k 64k, 32/8 64/8 128/8
    short_queries.py --d 64 --batch 16     one head dim, one batch
    short_queries.py --small               batch 1 to 8, 32 to 512 tokens, as many queries as keys
    short_queries.py --csv bench/results/short.csv    rows into a results file

Microseconds of GPU time: calls are recorded in a CUDA graph, so that no host is slower than its
kernels, and the medians of interleaved rounds count (compare.py).  TB/s: the bytes of Q, K, V and O
over the time, beside which the last line has the rate of a plain copy: a single query should come
near it, once the tiles fill the chip.  `tiles` counts key/value heads x batch, what a packed
forward of one tile a group has to spread over.
FA3PTX_LIBRARY: path of libfa3ptx.so, else build/.
"""
import argparse
import ctypes as C
import os
import statistics

import compare
import record
from fa3ptx import BF16, CAUSAL, Forward, Library, Tensor


class Ours:
    def __init__(self, torch, library, tensors, causal):
        q, k, v, _ = tensors
        self.library = library
        self.lse = torch.empty(q.shape[0] * q.shape[1] * q.shape[2], device="cuda")
        self.torch = torch
        self.args = Forward(
            struct_size=C.sizeof(Forward), batch=q.shape[0], seqlen_q=q.shape[1],
            seqlen_k=k.shape[1], heads_q=q.shape[2], heads_kv=k.shape[2], head_dim=q.shape[3],
            head_dim_v=q.shape[3], mask=CAUSAL if causal else 0, lse=self.lse.data_ptr())
        for name, x in zip("qkvo", tensors):
            setattr(self.args, name, Tensor(x.data_ptr(), *x.stride()[:3], BF16, 0))
        self.kernel = library.kernel("forward", self.args)

    def run(self, n):
        call, address = self.library.lib.fa3ptx_forward, C.addressof(self.args)
        stream = self.torch.cuda.current_stream().cuda_stream
        for _ in range(n):
            self.library.check(call(address, stream))


class Theirs:
    """scaled_dot_product_attention on one backend; no mask (is_causal means top-left there)."""

    def __init__(self, torch, tensors, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.sdpa = torch.nn.functional.scaled_dot_product_attention
        self.choose = lambda: sdpa_kernel(getattr(SDPBackend, backend))
        self.q, self.k, self.v = (x.transpose(1, 2) for x in tensors[:3])
        self.out = self.run(1).transpose(1, 2)

    def run(self, n):
        with self.choose():
            for _ in range(n):
                out = self.sdpa(self.q, self.k, self.v, enable_gqa=True)
        return out


class Captured:
    """CALLS calls of something as one graph."""
    CALLS = 10

    def __init__(self, torch, calls):
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kept = calls.run(self.CALLS)

    def run(self, n):
        for _ in range(n):
            self.graph.replay()


KEY = "head_dim heads heads_kv seqlen_q seqlen_k batch".split()


def copy_rate(torch, options):
    """TB/s, read and written, of a plain copy of 1 GiB."""
    x = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    times, _ = compare.measure(torch, {"copy": lambda n: [y.copy_(x) for _ in range(n)]}, options)
    return 4 * x.numel() / statistics.median(times["copy"]) * 1e-12


def cases(options):
    if options.small:
        for d in options.d:
            for batch, heads in ((1, 8), (1, 16), (4, 16), (8, 16)):
                for seqlen in (32, 64, 128, 256, 512):
                    yield d, heads, heads, seqlen, seqlen, batch
        return
    for d in options.d:
        for heads in options.heads:
            for seqlen_q in options.seqlen_q:
                for seqlen_k in options.seqlen_k:
                    for batch in options.batch:
                        if batch * seqlen_k <= 1 << 20:
                            yield d, heads, 8, seqlen_q, seqlen_k, batch


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--d", type=compare.number_list, default=[64, 128])
    p.add_argument("--batch", type=compare.number_list, default=[1, 16, 64])
    p.add_argument("--heads", type=compare.number_list, default=[32, 64, 128])
    p.add_argument("--seqlen-q", type=compare.number_list, default=[1, 4, 16, 64])
    p.add_argument("--seqlen-k", type=compare.number_list, default=[1024, 8192, 65536])
    p.add_argument("--small", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ms", type=float, default=5)
    p.add_argument("--settle", type=float, default=0.02)
    p.add_argument("--csv", help="results file whose rows are replaced (record.py)")
    options = p.parse_args()
    torch = record.pytorch()
    library = Library(os.environ.get("FA3PTX_LIBRARY",
                                     os.path.join(compare.ROOT, "build", "libfa3ptx.so")))
    print("| d | heads | seqlen_q | seqlen_k | batch | tiles | kernel | ours us | cuDNN | flash | "
          "best / ours | TB/s | difference |\n|" + "---|" * 13)
    rows = []
    for d, heads, heads_kv, seqlen_q, seqlen_k, batch in cases(options):
        shape = {"q": (seqlen_q, heads), "k": (seqlen_k, heads_kv), "v": (seqlen_k, heads_kv),
                 "o": (seqlen_q, heads)}
        tensors = [torch.randn(batch, *shape[n], d, device="cuda", dtype=torch.bfloat16)
                   for n in "qkvo"]
        ours, peers = Ours(torch, library, tensors, False), {}
        ours.run(1)
        for name, backend in (("cudnn", "CUDNN_ATTENTION"), ("flash", "FLASH_ATTENTION")):
            try:
                peers[name] = Theirs(torch, tensors, backend)
            except RuntimeError:
                pass  # this backend does not take the shape
        wrong = max((compare.difference({"o": tensors[3]}, {"o": x.out}) for x in peers.values()),
                    default=float("nan"))
        runs = {n: Captured(torch, x) for n, x in {"ours": ours, **peers}.items()}
        times, _ = compare.measure(torch, {n: x.run for n, x in runs.items()}, options)
        us = {n: statistics.median(t) * 1e6 / Captured.CALLS for n, t in times.items()}
        best = min((us[n] for n in peers), default=float("nan"))
        size = sum(x.numel() * 2 for x in tensors)
        print(f"| {d} | {heads}/{heads_kv} | {seqlen_q} | {seqlen_k} | {batch} "
              f"| {heads_kv * batch} | {ours.kernel} | {us['ours']:.1f} "
              f"| {us.get('cudnn', float('nan')):.1f} "
              f"| {us.get('flash', float('nan')):.1f} | {best / us['ours']:.2f} "
              f"| {size / us['ours'] * 1e-6:.2f} | {wrong:.1e} |", flush=True)
        rows.append(dict(zip(KEY, (d, heads, heads_kv, seqlen_q, seqlen_k, batch)),
                         **{n + "_us": f"{x:.1f}" for n, x in us.items()},
                         tb_s=f"{size / us['ours'] * 1e-6:.2f}", error=f"{wrong:.1e}",
                         kernel=ours.kernel))
    copy = copy_rate(torch, options)
    print(f"# plain copy: {copy:.2f} TB/s")
    if options.csv:
        record.merge(options.csv, KEY + "ours_us cudnn_us flash_us tb_s error kernel".split(), KEY,
                     rows, card=torch.cuda.get_device_name(), copy=f"{copy:.2f}",
                     cudnn=f"{torch.backends.cudnn.version()}, PyTorch {torch.__version__}",
                     rounds=f"{options.rounds} of {options.ms:g} ms")


if __name__ == "__main__":
    main()
