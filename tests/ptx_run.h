// ptx_run.h - loads a PTX file and launches single kernels of it: what the hazard programs and the
// hardware probes need of the driver beyond device.h.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "device.h"

// $(BUILD)/<folder>/<name>: found from where this program lies, $(BUILD)/tests*/<program>.
std::string built_file(const std::string &folder, const std::string &name);

class PtxFile { // throws std::runtime_error if the driver rejects it
public:
  explicit PtxFile(const std::string &path);
  ~PtxFile();
  PtxFile(const PtxFile &) = delete;
  PtxFile &operator=(const PtxFile &) = delete;
  CUkernel kernel(const std::string &name) const;

private:
  std::vector<char> text;
  CUlibrary library = nullptr;
};

struct LaunchShape {
  unsigned grid = 1, block = 32, cluster = 1, shared = 0;
  bool programmatic = false; // may start before the kernel before it on the stream has finished
};
// `arguments`: the address of each parameter's value, in order.
CUresult launch(CUkernel, const LaunchShape &, CUstream,
                std::initializer_list<const void *> arguments);

void stream_wait_event(CUstream, CUevent);

// A tensor map of 16-bit (bytes = 2) or 8-bit (1) elements, contiguous in all its axes but for
// `row_bytes`, the distance between rows; extents and box go from the innermost axis outwards.
CUtensorMap tensor_map(CUdeviceptr base, int bytes, std::vector<uint64_t> extents,
                       std::vector<uint32_t> box, CUtensorMapSwizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
                       CUtensorMapDataType = CU_TENSOR_MAP_DATA_TYPE_UINT16);

// The emulated driver's own calls; all null on a real driver.
struct Emulator {
  const char *(*report)() = nullptr;
  int (*finding_count)() = nullptr;
  void (*clear)() = nullptr;
  void (*seed)(unsigned long long) = nullptr;
};
Emulator emulator(); // does not initialise the driver

// A stretch of device memory that ends with the scope.
struct Buffer {
  CUdeviceptr address = 0;
  size_t bytes;
  explicit Buffer(size_t size);
  ~Buffer();
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  void write(const void *from, size_t size);
  void fill(unsigned char value, size_t size);
  std::vector<uint32_t> words(size_t first, size_t count);
};
