#include "src/tensormap.h"

namespace fa3ptx {
namespace {

constexpr CUtensorMapDataType kElement[] = {
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_UINT8};
constexpr CUtensorMapSwizzle kSwizzle[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                           CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};

fa3ptx_status encode(const Driver &driver, const TensorMap &m, unsigned char *params, Error &e) {
  const cuuint64_t extent[4] = {m.extent[0], m.extent[1], m.extent[2], m.extent[3]};
  const cuuint64_t stride[3] = {cuuint64_t(m.stride[0]), cuuint64_t(m.stride[1]),
                                cuuint64_t(m.stride[2])};
  const cuuint32_t box[4] = {m.box[0], m.box[1], m.box[2], m.box[3]};
  const cuuint32_t every_element[4] = {1, 1, 1, 1};
  const CUresult result = driver.cuTensorMapEncodeTiled(
      reinterpret_cast<CUtensorMap *>(params + m.offset), kElement[m.element], 4, m.data, extent,
      stride, box, every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzle[m.swizzle],
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return driver_failure(driver, "cuTensorMapEncodeTiled", result, e);
  return FA3PTX_OK;
}

} // namespace

fa3ptx_status encode_maps(const Driver &driver, Step &step, Error &e) {
  for (int i = 0; i < step.map_count; i++) {
    const fa3ptx_status status = encode(driver, step.maps[i], step.params, e);
    if (status != FA3PTX_OK) return status;
  }
  return FA3PTX_OK;
}

} // namespace fa3ptx
