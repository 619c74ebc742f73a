// calls.cpp - what a call costs the host, and what the quantise calls reach of a plain copy.
//
//   make bench ARGS='--benchmark_filter=host/|quantize/|copy'         make results-calls
//
// host/: microseconds of CPU time to enqueue one call of a small problem (8 heads of 64), counter
// `us`.  quantize/ and copy: counter GB/s, bytes read and written over GPU time; tensors of 64k
// tokens and 2048 columns do not stay in L2, and take far longer than a launch.
#include <benchmark/benchmark.h>

#include <stdexcept>

#include "device_call.h"

namespace {

constexpr int kBatch = 4, kSeqlen = 16384, kColumns = 2048;

double gigabytes_per_second(benchmark::State &state, const std::function<void()> &enqueue,
                            double bytes) {
  const int calls = 1 + int(0.01 / time_on_gpu(enqueue, 0.05, 0.005, 3));
  double seconds = 0, rounds = 0;
  for (auto _ : state) {
    const double each = time_batch(enqueue, calls);
    state.SetIterationTime(each);
    seconds += each / calls, rounds += 1;
  }
  return bytes * rounds / seconds * 1e-9;
}

void host(benchmark::State &state, bool backward, int seqlen) {
  Problem p;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.heads_q = p.heads_kv = 8;
  const DeviceCall call(p, backward);
  const auto enqueue = [&] {
    if (call.enqueue() != FA3PTX_OK) throw std::runtime_error(fa3ptx_last_error());
  };
  time_on_host(enqueue, 100);
  double seconds = 0, rounds = 0;
  for (auto _ : state) {
    const double each = time_on_host(enqueue, 200); // fewer than the driver queues up
    state.SetIterationTime(each);
    seconds += each, rounds += 1;
  }
  state.counters["us"] = seconds / rounds * 1e6;
}

void quantize(benchmark::State &state, int head_dim, int block, uint32_t flags) {
  const int heads = kColumns / head_dim, blocks = block ? kSeqlen / block : 1;
  const size_t count = size_t(kBatch) * kSeqlen * kColumns;
  const Buffer src(count * 2), dst(count), scale(size_t(kBatch) * heads * blocks * 4);
  CUDA(cuMemsetD8Async(src.address, 0x3c, src.bytes, device().stream));
  fa3ptx_quantize_args a = {};
  a.struct_size = sizeof a;
  a.src = fa3ptx_bshd(reinterpret_cast<void *>(src.address), FA3PTX_BF16, kSeqlen, heads, head_dim);
  a.dst = fa3ptx_bshd(reinterpret_cast<void *>(dst.address), FA3PTX_E4M3, kSeqlen, heads, head_dim);
  a.scale = reinterpret_cast<float *>(scale.address);
  a.batch = kBatch, a.seqlen = kSeqlen, a.heads = heads, a.head_dim = head_dim;
  a.block = block, a.flags = flags;
  const auto enqueue = [&] {
    if (fa3ptx_quantize(&a, device().stream) != FA3PTX_OK)
      throw std::runtime_error(fa3ptx_last_error());
  };
  state.counters["GB/s"] = gigabytes_per_second(state, enqueue, double(count) * 3);
}

void copy(benchmark::State &state) {
  const size_t bytes = size_t(1) << 29;
  const Buffer from(bytes), to(bytes);
  const auto enqueue = [&] {
    CUDA(cuMemcpyDtoDAsync(to.address, from.address, bytes, device().stream));
  };
  state.counters["GB/s"] = gigabytes_per_second(state, enqueue, 2.0 * bytes);
}

template <typename... Arguments>
void add(const std::string &name, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(10);
}

const bool added = [] {
  for (const bool backward : {false, true})
    for (const int seqlen : {64, 512})
      add(std::string("host/") + (backward ? "backward" : "forward") + "_s" +
              std::to_string(seqlen),
          host, backward, seqlen);
  add("copy", copy);
  for (const int head_dim : {64, 128, 256})
    for (const uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_HADAMARD)})
      for (const int block : {128, 0})
        add("quantize/d" + std::to_string(head_dim) + (block ? "_block" : "_head") +
                (flags ? "_rotated" : ""),
            quantize, head_dim, block, flags);
  return true;
}();

} // namespace
