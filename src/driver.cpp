#include "src/driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace fa3ptx {
namespace {

pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
Driver functions;                      // written under `opening`, before `opened` is set
std::atomic<const Driver *> opened{nullptr};

fa3ptx_status open_driver(Error &e) {
  const char *path = getenv("FA3PTX_LIBCUDA");
  if (!path || !*path) path = "libcuda.so.1";
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    return fail(e, FA3PTX_ERROR_NO_DRIVER, "the CUDA driver %s cannot be opened: %s", path,
                why ? why : "no reason given");
  }
#define TEXT_OF(name) #name
#define F(name)                                                                                    \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, TEXT_OF(name)));      \
  if (!functions.name)                                                                             \
    return fail(e, FA3PTX_ERROR_NO_DRIVER, "the CUDA driver %s is too old: it has no %s", path,    \
                TEXT_OF(name));
  FA3PTX_DRIVER_FUNCTIONS(F)
#undef F
#undef TEXT_OF
  const CUresult result = functions.cuInit(0);
  if (result != CUDA_SUCCESS) {
    const char *name = "";
    functions.cuGetErrorName(result, &name);
    return fail(e, FA3PTX_ERROR_NO_DRIVER, "the CUDA driver %s has no usable device: cuInit "
                "returned %d (%s)", path, int(result), name ? name : "unknown");
  }
  opened.store(&functions, std::memory_order_release);
  return FA3PTX_OK;
}

// What is known of a device ordinal, packed in a word so that it is read and written at once:
// compute capability * 10 in the upper half, multiprocessors in the lower; 0: not asked yet.
// Neither changes in a process.
constexpr int kCachedDevices = 64;
std::atomic<uint64_t> cache[kCachedDevices];

fa3ptx_status ask_device(const Driver &driver, CUdevice device, uint64_t &known, Error &e) {
  int major = 0, minor = 0, sms = 0;
  const struct { CUdevice_attribute what; int *value; } questions[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms}};
  for (const auto &q : questions) {
    const CUresult result = driver.cuDeviceGetAttribute(q.value, q.what, device);
    if (result != CUDA_SUCCESS) return driver_failure(driver, "cuDeviceGetAttribute", result, e);
  }
  known = uint64_t(major * 10 + minor) << 32 | uint32_t(sms);
  if (device >= 0 && device < kCachedDevices) cache[device].store(known, std::memory_order_relaxed);
  return FA3PTX_OK;
}

} // namespace

fa3ptx_status get_driver(const Driver *&driver, Error &e) {
  driver = opened.load(std::memory_order_acquire);
  if (driver) return FA3PTX_OK;
  pthread_mutex_lock(&opening);
  fa3ptx_status status = FA3PTX_OK;
  if (!opened.load(std::memory_order_relaxed)) status = open_driver(e);
  pthread_mutex_unlock(&opening);
  driver = opened.load(std::memory_order_acquire);
  return status;
}

fa3ptx_status current_device(Device &current, Error &e) {
  const fa3ptx_status opened_it = get_driver(current.driver, e);
  if (opened_it != FA3PTX_OK) return opened_it;
  const Driver *driver = current.driver;
  CUdevice &device = current.handle;
  const CUresult result = driver->cuCtxGetDevice(&device);
  if (result == CUDA_ERROR_INVALID_CONTEXT)
    return fail(e, FA3PTX_ERROR_NO_CONTEXT, "no CUDA context is current on this thread");
  if (result != CUDA_SUCCESS) return driver_failure(*driver, "cuCtxGetDevice", result, e);
  uint64_t known = 0;
  if (device >= 0 && device < kCachedDevices) known = cache[device].load(std::memory_order_relaxed);
  if (known == 0) {
    const fa3ptx_status status = ask_device(*driver, device, known, e);
    if (status != FA3PTX_OK) return status;
  }
  const int capability = int(known >> 32);
  if (capability != 90)
    return fail(e, FA3PTX_ERROR_WRONG_DEVICE,
                "device %d has compute capability %d.%d: the kernels need 9.0 (Hopper)", device,
                capability / 10, capability % 10);
  current.props.sm_count = int32_t(known & 0xffffffff);
  return FA3PTX_OK;
}

fa3ptx_status driver_failure(const Driver &driver, const char *call, CUresult result, Error &e) {
  const char *name = nullptr, *text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  return fail(e, FA3PTX_ERROR_DRIVER, "%s returned %d (%s: %s)", call, int(result),
              name ? name : "unknown", text ? text : "no description");
}

} // namespace fa3ptx
