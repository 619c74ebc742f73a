// mutate.cpp - is everything that orders a kernel's accesses there for a reason, and would the
// emulated driver tell us if it were not?
//
//     mutate [--jobs=N] [--verbose] [--table] [NAME...]       rows of src/kernels.def; none: all
//
// Each fence, wait, arrival, barrier and commit of a row's PTX is taken away in turn (mutants.h) in
// a child process that then runs a small problem under the emulated driver: two query tiles, stages
// + 2 key tiles, several seeds, on one multiprocessor (so that a CTA does several tiles) and on
// more.  A mutant is caught if it is reported, computes something wrong, fails or does not end.
// Survivors are listed with their source lines; equivalent.txt holds those that are proved to
// change nothing.  Exit status 1: under 95 % of the others are caught, or, of all rows, none needs
// some line of equivalent.txt.  --table: a line of a table for each row (README.md has them).
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
#include <map>

#include "tests/mutants.h"
#include "trial.h"

using namespace fa3ptx;

#define KERNEL(name, ...) \
  extern "C" __attribute__((visibility("hidden"), weak)) char fa3ptx_image_##name[];
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
  std::vector<Trial> *trials;
  bool patient;         // all schedules for all problems
  size_t next;          // schedule * trials + trial
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

// What is wrong with a child's answer, "" if nothing.
std::string judge(Job &job, const std::string &answer) {
  if (answer[0] != '=') return answer;
  const size_t n = job.trials->size();
  Trial &trial = (*job.trials)[job.next % n];
  const std::string &first =
      trial.bits.emplace(schedules[job.next / n].multiprocessors, answer).first->second;
  if (!trial.repeatable || first == answer) return "";
  return "wrong: not the same bits under every schedule";
}

// On to the next problem and schedule; false if there is none.
bool advance(Job &job) {
  const size_t n = job.trials->size();
  while (++job.next < n * schedule_count) {
    const Trial &trial = (*job.trials)[job.next % n];
    if (job.patient || job.next / n < usual_schedules || (trial.repeatable && trial.backward))
      return true;
  }
  return false;
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
      Job &job = *child.job;
      job.verdict = judge(job, finish(child));
      if (!job.verdict.empty()) continue;
      if (advance(job)) waiting.push_back(&job);
    }
  }
}

// ---- The run ------------------------------------------------------------------------------------

bool table = false;

struct Total {
  int mutants = 0, caught = 0, equivalent = 0, survived = 0;
  void operator+=(const Total &o) {
    mutants += o.mutants;
    caught += o.caught;
    equivalent += o.equivalent;
    survived += o.survived;
  }
};

void print(RowIndex row, const char *fate, const Job &job) {
  const Mutant &m = *job.mutant;
  std::printf("%-11s %s %s:%d #%d (%s) %s\n", fate, kRows[row].name, m.file.c_str(), m.line, m.nth,
              m.what.c_str(), m.statement.c_str());
  if (!job.verdict.empty()) std::printf("            %s\n", job.verdict.c_str());
}

// `reached`: for each survivor, in order, whether any problem comes by its statement.
Total report(RowIndex row, const std::vector<Job> &jobs, const std::vector<bool> &reached,
             std::vector<Equivalent> &list, bool verbose) {
  Total total;
  std::map<std::string, int> kinds;
  size_t survivor = 0;
  for (const Job &job : jobs) {
    ++total.mutants;
    if (!job.verdict.empty()) {
      ++total.caught;
      ++kinds[job.verdict.substr(0, job.verdict.find(':'))];
      if (verbose) print(row, "caught", job);
      continue;
    }
    const bool here = reached[survivor++];
    Equivalent *e = find_equivalent(list, kRows[row].name, *job.mutant);
    if (e) e->used = true;
    ++(e ? total.equivalent : total.survived);
    if (!table && (!e || verbose))
      print(row, e ? "equivalent" : here ? "SURVIVED" : "NOT REACHED", job);
  }
  if (table) {
    std::printf("| %s | %d | %d | %d | %d |\n", kRows[row].name, total.mutants, total.caught,
                total.equivalent, total.survived);
    return total;
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
  std::vector<Trial> trials = trials_of(row);
  if (trials.empty()) {
    std::printf("%s: no plan launches it\n", kRows[row].name);
    return false;
  }
  std::vector<Job> sound{{row, nullptr, &trials, false, 0, ""}};
  const double begin = now();
  run_all(sound, 1, 120);
  const double each = (now() - begin) / double(trials.size() * usual_schedules);
  if (!sound[0].verdict.empty()) {
    std::printf("%s: not sound as it is: %s\n", kRows[row].name, sound[0].verdict.c_str());
    return false;
  }
  const std::vector<Mutant> mutants = find_mutants(images[row]);
  std::vector<Job> jobs;
  for (const Mutant &m : mutants)
    jobs.push_back({row, &m, &trials, !find_equivalent(list, kRows[row].name, m), 0, ""});
  run_all(jobs, at_a_time, 10 * each + 5);
  std::vector<Mutant> traps;
  for (const Job &job : jobs)
    if (job.verdict.empty()) traps.push_back(trap_at(*job.mutant));
  std::vector<Job> visits;
  for (const Mutant &m : traps) visits.push_back({row, &m, &trials, false, 0, ""});
  run_all(visits, at_a_time, 10 * each + 5);
  std::vector<bool> reached;
  for (const Job &job : visits) reached.push_back(!job.verdict.empty());
  all += report(row, jobs, reached, list, verbose);
  std::fflush(stdout);
  return true;
}

} // namespace

int main(int argc, char **argv) {
  size_t at_a_time = 2;
  bool verbose = false, sound = true, any = false;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i)
    if (!std::strncmp(argv[i], "--jobs=", 7))
      at_a_time = size_t(std::max(1, std::atoi(argv[i] + 7)));
    else if (!std::strcmp(argv[i], "--verbose")) verbose = true;
    else if (!std::strcmp(argv[i], "--table")) table = true;
    else names.push_back(argv[i]);

  std::vector<Equivalent> list = read_equivalents();
  Total all;
  for (int row = 0; row < kRowCount; ++row) {
    const bool wanted = names.empty() || std::any_of(names.begin(), names.end(), [&](auto &n) {
                          return fnmatch(n.c_str(), kRows[row].name, 0) == 0;
                        });
    if (!wanted || !images[row]) continue; // the build may leave rows out
    any = true;
    sound &= mutate(RowIndex(row), at_a_time, verbose, list, all);
  }
  for (const Equivalent &e : list)
    if (names.empty() && !e.used) {
      std::printf("equivalent.txt: no survivor needs the line %s | %s | %s\n", e.kernel.c_str(),
                  e.source.c_str(), e.statement.c_str());
      sound = false;
    }
  if (!any) {
    std::printf("no such row in this build\n");
    return 2;
  }
  const int counted = all.mutants - all.equivalent;
  std::printf("all: %d of %d caught (%.1f %%), %d equivalent\n", all.caught, counted,
              counted ? 100.0 * all.caught / counted : 0.0, all.equivalent);
  return sound && counted && all.caught * 100 >= counted * 95 ? 0 : 1;
}
