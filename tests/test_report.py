#!/usr/bin/env python3
"""test_report.py - documents and pictures show what bench/results/*.csv says, and the check that
says so notices one changed digit, wherever it is.  Needs no GPU.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPORT = os.path.join(ROOT, "bench", "report.py")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench"))
import pictures  # noqa: E402
import record  # noqa: E402

passed, failed = 0, 0


def expect(what, good, output=""):
    global passed, failed
    passed, failed = passed + good, failed + (not good)
    if not good:
        print(f"FAILED: {what}\n{output}")


def check(root):
    run = subprocess.run([sys.executable, REPORT, "--check", "--root", root], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout


def raised(digits):
    return digits[:-1] + str((int(digits[-1]) + 1) % 10)


def alter(root, path, pattern):
    """The last digit of the pattern's first group becomes another one; returns the old text."""
    path = os.path.join(root, path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    match = re.search(pattern, text, re.S)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text[:match.start(1)] + raised(match[1]) + text[match.end(1):])
    return text


ALTERED = (
    ("a cell of README's table", "README.md", r"table: readme_speed.*?\| (\d{3}) \("),
    ("a number in a sentence", "README.md", r"<!--=mean fwd-->([\d.]+)<"),
    ("a cell of RESULTS.md", "bench/RESULTS.md", r"table: bwd -->.*?\| (\d{3}) \|"),
    ("a geometric mean", "bench/RESULTS.md", r"all 36 rows ([\d.]+);"),
    ("a picture's label", "bench/pictures/fwd.svg", r">ours (\d+)<"),
    ("a measured rate", "bench/results/fwd.csv", r"bf16,64,64,32,32,0,512,32,(\d+)"),
    ("a peer's rate", "bench/results/fp8.csv", r"bf16,128,128,16,16,1,8192,2,[\d.]+,[\d.]+,(\d+)"),
)


def illegible(draw):
    drawing = pictures.Drawing(100, "a picture")
    draw(drawing)
    try:
        drawing.svg()
    except ValueError:
        return True
    return False


def pictures_are_legible():
    expect("two labels side by side",
           not illegible(lambda d: (d.text(10, 20, "one"), d.text(80, 20, "two"))))
    expect("a label on another",
           illegible(lambda d: (d.text(10, 20, "one label"), d.text(30, 26, "another"))))
    expect("a label that leaves the card", illegible(lambda d: d.text(840, 20, "too far")))
    expect("a small label", illegible(lambda d: d.text(10, 20, "small", 9)))
    expect("labels spread", pictures.spread([10, 12, 50], 10, 0, 60) == [10, 20, 50])


def rows_are_replaced(folder):
    """A results file keeps its rows but for those that were measured again."""
    path, columns = os.path.join(folder, "some.csv"), ["d", "s", "x"]
    os.environ["FA3PTX_COMMIT"] = "first"
    record.merge(path, columns, ["d", "s"], [{"d": 1, "s": 2, "x": 3}, {"d": 1, "s": 4, "x": 5}])
    os.environ["FA3PTX_COMMIT"] = "second"
    record.merge(path, columns, ["d", "s"], [{"d": 1, "s": 4, "x": 6}, {"d": 7, "s": 8, "x": 9}],
                 card="a card")
    sys.argv[1:] = ["--more"]
    record.merge(path, columns, ["d", "s"], [])
    facts, rows = record.read(path)
    expect("commands of one commit add up", facts["command"].count("test_report.py") == 2, facts)
    expect("rows measured again",
           [list(r.values()) for r in rows] == [["1", "2", "3", "first"], ["1", "4", "6", "second"],
                                                ["7", "8", "9", "second"]], rows)
    expect("facts of the last run",
           (facts["commit"], facts["clocks"]) == ("second", "not read"),
           facts)


def main():
    pictures_are_legible()
    status, output = check(ROOT)
    expect("the documents show what bench/results says (`make report` writes them)", status == 0,
           output)
    with tempfile.TemporaryDirectory() as copy:
        rows_are_replaced(copy)
        for folder in ("bench/results", "bench/pictures"):
            shutil.copytree(os.path.join(ROOT, folder), os.path.join(copy, folder))
        for name in ("README.md", "bench/RESULTS.md", "ptx/README.md"):
            os.makedirs(os.path.join(copy, os.path.dirname(name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), os.path.join(copy, name))
        def noticed(what, name, text):
            expect(f"{what} was changed, and nobody noticed", check(copy)[0] != 0)
            with open(os.path.join(copy, name), "w", encoding="utf-8") as file:
                file.write(text)
        for what, name, pattern in ALTERED:
            noticed(what, name, alter(copy, name, pattern))
        readme = os.path.join(copy, "README.md")
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        with open(readme, "a", encoding="utf-8") as file:
            file.write("\nIt reaches 901 TFLOP/s.\n")
        noticed("a sentence with a number of its own", "README.md", text)
        if status == 0:
            expect("the copy as it was", check(copy)[0] == 0)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
