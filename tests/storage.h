// storage.h - the element types on the CPU: exact widening, rounding to nearest even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "include/fa3ptx.h"

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// bf16 is the upper half of a float.
inline float bf16_to_float(uint16_t h) { return bits_float(uint32_t(h) << 16); }

inline uint16_t float_to_bf16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const uint32_t bits = float_bits(x);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16); // half to even; may carry into inf
}

// fp16: 1 sign, 5 exponent (bias 15), 10 mantissa bits; below 2^-14 it counts in steps of 2^-24.
inline float fp16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_float(sign | 0x7F800000 | mantissa << 13);
  if (exponent > 0) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = float(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

inline uint16_t float_to_fp16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const uint16_t sign = uint16_t(float_bits(x) >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return sign | 0x7C00; // rounds to infinity
  if (magnitude < 0x1p-14f)                        // adding 0.5 leaves steps of 2^-24
    return sign | uint16_t(float_bits(magnitude + 0.5f) - float_bits(0.5f));
  const uint32_t bits = float_bits(magnitude) - (112u << 23);
  return sign | uint16_t((bits + 0x0FFF + ((bits >> 13) & 1)) >> 13);
}

// e4m3: 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinity, 0x7F is NaN; below 2^-6 it
// counts in steps of 2^-9.  Too large becomes 448, as cvt.satfinite has it.
inline float e4m3_to_float(uint8_t b) {
  const int exponent = b >> 3 & 15, mantissa = b & 7;
  float magnitude = exponent ? std::ldexp(float(8 + mantissa), exponent - 10)
                             : std::ldexp(float(mantissa), -9);
  if ((b & 0x7F) == 0x7F) magnitude = NAN;
  return b & 0x80 ? -magnitude : magnitude;
}

inline uint8_t float_to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const uint8_t sign = uint8_t(float_bits(x) >> 24 & 0x80);
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.0f) return sign | 0x7E;
  if (magnitude < 0x1p-6f) // adding 2^14 leaves steps of 2^-9
    return sign | uint8_t(float_bits(magnitude + 0x1p14f) - float_bits(0x1p14f));
  const uint32_t bits = float_bits(magnitude) - (120u << 23);
  return sign | uint8_t((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20);
}

inline float from_storage(fa3ptx_dtype dtype, uint16_t bits) {
  return dtype == FA3PTX_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

inline uint16_t to_storage(fa3ptx_dtype dtype, float x) {
  return dtype == FA3PTX_BF16 ? float_to_bf16(x) : float_to_fp16(x);
}

inline float round_to(fa3ptx_dtype dtype, float x) {
  return from_storage(dtype, to_storage(dtype, x));
}

inline const char *dtype_name(fa3ptx_dtype dtype) {
  switch (dtype) {
    case FA3PTX_BF16: return "bf16";
    case FA3PTX_FP16: return "fp16";
    case FA3PTX_E4M3: return "e4m3";
    default: return "none";
  }
}
