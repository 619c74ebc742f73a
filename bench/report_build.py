"""report_build.py - what a build takes (build_cost.py), beside what is published of the reference.

See report.py.
"""
import csv
import math
import os
import re

import pictures
import record


def published():
    with open(os.path.join(record.HERE, "published.csv"), encoding="ascii") as file:
        return list(csv.DictReader(x for x in file if not x.startswith("#")))


def row(load, name):
    return next(r for r in load("build")[1] if r["build"] == name)


def span_build(load, name, what):
    """kernels, size (MB), seconds, cpu (seconds), memory (MB)"""
    value = float(row(load, name)[what])
    return f"{value / 1e6:.1f}" if what == "size" else \
        f"{value / 1e6:.0f}" if what == "memory" else f"{value:.0f}"


def span_kernels(load):
    """Rows of the registry."""
    with open(os.path.join(record.ROOT, "src", "kernels.def"), encoding="ascii") as file:
        return str(sum(line.startswith("KERNEL(") for line in file))


def span_mutants(load, what):
    """Of the table of tests/mutate: mutants that change something, or those of them caught."""
    with open(os.path.join(record.ROOT, "tests", "mutate", "README.md"), encoding="utf-8") as file:
        rows = [x.split("|")[4:8] for x in file if re.match(r"\| [\w*]+ \| \d", x)]
    mutants, caught, equivalent, _ = (sum(map(int, column)) for column in zip(*rows))
    return str(caught if what == "caught" else mutants - equivalent)


def words(value, unit):
    for size, name in ((60, "min"), (1, "s")) if unit == "s" else ((1e9, "GB"), (1e6, "MB")):
        if value >= 1.5 * size:
            shown = value / size
            return f"{shown:.1f} {name}" if shown < 10 else f"{shown:.0f} {name}"
    return f"{value:.0f} {unit}"


# what, heading, unit, ends of the logarithmic axis, column of build.csv, what that is on
CHARTS = (("time", "Build time", "s", 10, 1e4, "cpu", "time of 1 core"),
          ("memory", "Memory while building", "B", 1e7, 2e12, "memory", "2 jobs"),
          ("size", "Library", "B", 1e6, 4e8, "size", "libfa3ptx.so"))


def build(load):
    d = pictures.Drawing(238, "Build time, memory and size, beside the reference's")
    d.text(16, 26, "What a build takes, logarithmic", 15, bold=True)
    ours = row(load, "all")
    for i, (what, heading, unit, low, high, column, on) in enumerate(CHARTS):
        left, width = 16 + 281 * i, 262
        d.text(left, 56, heading, 13, bold=True)
        bars = [("libfa3ptx", float(ours[column]), on, pictures.OURS)]
        bars += [(r["who"], float(r["value"]), r["on"], pictures.FA3)
                 for r in published() if r["what"] == what]
        for j, (who, value, where, colour) in enumerate(bars):
            y = 68 + 44 * j
            wide = width * math.log(value / low) / math.log(high / low)
            d.text(left, y + 11, f"{who}, {where}", 12, pictures.LIMIT)
            d.rect(left, y + 16, wide, 14, colour)
            d.text(left + wide + 5, y + 28, words(value, unit), 12, colour, bold=j == 0)
    kernels = int(ours["kernels"])
    d.text(16, 212, f"{kernels} kernels of libfa3ptx: bench/results/build.csv, "
           f"{load('build')[0]['date']}. The reference's: bench/published.csv, which names where "
           "they are from;", 12, pictures.LIMIT)
    d.text(16, 227, "the wheel is of its predecessor with fewer head dims.", 12, pictures.LIMIT)
    return d.svg()


def provenance(load):
    """Where each results file is from."""
    lines = ["| file | date | commit | card or CPU | command |", "|---|---|---|---|---|"]
    for name in load("*"):
        facts = load(name)[0]
        lines.append(f"| {name}.csv | {facts['date']} | {facts['commit']} | "
                     f"{facts.get('card') or facts.get('cpu', '')} | `{facts['command']}` |")
    return lines


TABLES = {"files": provenance}
SPANS = {"build": span_build, "kernels": span_kernels, "mutants": span_mutants}
PICTURES = {"build.svg": build}
