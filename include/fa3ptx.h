/* fa3ptx.h - FlashAttention-3 for NVIDIA Hopper (sm_90a) behind a C ABI.
 *
 * The maths (FlashAttention-3, arXiv 2407.08608), independently for every batch entry and head:
 *     S = softmax_scale * Q K^T        P = softmax(S) by rows        O = P V
 *     LSE_i = log(sum_j exp(S_ij))     natural logarithm, fp32
 * and, given dO = d(loss)/dO:
 *     dV = P^T dO    dP = dO V^T    dS = P o (dP - rowsum(dO o O))
 *     dQ = softmax_scale * dS K        dK = softmax_scale * dS^T Q
 *
 * Every call validates its arguments on the host, then only enqueues work on the caller's stream in
 * the current CUDA context: it allocates nothing, synchronises nothing, prints nothing, and can be
 * captured into a CUDA graph.  A call that returns anything but FA3PTX_OK has launched nothing and
 * touched no output; fa3ptx_last_error() then holds a sentence that names the argument, its value
 * and the rule.  All functions are thread-safe.  No other header is needed; link with -lfa3ptx.
 * The driver, libcuda.so.1, is opened by the first call that needs it; environment variable
 * FA3PTX_LIBCUDA names another file.
 */
#ifndef FA3PTX_H
#define FA3PTX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define FA3PTX_API
#else
#define FA3PTX_API __attribute__((visibility("default")))
#endif

/* major * 10000 + minor * 100 + patch */
#define FA3PTX_VERSION 100

struct CUstream_st; /* CUstream and cudaStream_t are both pointers to this */

typedef enum fa3ptx_status {
  FA3PTX_OK = 0,
  FA3PTX_ERROR_INVALID_ARGUMENT = 1, /* an argument breaks a rule stated in this header          */
  FA3PTX_ERROR_UNSUPPORTED = 2,      /* well formed, but this build has no kernel for it         */
  FA3PTX_ERROR_WORKSPACE = 3,        /* workspace missing, too small or misaligned               */
  FA3PTX_ERROR_NO_DRIVER = 4,        /* libcuda could not be opened, or has no usable device     */
  FA3PTX_ERROR_NO_CONTEXT = 5,       /* no CUDA context is current on the calling thread         */
  FA3PTX_ERROR_WRONG_DEVICE = 6,     /* the current device is not compute capability 9.0         */
  FA3PTX_ERROR_DRIVER = 7            /* a CUDA driver call failed; the sentence has its name     */
} fa3ptx_status;

typedef enum fa3ptx_dtype {
  FA3PTX_DTYPE_NONE = 0, /* what a zero-filled struct holds: always rejected */
  FA3PTX_BF16 = 1,
  FA3PTX_FP16 = 2,
  FA3PTX_E4M3 = 3 /* FP8 inputs of the forward call */
} fa3ptx_dtype;

typedef enum fa3ptx_mask {
  FA3PTX_MASK_NONE = 0,
  /* Bottom-right aligned: query i sees key j when j <= i + seqlen_k - seqlen_q. */
  FA3PTX_MASK_CAUSAL = 1
} fa3ptx_mask;

/* Bits of the `flags` fields. */
enum {
  /* Serve the call with the plain reference kernels (no tensor core): an oracle for tests. */
  FA3PTX_FLAG_REFERENCE = 1u << 0,
  /* Backward: the same bits in every run.  (The forward always is deterministic.) */
  FA3PTX_FLAG_DETERMINISTIC = 1u << 1,
  /* Forward on E4M3: sum P V over long rows in fp32 outside of the tensor cores, whose own FP8 sums
   * keep about 14 bits.  Slower.  Means nothing to the other types, which are summed in fp32. */
  FA3PTX_FLAG_ACCURATE = 1u << 2,
  /* fa3ptx_quantize: rotate every row first (see there). */
  FA3PTX_FLAG_HADAMARD = 1u << 3
};

/* One tensor of shape (batch, seqlen, heads, head_dim), any order in memory: strides are in
 * ELEMENTS, the last dimension is contiguous.  (B,S,H,D), (B,H,S,D), packed QKV and column views of
 * fused buffers are all just strides.
 *   data     device pointer, a multiple of 16 bytes; may be NULL only where the tensor is empty
 *   strides  16 bytes * n, 0 <= stride; the stride of an axis of extent 1 is ignored.  Inputs may
 *            overlap themselves (stride 0 broadcasts); outputs must not.                         */
typedef struct fa3ptx_tensor {
  void *data;
  int64_t stride_batch;
  int64_t stride_seq;
  int64_t stride_head;
  int32_t dtype; /* fa3ptx_dtype */
  int32_t reserved; /* 0 */
} fa3ptx_tensor;

/* Scales of an E4M3 tensor of H heads: an element is its stored value times the fp32 number at
 *     data[b * stride_batch + (h / (H / heads)) * stride_head + (row / block) * stride_block]
 *   data     device pointer, a multiple of 4 bytes, to positive, finite, normal numbers; NULL: 1
 *   strides  in floats, >= 0; 0 shares.  All 0: one scale per tensor
 *   block    rows of a block: a power of two, for q at least 16, for k and v at least 32; 0: one
 *            scale for all rows of a head
 *   heads    scales along the head axis, a divisor of H; 0 means heads_kv, for q too             */
typedef struct fa3ptx_scale {
  const float *data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_block;
  int32_t block;
  int32_t heads;
} fa3ptx_scale;

/* Forward.  A zero-filled struct plus the fields you need is a valid way to start.
 *   q    (batch, seqlen_q, heads_q,  head_dim)      k (batch, seqlen_k, heads_kv, head_dim)
 *   v    (batch, seqlen_k, heads_kv, head_dim_v)    o (batch, seqlen_q, heads_q,  head_dim_v)
 *   lse  fp32, contiguous (batch, heads_q, seqlen_q), 4-byte aligned; NULL: not wanted
 * Query head h reads key/value head h / (heads_q / heads_kv).
 * A row that sees no key gets O = 0 and LSE = -infinity.
 * Exponents are fp32: a row with scores, softmax_scale * (q . k), beyond +-1e8 may become NaN.
 * q, k and v of E4M3: o is BF16 or FP16; head_dim is a multiple of 16 and head_dim_v the same; the
 * scales below count.  The other types have no scales: their data pointers must be NULL.        */
typedef struct fa3ptx_forward_args {
  size_t struct_size; /* sizeof(fa3ptx_forward_args), or FA3PTX_FORWARD_ARGS_V1: without scales */
  fa3ptx_tensor q, k, v, o;
  float *lse;
  int32_t batch;        /* >= 0 */
  int32_t seqlen_q;     /* >= 0 */
  int32_t seqlen_k;     /* >= 0 */
  int32_t heads_q;      /* >= 1, a multiple of heads_kv */
  int32_t heads_kv;     /* >= 1 */
  int32_t head_dim;     /* 8, 16, ... 256 */
  int32_t head_dim_v;   /* 8, 16, ... 256; 0 means head_dim */
  float softmax_scale;  /* > 0, at most 2e38; 0 means 1/sqrt(head_dim) */
  int32_t mask;         /* fa3ptx_mask */
  uint32_t flags;
  void *workspace;      /* device memory, 256-byte aligned; may be NULL where the size query is 0 */
  size_t workspace_size; /* bytes */
  fa3ptx_scale q_scale, k_scale, v_scale;
} fa3ptx_forward_args;
#define FA3PTX_FORWARD_ARGS_V1 offsetof(fa3ptx_forward_args, q_scale)

/* Backward.  q, k, v, o, lse as the forward call saw and left them; dout like o, dq like q, dk like
 * k, dv like v.  All tensors have one dtype (BF16 or FP16).  Gradients are overwritten, not added
 * to.  Rows that saw no key and keys that no row saw get zero gradients.                        */
typedef struct fa3ptx_backward_args {
  size_t struct_size; /* sizeof(fa3ptx_backward_args) */
  fa3ptx_tensor q, k, v, o, dout, dq, dk, dv;
  const float *lse;
  int32_t batch;
  int32_t seqlen_q;
  int32_t seqlen_k;
  int32_t heads_q;
  int32_t heads_kv;
  int32_t head_dim;
  int32_t head_dim_v;
  float softmax_scale;
  int32_t mask;
  uint32_t flags;
  void *workspace; /* at least fa3ptx_backward_workspace_size bytes; contents need not be cleared */
  size_t workspace_size;
} fa3ptx_backward_args;

/* What a problem gets: filled by fa3ptx_explain_*. */
typedef struct fa3ptx_plan_info {
  size_t struct_size;   /* sizeof(fa3ptx_plan_info), set by the caller */
  char kernel[64];      /* name of the main kernel, a row of src/kernels.def */
  int32_t tile_m;       /* query rows a CTA works on at a time */
  int32_t tile_n;       /* key rows a step of its main loop covers */
  int32_t stages;       /* depth of its key/value ring */
  int32_t threads;      /* per CTA */
  int32_t grid[3];      /* CTAs */
  int32_t cluster;      /* CTAs per cluster */
  int32_t launches;     /* kernels the call enqueues */
  size_t shared_memory; /* bytes per CTA */
  size_t workspace;     /* bytes the call needs */
  char text[512];       /* the same as sentences, with the reason for the choice */
} fa3ptx_plan_info;

/* Enqueue on `stream` (NULL: the legacy default stream) in the current context. */
FA3PTX_API fa3ptx_status fa3ptx_forward(const fa3ptx_forward_args *args,
                                        struct CUstream_st *stream);
FA3PTX_API fa3ptx_status fa3ptx_backward(const fa3ptx_backward_args *args,
                                         struct CUstream_st *stream);

/* Bytes of workspace the call needs, linear in seqlen.  Shapes, dtypes, mask, flags and scales are
 * read and checked; pointers and strides of tensors are not.  The size may depend on the number of
 * multiprocessors: ask with the call's context current, without one the answer is for 132. */
FA3PTX_API fa3ptx_status fa3ptx_forward_workspace_size(const fa3ptx_forward_args *args,
                                                       size_t *bytes);
FA3PTX_API fa3ptx_status fa3ptx_backward_workspace_size(const fa3ptx_backward_args *args,
                                                        size_t *bytes);

/* BF16 or FP16 to E4M3 for the forward call: scale = largest magnitude of the block / 448 (that of
 * a block of zeros: 2^-100 / 448), and dst = src * (1 / scale), rounded to nearest.
 *   src, dst  (batch, seqlen, heads, head_dim); dst.dtype E4M3; head_dim a multiple of 16, to 256
 *   scale     fp32, dense (batch, heads, ceil(seqlen / block)); with block 0: (batch, heads)
 *   block     rows that share a scale: 16, 32, 64 or 128; 0: all rows of a head
 *   flags     0 or FA3PTX_FLAG_HADAMARD: first every row x becomes H (s o x) / sqrt(head_dim), H
 *             the Hadamard matrix, s random signs drawn from `seed`; head_dim 64, 128 or 256.  The
 *             map is orthogonal: Q and K rotated with one seed have the scores they had, and
 *             outliers are spread over all columns ("incoherent processing").
 * fa3ptx_quantized gives the scales in the form the forward call takes.                         */
typedef struct fa3ptx_quantize_args {
  size_t struct_size; /* sizeof(fa3ptx_quantize_args) */
  fa3ptx_tensor src, dst;
  float *scale;
  int32_t batch;    /* >= 0 */
  int32_t seqlen;   /* >= 0 */
  int32_t heads;    /* >= 1 */
  int32_t head_dim;
  int32_t block;
  uint32_t flags;
  uint64_t seed;
} fa3ptx_quantize_args;
FA3PTX_API fa3ptx_status fa3ptx_quantize(const fa3ptx_quantize_args *args,
                                         struct CUstream_st *stream);

/* Which kernel, tile and grid a problem gets.  Same reading of args as the workspace queries. */
FA3PTX_API fa3ptx_status fa3ptx_explain_forward(const fa3ptx_forward_args *args,
                                                fa3ptx_plan_info *info);
FA3PTX_API fa3ptx_status fa3ptx_explain_backward(const fa3ptx_backward_args *args,
                                                 fa3ptx_plan_info *info);

/* Load every kernel into the current context now, so that no later call pays for it, and that a
 * call captured into a graph only enqueues. */
FA3PTX_API fa3ptx_status fa3ptx_preload(void);

FA3PTX_API const char *fa3ptx_status_string(fa3ptx_status status);

/* The sentence for the last failed call of this thread; "" if none failed yet.  Valid until the
 * next fa3ptx call of the thread. */
FA3PTX_API const char *fa3ptx_last_error(void);

/* FA3PTX_VERSION of the library that is linked. */
FA3PTX_API int fa3ptx_version(void);

/* Views of the two common dense layouts: contiguous (B,S,H,D) and contiguous (B,H,S,D). */
static inline fa3ptx_tensor fa3ptx_bshd(const void *data, fa3ptx_dtype dtype, int64_t seqlen,
                                        int64_t heads, int64_t head_dim) {
  fa3ptx_tensor t = {(void *)(uintptr_t)data, seqlen * heads * head_dim, heads * head_dim, head_dim,
                     (int32_t)dtype, 0};
  return t;
}
static inline fa3ptx_tensor fa3ptx_bhsd(const void *data, fa3ptx_dtype dtype, int64_t seqlen,
                                        int64_t heads, int64_t head_dim) {
  fa3ptx_tensor t = {(void *)(uintptr_t)data, seqlen * heads * head_dim, head_dim,
                     seqlen * head_dim, (int32_t)dtype, 0};
  return t;
}

/* The scales that fa3ptx_quantize leaves. */
static inline fa3ptx_scale fa3ptx_quantized(const fa3ptx_quantize_args *a) {
  int64_t blocks = a->block > 0 ? ((int64_t)a->seqlen + a->block - 1) / a->block : 1;
  fa3ptx_scale s = {a->scale, a->heads * blocks, blocks, a->block > 0 ? 1 : 0, a->block, a->heads};
  return s;
}

#ifdef __cplusplus
}
#endif
#endif /* FA3PTX_H */
