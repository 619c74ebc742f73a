// main.cpp - Google Benchmark over every row of src/kernels.def.
//
//   bench --benchmark_filter=fwd_d128.*s8192     rows and shapes by name: <kernel>/<shape>
//
// The shapes are the papers': 16k tokens in all, hidden size 2048.  A row is run on a small problem
// and compared with float64 (E4M3: with the reference kernel) before it is timed; a wrong one is
// not timed.  Times are CUDA events round batches of calls.  A single figure says little on a card
// at its power limit: compare.py interleaves what is to be compared.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

#include "tests/device.h"
#include "tests/device_call.h"
#include "tests/row_machine.h"
#include "tests/storage.h"

namespace {

using fa3ptx::kRowCount;
using fa3ptx::kRows;
using fa3ptx::Row;
using fa3ptx::RowIndex;

std::vector<float> output_of(const DeviceCall &call, const Problem &p) {
  std::vector<uint16_t> bits(size_t(p.batch) * p.seqlen_q * p.heads_q * p.dim_v());
  const auto from = reinterpret_cast<CUdeviceptr>(call.forward.o.data);
  CUDA(cuMemcpyDtoHAsync(bits.data(), from, bits.size() * 2, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
  std::vector<float> o;
  for (uint16_t x : bits) o.push_back(from_storage(fa3ptx_dtype(call.forward.o.dtype), x));
  return o;
}

// An E4M3 row beside the reference kernel, by relative RMS: P has three bits after its first.
std::string fp8_fault(RowMachine &machine, const Problem &p) {
  DeviceCall call(p, false, machine);
  machine.forward(call.forward);
  const std::vector<float> o = output_of(call, p);
  call.forward.flags |= FA3PTX_FLAG_REFERENCE;
  if (call.enqueue() != FA3PTX_OK) return fa3ptx_last_error();
  const std::vector<float> want = output_of(call, p);
  double error = 0, size = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    error += (o[i] - want[i]) * (o[i] - want[i]);
    size += want[i] * want[i];
  }
  const double rms = std::sqrt(error / size);
  return rms <= 0.05 ? "" : "differs from the reference kernel by " + std::to_string(rms);
}

// What is wrong with a row's results on a problem of a few tiles; "" if nothing.
const std::string &fault_of(RowIndex index) {
  static std::map<int, std::string> known;
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  const Row &row = kRows[index];
  Problem p = problem_of(row);
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seqlen_q = 2 * row.tile_m + 5;
  p.seqlen_k = (row.stages + 2) * row.tile_n + 3;
  VerifyOptions options;
  options.forward = !is_backward(row);
  options.backward = is_backward(row);
  RowMachine machine(index);
  if (row.role == fa3ptx::Role::FWD_FP8) return known[index] = fp8_fault(machine, p);
  if (row.role == fa3ptx::Role::FWD_FP8_REF) return known[index] = ""; // what those are held to
  return known[index] = join(verify(machine, p, options));
}

void time_row(benchmark::State &state, RowIndex index, const Problem &p) {
  const bool backward = is_backward(kRows[index]);
  if (!fault_of(index).empty()) return state.SkipWithError(fault_of(index).c_str());
  RowMachine machine(index);
  const DeviceCall call(p, backward, machine);
  const auto enqueue = [&] {
    backward ? machine.enqueue(call.backward) : machine.enqueue(call.forward);
  };
  const double host = time_on_host(enqueue, 20);
  const int calls = 1 + int(0.01 / time_batch(enqueue, 1));
  for (auto _ : state) state.SetIterationTime(time_batch(enqueue, calls));
  using benchmark::Counter;
  const auto rate = [&](double per_call) {
    return Counter(per_call * calls, Counter::kIsIterationInvariantRate);
  };
  state.counters["TFLOP/s"] = rate(flops(p, backward) * 1e-12);
  state.counters["GB/s"] = rate(call.bytes() * 1e-9);
  state.counters["host_us"] = host * 1e6;
  state.counters["calls"] = calls; // in an iteration
}

void add_row(RowIndex index) {
  const Row &row = kRows[index];
  for (int seqlen : {512, 1024, 2048, 4096, 8192, 16384}) {
    // A row for any head dim is a reference kernel, slow: one small problem.
    const bool is_reference = row.head_dim == 0;
    if (is_reference && seqlen > 512) continue;
    for (bool causal : {false, true}) {
      if (row.mask != fa3ptx::Mask::ANY && causal != (row.mask == fa3ptx::Mask::CAUSAL)) continue;
      Problem p = problem_of(row);
      p.causal = causal;
      p.seqlen_q = p.seqlen_k = seqlen;
      p.batch = is_reference ? 1 : 16384 / seqlen;
      p.heads_q = p.heads_kv = is_reference ? 4 : 2048 / p.head_dim;
      const std::string name = std::string(row.name) + "/s" + std::to_string(seqlen) + "_b" +
                               std::to_string(p.batch) + "_h" + std::to_string(p.heads_q) +
                               (causal ? "_causal" : "");
      benchmark::RegisterBenchmark(name.c_str(), time_row, index, p)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.2);
    }
  }
}

} // namespace

int main(int argc, char **argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    if (device().emulated) throw NoDevice("an emulated driver has no speed to measure");
    std::printf("device: %s\n", device().name.c_str());
  } catch (const NoDevice &reason) {
    std::printf("nothing measured: %s\n", reason.what());
    return 0;
  }
  for (int r = 0; r < kRowCount; ++r)
    if (heads_plans(kRows[r])) add_row(RowIndex(r));
  benchmark::RunSpecifiedBenchmarks();
}
