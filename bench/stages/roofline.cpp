// roofline.cpp - what a problem needs, what the card could do of each, and which limit binds.
//
//   make roofline ARGS='--dir bwd --head-dim 128 --seqlen 8192 --causal'
//
//   --dir fwd|bwd   --dtype bf16|fp16|e4m3   --head-dim N   --head-dim-v N   --seqlen N
//   --seqlen-q N   --seqlen-k N   --batch N   --heads N   --heads-kv N   --causal
//   --csv FILE      a table of the papers' problems instead of one
// Without more: 16k tokens, 2048 columns of heads.  Counts follow from the tile that the library
// chooses, so they need no GPU; only the measured time does.  The limits are those of stages.def at
// the SM clock that the card had right behind the calls.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "counts.h"
#include "device_call.h"
#include "stage_run.h"

namespace {

// ---- The card -----------------------------------------------------------------------------------

struct Card {
  double sms = 132, megahertz = 1830, gigabytes = 4800; // an H200 by its data sheet
  bool is_here = false;
};
Card the_card() {
  Card card;
  try {
    if (device().emulated) return card;
    card.sms = device().multiprocessors;
    if (memory() > 0) card.gigabytes = memory();
    card.is_here = true;
  } catch (const NoDevice &) {
  }
  return card;
}

double limit_of(const char *name) {
  for (const Limit &l : limits())
    if (l.name == name) return l.value;
  throw std::runtime_error(std::string("stages.def has no limit ") + name);
}

struct Line { // of the report
  const char *what, *unit;
  double amount, rate; // rate a second
  double seconds() const { return amount / rate; }
};

struct Report {
  fa3ptx_plan_info plan;
  Counts counts;
  Card card;
  double measured = 0; // seconds
  std::vector<Line> lines;
  double limit() const { // seconds
    double most = 0;
    for (const Line &l : lines) most = std::max(most, l.seconds());
    return most;
  }
  bool binds(const Line &l) const { return l.seconds() > 0.99 * limit(); } // equals, too
  std::string binding() const {
    std::string names;
    for (const Line &l : lines)
      if (binds(l)) names += (names.empty() ? "" : " and ") + std::string(l.what);
    return names;
  }
};

Report report_of(const Problem &p, bool backward) {
  Report r;
  r.card = the_card();
  r.plan = explain(p, backward);
  r.counts = count(p, backward, r.plan);
  if (r.card.is_here) {
    const DeviceCall call(p, backward);
    r.measured = time_on_gpu([&] { call.enqueue(); }, 0.1, 0.01, 7);
    static StageRun clock(stage("exp_mufu_4warps"), false);
    const StageTimes times = clock.run(10000); // at the clock that the calls left
    r.card.megahertz = times.clocks / times.seconds * 1e-6;
  }
  const double per_clock = r.card.sms * r.card.megahertz * 1e6;
  const double tensor = limit_of(p.dtype == FA3PTX_E4M3 ? "tensor8" : "tensor16") * per_clock;
  r.lines = {{"products", "FLOP", r.counts.issued, tensor},
             {"exponentials", "exp", r.counts.exps, limit_of("mufu") * per_clock},
             {"L2 to SMs", "B", r.counts.l2_to_sm, limit_of("l2_gives") * per_clock / r.card.sms},
             {"sums in L2", "B", r.counts.sums, limit_of("l2_takes") * per_clock / r.card.sms},
             {"memory", "B", r.counts.memory, r.card.gigabytes * 1e9}};
  return r;
}

void print(const Problem &p, bool backward) {
  const Report r = report_of(p, backward);
  std::printf("%s %s\n%s\n", backward ? "backward" : "forward", p.name().c_str(), r.plan.text);
  std::printf("limits at %.0f SMs, %.0f MHz%s, %.0f GB/s\n\n", r.card.sms, r.card.megahertz,
              r.card.is_here ? " (measured behind the calls)" : " (no GPU here: an H200's)",
              r.card.gigabytes);
  std::printf("%-14s %10s %-5s %12s %10s\n", "what", "needed", "", "limit / s", "time, us");
  for (const Line &l : r.lines)
    std::printf("%-14s %10.4g %-5s %12.4g %10.1f%s\n", l.what, l.amount, l.unit, l.rate,
                l.seconds() * 1e6, r.binds(l) ? "  <- binds" : "");
  std::printf("\nof the products %.1f %% count (the papers' FLOP); the rest is masked or past the "
              "end\n", 100 * r.counts.flop / r.counts.issued);
  if (r.plan.workspace)
    std::printf("memory: every tensor once; the workspace, written and read, is %.1f us more\n",
                2e6 * double(r.plan.workspace) / (r.card.gigabytes * 1e9));
  if (!r.card.is_here) {
    std::printf("measured: nothing, there is no GPU here\n");
    return;
  }
  std::printf("measured: %.1f us, %.0f TFLOP/s; the limit of %s is %.0f %% of it\n",
              r.measured * 1e6, r.counts.flop / r.measured * 1e-12,
              r.binding().c_str(), 100 * r.limit() / r.measured);
}

// ---- The papers' problems -----------------------------------------------------------------------

Problem problem(fa3ptx_dtype dtype, int dim, int seqlen, bool causal) {
  Problem p;
  p.dtype = dtype;
  p.head_dim = dim;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.batch = std::max(1, 16384 / seqlen);
  p.heads_q = p.heads_kv = 2048 / dim;
  p.causal = causal;
  return p;
}

void write_csv(const char *path) {
  std::FILE *csv = std::fopen(path, "w");
  if (!csv) throw std::runtime_error(std::string("cannot write ") + path);
  const Card card = the_card();
  std::fprintf(csv, "# date: %s\n# commit: %s\n# card: %s\n"
               "# command: make results-roofline\n# card's: %.0f SMs, memory %.0f GB/s\n",
               output_of("date +%F").c_str(), output_of(kCommitCommand).c_str(),
               card.is_here ? device().name.c_str() : "none, limits of an H200", card.sms,
               card.gigabytes);
  std::fprintf(csv, "dir,d,mask,seqlen,kernel,flop,issued,exps,l2_bytes,sum_bytes,memory_bytes,"
                    "sm_mhz,products_us,exps_us,l2_us,sums_us,memory_us,measured_us,binds,share\n");
  for (const char *dir : {"fwd", "bwd", "fp8"})
    for (int dim : {64, 128, 256})
      for (bool causal : {false, true})
        for (int seqlen : {512, 8192}) {
          const Problem p = problem(!std::strcmp(dir, "fp8") ? FA3PTX_E4M3 : FA3PTX_BF16, dim,
                                    seqlen, causal);
          const Report r = report_of(p, !std::strcmp(dir, "bwd"));
          std::fprintf(csv, "%s,%d,%s,%d,%s,%.5g,%.5g,%.5g,%.5g,%.5g,%.5g,%.0f", dir, dim,
                       causal ? "causal" : "none", seqlen, r.plan.kernel, r.counts.flop,
                       r.counts.issued, r.counts.exps, r.counts.l2_to_sm, r.counts.sums,
                       r.counts.memory, r.card.megahertz);
          for (const Line &l : r.lines) std::fprintf(csv, ",%.1f", l.seconds() * 1e6);
          if (r.measured > 0)
            std::fprintf(csv, ",%.1f,%s,%.3f\n", r.measured * 1e6, r.binding().c_str(),
                         r.limit() / r.measured);
          else std::fprintf(csv, ",,%s,\n", r.binding().c_str());
        }
  std::fclose(csv);
}

// ---- Command line -------------------------------------------------------------------------------

struct Arguments {
  int count;
  char **words;
  const char *text(const char *name, const char *otherwise) const {
    for (int i = 1; i + 1 < count; ++i)
      if (!std::strcmp(words[i], name)) return words[i + 1];
    return otherwise;
  }
  int number(const char *name, int otherwise) const {
    const char *found = text(name, nullptr);
    return found ? std::atoi(found) : otherwise;
  }
  bool flag(const char *name) const {
    return std::any_of(words + 1, words + count, [&](char *w) { return !std::strcmp(w, name); });
  }
};

fa3ptx_dtype dtype_of(const std::string &name) {
  if (name == "bf16") return FA3PTX_BF16;
  if (name == "fp16") return FA3PTX_FP16;
  if (name == "e4m3") return FA3PTX_E4M3;
  throw std::runtime_error("--dtype is bf16, fp16 or e4m3");
}

} // namespace

int main(int argc, char **argv) try {
  const Arguments a = {argc, argv};
  if (const char *path = a.text("--csv", nullptr)) return write_csv(path), 0;
  const int dim = a.number("--head-dim", 128), seqlen = a.number("--seqlen", 8192);
  Problem p = problem(dtype_of(a.text("--dtype", "bf16")), dim, seqlen, a.flag("--causal"));
  p.head_dim_v = a.number("--head-dim-v", 0);
  p.seqlen_q = a.number("--seqlen-q", seqlen);
  p.seqlen_k = a.number("--seqlen-k", seqlen);
  p.batch = a.number("--batch", p.batch);
  p.heads_q = a.number("--heads", p.heads_q);
  p.heads_kv = a.number("--heads-kv", p.heads_q);
  print(p, !std::strcmp(a.text("--dir", "fwd"), "bwd"));
} catch (const std::exception &problem) {
  std::fprintf(stderr, "roofline: %s\n", problem.what());
  return 1;
}
