// mutate.cpp - is everything that orders a kernel's accesses there for a reason, and would the
// emulated driver tell us if it were not?
//
//     mutate [--jobs=N] [--verbose] [NAME...]       rows of src/kernels.def; none: all
//
// Each fence, wait, arrival, barrier and commit of a row's PTX is taken away in turn (mutants.h) in
// a child process that then runs a small problem under the emulated driver: two query tiles, stages
// + 2 key tiles, several seeds, on one multiprocessor (so that a CTA does several tiles) and on
// more.  A mutant is caught if it is reported, computes something wrong, fails or does not end.
// Survivors are listed with their source lines; equivalent.txt holds those that are proved to
// change nothing.  Exit status 1: under 95 % of the others are caught.
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "mutants.h"
#include "ptx_run.h"
#include "row_machine.h"
#include "src/validate.h"

using namespace fa3ptx;

#define KERNEL(name, ...) \
  extern "C" __attribute__((visibility("hidden"))) char fa3ptx_image_##name[];
#include "src/kernels.def"
#undef KERNEL

namespace {

char *const images[kRowCount] = {
#define KERNEL(name, ...) fa3ptx_image_##name,
#include "src/kernels.def"
#undef KERNEL
};

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// ---- One run: a schedule of one problem -----------------------------------------------------

struct Trial {
  RowIndex machine_row; // heads the plan; launches the row under test
  ::Problem problem;
  bool backward;
  Values values;
  Reference expected;
  Outputs forward; // what a backward reads
};

struct Schedule {
  const char *multiprocessors;
  unsigned seed;
};
const Schedule schedules[] = {{"1", 1}, {"4", 2}, {"1", 3}, {"4", 4}, {"1", 5}, {"4", 6}};

// "" if all is well, else what was caught, in a line.
std::string run_trial(const Trial &t, const Schedule &s) {
  setenv("FA3EMU_SMS", s.multiprocessors, 1);
  const Emulator emulated = emulator();
  if (!emulated.report) return "error: this is not the emulated driver";
  device();
  emulated.seed(s.seed);
  std::string failure;
  try {
    RowMachine machine(t.machine_row);
    const Run run = t.backward ? run_backward(machine, t.problem, t.values, t.forward)
                               : run_forward(machine, t.problem, t.values);
    if (run.status != FA3PTX_OK) failure = "error: " + run.error;
    else if (!run.damage.empty()) failure = "wrong: " + run.damage[0];
    else {
      const Complaints wrong = t.backward ? compare_backward(t.problem, t.expected, run.outputs)
                                          : compare_forward(t.problem, t.expected, run.outputs);
      if (!wrong.empty()) failure = "wrong: " + wrong[0];
    }
  } catch (const std::exception &e) {
    failure = std::string("error: ") + e.what();
  }
  if (emulated.finding_count()) failure = std::string("finding: ") + emulated.report();
  return failure.substr(0, failure.find('\n'));
}

void damage_image(RowIndex row, const Mutant &m) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t first = uintptr_t(images[row] + m.begin) / page * page;
  const size_t bytes = uintptr_t(images[row] + m.end) - first;
  if (mprotect(reinterpret_cast<void *>(first), bytes, PROT_READ | PROT_WRITE)) std::abort();
  apply(m, images[row]);
}

// ---- Children: several at a time, each with a time limit -------------------------------------

struct Job {
  RowIndex row;
  const Mutant *mutant; // null: the kernel as it is
  const std::vector<Trial> *trials;
  size_t next = 0;      // schedule * trials + trial
  std::string verdict;
};

struct Child {
  pid_t pid;
  int fd;
  double deadline;
  Job *job;
};

Child start(Job *job, double limit) {
  int ends[2];
  if (pipe(ends)) std::abort();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, 1);
    dup2(quiet, 2);
    if (job->mutant) damage_image(job->row, *job->mutant);
    const size_t n = job->trials->size();
    std::string text = run_trial((*job->trials)[job->next % n], schedules[job->next / n]);
    text = text.substr(0, 2000) + "\n";
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0], now() + limit, job};
}

// The verdict of a child that has written, ended or run out of time.
std::string finish(const Child &child) {
  std::string text;
  char part[2048];
  const bool late = now() >= child.deadline;
  if (late) kill(child.pid, SIGKILL);
  for (ssize_t n; !late && (n = read(child.fd, part, sizeof part)) > 0;)
    text.append(part, size_t(n));
  close(child.fd);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (late) return "hang: no end within the time limit";
  if (WIFSIGNALED(status)) return "crash: " + std::string(strsignal(WTERMSIG(status)));
  if (text.empty()) return "crash: no answer";
  return text.substr(0, text.find('\n'));
}

// Runs every job under all its schedules, or until it is caught.
void run_all(std::vector<Job> &jobs, size_t at_a_time, double limit) {
  std::vector<Child> running;
  std::vector<Job *> waiting;
  for (Job &job : jobs) waiting.push_back(&job);
  std::reverse(waiting.begin(), waiting.end());
  while (!waiting.empty() || !running.empty()) {
    while (running.size() < at_a_time && !waiting.empty()) {
      running.push_back(start(waiting.back(), limit));
      waiting.pop_back();
    }
    std::vector<pollfd> fds;
    for (const Child &c : running) fds.push_back({c.fd, POLLIN, 0});
    poll(fds.data(), fds.size(), 100);
    for (size_t i = running.size(); i-- > 0;) {
      if (!fds[i].revents && now() < running[i].deadline) continue;
      const Child child = running[i];
      running.erase(running.begin() + long(i));
      child.job->verdict = finish(child);
      if (!child.job->verdict.empty()) continue;
      const size_t runs = child.job->trials->size() * (sizeof schedules / sizeof *schedules);
      if (++child.job->next < runs) waiting.push_back(child.job);
    }
  }
}

// ---- What to run for a row --------------------------------------------------------------------

bool plan_has(const ::Problem &p, RowIndex head, RowIndex row) {
  const bool backward = is_backward(kRows[head]);
  const fa3ptx_forward_args forward_args = shape_args(p);
  const fa3ptx_backward_args backward_args = backward_shape_args(p);
  Error e;
  fa3ptx::Problem checked;
  Plan plan;
  const fa3ptx_status status = backward ? validate(&backward_args, Depth::SHAPES, checked, e)
                                        : validate(&forward_args, Depth::SHAPES, checked, e);
  if (status != FA3PTX_OK || plan_row(checked, kAssumedDevice, head, plan, e) != FA3PTX_OK)
    return false;
  for (int i = 0; i < plan.count; ++i)
    if (plan.steps[i].kind == Step::LAUNCH && plan.steps[i].row == row) return true;
  return false;
}

Trial trial_of(const ::Problem &p, RowIndex head) {
  Trial t{head, p, is_backward(kRows[head]), make_values(p), {}, {}};
  t.expected = reference(p, t.values, t.backward);
  if (!t.backward) return t;
  t.forward = forward_of(p, t.expected);
  return t;
}

// Two query tiles, stages + 2 key tiles, two query heads on one key head.
std::vector<Trial> trials_of(RowIndex row) {
  std::vector<Trial> trials;
  for (int head = 0; head < kRowCount; ++head) {
    const Row &r = kRows[head];
    if (!heads_plans(r)) continue;
    for (const bool causal : {false, true}) {
      if (r.mask != Mask::ANY && causal != (r.mask == Mask::CAUSAL)) continue;
      ::Problem p = problem_of(r);
      p.causal = causal;
      p.heads_q = 2;
      p.seqlen_q = 2 * r.tile_m;
      p.seqlen_k = (r.stages + 2) * r.tile_n;
      if (r.dtype == kRows[row].dtype && plan_has(p, RowIndex(head), row))
        trials.push_back(trial_of(p, RowIndex(head)));
    }
    if (!trials.empty()) break;
  }
  return trials;
}

// ---- The list of equivalent mutants -------------------------------------------------------------

// equivalent.txt: `kernel pattern | file | source line | what | why it changes nothing`
struct Equivalent {
  std::string kernel, file, source, what, why;
  bool used = false;
};

std::string trimmed(const std::string &s) {
  const size_t first = s.find_first_not_of(" \t"), last = s.find_last_not_of(" \t");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

std::vector<Equivalent> read_equivalent() {
  std::vector<Equivalent> all;
  std::ifstream file("tests/mutate/equivalent.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string f[5];
    for (int i = 0; i < 5; ++i) std::getline(fields, f[i], i < 4 ? '|' : '\n');
    all.push_back({trimmed(f[0]), trimmed(f[1]), trimmed(f[2]), trimmed(f[3]), trimmed(f[4])});
  }
  return all;
}

std::string source_line(const std::string &path, int number) {
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < number; ++i) std::getline(file, line);
  return trimmed(line);
}

Equivalent *equivalent(std::vector<Equivalent> &all, const std::string &kernel, const Mutant &m) {
  const std::string source = source_line(m.file, m.line);
  for (Equivalent &e : all)
    if (fnmatch(e.kernel.c_str(), kernel.c_str(), 0) == 0 && e.file == m.file &&
        source.find(e.source) != std::string::npos && (e.what == "*" || e.what == m.what))
      return &e;
  return nullptr;
}

// ---- The run ------------------------------------------------------------------------------------

struct Total {
  int mutants = 0, caught = 0, equivalent = 0, survived = 0;
  void operator+=(const Total &o) {
    mutants += o.mutants;
    caught += o.caught;
    equivalent += o.equivalent;
    survived += o.survived;
  }
};

Total report(RowIndex row, const std::vector<Job> &jobs, std::vector<Equivalent> &list,
             bool verbose) {
  Total total;
  std::map<std::string, int> kinds;
  for (const Job &job : jobs) {
    const Mutant &m = *job.mutant;
    ++total.mutants;
    const char *name = kRows[row].name;
    Equivalent *e = job.verdict.empty() ? equivalent(list, name, m) : nullptr;
    if (!job.verdict.empty()) ++total.caught, ++kinds[job.verdict.substr(0, job.verdict.find(':'))];
    else if (e) ++total.equivalent, e->used = true;
    else ++total.survived;
    if (job.verdict.empty() || verbose)
      std::printf("%-10s %s %s:%d #%d (%s) %s%s%s\n",
                  e ? "equivalent" : job.verdict.empty() ? "SURVIVED" : "caught", name,
                  m.file.c_str(), m.line, m.nth, m.what.c_str(), m.statement.c_str(),
                  job.verdict.empty() ? "" : "\n           ", job.verdict.c_str());
  }
  std::printf("%s: %d mutants, %d caught (", kRows[row].name, total.mutants, total.caught);
  const char *comma = "";
  for (const auto &[kind, count] : kinds) {
    std::printf("%s%d %s", comma, count, kind.c_str());
    comma = ", ";
  }
  std::printf("), %d equivalent, %d survived\n", total.equivalent, total.survived);
  return total;
}

// False if the kernel as it stands is reported, so that nothing can be learnt from its mutants.
bool mutate(RowIndex row, size_t at_a_time, bool verbose, std::vector<Equivalent> &list,
            Total &all) {
  const std::vector<Trial> trials = trials_of(row);
  if (trials.empty()) {
    std::printf("%s: no plan launches it\n", kRows[row].name);
    return false;
  }
  std::vector<Job> sound{{row, nullptr, &trials, 0, ""}};
  const double begin = now();
  run_all(sound, 1, 120);
  const double each = (now() - begin) / double(sound[0].next ? sound[0].next : 1);
  if (!sound[0].verdict.empty()) {
    std::printf("%s: not sound as it is: %s\n", kRows[row].name, sound[0].verdict.c_str());
    return false;
  }
  const std::vector<Mutant> mutants = find_mutants(images[row]);
  std::vector<Job> jobs;
  for (const Mutant &m : mutants) jobs.push_back({row, &m, &trials, 0, ""});
  run_all(jobs, at_a_time, 10 * each + 5);
  all += report(row, jobs, list, verbose);
  std::fflush(stdout);
  return true;
}

} // namespace

int main(int argc, char **argv) {
  size_t at_a_time = 2;
  bool verbose = false, sound = true;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i)
    if (!std::strncmp(argv[i], "--jobs=", 7))
      at_a_time = size_t(std::max(1, std::atoi(argv[i] + 7)));
    else if (!std::strcmp(argv[i], "--verbose")) verbose = true;
    else names.push_back(argv[i]);

  std::vector<Equivalent> list = read_equivalent();
  Total all;
  for (int row = 0; row < kRowCount; ++row) {
    const bool wanted = names.empty() || std::any_of(names.begin(), names.end(), [&](auto &n) {
                          return fnmatch(n.c_str(), kRows[row].name, 0) == 0;
                        });
    if (wanted) sound &= mutate(RowIndex(row), at_a_time, verbose, list, all);
  }
  if (names.empty())
    for (const Equivalent &e : list)
      if (!e.used)
        std::printf("equivalent.txt: no survivor needs the line about %s\n", e.source.c_str());
  const int counted = all.mutants - all.equivalent;
  std::printf("all: %d of %d caught (%.1f %%), %d equivalent\n", all.caught, counted,
              counted ? 100.0 * all.caught / counted : 0.0, all.equivalent);
  return sound && counted && all.caught * 100 >= counted * 95 ? 0 : 1;
}
