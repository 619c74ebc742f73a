// harness_verify.cpp - the float64 reference of a problem, its tolerance, and the comparison.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <set>
#include <thread>

#include "harness.h"
#include "ref_cpu.h"
#include "storage.h"

namespace {

std::vector<float> widen(fa3ptx_dtype dtype, const Dense &x) {
  std::vector<float> wide(x.bits.size());
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = from_storage(dtype, x.bits[i]);
  return wide;
}

// The inputs of a problem as floats, and its heads as views of them.
struct Inputs {
  const Problem &p;
  const Values &values;
  std::vector<float> q, k, v, dout;

  Inputs(const Problem &problem, const Values &x)
      : p(problem),
        values(x),
        q(widen(p.dtype, x.q)),
        k(widen(p.dtype, x.k)),
        v(widen(p.dtype, x.v)),
        dout(widen(p.dtype, x.dout)) {}

  Head head(int batch, int h) const {
    const int kv = h / (p.heads_q / p.heads_kv);
    Head head;
    head.q = q.data() + values.q.row(batch, h, 0);
    head.k = k.data() + values.k.row(batch, kv, 0);
    head.v = v.data() + values.v.row(batch, kv, 0);
    head.dout = dout.data() + values.dout.row(batch, h, 0);
    head.seqlen_q = p.seqlen_q;
    head.seqlen_k = p.seqlen_k;
    head.head_dim = p.head_dim;
    head.head_dim_v = p.dim_v();
    head.softmax_scale = p.scale();
    head.causal = p.causal;
    return head;
  }
};

// f(0) ... f(n - 1), shared by all cores.
template <class F> void in_parallel(size_t n, F f) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < n;) f(i);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min<size_t>(n, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread &thread : threads) thread.join();
}

double tolerance(double factor, const std::vector<double> &ref, const std::vector<float> &low) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    error = std::max(error, std::fabs(double(low[i]) - ref[i]));
    largest = std::max(largest, std::fabs(ref[i]));
  }
  return factor * error + 1e-5 * (1 + largest);
}

void forward_reference(const Inputs &in, const std::vector<RowBlock> &rows, Reference &r) {
  const Problem &p = in.p;
  std::vector<float> low;
  std::vector<size_t> start; // of each block, in rows
  size_t count = 0;
  for (const RowBlock &block : rows) {
    start.push_back(count);
    count += size_t(block.end - block.first);
  }
  r.rows = rows;
  r.o.resize(count * p.dim_v());
  r.lse.resize(count);
  low.resize(r.o.size());
  in_parallel(rows.size(), [&](size_t i) {
    const RowBlock &b = rows[i];
    const size_t at = start[i];
    const Head head = in.head(b.batch, b.head);
    head_forward(head, FA3PTX_DTYPE_NONE, b.first, b.end, r.o.data() + at * p.dim_v(),
                 r.lse.data() + at);
    head_forward<float>(head, p.dtype, b.first, b.end, low.data() + at * p.dim_v(), nullptr);
  });
  r.allowed_o = tolerance(2, r.o, low);
}

template <class Real>
void gradients(const Inputs &in, fa3ptx_dtype rounding, std::vector<Real> &dq,
               std::vector<Real> &dk, std::vector<Real> &dv) {
  const Problem &p = in.p;
  const Values &x = in.values;
  dq.assign(x.q.bits.size(), 0);
  dk.assign(x.k.bits.size(), 0);
  dv.assign(x.v.bits.size(), 0);
  const int group = p.heads_q / p.heads_kv;
  in_parallel(size_t(p.batch) * p.heads_kv, [&](size_t i) { // the heads of a group share dk and dv
    const int b = int(i) / p.heads_kv, kv = int(i) % p.heads_kv;
    for (int h = kv * group; h < (kv + 1) * group; ++h)
      head_backward(in.head(b, h), rounding, dq.data() + x.q.row(b, h, 0),
                    dk.data() + x.k.row(b, kv, 0), dv.data() + x.v.row(b, kv, 0));
  });
}

void backward_reference(const Inputs &in, Reference &r) {
  std::vector<float> dq, dk, dv;
  gradients(in, FA3PTX_DTYPE_NONE, r.dq, r.dk, r.dv);
  gradients(in, in.p.dtype, dq, dk, dv);
  for (std::vector<float> *x : {&dq, &dk, &dv})
    for (float &value : *x) value = round_to(in.p.dtype, value);
  r.allowed_dq = tolerance(3, r.dq, dq);
  r.allowed_dk = tolerance(3, r.dk, dk);
  r.allowed_dv = tolerance(3, r.dv, dv);
}

std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char *pattern, ...) {
  char text[400];
  va_list list;
  va_start(list, pattern);
  std::vsnprintf(text, sizeof text, pattern, list);
  va_end(list);
  return text;
}

// Collects the differences of one tensor and words them as one sentence.
struct Tally {
  const char *name;
  size_t wrong = 0;
  double worst = -1;
  std::string where;

  explicit Tally(const char *n) : name(n) {}

  // Whatever is not within the tolerance is wrong: NaN too.
  void add(double got, double want, double limit, int batch, int head, int row, int column) {
    const double error = got == want ? 0 : std::fabs(got - want);
    if (error <= limit) return;
    ++wrong;
    if (std::isnan(worst) || error <= worst) return;
    worst = error;
    where = format("batch %d head %d row %d column %d: got %.9g, float64 says %.9g, allowed +-%.3g",
                   batch, head, row, column, got, want, limit);
  }

  void report(Complaints &to) const {
    if (wrong) to.push_back(format("%s: %zu elements wrong; worst at ", name, wrong) + where);
  }
};

void compare_tensor(const char *name, const Problem &p, const Dense &got,
                    const std::vector<double> &want, double allowed, Complaints &to) {
  Tally tally(name);
  if (got.bits.size() != want.size()) {
    to.push_back(std::string(name) + ": there is no result to compare");
    return;
  }
  size_t at = 0;
  for (int b = 0; b < got.batch; ++b)
    for (int h = 0; h < got.heads; ++h)
      for (int s = 0; s < got.seqlen; ++s)
        for (int c = 0; c < got.dim; ++c, ++at)
          tally.add(from_storage(p.dtype, got.bits[at]), want[at], allowed, b, h, s, c);
  tally.report(to);
}

// Rows [first, end) of one tensor and head that have to be zero, not merely small.
void expect_zeros(const char *name, const Problem &p, const Dense &x, int first, int end,
                  Complaints &to) {
  Tally tally(name);
  for (int b = 0; b < x.batch; ++b)
    for (int h = 0; h < x.heads; ++h)
      for (int s = first; s < end; ++s)
        for (int c = 0; c < x.dim; ++c)
          tally.add(from_storage(p.dtype, x.bits[x.row(b, h, s) + c]), 0, 0, b, h, s, c);
  tally.report(to);
}

// Query rows [0, blind) see no key.
int blind_rows(const Problem &p) {
  int blind = 0;
  while (blind < p.seqlen_q && p.visible(blind) == 0) ++blind;
  return blind;
}

} // namespace

std::vector<RowBlock> all_rows(const Problem &p) {
  std::vector<RowBlock> rows;
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads_q; ++h) rows.push_back({b, h, 0, p.seqlen_q});
  return rows;
}

std::vector<RowBlock> some_rows(const Problem &p, int rows_per_block) {
  const int n = std::min(rows_per_block, p.seqlen_q);
  std::vector<RowBlock> rows;
  for (int b : std::set<int>{0, p.batch / 2, p.batch - 1})
    for (int h : std::set<int>{0, p.heads_q / 2, p.heads_q - 1})
      for (int first : std::set<int>{0, (p.seqlen_q - n) / 2, p.seqlen_q - n})
        rows.push_back({b, h, first, first + n});
  return rows;
}

Reference reference(const Problem &p, const Values &values, bool backward) {
  const Inputs in(p, values);
  Reference r;
  forward_reference(in, all_rows(p), r);
  if (backward) backward_reference(in, r);
  return r;
}

Reference reference(const Problem &p, const Values &values, const std::vector<RowBlock> &rows) {
  Reference r;
  forward_reference(Inputs(p, values), rows, r);
  return r;
}

Complaints compare_forward(const Problem &p, const Reference &r, const Outputs &out) {
  Complaints complaints;
  Tally o("O"), lse("LSE");
  size_t at = 0;
  for (const RowBlock &block : r.rows)
    for (int s = block.first; s < block.end; ++s, ++at) {
      const size_t row = out.o.row(block.batch, block.head, s);
      for (int c = 0; c < p.dim_v(); ++c)
        o.add(from_storage(p.dtype, out.o.bits[row + c]), r.o[at * p.dim_v() + c], r.allowed_o,
              block.batch, block.head, s, c);
      if (!p.want_lse) continue;
      const double want = r.lse[at];
      const double limit = std::isinf(want) ? 0 : 1e-4 + 1e-6 * std::fabs(want);
      lse.add(out.lse[row / p.dim_v()], want, limit, block.batch, block.head, s, 0);
    }
  o.report(complaints);
  lse.report(complaints);
  expect_zeros("O of rows that see no key", p, out.o, 0, blind_rows(p), complaints);
  return complaints;
}

Complaints compare_backward(const Problem &p, const Reference &r, const Outputs &out) {
  Complaints complaints;
  compare_tensor("dQ", p, out.dq, r.dq, r.allowed_dq, complaints);
  compare_tensor("dK", p, out.dk, r.dk, r.allowed_dk, complaints);
  compare_tensor("dV", p, out.dv, r.dv, r.allowed_dv, complaints);
  const int seen = p.seqlen_q > 0 ? p.visible(p.seqlen_q - 1) : 0; // keys any row sees
  expect_zeros("dQ of rows that see no key", p, out.dq, 0, blind_rows(p), complaints);
  expect_zeros("dK of keys that no row sees", p, out.dk, seen, p.seqlen_k, complaints);
  expect_zeros("dV of keys that no row sees", p, out.dv, seen, p.seqlen_k, complaints);
  return complaints;
}

Outputs forward_of(const Problem &p, const Reference &r) {
  Outputs out;
  out.o = Dense(p.batch, p.heads_q, p.seqlen_q, p.dim_v());
  for (size_t i = 0; i < r.o.size(); ++i) out.o.bits[i] = to_storage(p.dtype, float(r.o[i]));
  out.lse.assign(r.lse.begin(), r.lse.end());
  return out;
}

double worst_error(const Problem &p, const Reference &r, const Outputs &out) {
  double worst = 0;
  size_t at = 0;
  for (const RowBlock &block : r.rows)
    for (int s = block.first; s < block.end; ++s)
      for (int c = 0; c < p.dim_v(); ++c, ++at) {
        const size_t element = out.o.row(block.batch, block.head, s) + c;
        const double error = std::fabs(from_storage(p.dtype, out.o.bits[element]) - r.o[at]);
        if (!(error <= worst)) worst = error;
      }
  return worst;
}

// ---- All of it -----------------------------------------------------------------------------

namespace {

void append(Complaints &to, const Complaints &more, const std::string &prefix) {
  for (const std::string &sentence : more) to.push_back(prefix + sentence);
}

// One run and what is wrong with it: a failed call, damage, wrong values.
template <class RunIt, class Compare>
Run judged_run(const char *what, RunIt run_it, Compare compare, Complaints &to) {
  Run run = run_it();
  if (run.status != FA3PTX_OK) {
    to.push_back(std::string(what) + ": status " + fa3ptx_status_string(run.status) + ": " +
                 run.error);
    return run;
  }
  append(to, run.damage, std::string(what) + ": ");
  append(to, compare(run.outputs), std::string(what) + ": ");
  return run;
}

const char *poison_name(Poison poison) {
  static const char *const names[] = {"zeros", "NaN", "+inf", "-inf"};
  return names[int(poison)];
}

} // namespace

namespace {

// Runs one direction with NaN as poison, then again with other bits where none must matter.
template <class RunIt, class Compare>
Run verify_direction(const char *what, bool repeatable, const VerifyOptions &options, RunIt run_it,
                     Compare compare, Complaints &to) {
  const Run first = judged_run(what, [&] { return run_it(Poison::nan); }, compare, to);
  for (Poison poison : options.again) {
    if (!to.empty()) break;
    const std::string which = std::string(what) + " with " + poison_name(poison) + " as poison";
    const Run again = judged_run(which.c_str(), [&] { return run_it(poison); }, compare, to);
    if (to.empty() && repeatable && !same_bits(first.outputs, again.outputs))
      to.push_back(which + ": other bits than with NaN in memory that must not matter");
  }
  return first;
}

} // namespace

Complaints verify(Machine &machine, const Problem &p, const VerifyOptions &options) {
  Complaints complaints;
  const Values values = make_values(p);
  const Reference ref = options.rows.empty() ? reference(p, values, options.backward)
                                             : reference(p, values, options.rows);
  Outputs forward;
  if (options.forward)
    forward = verify_direction(
                  "forward", true, options,
                  [&](Poison poison) { return run_forward(machine, p, values, poison); },
                  [&](const Outputs &out) { return compare_forward(p, ref, out); }, complaints)
                  .outputs;
  else
    forward = forward_of(p, ref);
  if (options.backward && complaints.empty())
    verify_direction(
        "backward", p.flags & (FA3PTX_FLAG_DETERMINISTIC | FA3PTX_FLAG_REFERENCE), options,
        [&](Poison poison) { return run_backward(machine, p, values, forward, poison); },
        [&](const Outputs &out) { return compare_backward(p, ref, out); }, complaints);
  return complaints;
}

std::string join(const Complaints &complaints) {
  std::string text;
  for (const std::string &sentence : complaints) text += sentence + "\n";
  return text;
}
