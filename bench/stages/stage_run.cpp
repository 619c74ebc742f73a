// stage_run.cpp - see stage_run.h.
#include "stage_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "stage.h"
#include "storage.h"

namespace {

// ---- What the rows' expressions use -------------------------------------------------------------
#define LIMIT(name, value, where_from) [[maybe_unused]] constexpr double name = value;
#include "stages.def"
#undef LIMIT

double of(const char *row) {
  const auto found = measured().find(row);
  return found == measured().end() ? 0 : found->second;
}

double sms() { return device().multiprocessors; }
double least(double a, double b) { return std::min(a, b); }

// FLOP of 8 k-steps, k of them deep, for 64 rows a warpgroup.
double products(const Stage &s, double k) { return s("N") * k * (s("THREADS") - 128); }
double box(const Stage &s) { return s("BOX_ROWS") * s("SPAN"); } // with multicast, what arrives
double words_of_ring(const Stage &s, double n) { return std::min(n, s("STAGES")) * box(s) / 4; }

// x -> 2^(x - 1), n times from 1.5
double powers(double n) {
  double x = 1.5;
  for (int i = 0; i < n; ++i) x = std::exp2(x - 1);
  return x;
}
// `by_fma` of 8 exponentials take 9 instructions, the others a multiply-add and MUFU.
double exponentials(int by_fma) {
  const double issued = issue * 8 / (9 * by_fma + 2 * (8 - by_fma));
  return by_fma == 8 ? issued : std::min(issued, mufu * 8 / (8 - by_fma));
}
float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
// What softmax.ptx sums up for a row's share of columns: a word of P, (1/2 or what follows, 1), is
// every other score, and 0 the rest.
double later_blocks(const Stage &s, double n) {
  return 2 * n * s("TILE_N") / 8 * (std::exp2(as_float(0x3f003f80) - 1) + 0.5);
}
double first_blocks(const Stage &s, double n) {
  double sum = 0, score = as_float(0x3f003f80);
  for (int i = 0; i < 2 * n; ++i) {
    const float other = float(std::exp2(-score)); // the score is the maximum
    sum += s("TILE_N") / 8 * (1 + other);
    score = as_float(uint32_t(to_storage(FA3PTX_BF16, other)) << 16 | 0x3f80);
  }
  return sum;
}

} // namespace

double Stage::operator()(const std::string &define) const {
  const size_t at = (" " + defines).find(" " + define + "=");
  return at == std::string::npos ? 0 : std::atof(defines.c_str() + at + define.size() + 1);
}
unsigned Stage::cluster() const { return std::max(1u, unsigned((*this)("CLUSTER"))); }

const std::vector<Stage> &stages() {
  static const std::vector<Stage> rows = {
#define STAGE(name, source, defines, unit, work, limit, value)                            \
  {#name, #source, #defines, unit, #limit,                                                \
   []([[maybe_unused]] const Stage &s) -> double { return work; },                        \
   []([[maybe_unused]] const Stage &s) -> double { return limit; },                       \
   []([[maybe_unused]] const Stage &s, [[maybe_unused]] double n) -> double { return value; }},
#include "stages.def"
#undef STAGE
  };
  return rows;
}
const Stage &stage(const std::string &name) {
  for (const Stage &s : stages())
    if (s.name == name) return s;
  throw std::runtime_error("stages.def has no row " + name);
}

const std::vector<Limit> &limits() {
  static const std::vector<Limit> all = {
#define LIMIT(name, value, where_from) {#name, value, where_from},
#include "stages.def"
#undef LIMIT
  };
  return all;
}

std::map<std::string, double> &measured() {
  static std::map<std::string, double> values;
  return values;
}

std::string output_of(const char *command) {
  char line[256] = "";
  if (std::FILE *pipe = popen(command, "r")) {
    if (!std::fgets(line, sizeof line, pipe)) line[0] = 0;
    pclose(pipe);
  }
  line[std::strcspn(line, "\n")] = 0;
  return line[0] ? line : "unknown";
}

double memory() {
  int kilohertz = 0, bits = 0;
  CUDA(cuDeviceGetAttribute(&kilohertz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device().handle));
  CUDA(cuDeviceGetAttribute(&bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device().handle));
  return 2e3 * kilohertz * bits / 8 * 1e-9; // two transfers a clock
}

// ---- One row ------------------------------------------------------------------------------------
namespace {
constexpr unsigned kInRegionL2 = 16 << 20, kInRegionMemory = 1 << 30;

template <class T> void put(unsigned char *params, int offset, const T &value) {
  std::memcpy(params + offset, &value, sizeof value);
}
} // namespace

StageRun::StageRun(const Stage &s, bool large)
    : stage_(s),
      file_(built_file("stages", s.name + (device().emulated ? ".ptx" : ".cubin"))),
      kernel_(file_.kernel(s.name)) {
  const unsigned cluster = s.cluster(), all = unsigned(device().multiprocessors);
  const unsigned clusters = large ? all / cluster : 2;
  const unsigned wanted = s("CTAS") ? unsigned(s("CTAS")) : clusters * cluster;
  shape_ = {wanted, unsigned(s("THREADS")), s.source == "load" || cluster > 1 ? cluster : 1,
            unsigned(s("SMEM_BYTES")), false};
  const bool in_memory = (s.source == "load" && !s("FROM_L2")) ||
                         (s.source == "store" && !s("TO_L2"));
  const unsigned span = s("SPAN") ? unsigned(s("SPAN")) : 128;
  row_bytes_ = span * STAGE_HEADS;
  rows_ = (!large ? 1 << 20 : in_memory ? kInRegionMemory : kInRegionL2) / row_bytes_;
  const size_t sums = s.source == "store" ? size_t(wanted) * size_t(s("CHUNKS")) * 16384 : 0;
  in_ = std::make_unique<Buffer>(size_t(rows_) * row_bytes_);
  out_ = std::make_unique<Buffer>(std::max(size_t(rows_) * row_bytes_, sums));
  result_ = std::make_unique<Buffer>(size_t(wanted) * STAGE_RESULT_BYTES);
  in_->fill(1, in_->bytes);
  out_->fill(0, out_->bytes);

  std::memset(params_, 0, sizeof params_);
  if (s.on_host()) {
    put(params_, 0, result_->address);
    set_maps(params_);
    return;
  }
  put(params_, STAGE_IN, in_->address);
  put(params_, STAGE_OUT, out_->address);
  put(params_, STAGE_RESULT, result_->address);
  put(params_, STAGE_ROWS, rows_);
  put(params_, STAGE_SEED, large ? 12345u : 0u);
  const bool is_fp8 = s.defines.find("E4M3") != std::string::npos;
  put(params_, STAGE_SCALE, 1.0f);
  put(params_, STAGE_OFFSET, is_fp8 ? 0.0f : -1.0f);
  set_maps(params_);
}

// (columns, head, row, 1): rows lie as in (batch, seqlen, heads, dim).
void StageRun::set_maps(unsigned char *params) {
  const Stage &s = stage_;
  const uint32_t span = row_bytes_ / STAGE_HEADS;
  const CUtensorMapSwizzle swizzle = span == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                  : CU_TENSOR_MAP_SWIZZLE_32B;
  const auto map = [&](int offset, const Buffer &b, unsigned box_rows) {
    put(params, offset, tensor_map(b.address, 2, {span / 2, STAGE_HEADS, rows_, 1},
                                   {span / 2, 1, box_rows, 1}, swizzle));
  };
  if (s.on_host()) {
    for (int i = 0; i < int(s("MAPS")); ++i) map(64 + 128 * i, *in_, 64);
    return;
  }
  map(STAGE_MAP_IN, *in_, s.source == "load" ? unsigned(s("BOX_ROWS")) / s.cluster() : 8);
  map(STAGE_MAP_OUT, *out_, s.source == "epilogue" ? 64 : 128);
}

void StageRun::enqueue(unsigned iterations) {
  if (stage_.on_host() && stage_("ENCODE")) set_maps(params_);
  if (!stage_.on_host()) put(params_, STAGE_ITERATIONS, iterations);
  cuda_check(launch(kernel_, shape_, device().stream, {params_}), "cuLaunchKernelEx");
}

// GPCs need not come out even in clusters: as many as run at the same time.
void StageRun::fit() {
  for (StageTimes t = run(100); t.all > 1.5 * t.seconds && shape_.grid > shape_.cluster;
       t = run(100))
    shape_.grid -= shape_.cluster;
}

StageTimes StageRun::run(unsigned iterations) {
  result_->fill(0xff, result_->bytes);
  enqueue(iterations);
  const std::vector<uint32_t> words = result_->words(0, result_->bytes / 4);
  const auto at = [&](unsigned cta, int word) { // 64 bits from there
    const size_t first = cta * STAGE_RESULT_BYTES / 4 + word;
    return words[first] | uint64_t(words[first + 1]) << 32;
  };
  std::vector<std::pair<uint64_t, uint64_t>> times; // clocks, nanoseconds
  uint64_t begin = ~uint64_t(0), end = 0;
  for (unsigned cta = 0; cta < shape_.grid; ++cta) {
    times.push_back({at(cta, 0), at(cta, 2)});
    begin = std::min(begin, at(cta, 4));
    end = std::max(end, at(cta, 4) + at(cta, 2));
  }
  std::sort(times.begin(), times.end());
  const auto &median = times[times.size() / 2];
  return {double(median.first), median.second * 1e-9, (end - begin) * 1e-9,
          as_float(uint32_t(at(0, 6)))};
}
