"""report_stage.py - the tables of stages.csv and roofline.csv (bench/stages).  See report.py."""
import pictures

GROUPS = {
    "wgmma": "products, 8 k-steps a group (bench/stages/wgmma.ptx)",
    "load": "tiles from memory and from L2 (load.ptx)",
    "store": "tiles to memory and to L2, 16 KB at a time (store.ptx)",
    "latency": "one after another (latency.ptx)",
    "math": "exponentials and packing (math.ptx)",
    "beside": "64 instructions a warp, products m64n128 beside them (beside.ptx)",
    "matrix": "8 x 8 matrices and shared memory (matrix.ptx)",
    "softmax": "the softmax of a block (softmax.ptx)",
    "epilogue": "O out (epilogue.ptx)",
    "launch": "launches with tensor maps, on the host (launch.ptx)",
}


def number(text):
    value = float(text)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def stages(load):
    rows = load("stages")[1]
    lines = ["| stage | measured | unit | limit | share | the limit |", "|---|---|---|---|---|---|"]
    for group, words in GROUPS.items():
        lines.append(f"| **{words}** | | | | | |")
        for r in rows:
            if r["group"] != group:
                continue
            limit, share = "", ""
            if r["limit"]:
                limit, share = number(r["limit"]), f"{100 * float(r['share']):.0f} %"
            lines.append(f"| {r['stage']} | {number(r['value'])} | {r['unit']} | {limit} | {share} "
                         f"| {r['limit_from']} |")
    return lines


# Rows of `beside`, and which units of the SM they are.
BESIDE = (("ffma", "FFMA"), ("fadd", "FADD"), ("fmul", "FMUL"), ("lop3", "LOP3 (ALU)"),
          ("fmnmx", "FMNMX (ALU)"), ("mufu", "MUFU"), ("f2fp", "F2FP"))


def beside(load):
    """Clocks of 64 instructions a warp, a warp on each quarter of the SM."""
    rate = {r["stage"]: float(r["value"]) for r in load("stages")[1]}
    products = float(load("stages")[0]["limit tensor16"].split()[0])
    lines = ["| body, 64 instructions a warp | alone | beside | products |", "|---|---|---|---|"]
    for name, words in BESIDE:
        alone, both = (64 * 128 / rate[name + end] for end in ("_alone", "_beside_products"))
        lines.append(f"| {words} | {alone:.0f} | {both:.0f} "
                     f"| {100 * rate['products_beside_' + name] / products:.0f} % |")
    return lines


def limits(load):
    lines = ["| limit | value | what |", "|---|---|---|"]
    for name, words in load("stages")[0].items():
        if name.startswith("limit "):
            value, _, what = words.partition(" ")
            lines.append(f"| {name[6:]} | {value} | {what} |")
    return lines


def roofline(load):
    names = ("call", "d", "mask", "seqlen", "products", "exponentials", "L2 to SMs", "sums in L2",
             "memory", "measured", "binds", "share")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    times = ("products_us", "exps_us", "l2_us", "sums_us", "memory_us", "measured_us")
    for r in load("roofline")[1]:
        shown = " | ".join(f"{float(r[c]):.0f}" if float(r[c]) else "" for c in times)
        lines.append(f"| {r['dir']} | {r['d']} | {r['mask']} | {r['seqlen']} | {shown} "
                     f"| {r['binds']} | {100 * float(r['share']):.0f} % |")
    return lines


def span_stage(load, name, what="value"):
    """Of a row of stages.csv."""
    r = next(r for r in load("stages")[1] if r["stage"] == name)
    return f"{100 * float(r['share']):.0f} %" if what == "share" else number(r[what])


SPANS = {"stage": span_stage}
TABLES = {"stages": stages, "beside": beside, "stage_limits": limits, "roofline": roofline}


# Rows of the picture, and how they are called there.
SHOWN = (
    ("Products", (("wgmma_bf16_ss_n64", "bf16, both shared, n 64"),
                  ("wgmma_bf16_ss_n128", "n 128"), ("wgmma_bf16_ss_n256", "n 256"),
                  ("wgmma_bf16_rs_mn_n128", "P V: A in registers, n 128"),
                  ("wgmma_e4m3_ss_n128", "E4M3, both shared, n 128"))),
    ("Tiles by TMA", (("load_dram_sw128_128rows", "loads from memory"),
                      ("load_l2_sw128_128rows", "loads from L2"),
                      ("load_l2_sw128_128rows_multicast2", "multicast to 2"),
                      ("store_l2", "stores to L2"),
                      ("bulk_add_alone", "fp32 added, own addresses"),
                      ("bulk_add_all_ctas", "fp32 added, all to the same"))),
    ("Exponentials and packing", (("exp_mufu", "MUFU"), ("exp_2of8_fma", "2 of 8 on the FMA pipe"),
                                  ("pack_bf16", "two fp32 to bf16"),
                                  ("pack_e4m3", "four fp32 to E4M3"))),
    ("Shared memory", (("ldmatrix_x4", "ldmatrix"), ("stmatrix_x4", "stmatrix"),
                       ("transpose_e4m3_3warps", "V transposed, 3 warps"))),
    ("Steps of the kernels", (("softmax_d64_n128_3wg", "softmax, head dim 64"),
                              ("softmax_d128_n128_2wg", "softmax, head dim 128"),
                              ("softmax_first_d128_n128_2wg", "the same, first block"),
                              ("softmax_e4m3_d128_n96_3wg", "softmax, FP8, head dim 128"),
                              ("epilogue_d128", "O out, head dim 128"))),
)


def picture(load):
    found = {r["stage"]: r for r in load("stages")[1]}
    count = sum(len(rows) for _, rows in SHOWN)
    step, left, width = 19, 268, 400
    d = pictures.Drawing(54 + step * count + 26 * len(SHOWN), "Stages, shares of their limits")
    d.text(16, 26, "What each step reaches alone, of its limit", 15, bold=True)
    y = 40
    for heading, rows in SHOWN:
        y += 26
        d.text(16, y, heading, 13, bold=True)
        top = y + 4
        for name, words in rows:
            y += step
            r = found[name]
            share = float(r["share"])
            d.text(left - 8, y, words, 12, anchor="end")
            d.rect(left, y - 11, width * min(share, 1.1), 13, pictures.OURS)
            d.text(left + width * 1.1 + 10, y,
                   f"{100 * share:.0f} %, {number(r['value'])} {r['unit']}", 12)
        d.line(left + width, top, left + width, y + 4, pictures.LIMIT, 1, "3 3")
    return d.svg()


PICTURES = {"stages.svg": picture}
