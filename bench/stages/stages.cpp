// stages.cpp - Google Benchmark over stages.def: what each step of the kernels reaches alone.
//
//   make stages ARGS='--benchmark_filter=wgmma --csv=FILE'      make results-stages
//
// Per-clock figures are counted in clocks of the SMs (the median CTA), so they do not depend on the
// frequency that a card at its power limit chooses, which is printed beside them.  GB/s and us are
// by time.  A row whose value is wrong is not timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "device_call.h"
#include "stage_run.h"

namespace {

struct Figure { // of a row, as measured
  double value = 0, limit = 0, megahertz = 0;
  bool has_share(const Stage &s) const { return limit > 0 && value > 0 && s.limit_text != "0"; }
  double share(const Stage &s) const { // of the limit; of a latency, what the limit explains
    return s.unit == "clk" || s.on_host() ? limit / value : value / limit;
  }
};
std::map<std::string, Figure> figures;

// Iterations of about a millisecond; where memory must not be read twice, those that cover it.
unsigned iterations_of(const Stage &s, StageRun &run) {
  if (s.unit == "GB/s")
    return unsigned(run.tensor_bytes() / (s.work(s) / s.cluster() * run.ctas()));
  const StageTimes trial = run.run(200);
  return unsigned(std::clamp(1e-3 / (trial.seconds / 200 + 1e-9), 200.0, 1e6));
}

bool has_its_value(const Stage &s) {
  StageRun run(s, false);
  const double want = s.value(s, 5);
  return std::fabs(run.run(5).value - want) <= std::fabs(want) * 0x1p-11;
}

void time_stage(benchmark::State &state, const Stage &s) {
  if (!has_its_value(s)) return state.SkipWithError("its value is wrong");
  StageRun run(s, true);
  Figure &figure = figures[s.name];
  std::vector<double> values, megahertz;
  if (s.on_host()) {
    const auto enqueue = [&] { run.enqueue(1); };
    time_on_host(enqueue, 5000); // until the host is warm
    for (auto _ : state) {
      const double seconds = time_on_host(enqueue, 100);
      state.SetIterationTime(seconds);
      values.push_back(seconds * 1e6);
    }
  } else {
    if (s.cluster() > 1) run.fit();
    const unsigned n = iterations_of(s, run);
    run.run(n);
    for (auto _ : state) {
      const StageTimes t = run.run(n);
      state.SetIterationTime(t.seconds);
      megahertz.push_back(t.clocks / t.seconds * 1e-6);
      const double clocks = t.clocks / n, from_memory = s.work(s) / s.cluster() * run.ctas() * n;
      values.push_back(s.unit == "clk"    ? clocks
                       : s.unit == "GB/s" ? from_memory / t.all * 1e-9
                                          : s.work(s) / clocks);
    }
  }
  const auto median = [](std::vector<double> v) {
    if (v.empty()) return 0.0;
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  };
  measured()[s.name] = figure.value = median(values);
  figure.limit = s.limit(s);
  figure.megahertz = median(megahertz);
}

// A results file (bench/record.py).
void write_csv(const char *path, const std::vector<const Stage *> &shown) {
  std::FILE *csv = std::fopen(path, "w");
  if (!csv) throw std::runtime_error(std::string("cannot write ") + path);
  double low = 1e9, high = 0;
  for (const Stage *s : shown) {
    const double megahertz = figures[s->name].megahertz;
    if (megahertz > 0) low = std::min(low, megahertz), high = std::max(high, megahertz);
  }
  std::fprintf(csv, "# date: %s\n# commit: %s\n# card: %s\n"
               "# command: make results-stages\n# card's: %d SMs, memory %.0f GB/s\n",
               output_of("date +%F").c_str(),
               output_of(kCommitCommand).c_str(), device().name.c_str(),
               device().multiprocessors, memory());
  std::fprintf(csv, "# clocks: SM %.0f to %.0f MHz\n", low, high);
  for (const Limit &l : limits())
    std::fprintf(csv, "# limit %s: %g %s\n", l.name.c_str(), l.value, l.where_from.c_str());
  std::fprintf(csv, "group,stage,value,unit,limit,share,limit_from,sm_mhz\n");
  for (const Stage *s : shown) {
    const Figure &f = figures[s->name];
    std::string from = s->limit_text;
    from.erase(std::remove(from.begin(), from.end(), '"'), from.end());
    std::fprintf(csv, "%s,%s,%.5g,%s,", s->source.c_str(), s->name.c_str(), f.value,
                 s->unit.c_str());
    if (f.has_share(*s)) std::fprintf(csv, "%.5g,%.3f,%s,", f.limit, f.share(*s), from.c_str());
    else std::fprintf(csv, ",,,");
    std::fprintf(csv, "%.0f\n", f.megahertz);
  }
  std::fclose(csv);
}

class Table : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context &) override {
    std::printf("device: %s, %d SMs, memory %.0f GB/s\n", device().name.c_str(),
                device().multiprocessors, memory());
    for (const Limit &l : limits())
      std::printf("%-12s %5.0f  %s\n", l.name.c_str(), l.value, l.where_from.c_str());
    std::printf("%-36s %9s %-10s %7s %6s %5s  %s\n", "stage", "measured", "unit", "limit", "share",
                "MHz", "limit from");
    return true;
  }
  void ReportRuns(const std::vector<Run> &runs) override {
    for (const Run &run : runs) {
      const Stage &s = stage(run.run_name.function_name);
      if (!figures.count(s.name)) { // how a run says so differs between releases of the library
        std::printf("%-36s not timed, its value is wrong\n", s.name.c_str());
        continue;
      }
      shown.push_back(&s);
      const Figure &f = figures[s.name];
      std::printf("%-36s %9.4g %-10s ", s.name.c_str(), f.value, s.unit.c_str());
      if (f.has_share(s)) std::printf("%7.4g %5.0f%% ", f.limit, 100 * f.share(s));
      else std::printf("%7s %6s ", "-", "-");
      std::printf("%5.0f  %s\n", f.megahertz, f.has_share(s) ? s.limit_text.c_str() : "");
    }
    std::fflush(stdout);
  }
  std::vector<const Stage *> shown;
};

} // namespace

int main(int argc, char **argv) {
  const char *csv = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--csv=", 6) != 0) continue;
    csv = argv[i] + 6;
    std::rotate(argv + i, argv + i + 1, argv + argc--);
    break;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    if (device().emulated) throw NoDevice("an emulated driver has no speed to measure");
  } catch (const NoDevice &reason) {
    std::printf("nothing measured: %s\n", reason.what());
    return 0;
  }
  for (const Stage &s : stages())
    benchmark::RegisterBenchmark(s.name.c_str(), [&s](benchmark::State &state) {
      time_stage(state, s);
    })->UseManualTime()->Iterations(7);
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  if (csv) write_csv(csv, table.shown);
}
