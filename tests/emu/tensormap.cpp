// tensormap.cpp - cuTensorMapEncodeTiled, with the checks that the real driver makes.
#include "tensormap.h"

#include "driver.h"

namespace emu {

u64 tensorMapCheck(const TensorMap &m) {
  u64 h = 1469598103934665603ull;
  const u8 *p = reinterpret_cast<const u8 *>(&m);
  for (size_t i = 0; i < offsetof(TensorMap, check); ++i) h = (h ^ p[i]) * 1099511628211ull;
  return h;
}

static int elementSize(CUtensorMapDataType t) {
  switch (t) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16: case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32: case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64: case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

}  // namespace emu

using namespace emu;

CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *extent, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *elementStride,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  EMU_ENTER();
  int esize = elementSize(type);
  if (!out || u64(out) % 64 || !extent || !box || !elementStride || (rank > 1 && !stride) ||
      rank < 1 || rank > 5 || !esize || u64(address) % 16)
    return CUDA_ERROR_INVALID_VALUE;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  TensorMap m;
  ::memset(&m, 0, sizeof m);
  for (u32 i = 0; i < rank; ++i) {
    if (extent[i] == 0 || extent[i] > (1ull << 32)) return CUDA_ERROR_INVALID_VALUE;
    if (box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    if (elementStride[i] == 0 || elementStride[i] > 8) return CUDA_ERROR_INVALID_VALUE;
    if (elementStride[i] != 1) {
      reportLoadError("cuTensorMapEncodeTiled: element strides other than 1 are not modelled");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (i > 0 && (stride[i - 1] % 16 || stride[i - 1] >= (1ull << 40)))
      return CUDA_ERROR_INVALID_VALUE;
    m.extent[i] = u32(extent[i] - 1);
    m.box[i] = u16(box[i]);
    if (i > 0) m.stride[i - 1] = stride[i - 1];
  }
  u32 inner = box[0] * u32(esize);
  const u32 span[] = {0, 32, 64, 128};
  u32 sw = u32(swizzle);
  if (sw > 3) return CUDA_ERROR_NOT_SUPPORTED;
  if (inner % 16 || (sw && inner > span[sw])) return CUDA_ERROR_INVALID_VALUE;
  if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
    return CUDA_ERROR_INVALID_VALUE;
  m.magic = kTensorMapMagic;
  m.address = u64(address);
  m.rank = u8(rank);
  m.type = u8(type);
  m.elementBytes = u8(esize);
  m.swizzle = u8(sw);
  m.fillNan = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  m.check = tensorMapCheck(m);
  memcpy(out, &m, sizeof m);
  return CUDA_SUCCESS;
}
