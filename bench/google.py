#!/usr/bin/env python3
"""google.py - runs a program on Google Benchmark and keeps its counters as a results file.

    google.py --csv bench/results/calls.csv build/bench/bench --benchmark_filter='host/|copy'

A row has the name and the counters, each in a column of its name (`GB/s` becomes gb_s); medians,
where there are repetitions.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import record

OWN = set("name family_index per_family_instance_index run_name run_type repetitions threads "
          "repetition_index iterations real_time cpu_time time_unit aggregate_name "
          "aggregate_unit label error_occurred error_message".split())


def column(counter):
    return re.sub(r"\W+", "_", counter).lower()


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--csv", required=True)
    p.add_argument("program", nargs=argparse.REMAINDER)
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "found.json")
        subprocess.run(options.program + ["--benchmark_out_format=json", "--benchmark_out=" + path],
                       check=True)
        with open(path, encoding="utf-8") as file:
            text = file.read()
    found = json.loads(text)["benchmarks"] if text.strip() else []
    if not found:
        sys.exit("nothing was measured")
    rows = []
    for b in found:
        if b.get("error_occurred"):
            sys.exit(f"{b['name']}: {b['error_message']}")
        if b.get("aggregate_name", "median") == "median":
            rows.append(dict({column(k): f"{v:.4g}" for k, v in b.items() if k not in OWN},
                             name=re.sub(r"/(iterations|repeats|manual_time).*", "", b["name"])))
    columns = ["name"] + sorted({c for r in rows for c in r} - {"name"})
    record.write(options.csv, columns, rows, card=card(), clocks="not read",
                 command="make results-" + os.path.splitext(os.path.basename(options.csv))[0])


def card():
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(command, text=True, stdout=subprocess.PIPE).stdout
        return found.strip().split("\n")[0]
    except OSError:
        return "unknown"


if __name__ == "__main__":
    main()
