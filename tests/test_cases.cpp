// test_cases.cpp - inputs that made attention kernels elsewhere hang, fault or lie: lengths, masks,
// extreme values, head groups.  Memory is test_memory.cpp's subject.
#include <cmath>
#include <limits>

#include "check.h"
#include "storage.h"

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();

Problem shape(int batch, int seqlen_q, int seqlen_k, int heads_q, int heads_kv, int head_dim,
              bool causal = false) {
  Problem p;
  p.batch = batch;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.head_dim = head_dim;
  p.causal = causal;
  return p;
}

void set_all(fa3ptx_dtype dtype, Dense &x, float value) {
  x.bits.assign(x.bits.size(), to_storage(dtype, value));
}

float at(const Problem &p, const Dense &x, int b, int h, int s, int c) {
  return from_storage(p.dtype, x.bits[x.row(b, h, s) + c]);
}

bool all_zero(const Problem &p, const Dense &x) {
  for (uint16_t bits : x.bits)
    if (from_storage(p.dtype, bits) != 0) return false;
  return true;
}

} // namespace

// ---- No keys, no queries -------------------------------------------------------------------

DEVICE_CASE("no keys at all: O = 0, LSE = -inf, dQ = 0; K and V may be null") {
  for (int head_dim : {64, 128, 256})
    for (bool causal : {false, true}) {
      const Problem p = shape(2, 16, 0, 4, 4, head_dim, causal);
      check(p, with_backward());
      const Values values = make_values(p);
      for (float lse : forward(p, values).lse) CHECK(lse == -INF);
    }
}

DEVICE_CASE("no queries, or no batch: nothing is launched, dK and dV are zero") {
  check(shape(2, 0, 33, 4, 2, 64, true), with_backward());
  check(shape(0, 16, 16, 4, 2, 64), with_backward());
  check(shape(1, 0, 0, 1, 1, 64), with_backward());
}

DEVICE_CASE("more queries than keys: the first rows see nothing") {
  Problem p = shape(1, 34, 1, 8, 8, 128, true);
  Values values = make_values(p);
  set_all(p.dtype, values.q, 0);
  set_all(p.dtype, values.k, 0);
  set_all(p.dtype, values.v, 1);
  const Outputs out = forward(p, values);
  for (int h = 0; h < p.heads_q; ++h)
    for (int s = 0; s < p.seqlen_q; ++s) {
      const bool sees = s == 33;
      CHECK(out.lse[size_t(h) * p.seqlen_q + s] == (sees ? 0 : -INF));
      for (int c = 0; c < p.head_dim; ++c) CHECK(at(p, out.o, 0, h, s, c) == (sees ? 1 : 0));
    }
  check(p, with_backward());
  check(shape(2, pick(1023, 200), 1, 4, 2, 128, true), with_backward());
}

// ---- Tiny and odd lengths ------------------------------------------------------------------

DEVICE_CASE("lengths of a few rows, all pairs", Case::any_device, 120) {
  const std::vector<int> lengths = pick<std::vector<int>>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 5});
  for (int head_dim : {64, 128})
    for (bool causal : {false, true})
      for (int seqlen_q : lengths)
        for (int seqlen_k : lengths)
          check(shape(3, seqlen_q, seqlen_k, 4, 4, head_dim, causal), with_backward());
}

DEVICE_CASE("lengths that are multiples of nothing", Case::any_device, 120) {
  for (bool causal : {false, true})
    for (int s = pick(241, 249); s <= pick(260, 251); ++s) {
      Problem p = shape(1, s, s, 1, 1, 128, causal);
      p.dtype = FA3PTX_FP16;
      check(p, with_backward({}));
    }
}

DEVICE_CASE("keys shorter than a tile, queries much longer") {
  check(shape(pick(9, 2), 12, 12, pick(20, 4), pick(20, 4), 128));
  check(shape(1, 9, 9, pick(20, 4), pick(20, 4), 128));
  check(shape(1, pick(1001, 201), pick(503, 103), pick(20, 2), pick(20, 2), 128), with_backward());
}

DEVICE_CASE("one token attending to itself: P = 1, so dV = dO and dQ = dK = 0") {
  for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16}) {
    Problem p = shape(pick(1000, 50), 1, 1, 1, 1, 64);
    p.dtype = dtype;
    Values values = make_values(p);
    for (Dense *x : {&values.q, &values.k, &values.v})
      for (uint16_t &bits : x->bits) bits = to_storage(dtype, 3 * from_storage(dtype, bits));
    set_all(dtype, values.dout, 1);
    const Outputs out = forward(p, values);
    CHECK(out.o.bits == values.v.bits);
    const Outputs gradient = backward(p, values, out);
    CHECK(gradient.dv.bits == values.dout.bits);
    for (const Dense *x : {&gradient.dq, &gradient.dk})
      for (uint16_t bits : x->bits) REQUIRE(std::fabs(from_storage(dtype, bits)) <= 1e-2f);
  }
}

DEVICE_CASE("few queries against a long context", Case::any_device, 120) {
  for (int seqlen_q : {1, 2, 3, 4, 7, 8})
    for (int seqlen_k : pick<std::vector<int>>({512, 16384, 65536}, {129, 200})) {
      Problem p = shape(pick(4, 1), seqlen_q, seqlen_k, 8, 1, 128, true);
      VerifyOptions options;
      options.rows = some_rows(p);
      check(p, options);
    }
}

// Exponents are differences of scores as far from zero as this.
DEVICE_CASE("scores up to 1e8: O is finite and LSE right") {
  for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16})
    for (int head_dim : {64, 128, 256}) {
      Problem p = shape(1, 70, 300, 2, 1, head_dim);
      p.dtype = dtype;
      p.softmax_scale = 1.3e6f;
      const Values values = make_values(p);
      const Reference ref = reference(p, values, false);
      const Outputs out = forward(p, values);
      double largest = 0;
      for (size_t i = 0; i < ref.lse.size(); ++i) {
        largest = std::max(largest, std::fabs(ref.lse[i]));
        CHECK(std::fabs(out.lse[i] - ref.lse[i]) <= 1e-6 * std::fabs(ref.lse[i]));
      }
      CHECK(largest > 3e7);
      CHECK(largest < 1e8);
      for (uint16_t bits : out.o.bits) CHECK(std::isfinite(from_storage(dtype, bits)));
    }
}

// ---- Masks ---------------------------------------------------------------------------------

DEVICE_CASE("a zero-filled argument struct and the causal flag are all it takes") {
  for (int s : {7, 64, 130}) {
    Problem p = shape(1, s, s, 2, 2, 64, true);
    Values values = make_values(p);
    set_all(p.dtype, values.k, 0);
    const Outputs out = forward(p, values);
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < s; ++i)
        CHECK(std::fabs(out.lse[size_t(h) * s + i] - std::log(i + 1.0)) <= 1e-4);
  }
}

DEVICE_CASE("the backward hides what the forward hides") {
  const int s = pick(512, 150), row = s - 12;
  for (bool causal : {false, true}) {
    Problem p = shape(1, s, s, 2, 2, 64, causal);
    Values values = make_values(p);
    const std::vector<uint16_t> dout = values.dout.bits;
    set_all(p.dtype, values.dout, 0);
    for (int h = 0; h < 2; ++h) // dO is zero but for one row
      std::copy_n(dout.begin() + values.dout.row(0, h, row), p.head_dim,
                  values.dout.bits.begin() + values.dout.row(0, h, row));
    const Outputs gradient = backward(p, values, forward(p, values));
    for (int h = 0; h < 2; ++h)
      for (int j = 0; j < s; ++j) {
        bool dk = false, dv = false, dq = false;
        for (int c = 0; c < p.head_dim; ++c) {
          dq |= at(p, gradient.dq, 0, h, j, c) != 0;
          dk |= at(p, gradient.dk, 0, h, j, c) != 0;
          dv |= at(p, gradient.dv, 0, h, j, c) != 0;
        }
        INFO("head ", h, " row ", j);
        CHECK(dq == (j == row));
        CHECK(dv == (!causal || j <= row));
        CHECK(dk == dv);
      }
  }
}

// ---- Values --------------------------------------------------------------------------------

DEVICE_CASE("scores far from zero and a query tile with one row: finite gradients") {
  for (int seqlen_k : {97, 128, 256})
    for (float shift : {0.f, -128.f, 128.f})
      for (uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_DETERMINISTIC)}) {
        // Column 0 of dQ is one rounding error per head: a batch, so that LOW meets bad ones too.
        Problem p = shape(16, 1, seqlen_k, 2, 2, 64);
        p.flags = flags;
        Values values = make_values(p);
        for (Dense *x : {&values.q, &values.k})
          for (size_t i = 0; i < x->bits.size(); ++i) {
            const float first = x == &values.q ? 1 : shift * 8;
            const float value = 0.1f * from_storage(p.dtype, x->bits[i]);
            x->bits[i] = to_storage(p.dtype, i % p.head_dim == 0 ? first : value);
          }
        INFO("seqlen_k ", seqlen_k, " shift ", shift);
        const Reference ref = reference(p, values, true);
        const Outputs out = forward(p, values);
        CHECK(join(compare_forward(p, ref, out)) == "");
        CHECK(join(compare_backward(p, ref, backward(p, values, out))) == "");
      }
}

// Half of a group has dO = 32768, half -32768: sums kept in fp16 would overflow on the way.
DEVICE_CASE("gradients that cancel over a group of heads", Case::any_device, 120) {
  for (int head_dim : {64, 128, 256}) {
    const int s = pick(1024, 65);
    Problem p = shape(pick(3, 1), s, s, pick(32, 8), pick(4, 2), head_dim);
    p.dtype = FA3PTX_FP16;
    p.fill = Fill::opposed;
    const Values values = make_values(p);
    const Outputs gradient = backward(p, values, forward(p, values));
    CHECK(all_zero(p, gradient.dq));
    CHECK(all_zero(p, gradient.dk));
    const float rounding = 1e-5f * 32768; // what fp32 may leave of sums that large
    for (uint16_t bits : gradient.dv.bits)
      REQUIRE(std::fabs(from_storage(p.dtype, bits)) <= rounding);
  }
}

DEVICE_CASE("what the workspace held before does not matter, lengths beside the tile") {
  for (int seqlen_q : {1, 129, 5})
    for (int seqlen_k : {200, 64, 1}) {
      if (device().emulated && seqlen_q * seqlen_k > 10000) continue;
      Problem p = shape(1, seqlen_q, seqlen_k, 8, 2, 128);
      p.flags = FA3PTX_FLAG_DETERMINISTIC;
      check(p, with_backward()); // NaN in the workspace, then zeros
    }
}

DEVICE_CASE("small inputs in one packed buffer, repeated", Case::any_device, 120) {
  const int s = pick(1000, 100), heads = pick(32, 2);
  Problem p = shape(pick(4, 1), s, s, heads, heads, 128, true);
  p.dtype = FA3PTX_FP16;
  p.layout = Layout::packed;
  for (uint64_t seed : {123, 152}) {
    p.seed = seed;
    Values values = make_values(p);
    for (Dense *x : {&values.q, &values.k, &values.v})
      for (uint16_t &bits : x->bits)
        bits = to_storage(p.dtype, 0.005f * from_storage(p.dtype, bits));
    const Outputs first = forward(p, values);
    CHECK(join(compare_forward(p, reference(p, values, some_rows(p)), first)) == "");
    for (int i = 0; i < 5; ++i) CHECK(same_bits(first, forward(p, values)));
  }
}

// ---- Heads and head dims -------------------------------------------------------------------

DEVICE_CASE("every ratio of query heads to key heads", Case::any_device, 120) {
  const int ratios[][2] = {{14, 2}, {96, 8}, {5, 1}, {9, 3}, {6, 2}, {40, 8}, {71, 1}};
  for (const auto &heads : ratios)
    for (int seqlen_q : {1, 2, 5, 130}) {
      if (device().emulated && (seqlen_q == 130 || heads[0] > 40)) continue;
      Problem p = shape(1, seqlen_q, pick(1025, 67), heads[0], heads[1], 128, true);
      check(p, seqlen_q == 130 ? with_backward({}) : VerifyOptions{});
    }
}

DEVICE_CASE("LSE is written for every head of a group") {
  const int pairs[][2] = {{8, 2}, {3, 3}, {3, 1}, {7, 7}, {7, 1}, {8, 8}, {8, 1}};
  for (const auto &heads : pairs)
    for (int seqlen_q : {1, 2})
      check(shape(1, seqlen_q, pick(300, 100), heads[0], heads[1], 128));
}

DEVICE_CASE("every head dim that is a multiple of 8 is right, others are refused") {
  for (int head_dim : {8, 40, 72, 80, 96, 112, 136, 160, 176, 192, 200, 248, 256})
    check(shape(1, pick(130, 40), pick(130, 40), 2, 2, head_dim, true));
  for (int head_dim : {63, 12, 4, 0, -8, 264, 1 << 20}) {
    const fa3ptx_forward_args args = shape_args(shape(1, 130, 130, 2, 2, head_dim, true));
    size_t bytes = 0;
    CHECK(fa3ptx_forward_workspace_size(&args, &bytes) == FA3PTX_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(fa3ptx_last_error()).find("head_dim") != std::string::npos);
  }
}

DEVICE_CASE("head dim 256 backward in both types", Case::any_device, 120) {
  for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16})
    for (bool causal : {false, true})
      for (int s : pick<std::vector<int>>({64, 65, 2048}, {64, 65})) {
        Problem p = shape(1, s, s, pick(4, 2), pick(4, 2), 256, causal);
        p.dtype = dtype;
        check(p, with_backward({}));
      }
}

// ---- Independence --------------------------------------------------------------------------

DEVICE_CASE("an entry of a batch gets the bits it gets alone", Case::any_device, 120) {
  for (int s : {1, 127, 129, 64, 191, 3, 65})
    for (bool causal : {false, true}) {
      Problem p = shape(3, s, s, 2, 2, 128, causal);
      const Values values = make_values(p);
      const Outputs together = forward(p, values);
      Problem one = p;
      one.batch = 1;
      // A plan may give a larger batch another kernel, and with it other roundings.
      const bool same_kernel = std::string(explain(p, false).kernel) == explain(one, false).kernel;
      for (int b = 0; b < p.batch; ++b) {
        INFO("length ", s, " entry ", b);
        const Values own = batch_entry(values, b);
        const Outputs alone = forward(one, own);
        CHECK(join(compare_forward(one, reference(one, own, false), alone)) == "");
        if (same_kernel) CHECK(same_bits(alone, batch_entry(together, b)));
      }
    }
}

DEVICE_CASE("the deterministic backward repeats its bits", Case::any_device, 120) {
  for (int heads_kv : {4, 1})
    for (bool causal : {false, true}) {
      Problem p = shape(2, pick(1024, 130), pick(1024, 130), 4, heads_kv, pick(128, 64), causal);
      p.flags = FA3PTX_FLAG_DETERMINISTIC;
      const Values values = make_values(p);
      const Outputs out = forward(p, values), first = backward(p, values, out);
      for (int i = 0; i < pick(20, 1); ++i) CHECK(same_bits(first, backward(p, values, out)));
    }
}
