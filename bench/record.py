"""record.py - the results files, bench/results/*.csv: what was measured, when, on what, and how.

A file begins with comments, one fact a line (`# card: NVIDIA H200`), then has a header row and the
rows.  Those with a column `commit` may hold rows of more than one run: the facts are of the last.
Tables, sentences and pictures of the documents come from these files alone (report.py).
"""
import csv
import datetime
import os
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
FOLDER = os.path.join(HERE, "results")


def pytorch():
    """The module; what measures beside cuDNN does it through PyTorch."""
    try:
        import torch
    except ImportError:
        sys.exit(f"{os.path.basename(sys.argv[0])} needs PyTorch with CUDA, which is not installed")
    return torch


def commit():
    """Of the working tree; `+` where it differs from that in what is built.  FA3PTX_COMMIT says it
    where the history is not at hand."""
    if os.environ.get("FA3PTX_COMMIT"):
        return os.environ["FA3PTX_COMMIT"]

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--", "ptx", "src", "include", "Makefile")
        return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")
    except OSError:
        return "unknown"


def command():
    """This process's command line, as one would type it in the root of the repository."""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
    return shlex.join(["python3", script] + [x.replace(ROOT + "/", "") for x in sys.argv[1:]])


def clocks(rows):
    """A line about SM clocks sampled row by row."""
    found = sorted(float(r["clock"]) for r in rows if r.get("clock"))
    if not found:
        return "not read"
    return f"SM {found[0]:.0f} to {found[-1]:.0f} MHz, median {found[len(found) // 2]:.0f}"


def read(path):
    """(facts, rows): a dictionary of the comments, and the rows as dictionaries of strings."""
    if not path.endswith(".csv"):
        path = os.path.join(FOLDER, path + ".csv")
    facts, lines = {}, []
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("#"):
                name, _, value = line[1:].partition(":")
                facts[name.strip()] = value.strip()
            else:
                lines.append(line)
    return facts, list(csv.DictReader(lines))


def write(path, columns, rows, **facts):
    """Rows: dictionaries or sequences.  Date, commit and command are filled in."""
    known = {"date": str(datetime.date.today()), "commit": commit(), "command": command()}
    known.update((k, v) for k, v in facts.items() if v is not None)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="ascii", newline="") as file:
        for name, value in known.items():
            file.write(f"# {name}: {value}\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        for row in rows:
            out.writerow([row.get(c) for c in columns] if isinstance(row, dict) else row)


def merge(path, columns, key, rows, **facts):
    """Like write, but rows of the file stay unless one with the same cells of `key` replaces them,
    in their place; new ones come last.  Each row gets its commit; commands at one commit add up."""
    new = {}
    for row in rows:
        row = {c: "" if row.get(c) is None else str(row[c]) for c in columns}
        row["commit"] = commit()
        new[tuple(row[k] for k in key)] = row
    before, old = read(path) if os.path.exists(path) else ({}, [])
    commands = before["command"].split("; ") if before.get("commit") == commit() else []
    if command() not in commands:
        commands.append(command())
    merged = [new.pop(tuple(r.get(k, "") for k in key), r) for r in old] + list(new.values())
    columns = columns + ["commit"]
    write(path, columns, merged, clocks=clocks(merged), command="; ".join(commands), **facts)
