// harness_gpu.cpp - the CUDA device as a Machine.  Everything goes through one stream that does not
// synchronise with the default stream, so a kernel put on the wrong stream is caught.
#include <stdexcept>

#include "device.h"
#include "harness.h"

namespace {

struct Gpu : Machine {
  Gpu() { device(); }

  uint64_t allocate(size_t bytes) override {
    CUdeviceptr address = 0;
    CUDA(cuMemAlloc(&address, bytes));
    return address;
  }
  void release(uint64_t address) override { device().cuda.cuMemFree(address); }

  void upload(uint64_t to, const void *from, size_t bytes) override {
    CUDA(cuMemcpyHtoDAsync(to, from, bytes, device().stream));
    finish();
  }
  void download(void *to, uint64_t from, size_t bytes) override {
    CUDA(cuMemcpyDtoHAsync(to, from, bytes, device().stream));
    finish();
  }

  fa3ptx_status workspace_size(const fa3ptx_forward_args &args, size_t &bytes) override {
    return fa3ptx_forward_workspace_size(&args, &bytes);
  }
  fa3ptx_status workspace_size(const fa3ptx_backward_args &args, size_t &bytes) override {
    return fa3ptx_backward_workspace_size(&args, &bytes);
  }

  fa3ptx_status forward(const fa3ptx_forward_args &args) override {
    const fa3ptx_status status = fa3ptx_forward(&args, device().stream);
    finish();
    return status;
  }
  fa3ptx_status backward(const fa3ptx_backward_args &args) override {
    const fa3ptx_status status = fa3ptx_backward(&args, device().stream);
    finish();
    return status;
  }

  void finish() { CUDA(cuStreamSynchronize(device().stream)); }
};

} // namespace

Machine &gpu() {
  static Gpu machine;
  return machine;
}
