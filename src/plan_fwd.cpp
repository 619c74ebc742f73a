// plan_fwd.cpp - launches of the warp-specialised forward, ptx/fwd.ptx, and the choice of its tile.
#include "ptx/abi_fwd.h"
#include "src/plan.h"

namespace fa3ptx {
namespace {

struct Map {
  alignas(64) unsigned char bytes[128];
};

struct FwdParams {
  Map q, k, v, o;
  float *lse;
  float scale_log2;
  int32_t seqlen_q, seqlen_k;
  uint32_t heads_q, group, m_blocks, tiles, levels, level_tiles;
  uint32_t unused[5];
};

#define AT(member, offset) (offsetof(FwdParams, member) == offset)
static_assert(AT(q, FWD_TMAP_Q) && AT(k, FWD_TMAP_K) && AT(v, FWD_TMAP_V) && AT(o, FWD_TMAP_O));
static_assert(AT(lse, FWD_LSE) && AT(scale_log2, FWD_SCALE_LOG2));
static_assert(AT(seqlen_q, FWD_SEQLEN_Q) && AT(seqlen_k, FWD_SEQLEN_K));
static_assert(AT(heads_q, FWD_HEADS_Q) && AT(group, FWD_GROUP));
static_assert(AT(m_blocks, FWD_M_BLOCKS) && AT(tiles, FWD_TILES));
static_assert(AT(levels, FWD_LEVELS) && AT(level_tiles, FWD_LEVEL_TILES));
static_assert(sizeof(FwdParams) == FWD_PARAMS);
#undef AT

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kBoxColumns = 64; // 16-bit columns of a 128-byte row: one panel
constexpr int kGroupRows = 64;  // query rows of a warpgroup: Q and O move in boxes of these

// Causal: query tiles of a head that are neighbours in the order of tiles (ptx/sched.inc).  Enough
// that K and V are read from memory once for several tiles; with few heads, several tiles of a head
// are in flight anyway, and fewer neighbours balance better.
uint32_t causal_levels(const Problem &p) {
  return int64_t(p.heads_q) * p.batch >= 32 ? 6 : 2;
}

int64_t tiles(const Problem &p, int64_t tile_m) {
  return ceil_div(p.seqlen_q, tile_m) * int64_t(p.heads_q) * p.batch;
}

} // namespace

// Row and key numbers of a tile that is part empty still fit 32 bits.
bool fwd_any(const Problem &p, const DeviceProps &) {
  constexpr int32_t kMost = INT32_MAX - 1024;
  return p.seqlen_q <= kMost && p.seqlen_k <= kMost;
}

// Head dim 64: tiles of 192 rows, three warpgroups, against 128 rows and two.  They go faster per
// row (by how much was measured, ptx/fwd.ptx), and lose more to a last tile that is part empty or
// to a last round that leaves multiprocessors idle.
bool fwd_long(const Problem &p, const DeviceProps &device) {
  if (!fwd_any(p, device)) return false;
  if (p.causal) return p.seqlen_q >= 1536;
  const int64_t sms = device.sm_count;
  return ceil_div(tiles(p, 192), sms) * int64_t(192) * 100 <=
         ceil_div(tiles(p, 128), sms) * int64_t(128) * 125;
}

void plan_forward(const Problem &p, const DeviceProps &device, RowIndex row_index, Plan &plan) {
  const Row &row = kRows[row_index];
  FwdParams f = {};
  f.lse = p.lse;
  f.scale_log2 = p.softmax_scale * kLog2e;
  f.seqlen_q = p.seqlen_q, f.seqlen_k = p.seqlen_k;
  f.heads_q = uint32_t(p.heads_q), f.group = uint32_t(p.group());
  f.m_blocks = uint32_t(ceil_div(p.seqlen_q, row.tile_m));
  const int64_t all = tiles(p, row.tile_m);
  f.tiles = uint32_t(all);
  f.levels = f.m_blocks;
  if (p.causal && f.levels > causal_levels(p)) f.levels = causal_levels(p);
  f.level_tiles = uint32_t(int64_t(f.levels) * p.heads_q * p.batch);

  Step &s = plan.launch(row_index, uint64_t(all < device.sm_count ? all : device.sm_count));
  // A CTA counts one round of tiles past the last.
  if (all > INT32_MAX) plan.too_large = true;
  set_params(s, f);
  const auto map = [&](int offset, const fa3ptx_tensor &t, int dim, bool keys, int rows) {
    add_map(s, uint16_t(offset), t, dim, keys ? p.seqlen_k : p.seqlen_q,
            keys ? p.heads_kv : p.heads_q, p.batch, kBoxColumns, rows, TensorMap::SWIZZLE_128B);
  };
  map(FWD_TMAP_Q, p.q, p.head_dim, false, kGroupRows);
  map(FWD_TMAP_K, p.k, p.head_dim, true, row.tile_n);
  map(FWD_TMAP_V, p.v, p.head_dim_v, true, row.tile_n);
  map(FWD_TMAP_O, p.o, p.head_dim_v, false, kGroupRows);
}

} // namespace fa3ptx
