// problem.h - one attention call, forward or backward, checked and with its defaults filled in.
#pragma once

#include "src/kernels.h"

namespace fa3ptx {

struct Problem {
  bool backward;
  fa3ptx_tensor q, k, v, o, dout, dq, dk, dv; // the last four: backward only
  float *lse;                                 // forward writes it (or NULL), backward reads it
  int32_t batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v;
  float softmax_scale;
  bool causal;
  uint32_t flags;
  void *workspace;
  size_t workspace_size;
  fa3ptx_scale q_scale, k_scale, v_scale; // E4M3 forward; `heads` resolved

  int32_t group() const { return heads_q / heads_kv; } // query heads that share a key/value head
  int64_t rows_q() const { return int64_t(batch) * heads_q * seqlen_q; }
  int64_t rows_k() const { return int64_t(batch) * heads_kv * seqlen_k; }
  bool has(uint32_t flag) const { return (flags & flag) != 0; }
};

// Bytes of an element; 0 for a value that is no fa3ptx_dtype.
inline int32_t dtype_size(int32_t dtype) {
  return dtype == FA3PTX_BF16 || dtype == FA3PTX_FP16 ? 2 : dtype == FA3PTX_E4M3 ? 1 : 0;
}

} // namespace fa3ptx
