// test_kernels.cpp - every row of src/kernels.def, because it is there.  (E4M3: test_fp8.cpp.)
//
// The lengths follow from the row's tile: just below, at and just above an edge of it, and long
// enough to wrap its ring of stages.  So a new row is tested by being written down.
#include <doctest/doctest.h>

#include <cmath>
#include <iterator>
#include <set>

#include "cases.h"
#include "row_machine.h"
#include "src/validate.h"
#include "storage.h"

using fa3ptx::kRowCount;
using fa3ptx::kRows;
using fa3ptx::Row;
using fa3ptx::RowIndex;

namespace {

struct Test {
  Problem problem;
  VerifyOptions options;
  Case::Needs needs = Case::any_device;
  bool small = false; // small in the name: a slow tool such as compute-sanitizer takes these
};

Problem with_lengths(Problem p, int seqlen_q, int seqlen_k) {
  p.seqlen_q = seqlen_q > 0 ? seqlen_q : 1;
  p.seqlen_k = seqlen_k > 0 ? seqlen_k : 1;
  return p;
}

Problem with_heads(Problem p, int batch, int heads_q, int heads_kv) {
  p.batch = batch;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  return p;
}

// The simplest inputs first: what fails here should be looked at first.
void add_lengths(std::vector<Test> &tests, const Row &row, const Problem &one_head) {
  const Problem base = with_heads(one_head, 1, 2, 2);
  const int m = row.tile_m, n = row.tile_n, deep = (row.stages + 2) * n;
  const int lengths[][2] = {{m, n},         {1, 1},           {1, n + 1},     {m - 1, n - 1},
                            {m + 1, n + 1}, {2 * m, deep},    {m + 3, deep + 3}, {2 * m + 5, n},
                            {m / 2, 2 * n}, {3 * m, deep - 1}};
  for (const auto &l : lengths) tests.push_back({with_lengths(base, l[0], l[1]), {}});
  tests[tests.size() - std::size(lengths)].small = true;
}

// Everything else that a caller may do, at lengths of two query tiles and of stages + 2 key tiles.
void add_variety(std::vector<Test> &tests, const Row &row, const Problem &base) {
  const int m = row.tile_m, n = row.tile_n, deep = (row.stages + 2) * n;
  const Problem odd = with_heads(with_lengths(base, m + 5, 2 * n + 3), 2, 4, 2);
  for (Layout layout : {Layout::bhsd, Layout::packed, Layout::fused, Layout::broadcast}) {
    Test test{odd, {}};
    test.problem.layout = layout;
    test.small = layout == Layout::fused;
    if (layout == Layout::fused)
      test.options.again = {Poison::zero, Poison::plus_inf, Poison::minus_inf};
    tests.push_back(test);
  }
  for (Fill fill : {Fill::outliers, Fill::constant, Fill::big_scores, Fill::equal_keys,
                    Fill::hot_keys, Fill::rising}) {
    Test test{with_heads(with_lengths(base, 2 * m - 1, deep + 1), 1, 2, 2), {}};
    test.problem.fill = fill;
    tests.push_back(test);
  }
  if (row.role != fa3ptx::Role::FWD_PACKED) tests.push_back({with_heads(odd, 1, 3, 1), {}});
  tests.push_back({with_heads(odd, 1, 8, 1), {}});
  Test scaled{with_lengths(base, m, n), {}}, silent = scaled;
  scaled.problem.softmax_scale = 0.3f;
  silent.problem.want_lse = false;
  tests.push_back(scaled);
  if (!is_backward(row)) tests.push_back(silent);
  if (is_backward(row)) {
    Test twice{odd, {}};
    twice.problem.flags |= FA3PTX_FLAG_DETERMINISTIC;
    tests.push_back(twice);
    Test turns = twice; // several turns of query blocks a head (ptx/bwd_turn.inc)
    turns.problem = with_heads(with_lengths(twice.problem, 9 * m + 5, 2 * n + 3), 1, 4, 2);
    tests.push_back(turns);
  }
  if (base.causal) { // rows, and whole query tiles, that see no key
    tests.push_back({with_lengths(base, 2 * m + 9, 7), {}});
    tests.push_back({with_heads(with_lengths(base, m + n + 1, n), 1, 2, 1), {}});
  }
}

void add_head_dims(std::vector<Test> &tests, const Row &row, const Problem &base) {
  const int dims[][2] = {{8, 8},     {16, 16},   {40, 40},   {72, 72},   {96, 96},  {104, 104},
                         {128, 128}, {192, 192}, {200, 200}, {256, 256}, {8, 256},  {256, 8},
                         {64, 128},  {192, 128}, {136, 72}};
  for (const auto &d : dims) {
    Problem p = with_heads(with_lengths(base, row.tile_m + 1, row.tile_n + 1), 1, 2, 1);
    p.head_dim = d[0];
    p.head_dim_v = d[1] == d[0] ? 0 : d[1];
    tests.push_back({p, {}});
  }
}

// Lengths that only a GPU gets through; a hot key in a long row shows what an average would hide.
void add_long(std::vector<Test> &tests, const Row &row, const Problem &base) {
  const Problem gqa = with_heads(base, 2, 4, 2);
  tests.push_back({with_lengths(gqa, 509, 573), {}, Case::real_gpu});
  tests.push_back({with_lengths(gqa, 1024, 1024), {}, Case::real_gpu});
  tests.push_back({with_lengths(with_heads(base, 1, 2, 1), 2049, 2113), {}, Case::real_gpu});
  if (is_backward(row)) {
    tests.push_back({with_lengths(base, 4096, 4096), {}, Case::real_gpu});
    return;
  }
  const std::pair<int, Fill> longs[] = {
      {8192, Fill::normal}, {16381, Fill::hot_keys}, {131072, Fill::hot_keys}};
  for (const auto &[s, fill] : longs) {
    Test test{with_lengths(base, s, s), {}, Case::real_gpu};
    test.problem.fill = fill;
    test.options.rows = some_rows(test.problem);
    tests.push_back(test);
  }
  Test many{with_lengths(with_heads(base, 1100, 60, 60), 5, 9), {}, Case::real_gpu};
  many.problem.layout = Layout::broadcast; // 66,000 pairs of batch and head
  many.options.rows = some_rows(many.problem);
  tests.push_back(many);
}

// Few query rows for each head of large groups, in several layouts: packed rows.
void add_packed(std::vector<Test> &tests, const Row &row, const Problem &base) {
  const int n = row.tile_n;
  for (int group : {2, 8, 16, 64})
    for (int seqlen_q : {1, 4, 16, 64}) {
      Test test{with_heads(with_lengths(base, seqlen_q, 2 * n + 5), 1, group, 1), {}};
      test.problem.layout = seqlen_q == 4 ? Layout::fused : Layout::bshd;
      tests.push_back(test);
    }
  for (Layout layout : {Layout::bhsd, Layout::packed, Layout::fused, Layout::broadcast}) {
    Test test{with_heads(with_lengths(base, 5, n + 3), 2, 16, 2), {}};
    test.problem.layout = layout;
    test.problem.fill = layout == Layout::broadcast ? Fill::normal : Fill::hot_keys;
    tests.push_back(test);
  }
  tests.push_back({with_heads(with_lengths(base, 37, 9), 1, 8, 1), {}}); // causal: dead rows
}

std::vector<Test> tests_of(const Row &row) {
  std::vector<Test> tests;
  for (bool causal : {false, true}) {
    if (row.mask != fa3ptx::Mask::ANY && causal != (row.mask == fa3ptx::Mask::CAUSAL)) continue;
    Problem base = problem_of(row);
    base.causal = causal;
    add_lengths(tests, row, base);
    add_variety(tests, row, base);
    if (row.role == fa3ptx::Role::FWD_PACKED) add_packed(tests, row, base);
    if (row.head_dim == 0 && !causal) add_head_dims(tests, row, base);
    add_long(tests, row, base);
  }
  for (Test &test : tests) {
    test.options.forward = !is_backward(row);
    test.options.backward = is_backward(row);
  }
  return tests;
}

// ---- Against the reference kernels, where float64 would take too long ------------------------

double largest(fa3ptx_dtype dtype, const Dense &x) {
  double most = 0;
  for (uint16_t bits : x.bits) most = std::max(most, std::fabs(double(from_storage(dtype, bits))));
  return most;
}

double largest(const std::vector<double> &x) {
  double most = 0;
  for (double value : x) most = std::max(most, std::fabs(value));
  return most;
}

// Every element of a long problem.  The tolerance is twice what a short one has, in proportion to
// the largest element: the reference kernels round their results, too.
void compare_with_reference_kernels(RowIndex r, const Problem &p) {
  const bool gradients = is_backward(kRows[r]);
  Problem brief = p;
  brief.seqlen_q = brief.seqlen_k = 1024;
  const Reference ref = reference(brief, make_values(brief), gradients);
  const Values values = make_values(p);
  RowMachine machine{r};
  Problem by_reference = p;
  by_reference.flags |= FA3PTX_FLAG_REFERENCE;
  const Run oracle = run_forward(gpu(), by_reference, values);
  REQUIRE(oracle.status == FA3PTX_OK);
  const auto same = [&](const std::string &name, const Dense &got, const Dense &want,
                        double allowed) {
    const double limit = 2 * allowed * largest(p.dtype, want);
    size_t wrong = 0;
    for (size_t i = 0; i < want.bits.size(); ++i) {
      const double w = from_storage(p.dtype, want.bits[i]);
      wrong += !(std::fabs(from_storage(p.dtype, got.bits[i]) - w) <= limit);
    }
    INFO(name, " within ", limit);
    CHECK(wrong == 0);
    CHECK(want.bits.size() > 0);
  };
  const auto run = [&](const Run &result) {
    INFO(result.error);
    REQUIRE(result.status == FA3PTX_OK);
    CHECK(join(result.damage) == "");
    return result.outputs;
  };
  if (!gradients) {
    const Outputs got = run(run_forward(machine, p, values));
    return same("O", got.o, oracle.outputs.o, ref.allowed_o / largest(ref.o));
  }
  const Outputs want = run(run_backward(gpu(), by_reference, values, oracle.outputs));
  const Outputs got = run(run_backward(machine, p, values, oracle.outputs));
  same("dQ", got.dq, want.dq, ref.allowed_dq / largest(ref.dq));
  same("dK", got.dk, want.dk, ref.allowed_dk / largest(ref.dk));
  same("dV", got.dv, want.dv, ref.allowed_dv / largest(ref.dv));
}

bool add_all() {
  for (int r = 0; r < kRowCount; ++r) {
    const Row &row = kRows[r];
    if (!heads_plans(row) || row.dtype == fa3ptx::Dtype::E4M3) continue;
    if (row.head_dim != 0) { // not a reference kernel itself
      const Problem p = with_heads(with_lengths(problem_of(row), 16381, 16381), 1, 2, 1);
      add_case({std::string(row.name) + ": reference kernels agree, " + p.name(),
                [=] { compare_with_reference_kernels(RowIndex(r), p); }, Case::real_gpu, 120});
    }
    std::set<std::string> names; // rows with small tiles make the same problem twice
    for (const Test &test : tests_of(row)) {
      const std::string name =
          std::string(row.name) + (test.small ? ": small " : ": ") + test.problem.name();
      if (!names.insert(name).second) continue;
      add_case({name, [=] {
                  RowMachine machine{RowIndex(r)};
                  CHECK(join(verify(machine, test.problem, test.options)) == "");
                }, test.needs, 120});
    }
  }
  return false;
}

// ---- The registry itself: no device needed -------------------------------------------------

// Calls f(problem) for shapes of every kind that `serves` predicates may distinguish.
template <class F> void each_shape(const Row &row, F f) {
  for (int seqlen : {1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 131072})
    for (int other : {seqlen, 1, 4096})
      for (int batch : {1, 2, 8, 32})
        for (int heads : {1, 8, 16, 32, 64})
          for (int group : {1, 8}) {
            if (heads % group) continue;
            Problem p = with_heads(with_lengths(problem_of(row), seqlen, other), batch, heads,
                                   heads / group);
            f(p);
            if (row.mask == fa3ptx::Mask::ANY) p.causal = true, f(p);
          }
}

fa3ptx_status plan_for(const Problem &p, bool backward, fa3ptx::Plan &plan, const RowIndex *row) {
  fa3ptx::Error error;
  fa3ptx::Problem checked;
  const fa3ptx_forward_args forward_args = shape_args(p);
  const fa3ptx_backward_args backward_args = backward_shape_args(p);
  const fa3ptx_status status =
      backward ? validate(&backward_args, fa3ptx::Depth::SHAPES, checked, error)
               : validate(&forward_args, fa3ptx::Depth::SHAPES, checked, error);
  if (status != FA3PTX_OK) return status;
  return row ? plan_row(checked, fa3ptx::kAssumedDevice, *row, plan, error)
             : make_plan(checked, fa3ptx::kAssumedDevice, plan, error);
}

} // namespace

static const bool added = add_all();

TEST_CASE("every row that heads plans is chosen for some shape, or for the reference flag") {
  (void)added;
  for (int r = 0; r < kRowCount; ++r) {
    const Row &row = kRows[r];
    if (!heads_plans(row) || row.dtype == fa3ptx::Dtype::E4M3) continue;
    bool chosen = false;
    each_shape(row, [&](Problem p) {
      for (uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_REFERENCE),
                             uint32_t(FA3PTX_FLAG_DETERMINISTIC)}) {
        fa3ptx::Plan plan;
        p.flags = flags;
        if (chosen || plan_for(p, is_backward(row), plan, nullptr) != FA3PTX_OK) continue;
        chosen = plan.row == r;
      }
    });
    CHECK_MESSAGE(chosen, std::string(row.name), " serves none of the shapes tried here");
  }
}

TEST_CASE("every row is launched by the plans of the rows that head them") {
  std::set<int> launched;
  for (int r = 0; r < kRowCount; ++r) {
    const Row &row = kRows[r];
    if (!heads_plans(row) || row.dtype == fa3ptx::Dtype::E4M3) continue;
    const RowIndex index = RowIndex(r);
    each_shape(row, [&](const Problem &p) {
      fa3ptx::Plan plan;
      if (plan_for(p, is_backward(row), plan, &index) != FA3PTX_OK) return;
      for (int i = 0; i < plan.count; ++i)
        if (plan.steps[i].kind == fa3ptx::Step::LAUNCH) launched.insert(plan.steps[i].row);
    });
  }
  for (int r = 0; r < kRowCount; ++r)
    CHECK_MESSAGE((launched.count(r) || !in_build(RowIndex(r)) ||
                   kRows[r].dtype == fa3ptx::Dtype::E4M3 ||
                   kRows[r].role == fa3ptx::Role::QUANT), // test_quantize.cpp
                  std::string(kRows[r].name), " is launched by no plan");
}
