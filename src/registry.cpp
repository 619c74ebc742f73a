#include "src/registry.h"

#include <pthread.h>

#include <atomic>

// The images that the build embedded; they end in a zero byte.  Weak: the image of a row that the
// build left out is a null pointer.
#define KERNEL(name, ...)                                                                          \
  extern "C" __attribute__((visibility("hidden"), weak)) const unsigned char fa3ptx_image_##name[];
#include "src/kernels.def"
#undef KERNEL
// A reference to weak symbols alone would not take the images out of an archive.
extern "C" __attribute__((visibility("hidden"))) const unsigned char fa3ptx_images[];
__attribute__((used)) static const unsigned char *const images = fa3ptx_images;

namespace fa3ptx {
namespace {

const unsigned char *const kImages[kRowCount] = {
#define KERNEL(name, ...) fa3ptx_image_##name,
#include "src/kernels.def"
#undef KERNEL
};

struct Entry {
  std::atomic<CUkernel> kernel;
  std::atomic<uint64_t> ready; // bit d: shared memory is set up on device d
};
Entry entries[kRowCount]; // zero
pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

fa3ptx_status load(const Driver &driver, RowIndex row, Error &e) {
  CUlibrary library = nullptr;
  CUresult result = driver.cuLibraryLoadData(&library, kImages[row], nullptr, nullptr, 0, nullptr,
                                             nullptr, 0);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuLibraryLoadData", result, e);
  CUkernel kernel = nullptr;
  result = driver.cuLibraryGetKernel(&kernel, library, kRows[row].name);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuLibraryGetKernel", result, e);
  entries[row].kernel.store(kernel, std::memory_order_release);
  return FA3PTX_OK;
}

// Above 48 KiB a kernel has to be allowed its shared memory, once for each device.
fa3ptx_status allow_shared_memory(const Driver &driver, CUdevice device, RowIndex row,
                                  CUkernel kernel, Error &e) {
  const CUresult result = driver.cuKernelSetAttribute(
      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kRows[row].smem, kernel, device);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuKernelSetAttribute", result, e);
  if (device >= 0 && device < 64)
    entries[row].ready.fetch_or(uint64_t(1) << device, std::memory_order_release);
  return FA3PTX_OK;
}

} // namespace

bool in_build(RowIndex row) { return kImages[row] != nullptr; }

fa3ptx_status get_kernel(const Driver &driver, CUdevice device, RowIndex row, CUkernel &kernel,
                         Error &e) {
  Entry &entry = entries[row];
  kernel = entry.kernel.load(std::memory_order_acquire);
  if (!kernel) {
    pthread_mutex_lock(&loading);
    fa3ptx_status status = FA3PTX_OK;
    if (!entry.kernel.load(std::memory_order_relaxed)) status = load(driver, row, e);
    pthread_mutex_unlock(&loading);
    if (status != FA3PTX_OK) return status;
    kernel = entry.kernel.load(std::memory_order_acquire);
  }
  const bool ready = device >= 0 && device < 64 &&
                     (entry.ready.load(std::memory_order_acquire) >> device & 1) != 0;
  return ready ? FA3PTX_OK : allow_shared_memory(driver, device, row, kernel, e);
}

fa3ptx_status preload_kernel(const Driver &driver, CUdevice device, RowIndex row, Error &e) {
  CUkernel kernel = nullptr;
  const fa3ptx_status status = get_kernel(driver, device, row, kernel, e);
  if (status != FA3PTX_OK) return status;
  CUfunction function = nullptr;
  const CUresult result = driver.cuKernelGetFunction(&function, kernel);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuKernelGetFunction", result, e);
  return FA3PTX_OK;
}

} // namespace fa3ptx
