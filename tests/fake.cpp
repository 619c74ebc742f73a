// fake.cpp - see fake.h.  fp32, one row at a time, P and dS rounded to the storage type: written
// apart from ref_cpu.cpp, so that each is a check of the other.
#include "fake.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "storage.h"

uint64_t FakeMachine::allocate(size_t bytes) {
  return reinterpret_cast<uint64_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
}
void FakeMachine::release(uint64_t address) { std::free(reinterpret_cast<void *>(address)); }
void FakeMachine::upload(uint64_t to, const void *from, size_t bytes) {
  std::memcpy(reinterpret_cast<void *>(to), from, bytes);
}
void FakeMachine::download(void *to, uint64_t from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
}

fa3ptx_status FakeMachine::workspace_size(const fa3ptx_forward_args &, size_t &bytes) {
  bytes = 256;
  return FA3PTX_OK;
}
fa3ptx_status FakeMachine::workspace_size(const fa3ptx_backward_args &, size_t &bytes) {
  bytes = 256;
  return FA3PTX_OK;
}

namespace {

uint16_t *element(const fa3ptx_tensor &t, int b, int h, int s) {
  return static_cast<uint16_t *>(t.data) + b * t.stride_batch + h * t.stride_head +
         s * t.stride_seq;
}

std::vector<float> load(const fa3ptx_tensor &t, int b, int h, int s, int n) {
  std::vector<float> row(static_cast<size_t>(n));
  const uint16_t *from = element(t, b, h, s);
  for (int c = 0; c < n; ++c) row[c] = from_storage(fa3ptx_dtype(t.dtype), from[c]);
  return row;
}

void store(const fa3ptx_tensor &t, int b, int h, int s, const std::vector<float> &row) {
  uint16_t *to = element(t, b, h, s);
  for (size_t c = 0; c < row.size(); ++c) to[c] = to_storage(fa3ptx_dtype(t.dtype), row[c]);
}

float dot(const std::vector<float> &a, const std::vector<float> &b) {
  float sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

void add(std::vector<float> &to, float weight, const std::vector<float> &x) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += weight * x[c];
}

// The part of a call's arguments that forward and backward have in common, faults included.
template <class Args>
struct Rows {
  const Args &a;
  Fault fault;

  int dim_v() const { return a.head_dim_v ? a.head_dim_v : a.head_dim; }
  fa3ptx_dtype dtype() const { return fa3ptx_dtype(a.q.dtype); }

  float scale() const {
    const float s = a.softmax_scale ? a.softmax_scale : 1 / std::sqrt(float(a.head_dim));
    return fault == Fault::scale_error ? s * 1.01f : s;
  }

  int kv_head(int h) const {
    if (fault == Fault::swapped_heads && a.heads_q > 1 && h < 2) h = 1 - h;
    return h / (a.heads_q / a.heads_kv);
  }

  int visible(int i) const {
    if (a.mask != FA3PTX_MASK_CAUSAL) return a.seqlen_k;
    const int end = i + a.seqlen_k - a.seqlen_q + 1 + (fault == Fault::mask_off_by_one);
    return end < 0 ? 0 : end > a.seqlen_k ? a.seqlen_k : end;
  }

  // How often key j counts in a row of n visible keys.
  float weight(int j, int n) const {
    if (fault == Fault::dropped_key && j == n - 1) return 0;
    if (fault == Fault::doubled_key && j == 0) return 2;
    if (fault == Fault::lost_tile && j >= 64 && j < 128) return 0;
    return 1;
  }

  std::vector<float> scores(int b, int h, int i) const {
    std::vector<float> s;
    const std::vector<float> q = load(a.q, b, h, i, a.head_dim);
    for (int j = 0; j < visible(i); ++j)
      s.push_back(scale() * dot(q, load(a.k, b, kv_head(h), j, a.head_dim)));
    return s;
  }
};

template <class Args>
void spoil(const Args &a, Fault fault, const fa3ptx_tensor &out, int dim) {
  if (a.batch == 0 || a.seqlen_q == 0) return;
  if (fault == Fault::guard_overwrite)
    element(out, a.batch - 1, a.heads_q - 1, a.seqlen_q - 1)[dim] = 0x1234;
  if (fault == Fault::stale_workspace)
    *element(out, 0, 0, 0) |= *static_cast<const uint16_t *>(a.workspace);
  if (fault == Fault::changed_input) element(a.q, 0, 0, 0)[0] ^= 1;
}

} // namespace

fa3ptx_status FakeMachine::forward(const fa3ptx_forward_args &a) {
  const Rows<fa3ptx_forward_args> rows{a, fault_};
  const bool skip_last = fault_ == Fault::unwritten_row;
  for (int b = 0; b < a.batch; ++b)
    for (int h = 0; h < a.heads_q; ++h)
      for (int i = 0; i < a.seqlen_q - skip_last; ++i) {
        const std::vector<float> s = rows.scores(b, h, i);
        const int n = int(s.size());
        float top = -std::numeric_limits<float>::infinity(), sum = 0;
        for (float x : s) top = std::max(top, x);
        std::vector<float> o(size_t(rows.dim_v()), 0.f);
        for (int j = 0; j < n; ++j) {
          const float p = rows.weight(j, n) * std::exp(s[j] - top);
          sum += p;
          add(o, round_to(rows.dtype(), p), load(a.v, b, rows.kv_head(h), j, rows.dim_v()));
        }
        if (fault_ == Fault::stale_nan)
          add(o, 0.f, load(a.v, b, rows.kv_head(h), a.seqlen_k, rows.dim_v()));
        for (float &x : o) x = sum > 0 ? x / sum : 0.f;
        store(a.o, b, h, i, o);
        const float lse = top + std::log(sum), unit = fault_ == Fault::lse_base_2 ? 0.6931f : 1.f;
        if (a.lse) a.lse[(size_t(b) * a.heads_q + h) * a.seqlen_q + i] = n ? lse / unit : top;
      }
  spoil(a, fault_, a.o, rows.dim_v());
  if (fault_ == Fault::unlike_bits) *element(a.o, 0, 0, 0) ^= ++calls_ & 1;
  return FA3PTX_OK;
}

fa3ptx_status FakeMachine::backward(const fa3ptx_backward_args &a) {
  const Rows<fa3ptx_backward_args> rows{a, fault_};
  const bool skip_last = fault_ == Fault::unwritten_row;
  const int group = a.heads_q / a.heads_kv;
  using Matrix = std::vector<std::vector<float>>;
  for (int b = 0; b < a.batch; ++b)
    for (int kv = 0; kv < a.heads_kv; ++kv) {
      Matrix dk(a.seqlen_k, std::vector<float>(size_t(a.head_dim)));
      Matrix dv(a.seqlen_k, std::vector<float>(size_t(rows.dim_v())));
      for (int h = kv * group; h < (kv + 1) * group; ++h)
        for (int i = 0; i < a.seqlen_q; ++i) {
          const std::vector<float> s = rows.scores(b, h, i), q = load(a.q, b, h, i, a.head_dim);
          const std::vector<float> dout = load(a.dout, b, h, i, rows.dim_v());
          const float delta = dot(dout, load(a.o, b, h, i, rows.dim_v()));
          const float lse = a.lse[(size_t(b) * a.heads_q + h) * a.seqlen_q + i];
          const int n = int(s.size()), from = rows.kv_head(h);
          std::vector<float> dq(size_t(a.head_dim), 0.f);
          for (int j = 0; j < n; ++j) {
            const float p = rows.weight(j, n) * std::exp(s[j] - lse);
            const float dp = dot(dout, load(a.v, b, from, j, rows.dim_v()));
            const float ds = round_to(rows.dtype(), p * (dp - delta)) * rows.scale();
            add(dq, ds, load(a.k, b, from, j, a.head_dim));
            add(dk[j], ds, q);
            add(dv[j], round_to(rows.dtype(), p), dout);
          }
          if (fault_ == Fault::stale_nan) add(dq, 0.f, load(a.k, b, from, a.seqlen_k, a.head_dim));
          store(a.dq, b, h, i, dq);
        }
      for (int j = 0; j < a.seqlen_k - skip_last; ++j) {
        store(a.dk, b, kv, j, dk[j]);
        store(a.dv, b, kv, j, dv[j]);
      }
    }
  spoil(a, fault_, a.dq, a.head_dim);
  if (fault_ == Fault::unlike_bits) *element(a.dq, 0, 0, 0) ^= ++calls_ & 1;
  return FA3PTX_OK;
}
