#!/usr/bin/env python3
"""report_trace.py - timelines of traced kernels (bench/trace/trace.cpp), and the ablation tables.

    report_trace.py TRACE.csv > FILE.svg       the picture of any trace
    report_trace.py TRACE.csv RESULTS.csv      into a results file; the rest of the line: what ran

See report.py for TABLES and PICTURES.
"""
import sys

import pictures
import record

TENSOR, SOFT, STORE, WAIT = pictures.OURS, pictures.CUDNN, pictures.PURPLE, "#c9ced6"
GREEN, GOLD, GREY = pictures.FA3, pictures.GOLD, pictures.LIMIT
# Rows of a picture by role (0 is the producer's), each with the events in it and their colours.
# Events that share a row do not overlap.
LOADS = ("loads", {"load Q": GOLD, "load K": GREY, "load V": "#9aa3af"})
FORWARD = {0: [LOADS],
           1: [("QK", {"QK": TENSOR}), ("PV", {"PV": GREEN}), ("softmax", {"softmax": SOFT}),
               ("waits, store O", {"wait": WAIT, "store O": STORE})]}
BACKWARD = {0: [("loads", {"load Q, dO": GREY}), ("dQ", {"dQ": TENSOR}),
                ("adds, waits", {"add dQ": STORE, "wait": WAIT})],
            1: [("S, dP", {"S": TENSOR, "dP": "#3d94c9"}), ("dV", {"dV": GREEN}),
                ("dK", {"dK": GOLD}), ("P, dS", {"P": SOFT, "dS": "#cf7a3d"}),
                ("waits, store", {"wait": WAIT, "store dK, dV": STORE})]}
LEFT, RIGHT, ROW, BAR = 136, 848, 17, 13


def role_name(role, backward):
    if role == 0:
        return "loads and dQ" if backward else "producer"
    return f"warpgroup {role}"


def timeline(spans, title, note=""):
    """The picture of the rows of a trace file."""
    backward = any(s["event"] == "dP" for s in spans)
    rows = BACKWARD if backward else FORWARD
    spans = [dict(s, role=int(s["role"]), number=int(s["number"]), begin=int(s["begin"]),
                  end=int(s["end"])) for s in spans]
    roles = sorted({s["role"] for s in spans})
    products = ("S", "dP") if backward else ("QK", "PV")
    last = max(s["begin"] for s in spans if s["role"] and s["event"] in products)
    height = 66 + sum(20 + ROW * len(rows[min(r, 1)]) for r in roles) + 30
    d = pictures.Drawing(height, title)
    d.text(16, 26, title, 15, bold=True)
    if note:
        d.text(16, 45, note, 12, GREY)

    def x(clock):
        return LEFT + (RIGHT - LEFT) * min(max(clock, 0), last) / last
    y = 62
    bottom = height - 30
    step = next(s for s in (500, 1000, 2000, 5000, 10000, 20000, 50000) if last / s <= 12)
    for clock in range(0, last + 1, step):
        d.line(x(clock), y - 4, x(clock), bottom, pictures.FAINT)
        if clock + step / 2 <= last:
            d.text(x(clock), bottom + 16, clock, 12, GREY, "middle")
    d.text(16, bottom + 16, "clocks", 12, GREY)
    for role in roles:
        d.text(16, y + 10, role_name(role, backward), 12, bold=True)
        y += 16
        for label, colours in rows[min(role, 1)]:
            d.text(16, y + 11, label, 12)
            for s in spans:
                if s["role"] != role or s["event"] not in colours or s["begin"] >= last:
                    continue
                left, right = x(s["begin"]), x(s["end"])
                colour = colours[s["event"]]
                d.rect(left, y, max(right - left, 0.7), BAR, colour)
                words = "" if s["event"] in ("wait", "load Q, dO") or role == 0 else \
                    f"{s['event']} {s['number']}" if len(colours) > 1 else str(s["number"])
                if s["event"].startswith("store"):
                    words = s["event"]
                if words and pictures.text_width(words, 12) + 4 < right - left:
                    d.text((left + right) / 2, y + 11, words, 12, pictures.CARD, "middle")
            y += ROW
        y += 4
    return d.svg()


def ablation(load, name):
    """What each variant reaches of the release, of one results file; a column a row of the grid."""
    rows = load(name)[1]
    grid = list(dict.fromkeys((int(r["d"]), r["mask"], int(r["seqlen"])) for r in rows))
    grid.sort(key=lambda g: (g[0], g[1] != "none", g[2]))
    cells = {((r["switch"], r["change"]), (int(r["d"]), r["mask"], int(r["seqlen"]))): r
             for r in rows}
    yield "| left out | " + " | ".join(f"{d} {mask} {s}" for d, mask, s in grid) + " |"
    yield "|---" * (len(grid) + 1) + "|"
    for results in ("exact", "wrong"):
        if results == "wrong":
            yield "| *stages, results wrong:*" + " |" * (len(grid) + 1)
        changes = list(dict.fromkeys((r["switch"], r["change"]) for r in rows
                                     if r["results"] == results))
        for switch, change in changes:
            shown = [cells.get(((switch, change), g)) for g in grid]
            if switch == "release":
                words = [f"{float(r['tflops']):.0f}" for r in shown]
                change = "nothing: TFLOP/s"
            else:
                words = [r["of_release"][:4] if r else "" for r in shown]
            yield f"| {change} | " + " | ".join(words) + " |"


PICTURES = {}
TABLES = {}


def main():
    facts, spans = record.read(sys.argv[1])
    if len(sys.argv) > 2:
        facts["command"] = " ".join(sys.argv[3:])
        record.write(sys.argv[2], list(spans[0]), spans, **facts)
    else:
        sys.stdout.write(timeline(spans, facts["kernel"], f"CTA {facts['cta']}, {facts['card']}, "
                                  f"{facts['problem']}"))


if __name__ == "__main__":
    main()
