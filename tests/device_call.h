// device_call.h - one call with its tensors on the device, to be made again and again: for timing.
#pragma once
#include <functional>

#include "harness.h"
#include "ptx_run.h"

// Contiguous (batch, seqlen, heads, dim) tensors of normal numbers.  For a backward call the
// forward has been run, and `machine` says how much workspace the backward needs.
class DeviceCall {
 public:
  DeviceCall(const Problem &, bool backward, Machine &machine = gpu());
  fa3ptx_forward_args forward = {};
  fa3ptx_backward_args backward = {};
  fa3ptx_status enqueue() const; // the kernel the library chooses, on device().stream
  double bytes() const;          // read and written at least: every tensor once

 private:
  fa3ptx_tensor tensor(int32_t dtype, int heads, int seqlen, int dim);
  void *allocate(size_t bytes);

  Problem p_;
  bool backward_call_;
  size_t tensor_bytes_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Seconds of GPU time for `calls` calls, by events round the batch.
double time_batch(const std::function<void()> &enqueue, int calls);

// Seconds of GPU time per call: after a warm-up of `warm_up` seconds, the median of `rounds` rounds
// of about `round` seconds each.
double time_on_gpu(const std::function<void()> &enqueue, double warm_up, double round, int rounds);

// Seconds of CPU time per call, by the clock: what it costs to enqueue one.
double time_on_host(const std::function<void()> &enqueue, int calls);
