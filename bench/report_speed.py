"""report_speed.py - tables, numbers and pictures of the interleaved runs (compare.py and others).

See report.py.  A row of peers.csv says how far the best peer was ahead of cuDNN on another day of
the same card; ours over that, in one's own run, is what the documents call "of the two".
"""
import csv
import math
import os
import re

import pictures
import record

SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
SHORT = {512: "512", 1024: "1k", 2048: "2k", 4096: "4k", 8192: "8k", 16384: "16k"}
HEAD_DIMS = (64, 128, 256)
PEER = {"fwd": "fwd", "bwd": "bwd", "fp8": "fp8_fwd"}


class Row:
    def __init__(self, cells, kind, peers):
        self.cells, self.kind = cells, kind
        self.d, self.dv = int(cells["head_dim"]), int(cells["head_dim_v"])
        self.hq, self.hk = int(cells["heads"]), int(cells["heads_kv"])
        self.causal, self.s = cells["causal"] == "1", int(cells["seqlen"])
        self.ours, self.cudnn, self.cudnn8, self.limit = (
            float(cells[n]) if cells[n] else None for n in ("ours", "cudnn", "cudnn8", "limit"))
        self.ratio = self.ours / self.cudnn
        self.best = self.fa3 = None
        peer = peers.get((self.d, self.hq, self.hk, self.causal, self.s))
        if peer and self.d == self.dv and kind in PEER:
            fa3 = float(peer[PEER[kind] + "_fa3"])
            cudnn = float(peer["bwd_cudnn" if kind == "bwd" else "fwd_cudnn"])
            self.fa3 = self.cudnn * fa3 / cudnn
            self.best = max(float(peer[kind + "_target"]), (self.cudnn8 or 0) / self.cudnn)

    @property
    def of_peers(self):
        return self.ratio / self.best

    @property
    def mask(self):
        return "causal" if self.causal else "none"


def read_peers():
    with open(os.path.join(record.HERE, "peers.csv"), encoding="ascii") as file:
        rows = list(csv.DictReader(x for x in file if not x.startswith("#")))
    return {(int(r["head_dim"]), int(r["heads"]), int(r["heads_kv"]), r["causal"] == "1",
             int(r["seqlen"])): r for r in rows}


def rows_of(load, kind, name=None):
    peers = read_peers()
    return [Row(cells, kind, peers) for cells in load(name or kind)[1]]


def dense(load, kind):
    return [r for r in rows_of(load, kind) if r.hq == r.hk]


def grouped(load, kind):
    return [r for r in rows_of(load, kind) if r.hq != r.hk]


def mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def markdown(header, rows):
    return (["| " + " | ".join(map(str, header)) + " |", "|" + "---|" * len(header)] +
            ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


# ---- RESULTS.md --------------------------------------------------------------------------------

def whole(x):
    return "" if x is None else f"{x:.0f}"


def means(rows):
    text = f'Geometric means of "of the two": all {len(rows)} rows {mean_of(rows)}'
    dims = sorted({r.d for r in rows})
    if len(dims) > 1:
        text += "; " + ", ".join(f"d {d} {mean_of(rows, d)}" for d in dims)
    short = [r for r in rows if r.s <= 1024]
    if short:
        text += f"; seqlen <= 1024 {mean_of(short)}"
    return text + f"; the least row {min(r.of_peers for r in rows):.2f}."


def mean_of(rows, d=None):
    return f"{mean(r.of_peers for r in rows if d in (None, r.d)):.2f}"


def speed(rows, heads=False, fp8=False):
    header = ("d " + "heads " * heads + "mask seqlen ours cuDNN " + "cuDNN-FP8 " * fp8 +
              "limit ours/cuDNN best-peer/cuDNN of-the-two share").split()
    header = [h.replace("/", " / ").replace("-", " ") for h in header]
    body = []
    for r in rows:
        body.append([r.d] + [f"{r.hq}/{r.hk}"] * heads + [r.mask, r.s, whole(r.ours),
                    whole(r.cudnn)] + [whole(r.cudnn8)] * fp8 +
                    [whole(r.limit), f"{r.ratio:.2f}", f"{r.best:.2f}", f"{r.of_peers:.2f}",
                     f"{100 * r.ours / r.limit:.0f} %" if r.limit else ""])
    return markdown(header, body) + ["", means(rows)]


def fp16(load):
    bf16 = {(r.d, r.causal, r.s): r for r in dense(load, "fwd")}
    rows = {(r.d, r.causal, r.s): r for r in rows_of(load, "fwd", "fp16")}
    lengths = sorted({s for _, _, s in rows})
    return markdown(["d", "mask"] + lengths,
                    [[d, "causal" if causal else "none"] +
                     [f"{rows[d, causal, s].ratio:.2f} ({bf16[d, causal, s].ratio:.2f})"
                      for s in lengths]
                     for d in HEAD_DIMS for causal in (False, True)])


def dims(load):
    backward = {(r.d, r.dv, r.causal, r.s): r for r in rows_of(load, "bwd", "dims_bwd")}
    body = []
    for f in rows_of(load, "fwd", "dims_fwd"):
        b = backward[f.d, f.dv, f.causal, f.s]
        body.append([f.d if f.d == f.dv else f"{f.d}/{f.dv}", f.mask, f.s, whole(f.ours),
                     f"{f.ratio:.2f}", whole(b.ours), f"{b.ratio:.2f}"])
    return markdown("d (/ d_v)|mask|seqlen|forward|ours / cuDNN|backward|ours / cuDNN".split("|"),
                    body)


def deterministic(load):
    rows = {(int(r["head_dim"]), r["causal"] == "1", int(r["seqlen"])): float(r["added"])
            for r in load("deterministic")[1]}
    heads = sorted({d for d, _, _ in rows})
    lengths = sorted({s for _, _, s in rows})
    def cell(*key):
        return f"{rows[key]:.0f}" if key in rows else ""
    return markdown(["d", "mask"] + [f"{s}" for s in lengths],
                    [[d, "causal" if causal else "none"] + [cell(d, causal, s) for s in lengths]
                     for d in heads for causal in (False, True)])


def microseconds(rows, one, heads):
    """rows of short.csv or small.csv; heads: how the first columns name the shape."""
    body = []
    for r in rows:
        ours, cudnn, flash = (float(r[n + "_us"]) for n in ("ours", "cudnn", "flash"))
        body.append(heads(r) + [f"{ours:.1f}", f"{cudnn:.1f}", f"{flash:.1f}",
                                f"{min(cudnn, flash) / ours:.2f}"] + [r["tb_s"]] * one)
    return body


def short(load, batch_one):
    rows = [r for r in load("short")[1] if (r["batch"] == "1") == batch_one]
    rows.sort(key=lambda r: [int(r[c]) for c in
                             "head_dim heads seqlen_q seqlen_k batch".split()])
    def shape(r):
        return [r["head_dim"], f"{r['heads']}/{r['heads_kv']}", r["seqlen_q"], r["seqlen_k"],
                r["batch"]]
    return markdown("d|heads|seqlen_q|seqlen_k|batch|ours|cuDNN|flash|best / ours|TB/s".split("|"),
                    microseconds(rows, True, shape))


def small(load):
    def shape(r):
        return [r["head_dim"], f"{r['batch']}, {r['heads']}", r["seqlen_q"]]
    return markdown("d|batch, heads|seqlen|ours|cuDNN|flash|best / ours".split("|"),
                    microseconds(load("small")[1], False, shape))


def ptxas(load):
    rows = load("ptxas")[1]
    releases = [c for c in rows[0] if c[0].isdigit()]
    return markdown(["d", "mask", "seqlen"] + releases,
                    [[r["head_dim"], "causal" if r["causal"] == "1" else "none", r["seqlen"]] +
                     [f"{float(r[c]):.0f}" for c in releases] for r in rows])


WAYS = {"plain": "plain, a scale a tensor, P scaled by 448",
        "plain_p_unscaled": "plain, a scale a tensor, P as it is",
        "tensor_scales": "ours, a scale a tensor", "block_scales_alone": "ours, block scales",
        "rotation_alone": "ours, rotation (Hadamard)",
        "block_scales_and_rotation": "ours, block scales and rotation",
        "both_accurate_sums": "ours, both, accurate sums"}


def accuracy(load):
    rmse = {r["way"]: float(r["rmse"]) for r in load("accuracy")[1]}
    def over(way, plain):
        return "" if way.startswith("plain") else f"{rmse[plain] / rmse[way]:.2f}"
    return markdown("way|RMSE|plain, P scaled / this|plain, P as it is / this".split("|"),
                    [[name, f"{rmse[way]:.2e}", over(way, "plain"), over(way, "plain_p_unscaled")]
                     for way, name in WAYS.items()])


def quantise(load):
    rate = {r["name"]: float(r["gb_s"]) for r in load("calls")[1] if r["gb_s"]}
    ways = (("scales of 128 rows", "block"), ("the same, rotated", "block_rotated"),
            ("a scale a head", "head"), ("the same, rotated", "head_rotated"))
    return markdown(["share of a plain copy's rate"] + [f"d {d}" for d in HEAD_DIMS],
                    [[words] + [f"{rate[f'quantize/d{d}_{way}'] / rate['copy']:.2f}"
                                for d in HEAD_DIMS] for words, way in ways])


# ---- README.md ---------------------------------------------------------------------------------

def readme(load):
    lengths = (512, 2048, 8192, 16384)
    lines = markdown(["forward", "mask"] + [f"{s}" for s in lengths], [])
    for kind, heading in (("fwd", None), ("bwd", "backward"), ("fp8", "FP8 forward")):
        rows = {(r.d, r.causal, r.s): r for r in dense(load, kind)}
        if heading:
            lines.append(f"| **{heading}** |" + " |" * (1 + len(lengths)))
        for d in HEAD_DIMS:
            for causal in (False, True):
                found = [rows[d, causal, s] for s in lengths]
                lines.append(f"| {d} | {'causal' if causal else 'none'} | " + " | ".join(
                    f"{r.ours:.0f} ({r.ratio:.2f})" for r in found) + " |")
    return lines


# ---- Numbers inside sentences: a function of the words after its name ----------------------------

def find(load, kind, d, mask, seqlen):
    return next(r for r in dense(load, kind)
                if (r.d, r.mask, r.s) == (int(d), mask, int(seqlen)))


def span_mean(load, kind, d=None):
    """Geometric mean of ours over the better of FlashAttention-3 and cuDNN."""
    return mean_of(dense(load, kind), d and int(d))


def span_count(load, kind):
    return str(len(dense(load, kind)))


def span_least(load, kind):
    return f"{min(r.of_peers for r in dense(load, kind)):.2f}"


def span_peers(load, kind):
    best = [r.best for r in dense(load, kind)]
    return f"{min(best):.2f} to {max(best):.2f}"


def span_share(load, kind, d, mask, seqlen):
    """Percent of wgmma alone."""
    row = find(load, kind, d, mask, seqlen)
    return f"{100 * row.ours / row.limit:.0f}"


def span_added(load, d, mask, seqlen):
    """Percent that the deterministic mode adds."""
    row = next(r for r in load("deterministic")[1] if (r["head_dim"], r["seqlen"]) == (d, seqlen)
               and (r["causal"] == "1") == (mask == "causal"))
    return f"{float(row['added']):.0f}"


def span_rmse(load, way, over=None):
    rmse = {r["way"]: float(r["rmse"]) for r in load("accuracy")[1]}
    return f"{rmse[way] / rmse[over]:.2f}" if over else f"{rmse[way]:.1e}".replace("e-0", "e-")


def span_host(load, call):
    """Microseconds that a call takes the host."""
    return next(f"{float(r['us']):.1f}" for r in load("calls")[1] if r["name"] == "host/" + call)


def span_fact(load, name, fact):
    return load(name)[0][fact]


def span_cudnn(load, name):
    """cuDNN 9.19 (through PyTorch 2.11)"""
    cudnn, torch = re.match(r"(\d+), PyTorch (\d+\.\d+)", load(name)[0]["cudnn"]).groups()
    number = int(cudnn)
    return f"cuDNN {number // 10000}.{number // 100 % 100} (through PyTorch {torch})"


def span_commits(load, name):
    """Which commits the rows are of: one, or each with what it has."""
    by_commit = {}
    for r in load(name)[1]:
        by_commit.setdefault(r["commit"], []).append(int(r["head_dim"]))
    if len(by_commit) == 1:
        return next(iter(by_commit))
    return ", ".join(f"{c} (head dim {' '.join(map(str, sorted(set(d))))})"
                     for c, d in by_commit.items())


def span_run(load, name):
    """The run behind a table: commit, date, rounds, clocks."""
    facts, rows = load(name)
    parts = [f"commit {span_commits(load, name)}", facts["date"]]
    if "rounds" in facts:
        parts.append("rounds: " + facts["rounds"])
    found = sorted(float(r["clock"]) for r in rows if r.get("clock"))
    if found:
        parts.append(f"SM clock {found[0] / 1000:.1f} to {found[-1] / 1000:.1f} GHz")
    return "; ".join(parts)


def span_error(load, name):
    return f"{max(float(r['error']) for r in load(name)[1] if r['error']):.1e}".replace("e-0", "e-")


# ---- Pictures ------------------------------------------------------------------------------------

def curves(cudnn):
    return [("ours", pictures.OURS, None, "ours"), ("cuDNN", pictures.CUDNN, None, cudnn),
            ("FA3", pictures.FA3, "6 3", "fa3"), ("wgmma", pictures.LIMIT, "2 3", "limit")]


# heading, distance of the lines across, curves
CHARTS = {"fwd": ("Forward, bf16", 250, curves("cudnn")),
          "bwd": ("Backward, bf16", 250, curves("cudnn")),
          "fp8": ("Forward, FP8 (E4M3)", 500, curves("cudnn8"))}


def over_seqlen(load, kind):
    title, step, lines = CHARTS[kind]
    d = pictures.Drawing(532, f"{title}: TFLOP/s over seqlen")
    d.text(16, 26, f"{title}: TFLOP/s over the sequence length", 15, bold=True)
    d.text(16, 45, "16k tokens in all, 2048 columns of heads, one H200. FA3: its ratio to cuDNN on "
           "another day, times cuDNN here. wgmma: products alone.", 12, pictures.LIMIT)
    rows = {(r.d, r.causal, r.s): r for r in dense(load, kind)}
    highest = max(getattr(r, what) or 0 for r in rows.values() for _, _, _, what in lines)
    top = math.ceil(highest / step) * step
    for across, dim in enumerate(HEAD_DIMS):
        for down, causal in enumerate((False, True)):
            heading = f"head dim {dim}, {'causal' if causal else 'no mask'}"
            panel = pictures.Panel(d, 46 + 276 * across, 84 + 230 * down, 164, 172,
                                   [SHORT[s] for s in SEQLENS], top, step, heading)
            panel.lines([(name, colour, dash,
                          [getattr(rows[dim, causal, s], what) for s in SEQLENS])
                         for name, colour, dash, what in lines])
    d.text(16, 520, f"bench/results/{kind}.csv, {load(kind)[0]['date']}; FA3 from bench/peers.csv",
           12, pictures.LIMIT)
    return d.svg()


TABLES = {
    "readme_speed": readme,
    "fwd": lambda load: speed(dense(load, "fwd")),
    "fwd_gqa": lambda load: speed(grouped(load, "fwd"), heads=True),
    "bwd": lambda load: speed(dense(load, "bwd")),
    "bwd_gqa": lambda load: speed(grouped(load, "bwd"), heads=True),
    "fp8": lambda load: speed(dense(load, "fp8"), fp8=True),
    "fp16": fp16, "dims": dims, "deterministic": deterministic, "ptxas": ptxas,
    "accuracy": accuracy, "small": small, "quantise": quantise,
    "short": lambda load: short(load, False), "short_one": lambda load: short(load, True),
}
SPANS = {name[5:]: f for name, f in list(globals().items()) if name.startswith("span_")}
PICTURES = {f"{kind}.svg": (lambda load, kind=kind: over_seqlen(load, kind)) for kind in CHARTS}
