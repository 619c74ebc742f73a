// cases.cpp - see cases.h.
//
// Protocol: the parent writes a case's name and a newline to the worker's stdin; the worker answers
// with one line on its reply pipe: "passed", "failed" or "skipped REASON"; "last " in front says
// that it serves no more.  What the case prints goes to a temporary file that the parent reads when
// the case failed.
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "device.h"

namespace {

std::vector<Case> &registry() {
  static std::vector<Case> all;
  return all;
}

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

class Worker {
 public:
  Worker() : output_(std::tmpfile()) {}
  ~Worker() {
    stop();
    std::fclose(output_);
  }
  Worker(const Worker &) = delete;

  CaseResult run(const Case &c) {
    if (pid_ <= 0) start();
    const double begin = now();
    const std::string line = c.name + "\n";
    std::string answer;
    if (write(to_, line.data(), line.size()) == ssize_t(line.size()))
      answer = read_line(begin + c.limit_seconds);
    CaseResult result;
    result.seconds = now() - begin;
    if (answer.compare(0, 5, "last ") == 0) {
      answer.erase(0, 5);
      if (answer != "failed") stop();
    }
    if (answer == "passed") {
      result.verdict = CaseResult::passed;
      return result;
    }
    if (answer.compare(0, 8, "skipped ") == 0) {
      result.verdict = CaseResult::skipped;
      result.text = answer.substr(8);
      return result;
    }
    const bool hung = answer.empty() && result.seconds >= c.limit_seconds;
    if (hung) kill(pid_, SIGKILL);
    const std::string ending = stop();
    if (hung) result.text = "did not end within " + std::to_string(c.limit_seconds) + " s\n";
    else if (answer.empty()) result.text = ending + "\n";
    result.text += printed();
    return result;
  }

 private:
  // Opens the pipes and starts this program again as a worker.  The parent may have threads, so
  // between fork and exec only calls that are safe there are made.
  void start() {
    int in[2], reply[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(reply, O_CLOEXEC)) throw std::runtime_error("pipe failed");
    const int output = fileno(output_);
    (void)!ftruncate(output, 0);
    lseek(output, 0, SEEK_SET);
    static constexpr int REPLY = 3;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(output, 1);
      dup2(output, 2);
      if (reply[1] == REPLY) fcntl(REPLY, F_SETFD, 0);
      else dup2(reply[1], REPLY);
      const char *const arguments[] = {"/proc/self/exe", "--worker=3", nullptr};
      execv(arguments[0], const_cast<char *const *>(arguments));
      _exit(127);
    }
    close(in[0]);
    close(reply[1]);
    to_ = in[1];
    from_ = reply[0];
  }

  // Closes the pipes, waits for the worker and says how it ended.
  std::string stop() {
    if (pid_ <= 0) return "";
    close(to_);
    close(from_);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    if (WIFSIGNALED(status))
      return std::string("ended by signal ") + strsignal(WTERMSIG(status));
    return "ended with exit status " + std::to_string(WEXITSTATUS(status));
  }

  std::string read_line(double deadline) {
    std::string line;
    for (;;) {
      const double left = deadline - now();
      pollfd wait = {from_, POLLIN, 0};
      if (left <= 0 || poll(&wait, 1, int(left * 1000) + 1) <= 0) return "";
      char c;
      if (read(from_, &c, 1) != 1) return "";
      if (c == '\n') return line;
      line += c;
    }
  }

  std::string printed() const {
    std::string text(size_t(64) << 10, '\0');
    const ssize_t n = pread(fileno(output_), text.data(), text.size(), 0);
    text.resize(n > 0 ? size_t(n) : 0);
    return text;
  }

  FILE *output_;
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

} // namespace

const Case *current_case = nullptr;

bool add_case(Case c) {
  for (const Case &other : registry())
    if (other.name == c.name) throw std::logic_error("two cases are called: " + c.name);
  registry().push_back(std::move(c));
  return false;
}

const std::vector<Case> &cases() { return registry(); }

void run_cases(const std::vector<const Case *> &list, int jobs,
               const std::function<void(const Case &, const CaseResult &)> &done) {
  signal(SIGPIPE, SIG_IGN); // a worker that died shows up as a failed write
  std::atomic<size_t> next{0};
  std::mutex one_at_a_time;
  const auto work = [&] {
    Worker worker;
    for (size_t i; (i = next++) < list.size();) {
      const CaseResult result = worker.run(*list[i]);
      const std::lock_guard<std::mutex> lock(one_at_a_time);
      done(*list[i], result);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread &thread : threads) thread.join();
}

namespace {

// "" if the case can run here, else why not.
std::string unmet_need(const Case &c) {
  if (c.needs == Case::nothing) return "";
  try {
    const bool emulated = device().emulated;
    if (c.needs >= Case::real_gpu && emulated) return "needs a GPU, not an emulated one";
    if (c.needs == Case::large_gpu) {
      size_t free = 0, total = 0;
      CUDA(cuMemGetInfo(&free, &total));
      if (free < size_t(40) << 30) return "needs 40 GiB of GPU memory";
    }
  } catch (const NoDevice &reason) {
    // A driver that was asked for by path and is not there is no reason to skip anything.
    if (std::getenv("FA3PTX_LIBCUDA")) throw;
    return reason.what();
  }
  return "";
}

bool spent = false;

std::string answer_for(const Case *c, bool (*run_body)()) {
  if (!c) return "skipped there is no such case";
  try {
    const std::string need = unmet_need(*c);
    if (!need.empty()) return "skipped " + need;
    return run_body() ? "passed" : "failed";
  } catch (const Skip &reason) {
    return std::string("skipped ") + reason.what();
  } catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    return "failed";
  }
}

} // namespace

void spent_device() { spent = true; }

int serve_cases(int reply_fd, bool (*run_body)()) {
  char name[512];
  while (!spent && std::fgets(name, sizeof name, stdin)) {
    name[std::strcspn(name, "\n")] = '\0';
    (void)!ftruncate(1, 0); // what earlier cases printed; fails harmlessly on a terminal
    lseek(1, 0, SEEK_SET);
    current_case = nullptr;
    for (const Case &c : cases())
      if (c.name == name) current_case = &c;
    std::string answer = answer_for(current_case, run_body);
    std::fflush(nullptr);
    for (char &c : answer)
      if (c == '\n') c = ' ';
    answer = (spent ? "last " : "") + answer + '\n';
    if (write(reply_fd, answer.data(), answer.size()) != ssize_t(answer.size())) return 1;
  }
  return 0;
}
