// driver_memory.cpp - allocation, memset, copies.
#include "driver.h"

using namespace emu;

namespace {

// A range of device memory that a call may touch; null: not one.
Allocation *range(CUdeviceptr p, size_t n) {
  Allocation *a = memory().find(p);
  return a && a->live && a->contains(p, n) ? a : nullptr;
}

CUresult hold(Stream *s, std::function<void()> f, bool wait) {
  if (wait && s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CommandPtr c = enqueue(s, std::move(f));
  if (wait) drain(c);
  return wait ? CUresult(stickyError()) : CUDA_SUCCESS;
}

CUresult memset(CUdeviceptr p, u32 value, u32 width, size_t n, Stream *s, bool wait) {
  if (n == 0) return CUDA_SUCCESS;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (p % width || !range(p, n * width)) return CUDA_ERROR_INVALID_VALUE;
  return hold(s, [=] {
    Allocation *a = range(p, n * width);
    if (!a) return;
    u8 *d = reinterpret_cast<u8 *>(p);
    if (width == 1) ::memset(d, int(value), n);
    else
      for (size_t i = 0; i < n; ++i) memcpy(d + i * width, &value, width);
    memory().markInit(a, p, n * width);
  }, wait);
}

// Copies carry the "initialised" bits along.
void copyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) {
  Allocation *d = range(to, n), *s = range(from, n);
  if (!d || !s) return;
  memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), n);
  if (memory().isInit(s, from, n)) {
    memory().markInit(d, to, n);
    return;
  }
  for (size_t i = 0; i < n; ++i)
    if (memory().isInit(s, from + i, 1)) memory().markInit(d, to + i, 1);
}

CUresult htod(CUdeviceptr to, const void *from, size_t n, Stream *s, bool wait) {
  if (n == 0) return CUDA_SUCCESS;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!from || !range(to, n)) return CUDA_ERROR_INVALID_VALUE;
  Allocation *h = memory().find(u64(from));
  std::shared_ptr<std::vector<u8>> staged;
  if (!wait && !(h && h->host)) {  // pageable memory is read when the call is made
    const u8 *p = static_cast<const u8 *>(from);
    staged = std::make_shared<std::vector<u8>>(p, p + n);
  }
  return hold(s, [=] {
    Allocation *a = range(to, n);
    if (!a) return;
    memcpy(reinterpret_cast<void *>(to), staged ? staged->data() : from, n);
    memory().markInit(a, to, n);
  }, wait);
}

CUresult dtoh(void *to, CUdeviceptr from, size_t n, Stream *s, bool wait) {
  if (n == 0) return CUDA_SUCCESS;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!to || !range(from, n)) return CUDA_ERROR_INVALID_VALUE;
  return hold(s, [=] {
    if (range(from, n)) memcpy(to, reinterpret_cast<const void *>(from), n);
  }, wait);
}

CUresult dtod(CUdeviceptr to, CUdeviceptr from, size_t n, Stream *s, bool wait) {
  if (n == 0) return CUDA_SUCCESS;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!range(to, n) || !range(from, n)) return CUDA_ERROR_INVALID_VALUE;
  return hold(s, [=] { copyDtoD(to, from, n); }, wait);
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr *p, size_t n) {
  EMU_ENTER_CONTEXT();
  if (!p || n == 0) return CUDA_ERROR_INVALID_VALUE;
  int dev = currentContext()->device;
  if (n > (size_t(141) << 30) - memory().used(dev)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation *a = memory().allocate(n, dev, "cuMemAlloc");
  if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = a->base;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  std::lock_guard<std::recursive_mutex> guard(driverLock());
  if (!initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!p) return CUDA_SUCCESS;
  if (!anyCapture()) drain(nullptr);
  Allocation *a = memory().find(p);
  u64 bad = 0;
  if (a && a->live && a->base == p && !memory().guardsIntact(a, &bad))
    reportLoadError(strf("the guard bytes of %s are damaged at offset %lld", a->what.c_str(),
                         (long long)bad));
  return memory().release(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemGetInfo(size_t *free, size_t *total) {
  EMU_ENTER_CONTEXT();
  *total = size_t(141) << 30;
  *free = *total - memory().used(currentContext()->device);
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void **p, size_t n, unsigned int) {
  EMU_ENTER_CONTEXT();
  if (!p || n == 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation *a = memory().allocate(n, currentContext()->device, "cuMemHostAlloc", true);
  if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = reinterpret_cast<void *>(a->base);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void **p, size_t n) { return cuMemHostAlloc(p, n, 0); }
CUresult cuMemFreeHost(void *p) {
  EMU_ENTER_CONTEXT();
  drain(nullptr);
  return memory().release(u64(p)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr *d, void *p, unsigned int) {
  EMU_ENTER_CONTEXT();
  Allocation *a = memory().find(u64(p));
  if (!a || !a->host) return CUDA_ERROR_INVALID_VALUE;
  *d = u64(p);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr p) {
  EMU_ENTER_CONTEXT();
  Allocation *a = range(p, 1);
  if (!a) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = a->base;
  if (size) *size = a->size;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attr, CUdeviceptr p) {
  EMU_ENTER_CONTEXT();
  Allocation *a = range(p, 1);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  if (attr == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int *>(data) = a->device;
  else if (attr == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    *static_cast<unsigned *>(data) = a->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  else return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

#define DEFAULT defaultStream(currentContext()->device)

CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 1, n, DEFAULT, true);
}
CUresult cuMemsetD16(CUdeviceptr p, unsigned short v, size_t n) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 2, n, DEFAULT, true);
}
CUresult cuMemsetD32(CUdeviceptr p, unsigned int v, size_t n) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 4, n, DEFAULT, true);
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 1, n, streamOf(s), false);
}
CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 2, n, streamOf(s), false);
}
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned int v, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return memset(p, v, 4, n, streamOf(s), false);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n) {
  EMU_ENTER_CONTEXT();
  return htod(to, from, n, DEFAULT, true);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) {
  EMU_ENTER_CONTEXT();
  return dtoh(to, from, n, DEFAULT, true);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) {
  EMU_ENTER_CONTEXT();
  return dtod(to, from, n, DEFAULT, true);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return htod(to, from, n, streamOf(s), false);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return dtoh(to, from, n, streamOf(s), false);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return dtod(to, from, n, streamOf(s), false);
}
static CUresult anyCopy(CUdeviceptr to, CUdeviceptr from, size_t n, Stream *s, bool wait) {
  bool d = range(to, 1), h = range(from, 1);
  if (d && h) return dtod(to, from, n, s, wait);
  if (d) return htod(to, reinterpret_cast<const void *>(from), n, s, wait);
  if (h) return dtoh(reinterpret_cast<void *>(to), from, n, s, wait);
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
  EMU_ENTER_CONTEXT();
  return anyCopy(to, from, n, DEFAULT, true);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  EMU_ENTER_CONTEXT();
  return anyCopy(to, from, n, streamOf(s), false);
}
