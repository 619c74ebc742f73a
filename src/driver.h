// driver.h - libcuda, opened at run time so that the library loads on any machine.
#pragma once

#include <cuda.h>

#include "src/plan.h"

namespace fa3ptx {

// The entry points used.  cuda.h renames some by macro (cuMemAlloc is cuMemAlloc_v2): the names are
// macro-expanded before they become strings, so each pointer is what cuda.h declares.
#define FA3PTX_DRIVER_FUNCTIONS(F)                                                                 \
  F(cuInit)                                                                                        \
  F(cuGetErrorName)                                                                                \
  F(cuGetErrorString)                                                                              \
  F(cuCtxGetDevice)                                                                                \
  F(cuDeviceGetAttribute)                                                                          \
  F(cuLibraryLoadData)                                                                             \
  F(cuLibraryGetKernel)                                                                            \
  F(cuKernelGetFunction)                                                                           \
  F(cuKernelSetAttribute)                                                                          \
  F(cuTensorMapEncodeTiled)                                                                        \
  F(cuMemsetD32Async)                                                                              \
  F(cuLaunchKernelEx)

struct Driver {
#define F(name) decltype(&::name) name;
  FA3PTX_DRIVER_FUNCTIONS(F)
#undef F
};

// Opens libcuda on first use (FA3PTX_LIBCUDA: path of another one).  A failure is not remembered.
fa3ptx_status get_driver(const Driver *&driver, Error &e);

// The device of the current context, which must be of compute capability 9.0, with its driver.
struct Device {
  const Driver *driver = nullptr;
  CUdevice handle = 0;
  DeviceProps props;
};
fa3ptx_status current_device(Device &device, Error &e);

// FA3PTX_ERROR_DRIVER and the sentence for a driver call that returned `result`.
fa3ptx_status driver_failure(const Driver &driver, const char *call, CUresult result, Error &e);

} // namespace fa3ptx
