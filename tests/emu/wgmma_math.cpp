// wgmma_math.cpp - see wgmma_math.h. Compiled with fused multiply-add allowed.
//
// 16-bit and tf32 inputs: products and sums in f32, one k after the other. The hardware adds in
// another order and a little wider: results differ within the rounding of the accumulation order.
//
// 8-bit inputs: the tensor core keeps fewer bits. Model: in each step of 32 products, the products
// and the accumulator are aligned to the largest exponent among them, cut (towards zero) to
// multiples of 2^-13 of it, summed exactly, and the sum becomes the new f32 accumulator.
#include "wgmma_math.h"

#include "numeric.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace emu {
namespace {

typedef float V16 __attribute__((vector_size(64)));
typedef s32 I16 __attribute__((vector_size(64)));
typedef float V4 __attribute__((vector_size(16)));
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
}

void panelAFromKMajor(PanelA *a, const u8 *raw, MmaIn t, bool negate) {
  int K = mmaK(t);
  alignas(64) float rows[16][kMaxK];
  for (int r = 0; r < 16; ++r) toFloat(raw + r * 32, rows[r], K, t);
  spreadRows(a, rows[0], kMaxK, 1, K, negate ? -1.0f : 1.0f);
}

void panelAFromMnMajor(PanelA *a, const u8 *raw, int row, MmaIn t, bool negate) {
  alignas(64) float cols[16][64];
  for (int k = 0; k < 16; ++k) toFloat(raw + k * 128, cols[k], 64, t);
  spreadRows(a, &cols[0][row], 1, 64, 16, negate ? -1.0f : 1.0f);
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
}

namespace {

// Two groups of 8 columns: 8 accumulator registers, 16 vectors.
template <int J> void multiplyGroups(float *const *d, const PanelA &a, const PanelB &b, int j,
                                     int K, bool accumulate) {
  V16 acc[J][4][2];
  for (int x = 0; x < J; ++x)
    for (int e = 0; e < 4; ++e)
      for (int h = 0; h < 2; ++h)
        acc[x][e][h] = accumulate ? load16(d[4 * (j + x) + e] + kHalfLanes * h) : V16{};
  for (int k = 0; k < K; ++k) {
    V16 top[2], bottom[2];
    for (int h = 0; h < 2; ++h) {
      top[h] = load16(&a.v[k][0][kHalfLanes * h]);
      bottom[h] = load16(&a.v[k][1][kHalfLanes * h]);
    }
    for (int x = 0; x < J; ++x)
      for (int p = 0; p < 2; ++p) {
        V16 col = spread4(&b.v[k][8 * (j + x) + 4 * p]);
        for (int h = 0; h < 2; ++h) {
          acc[x][p][h] += top[h] * col;
          acc[x][2 + p][h] += bottom[h] * col;
        }
      }
  }
  for (int x = 0; x < J; ++x)
    for (int e = 0; e < 4; ++e)
      for (int h = 0; h < 2; ++h) store16(d[4 * (j + x) + e] + kHalfLanes * h, acc[x][e][h]);
}

// One accumulator register with the 8-bit model; 16 lanes at a time.
void multiplyCut(float *d, const PanelA &a, const PanelB &b, int half, int col, bool accumulate) {
  for (int h = 0; h < 2; ++h) {
    V16 prod[kMaxK], acc = accumulate ? load16(d + kHalfLanes * h) : V16{};
    I16 top = I16(acc) & 0x7fffffff;          // magnitudes compare like integers
    for (int k = 0; k < kMaxK; ++k) {
      prod[k] = load16(&a.v[k][half][kHalfLanes * h]) * spread4(&b.v[k][col]);
      I16 m = I16(prod[k]) & 0x7fffffff;
      top = m > top ? m : top;
    }
    I16 e = top >> 23;                        // exponent of the largest term
    I16 ec = e < 15 ? 15 + (e & 0) : e > 253 ? 253 + (e & 0) : e;
    V16 unit = V16((ec - 13) << 23), scale = V16((254 - (ec - 13)) << 23);
    I16 sum = __builtin_convertvector(acc * scale, I16);
    for (int k = 0; k < kMaxK; ++k) sum += __builtin_convertvector(prod[k] * scale, I16);
    V16 result = __builtin_convertvector(sum, V16) * unit;
    I16 odd = e >= 254;
    for (int l = 0; l < kHalfLanes; ++l) {    // infinities and NaN: plain sums
      if (!odd[l]) continue;
      float s = acc[l];
      for (int k = 0; k < kMaxK; ++k) s += prod[k][l];
      result[l] = s;
    }
    store16(d + kHalfLanes * h, result);
  }
}

}  // namespace

void multiply(float *const *d, const PanelA &a, const PanelB &b, int n, MmaIn t, bool accumulate) {
  if (t >= MmaIn::E4m3) {
    for (int j = 0; j < n / 8; ++j)
      for (int e = 0; e < 4; ++e)
        multiplyCut(d[4 * j + e], a, b, e >> 1, 8 * j + 4 * (e & 1), accumulate);
    return;
  }
  int K = mmaK(t), j = 0;
  for (; j + 2 <= n / 8; j += 2) multiplyGroups<2>(d, a, b, j, K, accumulate);
  if (j < n / 8) multiplyGroups<1>(d, a, b, j, K, accumulate);
}

}  // namespace emu
