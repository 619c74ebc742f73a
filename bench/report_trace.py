#!/usr/bin/env python3
"""report_trace.py - timelines of traced kernels (bench/trace/trace.cpp), and the ablation tables.

    report_trace.py TRACE.csv > FILE.svg       the picture of any trace
    report_trace.py TRACE.csv RESULTS.csv      into a results file; the rest of the line: what ran

See report.py for TABLES and PICTURES.
"""
import sys

import pictures
import record

TENSOR, SOFT, STORE, WAIT = pictures.OURS, pictures.CUDNN, pictures.PURPLE, "#b9c0c9"
GREEN, GOLD, GREY, INK = pictures.FA3, pictures.GOLD, pictures.LIMIT, pictures.INK
# Rows of a picture by role (0 is the producer's): event, what the row is called for it, colour.
# Events that share a row do not overlap.
FORWARD = {0: [[("load Q", "loads Q", GOLD), ("load K", "K", INK), ("load V", "V", GREY)]],
           1: [[("QK", "QK", TENSOR)], [("PV", "PV", GREEN)], [("softmax", "softmax", SOFT)],
               [("wait", "wait", WAIT), ("store O", "store O", STORE)]]}
BACKWARD = {0: [[("load Q, dO", "loads", INK)], [("dQ", "dQ", TENSOR)],
                [("wait", "wait", WAIT), ("add dQ", "add dQ", STORE)]],
            1: [[("S", "S", TENSOR), ("dP", "dP", "#2f6f94")], [("dV", "dV", GREEN)],
                [("dK", "dK", GOLD)], [("P", "P", SOFT), ("dS", "dS", "#8f4a1f")],
                [("wait", "wait", WAIT), ("store dK, dV", "store", STORE)]]}
SMALL = {"wait", "load Q", "load K", "load V", "load Q, dO", "add dQ"}  # bars without words
LEFT, RIGHT, ROW, BAR = 120, 848, 17, 13


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
        for row in rows[min(role, 1)]:
            at = 16
            for event, label, colour in row:
                d.text(at, y + 11, label, 12, GREY if colour == WAIT else colour)
                at += pictures.text_width(label, 12) + 7
                draw_spans(d, [s for s in spans if s["role"] == role and s["event"] == event and
                               s["begin"] < last], x, y, colour, len(row) > 1)
            y += ROW
        y += 4
    return d.svg()


def draw_spans(d, spans, x, y, colour, named):
    for s in spans:
        left, right, event = x(s["begin"]), x(s["end"]), s["event"]
        d.rect(left, y, max(right - left, 0.7), BAR, colour)
        words = event if event.startswith("store") else \
            f"{event} {s['number']}" if named else str(s["number"])
        if event not in SMALL and pictures.text_width(words, 12) + 3 < right - left:
            d.text((left + right) / 2, y + 11, words, 12, pictures.CARD, "middle")


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
                words = [f"{float(r['of_release']):.2f}" if r else "" for r in shown]
            yield f"| {change} | " + " | ".join(words) + " |"


def span_ablated(load, call, switch, d, mask, seqlen):
    """What is left of the release."""
    rows = load("ablation_" + call)[1]
    return next(f"{float(r['of_release']):.2f}" for r in rows if (switch, d, mask, seqlen) ==
                (r["switch"], r["d"], r["mask"], r["seqlen"]))


def drawn(name, title):
    def draw(load):
        facts, spans = load("trace_" + name)
        numbers = "steps (of dQ: halves)" if facts["kernel"].startswith("bwd") else "blocks"
        return timeline(spans, title, f"{facts['kernel']}, CTA {facts['cta']} on an "
                        f"{facts['card']}, 8192 rows; numbers are {numbers}")
    return draw


PICTURES = {
    "timeline_fwd_d64.svg": drawn("fwd_d64", "Forward, head dim 64: three warpgroups take turns"),
    "timeline_fwd_d128.svg": drawn("fwd_d128", "Forward, head dim 128: P V under the next softmax, "
                                   "O stored under the next tile's first product"),
    "timeline_bwd_d128.svg": drawn("bwd_d128", "Backward, head dim 128: arithmetic under products"),
}
SPANS = {"ablated": span_ablated}
TABLES = {name: lambda load, name=name: list(ablation(load, name))
          for name in ("ablation_fwd", "ablation_bwd")}


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
