// test_stages.cpp - the stage microbenchmarks (bench/stages/stages.def): every row runs, without a
// finding of the emulated driver, and ends with the value that its step gives on operands of 1.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "cases.h"
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

} // namespace

TEST_CASE("stages: defines are found by their whole names, rows have names of their own") {
  Stage s;
  s.defines = "XN=1 N=64 ON_L2=2 LAST=7";
  CHECK(s("N") == 64);
  CHECK(s("XN") == 1);
  CHECK(s("L2") == 0);
  CHECK(s("LAST") == 7);
  for (const Stage &a : stages()) CHECK(&stage(a.name) == &a);
}
