// ptx_run.cpp - see ptx_run.h.
#include "ptx_run.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace {

#define SPELL_(x) #x
#define SPELL(x) SPELL_(x)
#define MORE_CALLS(CALL)                                                                 \
  CALL(cuLibraryLoadData) CALL(cuLibraryUnload) CALL(cuLibraryGetKernel)                 \
  CALL(cuKernelSetAttribute) CALL(cuLaunchKernelEx) CALL(cuTensorMapEncodeTiled)   \
  CALL(cuStreamWaitEvent)

void *driver_library() {
  const char *path = std::getenv("FA3PTX_LIBCUDA");
  return dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

struct MoreCalls {
#define CALL(name) decltype(&::name) name = nullptr;
  MORE_CALLS(CALL)
#undef CALL
  MoreCalls() {
    device(); // complains if there is no driver
    void *library = driver_library();
#define CALL(name)                                                           \
  name = reinterpret_cast<decltype(name)>(dlsym(library, SPELL(name)));      \
  if (!name) throw std::runtime_error("the CUDA driver has no " SPELL(name));
    MORE_CALLS(CALL)
#undef CALL
  }
};

const MoreCalls &more() {
  static const MoreCalls calls;
  return calls;
}

} // namespace

std::string built_file(const std::string &folder, const std::string &name) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) throw std::runtime_error("cannot read /proc/self/exe");
  std::string path(self, size_t(length));
  for (int up = 0; up < 2; ++up) path.resize(path.rfind('/'));
  return path + "/" + folder + "/" + name;
}

PtxFile::PtxFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  text.assign(std::istreambuf_iterator<char>(file), {});
  text.push_back(0);
  cuda_check(more().cuLibraryLoadData(&library, text.data(), nullptr, nullptr, 0, nullptr, nullptr,
                                      0),
             ("cuLibraryLoadData of " + path).c_str());
}

PtxFile::~PtxFile() {
  if (library) more().cuLibraryUnload(library);
}

CUkernel PtxFile::kernel(const std::string &name) const {
  CUkernel kernel = nullptr;
  cuda_check(more().cuLibraryGetKernel(&kernel, library, name.c_str()),
             ("cuLibraryGetKernel of " + name).c_str());
  return kernel;
}

CUresult launch(CUkernel kernel, const LaunchShape &shape, CUstream stream,
                std::initializer_list<const void *> arguments) {
  if (shape.shared > 48 * 1024)
    cuda_check(more().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                           int(shape.shared), kernel, device().handle),
               "cuKernelSetAttribute");
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config = {};
  config.gridDimX = shape.grid;
  config.blockDimX = shape.block;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared;
  config.hStream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    a.value.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.programmatic) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a.value.programmaticStreamSerializationAllowed = 1;
  }
  std::vector<void *> list;
  for (const void *argument : arguments) list.push_back(const_cast<void *>(argument));
  return more().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), list.data(),
                                 nullptr);
}

void stream_wait_event(CUstream stream, CUevent event) {
  cuda_check(more().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

CUtensorMap tensor_map(CUdeviceptr base, int bytes, std::vector<uint64_t> extents,
                       std::vector<uint32_t> box, CUtensorMapSwizzle swizzle,
                       CUtensorMapDataType type) {
  CUtensorMap map;
  std::vector<uint64_t> strides;
  std::vector<uint32_t> ones(extents.size(), 1);
  for (size_t axis = 0; axis + 1 < extents.size(); ++axis)
    strides.push_back((axis ? strides[axis - 1] : uint64_t(bytes)) * extents[axis]);
  cuda_check(more().cuTensorMapEncodeTiled(
                 &map, type, uint32_t(extents.size()), reinterpret_cast<void *>(base),
                 extents.data(), strides.data(), box.data(), ones.data(),
                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
             "cuTensorMapEncodeTiled");
  return map;
}

Emulator emulator() {
  Emulator e;
  void *library = driver_library();
  if (!library) return e;
  const auto find = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
  };
  find(e.report, "fa3emu_report");
  find(e.finding_count, "fa3emu_finding_count");
  find(e.clear, "fa3emu_clear");
  find(e.seed, "fa3emu_seed");
  return e;
}

Buffer::Buffer(size_t size) : bytes(size) { CUDA(cuMemAlloc(&address, size)); }
Buffer::~Buffer() {
  if (address) device().cuda.cuMemFree(address);
}

void Buffer::write(const void *from, size_t size) {
  CUDA(cuMemcpyHtoDAsync(address, from, size, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
}

void Buffer::fill(unsigned char value, size_t size) {
  CUDA(cuMemsetD8Async(address, value, size, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
}

std::vector<uint32_t> Buffer::words(size_t first, size_t count) {
  std::vector<uint32_t> out(count);
  CUDA(cuMemcpyDtoHAsync(out.data(), address + 4 * first, 4 * count, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
  return out;
}
