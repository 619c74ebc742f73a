// main.cpp - main of every test program.
//
//   test_x                     host tests, then device cases in worker children
//   test_x --list              names of the device cases
//   test_x --case=TEXT         device cases whose name contains TEXT (exact: --case==NAME)
//   test_x --here --case=...   in this process, without child and time limit: for a debugger
//   test_x --seed=N            other random inputs
//   test_x --jobs=N            workers at a time; else FA3PTX_TEST_JOBS, else one a core, at most 8 (make: 16)
//   test_x --quick             leaves out what needs a large GPU
// Other arguments go to doctest.  The last line is `N passed, N failed, N skipped`.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "cases.h"
#include "harness.h"
#include "ptx_run.h"

namespace {

int passed, failed, skipped;
bool host_tests = false; // doctest is running the host test cases

// Counts the host test cases; doctest's own summary counts assertions.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions &) {}
  void report_query(const doctest::QueryData &) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats &stats) override {
    if (!host_tests) return;
    passed += int(stats.numTestCasesPassingFilters - stats.numTestCasesFailed);
    failed += int(stats.numTestCasesFailed);
  }
  void test_case_start(const doctest::TestCaseData &) override {}
  void test_case_reenter(const doctest::TestCaseData &) override {}
  void test_case_end(const doctest::CurrentTestCaseStats &) override {}
  void test_case_exception(const doctest::TestCaseException &) override {}
  void subcase_start(const doctest::SubcaseSignature &) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData &) override {}
  void log_message(const doctest::MessageData &) override {}
  void test_case_skipped(const doctest::TestCaseData &) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

struct Options {
  bool list = false, here = false, quick = false;
  int worker = -1, jobs = int(std::min(8u, std::thread::hardware_concurrency()));
  const char *filter = nullptr;
};

bool selected(const Options &options, const Case &c) {
  if (options.quick && c.needs == Case::large_gpu) return false;
  const char *filter = options.filter;
  if (filter && filter[0] == '=') return c.name == filter + 1;
  return !c.planted && (!filter || c.name.find(filter) != std::string::npos);
}

// Runs `current_case` as the one doctest case of its own run, so that CHECK and INFO work in it.
std::string skip_reason;
bool run_current_case() {
  doctest::Context context;
  context.setOption("no-version", true);
  context.setOption("no-skip", true);
  context.setOption("minimal", true);
  context.setOption("no-breaks", true);
  context.setOption("test-case", "device case");
  skip_reason.clear();
  const bool good = context.run() == 0;
  if (!skip_reason.empty()) throw Skip(skip_reason);
  return good;
}

Options read_options(int argc, char **argv) {
  Options options;
  if (const char *jobs = std::getenv("FA3PTX_TEST_JOBS")) options.jobs = std::atoi(jobs);
  for (int i = 1; i < argc; ++i) {
    const auto value = [&](const char *name) -> const char * {
      const size_t n = std::strlen(name);
      return std::strncmp(argv[i], name, n) ? nullptr : argv[i] + n;
    };
    if (value("--list")) options.list = true;
    if (value("--here")) options.here = true;
    if (value("--quick")) options.quick = true;
    if (const char *v = value("--case=")) options.filter = v;
    if (const char *v = value("--worker=")) options.worker = std::atoi(v);
    if (const char *v = value("--jobs=")) options.jobs = std::atoi(v);
    if (const char *v = value("--seed=")) setenv("FA3PTX_TEST_SEED", v, 1);
  }
  if (options.jobs < 1) options.jobs = 1;
  return options;
}

void run_here(const std::vector<const Case *> &list) {
  for (const Case *c : list) {
    current_case = c;
    std::printf("%s\n", c->name.c_str());
    ++(run_current_case() ? passed : failed);
  }
}

void run_in_workers(const std::vector<const Case *> &list, const char *program, int jobs) {
  std::map<std::string, int> reasons;
  run_cases(list, jobs, [&](const Case &c, const CaseResult &result) {
    if (result.verdict == CaseResult::passed) ++passed;
    if (result.verdict == CaseResult::skipped) ++skipped, ++reasons[result.text];
    if (result.verdict != CaseResult::failed) return;
    std::printf("FAILED: %s (%.1f s)\n", c.name.c_str(), result.seconds);
    if (++failed <= 10) // where much is broken, the first failures tell the story
      std::printf("%s  repeat it: %s --seed=%llu '--case==%s'\n\n", result.text.c_str(), program,
                  static_cast<unsigned long long>(base_seed()), c.name.c_str());
    std::fflush(stdout);
  });
  for (const auto &[reason, count] : reasons)
    std::printf("skipped %d: %s\n", count, reason.c_str());
}

} // namespace

TEST_CASE("device case" * doctest::skip()) {
  REQUIRE(current_case);
  INFO("seed ", base_seed());
  // An emulated driver sees missing fences, races and the like, even where the results are right.
  const auto check_findings = [] {
    const Emulator emulated = emulator();
    if (emulated.finding_count && emulated.finding_count())
      FAIL_CHECK("the emulated driver has reported something, see above");
  };
  try {
    current_case->body();
  } catch (const Skip &skip) {
    skip_reason = skip.what();
  } catch (...) {
    check_findings();
    throw;
  }
  check_findings();
}

int main(int argc, char **argv) {
  const Options options = read_options(argc, argv);
  if (options.worker >= 0) return serve_cases(options.worker, run_current_case);

  std::vector<const Case *> list;
  for (const Case &c : cases())
    if (selected(options, c)) list.push_back(&c);
  if (options.list) {
    for (const Case *c : list) std::printf("%s\n", c->name.c_str());
    return 0;
  }
  if (!options.filter) {
    doctest::Context context(argc, argv);
    context.setOption("no-version", true);
    context.setOption("no-intro", true);
    context.setOption("minimal", true);
    host_tests = true;
    context.run();
    host_tests = false;
  }
  // Large cases need the whole memory: they come last and one at a time.
  std::vector<const Case *> large;
  for (size_t i = 0; i < list.size();)
    if (list[i]->needs == Case::large_gpu) {
      large.push_back(list[i]);
      list.erase(list.begin() + i);
    } else {
      ++i;
    }
  if (options.here) {
    run_here(list);
    run_here(large);
  } else {
    run_in_workers(list, argv[0], options.jobs);
    run_in_workers(large, argv[0], 1);
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0;
}
