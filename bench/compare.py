#!/usr/bin/env python3
"""compare.py - libfa3ptx beside cuDNN (through PyTorch), both in one run on the same tensors.

A card at its power limit swings by ten per cent from one second to the next, so single figures say
little.  What carries over is the ratio: everything is measured in rounds, in random order within a
round, and the median counts.  peers.csv has the ratio that the best peer reached; a row is behind
when it stays under 0.98 of that.  Results are checked against each other before anything is timed.

    compare.py                                   the 36 forward shapes of the papers
    compare.py --dir bwd --d 128 --causal yes    some rows, backward
    compare.py --seqlen 512,1024 --gqa           grouped queries too
    compare.py --dir fp8                         E4M3, beside cuDNN in bf16 and (where the module
                                                 nvidia-cudnn-frontend is there) cuDNN in E4M3
    compare.py --limit 'build/probe/*.cubin'     and wgmma alone (names: ...,d=,M=,N=,smem=.cubin)
    compare.py --also old=/tmp/libfa3ptx.so      and another build of this library, or several
    compare.py --csv bench/results/fwd.csv       rows into a results file (record.py)

Needs PyTorch with CUDA and cuDNN.  FA3PTX_LIBRARY: path of libfa3ptx.so, else build/.
"""
import argparse
import csv
import ctypes as C
import datetime
import glob
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time

import record
from cudnn_fp8 import CudnnFp8, Unsupported
from fa3ptx import CAUSAL, E4M3, Backward, Forward, Library, Tensor

HERE, ROOT = record.HERE, record.ROOT
BEHIND = 0.98  # of the target ratio


# ---- Shapes ------------------------------------------------------------------------------------

class Row:
    """One line of peers.csv."""

    def __init__(self, fields):
        self.d, self.hq, self.hk, causal, self.s, self.b = (
            int(fields[k]) for k in "head_dim heads heads_kv causal seqlen batch".split())
        self.causal, self.dv = bool(causal), int(fields.get("head_dim_v") or self.d)
        self.target = {x: float(fields[x + "_target"]) for x in ("fwd", "bwd", "fp8")}

    def flops(self, direction):
        """Forward QK and PV; backward QK, dQ, dK and dO V, dV."""
        dims = 3 * self.d + 2 * self.dv if direction == "bwd" else self.d + self.dv
        return 2 * self.s * self.s * dims * self.hq * self.b / (2 if self.causal else 1)


def read_rows(options):
    with open(options.rows, encoding="ascii") as file:
        rows = [Row(r) for r in csv.DictReader(x for x in file if not x.startswith("#"))]
    def wanted(r):
        return ((not options.d or r.d in options.d) and (r.hq == r.hk or options.gqa) and
                (not options.seqlen or r.s in options.seqlen) and
                (options.causal == "both" or r.causal == (options.causal == "yes")))
    return [r for r in rows if wanted(r)]


# ---- What is compared: each offers run(n), which enqueues n calls --------------------------------

class Tensors:
    """Views of one pool of random numbers, so that a new shape costs nothing.  fp8: q8, k8, v8
    are E4M3, and q, k, v the same numbers."""

    def __init__(self, torch, dtype, elements, fp8):
        self.torch, self.pool = torch, {}
        for name in ("q", "k", "v", "dout"):
            self.pool[name] = torch.randn(elements, device="cuda", dtype=dtype)
        for name in "qkv" if fp8 else "":
            self.pool[name + "8"] = self.pool[name].to(torch.float8_e4m3fn)
            self.pool[name] = self.pool[name + "8"].to(dtype)
        for name in ("o", "dq", "dk", "dv"):
            self.pool[name] = torch.empty(elements, device="cuda", dtype=dtype)

    def view(self, name, row):
        heads = row.hk if name in ("k", "v", "k8", "v8", "dk", "dv") else row.hq
        dim = row.dv if name in ("v", "v8", "o", "dout", "dv") else row.d
        count = row.b * row.s * heads * dim
        return self.pool[name][:count].view(row.b, row.s, heads, dim)


class Ours:
    def __init__(self, torch, library, tensors, row, direction, dtype_code):
        self.library, self.direction = library, direction
        names = "q k v o dout dq dk dv"
        self.kept = [torch.empty(row.b * row.hq * row.s, device="cuda", dtype=torch.float32)]
        self.stream = torch.cuda.current_stream().cuda_stream
        forward = self.fill(Forward, tensors, row, "q k v o", dtype_code)
        for name in "qkv" if direction == "fp8" else "":
            x = getattr(forward, name)
            x.data, x.dtype = tensors.view(name + "8", row).data_ptr(), E4M3
        self.args, self.name = forward, "forward"
        self.add_workspace(torch)
        if direction == "bwd":
            self.run(1)  # the backward reads O and LSE
            self.args, self.name = self.fill(Backward, tensors, row, names, dtype_code), "backward"
            self.add_workspace(torch)
        self.kernel = library.kernel(self.name, self.args)
        self.results = {n: tensors.view(n, row) for n in
                        (["dq", "dk", "dv"] if direction == "bwd" else ["o"])}

    def fill(self, kind, tensors, row, names, dtype_code):
        args = kind(struct_size=C.sizeof(kind), batch=row.b, seqlen_q=row.s, seqlen_k=row.s,
                    heads_q=row.hq, heads_kv=row.hk, head_dim=row.d, head_dim_v=row.dv,
                    mask=CAUSAL if row.causal else 0, lse=self.kept[0].data_ptr())
        for name in names.split():
            x = tensors.view(name, row)
            setattr(args, name, Tensor(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2),
                                       dtype_code, 0))
        return args

    def add_workspace(self, torch):
        size = self.library.workspace_size(self.name, self.args)
        if size:
            self.kept.append(torch.empty(size, device="cuda", dtype=torch.uint8))
            self.args.workspace, self.args.workspace_size = self.kept[-1].data_ptr(), size

    def run(self, n):
        call = getattr(self.library.lib, "fa3ptx_" + self.name)
        address = C.addressof(self.args)
        for _ in range(n):
            self.library.check(call(address, self.stream))


class Cudnn:
    def __init__(self, torch, tensors, row, direction):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.direction, self.row = torch, direction, row
        self.backend = lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
        self.q, self.k, self.v = (tensors.view(n, row).transpose(1, 2) for n in "qkv")
        self.dout = tensors.view("dout", row).transpose(1, 2)
        self.gqa = {"enable_gqa": True} if row.hq != row.hk else {}
        if direction == "bwd":
            self.q, self.k, self.v = (x.detach().requires_grad_() for x in (self.q, self.k, self.v))
        try:
            out = self.forward()
        except (RuntimeError, TypeError):  # no grouped queries there: repeat K and V in memory
            if not self.gqa:
                raise
            self.gqa = {}
            self.k, self.v = (x.detach().repeat_interleave(row.hq // row.hk, dim=1).requires_grad_(
                direction == "bwd") for x in (self.k, self.v))
            out = self.forward()
        self.out = out

    def forward(self):
        with self.backend():
            return self.torch.nn.functional.scaled_dot_product_attention(
                self.q, self.k, self.v, is_causal=self.row.causal, **self.gqa)

    def gradients(self):
        return self.torch.autograd.grad(self.out, (self.q, self.k, self.v), self.dout,
                                        retain_graph=True)

    def results(self):
        if self.direction != "bwd":
            return {"o": self.forward().transpose(1, 2)}
        found = {}
        for name, x in zip(("dq", "dk", "dv"), self.gradients()):
            if name != "dq" and x.shape[1] != self.row.hk:  # K and V had been repeated
                b, _, s, dim = x.shape
                x = x.view(b, self.row.hk, -1, s, dim).float().sum(2)
            found[name] = x.transpose(1, 2)
        return found

    def run(self, n):
        with self.backend():
            for _ in range(n):
                if self.direction != "bwd":
                    self.torch.nn.functional.scaled_dot_product_attention(
                        self.q, self.k, self.v, is_causal=self.row.causal, **self.gqa)
                else:
                    self.gradients()


class Limit:
    """wgmma alone in a forward kernel's shapes: a cubin named ...d=128,M=128,N=176,smem=S.cubin."""

    def __init__(self, torch, path, row, direction):
        shape = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", os.path.basename(path))}
        self.cu, self.module, self.kernel = C.CDLL("libcuda.so.1"), C.c_void_p(), C.c_void_p()
        self.check(self.cu.cuModuleLoad(C.byref(self.module), path.encode()))
        self.check(self.cu.cuModuleGetFunction(C.byref(self.kernel), self.module, b"k"))
        self.check(self.cu.cuFuncSetAttribute(self.kernel, 8, shape["smem"]))
        self.smem, self.threads = shape["smem"], 2 * shape["M"] + 128
        self.grid = torch.cuda.get_device_properties(0).multi_processor_count
        self.stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
        per_iteration = 4 * shape["M"] * shape["N"] * shape["d"] * self.grid
        # As many operations as a call of the row has, so that the two take about as long.
        self.iterations = max(1, round(row.flops(direction) / per_iteration))
        self.flops = self.iterations * per_iteration
        self.sink = torch.zeros(1, device="cuda")

    @staticmethod
    def check(status):
        if status != 0:
            raise RuntimeError(f"limit kernel: CUDA error {status}")

    def run(self, n):
        iterations, out = C.c_uint32(self.iterations), C.c_uint64(self.sink.data_ptr())
        values = (C.c_void_p * 2)(C.addressof(iterations), C.addressof(out))
        for _ in range(n):
            self.check(self.cu.cuLaunchKernel(self.kernel, self.grid, 1, 1, self.threads, 1, 1,
                                              self.smem, self.stream, values, None))


# ---- Measuring ---------------------------------------------------------------------------------

class Clocks:
    """SM clock and power, sampled beside the run by nvidia-smi where there is one."""

    def __init__(self):
        command = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm,power.draw",
                   "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0,
                                            stderr=subprocess.DEVNULL)
            os.set_blocking(self.process.stdout.fileno(), False)
        except OSError:
            self.process = None

    def since_last(self):
        """(MHz, W), medians of the samples since the last call; None without samples."""
        if not self.process:
            return None
        text = (self.process.stdout.read() or b"").decode("ascii", "replace")
        samples = [tuple(map(float, m)) for m in re.findall(r"([\d.]+), ([\d.]+)\n", text)]
        return tuple(statistics.median(x) for x in zip(*samples)) if samples else None

    def stop(self):
        if self.process:
            self.process.terminate()


def time_batch(torch, run, n):
    """Seconds of GPU time per call, and of host time to enqueue one."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    start = time.perf_counter()
    run(n)
    host = time.perf_counter() - start
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / n, host / n


def keep_busy(torch, runs, seconds):
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for run in runs:
            run(4)
        torch.cuda.synchronize()


def measure(torch, runs, options):
    """{name: [seconds per call in each round]}, and the names whose calls the host cannot feed."""
    keep_busy(torch, runs.values(), options.settle)
    estimate = {name: time_batch(torch, run, 3)[0] for name, run in runs.items()}
    times, slow_host = {name: [] for name in runs}, set()
    for _ in range(options.rounds):
        for name in random.sample(list(runs), len(runs)):
            n = max(1, math.ceil(options.ms * 1e-3 / estimate[name]))
            gpu, host = time_batch(torch, runs[name], n)
            times[name].append(gpu)
            if host > 0.9 * gpu:
                slow_host.add(name)
    return times, slow_host


def difference(ours, theirs):
    """Largest relative RMS difference over the results; NaN counts as infinite."""
    worst = 0.0
    for name, x in ours.items():
        a, b = x.float(), theirs[name].float()
        d = ((a - b).norm() / b.norm()).item()
        worst = max(worst, d if d == d else math.inf)
    return worst


def slice_error(torch, tensors, row, o):
    """Relative RMS difference between the last query rows of the last head and a float32 attention
    on the same numbers."""
    rows = min(row.s, 256)
    q, k, v = (tensors.view(n, row)[-1, :, -1].float() for n in "qkv")
    s = q[-rows:] @ k.T * row.d ** -0.5
    if row.causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(row.s - rows + 1), -math.inf)
    want = torch.softmax(s, -1) @ v
    return difference({"o": o[-1, -rows:, -1]}, {"o": want})


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


# ---- The table ---------------------------------------------------------------------------------

FP8_TOLERANCE = 5e-2  # P has three bits after the leading one

COLUMNS = ("dir     d   heads causal seqlen batch     ours   cudnn  cudnn8   limit  ratio target "
           "      err  clock  kernel")


class Report:
    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8") if path else None

    def line(self, text):
        print(text, flush=True)
        if self.file:
            self.file.write(text + "\n")
            self.file.flush()


def compare_row(torch, library, tensors, row, direction, options, clocks, report):
    """Measures one row; TFLOP/s by name are under "rate"."""
    ours = Ours(torch, library, tensors, row, direction, options.dtype_code)
    cudnn = None if options.no_cudnn else Cudnn(torch, tensors, row, direction)
    ours.run(1)
    error = difference(ours.results, cudnn.results()) if cudnn else float("nan")
    runs = {"ours": ours.run}
    for name, build in options.also.items():
        runs[name] = Ours(torch, build, tensors, row, direction, options.dtype_code).run
    if cudnn:
        runs["cudnn"] = cudnn.run
    fp8, notes = direction == "fp8", [ours.kernel]
    if fp8:
        error = slice_error(torch, tensors, row, ours.results["o"])
        try:
            peer = CudnnFp8(torch, *(tensors.view(n, row) for n in ("q8", "k8", "v8")), row.causal)
            runs["cudnn8"] = peer.run
            peer_error = slice_error(torch, tensors, row, peer.o)
            notes.append(f"cudnn8 writes {peer.o.dtype}, err {peer_error:.1e}")
        except Unsupported as reason:
            notes.append(f"no cudnn8: {reason}")
    kind = "limit_e4m3," if fp8 else "limit,"
    probes = [p for p in glob.glob(options.limit or "")
              if os.path.basename(p).startswith(kind) and f"d={row.d}," in p]
    limit = Limit(torch, probes[0], row, direction) if probes else None
    if limit:
        runs["limit"] = limit.run
    clocks.since_last()
    times, slow_host = measure(torch, runs, options)
    sample = clocks.since_last()
    flops = {n: limit.flops if n == "limit" else row.flops(direction) for n in times}
    rate = {n: flops[n] / statistics.median(t) * 1e-12 for n, t in times.items()}

    def cell(name):
        return f"{rate[name]:7.1f}" if name in rate else "      -"
    ratio = rate["ours"] / rate["cudnn"] if cudnn else float("nan")
    target = row.target[direction]
    if "cudnn8" in rate and cudnn:
        target = max(target, rate["cudnn8"] / rate["cudnn"])
    if (cudnn or fp8) and not error <= (FP8_TOLERANCE if fp8 else options.tolerance):
        notes.append("WRONG")
    if cudnn and ratio < BEHIND * target:
        notes.append("behind")
    if slow_host:
        notes.append("host-bound: " + " ".join(sorted(slow_host)))
    heads = f"{row.hq}/{row.hk}" if row.hq != row.hk else str(row.hq)
    clock = f"{sample[0]:5.0f}" if sample else "    -"
    dims = str(row.d) if row.d == row.dv else f"{row.d}/{row.dv}"
    report.line(f"{direction} {dims:>7} {heads:>7} {'yes' if row.causal else 'no':>6} {row.s:6} "
                f"{row.b:5}  {cell('ours')} {cell('cudnn')} {cell('cudnn8')} {cell('limit')} "
                f"{ratio:6.2f} {target:6.2f} {error:9.1e}  {clock}  {', '.join(notes)}")
    if options.also:
        report.line("#     also " + ", ".join(f"{n} {rate[n]:.1f} ({rate[n] / rate['ours']:.3f})"
                                              for n in options.also))
    return {"ratio": ratio, "target": target, "wrong": "WRONG" in notes, "rate": rate,
            "error": error, "clock": sample and sample[0], "kernel": ours.kernel}


KEY = "dtype head_dim head_dim_v heads heads_kv causal seqlen batch".split()
RATES = ["ours", "cudnn", "cudnn8", "limit"]


def write_csv(path, results, options, **facts):
    rows = []
    for (_, row), found in results.items():
        cells = [options.dtype, row.d, row.dv, row.hq, row.hk, int(row.causal), row.s, row.b]
        rows.append(dict(zip(KEY, cells), **{n: f"{x:.1f}" for n, x in found["rate"].items()},
                         error=f"{found['error']:.1e}", kernel=found["kernel"],
                         clock=found["clock"] and f"{found['clock']:.0f}"))
    record.merge(path, KEY + RATES + list(options.also) + ["error", "clock", "kernel"], KEY, rows,
                 rounds=f"{options.rounds} of {options.ms:g} ms", **facts)


def summarise(results, report):
    for direction in ("fwd", "bwd", "fp8"):
        for d in sorted({r.d for (x, r) in results if x == direction}):
            for causal in (False, True):
                found = [v for (x, r), v in results.items()
                         if x == direction and r.d == d and r.causal == causal]
                if not found:
                    continue
                ratios = [v["ratio"] for v in found if v["ratio"] == v["ratio"]]
                behind = sum(v["ratio"] < BEHIND * v["target"] for v in found)
                report.line(f"# {direction} d={d} {'causal' if causal else 'full':6} "
                            f"ours {geometric_mean([v['rate']['ours'] for v in found]):6.1f} "
                            f"TFLOP/s, ours/cudnn {geometric_mean(ratios):.3f}, best peer/cudnn "
                            f"{geometric_mean([v['target'] for v in found]):.3f}, "
                            f"behind in {behind} of {len(found)}")
    fp8 = [(r, v["ratio"]) for (x, r), v in results.items() if x == "fp8" and v["ratio"] > 0]
    if fp8:
        best = [ratio / results["fp8", r]["target"] for r, ratio in fp8]
        short = [ratio / r.target["fp8"] for r, ratio in fp8 if r.s <= 1024]
        report.line(f"# fp8 ours / better peer: mean {geometric_mean(best):.3f}, least "
                    f"{min(best):.3f}; up to 1024 rows, ours / fa3: {geometric_mean(short):.3f}")


def number_list(text):
    return [int(x) for x in text.split(",")]


def read_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--dir", choices=("fwd", "bwd", "both", "fp8"), default="fwd")
    p.add_argument("--d", type=number_list, help="head dims, e.g. 64,128")
    p.add_argument("--seqlen", type=number_list)
    p.add_argument("--causal", choices=("yes", "no", "both"), default="both")
    p.add_argument("--gqa", action="store_true", help="also the rows with grouped queries")
    p.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--ms", type=float, default=25, help="length of a measurement in a round")
    p.add_argument("--settle", type=float, default=0.1, help="seconds of load before each row")
    p.add_argument("--warmup", type=float, default=1.0, help="seconds of load at the start")
    p.add_argument("--budget", type=float, default=1e9, help="start no row after these seconds")
    p.add_argument("--limit", help="cubins of wgmma alone, a glob pattern")
    p.add_argument("--no-cudnn", action="store_true")
    p.add_argument("--tolerance", type=float, default=1e-2, help="relative RMS difference")
    p.add_argument("--also", action="append", default=[], metavar="NAME=PATH",
                   help="another libfa3ptx.so in the same rounds; may be repeated")
    p.add_argument("--out", help="file to append the table to")
    p.add_argument("--csv", help="results file whose rows are replaced; one direction")
    p.add_argument("--rows", default=os.path.join(HERE, "peers.csv"),
                   help="shapes and what to reach; head_dims.csv: 96, 192, 192/128")
    p.add_argument("--list", action="store_true", help="print the rows and stop; needs no GPU")
    options = p.parse_args()
    options.dtype_code = {"bf16": 1, "fp16": 2}[options.dtype]
    return options


def main():
    options = read_options()
    rows = read_rows(options)
    directions = ("fwd", "bwd") if options.dir == "both" else (options.dir,)
    if options.list:
        for r in rows:
            print(r.d, f"{r.hq}/{r.hk}", "causal" if r.causal else "full", r.s, r.b)
        return 0
    torch = record.pytorch()
    start = time.perf_counter()
    library = Library(os.environ.get("FA3PTX_LIBRARY") or
                      os.path.join(ROOT, "build", "libfa3ptx.so"))
    options.also = {name: Library(os.path.abspath(path)) for name, path in
                    (x.split("=", 1) for x in options.also)}
    report, clocks = Report(options.out), Clocks()
    report.line(f"# {datetime.date.today()} commit {record.commit()}, "
                f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
                f"cuDNN {torch.backends.cudnn.version()}, {options.dtype}, "
                f"{options.rounds} rounds of {options.ms:g} ms; TFLOP/s, medians")
    report.line(COLUMNS)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float16
    tensors = Tensors(torch, dtype, max((r.b * r.s * r.hq * r.d for r in rows), default=0),
                      options.dir == "fp8")
    matrix = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    keep_busy(torch, [lambda n: [torch.mm(matrix, matrix) for _ in range(n)]], options.warmup)
    results, failures = {}, 0
    for direction in directions:
        for row in rows:
            if time.perf_counter() - start > options.budget:
                report.line("# out of time")
                break
            try:
                results[direction, row] = compare_row(torch, library, tensors, row, direction,
                                                      options, clocks, report)
                failures += results[direction, row]["wrong"]
            except RuntimeError as error:
                failures += 1
                report.line(f"# {direction} d={row.d} seqlen={row.s}: {error}")
    summarise(results, report)
    if options.csv and results:
        write_csv(options.csv, results, options, card=torch.cuda.get_device_name(),
                  cudnn=f"{torch.backends.cudnn.version()}, PyTorch {torch.__version__}")
    report.line(f"# {time.perf_counter() - start:.0f} s")
    clocks.stop()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
