#!/usr/bin/env python3
"""hot_lines.py - the lines of a kernel's source where its warps were found waiting or working.

    ncu --import R.ncu-rep --page source --print-source cuda,sass --csv | hot_lines.py [LINES]

For each of the LINES (12) with the most samples: its share, the line, and the three machine
instructions under it that were sampled most.  `make profile` prints this.
"""
import csv
import sys

TOP = 3


def read(file):
    """[(samples, place, text, [(samples, instruction)])] in the order of the report."""
    name, columns, lines = "", None, []
    for row in csv.reader(file):
        if row[:1] == ["File Path"]:
            name = row[1].rsplit("/", 1)[-1]
        elif row[:1] == ["Line No"]:
            columns = row
        elif columns and len(row) == len(columns):
            at = columns.index("# Samples")
            count = int(row[at]) if row[at].isdigit() else 0
            if row[0]:
                lines.append((count, f"{name}:{row[0]}", " ".join(row[1].split()), []))
            elif lines and row[3] != "...":
                lines[-1][3].append((count, " ".join(row[3].split())))
    return lines


def main():
    lines = read(sys.stdin)
    total = sum(line[0] for line in lines)
    if not total:
        sys.exit("no samples with source lines: was it built with LINEINFO=1?")
    shown = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    for count, place, text, instructions in sorted(lines, key=lambda x: -x[0])[:shown]:
        print(f"{100 * count / total:5.1f} %  {place:18} {text[:68]}")
        for part, instruction in sorted(instructions, key=lambda x: -x[0])[:TOP]:
            if part:
                print(f"  {100 * part / total:5.1f} %  {'':16} {instruction[:68]}")


if __name__ == "__main__":
    main()
