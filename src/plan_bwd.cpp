// plan_bwd.cpp - launches of the backward: bwd_pre, a main kernel, bwd_post.
#include "ptx/abi_bwd.h"
#include "src/plan.h"

namespace fa3ptx {
namespace {

struct Map {
  alignas(64) unsigned char bytes[128];
};

struct MainParams {
  Map q, k, v, dout, dk, dv;
  char *stats, *dq_acc, *dk_acc, *dv_acc, *turn;
  float scale, scale_log2;
  int32_t seqlen_q, seqlen_k;
  uint32_t heads_q, heads_kv, parts, part_heads, m_blocks, n_blocks, section, streams;
  uint32_t group, unused[9];
};

struct Rows { // a tensor of rows: data, then byte strides
  void *data;
  int64_t batch, seq, head;
};

struct PreParams {
  Rows o, dout;
  const float *lse;
  char *stats, *dq_acc, *turn;
  uint32_t seqlen_q, heads_q, head_dim_v, m_blocks, acc_bytes, unused[3];
};

struct PostParams {
  Rows out;
  char *acc;
  uint64_t part_bytes;
  uint32_t parts, seqlen, heads, head_dim, blocks;
  float scale;
  uint32_t acc_dim, unused[13];
};

#define AT(type, member, offset) (offsetof(type, member) == offset)
static_assert(AT(MainParams, q, BWD_TMAP_Q) && AT(MainParams, k, BWD_TMAP_K) &&
              AT(MainParams, v, BWD_TMAP_V) && AT(MainParams, dout, BWD_TMAP_DO) &&
              AT(MainParams, dk, BWD_TMAP_DK) && AT(MainParams, dv, BWD_TMAP_DV));
static_assert(AT(MainParams, stats, BWD_STATS) && AT(MainParams, dq_acc, BWD_DQ_ACC) &&
              AT(MainParams, dk_acc, BWD_DK_ACC) && AT(MainParams, dv_acc, BWD_DV_ACC) &&
              AT(MainParams, turn, BWD_TURN));
static_assert(AT(MainParams, scale, BWD_SCALE) && AT(MainParams, scale_log2, BWD_SCALE_LOG2));
static_assert(AT(MainParams, seqlen_q, BWD_SEQLEN_Q) && AT(MainParams, seqlen_k, BWD_SEQLEN_K) &&
              AT(MainParams, heads_q, BWD_HEADS_Q) && AT(MainParams, heads_kv, BWD_HEADS_KV));
static_assert(AT(MainParams, parts, BWD_PARTS) && AT(MainParams, part_heads, BWD_PART_HEADS) &&
              AT(MainParams, m_blocks, BWD_M_BLOCKS) && AT(MainParams, n_blocks, BWD_N_BLOCKS) &&
              AT(MainParams, section, BWD_SECTION) && AT(MainParams, streams, BWD_STREAMS) &&
              AT(MainParams, group, BWD_GROUP));
static_assert(sizeof(MainParams) == BWD_PARAMS);

static_assert(AT(Rows, batch, BWD_PRE_O_BATCH) && AT(Rows, seq, BWD_PRE_O_SEQ) &&
              AT(Rows, head, BWD_PRE_O_HEAD));
static_assert(AT(PreParams, o, BWD_PRE_O) && AT(PreParams, dout, BWD_PRE_DO) &&
              AT(PreParams, lse, BWD_PRE_LSE) && AT(PreParams, stats, BWD_PRE_STATS) &&
              AT(PreParams, dq_acc, BWD_PRE_DQ_ACC) && AT(PreParams, turn, BWD_PRE_TURN));
static_assert(AT(PreParams, seqlen_q, BWD_PRE_SEQLEN_Q) &&
              AT(PreParams, heads_q, BWD_PRE_HEADS_Q) &&
              AT(PreParams, head_dim_v, BWD_PRE_HEAD_DIM_V) &&
              AT(PreParams, m_blocks, BWD_PRE_M_BLOCKS) &&
              AT(PreParams, acc_bytes, BWD_PRE_ACC_BYTES));
static_assert(sizeof(PreParams) == BWD_PRE_PARAMS);

static_assert(AT(Rows, batch, BWD_POST_OUT_BATCH) && AT(Rows, seq, BWD_POST_OUT_SEQ) &&
              AT(Rows, head, BWD_POST_OUT_HEAD));
static_assert(AT(PostParams, out, BWD_POST_OUT) && AT(PostParams, acc, BWD_POST_ACC) &&
              AT(PostParams, part_bytes, BWD_POST_PART_BYTES) &&
              AT(PostParams, parts, BWD_POST_PARTS) && AT(PostParams, seqlen, BWD_POST_SEQLEN) &&
              AT(PostParams, heads, BWD_POST_HEADS) &&
              AT(PostParams, head_dim, BWD_POST_HEAD_DIM) &&
              AT(PostParams, blocks, BWD_POST_BLOCKS) && AT(PostParams, scale, BWD_POST_SCALE) &&
              AT(PostParams, acc_dim, BWD_POST_ACC_DIM));
static_assert(sizeof(PostParams) == BWD_POST_PARAMS);
#undef AT

constexpr int kBlock = 64;                      // rows of a fragment
constexpr size_t kTurnBytes = BWD_TURN_BYTES;   // per block of query rows
constexpr size_t kStatBytes = BWD_STAT_BYTES;   // the same
constexpr int64_t kSectionBytes = 32 << 20;     // of Q, dO and dQ sums: what L2 keeps
constexpr uint32_t kMaxGridYZ = 65535;

Rows rows_of(const fa3ptx_tensor &t) {
  const auto bytes = [](int64_t stride) { return int64_t(uint64_t(stride) * 2); };
  return {t.data, bytes(t.stride_batch), bytes(t.stride_seq), bytes(t.stride_head)};
}

// bwd_d192.ptx: a cluster of two CTAs to a key tile, each with half of its rows.
uint32_t ctas_of(const Row &row) { return row.head_dim >= 192 ? 2 : 1; }

size_t fragment_bytes(int dim) { return size_t(kBlock) * size_t(dim) * 4; }

// Blocks of query rows that each key tile of `keys` keys works through, for one head: of the first
// tile, which has most, and of all tiles together.  A causal tile n starts at block
// floor((n keys - offset) / 64) or 0, offset = seqlen_k - seqlen_q.
struct Steps {
  int64_t longest, all;
};
Steps count_steps(const Problem &p, int64_t keys) {
  const int64_t blocks = ceil_div(p.seqlen_q, kBlock), tiles = ceil_div(p.seqlen_k, keys);
  if (!p.causal) return {blocks, blocks * tiles};
  const int64_t offset = int64_t(p.seqlen_k) - p.seqlen_q;
  const int64_t r = keys / kBlock;                                   // blocks per tile
  const int64_t c = offset >= 0 ? (offset + kBlock - 1) / kBlock : -(-offset / kBlock);
  const auto within = [](int64_t x, int64_t lo, int64_t hi) {
    return x < lo ? lo : x > hi ? hi : x;
  };
  const int64_t full = within(c >= 0 ? c / r + 1 : 0, 0, tiles);     // tiles n with n r <= c
  const int64_t end = within((blocks + c + r - 1) / r, full, tiles); // tiles with any step
  const int64_t slope = (end - 1) * end / 2 - (full - 1) * full / 2; // sum of n in [full, end)
  const int64_t longest = c >= 0 ? blocks : blocks + c > 0 ? blocks + c : 0;
  return {longest, full * blocks + (end - full) * (blocks + c) - r * slope};
}

// Causal tiles of evenly falling lengths go longest first to whichever multiprocessor is free, k to
// each.  Every two rounds pair off to equal sums; what is over, k mod 2, leaves the last
// multiprocessor behind the mean by this part of the longest tile.
double lag(double k) {
  const double over = k - 2 * double(int64_t(k / 2));
  return over * (2 - over) / (2 * k);
}

// How many CTAs share the query heads of a key tile.  One keeps dK and dV in registers to the end;
// more balance the multiprocessors when key tiles are few, at the price of fp32 partial sums.
uint32_t choose_parts(const Problem &p, const DeviceProps &device, const Row &row) {
  constexpr int64_t kTileSteps = 4;       // start and end of a tile, in steps
  constexpr int64_t kStepBytes = 5 << 20; // what the chip copies during a step
  constexpr int32_t kMaxParts = 64;
  const int32_t group = int32_t(p.group());
  const Steps steps = count_steps(p, row.tile_n);
  const int64_t key_heads = int64_t(p.heads_kv) * p.batch;
  const int64_t sms = ceil_div(device.sm_count, ctas_of(row));
  const int64_t tiles = int64_t(ceil_div(p.seqlen_k, row.tile_n)) * key_heads;
  uint32_t best = 1;
  double best_cost = 0;
  for (int32_t parts = 1; parts <= group && parts <= kMaxParts; parts++) {
    if (group % parts != 0) continue; // 32 bits: a division of 64 is slow, and there are many
    const double heads = double(group / parts);
    const double longest = double(steps.longest) * heads + kTileSteps;
    double cost = double((tiles * parts + sms - 1) / sms) * longest;
    if (p.causal)
      cost = (double(steps.all) * heads * double(key_heads) + double(kTileSteps * tiles)) *
             double(parts) / double(sms) + longest * lag(double(tiles * parts) / double(sms));
    if (cost < longest) cost = longest;
    if (parts > 1)
      cost += double(parts * p.rows_k()) * (row.head_dim + row.head_dim_v) * 8 / kStepBytes + 2;
    if (parts == 1 || cost < best_cost) best = uint32_t(parts), best_cost = cost;
  }
  return best;
}

// How many streams a section has: `fit`; but where the longest tiles of the last section begin, all
// multiprocessors together must still have as much to do as one such tile.
uint32_t choose_section(const Problem &p, int64_t sms, const Row &row, int64_t streams,
                        int64_t fit) {
  const Steps steps = count_steps(p, row.tile_n);
  const int64_t need = steps.all > 0 ? sms * steps.longest / steps.all : 1;
  int64_t section = ceil_div(streams, kMaxGridYZ);
  if (section < need) section = need;
  if (section < fit) section = fit;
  for (int64_t sections = streams / section; sections > 1; sections--) {
    section = ceil_div(streams, sections);
    if (streams - (sections - 1) * section >= need) return uint32_t(section);
  }
  return uint32_t(streams);
}

// Key tiles of a group, deterministic and causal.  More groups leave shorter tiles for the end.
// But a group's tiles of a stream wait for all those of the groups before, so a round of tiles of
// other sections goes between; and of less than four tiles a group (2k tokens at head dim 128) the
// mode costs 25 %, not 11.
constexpr int64_t kMaxGroups = 8;
uint32_t choose_group(int64_t sms, const Row &row, const MainParams &main) {
  const int64_t others = int64_t(main.streams - main.section) * main.n_blocks;
  const int64_t least_tiles = row.head_dim == 96 || row.head_dim == 128 ? 4 : 1; // measured at 128
  int64_t groups = others / sms;
  if (groups > kMaxGroups) groups = kMaxGroups;
  if (groups > main.n_blocks / least_tiles) groups = main.n_blocks / least_tiles;
  const int64_t least = ceil_div(main.n_blocks, kMaxGridYZ);
  return ceil_div(main.n_blocks, groups < least ? least : groups);
}

// The order of CTAs (ptx/bwd_tile.inc) and the grid for it: of main, section and group.
void choose_grid(const Problem &p, const DeviceProps &device, const Row &row, MainParams &main,
                 uint64_t grid[3]) {
  constexpr int64_t kTogether = 12; // tiles of a stream, each a step or two behind the one before
  const int64_t streams = main.streams, sms = ceil_div(device.sm_count, ctas_of(row));
  const bool turns = main.turn != nullptr;
  main.section = 0, main.group = main.n_blocks;
  const bool by_group = turns && p.causal; // any number of tiles fits
  if (!by_group && (!(turns || p.causal) || main.n_blocks > kMaxGridYZ)) {
    grid[0] = main.n_blocks;
    grid[1] = streams < kMaxGridYZ ? streams : kMaxGridYZ;
    grid[2] = ceil_div(streams, int64_t(grid[1]));
    return;
  }
  const int64_t stream_bytes = int64_t(main.part_heads) * p.seqlen_q *
                               (2 * (p.head_dim + p.head_dim_v) + 4 * row.head_dim);
  int64_t fit = kSectionBytes / stream_bytes;
  if (turns && !p.causal && fit < sms / kTogether) fit = sms / kTogether;
  uint64_t groups = 1;
  if (!by_group) {
    main.section = choose_section(p, sms, row, streams, fit);
  } else {
    if (fit > streams / kMaxGroups) fit = streams / kMaxGroups;
    main.section = fit > 1 ? uint32_t(fit) : 1;
    main.group = choose_group(sms, row, main);
    groups = ceil_div(main.n_blocks, main.group);
    if (groups * ceil_div(streams, main.section) > kMaxGridYZ) main.section = uint32_t(streams);
  }
  grid[0] = main.section, grid[1] = main.group, grid[2] = groups * ceil_div(streams, main.section);
}

// Offsets in the workspace.  Linear in seqlen: per query block of 64 rows and query head
// 1152 B + 256 B head_dim (+ 8 B); with parts > 1 also 256 B (head_dim + head_dim_v) per part,
// 64 keys and key head.
struct Workspace {
  char *base;
  size_t used = 0;
  char *take(size_t bytes) {
    char *at = base + used;
    used += align_up(bytes);
    return at;
  }
};

void launch_post(const Problem &p, Plan &plan, const fa3ptx_tensor &out, char *acc,
                 uint32_t parts, int32_t acc_dim, int32_t dim, int32_t seqlen, int32_t heads,
                 int32_t blocks, float scale) {
  PostParams post = {};
  post.out = rows_of(out);
  post.acc = acc;
  post.parts = parts;
  post.part_bytes = size_t(p.batch) * heads * blocks * fragment_bytes(acc_dim);
  post.seqlen = uint32_t(seqlen), post.heads = uint32_t(heads), post.head_dim = uint32_t(dim);
  post.blocks = uint32_t(blocks);
  post.scale = scale;
  post.acc_dim = uint32_t(acc_dim);
  const uint32_t panels = ceil_div(acc_dim, 64);
  Step &s = plan.launch(find_row(p, Role::BWD_POST),
                        uint64_t(p.batch) * uint64_t(heads) * uint64_t(blocks) * panels);
  s.overlaps_previous = true;
  set_params(s, post);
}

} // namespace

// Tiles of 192 keys leave up to 191 of them empty.
bool bwd_long(const Problem &p, const DeviceProps &) { return p.seqlen_k >= 1536; }

void plan_backward(const Problem &p, const DeviceProps &device, RowIndex row_index, Plan &plan) {
  const Row &row = kRows[row_index];
  const int dim = row.head_dim, dim_v = row.head_dim_v;
  const uint32_t m_blocks = ceil_div(p.seqlen_q, kBlock);
  const uint32_t n_blocks = ceil_div(p.seqlen_k, row.tile_n);
  const uint64_t slots = uint64_t(p.batch) * uint64_t(p.heads_q);
  const uint32_t parts = choose_parts(p, device, row), ctas = ctas_of(row);
  const uint64_t kv_heads = uint64_t(p.batch) * uint64_t(p.heads_kv);
  const uint32_t key_blocks = n_blocks * uint32_t(row.tile_n / kBlock); // fragments of dK and dV

  Workspace w = {static_cast<char *>(p.workspace)};
  MainParams main = {};
  main.stats = w.take(size_t(slots) * m_blocks * kStatBytes);
  main.dq_acc = w.take(size_t(slots) * m_blocks * fragment_bytes(dim));
  if (p.has(FA3PTX_FLAG_DETERMINISTIC)) main.turn = w.take(size_t(slots) * m_blocks * kTurnBytes);
  if (parts > 1) {
    main.dk_acc = w.take(size_t(parts) * kv_heads * key_blocks * fragment_bytes(dim));
    main.dv_acc = w.take(size_t(parts) * kv_heads * key_blocks * fragment_bytes(dim_v));
  }
  plan.workspace = w.used;
  main.scale = p.softmax_scale, main.scale_log2 = p.softmax_scale * kLog2e;
  main.seqlen_q = p.seqlen_q, main.seqlen_k = p.seqlen_k;
  main.heads_q = uint32_t(p.heads_q), main.heads_kv = uint32_t(p.heads_kv);
  main.parts = parts, main.part_heads = uint32_t(p.group()) / parts;
  main.m_blocks = m_blocks, main.n_blocks = n_blocks;
  main.streams = uint32_t(kv_heads * parts);
  uint64_t grid[3];
  choose_grid(p, device, row, main, grid);

  PreParams pre = {};
  pre.o = rows_of(p.o), pre.dout = rows_of(p.dout);
  pre.lse = p.lse;
  pre.stats = main.stats, pre.dq_acc = main.dq_acc, pre.turn = main.turn;
  pre.seqlen_q = uint32_t(p.seqlen_q), pre.heads_q = main.heads_q;
  pre.head_dim_v = uint32_t(p.head_dim_v), pre.m_blocks = m_blocks;
  pre.acc_bytes = uint32_t(fragment_bytes(dim));
  Step &before = plan.launch(find_row(p, Role::BWD_PRE), slots * m_blocks);
  before.overlaps_previous = true;
  set_params(before, pre);

  Step &s = plan.launch(row_index, grid[0] * ctas, grid[1], grid[2]);
  s.cluster = ctas;
  s.overlaps_previous = true;
  set_params(s, main);
  const auto map = [&](int offset, const fa3ptx_tensor &t, int cols, bool keys, int rows) {
    add_map(s, uint16_t(offset), t, cols, keys ? p.seqlen_k : p.seqlen_q,
            keys ? p.heads_kv : p.heads_q, p.batch, 64, rows, TensorMap::SWIZZLE_128B);
  };
  map(BWD_TMAP_Q, p.q, p.head_dim, false, row.tile_m / int(ctas));
  map(BWD_TMAP_DO, p.dout, p.head_dim_v, false, row.tile_m / int(ctas));
  map(BWD_TMAP_K, p.k, p.head_dim, true, row.tile_n / int(ctas));
  map(BWD_TMAP_V, p.v, p.head_dim_v, true, row.tile_n / int(ctas));
  map(BWD_TMAP_DK, p.dk, p.head_dim, true, kBlock);
  map(BWD_TMAP_DV, p.dv, p.head_dim_v, true, kBlock);

  launch_post(p, plan, p.dq, main.dq_acc, 1, dim, p.head_dim, p.seqlen_q, p.heads_q,
              int32_t(m_blocks), p.softmax_scale);
  if (parts == 1) return;
  launch_post(p, plan, p.dk, main.dk_acc, parts, dim, p.head_dim, p.seqlen_k, p.heads_kv,
              int32_t(key_blocks), p.softmax_scale);
  launch_post(p, plan, p.dv, main.dv_acc, parts, dim_v, p.head_dim_v, p.seqlen_k, p.heads_kv,
              int32_t(key_blocks), 1.0f);
}

} // namespace fa3ptx
