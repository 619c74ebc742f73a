#!/usr/bin/env python3
"""build_cost.py - what a build of the library takes on two cores: time, memory, bytes.

    build_cost.py                                   everything, then two head dims of bf16
    build_cost.py --csv bench/results/build.csv     into a results file

Each build starts from nothing, in a folder of its own, held to two cores, which should have nothing
else to do: the time is by the clock, of the fastest of --repeat, and beside it that of the cores
(cpu).  Memory is the peak of
the whole tree of processes, sampled: shared pages count once (PSS).  Needs Linux, and no GPU.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

import record

BUILDS = {"all": [], "two_dims_bf16": ["HEAD_DIMS=64 128", "DTYPES=bf16"]}


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(x) for x in file.read().split()]
    except OSError:
        return []


def memory(pid):
    """Bytes of a process and all it started."""
    size = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            size = next(int(x.split()[1]) * 1024 for x in file if x.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    return size + sum(memory(child) for child in children(pid))


def build(arguments, folder):
    """(seconds by the clock, seconds of the cores, peak bytes)"""
    command = ["make", "-s", "-j2", f"BUILD={folder}", "lib"] + arguments
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    start, peak, before = time.perf_counter(), 0, os.times()
    process = subprocess.Popen(command, cwd=record.ROOT, stdout=subprocess.DEVNULL,
                               env=environment)
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return time.perf_counter() - start, cpu, peak


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--csv", help="results file")
    options = p.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    rows = []
    for name, arguments in BUILDS.items():
        found = []
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as folder:
                found.append(build(arguments, folder))
                with open(os.path.join(folder, "names"), encoding="ascii") as file:
                    kernels = len(file.read().split())
                size = os.path.getsize(os.path.realpath(os.path.join(folder, "libfa3ptx.so")))
        seconds, cpu, peak = min(found)
        rows.append([name, kernels, f"{seconds:.1f}", f"{cpu:.1f}", peak, size])
        print(f"{name}: {kernels} kernels in {seconds:.1f} s on {len(cores)} cores ({cpu:.1f} s of "
              f"theirs), {peak / 1e6:.0f} MB of memory, library {size / 1e6:.1f} MB", flush=True)
    if options.csv:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((x.split(":")[1].strip() for x in file if x.startswith("model name")),
                         "unknown")
        record.write(options.csv, "build kernels seconds cpu memory size".split(), rows,
                     cpu=f"{len(cores)} cores of {model}")


if __name__ == "__main__":
    main()
