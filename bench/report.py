#!/usr/bin/env python3
"""report.py - writes what the documents show of bench/results/*.csv: tables, numbers, pictures.

    report.py            README.md, bench/RESULTS.md, ptx/README.md and bench/pictures/*.svg
    report.py --check    changes nothing: says what differs, and fails if anything does

    <!-- table: NAME -->       whole lines, up to
    <!-- end -->
    <!--=NAME WORDS-->1.14<!--=-->    a number inside a sentence

NAME is a function of TABLES or SPANS in one of the modules report_*.py, PICTURES there are the
SVGs.  A function gets load, and load("fwd") is record.read of bench/results/fwd.csv; load("*") are
the names of all files.  In the README
files a measured number (one with a unit after it) has to be marked so; --check says where not.
"""
import argparse
import difflib
import functools
import glob
import importlib
import os
import re
import sys

import record

DOCUMENTS = ("README.md", "bench/RESULTS.md", "ptx/README.md")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
SPAN = re.compile(r"(<!--=([^>]+?)-->)(.*?)(<!--=-->)", re.S)
MEASURED = re.compile(r"\b\d[\d.]*(?:-bit)? ?(?:TFLOP/s|TB/s|GB/s|GB|MB|kB|us|GHz|%|times|seconds)")


def modules():
    for path in sorted(glob.glob(os.path.join(record.HERE, "report_*.py"))):
        yield importlib.import_module(os.path.basename(path)[:-3])


def gather(kind):
    found = {}
    for module in modules():
        found.update(getattr(module, kind, {}))
    return found


def fill(text, load):
    """The document with its tables and numbers as the results have them."""
    tables, spans = gather("TABLES"), gather("SPANS")

    def table(match):
        return match[1] + "\n".join(tables[match[2]](load)) + "\n" + match[4]

    def span(match):
        name, *words = match[2].split()
        return match[1] + spans[name](load, *words) + match[4]

    return SPAN.sub(span, TABLE.sub(table, text))


def unmarked(text):
    """Lines with a measured number outside of the marks."""
    text = TABLE.sub(lambda m: "\n" * m[0].count("\n"), text)
    text = SPAN.sub(lambda m: "\n" * m[0].count("\n"), text)
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    return [f"line {n}: {line.strip()}" for n, line in enumerate(text.split("\n"), 1)
            if MEASURED.search(line)]


def files(root, load):
    """{path: text as it should be}"""
    wanted = {}
    for name in DOCUMENTS:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            wanted[name] = fill(file.read(), load)
    for name, draw in gather("PICTURES").items():
        wanted["bench/pictures/" + name] = draw(load)
    return wanted


def check(root, wanted):
    faults = 0
    for name, text in wanted.items():
        path = os.path.join(root, name)
        there = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                there = file.read()
        if there != text:
            faults += 1
            print(f"{name} is not what bench/results says (`make report` writes it):")
            changes = difflib.unified_diff(there.split("\n"), text.split("\n"), "there", "results",
                                           lineterm="", n=0)
            print("\n".join(list(changes)[2:14]))
        if name.endswith("README.md"):
            for line in unmarked(text):
                faults += 1
                print(f"{name}, {line}\n  a measured number that no results file is behind")
    drawn = {os.path.basename(n) for n in wanted if n.endswith(".svg")}
    for path in glob.glob(os.path.join(root, "bench/pictures/*")):
        if os.path.basename(path) not in drawn:
            faults += 1
            print(f"{path} is drawn by nothing")
    return faults


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--root", default=record.ROOT, help="another copy of the documents and results")
    options = p.parse_args()
    results = os.path.join(options.root, "bench", "results")

    @functools.lru_cache(None)
    def load(name):
        if name == "*":  # the names of all files
            return sorted(os.path.basename(p)[:-4] for p in glob.glob(f"{results}/*.csv"))
        return record.read(os.path.join(results, name + ".csv"))
    wanted = files(options.root, load)
    if options.check:
        return 1 if check(options.root, wanted) else 0
    os.makedirs(os.path.join(options.root, "bench", "pictures"), exist_ok=True)
    for name, text in wanted.items():
        with open(os.path.join(options.root, name), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
