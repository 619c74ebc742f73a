// test_dead_rows.cpp - a query row whose LSE is -infinity saw no key: it gets dQ = 0 and adds
// nothing to dK and dV, whatever the mask would let it see.
//
// The right answer comes from the same kernel: with dO = 0 in those rows, instead, P is finite and
// all their terms are products with zero.
#include <doctest/doctest.h>

#include <cmath>

#include "cases.h"
#include "row_machine.h"

namespace {

bool is_dead(int row) { return row % 5 == 2; }

// Equal as numbers: the sign of a zero may differ.
bool equal(const Dense &a, const Dense &b) {
  for (size_t i = 0; i < a.bits.size(); ++i)
    if (a.bits[i] != b.bits[i] && ((a.bits[i] | b.bits[i]) & 0x7fff) != 0) return false;
  return a.bits.size() == b.bits.size();
}

bool dead_rows_are_zero(const Problem &p, const Dense &dq) {
  for (size_t i = 0; i < dq.bits.size(); ++i)
    if (is_dead(int(i / dq.dim % size_t(p.seqlen_q))) && (dq.bits[i] & 0x7fff) != 0) return false;
  return true;
}

void check_row(fa3ptx::RowIndex index) {
  const fa3ptx::Row &row = fa3ptx::kRows[index];
  Problem p = problem_of(row);
  p.batch = 2, p.heads_q = 4, p.heads_kv = 2;
  p.seqlen_q = row.tile_m + 9, p.seqlen_k = row.tile_n + 14;
  p.flags |= FA3PTX_FLAG_DETERMINISTIC; // the two runs are compared bit by bit
  RowMachine machine(index);
  const Values values = make_values(p);
  const Outputs forward = forward_of(p, reference(p, values, false));

  Outputs dead = forward;
  for (size_t i = 0; i < dead.lse.size(); ++i)
    if (is_dead(int(i % size_t(p.seqlen_q)))) dead.lse[i] = -INFINITY;
  Values silent = values;
  for (size_t i = 0; i < silent.dout.bits.size(); ++i)
    if (is_dead(int(i / silent.dout.dim % size_t(p.seqlen_q)))) silent.dout.bits[i] = 0;

  const Run got = run_backward(machine, p, values, dead);
  const Run want = run_backward(machine, p, silent, forward);
  REQUIRE_MESSAGE(got.status == FA3PTX_OK, got.error);
  REQUIRE_MESSAGE(want.status == FA3PTX_OK, want.error);
  CHECK(dead_rows_are_zero(p, got.outputs.dq));
  CHECK(equal(got.outputs.dq, want.outputs.dq));
  CHECK(equal(got.outputs.dk, want.outputs.dk));
  CHECK(equal(got.outputs.dv, want.outputs.dv));
}

const bool added = [] {
  for (int i = 0; i < fa3ptx::kRowCount; ++i) {
    const fa3ptx::Row &row = fa3ptx::kRows[i];
    if (!heads_plans(row) || !is_backward(row)) continue;
    Case c;
    c.name = std::string("rows of LSE -inf ") + row.name;
    c.body = [i] { check_row(fa3ptx::RowIndex(i)); };
    add_case(c);
  }
  return true;
}();

} // namespace
