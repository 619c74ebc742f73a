// harness_problem.cpp - names, argument structs and seeded inputs of problems.
#include <cmath>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

#include "harness.h"
#include "storage.h"

double Problem::scale() const {
  return softmax_scale != 0 ? double(softmax_scale) : 1 / std::sqrt(double(head_dim));
}

int Problem::visible(int row) const {
  if (!causal) return seqlen_k;
  const int64_t end = int64_t(row) + seqlen_k - seqlen_q + 1;
  return end < 0 ? 0 : end > seqlen_k ? seqlen_k : int(end);
}

std::string Problem::name() const {
  static const char *const layouts[] = {"bshd", "bhsd", "packed", "fused", "broadcast"};
  static const char *const fills[] = {"normal",     "outliers", "constant", "big_scores",
                                      "equal_keys", "hot_keys", "rising", "opposed"};
  char text[256];
  std::snprintf(text, sizeof text, "b%d s%dx%d h%d", batch, seqlen_q, seqlen_k, heads_q);
  std::string name = text;
  if (heads_kv != heads_q) name += "/" + std::to_string(heads_kv);
  name += " d" + std::to_string(head_dim);
  if (dim_v() != head_dim) name += "/" + std::to_string(dim_v());
  name += std::string(" ") + dtype_name(dtype);
  if (causal) name += " causal";
  if (softmax_scale != 0) {
    std::snprintf(text, sizeof text, " scale%g", double(softmax_scale));
    name += text;
  }
  name += std::string(" ") + layouts[int(layout)] + " " + fills[int(fill)];
  if (!want_lse) name += " nolse";
  if (flags & FA3PTX_FLAG_REFERENCE) name += " reference";
  if (flags & FA3PTX_FLAG_DETERMINISTIC) name += " deterministic";
  return name;
}

double flops(const Problem &p, bool backward) {
  double pairs = double(p.seqlen_q) * p.seqlen_k;
  if (p.causal && p.seqlen_q == p.seqlen_k) pairs /= 2;
  if (p.causal && p.seqlen_q != p.seqlen_k) {
    pairs = 0;
    for (int row = 0; row < p.seqlen_q; ++row) pairs += p.visible(row);
  }
  return (backward ? 2.5 : 1) * 2 * (p.head_dim + p.dim_v()) * pairs * p.batch * p.heads_q;
}

namespace {

template <class Args>
Args shapes(const Problem &p) {
  Args a = {};
  a.struct_size = sizeof a;
  a.batch = p.batch;
  a.seqlen_q = p.seqlen_q;
  a.seqlen_k = p.seqlen_k;
  a.heads_q = p.heads_q;
  a.heads_kv = p.heads_kv;
  a.head_dim = p.head_dim;
  a.head_dim_v = p.head_dim_v;
  a.softmax_scale = p.softmax_scale;
  a.mask = p.causal ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
  a.flags = p.flags;
  a.q.dtype = a.k.dtype = a.v.dtype = p.dtype;
  a.o.dtype = p.dtype == FA3PTX_E4M3 ? FA3PTX_BF16 : p.dtype;
  return a;
}

} // namespace

fa3ptx_forward_args shape_args(const Problem &p) { return shapes<fa3ptx_forward_args>(p); }

fa3ptx_backward_args backward_shape_args(const Problem &p) {
  fa3ptx_backward_args a = shapes<fa3ptx_backward_args>(p);
  a.dout.dtype = a.dq.dtype = a.dk.dtype = a.dv.dtype = p.dtype;
  return a;
}

fa3ptx_plan_info explain(const Problem &p, bool backward) {
  fa3ptx_plan_info info = {};
  info.struct_size = sizeof info;
  const fa3ptx_forward_args forward_args = shape_args(p);
  const fa3ptx_backward_args backward_args = backward_shape_args(p);
  const fa3ptx_status status = backward ? fa3ptx_explain_backward(&backward_args, &info)
                                        : fa3ptx_explain_forward(&forward_args, &info);
  if (status != FA3PTX_OK) throw std::runtime_error(fa3ptx_last_error());
  return info;
}

// ---- Inputs --------------------------------------------------------------------------------

namespace {

// Fills `x` from a function of (batch, head, row, column) called in storage order.
template <class F>
void fill(fa3ptx_dtype dtype, Dense &x, F value) {
  size_t at = 0;
  for (int b = 0; b < x.batch; ++b)
    for (int h = 0; h < x.heads; ++h)
      for (int s = 0; s < x.seqlen; ++s)
        for (int c = 0; c < x.dim; ++c) x.bits[at++] = to_storage(dtype, value(b, h, s, c));
}

uint32_t mix(uint32_t x) { // a fixed scramble of 32 bits
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ x >> 16;
}

float sign_code(int key, int column) { return mix(uint32_t(key) * 256 + column) & 1 ? 1.f : -1.f; }

// The key that query row `row` of head `head` looks for under Fill::hot_keys: by turns the last key
// it may see, the first it may not, one at a multiple of 16 or next to it, and any.
int hot_key(const Problem &p, int head, int row) {
  if (p.seqlen_k == 0) return 0;
  const int visible = p.visible(row);
  const uint32_t random = mix(uint32_t(head) * 0x10001u + row);
  switch ((row + head) % 4) {
    case 0: return visible > 0 ? visible - 1 : 0;
    case 1: return visible < p.seqlen_k ? visible : p.seqlen_k - 1;
    case 2: {
      const int edge = int(random / 4 % (p.seqlen_k / 16 + 1)) * 16 + int(random % 3) - 1;
      return edge < 0 ? 0 : edge >= p.seqlen_k ? p.seqlen_k - 1 : edge;
    }
    default: return int(random % p.seqlen_k);
  }
}

// Scores of hot keys: 64 for the key looked for, at most about 40 for any other, at head_dim >= 64.
// V and dout are quarters and halves up to 2: O is the key's V to the bit, and dP and
// rowsum(dO o O), which are equal in a row with one key, are exact in fp32 in any order of sums.
// So dQ and dK of such a row are zeros, not what rounding leaves of a difference.
void fill_hot_keys(const Problem &p, Values &values) {
  const auto code = [](uint32_t x, int units) {
    return float(int(mix(x) % uint32_t(4 * units + 1)) - 2 * units) / units;
  };
  fill(p.dtype, values.v, [&](int, int, int s, int c) { return code(s * 256 + c, 4); });
  fill(p.dtype, values.dout, [&](int b, int h, int s, int c) {
    return code(((b * 64 + h) * 4096 + s) * 256 + c, 2);
  });
  const float gain = float(64 / (p.scale() * p.head_dim));
  fill(p.dtype, values.k, [](int, int, int s, int c) { return sign_code(s, c); });
  fill(p.dtype, values.q, [&](int, int h, int s, int c) {
    return gain * sign_code(hot_key(p, h, s), c);
  });
}

// Score of key j in query row i: (1 + i % 4) * j / 32, and small noise: up to an eighth per key,
// so that a block of 64 keys brings e^8.
void fill_rising(const Problem &p, Values &values) {
  const float noise = 1.0f / 16;
  const auto steer = [&](Dense &x, auto first) {
    for (int b = 0; b < x.batch; ++b)
      for (int h = 0; h < x.heads; ++h)
        for (int s = 0; s < x.seqlen; ++s)
          for (int c = 0; c < x.dim; ++c) {
            uint16_t &bits = x.bits[x.row(b, h, s) + c];
            const float value = c == 0 ? first(s) : noise * from_storage(p.dtype, bits);
            bits = to_storage(p.dtype, value);
          }
  };
  steer(values.q, [](int row) { return float(1 + row % 4); });
  steer(values.k, [&](int key) { return float(key / 32.0 / p.scale()); });
}

// What stride 0 will make of the tensors: copies of the first row, head or batch entry.
void repeat(Dense &x, bool over_batch, bool over_heads, bool over_rows) {
  for (int b = 0; b < x.batch; ++b)
    for (int h = 0; h < x.heads; ++h)
      for (int s = 0; s < x.seqlen; ++s) {
        const size_t from = x.row(over_batch ? 0 : b, over_heads ? 0 : h, over_rows ? 0 : s);
        std::copy_n(x.bits.begin() + from, x.dim, x.bits.begin() + x.row(b, h, s));
      }
}

} // namespace

uint64_t base_seed() {
  const char *text = std::getenv("FA3PTX_TEST_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

Values make_values(const Problem &p) {
  Values v;
  v.q = Dense(p.batch, p.heads_q, p.seqlen_q, p.head_dim);
  v.k = Dense(p.batch, p.heads_kv, p.seqlen_k, p.head_dim);
  v.v = Dense(p.batch, p.heads_kv, p.seqlen_k, p.dim_v());
  v.dout = Dense(p.batch, p.heads_q, p.seqlen_q, p.dim_v());

  std::mt19937_64 engine(p.seed + 0x9E3779B97F4A7C15u * base_seed());
  std::normal_distribution<float> gauss;
  std::uniform_real_distribution<float> uniform;
  const auto normal = [&](int, int, int, int) { return gauss(engine); };
  const auto wide = [&](int, int, int, int) { return 8 * gauss(engine); };
  const auto one = [](int, int, int, int) { return 1.0f; };
  const auto zero = [](int, int, int, int) { return 0.0f; };
  const auto outliers = [&](int, int, int, int) {
    const float x = gauss(engine);
    return uniform(engine) < 0.02f ? x + 10 * gauss(engine) : x;
  };

  for (Dense *x : {&v.q, &v.k, &v.v, &v.dout}) {
    const bool scored = x == &v.q || x == &v.k;
    if (p.fill == Fill::outliers) fill(p.dtype, *x, outliers);
    else if (p.fill == Fill::constant) fill(p.dtype, *x, one);
    else if (p.fill == Fill::big_scores && scored) fill(p.dtype, *x, wide);
    else if (p.fill == Fill::opposed && x != &v.dout) fill(p.dtype, *x, zero);
    else fill(p.dtype, *x, normal);
  }
  if (p.fill == Fill::equal_keys) {
    fill(p.dtype, v.k, zero);
    fill(p.dtype, v.v, [](int, int, int s, int c) { return float(s >> (c % 4) * 4 & 15); });
  }
  if (p.fill == Fill::hot_keys) fill_hot_keys(p, v);
  if (p.fill == Fill::rising) fill_rising(p, v);
  if (p.fill == Fill::opposed)
    fill(p.dtype, v.dout, [](int, int h, int, int) { return h % 2 ? -32768.0f : 32768.0f; });
  if (p.layout == Layout::broadcast) {
    repeat(v.q, false, true, false);
    repeat(v.k, true, false, false);
    repeat(v.v, true, false, false);
    repeat(v.dout, true, true, true);
  }
  return v;
}

bool same_bits(const Outputs &a, const Outputs &b) {
  const bool lse = a.lse.size() == b.lse.size() &&
                   (a.lse.empty() ||
                    !std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)));
  return lse && a.o.bits == b.o.bits && a.dq.bits == b.dq.bits && a.dk.bits == b.dk.bits &&
         a.dv.bits == b.dv.bits;
}
