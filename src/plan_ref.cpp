// plan_ref.cpp - launches of the reference kernels, ptx/ref_fwd.ptx and ptx/ref_bwd.ptx.
#include "src/plan.h"

namespace fa3ptx {
namespace {

struct RefTensor {
  void *data;
  int64_t batch, seq, head; // strides in bytes
};

struct RefParams {
  RefTensor q, k, v, o, dout, dq, dk, dv;
  float *lse;
  void *delta;
  int32_t seqlen_q, seqlen_k, heads_q, heads_kv, group, head_dim, head_dim_v, causal;
  uint32_t rows;
  float scale, scale_log2;
  uint32_t unused;
};

#define AT(member, offset) (offsetof(RefParams, member) == offset)
static_assert(AT(q, REF_Q) && AT(k, REF_K) && AT(v, REF_V) && AT(o, REF_O) && AT(dout, REF_DOUT));
static_assert(AT(dq, REF_DQ) && AT(dk, REF_DK) && AT(dv, REF_DV));
static_assert(AT(lse, REF_LSE) && AT(delta, REF_DELTA));
static_assert(AT(seqlen_q, REF_SEQLEN_Q) && AT(seqlen_k, REF_SEQLEN_K));
static_assert(AT(heads_q, REF_HEADS_Q) && AT(heads_kv, REF_HEADS_KV) && AT(group, REF_GROUP));
static_assert(AT(head_dim, REF_HEAD_DIM) && AT(head_dim_v, REF_HEAD_DIM_V));
static_assert(AT(causal, REF_CAUSAL) && AT(rows, REF_ROWS));
static_assert(AT(scale, REF_SCALE) && AT(scale_log2, REF_SCALE_LOG2));
static_assert(sizeof(RefParams) == REF_PARAMS);
#undef AT
static_assert(offsetof(RefTensor, data) == REF_TENSOR_DATA);
static_assert(offsetof(RefTensor, batch) == REF_TENSOR_BATCH);
static_assert(offsetof(RefTensor, seq) == REF_TENSOR_SEQ);
static_assert(offsetof(RefTensor, head) == REF_TENSOR_HEAD);

// An index along an axis of extent 1 is 0, so the caller's stride there needs no care.
RefTensor view(const fa3ptx_tensor &t) {
  const int64_t size = dtype_size(t.dtype);
  const auto bytes = [size](int64_t stride) { return int64_t(uint64_t(stride) * uint64_t(size)); };
  return {t.data, bytes(t.stride_batch), bytes(t.stride_seq), bytes(t.stride_head)};
}

RefParams common(const Problem &p) {
  RefParams r = {};
  r.q = view(p.q), r.k = view(p.k), r.v = view(p.v), r.o = view(p.o);
  r.lse = p.lse;
  r.seqlen_q = p.seqlen_q, r.seqlen_k = p.seqlen_k;
  r.heads_q = p.heads_q, r.heads_kv = p.heads_kv, r.group = p.group();
  r.head_dim = p.head_dim, r.head_dim_v = p.head_dim_v;
  r.causal = p.causal;
  r.scale = p.softmax_scale, r.scale_log2 = p.softmax_scale * kLog2e;
  return r;
}

// One warp a row, `tile_m` rows a CTA.
void launch(Plan &plan, RowIndex row, int64_t rows, RefParams &params) {
  if (rows == 0) return;
  params.rows = uint32_t(rows);
  set_params(plan.launch(row, ceil_div(rows, kRows[row].tile_m)), params);
}

} // namespace

void plan_ref_forward(const Problem &p, const DeviceProps &, RowIndex row, Plan &plan) {
  RefParams params = common(p);
  launch(plan, row, p.rows_q(), params);
}

// dQ first: it also leaves rowsum(dO o O) in the workspace, which dK and dV read.
void plan_ref_backward(const Problem &p, const DeviceProps &, RowIndex row, Plan &plan) {
  RefParams params = common(p);
  params.dout = view(p.dout), params.dq = view(p.dq);
  params.dk = view(p.dk), params.dv = view(p.dv);
  params.delta = p.workspace;
  plan.workspace = align_up(size_t(p.rows_q()) * sizeof(float));
  launch(plan, row, p.rows_q(), params);
  launch(plan, find_row(p, Role::BWD_REF_DKV), p.rows_k(), params);
}

} // namespace fa3ptx
