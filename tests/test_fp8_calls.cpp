// test_fp8_calls.cpp - E4M3 without a device: which row a call gets, and which scales are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "include/fa3ptx.h"
#include "src/plan.h"
#include "src/validate.h"

using fa3ptx::kRows;
using fa3ptx::Role;
using fa3ptx::Row;

namespace {

fa3ptx_forward_args shapes(int seqlen, int head_dim, bool causal) {
  fa3ptx_forward_args a = {};
  a.struct_size = sizeof a;
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void *>(address); };
  a.q = fa3ptx_bshd(at(0x100000), FA3PTX_E4M3, seqlen, 4, head_dim);
  a.k = fa3ptx_bshd(at(0x200000), FA3PTX_E4M3, seqlen, 2, head_dim);
  a.v = fa3ptx_bshd(at(0x300000), FA3PTX_E4M3, seqlen, 2, head_dim);
  a.o = fa3ptx_bshd(at(0x400000), FA3PTX_BF16, seqlen, 4, head_dim);
  a.batch = 1, a.seqlen_q = a.seqlen_k = seqlen, a.heads_q = 4, a.heads_kv = 2;
  a.head_dim = head_dim;
  a.mask = causal ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
  return a;
}

std::string chosen(const fa3ptx_forward_args &a) {
  fa3ptx_plan_info info = {};
  info.struct_size = sizeof info;
  return fa3ptx_explain_forward(&a, &info) == FA3PTX_OK ? info.kernel : fa3ptx_last_error();
}

} // namespace

TEST_CASE("E4M3: every row is chosen for some call") {
  const float *const scale = reinterpret_cast<const float *>(0x500000);
  std::vector<std::string> names;
  for (bool causal : {false, true})
    for (int dim : {64, 96, 128, 192, 256})
      for (int seqlen : {64, 4096})
        for (int block : {0, 64})
          for (int flags : {0, int(FA3PTX_FLAG_ACCURATE), int(FA3PTX_FLAG_REFERENCE)}) {
            fa3ptx_forward_args a = shapes(seqlen, dim, causal);
            a.batch = seqlen == 64 ? 1 : 64; // tiles enough that their number does not matter
            a.k_scale.data = scale, a.k_scale.block = block, a.flags = uint32_t(flags);
            names.push_back(chosen(a));
          }
  for (const Row &row : kRows)
    if (row.role == Role::FWD_FP8 || row.role == Role::FWD_FP8_REF)
      CHECK_MESSAGE(std::count(names.begin(), names.end(), row.name), std::string(row.name));
}

TEST_CASE("E4M3: scales are checked, and the struct without them is understood") {
  using A = fa3ptx_forward_args;
  const float *const odd = reinterpret_cast<const float *>(0x500002);
  const auto refused = [&](const char *words, auto change) {
    A a = shapes(64, 128, false);
    change(a);
    fa3ptx::Problem p;
    fa3ptx::Error e = {};
    CHECK(validate(&a, fa3ptx::Depth::ALL, p, e) == FA3PTX_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE(std::string(e.text).find(words) == 0, std::string(e.text));
  };
  refused("q_scale.data = 0x500002", [&](A &a) { a.q_scale.data = odd; });
  refused("k_scale.stride_batch = -1", [](A &a) { a.k_scale.stride_batch = -1; });
  refused("v_scale.stride_block", [](A &a) { a.v_scale.stride_block = INT64_MAX; });
  refused("k_scale: its last scale", [](A &a) {
    a.batch = INT32_MAX / 64, a.seqlen_q = a.seqlen_k = 16;
    a.k_scale.stride_batch = (int64_t(1) << 38) - 1;
  });
  refused("q_scale.block = 8", [](A &a) { a.q_scale.block = 8; });
  refused("k_scale.block = 16", [](A &a) { a.k_scale.block = 16; });
  refused("v_scale.block = 96", [](A &a) { a.v_scale.block = 96; });
  refused("q_scale.heads = 3", [](A &a) { a.q_scale.heads = 3; });
  refused("k_scale.heads = 4", [](A &a) { a.k_scale.heads = 4; });
  refused("head_dim = 72", [](A &a) { a.head_dim = 72; });
  refused("head_dim_v = 64", [](A &a) { a.head_dim_v = 64; });
  refused("q_scale.data", [](A &a) {
    a.q.dtype = a.k.dtype = a.v.dtype = FA3PTX_BF16;
    a.q_scale.data = reinterpret_cast<const float *>(0x500000);
  });
  A old = shapes(64, 128, false);
  old.struct_size = FA3PTX_FORWARD_ARGS_V1;
  old.q_scale.data = odd; // past its end: not read
  CHECK(chosen(old) == "fwd_d128_m128_e4m3");
}
