// ref_cpu.h - attention on the CPU, forward and backward: what every kernel is measured against.
//
// One routine serves two purposes.  In double and without rounding it is the reference (REF).  In
// float, with P = softmax(S), O, dS and the gradients rounded to the storage type as they arise, it
// is what can be asked of a kernel of that type (LOW): its distance from REF sets the tolerance.
#pragma once
#include <vector>

#include "include/fa3ptx.h"

// One head: dense rows.  k, v: (seqlen_k, head_dim) and (seqlen_k, head_dim_v).
struct Head {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  const float *dout = nullptr; // (seqlen_q, head_dim_v); backward only
  int seqlen_q = 0, seqlen_k = 0, head_dim = 0, head_dim_v = 0;
  double softmax_scale = 1;
  bool causal = false;

  // Query row i sees the keys [0, visible(i)).
  int visible(int i) const {
    if (!causal) return seqlen_k;
    const long last = long(i) + seqlen_k - seqlen_q;
    return last < 0 ? 0 : last >= seqlen_k ? seqlen_k : int(last) + 1;
  }
};

// Rows [first_row, end_row) of O and LSE.  o: (end_row - first_row, head_dim_v).
// rounding: FA3PTX_DTYPE_NONE for REF, the storage type for LOW.
template <class Real>
void head_forward(const Head &head, fa3ptx_dtype rounding, int first_row, int end_row, Real *o,
                  Real *lse);

// dq is written; dk and dv are added to, so that the query heads of a group can share them.
// They are not rounded to the storage type here: the caller does that once the group is summed.
template <class Real>
void head_backward(const Head &head, fa3ptx_dtype rounding, Real *dq, Real *dk, Real *dv);
