// wgmma_math.cpp - see wgmma_math.h.
//
// How the tensor core adds (fitted to probes/sums.ptx on an H200, equal to it bit for bit; f16
// accumulators and tf32 have not been compared).  One step adds all its products - 16 of 16-bit
// types, 32 of 8-bit types, 8 of tf32 - and the accumulator at once:
//   - the exponent of a product is the sum of its factors' exponents: it isn't normalised, and a
//     denormal factor has the smallest exponent of its type; terms that are zero don't count;
//   - every term is cut, towards zero, to a multiple of 2^-25 (8-bit types: 2^-13) of the largest
//     of these powers of two, and the multiples are added exactly;
//   - the sum is cut, towards zero, to 24 (8-bit types: 14) significant bits.
#include "wgmma_math.h"

#include "numeric.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace emu {
namespace {

typedef float V16 __attribute__((vector_size(64)));
typedef s32 I16 __attribute__((vector_size(64)));
typedef u32 U16 __attribute__((vector_size(64)));
typedef float V4 __attribute__((vector_size(16)));
typedef s16 E16 __attribute__((vector_size(64)));  // all 32 lanes
typedef s16 H16 __attribute__((vector_size(32)));
constexpr int kHalfLanes = 16;

EMU_INLINE V16 load16(const float *p) {
  V16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
EMU_INLINE void store16(float *p, V16 v) { memcpy(p, &v, sizeof v); }
// Four floats, four times over. (What the compiler makes of the portable form goes through memory.)
EMU_INLINE V16 spread4(const float *p) {
#if defined(__AVX512F__)
  return V16(_mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(p)));
#else
  V16 v;
  for (int i = 0; i < 4; ++i) memcpy(reinterpret_cast<char *>(&v) + 16 * i, p, 16);
  return v;
#endif
}

EMU_INLINE E16 loadE(const s16 *p) {
  E16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
EMU_INLINE E16 larger(E16 a, E16 b) { return a > b ? a : b; }
// Four exponents, eight times over.
EMU_INLINE E16 spreadE(const s16 *p) {
  typedef s64 L8 __attribute__((vector_size(64)));
  s64 four;
  memcpy(&four, p, sizeof four);
  return E16(L8{} + four);
}

template <class F> EMU_INLINE void convert16(const u8 *raw, float *out, int n, F f) {
  const u16 *p = reinterpret_cast<const u16 *>(raw);
  EMU_IVDEP for (int i = 0; i < n; ++i) out[i] = f(p[i]);
}

// n elements in memory order
void toFloat(const u8 *raw, float *out, int n, MmaIn t) {
  switch (t) {
    case MmaIn::Bf16: convert16(raw, out, n, [](u16 h) { return fromBf16(h); }); break;
    case MmaIn::F16: convert16(raw, out, n, [](u16 h) { return fromF16(h); }); break;
    case MmaIn::Tf32: {
      const float *p = reinterpret_cast<const float *>(raw);
      EMU_IVDEP for (int i = 0; i < n; ++i) out[i] = truncTf32(p[i]);
      break;
    }
    case MmaIn::E4m3: EMU_IVDEP for (int i = 0; i < n; ++i) out[i] = fromE4m3(raw[i]); break;
    default: EMU_IVDEP for (int i = 0; i < n; ++i) out[i] = fromE5m2(raw[i]); break;
  }
}

// The exponent that a factor has in the tensor core, as floats bias it.
constexpr int kZeroExp = -0x1000, kOddExp = 0x2000;  // of zero; of infinities and NaN
int smallestExp(MmaIn t) {
  return t == MmaIn::E4m3 ? 127 - 6 : t == MmaIn::F16 || t == MmaIn::E5m2 ? 127 - 14 : 1;
}
void exponents(const float *v, s16 *e, int n, MmaIn t) {
  int least = smallestExp(t);
  EMU_IVDEP for (int i = 0; i < n; ++i) {
    s32 mag = s32(f2u(v[i]) & 0x7fffffff), x = mag >> 23;
    x = x < least ? least : x;
    x = mag == 0 ? kZeroExp : mag >= 0x7f800000 ? kOddExp : x;
    e[i] = s16(x);
  }
}
void exponents(PanelA *a, MmaIn t) { exponents(a->v[0][0], a->e[0][0], mmaK(t) * 2 * kLanes, t); }
void exponents(PanelB *b, int n, MmaIn t) {
  for (int k = 0; k < mmaK(t); ++k) exponents(b->v[k], b->e[k], n, t);
}

// Lane l gets element (l & ~3) + T of 32.
template <int T> EMU_INLINE void splatQuads(const float *in, float *out, float sign) {
  for (int h = 0; h < 2; ++h) {
    V16 v = load16(in + 16 * h);
    v = __builtin_shufflevector(v, v, T, T, T, T, T + 4, T + 4, T + 4, T + 4, T + 8, T + 8, T + 8,
                                T + 8, T + 12, T + 12, T + 12, T + 12);
    store16(out + 16 * h, v * sign);
  }
}
void splatQuads(int t, const float *in, float *out, float sign) {
  switch (t) {
    case 0: splatQuads<0>(in, out, sign); break;
    case 1: splatQuads<1>(in, out, sign); break;
    case 2: splatQuads<2>(in, out, sign); break;
    default: splatQuads<3>(in, out, sign); break;
  }
}

// rows: 16 rows of K floats, row stride `stride`
void spreadRows(PanelA *a, const float *rows, int stride, int kStride, int K, float sign) {
  for (int k = 0; k < K; ++k)
    for (int h = 0; h < 2; ++h)
      for (int g = 0; g < 8; ++g) {
        float x = rows[(8 * h + g) * stride + k * kStride] * sign;
        V4 v = {x, x, x, x};
        memcpy(&a->v[k][h][4 * g], &v, sizeof v);
      }
}

}  // namespace

void panelFromKMajor(PanelB *b, const u8 *raw, int n, MmaIn t) {
  int K = mmaK(t);
  alignas(64) float rows[8][kMaxK];
  for (int j = 0; j < n / 8; ++j) {
    for (int i = 0; i < 8; ++i) toFloat(raw + (8 * j + i) * 32, rows[i], K, t);
    for (int p = 0; p < 2; ++p)
      for (int k0 = 0; k0 < K; k0 += 4) {  // 4 x 4 transposition
        V4 r[4];
        for (int c = 0; c < 4; ++c) memcpy(&r[c], &rows[2 * c + p][k0], sizeof r[c]);
        V4 x0 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
        V4 x1 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
        V4 y0 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
        V4 y1 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
        V4 out[4] = {__builtin_shufflevector(x0, x1, 0, 1, 4, 5),
                     __builtin_shufflevector(x0, x1, 2, 3, 6, 7),
                     __builtin_shufflevector(y0, y1, 0, 1, 4, 5),
                     __builtin_shufflevector(y0, y1, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i) memcpy(&b->v[k0 + i][8 * j + 4 * p], &out[i], sizeof(V4));
      }
  }
  exponents(b, n, t);
}

void panelFromMnMajor(PanelB *b, const u8 *raw, int n, MmaIn t) {
  alignas(64) float row[kMaxN];
  for (int k = 0; k < 16; ++k) {
    toFloat(raw + size_t(k) * size_t(n) * 2, row, n, t);
    for (int j = 0; j < n / 8; ++j)
      for (int c = 0; c < 4; ++c) {
        b->v[k][8 * j + c] = row[8 * j + 2 * c];
        b->v[k][8 * j + 4 + c] = row[8 * j + 2 * c + 1];
      }
  }
  exponents(b, n, t);
}

void panelAFromKMajor(PanelA *a, const u8 *raw, MmaIn t, bool negate) {
  int K = mmaK(t);
  alignas(64) float rows[16][kMaxK];
  for (int r = 0; r < 16; ++r) toFloat(raw + r * 32, rows[r], K, t);
  spreadRows(a, rows[0], kMaxK, 1, K, negate ? -1.0f : 1.0f);
  exponents(a, t);
}

void panelAFromMnMajor(PanelA *a, const u8 *raw, int row, MmaIn t, bool negate) {
  alignas(64) float cols[16][64];
  for (int k = 0; k < 16; ++k) toFloat(raw + k * 128, cols[k], 64, t);
  spreadRows(a, &cols[0][row], 1, 64, 16, negate ? -1.0f : 1.0f);
  exponents(a, t);
}

// Register i of lane l: row l/4 + 8 (i & 1); its 32 bits hold consecutive k from
// (l % 4) * per + (i >> 1) * 4 per on, per = elements in 32 bits.
void panelAFromRegs(PanelA *a, const u32 *const regs[4], MmaIn t, bool negate) {
  int per = 4 / mmaBytes(t);
  float sign = negate ? -1.0f : 1.0f;
  for (int i = 0; i < 4; ++i) {
    alignas(64) float elem[kLanes * 4], part[kLanes];
    toFloat(reinterpret_cast<const u8 *>(regs[i]), elem, kLanes * per, t);
    for (int e = 0; e < per; ++e) {
      for (int l = 0; l < kLanes; ++l) part[l] = elem[l * per + e];
      for (int q = 0; q < 4; ++q)
        splatQuads(q, part, a->v[(i >> 1) * 4 * per + q * per + e][i & 1], sign);
    }
  }
  exponents(a, t);
}

namespace {

// ---- sums -------------------------------------------------------------------------------------
// A sum as a float, cut towards zero to `kept` fraction bits.
template <int kept> EMU_INLINE V16 cutSum(I16 sum) {
  I16 sign = sum < 0, magnitude = (sum ^ sign) - sign;
  V16 nearest = __builtin_convertvector(magnitude, V16);
  U16 back = U16(__builtin_convertvector(nearest, I16));  // 2^31 becomes 0x80000000
  I16 bits = I16(nearest) + I16(back > U16(magnitude));   // the comparison is -1 where it holds
  return V16((bits & -(1 << (23 - kept))) | (sign & (s32(1) << 31)));
}

template <MmaIn T> struct Sum {
  static constexpr bool bytes = T >= MmaIn::E4m3;
  static constexpr int K = bytes ? 32 : T == MmaIn::Tf32 ? 8 : 16;
  static constexpr int fraction = bytes ? 13 : 25;  // bits below the largest power of two
  static constexpr int kept = bytes ? 13 : 23;      // fraction bits of the result
};
constexpr int kBias = 2 * 127;          // of a product's exponent
constexpr int kFastRange = 100;         // largest exponents for which floats hold all there is

// One lane's sum, whatever the exponents.  p: the products, exact.
float sumSlowly(const double *p, int K, float acc, int top, int fraction, int kept) {
  double plain = acc;
  for (int k = 0; k < K; ++k) plain += p[k];
  if (!std::isfinite(plain)) return canonical(float(plain));
  int unit = top - kBias - fraction;
  double sum = std::trunc(std::ldexp(double(acc), -unit));
  for (int k = 0; k < K; ++k) sum += std::trunc(std::ldexp(p[k], -unit));
  if (sum == 0) return 0;
  int last = std::max(std::ilogb(sum) + unit, -126) - kept;  // exponent of the last bit kept
  return float(std::ldexp(std::trunc(std::ldexp(sum, unit - last)), last));
}

template <MmaIn T> void sumColumnsSlowly(float *const *d, const s16 (*tops)[kLanes],
                                         const PanelA &a, const PanelB &b, int col,
                                         bool accumulate) {
  for (int e = 0; e < 4; ++e)
    for (int l = 0; l < kLanes; ++l) {
      double p[Sum<T>::K];
      for (int k = 0; k < Sum<T>::K; ++k)
        p[k] = double(a.v[k][e >> 1][l]) * b.v[k][col + 4 * (e & 1) + l % 4];
      d[e][l] = sumSlowly(p, Sum<T>::K, accumulate ? d[e][l] : 0.0f, tops[e][l],
                          Sum<T>::fraction, Sum<T>::kept);
    }
}

EMU_INLINE I16 exponents16(const s16 *p) {
  H16 v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, I16) - kBias;
}
// Beyond what floats hold; lanes all of whose terms are zero are not.
EMU_INLINE I16 oddExponents(I16 x) {
  return (x > kFastRange) | ((x < -kFastRange) & (x > kZeroExp / 2));
}
EMU_INLINE bool any(I16 v) {
  static const I16 none = {};
  return memcmp(&v, &none, sizeof v) != 0;
}

// The four accumulator registers of eight columns: e = 2 half + parity.
template <MmaIn T> void sumColumns(float *const *d, const PanelA &a, const PanelB &b, int col,
                                   bool accumulate) {
  constexpr int K = Sum<T>::K, fraction = Sum<T>::fraction;
  alignas(64) static const float zeros[kLanes] = {};
  alignas(64) s16 tops[4][kLanes];
  for (int e = 0; e < 4; ++e)
    exponents(accumulate ? d[e] : zeros, tops[e], kLanes, MmaIn::Tf32);
  for (int half = 0; half < 2; ++half) {
    s16 (*t)[kLanes] = &tops[2 * half];
    E16 even = loadE(t[0]) + 127, odd = loadE(t[1]) + 127;
    for (int k = 0; k < K; ++k) {
      E16 row = loadE(a.e[k][half]);
      even = larger(even, row + spreadE(&b.e[k][col]));
      odd = larger(odd, row + spreadE(&b.e[k][col + 4]));
    }
    memcpy(t[0], &even, sizeof even);
    memcpy(t[1], &odd, sizeof odd);
  }
  V16 scale[4][2];
  I16 sum[4][2] = {}, odd = {};
  for (int e = 0; e < 4; ++e)
    for (int h = 0; h < 2; ++h) {
      I16 x = exponents16(&tops[e][kHalfLanes * h]);
      odd |= oddExponents(x);
      x = x > kFastRange || x < -kFastRange ? x & 0 : x;
      scale[e][h] = V16((127 + fraction - x) << 23);
    }
  for (int k = 0; k < K; ++k)
    for (int e = 0; e < 4; ++e) {
      V16 column = spread4(&b.v[k][col + 4 * (e & 1)]);
      for (int h = 0; h < 2; ++h) {
        V16 product = load16(&a.v[k][e >> 1][kHalfLanes * h]) * column;
        sum[e][h] += __builtin_convertvector(product * scale[e][h], I16);
      }
    }
  V16 result[4][2];
  for (int e = 0; e < 4; ++e)
    for (int h = 0; h < 2; ++h) {
      V16 acc = accumulate ? load16(d[e] + kHalfLanes * h) : V16{};
      I16 held = __builtin_convertvector(acc * scale[e][h], I16), all = sum[e][h] + held;
      odd |= ((sum[e][h] ^ all) & (held ^ all)) >> 31;  // past 32 bits
      result[e][h] = cutSum<Sum<T>::kept>(all) * V16((254 << 23) - I16(scale[e][h]));
    }
  if (any(odd)) return sumColumnsSlowly<T>(d, tops, a, b, col, accumulate);
  for (int e = 0; e < 4; ++e)
    for (int h = 0; h < 2; ++h) store16(d[e] + kHalfLanes * h, result[e][h]);
}

template <MmaIn T> void sumAll(float *const *d, const PanelA &a, const PanelB &b, int n,
                               bool accumulate) {
  for (int j = 0; j < n / 8; ++j) sumColumns<T>(d + 4 * j, a, b, 8 * j, accumulate);
}

}  // namespace

void multiply(float *const *d, const PanelA &a, const PanelB &b, int n, MmaIn t, bool accumulate) {
  switch (t) {
    case MmaIn::Bf16: case MmaIn::F16: return sumAll<MmaIn::F16>(d, a, b, n, accumulate);
    case MmaIn::Tf32: return sumAll<MmaIn::Tf32>(d, a, b, n, accumulate);
    default: return sumAll<MmaIn::E4m3>(d, a, b, n, accumulate);
  }
}

}  // namespace emu
