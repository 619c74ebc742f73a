#include "src/validate.h"

#include <climits>
#include <cmath>

#include "src/plan.h"

namespace fa3ptx {
namespace {

__extension__ typedef __int128 Wide; // sums of products of int64

#define REJECT(...) return fail(e, FA3PTX_ERROR_INVALID_ARGUMENT, __VA_ARGS__)
#define TRY(call)                                                                                  \
  do {                                                                                             \
    const fa3ptx_status status_ = (call);                                                          \
    if (status_ != FA3PTX_OK) return status_;                                                      \
  } while (0)

constexpr int kMaxHeadDim = REF_MAX_HEAD_DIM;
constexpr float kMaxSoftmaxScale = 2e38f; // times log2(e) it is still a finite float
constexpr int64_t kMaxStrideBytes = int64_t(1) << 40; // what a TMA tensor map can hold

const char *const kAxis[3] = {"stride_batch", "stride_seq", "stride_head"};

// A tensor as one of the arguments: what it is called, its shape, and who writes it.
struct Operand {
  const char *name;
  const fa3ptx_tensor *t;
  int32_t batch, seqlen, heads, dim;
  bool is_output;
  bool empty() const { return batch == 0 || seqlen == 0; }
};

int list_operands(const Problem &p, Operand (&list)[8]) {
  const int32_t b = p.batch, sq = p.seqlen_q, sk = p.seqlen_k, hq = p.heads_q, hk = p.heads_kv;
  const int32_t d = p.head_dim, dv = p.head_dim_v;
  list[0] = {"q", &p.q, b, sq, hq, d, false};
  list[1] = {"k", &p.k, b, sk, hk, d, false};
  list[2] = {"v", &p.v, b, sk, hk, dv, false};
  list[3] = {"o", &p.o, b, sq, hq, dv, !p.backward};
  if (!p.backward) return 4;
  list[4] = {"dout", &p.dout, b, sq, hq, dv, false};
  list[5] = {"dq", &p.dq, b, sq, hq, d, true};
  list[6] = {"dk", &p.dk, b, sk, hk, d, true};
  list[7] = {"dv", &p.dv, b, sk, hk, dv, true};
  return 8;
}

fa3ptx_status check_dim(const char *name, int32_t d, Error &e) {
  if (d < 8 || d > kMaxHeadDim || d % 8 != 0)
    REJECT("%s = %d: must be a multiple of 8, from 8 to %d", name, d, kMaxHeadDim);
  return FA3PTX_OK;
}

fa3ptx_status check_sizes(const Problem &p, Error &e) {
  if (p.batch < 0) REJECT("batch = %d: must not be negative", p.batch);
  if (p.seqlen_q < 0) REJECT("seqlen_q = %d: must not be negative", p.seqlen_q);
  if (p.seqlen_k < 0) REJECT("seqlen_k = %d: must not be negative", p.seqlen_k);
  if (p.heads_q < 1) REJECT("heads_q = %d: must be at least 1", p.heads_q);
  if (p.heads_kv < 1) REJECT("heads_kv = %d: must be at least 1", p.heads_kv);
  if (p.heads_q % p.heads_kv != 0)
    REJECT("heads_q = %d: must be a multiple of heads_kv = %d", p.heads_q, p.heads_kv);
  TRY(check_dim("head_dim", p.head_dim, e));
  TRY(check_dim("head_dim_v", p.head_dim_v, e));
  // Rows are numbered in 32 bits.  128-bit products: three int32 can exceed 64 bits.
  const Wide rows_q = Wide(p.batch) * p.heads_q * p.seqlen_q;
  const Wide rows_k = Wide(p.batch) * p.heads_kv * p.seqlen_k;
  if (rows_q > INT32_MAX)
    REJECT("batch * heads_q * seqlen_q = %d * %d * %d: must be below 2^31", p.batch, p.heads_q,
           p.seqlen_q);
  if (rows_k > INT32_MAX)
    REJECT("batch * heads_kv * seqlen_k = %d * %d * %d: must be below 2^31", p.batch, p.heads_kv,
           p.seqlen_k);
  return FA3PTX_OK;
}

fa3ptx_status check_dtypes(const Problem &p, const Operand *list, int count, Error &e) {
  if (dtype_size(p.q.dtype) == 0)
    REJECT("q.dtype = %d: must be FA3PTX_BF16, FA3PTX_FP16 or FA3PTX_E4M3", p.q.dtype);
  const bool fp8 = p.q.dtype == FA3PTX_E4M3;
  if (fp8 && p.backward)
    REJECT("q.dtype = %d (E4M3): the backward takes FA3PTX_BF16 or FA3PTX_FP16", p.q.dtype);
  for (int i = 1; i < count; i++) {
    const int32_t dtype = list[i].t->dtype;
    if (fp8 && list[i].t == &p.o) {
      if (dtype != FA3PTX_BF16 && dtype != FA3PTX_FP16)
        REJECT("o.dtype = %d: must be FA3PTX_BF16 or FA3PTX_FP16 where q is E4M3", dtype);
    } else if (dtype != p.q.dtype) {
      REJECT("%s.dtype = %d: must be that of q, %d (%s)", list[i].name, dtype, p.q.dtype,
             dtype_name(p.q.dtype));
    }
  }
  if (fp8 && p.head_dim % 16 != 0)
    REJECT("head_dim = %d: must be a multiple of 16 where q is E4M3", p.head_dim);
  if (fp8 && p.head_dim_v != p.head_dim)
    REJECT("head_dim_v = %d: must be head_dim, %d, where q is E4M3", p.head_dim_v, p.head_dim);
  return FA3PTX_OK;
}

// mask and flags come from the args: Problem has no room for a wrong value.
fa3ptx_status check_options(const Problem &p, int32_t mask, float softmax_scale, Error &e) {
  if (mask != FA3PTX_MASK_NONE && mask != FA3PTX_MASK_CAUSAL)
    REJECT("mask = %d: must be FA3PTX_MASK_NONE or FA3PTX_MASK_CAUSAL", mask);
  const uint32_t known = FA3PTX_FLAG_REFERENCE | FA3PTX_FLAG_DETERMINISTIC |
                         (p.backward ? 0 : FA3PTX_FLAG_ACCURATE);
  if (p.flags & ~known)
    REJECT("flags = 0x%x: bits 0x%x mean nothing and must be 0", p.flags, p.flags & ~known);
  if (!(softmax_scale >= 0 && softmax_scale <= kMaxSoftmaxScale))
    REJECT("softmax_scale = %g: must be positive and at most %g, or 0 for 1/sqrt(head_dim)",
           double(softmax_scale), double(kMaxSoftmaxScale));
  return FA3PTX_OK;
}

// The strides of the axes that have more than one element, and the space they span.
fa3ptx_status check_strides(const Operand &o, Error &e) {
  const int64_t size = dtype_size(o.t->dtype), per16 = 16 / size;
  const int64_t extent[3] = {o.batch, o.seqlen, o.heads};
  const int64_t stride[3] = {o.t->stride_batch, o.t->stride_seq, o.t->stride_head};
  Wide span = Wide(o.dim) * size;
  for (int i = 0; i < 3; i++) {
    if (extent[i] == 1) continue;
    const long long s = stride[i];
    if (s < 0) REJECT("%s.%s = %lld: must not be negative", o.name, kAxis[i], s);
    if (s % per16 != 0)
      REJECT("%s.%s = %lld: must be a multiple of %lld elements (16 bytes)", o.name, kAxis[i], s,
             (long long)per16);
    if (s >= kMaxStrideBytes / size)
      REJECT("%s.%s = %lld: must be below 2^40 bytes, %lld elements", o.name, kAxis[i], s,
             (long long)(kMaxStrideBytes / size));
    span += Wide(extent[i] - 1) * s * size;
  }
  if (span + Wide(uintptr_t(o.t->data)) > Wide(INT64_MAX))
    REJECT("%s: its last element is more than 2^63 bytes from address 0 (strides %lld, %lld, %lld)",
           o.name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
  return FA3PTX_OK;
}

// Output elements must all be different ones.  Taken from the smallest stride up, each axis has to
// step over everything the smaller ones span; true of every view of a dense tensor.
fa3ptx_status check_no_overlap(const Operand &o, Error &e) {
  struct { int64_t stride, extent; int axis; } a[3] = {{o.t->stride_batch, o.batch, 0},
                                                       {o.t->stride_seq, o.seqlen, 1},
                                                       {o.t->stride_head, o.heads, 2}};
  Wide span = o.dim;
  bool done[3] = {a[0].extent == 1, a[1].extent == 1, a[2].extent == 1};
  for (;;) {
    int next = -1;
    for (int i = 0; i < 3; i++)
      if (!done[i] && (next < 0 || a[i].stride < a[next].stride)) next = i;
    if (next < 0) return FA3PTX_OK;
    if (a[next].stride < span)
      REJECT("%s.%s = %lld: an output must not overlap itself, and the axes inside this one span "
             "%lld elements", o.name, kAxis[a[next].axis], (long long)a[next].stride,
             (long long)span);
    span += Wide(a[next].extent - 1) * a[next].stride;
    done[next] = true;
  }
}

fa3ptx_status check_tensor(const Operand &o, Depth depth, Error &e) {
  const fa3ptx_tensor &t = *o.t;
  if (t.reserved != 0) REJECT("%s.reserved = %d: must be 0", o.name, t.reserved);
  if (depth == Depth::SHAPES || o.empty()) return FA3PTX_OK;
  if (!t.data) REJECT("%s.data = NULL: the tensor is not empty", o.name);
  if (uintptr_t(t.data) % 16 != 0)
    REJECT("%s.data = %p: must be a multiple of 16 bytes", o.name, t.data);
  TRY(check_strides(o, e));
  return o.is_output ? check_no_overlap(o, e) : FA3PTX_OK;
}

// Two tensors with one address share an element.  (Interleaved views, such as packed QKV, differ.)
fa3ptx_status check_aliases(const Problem &p, const Operand *list, int count, Error &e) {
  for (int i = 0; i < count; i++) {
    if (list[i].empty()) continue;
    const void *data = list[i].t->data;
    if (data == p.workspace)
      REJECT("%s.data = %p: must not share memory with workspace", list[i].name, data);
    if (data == p.lse && (list[i].is_output || !p.backward))
      REJECT("%s.data = %p: must not share memory with lse", list[i].name, data);
    for (int j = 0; list[i].is_output && j < count; j++)
      if (j != i && !list[j].empty() && list[j].t->data == data)
        REJECT("%s.data = %p: an output must not share memory with %s", list[i].name, data,
               list[j].name);
  }
  if (p.lse && p.lse == p.workspace)
    REJECT("lse = %p: must not share memory with workspace", static_cast<void *>(p.lse));
  return FA3PTX_OK;
}

fa3ptx_status check_lse(const Problem &p, Error &e) {
  if (p.backward && !p.lse && p.rows_q() != 0)
    REJECT("lse = NULL: the backward needs the LSE of the forward");
  if (uintptr_t(p.lse) % 4 != 0)
    REJECT("lse = %p: must be a multiple of 4 bytes", static_cast<void *>(p.lse));
  return FA3PTX_OK;
}

// Scales of an operand; resolves heads = 0.
fa3ptx_status check_scale(const char *name, fa3ptx_scale &s, const Problem &p, int32_t seqlen,
                          int32_t heads, int least_block, Error &e) {
  const void *const data = s.data;
  if (s.data && p.q.dtype != FA3PTX_E4M3)
    REJECT("%s.data = %p: must be NULL where q is not E4M3", name, data);
  if (uintptr_t(data) % 4 != 0)
    REJECT("%s.data = %p: must be a multiple of 4 bytes", name, data);
  const int64_t strides[3] = {s.stride_batch, s.stride_head, s.stride_block};
  const char *const axes[3] = {"stride_batch", "stride_head", "stride_block"};
  for (int i = 0; i < 3; i++)
    if (strides[i] < 0 || strides[i] >= kMaxStrideBytes / 4)
      REJECT("%s.%s = %lld: must not be negative, and below 2^38", name, axes[i],
             (long long)strides[i]);
  if (s.block != 0 && (s.block < least_block || (s.block & (s.block - 1)) != 0))
    REJECT("%s.block = %d: must be 0 or a power of two, at least %d", name, s.block, least_block);
  if (s.heads == 0) s.heads = p.heads_kv;
  if (s.heads < 0 || heads % s.heads != 0)
    REJECT("%s.heads = %d: must be a divisor of the tensor's heads, %d", name, s.heads, heads);
  const int64_t blocks = s.block > 0 ? ceil_div(seqlen, s.block) : 1;
  const Wide last = Wide(p.batch > 0 ? p.batch - 1 : 0) * s.stride_batch +
                    Wide(s.heads - 1) * s.stride_head +
                    Wide(blocks > 0 ? blocks - 1 : 0) * s.stride_block;
  if (last * 4 + Wide(uintptr_t(data)) > Wide(INT64_MAX))
    REJECT("%s: its last scale is more than 2^63 bytes from address 0 (strides %lld, %lld, %lld)",
           name, (long long)s.stride_batch, (long long)s.stride_head, (long long)s.stride_block);
  return FA3PTX_OK;
}

template <class Args> void read(const Args &a, Problem &p) {
  p.q = a.q, p.k = a.k, p.v = a.v, p.o = a.o;
  p.lse = const_cast<float *>(a.lse);
  p.batch = a.batch, p.seqlen_q = a.seqlen_q, p.seqlen_k = a.seqlen_k;
  p.heads_q = a.heads_q, p.heads_kv = a.heads_kv;
  p.head_dim = a.head_dim;
  p.head_dim_v = a.head_dim_v == 0 ? a.head_dim : a.head_dim_v;
  p.causal = a.mask == FA3PTX_MASK_CAUSAL;
  p.flags = a.flags;
  p.workspace = a.workspace, p.workspace_size = a.workspace_size;
}

fa3ptx_status check(Problem &p, int32_t mask, float softmax_scale, Depth depth, Error &e) {
  TRY(check_sizes(p, e));
  TRY(check_options(p, mask, softmax_scale, e));
  p.softmax_scale = softmax_scale > 0 ? softmax_scale : 1.0f / std::sqrt(float(p.head_dim));
  Operand list[8];
  const int count = list_operands(p, list);
  TRY(check_dtypes(p, list, count, e));
  for (int i = 0; i < count; i++) TRY(check_tensor(list[i], depth, e));
  if (depth == Depth::SHAPES) return FA3PTX_OK;
  TRY(check_lse(p, e));
  return check_aliases(p, list, count, e);
}

} // namespace

fa3ptx_status validate(const fa3ptx_forward_args *args, Depth depth, Problem &p, Error &e) {
  if (!args) REJECT("args = NULL");
  const bool has_scales = args->struct_size == sizeof *args;
  if (!has_scales && args->struct_size != FA3PTX_FORWARD_ARGS_V1)
    REJECT("struct_size = %zu: must be sizeof(fa3ptx_forward_args), %zu", args->struct_size,
           sizeof *args);
  p.backward = false;
  read(*args, p);
  p.q_scale = p.k_scale = p.v_scale = {};
  if (has_scales) p.q_scale = args->q_scale, p.k_scale = args->k_scale, p.v_scale = args->v_scale;
  TRY(check(p, args->mask, args->softmax_scale, depth, e));
  TRY(check_scale("q_scale", p.q_scale, p, p.seqlen_q, p.heads_q, 16, e));
  TRY(check_scale("k_scale", p.k_scale, p, p.seqlen_k, p.heads_kv, 32, e));
  return check_scale("v_scale", p.v_scale, p, p.seqlen_k, p.heads_kv, 32, e);
}

fa3ptx_status validate(const fa3ptx_backward_args *args, Depth depth, Problem &p, Error &e) {
  if (!args) REJECT("args = NULL");
  if (args->struct_size != sizeof *args)
    REJECT("struct_size = %zu: must be sizeof(fa3ptx_backward_args), %zu", args->struct_size,
           sizeof *args);
  p.backward = true;
  read(*args, p);
  p.dout = args->dout, p.dq = args->dq, p.dk = args->dk, p.dv = args->dv;
  return check(p, args->mask, args->softmax_scale, depth, e);
}

fa3ptx_status validate(const fa3ptx_quantize_args *args, Error &e) {
  if (!args) REJECT("args = NULL");
  if (args->struct_size != sizeof *args)
    REJECT("struct_size = %zu: must be sizeof(fa3ptx_quantize_args), %zu", args->struct_size,
           sizeof *args);
  const fa3ptx_quantize_args &a = *args;
  if (a.batch < 0) REJECT("batch = %d: must not be negative", a.batch);
  if (a.seqlen < 0) REJECT("seqlen = %d: must not be negative", a.seqlen);
  if (a.heads < 1) REJECT("heads = %d: must be at least 1", a.heads);
  if (Wide(a.batch) * a.heads * a.seqlen > INT32_MAX)
    REJECT("batch * heads * seqlen = %d * %d * %d: must be below 2^31", a.batch, a.heads, a.seqlen);
  if (a.head_dim < 16 || a.head_dim > kMaxHeadDim || a.head_dim % 16 != 0)
    REJECT("head_dim = %d: must be a multiple of 16, from 16 to %d", a.head_dim, kMaxHeadDim);
  if (a.src.dtype != FA3PTX_BF16 && a.src.dtype != FA3PTX_FP16)
    REJECT("src.dtype = %d: must be FA3PTX_BF16 or FA3PTX_FP16", a.src.dtype);
  if (a.dst.dtype != FA3PTX_E4M3) REJECT("dst.dtype = %d: must be FA3PTX_E4M3", a.dst.dtype);
  if (a.block != 0 && a.block != 16 && a.block != 32 && a.block != 64 && a.block != 128)
    REJECT("block = %d: must be 0, 16, 32, 64 or 128", a.block);
  if (a.flags & ~uint32_t(FA3PTX_FLAG_HADAMARD))
    REJECT("flags = 0x%x: must be 0 or FA3PTX_FLAG_HADAMARD", a.flags);
  if (a.flags && a.head_dim != 64 && a.head_dim != 128 && a.head_dim != 256)
    REJECT("head_dim = %d: must be 64, 128 or 256 for FA3PTX_FLAG_HADAMARD", a.head_dim);
  const Operand src = {"src", &a.src, a.batch, a.seqlen, a.heads, a.head_dim, false};
  const Operand dst = {"dst", &a.dst, a.batch, a.seqlen, a.heads, a.head_dim, true};
  TRY(check_tensor(src, Depth::ALL, e));
  TRY(check_tensor(dst, Depth::ALL, e));
  if (src.empty()) return FA3PTX_OK;
  if (a.src.data == a.dst.data)
    REJECT("dst.data = %p: an output must not share memory with src", a.dst.data);
  if (!a.scale || uintptr_t(a.scale) % 4 != 0)
    REJECT("scale = %p: must be a multiple of 4 bytes and not NULL", static_cast<void *>(a.scale));
  if (a.scale == a.src.data || a.scale == a.dst.data)
    REJECT("scale = %p: must not share memory with src or dst", static_cast<void *>(a.scale));
  return FA3PTX_OK;
}

fa3ptx_status validate_workspace(const Problem &p, size_t needed, Error &e) {
  if (needed > 0 && !p.workspace)
    return fail(e, FA3PTX_ERROR_WORKSPACE, "workspace = NULL: this call needs %zu bytes", needed);
  if (p.workspace && uintptr_t(p.workspace) % kWorkspaceAlign != 0)
    return fail(e, FA3PTX_ERROR_WORKSPACE, "workspace = %p: must be a multiple of %zu bytes",
                p.workspace, kWorkspaceAlign);
  if (p.workspace_size < needed)
    return fail(e, FA3PTX_ERROR_WORKSPACE, "workspace_size = %zu: this call needs %zu bytes",
                p.workspace_size, needed);
  return FA3PTX_OK;
}

} // namespace fa3ptx
