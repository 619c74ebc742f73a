// numeric.h - number formats: 16-bit, 8-bit and tf32 floats, rounding, flushing of denormals.
//
// Everything here is branch-light scalar code that the compiler turns into vector code.
#pragma once
#include <cmath>

#include "base.h"

namespace emu {

template <class To, class From> EMU_INLINE To bitcast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast keeps the size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
EMU_INLINE u32 f2u(float x) { return bitcast<u32>(x); }
EMU_INLINE float u2f(u32 x) { return bitcast<float>(x); }

EMU_INLINE float flush(float x) { return (f2u(x) & 0x7f800000) ? x : u2f(f2u(x) & 0x80000000); }
EMU_INLINE float saturate(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
constexpr u32 kNan = 0x7fffffff;  // what the hardware's arithmetic returns
EMU_INLINE float canonical(float x) { return x == x ? x : u2f(kNan); }

// ---- bf16 -------------------------------------------------------------------------------------
EMU_INLINE float fromBf16(u16 h) { return u2f(u32(h) << 16); }
EMU_INLINE u16 toBf16(float x) {  // round to nearest even
  u32 u = f2u(x);
  u32 r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return u16((u & 0x7fffffff) > 0x7f800000 ? 0x7fff : r);
}
EMU_INLINE u16 toBf16Rz(float x) {
  u32 u = f2u(x);
  return u16((u & 0x7fffffff) > 0x7f800000 ? 0x7fff : u >> 16);
}

// ---- f16 --------------------------------------------------------------------------------------
EMU_INLINE float fromF16(u16 h) {
  u32 em = u32(h & 0x7fff) << 13, sign = u32(h & 0x8000) << 16;
  float f = u2f(em) * 0x1p112f;                       // rebias the exponent, denormals included
  u32 u = f2u(f);
  u = em >= 0x0f800000 ? em | 0x7f800000 : u;         // infinity and NaN
  return u2f(u | sign);
}
EMU_INLINE u16 toF16(float x) {  // round to nearest even
  u32 u = f2u(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  u32 normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
  u32 tiny = f2u(u2f(a) + 0.5f) - 0x3f000000;         // the adder rounds to multiples of 2^-24
  u32 r = a < 0x38800000 ? tiny : normal;
  r = a >= 0x477ff000 ? 0x7c00 : r;
  r = a > 0x7f800000 ? 0x7fff : r;
  return u16(a > 0x7f800000 ? r : r | sign);
}
EMU_INLINE u16 toF16Rz(float x) {
  u32 u = f2u(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  u32 normal = (a - 0x38000000) >> 13;
  u32 tiny = u32(u2f(a) * 0x1p24f);
  u32 r = a < 0x38800000 ? tiny : normal;
  r = a >= 0x47800000 ? (a == 0x7f800000 ? 0x7c00 : 0x7bff) : r;
  return u16(a > 0x7f800000 ? 0x7fff : r | sign);
}

// ---- 8-bit floats: e4m3 (bias 7, no infinity, NaN = 0x7f), e5m2 (bias 15, IEEE-like) ----------
EMU_INLINE float fromE5m2(u8 b) { return fromF16(u16(b << 8)); }
EMU_INLINE float fromE4m3(u8 b) {
  u32 mag = b & 0x7f, sign = u32(b & 0x80) << 24;
  float f = u2f(mag << 20) * 0x1p120f;
  return mag == 0x7f ? u2f(kNan) : u2f(f2u(f) | sign);
}
// satfinite conversions, round to nearest even
EMU_INLINE u8 toE4m3(float x) {
  u32 u = f2u(x), sign = u >> 24 & 0x80, a = u & 0x7fffffff;
  u32 normal = (a - 0x3c000000 + 0x7ffff + (a >> 20 & 1)) >> 20;
  u32 tiny = f2u(u2f(a) + 0x1p14f) - f2u(0x1p14f);    // multiples of 2^-9
  u32 r = a < 0x3c800000 ? tiny : normal;
  r = r > 0x7e || a >= 0x43e00000 ? 0x7e : r;         // 448
  return u8(a > 0x7f800000 ? 0x7f : r | sign);
}
EMU_INLINE u8 toE5m2(float x) {
  u32 u = f2u(x), sign = u >> 24 & 0x80, a = u & 0x7fffffff;
  u32 normal = (a - 0x38000000 + 0xfffff + (a >> 21 & 1)) >> 21;
  u32 tiny = f2u(u2f(a) + 0x1p7f) - f2u(0x1p7f);      // multiples of 2^-16
  u32 r = a < 0x38800000 ? tiny : normal;
  r = r > 0x7b || a >= 0x47600000 ? 0x7b : r;         // 57344
  return u8(a > 0x7f800000 ? 0x7f : r | sign);
}

// ---- tf32: f32 with 10 mantissa bits; the tensor core ignores the rest ------------------------
EMU_INLINE float truncTf32(float x) { return u2f(f2u(x) & 0xffffe000); }
EMU_INLINE float toTf32Rna(float x) {
  u32 u = f2u(x);
  return (u & 0x7f800000) == 0x7f800000 ? x : u2f((u + 0x1000) & 0xffffe000);
}
EMU_INLINE float toTf32Rn(float x) {
  u32 u = f2u(x);
  return (u & 0x7f800000) == 0x7f800000 ? x : u2f((u + 0xfff + (u >> 13 & 1)) & 0xffffe000);
}

// ---- approximations: at least as close as the hardware's (2 ulp), not bit-equal to it ---------
EMU_INLINE float exp2Approx(float x) {  // denormal results are flushed by the caller if it wants
  float c = x < -160.0f ? -160.0f : x > 130.0f ? 130.0f : x;
  c = c == c ? c : 0.0f;
  float r = (c + 12582912.0f) - 12582912.0f;          // nearest integer
  float f = c - r;
  float p = 1.535336188e-4f;
  p = p * f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332548e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1.0f;
  int n = int(r), half = n >> 1;                       // two steps: reaches denormals and infinity
  float s = p * u2f(u32(half + 127) << 23) * u2f(u32(n - half + 127) << 23);
  return x == x ? s : u2f(kNan);
}
EMU_INLINE float tanhApprox(float x) {
  float a = std::fabs(x);
  float e = exp2Approx((a > 20.0f ? 20.0f : a) * 2.885390082f);
  float big = 1.0f - 2.0f / (e + 1.0f);
  float q = a * a;
  float small = a * (1.0f + q * (-0.333333333f + q * (0.133333333f + q * -0.053968254f)));
  float t = a < 0.15f ? small : big;
  return x == x ? std::copysign(t, x) : u2f(kNan);
}

}  // namespace emu
