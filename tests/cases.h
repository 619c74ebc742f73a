// cases.h - tests that touch a device.  Each runs in a child process under a time limit.
//
//   DEVICE_CASE("what is tested") { ... CHECK(...); }     doctest's macros work inside
//   add_case({...})                                       for generated cases
//
// A worker child runs one case after another and reports each through a pipe.  A crash, a hang and
// a failure end the worker, and the next case gets a new one: a CUDA context that has seen a fault
// is of no further use.  A case that brings such a fault about and yet passes has to say so with
// spent_device().  Tests that need no device are plain doctest TEST_CASEs.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct Case {
  std::string name;
  std::function<void()> body;
  enum Needs { nothing, any_device, real_gpu, large_gpu } needs = any_device;
  double limit_seconds = 60;
  bool planted = false; // a fault that a test of the harness plants; not part of a normal run
};

bool add_case(Case);               // false, so that it can initialise a static
const std::vector<Case> &cases();  // in the order they were added

#define CASE_JOIN_(a, b) a##b
#define CASE_JOIN(a, b) CASE_JOIN_(a, b)
#define DEVICE_CASE_(function, ...)                                              \
  static void function();                                                        \
  static const bool CASE_JOIN(function, _added) = add_case({__VA_ARGS__});       \
  static void function()
// DEVICE_CASE(name) or, with more members of Case: DEVICE_CASE(name, Case::real_gpu, 120)
#define DEVICE_CASE(name, ...)                                                          \
  DEVICE_CASE_(CASE_JOIN(device_case_, __LINE__), name,                                 \
               CASE_JOIN(device_case_, __LINE__), ##__VA_ARGS__)

// Thrown by a body that finds it cannot run here: counted as skipped, with the reason.
struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CaseResult {
  enum Verdict { passed, failed, skipped } verdict = failed;
  std::string text; // output of a failed case, reason of a skipped one
  double seconds = 0;
};

// Runs the cases in `jobs` workers at a time and calls `done` for each as it ends.
void run_cases(const std::vector<const Case *> &list, int jobs,
               const std::function<void(const Case &, const CaseResult &)> &done);

// The worker's side: serves the cases whose names arrive on stdin until it closes, or until a case
// has called spent_device().
int serve_cases(int reply_fd, bool (*run_body)());
void spent_device();
extern const Case *current_case;
