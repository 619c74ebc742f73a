// kernels.h - the rows of kernels.def as a table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "include/fa3ptx.h"
#include "ptx/abi.h"

namespace fa3ptx {

struct Problem;
struct DeviceProps;

enum class Role : uint8_t {
  FWD_REF = ROLE_FWD_REF,
  BWD_REF_DQ = ROLE_BWD_REF_DQ,
  BWD_REF_DKV = ROLE_BWD_REF_DKV,
  FWD = ROLE_FWD,
  FWD_PACKED = ROLE_FWD_PACKED,
  FWD_FP8 = ROLE_FWD_FP8,
  BWD_PRE = ROLE_BWD_PRE,
  BWD = ROLE_BWD,
  BWD_POST = ROLE_BWD_POST,
  FWD_FP8_REF = ROLE_FWD_FP8_REF,
  QUANT = ROLE_QUANT,
};

enum class Dtype : uint8_t { BF16 = FA3PTX_BF16, FP16 = FA3PTX_FP16, E4M3 = FA3PTX_E4M3 };

enum class Mask : uint8_t { NONE = FA3PTX_MASK_NONE, CAUSAL = FA3PTX_MASK_CAUSAL, ANY };

// When a row may head a plan; see the column `serves` of kernels.def.
using Serves = bool (*)(const Problem &, const DeviceProps &);

struct Row {
  const char *name;
  Role role;
  Dtype dtype;
  int32_t head_dim, head_dim_v; // 0: any
  Mask mask;
  int32_t tile_m, tile_n, stages, threads, registers, smem;
  Serves serves;
};

// Number of each row: k_<name>, its index in kRows.
enum RowIndex : int {
#define KERNEL(name, ...) k_##name,
#include "src/kernels.def"
#undef KERNEL
  kRowCount
};

extern const Row kRows[kRowCount];

// Whether this build has the row's kernel: `make HEAD_DIMS=... DTYPES=...` leaves rows out.
bool in_build(RowIndex row);

} // namespace fa3ptx
