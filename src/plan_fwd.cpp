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
  uint32_t heads_q, group, m_blocks, tickets;
  uint32_t unused[2];
  uint32_t pack_shift, paired_tickets, paired_heads;
  int32_t first_row;
  Divisor by_head_jobs, by_last_heads, by_heads, by_ctas;
  uint32_t unused_too[5];
};

#define AT(member, offset) (offsetof(FwdParams, member) == offset)
static_assert(AT(q, FWD_TMAP_Q) && AT(k, FWD_TMAP_K) && AT(v, FWD_TMAP_V) && AT(o, FWD_TMAP_O));
static_assert(AT(lse, FWD_LSE) && AT(scale_log2, FWD_SCALE_LOG2));
static_assert(AT(seqlen_q, FWD_SEQLEN_Q) && AT(seqlen_k, FWD_SEQLEN_K));
static_assert(AT(heads_q, FWD_HEADS_Q) && AT(group, FWD_GROUP));
static_assert(AT(m_blocks, FWD_M_BLOCKS) && AT(tickets, FWD_TICKETS));
static_assert(AT(pack_shift, FWD_PACK_SHIFT) && AT(paired_tickets, FWD_PAIRED_TICKETS));
static_assert(AT(paired_heads, FWD_PAIRED_HEADS) && AT(first_row, FWD_FIRST_ROW));
static_assert(AT(by_head_jobs, FWD_BY_HEAD_JOBS) && AT(by_last_heads, FWD_BY_LAST_HEADS));
static_assert(AT(by_heads, FWD_BY_HEADS) && AT(by_ctas, FWD_BY_CTAS));
static_assert(sizeof(FwdParams) == FWD_PARAMS);
#undef AT

constexpr int kBoxColumns = 64; // 16-bit columns of a 128-byte row: one panel
constexpr int kGroupRows = 64;  // query rows of a warpgroup: Q and O move in boxes of these

// Causal: how many heads are left for the end (ptx/sched.inc).  Two rounds of their single tiles,
// as near as whole heads come to it, balance out; fewer than five rounds in all are too few to bury
// the seam, so nothing is paired.
uint32_t last_heads(int64_t heads, int64_t m_blocks, int64_t sms) {
  const int64_t wanted = 2 * sms;
  if (heads * m_blocks <= 5 * sms) return uint32_t(heads);
  const int64_t below = wanted / m_blocks;
  const bool more = below == 0 || wanted - below * m_blocks > (below + 1) * m_blocks - wanted;
  const int64_t last = more ? below + 1 : below;
  return uint32_t(last < heads ? last : heads);
}

int64_t tiles(const Problem &p, int64_t tile_m) {
  return ceil_div(p.seqlen_q, tile_m) * int64_t(p.heads_q) * p.batch;
}

} // namespace

// Tiles of 192 rows, three warpgroups, against 128 rows and two.  They go faster per row, and lose
// more to a last tile that is part empty or to a last round that leaves multiprocessors idle.
bool tall_tiles_pay(const Problem &p, const DeviceProps &device, int64_t percent_faster) {
  const int64_t sms = device.sm_count;
  return ceil_div(tiles(p, 192), sms) * int64_t(192) * 100 <=
         ceil_div(tiles(p, 128), sms) * int64_t(128) * (100 + percent_faster);
}

// Twice the number of tiles, and a round more, fits 32 bits.
bool tiles_fit(const Problem &p) {
  return rows_fit(p) && tiles(p, kGroupRows) < INT32_MAX / 2;
}

// Head dim 64; the gain was measured (ptx/fwd.ptx).
bool fwd_long(const Problem &p, const DeviceProps &device) {
  return (p.causal && p.seqlen_q >= 1536) || tall_tiles_pay(p, device, 25);
}

// The order of tiles for `heads` heads, over all batches; returns how many jobs there are.
static int64_t plan_order(const Problem &p, const DeviceProps &device, int64_t heads,
                          FwdParams &f) {
  const int64_t m = f.m_blocks;
  const int64_t last = p.causal ? last_heads(heads, m, device.sm_count) : 0;
  const int64_t head_jobs = p.causal ? (m + 1) / 2 : m;
  const int64_t paired = (heads - last) * head_jobs;
  f.paired_heads = uint32_t(heads - last);
  f.paired_tickets = uint32_t(2 * paired);
  f.by_head_jobs = Divisor(uint32_t(head_jobs));
  f.by_last_heads = Divisor(uint32_t(last));
  f.tickets = uint32_t(2 * (paired + last * m));
  return paired + last * m;
}

// What the kernels see: `rows` query rows in each of `heads` heads.  Tensor maps of K and V.
static Step &plan_tiles(const Problem &p, const DeviceProps &device, RowIndex row_index,
                        int64_t rows, int32_t heads, FwdParams &f, Plan &plan) {
  const Row &row = kRows[row_index];
  f.lse = p.lse;
  f.scale_log2 = p.softmax_scale * kLog2e;
  f.seqlen_q = p.seqlen_q, f.seqlen_k = p.seqlen_k;
  f.heads_q = uint32_t(heads);
  f.by_heads = Divisor(f.heads_q);
  f.m_blocks = ceil_div(rows, row.tile_m);
  const int64_t jobs = plan_order(p, device, int64_t(heads) * p.batch, f);

  const int64_t ctas = jobs < device.sm_count ? jobs : device.sm_count;
  f.by_ctas = Divisor(uint32_t(ctas));

  Step &s = plan.launch(row_index, uint64_t(ctas));
  // A launch in the shadow of the one before saves up to a microsecond where that counts; a round
  // of tiles later it costs 2 to 3 % (head dim 128, 512 tokens).
  s.overlaps_previous = jobs <= device.sm_count;
  set_params(s, f);
  add_map(s, FWD_TMAP_K, p.k, p.head_dim, p.seqlen_k, p.heads_kv, p.batch, kBoxColumns, row.tile_n,
          TensorMap::SWIZZLE_128B);
  add_map(s, FWD_TMAP_V, p.v, p.head_dim_v, p.seqlen_k, p.heads_kv, p.batch, kBoxColumns,
          row.tile_n, TensorMap::SWIZZLE_128B);
  return s;
}

void plan_forward(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan) {
  FwdParams f = {};
  f.group = uint32_t(p.group());
  if (p.causal) { // what is missing to full tiles is missing in front (ptx/fwd.ptx)
    const int64_t tile_m = kRows[row].tile_m, rows = ceil_div(p.seqlen_q, tile_m) * tile_m;
    f.first_row = -int32_t((rows - p.seqlen_q) / kGroupRows * kGroupRows);
  }
  Step &s = plan_tiles(p, device, row, p.seqlen_q, p.heads_q, f, plan);
  add_map(s, FWD_TMAP_Q, p.q, p.head_dim, p.seqlen_q, p.heads_q, p.batch, kBoxColumns, kGroupRows,
          TensorMap::SWIZZLE_128B);
  add_map(s, FWD_TMAP_O, p.o, p.head_dim_v, p.seqlen_q, p.heads_q, p.batch, kBoxColumns,
          kGroupRows, TensorMap::SWIZZLE_128B);
}

// ---- Packed rows: ptx/pack.inc ------------------------------------------------------------------

// Whole positions fill the 64 rows of a warpgroup, and the step from one group to the next fits a
// tensor map.
bool packs(const Problem &p) {
  const int32_t group = p.heads_kv > 0 ? p.group() : 0;
  if (group <= 0 || kGroupRows % group != 0) return false;
  const int64_t furthest = ((int64_t(1) << 40) - 1) / (group * dtype_size(p.q.dtype));
  return (p.heads_kv == 1 || (p.q.stride_head <= furthest && p.o.stride_head <= furthest)) &&
         int64_t(p.seqlen_q) * group <= INT32_MAX - 1024 && tiles_fit(p);
}

// Where it saves a quarter of the tiles; the row's tile is 128 rows.
bool fwd_packed(const Problem &p, const DeviceProps &) {
  const int64_t packed = ceil_div(int64_t(p.seqlen_q) * p.group(), 128);
  return packed * 4 <= ceil_div(p.seqlen_q, 128) * int64_t(p.group()) * 3;
}

// One tile of 64 rows a group: half the arithmetic of a tile of 128, and more of K and V in flight.
bool fwd_few(const Problem &p, const DeviceProps &) {
  return int64_t(p.seqlen_q) * p.group() <= kGroupRows;
}

// (dim, head of the group, position, key/value head, batch), for boxes of 64 rows.
static void add_packed_map(Step &s, uint16_t offset, const fa3ptx_tensor &t, int32_t dim,
                           const Problem &p) {
  const int32_t group = p.group();
  add_map(s, offset, t, dim, p.seqlen_q, p.heads_q, p.batch, kBoxColumns, kGroupRows / group,
          TensorMap::SWIZZLE_128B);
  TensorMap &m = s.maps[s.map_count - 1];
  m.rank = 5;
  m.extent[4] = m.extent[3], m.extent[3] = uint32_t(p.heads_kv);
  m.extent[2] = m.extent[1], m.extent[1] = uint32_t(group);
  m.stride[3] = m.stride[2];
  m.stride[2] = p.heads_kv > 1 ? m.stride[1] * group : 16;
  const int64_t head = group > 1 ? m.stride[1] : 16;
  m.stride[1] = m.stride[0], m.stride[0] = head;
  m.box[4] = 1, m.box[3] = 1, m.box[2] = m.box[1], m.box[1] = uint16_t(group);
}

void plan_forward_packed(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan) {
  FwdParams f = {};
  f.group = 1;
  f.pack_shift = uint32_t(__builtin_ctz(unsigned(p.group())));
  Step &s = plan_tiles(p, device, row, int64_t(p.seqlen_q) * p.group(), p.heads_kv, f, plan);
  s.overlaps_previous = true;
  for (int i = 0; i < s.map_count; i++) s.maps[i].read_once = true; // K, V
  add_packed_map(s, FWD_TMAP_Q, p.q, p.head_dim, p);
  add_packed_map(s, FWD_TMAP_O, p.o, p.head_dim_v, p);
}

} // namespace fa3ptx
