#include "src/tensormap.h"

namespace fa3ptx {
namespace {

constexpr CUtensorMapDataType kElement[] = {
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_UINT8};
constexpr CUtensorMapSwizzle kSwizzle[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                           CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};

fa3ptx_status encode(const Driver &driver, const TensorMap &m, unsigned char *params, Error &e) {
  cuuint64_t extent[5], stride[4];
  cuuint32_t box[5];
  const cuuint32_t every_element[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i < m.rank; i++) {
    extent[i] = m.extent[i];
    box[i] = m.box[i];
    if (i > 0) stride[i - 1] = cuuint64_t(m.stride[i - 1]);
  }
  const CUresult result = driver.cuTensorMapEncodeTiled(
      reinterpret_cast<CUtensorMap *>(params + m.offset), kElement[m.element], m.rank, m.data,
      extent, stride, box, every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzle[m.swizzle],
      m.read_once ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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
