// check.h - the harness in doctest's words.
#pragma once
#include <doctest/doctest.h>

#include "cases.h"
#include "device.h"
#include "harness.h"

// The value for a GPU, or a smaller one that an emulated GPU gets through in a moment.
template <class T> T pick(T on_gpu, T emulated) { return device().emulated ? emulated : on_gpu; }

inline VerifyOptions with_backward(std::vector<Poison> again = {Poison::zero}) {
  VerifyOptions options;
  options.backward = true;
  options.again = std::move(again);
  return options;
}

// The whole of verify() has to find nothing.
inline void check(const Problem &p, const VerifyOptions &options = {}) {
  INFO(p.name());
  CHECK(join(verify(gpu(), p, options)) == "");
}

// One call whose status and fences have to be fine; the values are the caller's to judge.
inline Outputs forward(const Problem &p, const Values &values, Poison poison = Poison::nan) {
  INFO(p.name());
  const Run run = run_forward(gpu(), p, values, poison);
  INFO(run.error);
  REQUIRE(run.status == FA3PTX_OK);
  CHECK(join(run.damage) == "");
  return run.outputs;
}

inline Outputs backward(const Problem &p, const Values &values, const Outputs &forward,
                        Poison poison = Poison::nan) {
  INFO(p.name());
  const Run run = run_backward(gpu(), p, values, forward, poison);
  INFO(run.error);
  REQUIRE(run.status == FA3PTX_OK);
  CHECK(join(run.damage) == "");
  return run.outputs;
}

// Entry `b` of a batch as a problem, and as values, of its own.
Values batch_entry(const Values &, int b);
Outputs batch_entry(const Outputs &, int b);
