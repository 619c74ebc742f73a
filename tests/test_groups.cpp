// test_groups.cpp - the backward with grouped heads: how a group's query heads are shared out to
// CTAs must not matter, and a causal problem must not leave multiprocessors idle.
//
// On a small problem the plan gives every query head its own CTA.  Here it is told of fewer
// multiprocessors, so that CTAs work through two heads of a group, or all.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

#include "cases.h"
#include "ptx/abi_bwd.h"
#include "row_machine.h"
#include "src/validate.h"

namespace {

uint32_t param(const fa3ptx::Step &step, int offset) {
  uint32_t value;
  memcpy(&value, step.params + offset, sizeof value);
  return value;
}

// The main kernel's launch when the row serves the problem on that many multiprocessors.
const fa3ptx::Step &main_step(const Problem &p, fa3ptx::RowIndex row, int multiprocessors) {
  static fa3ptx::Plan plan;
  fa3ptx::Problem problem;
  fa3ptx::Error e = {};
  const fa3ptx_backward_args args = backward_shape_args(p);
  REQUIRE(fa3ptx::validate(&args, fa3ptx::Depth::SHAPES, problem, e) == FA3PTX_OK);
  REQUIRE(fa3ptx::plan_row(problem, {multiprocessors}, row, plan, e) == FA3PTX_OK);
  return plan.steps[plan.main];
}

// Multiprocessors that make the plan split a group into so many parts; 0: none do.
int multiprocessors_for(const Problem &p, fa3ptx::RowIndex row, uint32_t parts) {
  for (int n = 1; n <= 256; n++)
    if (param(main_step(p, row, n), BWD_PARTS) == parts) return n;
  return 0;
}

Problem grouped(const fa3ptx::Row &row) {
  Problem p = problem_of(row);
  p.batch = 2, p.heads_q = 8, p.heads_kv = 2;
  p.seqlen_q = 2 * row.tile_m + 5, p.seqlen_k = row.tile_n + 9;
  return p;
}

void check_parts(fa3ptx::RowIndex row, uint32_t parts, bool deterministic) {
  Problem p = grouped(fa3ptx::kRows[row]);
  if (deterministic) p.flags |= FA3PTX_FLAG_DETERMINISTIC;
  const int multiprocessors = multiprocessors_for(p, row, parts);
  REQUIRE(multiprocessors > 0);
  RowMachine machine(row, multiprocessors);
  VerifyOptions options;
  options.forward = false, options.backward = true;
  CHECK(join(verify(machine, p, options)) == "");
}

// Causal and deterministic, with so few multiprocessors that key tiles come in groups.
void check_order(fa3ptx::RowIndex row) {
  const int tile = fa3ptx::kRows[row].tile_n, dim = fa3ptx::kRows[row].head_dim;
  const int least = dim == 96 || dim == 128 ? 4 : 1; // tiles of a group
  Problem p = problem_of(fa3ptx::kRows[row]);
  p.heads_q = p.heads_kv = 8, p.seqlen_q = 2 * tile + 9, p.seqlen_k = 2 * least * tile + 9;
  p.flags |= FA3PTX_FLAG_DETERMINISTIC;
  const int multiprocessors = dim >= 192 ? 16 : 8;
  const fa3ptx::Step &step = main_step(p, row, multiprocessors);
  REQUIRE(param(step, BWD_N_BLOCKS) == 2 * uint32_t(least) + 1);
  REQUIRE(param(step, BWD_GROUP) == uint32_t(least) + 1);
  REQUIRE(param(step, BWD_SECTION) == 1);
  RowMachine machine(row, multiprocessors);
  VerifyOptions options;
  options.forward = false, options.backward = true;
  CHECK(join(verify(machine, p, options)) == "");
}

// The share of `multiprocessors` that works on average until the last CTA is done.  CTAs, or
// clusters, go in the order of their numbers to whichever place is free, and take as long as they
// have steps; BWD_SECTION says what the numbers mean (ptx/bwd_tile.inc).
double busy(const Problem &p, fa3ptx::RowIndex row, int multiprocessors) {
  const fa3ptx::Step &step = main_step(p, row, multiprocessors);
  const bool turns = p.flags & FA3PTX_FLAG_DETERMINISTIC;
  const int64_t n_blocks = param(step, BWD_N_BLOCKS), group = param(step, BWD_GROUP);
  const int64_t groups = (n_blocks + group - 1) / group, sections = step.grid[2] / groups;
  REQUIRE(group == step.grid[1]);
  const int64_t section = step.grid[0] / step.cluster, streams = param(step, BWD_STREAMS);
  REQUIRE(section == param(step, BWD_SECTION));
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> places;
  for (uint32_t i = 0; i < multiprocessors / step.cluster; i++) places.push(0);
  int64_t all = 0, end = 0;
  for (int64_t z = 0; z < groups * sections; z++)
    for (int64_t y = 0; y < std::min(group, n_blocks - z / sections * group); y++)
      for (int64_t x = 0; x < section && z % sections * section + x < streams; x++) {
        const int64_t after = std::min(n_blocks, (z / sections + 1) * group);
        const int64_t n = turns ? after - 1 - y : y;
        const int64_t first = n * fa3ptx::kRows[row].tile_n / 64;
        const int64_t steps = (param(step, BWD_M_BLOCKS) - first) * param(step, BWD_PART_HEADS);
        const int64_t done = places.top() + steps;
        places.pop();
        places.push(done);
        all += steps, end = std::max(end, done);
      }
  return double(all) / double(end) / (multiprocessors / step.cluster);
}

const bool added = [] {
  for (int i = 0; i < fa3ptx::kRowCount; ++i) {
    const fa3ptx::Row &row = fa3ptx::kRows[i];
    if (row.role != fa3ptx::Role::BWD || !heads_plans(row)) continue;
    for (uint32_t parts : {1, 2, 4})
      for (bool deterministic : {false, true}) {
        Case c;
        c.name = std::string(row.name) + ": group of 4 in " + std::to_string(parts) + " parts" +
                 (deterministic ? ", deterministic" : "");
        c.body = [=] { check_parts(fa3ptx::RowIndex(i), parts, deterministic); };
        add_case(c);
      }
    if (row.mask != fa3ptx::Mask::CAUSAL) continue;
    Case c;
    c.name = std::string(row.name) + ": key tiles in groups, deterministic";
    c.body = [=] { check_order(fa3ptx::RowIndex(i)); };
    add_case(c);
  }
  return true;
}();

} // namespace

TEST_CASE("causal backward: tiles come in an order that keeps the multiprocessors busy") {
  for (int i = 0; i < fa3ptx::kRowCount; ++i) {
    const fa3ptx::Row &row = fa3ptx::kRows[i];
    if (row.role != fa3ptx::Role::BWD || row.mask != fa3ptx::Mask::CAUSAL) continue;
    for (int heads : {8, 32, 64})
      for (int seqlen : {8192, 32768}) {
        Problem p = problem_of(row);
        p.heads_q = heads, p.heads_kv = 8, p.seqlen_q = p.seqlen_k = seqlen;
        CAPTURE(row.name);
        CAPTURE(heads);
        CAPTURE(seqlen);
        CHECK(busy(p, fa3ptx::RowIndex(i), 132) >= (seqlen == 8192 ? 0.85 : 0.95));
        p.flags |= FA3PTX_FLAG_DETERMINISTIC; // each group ends with long tiles
        CHECK(busy(p, fa3ptx::RowIndex(i), 132) >= (seqlen == 8192 ? 0.78 : 0.95));
      }
  }
}
