// driver_core.cpp - initialisation, devices, contexts, error names, entry-point lookup, fa3emu_*.
#include <dlfcn.h>

#include <cstdlib>

#include "driver.h"

using namespace emu;

namespace {

bool isInitialised = false;
thread_local std::vector<Context *> contextStack;
std::vector<Context *> primaries;

u64 envNumber(const char *name, u64 fallback) {
  const char *s = getenv(name);
  return s && *s ? strtoull(s, nullptr, 0) : fallback;
}

bool cpuHasWhatWeWereBuiltFor() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

}  // namespace

namespace emu {

bool initialised() { return isInitialised; }
Context *currentContext() { return contextStack.empty() ? nullptr : contextStack.back(); }

void initOptions() {
  Options &o = options();
  o.devices = int(envNumber("FA3EMU_DEVICES", 1));
  o.cc = int(envNumber("FA3EMU_CC", 90));
  o.sms = std::max(1, int(envNumber("FA3EMU_SMS", 4)));
  o.seed = envNumber("FA3EMU_SEED", 1);
  o.window = int(envNumber("FA3EMU_WINDOW", 0));
  o.jitter = envNumber("FA3EMU_JITTER", 1) != 0;
  o.behind = int(envNumber("FA3EMU_BEHIND", -1));
  o.uninitGlobal = envNumber("FA3EMU_UNINIT_GLOBAL", 1) != 0;
  o.uninitShared = envNumber("FA3EMU_UNINIT_SHARED", 1) != 0;
  o.uninitRegs = envNumber("FA3EMU_UNINIT_REGS", 1) != 0;
  o.warProxy = envNumber("FA3EMU_WAR_PROXY", 1) != 0;
  o.readerFence = envNumber("FA3EMU_READER_FENCE", 1) != 0;
  o.races = envNumber("FA3EMU_RACES", 1) != 0;
  o.maxFindings = u32(envNumber("FA3EMU_MAX_FINDINGS", 8));
  o.timeout = envNumber("FA3EMU_TIMEOUT", 200);
  o.quiet = envNumber("FA3EMU_QUIET", 0) != 0;
  if (const char *f = getenv("FA3EMU_REPORT")) o.reportFile = f;
  std::string mode = getenv("FA3EMU_ASYNC") ? getenv("FA3EMU_ASYNC") : "";
  o.async = mode == "eager" ? 0 : mode == "lazy" ? 1 : 2;
  seedScheduler(o.seed);
}

}  // namespace emu

CUresult cuInit(unsigned int) {
  std::lock_guard<std::recursive_mutex> g(driverLock());
  if (isInitialised) return CUDA_SUCCESS;
  initOptions();
  if (!cpuHasWhatWeWereBuiltFor()) {
    reportLoadError("this emulated driver was built for a newer CPU: rebuild it on this machine");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (options().devices == 0) return CUDA_ERROR_NO_DEVICE;
  for (int i = 0; i < options().devices; ++i) {
    auto *c = new Context;
    c->device = i;
    c->primary = true;
    primaries.push_back(c);
  }
  isInitialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *v) {
  if (!v) return CUDA_ERROR_INVALID_VALUE;
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}

// ---- devices ----------------------------------------------------------------------------------
CUresult cuDeviceGetCount(int *n) {
  EMU_ENTER();
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *n = options().devices;
  return CUDA_SUCCESS;
}
static bool badDevice(CUdevice d) { return d < 0 || d >= options().devices; }

CUresult cuDeviceGet(CUdevice *d, int ordinal) {
  EMU_ENTER();
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  if (badDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *d = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int len, CUdevice d) {
  EMU_ENTER();
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, size_t(len), "emulated sm_%d GPU (fa3emu)", options().cc);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice d) {
  EMU_ENTER();
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = size_t(141) << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d) {
  EMU_ENTER();
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  memset(u, 0, sizeof *u);
  u->bytes[0] = 'e';
  u->bytes[15] = char(d + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  EMU_ENTER();
  if (!v) return CUDA_ERROR_INVALID_VALUE;
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  bool hopper = options().cc >= 90;
  struct Row { CUdevice_attribute a; int v; };
  const Row rows[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, options().cc / 10},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, options().cc % 10},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, options().sms},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, maxSharedOptin()},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, maxSharedOptin() + 1024},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, hopper},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, hopper},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647}};
  *v = 0;
  for (const Row &r : rows)
    if (r.a == a) *v = r.v;
  return CUDA_SUCCESS;
}

// ---- contexts ---------------------------------------------------------------------------------
static Context *contextOf(CUcontext c) {
  auto *x = reinterpret_cast<Context *>(c);
  return x && x->magic == Context().magic ? x : nullptr;
}
static CUcontext handleOf(Context *c) { return reinterpret_cast<CUcontext>(c); }

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  EMU_ENTER();
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  ++primaries[size_t(d)]->retained;
  *c = handleOf(primaries[size_t(d)]);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice d) {
  EMU_ENTER();
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  if (primaries[size_t(d)]->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --primaries[size_t(d)]->retained;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active) {
  EMU_ENTER();
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags) *flags = 0;
  if (active) *active = primaries[size_t(d)]->retained > 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice d) {
  EMU_ENTER();
  return badDevice(d) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxCreate(CUcontext *out, CUctxCreateParams *, unsigned int, CUdevice d) {
  EMU_ENTER();
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (badDevice(d)) return CUDA_ERROR_INVALID_DEVICE;
  auto *c = new Context;
  c->device = d;
  contextStack.push_back(c);
  *out = handleOf(c);
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext c) {
  EMU_ENTER();
  Context *x = contextOf(c);
  if (!x || x->primary) return CUDA_ERROR_INVALID_CONTEXT;
  drain(nullptr);
  for (auto it = contextStack.begin(); it != contextStack.end();)
    it = *it == x ? contextStack.erase(it) : it + 1;
  x->magic = 0;
  delete x;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext c) {
  EMU_ENTER();
  Context *x = contextOf(c);
  if (c && !x) return CUDA_ERROR_INVALID_CONTEXT;
  if (!contextStack.empty()) contextStack.pop_back();
  if (x) contextStack.push_back(x);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *c) {
  EMU_ENTER();
  if (!c) return CUDA_ERROR_INVALID_VALUE;
  *c = handleOf(currentContext());
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext c) {
  EMU_ENTER();
  if (!contextOf(c)) return CUDA_ERROR_INVALID_CONTEXT;
  contextStack.push_back(contextOf(c));
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *c) {
  EMU_ENTER();
  if (contextStack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (c) *c = handleOf(contextStack.back());
  contextStack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *d) {
  EMU_ENTER();
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  if (!currentContext()) return CUDA_ERROR_INVALID_CONTEXT;
  *d = currentContext()->device;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) {
  EMU_ENTER_CONTEXT();
  if (anyCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  drain(nullptr);
  return CUresult(stickyError());
}
CUresult cuCtxGetApiVersion(CUcontext, unsigned int *v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return CUDA_SUCCESS;
}

// ---- errors and lookup ------------------------------------------------------------------------
#define ERRORS(X)                                                                              \
  X(SUCCESS) X(ERROR_INVALID_VALUE) X(ERROR_OUT_OF_MEMORY) X(ERROR_NOT_INITIALIZED)           \
  X(ERROR_NO_DEVICE) X(ERROR_INVALID_DEVICE) X(ERROR_INVALID_IMAGE) X(ERROR_INVALID_CONTEXT)  \
  X(ERROR_NO_BINARY_FOR_GPU) X(ERROR_INVALID_PTX) X(ERROR_UNSUPPORTED_PTX_VERSION)            \
  X(ERROR_NOT_FOUND) X(ERROR_NOT_READY) X(ERROR_ILLEGAL_ADDRESS) X(ERROR_INVALID_HANDLE)      \
  X(ERROR_LAUNCH_OUT_OF_RESOURCES) X(ERROR_LAUNCH_TIMEOUT) X(ERROR_MISALIGNED_ADDRESS)        \
  X(ERROR_LAUNCH_FAILED) X(ERROR_NOT_SUPPORTED) X(ERROR_STREAM_CAPTURE_UNSUPPORTED)           \
  X(ERROR_STREAM_CAPTURE_INVALIDATED) X(ERROR_STREAM_CAPTURE_IMPLICIT)                        \
  X(ERROR_STREAM_CAPTURE_UNJOINED) X(ERROR_STREAM_CAPTURE_UNMATCHED) X(ERROR_UNKNOWN)         \
  X(ERROR_SYSTEM_NOT_READY) X(ERROR_STREAM_CAPTURE_WRONG_THREAD) X(ERROR_INVALID_CLUSTER_SIZE)

CUresult cuGetErrorName(CUresult e, const char **s) {
  if (!s) return CUDA_ERROR_INVALID_VALUE;
#define X(n) if (e == CUDA_##n) { *s = "CUDA_" #n; return CUDA_SUCCESS; }
  ERRORS(X)
#undef X
  *s = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult e, const char **s) {
  CUresult r = cuGetErrorName(e, s);
  if (r == CUDA_SUCCESS && e == CUDA_SUCCESS) *s = "no error";
  return r;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *status) {
  if (!symbol || !fn) return CUDA_ERROR_INVALID_VALUE;
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&cuInit), &self);
  void *lib = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *fn = nullptr;
  for (const char *suffix : {"_v4", "_v3", "_v2", ""}) {
    if (!*fn) *fn = dlsym(lib, (std::string(symbol) + suffix).c_str());
  }
  if (lib) dlclose(lib);
  if (status)
    *status = *fn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- for tests --------------------------------------------------------------------------------
#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

EMU_EXPORT const char *fa3emu_report(void) { return reportText().c_str(); }
EMU_EXPORT int fa3emu_finding_count(void) { return findingCount(); }
EMU_EXPORT void fa3emu_clear(void) {
  std::lock_guard<std::recursive_mutex> g(driverLock());
  clearFindings();
}
EMU_EXPORT void fa3emu_seed(unsigned long long seed) {
  std::lock_guard<std::recursive_mutex> g(driverLock());
  options().seed = seed;
  seedScheduler(seed);
}
