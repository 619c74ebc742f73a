// quantize.cpp - fa3ptx_quantize: bf16/fp16 to E4M3, launches of ptx/quant.ptx.
#include <cmath>

#include "ptx/abi_fp8.h"
#include "src/driver.h"
#include "src/launch.h"
#include "src/plan.h"
#include "src/validate.h"

namespace fa3ptx {
namespace {

struct QuantParams {
  const void *src;
  void *dst;
  float *scale;
  int64_t src_batch, src_seq, src_head, dst_batch, dst_seq, dst_head; // strides in bytes
  uint32_t seqlen, heads, head_dim, tiles, parts;
  int32_t step;
  uint32_t block, blocks, group, mode;
  float norm;
  uint32_t signs[8];
  int64_t src_step, dst_step, scale_step;
};

#define AT(member, offset) (offsetof(QuantParams, member) == offset)
static_assert(AT(src, QUANT_SRC) && AT(dst, QUANT_DST) && AT(scale, QUANT_SCALE));
static_assert(AT(src_batch, QUANT_SRC_BATCH) && AT(src_seq, QUANT_SRC_SEQ));
static_assert(AT(src_head, QUANT_SRC_HEAD) && AT(dst_batch, QUANT_DST_BATCH));
static_assert(AT(dst_seq, QUANT_DST_SEQ) && AT(dst_head, QUANT_DST_HEAD));
static_assert(AT(seqlen, QUANT_SEQLEN) && AT(heads, QUANT_HEADS) && AT(head_dim, QUANT_HEAD_DIM));
static_assert(AT(tiles, QUANT_TILES) && AT(parts, QUANT_PARTS) && AT(step, QUANT_STEP));
static_assert(AT(src_step, QUANT_SRC_STEP) && AT(dst_step, QUANT_DST_STEP));
static_assert(AT(scale_step, QUANT_SCALE_STEP));
static_assert(AT(block, QUANT_BLOCK) && AT(blocks, QUANT_BLOCKS));
static_assert(AT(group, QUANT_GROUP) && AT(mode, QUANT_MODE) && AT(norm, QUANT_NORM));
static_assert(AT(signs, QUANT_SIGNS) && sizeof(QuantParams) == QUANT_PARAMS);
#undef AT

constexpr int kWarpRows = 8; // rows of a warp of quant.ptx

// Sign bits from the seed: splitmix64, a bijection with good bits at every position.
void draw_signs(uint64_t seed, uint32_t (&signs)[8]) {
  for (uint32_t &word : signs) {
    uint64_t z = seed += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    word = uint32_t((z ^ (z >> 31)) >> 32);
  }
}

// The narrowest row that takes these columns.
RowIndex row_of(const fa3ptx_quantize_args &a) {
  for (int i = 0; i < kRowCount; i++)
    if (kRows[i].role == Role::QUANT && int32_t(kRows[i].dtype) == a.src.dtype &&
        kRows[i].head_dim >= a.head_dim && in_build(RowIndex(i)))
      return RowIndex(i);
  return kNoRow;
}

// CTAs of a head.  Loads run STAGES tiles ahead: their row numbers, of this many tiles each, must
// neither pass 2^32 nor come round from below.
constexpr uint32_t kMostParts = 1 << 20;

// Tiles that a CTA does: as many CTAs as find room at once; where a multiprocessor has several,
// shorter ones, so that all of them finish together (quant.ptx, TRIED).
int64_t tiles_of_cta(const Row &row, const DeviceProps &device, int64_t tiles) {
  const int32_t ctas = QUANT_CTAS(row.head_dim);
  const int64_t each = ceil_div(tiles, int64_t(device.sm_count) * ctas);
  return ctas > 1 && each > 4 ? 4 : each;
}

// One pass where a scale is local; otherwise the scales first, then the data.
void plan_quantize(const fa3ptx_quantize_args &a, const DeviceProps &device, RowIndex index,
                   Plan &plan) {
  plan.count = 0, plan.main = -1, plan.row = index, plan.too_large = false;
  plan.workspace = 0, plan.reason = "";
  if (a.batch == 0 || a.seqlen == 0) return;
  const bool whole = a.block == 0;
  const Row &row = kRows[index];
  const int64_t size = dtype_size(a.src.dtype);
  QuantParams q = {};
  q.src = a.src.data, q.dst = a.dst.data, q.scale = a.scale;
  q.src_batch = a.src.stride_batch * size, q.src_seq = a.src.stride_seq * size;
  q.src_head = a.src.stride_head * size;
  q.dst_batch = a.dst.stride_batch, q.dst_seq = a.dst.stride_seq, q.dst_head = a.dst.stride_head;
  q.seqlen = uint32_t(a.seqlen), q.heads = uint32_t(a.heads), q.head_dim = uint32_t(a.head_dim);
  q.tiles = ceil_div(a.seqlen, row.tile_m);
  const int64_t heads = int64_t(a.batch) * a.heads;
  const int64_t each = tiles_of_cta(row, device, q.tiles * heads);
  q.parts = ceil_div(q.tiles, each < q.tiles ? each : q.tiles);
  if (q.parts > kMostParts) q.parts = kMostParts;
  q.block = whole ? INT32_MAX : uint32_t(a.block);
  q.blocks = whole ? 1 : ceil_div(a.seqlen, a.block);
  q.group = uint32_t((whole ? row.tile_m : a.block) / kWarpRows);
  q.norm = 1;
  if (a.flags & FA3PTX_FLAG_HADAMARD) {
    q.norm = 1.0f / std::sqrt(float(a.head_dim));
    draw_signs(a.seed, q.signs);
  }
  const auto launch = [&](uint32_t mode) {
    q.mode = mode;
    q.step = int32_t(q.parts) * row.tile_m * (mode == QUANT_MODE_GIVEN ? -1 : 1);
    q.src_step = q.src_seq * q.step, q.dst_step = q.dst_seq * q.step;
    q.scale_step = whole ? 0 : int64_t(q.step / a.block) * int64_t(sizeof(float));
    Step &s = plan.launch(index, uint64_t(heads) * q.parts);
    s.overlaps_previous = true;
    set_params(s, q);
  };
  if (!whole) return launch(QUANT_MODE_BLOCKS);
  plan.clear(a.scale, size_t(heads) * sizeof(float));
  launch(QUANT_MODE_LARGEST);
  launch(QUANT_MODE_GIVEN);
}

fa3ptx_status run_quantize(const fa3ptx_quantize_args *args, CUstream stream) {
  Error &e = thread_error();
  fa3ptx_status status = validate(args, e);
  if (status != FA3PTX_OK) return status;
  Device device;
  status = current_device(device, e);
  if (status != FA3PTX_OK) return status;
  const RowIndex row = row_of(*args);
  if (row == kNoRow)
    return fail(e, FA3PTX_ERROR_UNSUPPORTED, "no kernel of this build quantizes head_dim %d",
                args->head_dim);
  Plan plan;
  plan_quantize(*args, device.props, row, plan);
  if (plan.too_large)
    return fail(e, FA3PTX_ERROR_UNSUPPORTED, "batch %d, heads %d, seqlen %d: the grid would be too "
                "large", args->batch, args->heads, args->seqlen);
  return launch(*device.driver, device.handle, plan, stream, e);
}

} // namespace
} // namespace fa3ptx

extern "C" fa3ptx_status fa3ptx_quantize(const fa3ptx_quantize_args *args, CUstream_st *stream) {
  return fa3ptx::run_quantize(args, stream);
}
