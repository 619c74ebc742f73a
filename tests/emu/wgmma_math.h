// wgmma_math.h - the arithmetic of a warpgroup multiply, on registers as the warps hold them.
#pragma once
#include "base.h"

namespace emu {

enum class MmaIn : u8 { Bf16, F16, Tf32, E4m3, E5m2 };

constexpr int kMaxN = 256, kMaxK = 32;

// B, spread for the multiply: for each k and each group of 8 columns, the four even columns and
// then the four odd ones. A 128-bit broadcast of such four fits lanes 0..31 of an accumulator
// register, whose columns are 8j + 2 (lane % 4) + parity.
struct alignas(64) PanelB {
  float v[kMaxK][kMaxN];
  s16 e[kMaxK][kMaxN];  // the exponents with which the tensor core aligns
};
// A of one warp (16 rows): for each k, row lane/4 (half 0) and row 8 + lane/4 (half 1), by lane.
struct alignas(64) PanelA {
  float v[kMaxK][2][kLanes];
  s16 e[kMaxK][2][kLanes];
};

inline int mmaK(MmaIn t) { return t >= MmaIn::E4m3 ? 32 : t == MmaIn::Tf32 ? 8 : 16; }
inline int mmaBytes(MmaIn t) { return t >= MmaIn::E4m3 ? 1 : t == MmaIn::Tf32 ? 4 : 2; }

// raw: n rows of 32 bytes (k inside)
void panelFromKMajor(PanelB *b, const u8 *raw, int n, MmaIn t);
// raw: 16 rows (k) of n 16-bit elements
void panelFromMnMajor(PanelB *b, const u8 *raw, int n, MmaIn t);
// raw: 16 rows of 32 bytes; or 16 rows (k) of 64 16-bit elements, of which 16 from `row` on
void panelAFromKMajor(PanelA *a, const u8 *raw, MmaIn t, bool negate);
void panelAFromMnMajor(PanelA *a, const u8 *raw, int row, MmaIn t, bool negate);
// regs: the four A registers of a warp
void panelAFromRegs(PanelA *a, const u32 *const regs[4], MmaIn t, bool negate);

// d: n/2 accumulator registers of 32 floats; accumulate = false starts from zero.
void multiply(float *const *d, const PanelA &a, const PanelB &b, int n, MmaIn t, bool accumulate);

}  // namespace emu
