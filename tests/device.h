// device.h - the CUDA driver as tests, demo and benches use it.  They open libcuda themselves, by
// the library's rule: environment variable FA3PTX_LIBCUDA, else libcuda.so.1.
#pragma once
#include <cuda.h>

#include <functional>
#include <stdexcept>
#include <string>

// The driver calls that are used.  cuda.h renames many of them (cuMemAlloc is cuMemAlloc_v2): the
// list holds the documented names, and the symbol looked up is what cuda.h makes of them.
#define CUDA_CALLS(CALL)                                                                       \
  CALL(cuInit) CALL(cuGetErrorName) CALL(cuDriverGetVersion)                                   \
  CALL(cuDeviceGetCount) CALL(cuDeviceGet) CALL(cuDeviceGetName) CALL(cuDeviceGetAttribute)    \
  CALL(cuDevicePrimaryCtxRetain) CALL(cuCtxSetCurrent) CALL(cuCtxSynchronize)                  \
  CALL(cuMemAlloc) CALL(cuMemFree) CALL(cuMemGetInfo) CALL(cuMemsetD8Async)                    \
  CALL(cuMemcpyHtoDAsync) CALL(cuMemcpyDtoHAsync) CALL(cuMemcpyDtoDAsync)                      \
  CALL(cuStreamCreate) CALL(cuStreamSynchronize) CALL(cuStreamQuery) CALL(cuStreamBeginCapture) \
  CALL(cuStreamEndCapture) CALL(cuGraphInstantiate) CALL(cuGraphLaunch)                        \
  CALL(cuGraphDestroy) CALL(cuGraphExecDestroy)                                                \
  CALL(cuEventCreate) CALL(cuEventDestroy) CALL(cuEventRecord) CALL(cuEventSynchronize)        \
  CALL(cuEventElapsedTime)

struct CudaCalls {
#define CALL(name) decltype(&::name) name = nullptr;
  CUDA_CALLS(CALL)
#undef CALL
};

// A machine without a usable GPU: tests are skipped for this reason.
struct NoDevice : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Device 0 with its primary context current, and a stream.  `device()` throws NoDevice.
struct Device {
  CudaCalls cuda;
  CUdevice handle = 0;
  CUstream stream = nullptr; // does not synchronise with the default stream
  std::string name;
  bool emulated = false;
  int multiprocessors = 0;
};
Device &device();

// Throws std::runtime_error with the call and the error's name.
void cuda_check(CUresult result, const char *call);
#define CUDA(call) cuda_check(device().cuda.call, #call)

// Captures what `enqueue` puts on device().stream and launches it as a graph, so often; then waits.
// The capture is of the strictest mode: in it a call may do nothing but enqueue.
void run_as_graph(const std::function<void()> &enqueue, int launches = 1);
