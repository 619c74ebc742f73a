// test_plan.cpp - the registry is in order, and every problem gets the plan it should.
#include <doctest/doctest.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "src/plan.h"
#include "src/validate.h"

using namespace fa3ptx;

namespace {

const DeviceProps kH200 = {132};

fa3ptx_forward_args forward_shape(fa3ptx_dtype dtype, int batch, int seqlen_q, int seqlen_k,
                                  int heads_q, int heads_kv, int head_dim) {
  fa3ptx_forward_args a = {};
  a.struct_size = sizeof a;
  a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype = dtype;
  a.batch = batch, a.seqlen_q = seqlen_q, a.seqlen_k = seqlen_k;
  a.heads_q = heads_q, a.heads_kv = heads_kv, a.head_dim = head_dim;
  return a;
}

fa3ptx_backward_args backward_shape(fa3ptx_dtype dtype, int batch, int seqlen_q, int seqlen_k,
                                    int heads_q, int heads_kv, int head_dim) {
  fa3ptx_backward_args a = {};
  a.struct_size = sizeof a;
  a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype = dtype;
  a.dout.dtype = a.dq.dtype = a.dk.dtype = a.dv.dtype = dtype;
  a.batch = batch, a.seqlen_q = seqlen_q, a.seqlen_k = seqlen_k;
  a.heads_q = heads_q, a.heads_kv = heads_kv, a.head_dim = head_dim;
  return a;
}

template <class Args> Plan plan_of(const Args &args, fa3ptx_status expected = FA3PTX_OK) {
  Problem p;
  Error e = {};
  REQUIRE(validate(&args, Depth::SHAPES, p, e) == FA3PTX_OK);
  Plan plan = {};
  const fa3ptx_status status = make_plan(p, kH200, plan, e);
  if (status != expected) MESSAGE(e.text);
  REQUIRE(status == expected);
  return plan;
}

std::string name_of(const Plan &plan) { return kRows[plan.row].name; }

} // namespace

TEST_CASE("kernels.def: every row is possible on sm_90 and has a name of its own") {
  std::set<std::string> names;
  for (const Row &row : kRows) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(strlen(row.name) < sizeof fa3ptx_plan_info().kernel);
    CHECK(row.threads % 32 == 0);
    CHECK(row.threads <= 1024);
    CHECK((row.registers + 7) / 8 * 8 * row.threads <= 65536);
    CHECK(row.smem <= 232448);
    CHECK(row.tile_m >= 1);
    CHECK(row.tile_n >= (row.serves == part ? 0 : 1));
    CHECK(row.stages >= 1);
    CHECK(row.head_dim % 8 == 0);
    CHECK(row.head_dim_v % 8 == 0);
    CHECK((row.head_dim == 0) == (row.head_dim_v == 0));
  }
}

TEST_CASE("reference kernels: rows, grids, workspace") {
  fa3ptx_forward_args f = forward_shape(FA3PTX_FP16, 3, 101, 7, 10, 2, 72);
  f.flags = FA3PTX_FLAG_REFERENCE;
  Plan plan = plan_of(f);
  CHECK(name_of(plan) == "fwd_ref_fp16");
  CHECK(plan.count == 1);
  CHECK(plan.workspace == 0);
  CHECK(plan.steps[0].grid[0] == (3 * 101 * 10 + 7) / 8);
  CHECK(plan.steps[0].param_size == REF_PARAMS);

  fa3ptx_backward_args b = backward_shape(FA3PTX_BF16, 3, 101, 7, 10, 2, 72);
  b.flags = FA3PTX_FLAG_REFERENCE;
  plan = plan_of(b);
  CHECK(name_of(plan) == "bwd_ref_dq_bf16");
  CHECK(plan.count == 2);
  CHECK(plan.steps[0].row == k_bwd_ref_dq_bf16);
  CHECK(plan.steps[1].row == k_bwd_ref_dkv_bf16);
  CHECK(plan.steps[1].grid[0] == (3 * 7 * 2 + 7) / 8);
  CHECK(plan.workspace == align_up(3 * 101 * 10 * sizeof(float)));
}

TEST_CASE("every head dim, mask and 16-bit dtype has a plan; 2^31 - 1 rows fit a grid") {
  for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16})
    for (int d = 8; d <= 256; d += 8)
      for (int mask : {FA3PTX_MASK_NONE, FA3PTX_MASK_CAUSAL})
        for (uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_REFERENCE)}) {
          CAPTURE(d);
          fa3ptx_forward_args f = forward_shape(dtype, 1, 64, 64, 2, 1, d);
          fa3ptx_backward_args b = backward_shape(dtype, 1, 64, 64, 2, 1, d);
          f.mask = b.mask = mask;
          f.flags = b.flags = flags;
          for (int dv : {0, 8, 128, 256}) {
            f.head_dim_v = b.head_dim_v = dv;
            CHECK(plan_of(f).count >= 1);
            CHECK(plan_of(b).count >= 2);
          }
        }
  fa3ptx_forward_args f = forward_shape(FA3PTX_BF16, 1, INT_MAX, 1, 1, 1, 8);
  f.flags = FA3PTX_FLAG_REFERENCE;
  CHECK(plan_of(f).steps[0].grid[0] == (INT_MAX - 7) / 8 + 1);
  f.flags = 0; // a tile's rows past the end would not have numbers of 32 bits
  CHECK(name_of(plan_of(f)) == "fwd_ref_bf16");
  CHECK(name_of(plan_of(backward_shape(FA3PTX_BF16, 1, 1, INT_MAX, 1, 1, 8))) == "bwd_ref_dq_bf16");
  CHECK(name_of(plan_of(backward_shape(FA3PTX_BF16, 1, INT_MAX, 1, 1, 1, 8))) == "bwd_ref_dq_bf16");
}

TEST_CASE("few query rows: the heads of a group share tiles where that saves a quarter of them") {
  const auto chosen = [](int seqlen_q, int heads_q, int heads_kv, int dim) {
    return name_of(plan_of(forward_shape(FA3PTX_BF16, 3, seqlen_q, 4096, heads_q, heads_kv, dim)));
  };
  for (int seqlen_q : {1, 4, 16, 64})
    for (int group : {4, 8, 16}) {
      // All rows of a group in one warpgroup, or tiles of 128 rows.
      const std::string tile = seqlen_q * group <= 64 ? "m64_" : "";
      CHECK(chosen(seqlen_q, 8 * group, 8, 64) == "fwd_d64_packed_" + tile + "bf16");
      CHECK(chosen(seqlen_q, 8 * group, 8, 128) == "fwd_d128_packed_" + tile + "bf16");
    }
  CHECK(chosen(64, 8, 8, 128) == "fwd_d128_packed_m64_bf16"); // no group: a small tile all the same
  CHECK(chosen(65, 8, 8, 128).find("packed") == std::string::npos);
  CHECK(chosen(1, 24, 8, 128).find("packed") == std::string::npos);   // 3 does not divide 64
  CHECK(chosen(1, 128, 1, 128).find("packed") == std::string::npos);  // nor does 128
  CHECK(chosen(128, 32, 8, 128).find("packed") == std::string::npos); // full tiles already
  CHECK(chosen(1, 32, 8, 256).find("packed") == std::string::npos);

  fa3ptx_forward_args f = forward_shape(FA3PTX_FP16, 3, 4, 4096, 32, 8, 64);
  f.q.stride_head = int64_t(1) << 37; // a step of 2^40 bytes from group to group: too far
  CHECK(name_of(plan_of(f)).find("packed") == std::string::npos);
  f.q.stride_head = (int64_t(1) << 37) - 8;
  CHECK(name_of(plan_of(f)).find("packed") != std::string::npos);
  f.q.stride_batch = 32 * 4 * 64, f.q.stride_head = 64, f.q.stride_seq = 32 * 64;
  const Plan plan = plan_of(f);
  CHECK(plan.steps[0].grid[0] == 3 * 8);
  int fives = 0;
  for (int i = 0; i < plan.steps[0].map_count; i++) {
    const TensorMap &m = plan.steps[0].maps[i];
    if (m.rank != 5) continue;
    fives++;
    CHECK(m.extent[1] == 4);
    CHECK(m.extent[2] == 4);
    CHECK(m.extent[3] == 8);
    CHECK(m.extent[4] == 3);
    CHECK(m.box[1] * m.box[2] == 64);
    if (m.offset != 0) continue; // Q
    CHECK(m.stride[0] == 64 * 2);
    CHECK(m.stride[1] == 32 * 64 * 2);
    CHECK(m.stride[2] == 4 * 64 * 2);
    CHECK(m.stride[3] == 32 * 4 * 64 * 2);
  }
  CHECK(fives == 2);
}

TEST_CASE("a grid that would not fit is refused") {
  for (int axis = 0; axis < 3; axis++) {
    const uint64_t limit = axis == 0 ? INT_MAX : 65535;
    for (uint64_t size : {limit, limit + 1, uint64_t(1) << 32}) {
      Plan plan = {};
      uint64_t grid[3] = {1, 1, 1};
      grid[axis] = size;
      plan.launch(k_fwd_ref_bf16, grid[0], grid[1], grid[2]);
      CHECK(plan.too_large == (size > limit));
    }
  }
}

TEST_CASE("empty problems: nothing for what is empty, zeros for what is not") {
  CHECK(plan_of(forward_shape(FA3PTX_BF16, 0, 64, 64, 2, 2, 64)).count == 0);
  CHECK(plan_of(forward_shape(FA3PTX_BF16, 2, 0, 64, 2, 2, 64)).count == 0);
  const Plan no_keys = plan_of(forward_shape(FA3PTX_BF16, 2, 64, 0, 2, 2, 64));
  CHECK(no_keys.count == 1); // O = 0, LSE = -inf
  CHECK(name_of(no_keys) == "fwd_ref_bf16");

  CHECK(plan_of(backward_shape(FA3PTX_BF16, 0, 64, 64, 2, 2, 64)).count == 0);
  CHECK(plan_of(backward_shape(FA3PTX_BF16, 0, 64, 64, 2, 2, 64)).workspace == 0);
  CHECK(plan_of(backward_shape(FA3PTX_BF16, 2, 0, 0, 2, 2, 64)).count == 0);
  const Plan no_queries = plan_of(backward_shape(FA3PTX_BF16, 2, 0, 64, 2, 2, 64));
  REQUIRE(no_queries.count == 1); // dK = dV = 0
  CHECK(no_queries.steps[0].row == k_bwd_ref_dkv_bf16);
  const Plan no_keys_back = plan_of(backward_shape(FA3PTX_FP16, 2, 64, 0, 2, 2, 64));
  REQUIRE(no_keys_back.count == 1); // dQ = 0
  CHECK(no_keys_back.steps[0].row == k_bwd_ref_dq_fp16);
}

TEST_CASE("a problem that no row serves is refused in words") {
  const fa3ptx_backward_args b = backward_shape(FA3PTX_BF16, 1, 64, 64, 1, 1, 48);
  Problem p;
  Error e = {};
  REQUIRE(validate(&b, Depth::SHAPES, p, e) == FA3PTX_OK);
  p.q.dtype = FA3PTX_E4M3; // validate() would not let it through: there is no such kernel
  Plan plan = {};
  CHECK(make_plan(p, kH200, plan, e) == FA3PTX_ERROR_UNSUPPORTED);
  const std::string text = e.text;
  CHECK(text.find("q.dtype E4M3, head_dim 48, head_dim_v 48") != std::string::npos);
}

TEST_CASE("plan_row: a row by name, or a refusal") {
  const fa3ptx_forward_args f = forward_shape(FA3PTX_BF16, 1, 64, 64, 1, 1, 64);
  Problem p;
  Error e = {};
  Plan plan;
  REQUIRE(validate(&f, Depth::SHAPES, p, e) == FA3PTX_OK);
  CHECK(plan_row(p, kH200, k_fwd_ref_bf16, plan, e) == FA3PTX_OK);
  CHECK(plan.row == k_fwd_ref_bf16);
  for (RowIndex wrong : {k_fwd_ref_fp16, k_bwd_ref_dq_bf16, k_bwd_ref_dkv_bf16}) {
    CHECK(plan_row(p, kH200, wrong, plan, e) == FA3PTX_ERROR_UNSUPPORTED);
    CHECK(std::string(e.text).find(kRows[wrong].name) != std::string::npos);
  }
}

TEST_CASE("explain: fields and sentences agree with the plan") {
  fa3ptx_backward_args b = backward_shape(FA3PTX_BF16, 2, 100, 50, 4, 2, 64);
  b.flags = FA3PTX_FLAG_REFERENCE | FA3PTX_FLAG_DETERMINISTIC;
  fa3ptx_plan_info info;
  memset(&info, 0xff, sizeof info);
  info.struct_size = sizeof info;
  REQUIRE(fa3ptx_explain_backward(&b, &info) == FA3PTX_OK);
  size_t bytes = 0;
  REQUIRE(fa3ptx_backward_workspace_size(&b, &bytes) == FA3PTX_OK);
  CHECK(info.workspace == bytes);
  CHECK(std::string(info.kernel) == "bwd_ref_dq_bf16");
  const Row &row = kRows[k_bwd_ref_dq_bf16];
  CHECK(info.tile_m == row.tile_m);
  CHECK(info.tile_n == row.tile_n);
  CHECK(info.stages == row.stages);
  CHECK(info.threads == row.threads);
  CHECK(info.shared_memory == size_t(row.smem));
  CHECK(info.grid[0] == 100);
  CHECK(info.grid[1] == 1);
  CHECK(info.launches == 2);
  const std::string text = info.text;
  CAPTURE(text);
  for (const char *words : {"bwd_ref_dq_bf16", "tile 8 x 32", "grid 100 x 1 x 1",
                            "workspace 3328 bytes", "FA3PTX_FLAG_REFERENCE", "deterministic"})
    CHECK(text.find(words) != std::string::npos);
}

TEST_CASE("explain: the reason is that of the row, in words, and differs with it") {
  std::map<std::string, std::string> reasons; // by kernel
  const auto ask = [&](int length, int heads_q, bool causal) {
    fa3ptx_forward_args a = forward_shape(FA3PTX_BF16, 8, length, length, heads_q, 4, 64);
    a.mask = causal ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
    fa3ptx_plan_info info = {};
    info.struct_size = sizeof info;
    REQUIRE(fa3ptx_explain_forward(&a, &info) == FA3PTX_OK);
    const std::string text = info.text;
    const size_t at = text.find("chosen because ");
    REQUIRE(at != std::string::npos);
    return reasons[info.kernel] = text.substr(at + 15);
  };
  CHECK(ask(4, 16, false).find("group") != std::string::npos);
  CHECK(ask(40, 16, false).find("share tiles") != std::string::npos);
  CHECK(ask(500, 4, true).find("no special case") != std::string::npos);
  CHECK(ask(4096, 4, true).find("192") != std::string::npos);
  CHECK(reasons.size() == 4);
}

TEST_CASE("every row that heads a plan has a reason in words") {
  for (int i = 0; i < kRowCount; ++i) {
    Plan plan = {};
    Error e = {};
    const Row &row = kRows[i];
    if (row.serves == part) continue;
    const bool backward = row.role == Role::BWD || row.role == Role::BWD_REF_DQ;
    const int dim = row.head_dim ? row.head_dim : 64;
    const auto planned = [&](auto args) {
      args.head_dim_v = row.head_dim_v;
      if (row.dtype == Dtype::E4M3) args.o.dtype = FA3PTX_BF16;
      args.mask = row.mask == Mask::CAUSAL ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
      Problem p;
      REQUIRE(validate(&args, Depth::SHAPES, p, e) == FA3PTX_OK);
      return plan_row(p, kH200, RowIndex(i), plan, e);
    };
    CAPTURE(row.name);
    const fa3ptx_dtype dtype = fa3ptx_dtype(row.dtype);
    REQUIRE((backward ? planned(backward_shape(dtype, 1, 4, 64, 8, 2, dim))
                      : planned(forward_shape(dtype, 1, 4, 64, 8, 2, dim))) == FA3PTX_OK);
    CHECK(std::string(plan.reason) != "it was named");
    CHECK(std::string(plan.reason).size() > 10);
  }
}

TEST_CASE("tensor maps: bytes, legal strides where the extent is 1") {
  Step s;
  s.map_count = 0;
  fa3ptx_tensor t = {reinterpret_cast<void *>(0x1000), 3, 4096, -7, FA3PTX_FP16, 0};
  add_map(s, 128, t, 64, 50, 1, 1, 64, 32, TensorMap::SWIZZLE_128B);
  REQUIRE(s.map_count == 1);
  const TensorMap &m = s.maps[0];
  CHECK(m.offset == 128);
  CHECK(m.element == TensorMap::FP16);
  CHECK(m.extent[0] == 64);
  CHECK(m.extent[1] == 50);
  CHECK(m.stride[0] == 8192);
  CHECK(m.stride[1] == 16);
  CHECK(m.stride[2] == 16);
  CHECK(m.box[0] == 64);
  CHECK(m.box[1] == 32);
  CHECK(m.box[2] == 1);
  CHECK(m.box[3] == 1);
}

namespace {

// Microseconds to validate and plan; the best of many batches, because the machine may be busy.
template <class Args> double host_time(const Args &args) {
  double best = 1e9;
  for (int batch = 0; batch < 50; batch++) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; i++) {
      Problem p;
      Error e;
      Plan plan;
      REQUIRE(validate(&args, Depth::SHAPES, p, e) == FA3PTX_OK);
      REQUIRE(make_plan(p, kH200, plan, e) == FA3PTX_OK);
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = time.count() / 100 < best ? time.count() / 100 : best;
  }
  return best;
}

} // namespace

TEST_CASE("validation and planning leave most of the 5 microseconds of a call to the driver") {
  for (int mask : {FA3PTX_MASK_NONE, FA3PTX_MASK_CAUSAL})
    for (int length : {1, 4096, 1 << 20, 1 << 26})
      for (int group : {1, 8, 71, 128}) {
        const int heads_kv = length > 1 << 20 ? 1 : 16;
        if (int64_t(length) * heads_kv * group > INT_MAX) continue;
        fa3ptx_forward_args f =
            forward_shape(FA3PTX_BF16, 1, length, length, heads_kv * group, heads_kv, 128);
        fa3ptx_backward_args b =
            backward_shape(FA3PTX_BF16, 1, length, length, heads_kv * group, heads_kv, 128);
        f.mask = b.mask = mask;
        CAPTURE(length);
        CAPTURE(group);
        CHECK(host_time(f) < 2.0);
        CHECK(host_time(b) < 2.0);
      }
}
