#include "src/launch.h"

#include "src/registry.h"
#include "src/tensormap.h"

namespace fa3ptx {
namespace {

fa3ptx_status launch_kernel(const Driver &driver, Step &s, CUkernel kernel, CUstream stream,
                            Error &e) {
  const Row &row = kRows[s.row];
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config = {};
  config.gridDimX = s.grid[0], config.gridDimY = s.grid[1], config.gridDimZ = s.grid[2];
  config.blockDimX = unsigned(row.threads), config.blockDimY = 1, config.blockDimZ = 1;
  config.sharedMemBytes = unsigned(row.smem);
  config.hStream = stream;
  config.attrs = attributes;
  if (s.cluster > 1) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    a.value.clusterDim.x = s.cluster, a.value.clusterDim.y = 1, a.value.clusterDim.z = 1;
  }
  if (s.overlaps_previous) {
    CUlaunchAttribute &a = attributes[config.numAttrs++];
    a.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a.value.programmaticStreamSerializationAllowed = 1;
  }
  void *parameters[] = {s.params}; // every kernel has one
  const CUresult result = driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel),
                                                  parameters, nullptr);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuLaunchKernelEx", result, e);
  return FA3PTX_OK;
}

fa3ptx_status clear(const Driver &driver, const Step &s, CUstream stream, Error &e) {
  const CUresult result =
      driver.cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(s.dst), 0, s.bytes / 4, stream);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuMemsetD32Async", result, e);
  return FA3PTX_OK;
}

} // namespace

fa3ptx_status launch(const Driver &driver, CUdevice device, Plan &plan, CUstream stream, Error &e) {
  CUkernel kernels[kMaxSteps] = {};
  for (int i = 0; i < plan.count; i++) {
    Step &s = plan.steps[i];
    if (s.kind != Step::LAUNCH) continue;
    fa3ptx_status status = get_kernel(driver, device, s.row, kernels[i], e);
    if (status == FA3PTX_OK) status = encode_maps(driver, s, e);
    if (status != FA3PTX_OK) return status;
  }
  for (int i = 0; i < plan.count; i++) {
    Step &s = plan.steps[i];
    const fa3ptx_status status = s.kind == Step::MEMSET
                                     ? clear(driver, s, stream, e)
                                     : launch_kernel(driver, s, kernels[i], stream, e);
    if (status != FA3PTX_OK) return status;
  }
  return FA3PTX_OK;
}

} // namespace fa3ptx
