// device_call.cpp - see device_call.h.
#include "device_call.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>

#include "device.h"
#include "storage.h"

namespace {

// Normal numbers (two E4M3 a word), repeating after 2^20 words: made once, since a benchmark's
// tensors are large.
const std::vector<uint16_t> &normal_words(fa3ptx_dtype dtype) {
  static std::vector<uint16_t> by_dtype[FA3PTX_E4M3 + 1];
  std::vector<uint16_t> &words = by_dtype[dtype];
  if (words.empty()) {
    std::mt19937_64 engine(base_seed());
    std::normal_distribution<float> gauss;
    for (int i = 0; i < 1 << 20; ++i) {
      const float x = gauss(engine), y = gauss(engine);
      words.push_back(dtype == FA3PTX_E4M3 ? float_to_e4m3(x) | float_to_e4m3(y) << 8
                                           : to_storage(dtype, x));
    }
  }
  return words;
}

void require(fa3ptx_status status) {
  if (status != FA3PTX_OK) throw std::runtime_error(fa3ptx_last_error());
}

double seconds_now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Event {
  CUevent event = nullptr;
  Event() { CUDA(cuEventCreate(&event, CU_EVENT_DEFAULT)); }
  ~Event() { device().cuda.cuEventDestroy(event); }
  Event(const Event &) = delete;
};

} // namespace

double time_batch(const std::function<void()> &enqueue, int calls) {
  const Event begin, end;
  CUDA(cuEventRecord(begin.event, device().stream));
  for (int i = 0; i < calls; ++i) enqueue();
  CUDA(cuEventRecord(end.event, device().stream));
  CUDA(cuEventSynchronize(end.event));
  float milliseconds = 0;
  CUDA(cuEventElapsedTime(&milliseconds, begin.event, end.event));
  return milliseconds * 1e-3;
}

void *DeviceCall::allocate(size_t bytes) {
  buffers_.push_back(std::make_unique<Buffer>(std::max<size_t>(bytes, 256)));
  return reinterpret_cast<void *>(buffers_.back()->address);
}

fa3ptx_tensor DeviceCall::tensor(int32_t dtype, int heads, int seqlen, int dim) {
  const std::vector<uint16_t> &words = normal_words(fa3ptx_dtype(dtype));
  const size_t size = dtype == FA3PTX_E4M3 ? 1 : 2, period = words.size() * 2;
  const size_t bytes = size_t(p_.batch) * heads * seqlen * dim * size;
  void *data = allocate(bytes);
  const CUdeviceptr to = reinterpret_cast<CUdeviceptr>(data);
  CUDA(cuMemcpyHtoDAsync(to, words.data(), std::min(bytes, period), device().stream));
  for (size_t filled = period; filled < bytes; filled *= 2)
    CUDA(cuMemcpyDtoDAsync(to + filled, to, std::min(filled, bytes - filled), device().stream));
  tensor_bytes_ += bytes;
  return fa3ptx_bshd(data, fa3ptx_dtype(dtype), seqlen, heads, dim);
}

DeviceCall::DeviceCall(const Problem &p, bool backward_call, Machine &machine)
    : p_(p), backward_call_(backward_call) {
  forward = shape_args(p);
  forward.q = tensor(forward.q.dtype, p.heads_q, p.seqlen_q, p.head_dim);
  forward.k = tensor(forward.k.dtype, p.heads_kv, p.seqlen_k, p.head_dim);
  forward.v = tensor(forward.v.dtype, p.heads_kv, p.seqlen_k, p.dim_v());
  forward.o = tensor(forward.o.dtype, p.heads_q, p.seqlen_q, p.dim_v());
  forward.lse = static_cast<float *>(allocate(size_t(p.batch) * p.heads_q * p.seqlen_q * 4));
  Machine &forward_machine = backward_call ? gpu() : machine;
  require(forward_machine.workspace_size(forward, forward.workspace_size));
  if (forward.workspace_size) forward.workspace = allocate(forward.workspace_size);
  if (!backward_call) return;

  require(fa3ptx_forward(&forward, device().stream));
  backward = backward_shape_args(p);
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.o = forward.o;
  backward.lse = forward.lse;
  backward.dout = tensor(p.dtype, p.heads_q, p.seqlen_q, p.dim_v());
  backward.dq = tensor(p.dtype, p.heads_q, p.seqlen_q, p.head_dim);
  backward.dk = tensor(p.dtype, p.heads_kv, p.seqlen_k, p.head_dim);
  backward.dv = tensor(p.dtype, p.heads_kv, p.seqlen_k, p.dim_v());
  require(machine.workspace_size(backward, backward.workspace_size));
  if (backward.workspace_size) backward.workspace = allocate(backward.workspace_size);
  CUDA(cuStreamSynchronize(device().stream));
}

fa3ptx_status DeviceCall::enqueue() const {
  return backward_call_ ? fa3ptx_backward(&backward, device().stream)
                        : fa3ptx_forward(&forward, device().stream);
}

double DeviceCall::bytes() const {
  return double(tensor_bytes_) + double(p_.batch) * p_.heads_q * p_.seqlen_q * 4;
}

double time_on_gpu(const std::function<void()> &enqueue, double warm_up, double round,
                   int rounds) {
  const double begin = seconds_now();
  double once = time_batch(enqueue, 1);
  const auto batch = [&](double seconds) {
    const int calls = 1 + int(seconds / once);
    return time_batch(enqueue, calls) / calls;
  };
  while (seconds_now() - begin < warm_up) once = batch(0.01);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(batch(round));
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

double time_on_host(const std::function<void()> &enqueue, int calls) {
  CUDA(cuStreamSynchronize(device().stream));
  const double begin = seconds_now();
  for (int i = 0; i < calls; ++i) enqueue();
  const double seconds = (seconds_now() - begin) / calls;
  CUDA(cuStreamSynchronize(device().stream));
  return seconds;
}
