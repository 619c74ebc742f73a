// ref_cpu.cpp - see ref_cpu.h.  Works on blocks of query rows, so memory is linear in seqlen.
#include "ref_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "storage.h"

namespace {

constexpr int ROWS = 32; // query rows of a block
constexpr int PAD = 16;  // rows and columns are padded with zeros to a multiple of this

int padded(int n) { return (n + PAD - 1) / PAD * PAD; }

template <class Real>
struct Matrix {
  int rows, columns; // padded
  std::vector<Real> data;

  Matrix(int r, int c) : rows(padded(r)), columns(padded(c)), data(size_t(rows) * columns) {}
  Real *row(int r) { return data.data() + size_t(r) * columns; }
  void clear() { std::fill(data.begin(), data.end(), Real(0)); }
};

// c += a b over `rows` x `columns`, `depth` terms each; element (i, k) of a is a[i * si + k * sk],
// so that a transposed operand is only another pair of strides.  All counts are multiples of 4
// (rows) and PAD (columns).  Four rows by PAD columns are summed in registers.
template <class Real>
__attribute__((always_inline)) inline void multiply(Real *c, int ldc, const Real *a, size_t si,
                                                    size_t sk, const Real *b, int ldb, int rows,
                                                    int columns, int depth) {
  typedef Real Vec __attribute__((vector_size(PAD * sizeof(Real)), aligned(sizeof(Real))));
  for (int i = 0; i < rows; i += 4) {
    const Real *a0 = a + i * si;
    for (int j = 0; j < columns; j += PAD) {
      Vec s0 = {}, s1 = {}, s2 = {}, s3 = {};
      for (int k = 0; k < depth; ++k) {
        const Vec x = *(const Vec *)(b + size_t(k) * ldb + j);
        const Real *w = a0 + k * sk;
        s0 += w[0] * x;
        s1 += w[si] * x;
        s2 += w[2 * si] * x;
        s3 += w[3 * si] * x;
      }
      Real *out = c + size_t(i) * ldc + j;
      *(Vec *)out += s0;
      *(Vec *)(out + ldc) += s1;
      *(Vec *)(out + 2 * ldc) += s2;
      *(Vec *)(out + 3 * ldc) += s3;
    }
  }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define WIDEST_VECTORS
#endif

WIDEST_VECTORS void matmul(double *c, int ldc, const double *a, size_t si, size_t sk,
                           const double *b, int ldb, int rows, int columns, int depth) {
  multiply(c, ldc, a, si, sk, b, ldb, rows, columns, depth);
}

WIDEST_VECTORS void matmul(float *c, int ldc, const float *a, size_t si, size_t sk, const float *b,
                           int ldb, int rows, int columns, int depth) {
  multiply(c, ldc, a, si, sk, b, ldb, rows, columns, depth);
}

template <class Real>
Matrix<Real> dense(const float *x, int rows, int columns) {
  Matrix<Real> m(rows, columns);
  for (int r = 0; r < rows; ++r)
    std::copy(x + size_t(r) * columns, x + size_t(r + 1) * columns, m.row(r));
  return m;
}

template <class Real>
Matrix<Real> transposed(const float *x, int rows, int columns) {
  Matrix<Real> m(columns, rows);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) m.row(c)[r] = x[size_t(r) * columns + c];
  return m;
}

template <class Real>
void round_row(fa3ptx_dtype rounding, Real *x, int n) {
  if (rounding == FA3PTX_DTYPE_NONE) return;
  for (int i = 0; i < n; ++i) x[i] = round_to(rounding, float(x[i]));
}

// The state of one block of query rows, shared by forward and backward.
template <class Real>
struct Block {
  const Head &head;
  fa3ptx_dtype rounding;
  Matrix<Real> key_t, value;      // K transposed (head_dim, seqlen_k) and V
  Matrix<Real> query, p, o;       // of the block's rows
  std::vector<Real> maximum, sum; // of the block's rows

  Block(const Head &h, fa3ptx_dtype r)
      : head(h),
        rounding(r),
        key_t(transposed<Real>(h.k, h.seqlen_k, h.head_dim)),
        value(dense<Real>(h.v, h.seqlen_k, h.head_dim_v)),
        query(ROWS, h.head_dim),
        p(ROWS, h.seqlen_k),
        o(ROWS, h.head_dim_v),
        maximum(ROWS),
        sum(ROWS) {}

  // Keys that any row of the block sees, padded: the extent of every product over keys.
  int keys(int end) const { return padded(head.visible(end - 1)); }

  // p = softmax(S), zero where the mask hides the key; o = p V.  Both rounded as they arise.
  void run(int first, int end) {
    query.clear();
    p.clear();
    o.clear();
    for (int i = first; i < end; ++i)
      std::copy(head.q + size_t(i) * head.head_dim, head.q + size_t(i + 1) * head.head_dim,
                query.row(i - first));
    const int n = keys(end), rows = (end - first + 3) / 4 * 4;
    matmul(p.row(0), p.columns, query.row(0), query.columns, 1, key_t.row(0), key_t.columns, rows,
           n, head.head_dim);
    for (int i = first; i < end; ++i) softmax(p.row(i - first), i - first, head.visible(i));

    matmul(o.row(0), o.columns, p.row(0), p.columns, 1, value.row(0), value.columns, rows,
           o.columns, n);
    for (int i = first; i < end; ++i) round_row(rounding, o.row(i - first), head.head_dim_v);
  }

  void softmax(Real *s, int r, int visible) {
    Real top = -std::numeric_limits<Real>::infinity(), total = 0;
    for (int j = 0; j < visible; ++j) {
      s[j] *= Real(head.softmax_scale);
      top = std::max(top, s[j]);
    }
    for (int j = 0; j < visible; ++j) {
      s[j] = std::exp(s[j] - top);
      total += s[j];
    }
    for (int j = 0; j < visible; ++j) s[j] /= total;
    std::fill(s + visible, s + p.columns, Real(0));
    round_row(rounding, s, visible);
    maximum[r] = top;
    sum[r] = total;
  }
};

} // namespace

template <class Real>
void head_forward(const Head &head, fa3ptx_dtype rounding, int first_row, int end_row, Real *o,
                  Real *lse) {
  Block<Real> block(head, rounding);
  for (int first = first_row; first < end_row; first += ROWS) {
    const int end = std::min(first + ROWS, end_row);
    block.run(first, end);
    for (int i = first; i < end; ++i) {
      const Real *out = block.o.row(i - first);
      std::copy(out, out + head.head_dim_v, o + size_t(i - first_row) * head.head_dim_v);
      if (lse) lse[i - first_row] = block.maximum[i - first] + std::log(block.sum[i - first]);
    }
  }
}

template <class Real>
void head_backward(const Head &head, fa3ptx_dtype rounding, Real *dq, Real *dk, Real *dv) {
  Block<Real> block(head, rounding);
  Matrix<Real> key = dense<Real>(head.k, head.seqlen_k, head.head_dim);
  Matrix<Real> value_t = transposed<Real>(head.v, head.seqlen_k, head.head_dim_v);
  Matrix<Real> dkey(head.seqlen_k, head.head_dim), dvalue(head.seqlen_k, head.head_dim_v);
  Matrix<Real> dout(ROWS, head.head_dim_v), ds(ROWS, head.seqlen_k), dquery(ROWS, head.head_dim);
  const Real scale = Real(head.softmax_scale);

  for (int first = 0; first < head.seqlen_q; first += ROWS) {
    const int end = std::min(first + ROWS, head.seqlen_q);
    const int n = block.keys(end), rows = (end - first + 3) / 4 * 4;
    block.run(first, end);
    dout.clear();
    ds.clear();
    dquery.clear();
    for (int i = first; i < end; ++i)
      std::copy(head.dout + size_t(i) * head.head_dim_v,
                head.dout + size_t(i + 1) * head.head_dim_v, dout.row(i - first));

    matmul(ds.row(0), ds.columns, dout.row(0), dout.columns, 1, value_t.row(0), value_t.columns,
           rows, n, head.head_dim_v); // dP = dO V^T
    for (int r = 0; r < end - first; ++r) {
      Real delta = 0;
      for (int c = 0; c < head.head_dim_v; ++c) delta += dout.row(r)[c] * block.o.row(r)[c];
      Real *s = ds.row(r);
      for (int j = 0; j < n; ++j) s[j] = block.p.row(r)[j] * (s[j] - delta);
      round_row(rounding, s, n);
    }
    matmul(dvalue.row(0), dvalue.columns, block.p.row(0), 1, block.p.columns, dout.row(0),
           dout.columns, n, dvalue.columns, end - first); // dV += P^T dO
    matmul(dkey.row(0), dkey.columns, ds.row(0), 1, ds.columns, block.query.row(0),
           block.query.columns, n, dkey.columns, end - first); // dK += dS^T Q
    matmul(dquery.row(0), dquery.columns, ds.row(0), ds.columns, 1, key.row(0), key.columns, rows,
           dquery.columns, n); // dQ = dS K
    for (int i = first; i < end; ++i)
      for (int c = 0; c < head.head_dim; ++c)
        dq[size_t(i) * head.head_dim + c] = scale * dquery.row(i - first)[c];
  }
  for (int j = 0; j < head.seqlen_k; ++j) {
    for (int c = 0; c < head.head_dim; ++c)
      dk[size_t(j) * head.head_dim + c] += scale * dkey.row(j)[c];
    for (int c = 0; c < head.head_dim_v; ++c)
      dv[size_t(j) * head.head_dim_v + c] += dvalue.row(j)[c];
  }
}

template void head_forward(const Head &, fa3ptx_dtype, int, int, double *, double *);
template void head_forward(const Head &, fa3ptx_dtype, int, int, float *, float *);
template void head_backward(const Head &, fa3ptx_dtype, double *, double *, double *);
template void head_backward(const Head &, fa3ptx_dtype, float *, float *, float *);
