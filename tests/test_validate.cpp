// test_validate.cpp - every rule of fa3ptx.h is checked on the host, and the sentence says which.
//
// Pure: the addresses below are numbers that nobody follows.
#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "src/plan.h"
#include "src/validate.h"

using namespace fa3ptx;

namespace {

const void *at(uintptr_t address) { return reinterpret_cast<const void *>(address); }

// batch 2, 100 queries on 130 keys, 6 heads on 2, head_dim 64 and 32 of values.
fa3ptx_forward_args good_forward() {
  fa3ptx_forward_args a = {};
  a.struct_size = sizeof a;
  a.batch = 2, a.seqlen_q = 100, a.seqlen_k = 130, a.heads_q = 6, a.heads_kv = 2;
  a.head_dim = 64, a.head_dim_v = 32;
  a.q = fa3ptx_bshd(at(0x10000000), FA3PTX_BF16, 100, 6, 64);
  a.k = fa3ptx_bshd(at(0x20000000), FA3PTX_BF16, 130, 2, 64);
  a.v = fa3ptx_bhsd(at(0x30000000), FA3PTX_BF16, 130, 2, 32);
  a.o = fa3ptx_bshd(at(0x40000000), FA3PTX_BF16, 100, 6, 32);
  a.lse = reinterpret_cast<float *>(0x50000000);
  return a;
}

// The same on FP8, whose values have the head dim of the keys.
void make_fp8(fa3ptx_forward_args &a) {
  a.head_dim_v = 64;
  a.q.dtype = a.k.dtype = FA3PTX_E4M3;
  a.v = fa3ptx_bhsd(a.v.data, FA3PTX_E4M3, 130, 2, 64);
  a.o = fa3ptx_bshd(a.o.data, FA3PTX_BF16, 100, 6, 64);
}

fa3ptx_backward_args good_backward() {
  const fa3ptx_forward_args f = good_forward();
  fa3ptx_backward_args a = {};
  a.struct_size = sizeof a;
  a.batch = f.batch, a.seqlen_q = f.seqlen_q, a.seqlen_k = f.seqlen_k;
  a.heads_q = f.heads_q, a.heads_kv = f.heads_kv;
  a.head_dim = f.head_dim, a.head_dim_v = f.head_dim_v;
  a.q = f.q, a.k = f.k, a.v = f.v, a.o = f.o, a.lse = f.lse;
  const auto elsewhere = [](fa3ptx_tensor t) {
    t.data = static_cast<char *>(t.data) + 0x100000000;
    return t;
  };
  a.dout = elsewhere(f.o), a.dq = elsewhere(f.q), a.dk = elsewhere(f.k), a.dv = elsewhere(f.v);
  a.workspace = reinterpret_cast<void *>(0x60000000);
  a.workspace_size = 1 << 20;
  return a;
}

template <class Args> struct Rule {
  const char *what;
  std::function<void(Args &)> breaks;
  std::vector<const char *> says; // each must be in the sentence
};

// Each rule must reject, and the unbroken arguments must pass again afterwards.
template <class Args> void check_rules(const Args &good, const std::vector<Rule<Args>> &rules) {
  for (const Rule<Args> &rule : rules) {
    CAPTURE(rule.what);
    Args args = good;
    rule.breaks(args);
    Problem p;
    Error e = {};
    CHECK(validate(&args, Depth::ALL, p, e) == FA3PTX_ERROR_INVALID_ARGUMENT);
    const std::string text = e.text;
    CAPTURE(text);
    for (const char *word : rule.says) {
      CAPTURE(word);
      CHECK(text.find(word) != std::string::npos);
    }
    CHECK(validate(&good, Depth::ALL, p, e) == FA3PTX_OK);
  }
}

// Rules that both calls share.
template <class Args> std::vector<Rule<Args>> common_rules() {
  using A = Args;
  const float nan = std::nanf(""), inf = INFINITY;
  return {
      {"struct_size 0", [](A &a) { a.struct_size = 0; }, {"struct_size = 0", "sizeof"}},
      {"struct_size + 8", [](A &a) { a.struct_size += 8; }, {"struct_size", "sizeof"}},
      {"batch", [](A &a) { a.batch = -1; }, {"batch = -1", "negative"}},
      {"seqlen_q", [](A &a) { a.seqlen_q = -5; }, {"seqlen_q = -5", "negative"}},
      {"seqlen_k", [](A &a) { a.seqlen_k = INT_MIN; }, {"seqlen_k = -2147483648", "negative"}},
      {"heads_q", [](A &a) { a.heads_q = 0; }, {"heads_q = 0", "at least 1"}},
      {"heads_kv 0", [](A &a) { a.heads_kv = 0; }, {"heads_kv = 0", "at least 1"}},
      {"heads_kv -2", [](A &a) { a.heads_kv = -2; }, {"heads_kv = -2", "at least 1"}},
      {"ratio", [](A &a) { a.heads_kv = 4; }, {"heads_q = 6", "multiple", "heads_kv = 4"}},
      {"ratio < 1", [](A &a) { a.heads_kv = 12; }, {"heads_q = 6", "multiple", "12"}},
      {"head_dim 12", [](A &a) { a.head_dim = 12; }, {"head_dim = 12", "multiple of 8"}},
      {"head_dim 0", [](A &a) { a.head_dim = 0; }, {"head_dim = 0", "8"}},
      {"head_dim -8", [](A &a) { a.head_dim = -8; }, {"head_dim = -8", "8"}},
      {"head_dim 264", [](A &a) { a.head_dim = 264; }, {"head_dim = 264", "256"}},
      {"head_dim_v 63", [](A &a) { a.head_dim_v = 63; }, {"head_dim_v = 63", "multiple of 8"}},
      {"head_dim_v 264", [](A &a) { a.head_dim_v = 264; }, {"head_dim_v = 264", "256"}},
      {"rows", [](A &a) { a.batch = a.seqlen_q = 65536; }, {"batch * heads_q * seqlen_q", "2^31"}},
      {"rows of keys", [](A &a) { a.seqlen_k = INT_MAX; }, {"batch * heads_kv * seqlen_k", "2^31"}},
      {"scale -1", [](A &a) { a.softmax_scale = -1; }, {"softmax_scale = -1", "positive"}},
      {"scale nan", [=](A &a) { a.softmax_scale = nan; }, {"softmax_scale = ", "nan", "2e+38"}},
      {"scale inf", [=](A &a) { a.softmax_scale = inf; }, {"softmax_scale = inf", "at most"}},
      {"scale -inf", [=](A &a) { a.softmax_scale = -inf; }, {"softmax_scale = -inf", "positive"}},
      {"scale 3e38", [](A &a) { a.softmax_scale = 3e38f; }, {"softmax_scale = 3e+38", "2e+38"}},
      {"mask 2", [](A &a) { a.mask = 2; }, {"mask = 2", "FA3PTX_MASK_CAUSAL"}},
      {"mask -1", [](A &a) { a.mask = -1; }, {"mask = -1"}},
      {"flags", [](A &a) { a.flags = 0x80000001; }, {"flags = 0x80000001", "0x80000000"}},
      {"dtype 0", [](A &a) { a.q.dtype = 0; }, {"q.dtype = 0", "FA3PTX_BF16"}},
      {"dtype 99", [](A &a) { a.q.dtype = 99; }, {"q.dtype = 99"}},
      {"k.dtype", [](A &a) { a.k.dtype = FA3PTX_FP16; }, {"k.dtype = 2", "that of q, 1 (BF16)"}},
      {"v.dtype", [](A &a) { a.v.dtype = 0; }, {"v.dtype = 0", "that of q"}},
      {"o.dtype", [](A &a) { a.o.dtype = 77; }, {"o.dtype = 77", "that of q"}},
      {"reserved", [](A &a) { a.v.reserved = 1; }, {"v.reserved = 1", "must be 0"}},
      {"q NULL", [](A &a) { a.q.data = nullptr; }, {"q.data = NULL", "not empty"}},
      {"v NULL", [](A &a) { a.v.data = nullptr; }, {"v.data = NULL", "not empty"}},
      {"q + 2 bytes", [](A &a) { a.q.data = (char *)a.q.data + 2; }, {"q.data = 0x10000002", "16"}},
      {"k + 8 bytes", [](A &a) { a.k.data = (char *)a.k.data + 8; }, {"k.data", "16 bytes"}},
      {"k row 130", [](A &a) { a.k.stride_seq = 130; },
       {"k.stride_seq = 130", "multiple of 8 elements (16 bytes)"}},
      {"q head 68", [](A &a) { a.q.stride_head = 68; }, {"q.stride_head = 68", "multiple of 8"}},
      {"v batch 1", [](A &a) { a.v.stride_batch = 1; }, {"v.stride_batch = 1", "multiple of 8"}},
      {"negative", [](A &a) { a.q.stride_seq = -64; }, {"q.stride_seq = -64", "negative"}},
      {"2^40 bytes", [](A &a) { a.k.stride_batch = int64_t(1) << 39; },
       {"k.stride_batch = 549755813888", "2^40"}},
      {"INT64_MAX", [](A &a) { a.k.stride_head = INT64_MAX & ~int64_t(7); },
       {"k.stride_head", "2^40"}},
      {"end of memory", [](A &a) { a.q.data = (void *)(UINTPTR_MAX & ~uintptr_t(15)); },
       {"q: its last element", "2^63"}},
      {"sum of strides", [](A &a) {
         a.batch = 1, a.seqlen_q = 1 << 24;
         a.q.stride_seq = (int64_t(1) << 39) - 8;
       }, {"q: its last element", "2^63"}},
      {"lse + 2 bytes", [](A &a) { a.lse = reinterpret_cast<float *>(0x50000002); },
       {"lse = 0x50000002", "4 bytes"}},
  };
}

} // namespace

TEST_CASE("forward: every rule is checked and named") {
  using A = fa3ptx_forward_args;
  check_rules<A>(good_forward(), common_rules<A>());
  check_rules<A>(good_forward(), {
      {"o broadcast", [](A &a) { a.o.stride_batch = 0; }, {"o.stride_batch = 0", "overlap"}},
      {"o rows too near", [](A &a) { a.o.stride_head = 24; }, {"o.stride_head = 24", "32"}},
      {"o heads cross rows", [](A &a) { a.o.stride_seq = 184; }, {"o.stride_seq = 184", "192"}},
      {"o is q", [](A &a) { a.o.data = a.q.data; }, {"o.data = 0x10000000", "share", "q"}},
      {"o is lse", [](A &a) { a.lse = (float *)a.o.data; }, {"o.data", "share", "lse"}},
      {"o is workspace", [](A &a) { a.workspace = a.o.data; }, {"o.data", "share", "workspace"}},
      {"k is workspace", [](A &a) { a.workspace = a.k.data; }, {"k.data", "share", "workspace"}},
      {"lse is v", [](A &a) { a.lse = (float *)a.v.data; }, {"v.data", "share", "lse"}},
      {"lse is workspace", [](A &a) { a.workspace = a.lse; }, {"lse = ", "share", "workspace"}},
      {"fp8 strides", [](A &a) { make_fp8(a), a.k.stride_seq = 136; },
       {"k.stride_seq = 136", "multiple of 16 elements (16 bytes)"}},
      {"fp8 head_dim 72", [](A &a) { make_fp8(a), a.head_dim = 72; },
       {"head_dim = 72", "multiple of 16"}},
      {"fp8 head_dim_v", [](A &a) { make_fp8(a), a.head_dim_v = 48; },
       {"head_dim_v = 48", "must be head_dim, 64"}},
      {"fp8 output", [](A &a) { a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype = FA3PTX_E4M3; },
       {"o.dtype = 3", "FA3PTX_BF16 or FA3PTX_FP16"}},
      {"fp8 with bf16 keys", [](A &a) { a.q.dtype = FA3PTX_E4M3; }, {"k.dtype = 1", "3 (E4M3)"}},
  });
}

TEST_CASE("backward: every rule is checked and named") {
  using A = fa3ptx_backward_args;
  check_rules<A>(good_backward(), common_rules<A>());
  check_rules<A>(good_backward(), {
      {"lse NULL", [](A &a) { a.lse = nullptr; }, {"lse = NULL"}},
      {"fp8", [](A &a) { a.q.dtype = FA3PTX_E4M3; }, {"q.dtype = 3 (E4M3)", "FA3PTX_FP16"}},
      {"dk.dtype", [](A &a) { a.dk.dtype = FA3PTX_FP16; }, {"dk.dtype = 2", "that of q"}},
      {"dout NULL", [](A &a) { a.dout.data = nullptr; }, {"dout.data = NULL"}},
      {"dv.reserved", [](A &a) { a.dv.reserved = -1; }, {"dv.reserved = -1"}},
      {"dq + 4 bytes", [](A &a) { a.dq.data = (char *)a.dq.data + 4; }, {"dq.data", "16 bytes"}},
      {"dk broadcast", [](A &a) { a.dk.stride_head = 0; }, {"dk.stride_head = 0", "overlap"}},
      {"dv is v", [](A &a) { a.dv.data = a.v.data; }, {"dv.data", "share", "v"}},
      {"dk is dv", [](A &a) { a.dk.data = a.dv.data; }, {"share"}},
      {"dq is lse", [](A &a) { a.lse = (float *)a.dq.data; }, {"dq.data", "share", "lse"}},
      {"q is workspace", [](A &a) { a.workspace = a.q.data; }, {"q.data", "share", "workspace"}},
      {"lse is workspace", [](A &a) { a.workspace = (void *)a.lse; }, {"lse = ", "workspace"}},
  });
}

TEST_CASE("NULL arguments are rejected") {
  Problem p;
  Error e = {};
  CHECK(validate((const fa3ptx_forward_args *)nullptr, Depth::ALL, p, e) ==
        FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(e.text) == "args = NULL");
  CHECK(fa3ptx_forward(nullptr, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(fa3ptx_backward(nullptr, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(fa3ptx_forward_workspace_size(nullptr, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(fa3ptx_last_error()) == "bytes = NULL: no place to answer");
  fa3ptx_plan_info info = {};
  CHECK(fa3ptx_explain_forward(nullptr, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
  const fa3ptx_forward_args args = good_forward();
  CHECK(fa3ptx_explain_forward(&args, &info) == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(fa3ptx_last_error()).find("info->struct_size = 0") == 0);
  info.struct_size = sizeof info;
  CHECK(fa3ptx_explain_forward(nullptr, &info) == FA3PTX_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("what the header allows passes") {
  Problem p;
  Error e = {};
  fa3ptx_forward_args a = good_forward();
  const auto passes = [&] {
    const fa3ptx_status status = validate(&a, Depth::ALL, p, e);
    if (status != FA3PTX_OK) MESSAGE(e.text);
    return status == FA3PTX_OK;
  };
  SUBCASE("defaults") {
    a.head_dim_v = 0;
    a.v = fa3ptx_bshd(a.v.data, FA3PTX_BF16, 130, 2, 64);
    a.o = fa3ptx_bhsd(a.o.data, FA3PTX_BF16, 100, 6, 64);
    REQUIRE(passes());
    CHECK(p.head_dim_v == 64);
    CHECK(p.softmax_scale == 0.125f);
    a.softmax_scale = 0.5f;
    REQUIRE(passes());
    CHECK(p.softmax_scale == 0.5f);
  }
  SUBCASE("no lse") { a.lse = nullptr; CHECK(passes()); }
  SUBCASE("broadcast inputs") {
    a.k.stride_batch = a.k.stride_seq = a.k.stride_head = 0;
    CHECK(passes());
  }
  SUBCASE("strides of axes of extent 1 are not read") {
    a.batch = a.seqlen_q = a.heads_q = a.heads_kv = 1;
    for (int64_t s : {int64_t(4096), int64_t(1), int64_t(0), int64_t(3), int64_t(-1), INT64_MIN}) {
      CAPTURE(s);
      a.q.stride_batch = a.q.stride_seq = a.q.stride_head = s;
      a.o.stride_batch = a.o.stride_seq = a.o.stride_head = s;
      CHECK(passes());
    }
  }
  SUBCASE("packed QKV: columns of one buffer") {
    a.heads_kv = 6, a.head_dim_v = 64, a.seqlen_k = 100;
    char *base = static_cast<char *>(a.q.data);
    for (fa3ptx_tensor *t : {&a.q, &a.k, &a.v}) {
      *t = {base, 100 * 3 * 6 * 64, 3 * 6 * 64, 64, FA3PTX_BF16, 0};
      base += 6 * 64 * 2;
    }
    a.o = fa3ptx_bshd(a.o.data, FA3PTX_BF16, 100, 6, 64);
    CHECK(passes());
  }
  SUBCASE("empty tensors need neither pointer nor strides") {
    a.seqlen_k = 0;
    a.k.data = a.v.data = nullptr;
    a.k.stride_seq = -3;
    CHECK(passes());
    a.batch = 0;
    a.q.data = a.o.data = nullptr;
    CHECK(passes());
  }
  SUBCASE("2^31 - 1 rows, and strides just below 2^40 bytes") {
    a.batch = 1, a.heads_q = a.heads_kv = 1, a.seqlen_q = INT_MAX;
    a.q.stride_seq = 0;
    a.o.stride_seq = 32;
    a.k.stride_seq = (int64_t(1) << 39) - 8;
    CHECK(passes());
  }
  SUBCASE("E4M3 inputs with BF16 output") {
    make_fp8(a);
    CHECK(passes());
  }
  SUBCASE("shapes alone, for the queries") {
    a.q.data = a.k.data = a.v.data = a.o.data = nullptr;
    a.q.stride_seq = 3;
    CHECK(validate(&a, Depth::SHAPES, p, e) == FA3PTX_OK);
    CHECK_FALSE(validate(&a, Depth::ALL, p, e) == FA3PTX_OK);
  }
}

TEST_CASE("workspace: missing, too small, misaligned") {
  const fa3ptx_backward_args good = good_backward();
  fa3ptx_backward_args a = good;
  Problem p;
  Error e = {};
  const auto status = [&](size_t needed) {
    REQUIRE(validate(&a, Depth::ALL, p, e) == FA3PTX_OK);
    return validate_workspace(p, needed, e);
  };
  CHECK(status(1 << 20) == FA3PTX_OK);
  CHECK(status((1 << 20) + 1) == FA3PTX_ERROR_WORKSPACE);
  CHECK(std::string(e.text) == "workspace_size = 1048576: this call needs 1048577 bytes");
  a.workspace = nullptr;
  CHECK(status(1) == FA3PTX_ERROR_WORKSPACE);
  CHECK(std::string(e.text) == "workspace = NULL: this call needs 1 bytes");
  CHECK(status(0) == FA3PTX_OK);
  a.workspace = reinterpret_cast<void *>(0x60000080);
  CHECK(status(1) == FA3PTX_ERROR_WORKSPACE);
  CHECK(std::string(e.text) == "workspace = 0x60000080: must be a multiple of 256 bytes");
}

namespace {

// Fills a struct with values that are likely to hurt.
template <class Args> void scramble(Args &a, std::mt19937_64 &random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  const auto rarely = [&] { return random() % 40 == 0; };
  fa3ptx_tensor *tensors = &a.q;
  const size_t count = (offsetof(Args, lse) - offsetof(Args, q)) / sizeof *tensors;
  for (size_t i = 0; i < count; i++) {
    fa3ptx_tensor &t = tensors[i];
    t.data = reinterpret_cast<void *>(0x10000000 * (i + 1));
    if (rarely()) t.data = reinterpret_cast<void *>(pick({0, 2, 16, -16, INT64_MAX}));
    for (int64_t *s : {&t.stride_batch, &t.stride_seq, &t.stride_head})
      *s = rarely() ? pick({-8, 1, 12, int64_t(1) << 39, INT64_MAX, INT64_MIN, int64_t(random())})
                    : pick({0, 8, 64, 256, 8192, 1 << 20, int64_t(1) << 32, 1 << 27});
    t.dtype = rarely() ? int32_t(random()) : int32_t(i < 3 ? 1 + random() % 2 : a.q.dtype);
    if (i > 0 && !rarely()) t.dtype = a.q.dtype;
    t.reserved = rarely() ? int32_t(random()) : 0;
  }
  for (int32_t *n : {&a.batch, &a.seqlen_q, &a.seqlen_k})
    *n = int32_t(rarely() ? pick({-1, INT_MIN, INT_MAX, 65536}) : pick({0, 1, 2, 77, 128, 40000}));
  a.heads_kv = int32_t(rarely() ? pick({0, -3, INT_MAX}) : pick({1, 1, 2, 8}));
  a.heads_q = int32_t(rarely() ? random() : uint64_t(a.heads_kv) * uint64_t(pick({1, 2, 5, 71})));
  a.head_dim = int32_t(rarely() ? random() : uint64_t(pick({8, 40, 64, 96, 128, 192, 256})));
  a.head_dim_v = int32_t(rarely() ? random() : uint64_t(pick({0, 8, 64, 128, 256})));
  a.mask = int32_t(rarely() ? random() : random() % 2);
  a.flags = uint32_t(rarely() ? random() : random() % 4);
  const uint32_t bits = uint32_t(random());
  if (rarely()) memcpy(&a.softmax_scale, &bits, 4);
}

template <class Args> int try_scrambled(std::mt19937_64 &random, int trials) {
  int planned = 0;
  for (int i = 0; i < trials; i++) {
    Args args = {};
    args.struct_size = sizeof args;
    args.lse = reinterpret_cast<float *>(0xf0000000);
    if (random() % 64 == 0) // every byte random
      for (size_t b = 0; b < sizeof args; b++)
        reinterpret_cast<unsigned char *>(&args)[b] = static_cast<unsigned char>(random());
    else scramble(args, random);
    Problem p;
    Error e = {};
    const fa3ptx_status status = validate(&args, Depth::ALL, p, e);
    if (status != FA3PTX_OK) {
      REQUIRE(status == FA3PTX_ERROR_INVALID_ARGUMENT);
      REQUIRE(e.text[0] != 0);
      continue;
    }
    Plan plan;
    const DeviceProps device = {int32_t(1 + random() % 200)};
    if (make_plan(p, device, plan, e) != FA3PTX_OK) {
      REQUIRE(e.text[0] != 0);
      continue;
    }
    planned++;
    REQUIRE(plan.count >= 0);
    REQUIRE(plan.count <= kMaxSteps);
    for (int s = 0; s < plan.count; s++) {
      const Step &step = plan.steps[s];
      if (step.kind == Step::MEMSET) continue;
      const bool fits = step.grid[0] >= 1 && step.grid[0] <= INT_MAX && step.grid[1] >= 1 &&
                        step.grid[1] <= 65535 && step.grid[2] >= 1 && step.grid[2] <= 65535 &&
                        step.cluster >= 1 && step.grid[0] % step.cluster == 0 &&
                        step.param_size <= kMaxParams && step.map_count <= kMaxMaps;
      REQUIRE(fits);
    }
    fa3ptx_plan_info info;
    explain(p, device, plan, info);
    REQUIRE(strlen(info.text) < sizeof info.text - 1); // nothing cut off
  }
  return planned;
}

} // namespace

TEST_CASE("a million random argument structs: no crash, and every answer is in order") {
  std::mt19937_64 random(1);
  CHECK(try_scrambled<fa3ptx_forward_args>(random, 500000) > 20000); // many get through, too
  CHECK(try_scrambled<fa3ptx_backward_args>(random, 500000) > 2000);
}
