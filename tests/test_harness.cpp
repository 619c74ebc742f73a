// test_harness.cpp - the harness tested: right results pass, every planted fault is caught.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>

#include "cases.h"
#include "fake.h"
#include "harness.h"
#include "ref_cpu.h"
#include "storage.h"

namespace {

// Small, yet with everything in it: odd lengths, a batch, groups of heads, a mask.
Problem small(Layout layout = Layout::bshd, Fill fill = Fill::normal) {
  Problem p;
  p.batch = 2;
  p.seqlen_q = 67;
  p.seqlen_k = 131;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.head_dim = 64;
  p.causal = true;
  p.layout = layout;
  p.fill = fill;
  return p;
}

VerifyOptions both(std::vector<Poison> again = {Poison::zero}) {
  VerifyOptions options;
  options.backward = true;
  options.again = std::move(again);
  return options;
}

Complaints verdict(Fault fault, const Problem &p, const VerifyOptions &options) {
  FakeMachine machine(fault);
  return verify(machine, p, options);
}

} // namespace

TEST_CASE("right results pass in every layout and with every kind of input") {
  for (Layout layout : {Layout::bshd, Layout::bhsd, Layout::packed, Layout::fused,
                        Layout::broadcast}) {
    const Problem p = small(layout);
    INFO(p.name());
    CHECK(join(verdict(Fault::none, p, both({Poison::zero, Poison::plus_inf,
                                             Poison::minus_inf}))) == "");
  }
  for (Fill fill : {Fill::outliers, Fill::constant, Fill::big_scores, Fill::equal_keys,
                    Fill::hot_keys, Fill::rising, Fill::opposed})
    for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16}) {
      Problem p = small(Layout::bshd, fill);
      p.dtype = dtype;
      INFO(p.name());
      CHECK(join(verdict(Fault::none, p, both())) == "");
    }
}

TEST_CASE("right results pass at the ends of every range") {
  Problem p = small();
  p.seqlen_q = 131; // more queries than keys: rows that see nothing
  p.seqlen_k = 67;
  CHECK(join(verdict(Fault::none, p, both())) == "");
  p.seqlen_k = 0;
  CHECK(join(verdict(Fault::none, p, both())) == "");
  p.seqlen_q = 0;
  CHECK(join(verdict(Fault::none, p, both())) == "");
  p = small();
  p.head_dim = 8;
  p.head_dim_v = 256;
  p.seqlen_q = p.seqlen_k = 1;
  CHECK(join(verdict(Fault::none, p, both())) == "");
}

TEST_CASE("every planted fault is caught in the forward") {
  struct {
    const char *name;
    Fault fault;
    Layout layout = Layout::bshd;
    Fill fill = Fill::normal;
  } const faults[] = {
      {"dropped key", Fault::dropped_key},
      {"dropped key among equal ones", Fault::dropped_key, Layout::bshd, Fill::equal_keys},
      {"dropped hot key", Fault::dropped_key, Layout::bshd, Fill::hot_keys},
      {"doubled key", Fault::doubled_key},
      {"doubled key among equal ones", Fault::doubled_key, Layout::bshd, Fill::equal_keys},
      {"unwritten row", Fault::unwritten_row},
      {"unwritten row in a fused buffer", Fault::unwritten_row, Layout::fused},
      {"mask off by one", Fault::mask_off_by_one},
      {"mask off by one, hot keys", Fault::mask_off_by_one, Layout::bshd, Fill::hot_keys},
      {"swapped heads", Fault::swapped_heads},
      {"scale 1 % off", Fault::scale_error},
      {"NaN from past the end", Fault::stale_nan, Layout::fused},
      {"guard overwritten", Fault::guard_overwrite},
      {"gap of a fused buffer overwritten", Fault::guard_overwrite, Layout::fused},
      {"changed input", Fault::changed_input},
      {"changed input of a packed buffer", Fault::changed_input, Layout::packed},
      {"LSE in base 2", Fault::lse_base_2},
      {"lost tile", Fault::lost_tile},
      {"other bits in a second run", Fault::unlike_bits},
      {"uncleared workspace", Fault::stale_workspace},
  };
  for (const auto &planted : faults) {
    INFO(std::string(planted.name));
    Problem p = small(planted.layout, planted.fill);
    if (planted.fault == Fault::swapped_heads) p.heads_kv = 4;
    CHECK_FALSE(verdict(planted.fault, p, {}).empty());
  }
}

TEST_CASE("every planted fault is caught in the backward") {
  for (Fault fault : {Fault::dropped_key, Fault::doubled_key, Fault::unwritten_row,
                      Fault::mask_off_by_one, Fault::swapped_heads, Fault::scale_error,
                      Fault::stale_nan, Fault::guard_overwrite, Fault::changed_input,
                      Fault::lost_tile, Fault::stale_workspace}) {
    INFO("fault ", int(fault));
    Problem p = small(Layout::fused);
    p.heads_kv = 4;
    const Values values = make_values(p);
    const Reference ref = reference(p, values, true);
    FakeMachine right(Fault::none), wrong(fault);
    const Outputs forward = run_forward(right, p, values).outputs;
    const Run run = run_backward(wrong, p, values, forward);
    CHECK_FALSE((run.damage.empty() && compare_backward(p, ref, run.outputs).empty()));
  }
}

// A single key lost or counted twice among so many that a random input hides it.
TEST_CASE("hot keys show one lost key out of thousands") {
  Problem p;
  p.seqlen_q = 64;
  p.seqlen_k = 5000;
  p.fill = Fill::hot_keys;
  CHECK(join(verdict(Fault::none, p, {})) == "");
  CHECK_FALSE(verdict(Fault::dropped_key, p, {}).empty());
}

TEST_CASE("a complaint names the place") {
  const Problem p = small();
  const Values values = make_values(p);
  FakeMachine machine(Fault::none);
  Run run = run_forward(machine, p, values);
  run.outputs.o.bits[run.outputs.o.row(1, 2, 3) + 5] ^= 0x4000;
  const Complaints complaints = compare_forward(p, reference(p, values, false), run.outputs);
  REQUIRE(complaints.size() == 1);
  INFO(complaints[0]);
  CHECK(complaints[0].find("O: 1 elements wrong; worst at batch 1 head 2 row 3 column 5") == 0);
}

TEST_CASE("the float64 gradient is the derivative of the float64 forward") {
  Problem p = small();
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seqlen_q = 5;
  p.seqlen_k = 7;
  p.head_dim = 8;
  const Values values = make_values(p);
  const Reference ref = reference(p, values, true);
  // loss = sum(dO o O); central differences over the inputs, which stay exact in float.
  const auto loss = [&](const Values &x) {
    const Reference r = reference(p, x, false);
    double sum = 0;
    for (size_t i = 0; i < r.o.size(); ++i)
      sum += r.o[i] * from_storage(p.dtype, values.dout.bits[i]);
    return sum;
  };
  const auto check = [&](Dense Values::*tensor, const std::vector<double> &gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      Values up = values, down = values;
      const float x = from_storage(p.dtype, (values.*tensor).bits[i]);
      (up.*tensor).bits[i] = to_storage(p.dtype, x + 0.03125f * std::fabs(x) + 0.001f);
      (down.*tensor).bits[i] = to_storage(p.dtype, x - 0.03125f * std::fabs(x) - 0.001f);
      const double step = double(from_storage(p.dtype, (up.*tensor).bits[i])) -
                          from_storage(p.dtype, (down.*tensor).bits[i]);
      CHECK((loss(up) - loss(down)) / step == doctest::Approx(gradient[i]).epsilon(0.02).scale(1));
    }
  };
  check(&Values::q, ref.dq);
  check(&Values::k, ref.dk);
  check(&Values::v, ref.dv);
}

TEST_CASE("conversions to 16 bits round to nearest even and keep every value") {
  for (uint32_t bits = 0; bits < 65536; ++bits)
    for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16}) {
      const float x = from_storage(dtype, uint16_t(bits));
      if (std::isnan(x)) continue;
      if (to_storage(dtype, x) != bits) FAIL("bits ", bits, " came back as others");
    }
  CHECK(to_storage(FA3PTX_BF16, 1 + 0x1p-8f) == 0x3F80); // a tie goes to the even neighbour
  CHECK(to_storage(FA3PTX_BF16, 1 + 0x3p-8f) == 0x3F82);
  CHECK(to_storage(FA3PTX_FP16, 1 + 0x1p-11f) == 0x3C00);
  CHECK(to_storage(FA3PTX_FP16, 65520.f) == 0x7C00);
  CHECK(to_storage(FA3PTX_FP16, 65519.f) == 0x7BFF);
  CHECK(to_storage(FA3PTX_FP16, 0x1p-25f) == 0);
  CHECK(to_storage(FA3PTX_FP16, 0x3p-25f) == 2);
}

// ---- Workers -------------------------------------------------------------------------------

namespace {

bool spent_here = false; // in this process

const bool planted[] = {
    add_case({"planted: a hang", [] { for (;;) pause(); }, Case::nothing, 0.5, true}),
    add_case({"planted: a crash", [] { std::raise(SIGSEGV); }, Case::nothing, 20, true}),
    add_case({"planted: an exit", [] { std::_Exit(0); }, Case::nothing, 20, true}),
    add_case({"planted: a failed check", [] { CHECK(1 + 1 == 3); }, Case::nothing, 20, true}),
    add_case({"planted: an exception", [] { throw std::runtime_error("no memory"); },
              Case::nothing, 20, true}),
    add_case({"planted: spends the device", [] { spent_device(), spent_here = true; },
              Case::nothing, 20, true}),
    add_case({"planted: nothing wrong", [] { CHECK_FALSE(spent_here); }, Case::nothing, 20, true}),
    add_case({"planted: cannot run here", [] { throw Skip("no such unit"); }, Case::nothing, 20,
              true}),
};

} // namespace

TEST_CASE("hangs, crashes and failures of a case are reported, and the next case still runs") {
  (void)planted;
  std::vector<const Case *> list;
  for (const Case &c : cases())
    if (c.planted) list.push_back(&c);
  std::vector<std::string> seen;
  run_cases(list, 1, [&](const Case &c, const CaseResult &result) {
    seen.push_back(c.name);
    INFO(c.name, ": ", result.text);
    const auto says = [&](const char *text) { return result.text.find(text) != std::string::npos; };
    if (c.name == "planted: nothing wrong" || c.name == "planted: spends the device")
      CHECK(result.verdict == CaseResult::passed);
    else if (c.name == "planted: cannot run here") CHECK(result.verdict == CaseResult::skipped);
    else CHECK(result.verdict == CaseResult::failed);
    if (c.name == "planted: a hang") CHECK(says("did not end within"));
    if (c.name == "planted: a crash") CHECK(says("signal"));
    if (c.name == "planted: an exit") CHECK(says("exit status 0"));
    if (c.name == "planted: a failed check") CHECK(says("1 + 1 == 3"));
    if (c.name == "planted: an exception") CHECK(says("no memory"));
    if (c.name == "planted: cannot run here") CHECK(result.text == "no such unit");
  });
  CHECK(seen.size() == list.size());
}
