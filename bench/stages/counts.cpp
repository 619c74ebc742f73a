// counts.cpp - see counts.h.
#include "counts.h"

#include <algorithm>
#include <cstring>

#include "src/kernels.h"

namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Keys that the first `rows` query rows see between them.
int seen(const Problem &p, int rows) {
  if (!p.causal) return p.seqlen_k;
  return std::clamp(std::min(rows, p.seqlen_q) + p.seqlen_k - p.seqlen_q, 0, p.seqlen_k);
}

// ptx/fwd.ptx: a tile loads the blocks that its last row sees, a warpgroup of 64 rows computes
// those that its own last row sees.  Packed: heads of a group are rows of one tile (ptx/pack.inc).
void count_forward(const Problem &p, const fa3ptx_plan_info &plan, bool packed, Counts &c) {
  const int group = packed ? p.heads_q / p.heads_kv : 1;
  const int rows = p.seqlen_q * group, step = std::min(64, int(plan.tile_m));
  const double heads = double(p.batch) * p.heads_q / group, size = p.dtype == FA3PTX_E4M3 ? 1 : 2;
  double scores = 0, bytes = 0;
  for (int first = 0; first < rows; first += plan.tile_m) {
    const auto blocks = [&](int end) {
      return ceil_div(seen(p, ceil_div(std::min(end, rows), group)), plan.tile_n);
    };
    bytes += plan.tile_m * p.head_dim + double(blocks(first + plan.tile_m)) * plan.tile_n *
                                            (p.head_dim + p.dim_v());
    for (int row = first; row < std::min(first + plan.tile_m, rows); row += step)
      scores += double(step) * blocks(row + step) * plan.tile_n;
  }
  c.exps = scores * heads;
  c.issued = c.exps * 2 * (p.head_dim + p.dim_v());
  c.l2_to_sm = bytes * heads * size;
}

// ptx/bwd_d128.ptx: a tile of keys walks the blocks of query rows that see it: Q and dO come in, dQ
// goes out in fp32.  Two CTAs of a cluster share the keys, and each takes all of Q and dO.
void count_backward(const Problem &p, const fa3ptx_plan_info &plan, Counts &c) {
  const double dims = p.head_dim + p.dim_v(), ctas = plan.cluster;
  double scores = 0, bytes = 0;
  for (int key = 0; key < p.seqlen_k; key += plan.tile_n) {
    int first = 0; // block of query rows
    if (p.causal) first = std::max(0, key - (p.seqlen_k - p.seqlen_q)) / plan.tile_m;
    const double steps = std::max(0, ceil_div(p.seqlen_q, plan.tile_m) - first);
    scores += steps * plan.tile_m * plan.tile_n;
    bytes += steps * plan.tile_m * (2 * dims + 8) * ctas;
  }
  const double heads = double(p.batch) * p.heads_q;
  c.exps = scores * heads;
  c.issued = c.exps * 2 * (3 * p.head_dim + 2 * p.dim_v());
  c.sums = c.exps / plan.tile_n * 4 * p.head_dim;
  c.l2_to_sm = bytes * heads + 2 * dims * double(p.batch) * p.heads_kv * p.seqlen_k;
}

} // namespace

Counts count(const Problem &p, bool backward, const fa3ptx_plan_info &plan) {
  Counts c = {};
  c.flop = flops(p, backward);
  bool packed = false;
  for (const fa3ptx::Row &row : fa3ptx::kRows)
    if (!std::strcmp(row.name, plan.kernel)) packed = row.role == fa3ptx::Role::FWD_PACKED;
  backward ? count_backward(p, plan, c) : count_forward(p, plan, packed, c);
  const double rows_q = double(p.batch) * p.heads_q * p.seqlen_q;
  const double rows_k = double(p.batch) * p.heads_kv * p.seqlen_k, dims = p.head_dim + p.dim_v();
  const double size = p.dtype == FA3PTX_E4M3 ? 1 : 2;
  c.memory = size * (rows_q * p.head_dim + rows_k * dims) + rows_q * (2 * p.dim_v() + 4);
  if (backward) c.memory += 2 * (rows_q * dims + rows_k * dims); // dO, dQ; dK, dV
  return c;
}
