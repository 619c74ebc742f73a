// tensormap.h - the emulator's own 128-byte tensor map.
#pragma once
#include "base.h"

namespace emu {

// Fits the opaque CUtensorMap. Dimension 0 is the innermost.
struct TensorMap {
  u64 magic;
  u64 address;
  u64 stride[4];       // bytes, of dimensions 1..4
  u32 extent[5];       // extent - 1
  u16 box[5];
  u8 rank, type, elementBytes, swizzle, interleave, fillNan;
  u8 pad[32];
  u64 check;           // over everything before it
};
static_assert(sizeof(TensorMap) == 128, "a tensor map has 128 bytes");

constexpr u64 kTensorMapMagic = 0x46413345'4d555431ull;
u64 tensorMapCheck(const TensorMap &m);

}  // namespace emu
