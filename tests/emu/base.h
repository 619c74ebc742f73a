// base.h - the few types that every file of the emulated driver shares.
//
// Word list used all over tests/emu:
//   warp      32 lanes that share a program counter; every register is an array of 32 values
//   finding   something the kernel did that hardware does not promise to get right; see report.h
//   actor     whoever can touch memory by itself: a warp, or an asynchronous engine (vclock.h)
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace emu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

constexpr int kLanes = 32;
constexpr u32 kAllLanes = ~0u;

#define EMU_IVDEP _Pragma("GCC ivdep")
#define EMU_INLINE inline __attribute__((always_inline))

// A place in the source the author wrote: cpp line markers are honoured.
struct Loc {
  int file = 0;  // index into Module::files
  int line = 0;
};

// PTX operand types. Order matters to nobody; bits() and the helpers below are the interface.
enum class Ty : u8 {
  None, Pred, B8, U8, S8, B16, U16, S16, B32, U32, S32, B64, U64, S64, B128,
  F16, F16x2, BF16, BF16x2, F32, F32x2, F64, TF32, E4M3, E5M2, E4M3x2, E5M2x2
};

inline int bits(Ty t) {
  switch (t) {
    case Ty::Pred: return 1;
    case Ty::B8: case Ty::U8: case Ty::S8: case Ty::E4M3: case Ty::E5M2: return 8;
    case Ty::B16: case Ty::U16: case Ty::S16: case Ty::F16: case Ty::BF16:
    case Ty::E4M3x2: case Ty::E5M2x2: return 16;
    case Ty::B32: case Ty::U32: case Ty::S32: case Ty::F32: case Ty::F16x2: case Ty::BF16x2:
    case Ty::TF32: return 32;
    case Ty::B64: case Ty::U64: case Ty::S64: case Ty::F64: case Ty::F32x2: return 64;
    case Ty::B128: return 128;
    default: return 0;
  }
}
inline bool isSigned(Ty t) {
  return t == Ty::S8 || t == Ty::S16 || t == Ty::S32 || t == Ty::S64;
}
inline bool isFloat(Ty t) { return t >= Ty::F16; }

Ty typeFromName(std::string_view name);  // "f32" -> Ty::F32, unknown -> Ty::None
const char *nameOfType(Ty t);

// Thrown while PTX text is read or decoded; the driver turns it into CUDA_ERROR_INVALID_PTX.
struct PtxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string strf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Small, fast, seedable generator (splitmix64): schedules must repeat for one seed.
struct Rng {
  u64 s = 0x9e3779b97f4a7c15ull;
  u64 next() {
    u64 z = (s += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  u32 below(u32 n) { return n ? u32((next() >> 32) * u64(n) >> 32) : 0; }
  bool chance(u32 num, u32 den) { return below(den) < num; }
};

}  // namespace emu
