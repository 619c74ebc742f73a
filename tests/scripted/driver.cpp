// driver.cpp - see scripted.h.
#include "scripted.h"

#include <cstring>

extern "C" {

Scripted scripted = {CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS,
                     CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS,
                     0, {90, 90}, {132, 132}, {}, {}, {}, {}, {}, {}, 0, {}, {}};

CUresult cuInit(unsigned) { return scripted.init; }

CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = error == CUDA_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                              : nullptr;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult, const char **text) {
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = scripted.device;
  return scripted.context;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device) {
  const int capability = scripted.capability[device];
  switch (what) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = scripted.multiprocessors[device]; break;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
  return scripted.attribute;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *, void **, unsigned,
                           CUlibraryOption *, void **, unsigned) {
  scripted.loads++;
  *library = reinterpret_cast<CUlibrary>(const_cast<void *>(code));
  return scripted.load;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *) {
  *kernel = reinterpret_cast<CUkernel>(library);
  return scripted.get_kernel;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  scripted.functions++;
  *function = reinterpret_cast<CUfunction>(kernel);
  return scripted.get_function;
}

CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
  scripted.attributes_set++;
  return scripted.set_attribute;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  scripted.encodes++;
  std::memset(map, 0xab, sizeof *map);
  return scripted.encode;
}

CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream) {
  scripted.memsets++;
  return scripted.memset;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction, void **params, void **) {
  scripted.launches++;
  if (scripted.param_size > 0) { // a test with one thread asks for it
    scripted.last = *config;
    std::memcpy(scripted.params, params[0], scripted.param_size);
  }
  return scripted.launch;
}

} // extern "C"
