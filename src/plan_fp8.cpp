// plan_fp8.cpp - the forward on E4M3: ptx/fwd_fp8*.ptx, and its reference, ptx/ref_fwd_fp8.ptx.
#include "ptx/abi_fp8.h"
#include "src/plan.h"

namespace fa3ptx {
namespace {

struct Map {
  alignas(64) unsigned char bytes[128];
};

struct Scale {
  const float *data;
  int64_t batch, head, block; // strides in bytes
  uint32_t shift, split;
};

struct Fp8Params {
  Map q, k, v, o;
  float *lse;
  float scale_log2;
  int32_t seqlen_q, seqlen_k;
  uint32_t heads_q, group, m_blocks, tiles, levels, level_tiles;
  uint32_t unused[5];
  Scale q_scale, k_scale, v_scale;
  uint32_t out_fp16, heads_kv;
};

struct Tensor {
  void *data;
  int64_t batch, seq, head; // strides in bytes
};

struct Fp8RefParams {
  Tensor q, k, v, o;
  float *lse;
  int32_t seqlen_q, seqlen_k, heads_q, heads_kv, group, head_dim;
  uint32_t causal, rows, out_fp16;
  float scale_log2;
  Scale q_scale, k_scale, v_scale;
};

#define AT(member, offset) (offsetof(Fp8Params, member) == offset)
static_assert(AT(q, FWD_TMAP_Q) && AT(k, FWD_TMAP_K) && AT(v, FWD_TMAP_V) && AT(o, FWD_TMAP_O));
static_assert(AT(lse, FWD_LSE) && AT(scale_log2, FWD_SCALE_LOG2));
static_assert(AT(seqlen_q, FWD_SEQLEN_Q) && AT(seqlen_k, FWD_SEQLEN_K));
static_assert(AT(heads_q, FWD_HEADS_Q) && AT(group, FWD_GROUP));
static_assert(AT(m_blocks, FWD_M_BLOCKS) && AT(tiles, FWD_TILES));
static_assert(AT(levels, FWD_LEVELS) && AT(level_tiles, FWD_LEVEL_TILES));
static_assert(AT(q_scale, FP8_Q_SCALE) && AT(k_scale, FP8_K_SCALE) && AT(v_scale, FP8_V_SCALE));
static_assert(AT(out_fp16, FP8_OUT_FP16) && AT(heads_kv, FP8_HEADS_KV));
static_assert(sizeof(Fp8Params) == FP8_PARAMS);
#undef AT
#define AT(member, offset) (offsetof(Scale, member) == offset)
static_assert(AT(data, FP8_SCALE_DATA) && AT(batch, FP8_SCALE_BATCH) && AT(head, FP8_SCALE_HEAD));
static_assert(AT(block, FP8_SCALE_BLOCK) && AT(shift, FP8_SCALE_SHIFT));
static_assert(AT(split, FP8_SCALE_SPLIT) && sizeof(Scale) == FP8_SCALE_BYTES);
#undef AT
#define AT(member, offset) (offsetof(Fp8RefParams, member) == offset)
static_assert(AT(q, FP8_REF_Q) && AT(k, FP8_REF_K) && AT(v, FP8_REF_V) && AT(o, FP8_REF_O));
static_assert(AT(lse, FP8_REF_LSE) && AT(seqlen_q, FP8_REF_SEQLEN_Q));
static_assert(AT(seqlen_k, FP8_REF_SEQLEN_K) && AT(heads_q, FP8_REF_HEADS_Q));
static_assert(AT(heads_kv, FP8_REF_HEADS_KV) && AT(group, FP8_REF_GROUP));
static_assert(AT(head_dim, FP8_REF_HEAD_DIM) && AT(causal, FP8_REF_CAUSAL));
static_assert(AT(rows, FP8_REF_ROWS) && AT(out_fp16, FP8_REF_OUT_FP16));
static_assert(AT(scale_log2, FP8_REF_SCALE_LOG2) && AT(q_scale, FP8_REF_Q_SCALE));
static_assert(AT(k_scale, FP8_REF_K_SCALE) && AT(v_scale, FP8_REF_V_SCALE));
static_assert(sizeof(Fp8RefParams) == FP8_REF_PARAMS);
#undef AT
static_assert(offsetof(Tensor, batch) == REF_TENSOR_BATCH);
static_assert(offsetof(Tensor, seq) == REF_TENSOR_SEQ);
static_assert(offsetof(Tensor, head) == REF_TENSOR_HEAD);

constexpr int kGroupRows = 64; // query rows of a warpgroup
constexpr int kWarpRows = 16;  // rows of O a warp stores

// Causal: query tiles of a head that are neighbours in the order of tiles (ptx/sched.inc).
constexpr uint32_t kCausalLevels = 4;

Scale scale_of(const fa3ptx_scale &s, int32_t heads) {
  uint32_t shift = 31; // one block: all rows
  if (s.block > 0)
    for (shift = 0; (1 << shift) < s.block;) shift++;
  return {s.data, s.stride_batch * 4, s.stride_head * 4, s.stride_block * 4, shift,
          uint32_t(heads / s.heads)};
}

// The swizzle span of a tile's rows: the largest that divides them (ptx/fp8_tile.inc).
int panel_of(int dim) { return dim % 128 == 0 ? 128 : dim % 64 == 0 ? 64 : 32; }
TensorMap::Swizzle swizzle_of(int panel) {
  return panel == 128  ? TensorMap::SWIZZLE_128B
         : panel == 64 ? TensorMap::SWIZZLE_64B
                       : TensorMap::SWIZZLE_32B;
}

bool has_blocks(const fa3ptx_scale &s) { return s.data && s.block > 0; }
bool in_blocks(const Problem &p) {
  return has_blocks(p.q_scale) || has_blocks(p.k_scale) || has_blocks(p.v_scale);
}

Tensor view(const fa3ptx_tensor &t) {
  const int64_t size = dtype_size(t.dtype);
  const auto bytes = [size](int64_t stride) { return int64_t(uint64_t(stride) * uint64_t(size)); };
  return {t.data, bytes(t.stride_batch), bytes(t.stride_seq), bytes(t.stride_head)};
}

} // namespace

bool fp8_heads(const Problem &p, const DeviceProps &) {
  return !in_blocks(p) && !p.has(FA3PTX_FLAG_ACCURATE);
}
// Tiles of 192 rows: at head dim 64 by the rule of the 16-bit forward.  At 128 they go some 8 %
// faster a row at length; below 1.5k 128 x 128 is ahead, whose blocks end with the sequence.
bool fp8_heads_long(const Problem &p, const DeviceProps &device) {
  if (!fp8_heads(p, device)) return false;
  if (p.head_dim <= 64) return fwd_long(p, device);
  if (p.seqlen_q < 1536) return false;
  return p.causal || tall_tiles_pay(p, device, 8);
}
// Head dim 256: blocks of 64 keys waste less of a short row, blocks of 96 are faster at length.
bool fp8_heads_short(const Problem &p, const DeviceProps &device) {
  return fp8_heads(p, device) && p.seqlen_k < (p.causal ? 2048 : 1024);
}
bool fp8_blocks(const Problem &p, const DeviceProps &) {
  return !p.has(FA3PTX_FLAG_ACCURATE);
}
bool fp8_exact(const Problem &p, const DeviceProps &) { return p.has(FA3PTX_FLAG_ACCURATE); }

void plan_fp8(const Problem &p, const DeviceProps &device, RowIndex row_index, Plan &plan) {
  const Row &row = kRows[row_index];
  Fp8Params f = {};
  f.lse = p.lse;
  f.scale_log2 = p.softmax_scale * kLog2e;
  f.seqlen_q = p.seqlen_q, f.seqlen_k = p.seqlen_k;
  f.heads_q = uint32_t(p.heads_q), f.heads_kv = uint32_t(p.heads_kv);
  f.group = uint32_t(p.group());
  f.m_blocks = ceil_div(p.seqlen_q, row.tile_m);
  const int64_t tiles = int64_t(f.m_blocks) * p.heads_q * p.batch;
  f.tiles = uint32_t(tiles);
  f.levels = p.causal && f.m_blocks > kCausalLevels ? kCausalLevels : f.m_blocks;
  f.level_tiles = uint32_t(int64_t(f.levels) * p.heads_q * p.batch);
  f.q_scale = scale_of(p.q_scale, p.heads_q);
  f.k_scale = scale_of(p.k_scale, p.heads_kv);
  f.v_scale = scale_of(p.v_scale, p.heads_kv);
  f.out_fp16 = p.o.dtype == FA3PTX_FP16;

  Step &s = plan.launch(row_index, uint64_t(tiles < device.sm_count ? tiles : device.sm_count));
  s.overlaps_previous = true;
  // A CTA counts one round of tiles past the last.
  if (tiles > INT32_MAX) plan.too_large = true;
  set_params(s, f);
  const int panel = panel_of(row.head_dim);
  const auto map = [&](int offset, const fa3ptx_tensor &t, bool keys, int rows) {
    add_map(s, uint16_t(offset), t, p.head_dim, keys ? p.seqlen_k : p.seqlen_q,
            keys ? p.heads_kv : p.heads_q, p.batch, panel, rows, swizzle_of(panel));
  };
  map(FWD_TMAP_Q, p.q, false, kGroupRows);
  map(FWD_TMAP_K, p.k, true, row.tile_n);
  map(FWD_TMAP_V, p.v, true, row.tile_n);
  const int span = row.head_dim == 96 ? 64 : 128; // bytes of O's panels (ptx/fp8_epilogue.inc)
  add_map(s, FWD_TMAP_O, p.o, p.head_dim, p.seqlen_q, p.heads_q, p.batch, span / 2, kWarpRows,
          swizzle_of(span));
}

void plan_fp8_reference(const Problem &p, const DeviceProps &, RowIndex row, Plan &plan) {
  Fp8RefParams r = {};
  r.q = view(p.q), r.k = view(p.k), r.v = view(p.v), r.o = view(p.o);
  r.lse = p.lse;
  r.seqlen_q = p.seqlen_q, r.seqlen_k = p.seqlen_k;
  r.heads_q = p.heads_q, r.heads_kv = p.heads_kv, r.group = p.group();
  r.head_dim = p.head_dim;
  r.causal = p.causal;
  r.rows = uint32_t(p.rows_q());
  r.out_fp16 = p.o.dtype == FA3PTX_FP16;
  r.scale_log2 = p.softmax_scale * kLog2e;
  r.q_scale = scale_of(p.q_scale, p.heads_q);
  r.k_scale = scale_of(p.k_scale, p.heads_kv);
  r.v_scale = scale_of(p.v_scale, p.heads_kv);
  if (p.rows_q() == 0) return;
  set_params(plan.launch(row, ceil_div(p.rows_q(), kRows[row].tile_m)), r);
}

} // namespace fa3ptx
