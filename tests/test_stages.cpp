// test_stages.cpp - the stage microbenchmarks (bench/stages/stages.def): every row runs, without a
// finding of the emulated driver, and ends with the value that its step gives on operands of 1.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cases.h"
#include "counts.h"
#include "stage_run.h"

namespace {

constexpr unsigned kIterations = 5;

// What store.ptx leaves in memory: the ones of every CTA and iteration, added or laid side by side.
void check_stored(const Stage &s, StageRun &run) {
  double sum = 0;
  for (uint32_t word : run.output().words(0, run.output().bytes / 4)) {
    float x;
    std::memcpy(&x, &word, 4);
    sum += x;
  }
  CHECK(sum == s.work(s) / 4 * run.ctas() * kIterations);
}

void run_row(const Stage &s) {
  StageRun run(s, false);
  const StageTimes times = run.run(kIterations);
  const double want = s.value(s, kIterations);
  INFO("value ", times.value, ", should be ", want);
  // Exact but for exponentials: a polynomial is good to 2^-13, and errors shrink from one to the
  // next by a third.
  CHECK(std::fabs(times.value - want) <= std::fabs(want) * 0x1p-11);
  if (s.source == "store") check_stored(s, run);
}

const bool added = [] {
  for (const Stage &s : stages()) add_case({"stage " + s.name, [&s] { run_row(s); }});
  return true;
}();

// Pairs of a block of query rows and a block of keys, of which any row sees any key.
double pairs_seen(const Problem &p, int rows, int keys) {
  double pairs = 0;
  for (int i = 0; i < p.seqlen_q; i += rows)
    for (int j = 0; j < p.seqlen_k; j += keys) {
      bool any = false;
      for (int row = i; row < std::min(i + rows, p.seqlen_q); ++row) any |= p.visible(row) > j;
      pairs += any;
    }
  return pairs;
}

} // namespace

TEST_CASE("roofline: blocks counted are those in which some row sees some key") {
  fa3ptx_plan_info plan = {};
  plan.cluster = 1;
  for (const auto &lengths : {std::pair{512, 512}, {300, 1000}, {1000, 300}, {64, 65}, {1, 777}})
    for (bool causal : {false, true}) {
      Problem p;
      p.seqlen_q = lengths.first, p.seqlen_k = lengths.second, p.causal = causal;
      p.batch = 3, p.heads_q = 4, p.heads_kv = 2, p.head_dim = 128, p.head_dim_v = 64;
      plan.tile_m = 192, plan.tile_n = 96;
      INFO(p.name());
      const Counts forward = count(p, false, plan);
      CHECK(forward.exps == 12 * 64 * 96 * pairs_seen(p, 64, 96));
      const double tiles = (p.seqlen_q + 191) / 192;
      CHECK(forward.l2_to_sm ==
            12 * 2 * (tiles * 192 * 128 + 96 * (128 + 64) * pairs_seen(p, 192, 96)));
      CHECK(forward.issued >= forward.flop);
      plan.tile_m = 64, plan.tile_n = 128;
      const Counts backward = count(p, true, plan);
      CHECK(backward.exps == 12 * 64 * 128 * pairs_seen(p, 64, 128));
      CHECK(backward.issued == backward.exps * 2 * (3 * 128 + 2 * 64));
    }
}

TEST_CASE("stages: defines are found by their whole names, rows have names of their own") {
  Stage s;
  s.defines = "XN=1 N=64 ON_L2=2 LAST=7";
  CHECK(s("N") == 64);
  CHECK(s("XN") == 1);
  CHECK(s("L2") == 0);
  CHECK(s("LAST") == 7);
  for (const Stage &a : stages()) CHECK(&stage(a.name) == &a);
}
