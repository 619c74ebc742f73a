// device.cpp - see device.h.
#include "device.h"

#include <dlfcn.h>

#include <cstdlib>

namespace {

#define SPELL_(x) #x
#define SPELL(x) SPELL_(x)

CudaCalls open_driver() {
  const char *path = std::getenv("FA3PTX_LIBCUDA");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) throw NoDevice(std::string("no CUDA driver: ") + dlerror());
  CudaCalls calls;
#define CALL(name)                                                                 \
  calls.name = reinterpret_cast<decltype(calls.name)>(dlsym(library, SPELL(name))); \
  if (!calls.name) throw NoDevice("the CUDA driver has no " SPELL(name));
  CUDA_CALLS(CALL)
#undef CALL
  return calls;
}

std::string error_name(const CudaCalls &cuda, CUresult result) {
  const char *name = nullptr;
  if (cuda.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) return std::to_string(result);
  return name;
}

Device open_device() {
  Device d;
  d.cuda = open_driver();
  const auto usable = [&](CUresult result, const char *call) {
    if (result != CUDA_SUCCESS) throw NoDevice(call + (": " + error_name(d.cuda, result)));
  };
  int count = 0, major = 0, minor = 0;
  char name[256] = "";
  usable(d.cuda.cuInit(0), "cuInit");
  usable(d.cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) throw NoDevice("the CUDA driver has no device");
  usable(d.cuda.cuDeviceGet(&d.handle, 0), "cuDeviceGet");
  usable(d.cuda.cuDeviceGetName(name, sizeof name, d.handle), "cuDeviceGetName");
  const auto attribute = [&](int *value, CUdevice_attribute which) {
    usable(d.cuda.cuDeviceGetAttribute(value, which, d.handle), "cuDeviceGetAttribute");
  };
  attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  attribute(&d.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  d.name = name;
  d.emulated = d.name.find("mulated") != std::string::npos;
  if (major != 9 || minor != 0)
    throw NoDevice(d.name + " has compute capability " + std::to_string(major) + "." +
                   std::to_string(minor) + ", the kernels need 9.0");
  CUcontext context = nullptr;
  usable(d.cuda.cuDevicePrimaryCtxRetain(&context, d.handle), "cuDevicePrimaryCtxRetain");
  usable(d.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  usable(d.cuda.cuStreamCreate(&d.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return d;
}

} // namespace

Device &device() {
  static Device d = open_device();
  return d;
}

void cuda_check(CUresult result, const char *call) {
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(std::string(call) + ": " + error_name(device().cuda, result));
}

void run_as_graph(const std::function<void()> &enqueue, int launches) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUDA(cuStreamBeginCapture(device().stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  enqueue();
  CUDA(cuStreamEndCapture(device().stream, &graph));
  CUDA(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < launches; ++i) CUDA(cuGraphLaunch(exec, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
  CUDA(cuGraphExecDestroy(exec));
  CUDA(cuGraphDestroy(graph));
}
