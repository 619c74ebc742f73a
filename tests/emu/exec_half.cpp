// exec_half.cpp - arithmetic on f16, bf16 and their packed pairs, done in f32 (fma: f64) and
// rounded once to the 16-bit format.
#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

struct F16Format {
  static EMU_INLINE float load(u16 h) { return fromF16(h); }
  static EMU_INLINE u16 store(float x) { return toF16(x); }
};
struct Bf16Format {
  static EMU_INLINE float load(u16 h) { return fromBf16(h); }
  static EMU_INLINE u16 store(float x) { return toBf16(x); }
};

// A double that is about to become f32 and then a 16-bit float: rounding to odd on the first step
// makes the second one the only rounding that counts.
EMU_INLINE float narrowToOdd(double x) {
  float f = float(x);
  double back = f;
  u32 u = f2u(f);
  bool inexact = back != x && x == x && !(u & 1);
  bool tooBig = std::fabs(back) > std::fabs(x);
  return inexact ? u2f(tooBig ? u - 1 : u + 1) : f;
}

struct HAdd { static EMU_INLINE float f(float a, float b, float) { return a + b; } };
struct HSub { static EMU_INLINE float f(float a, float b, float) { return a - b; } };
struct HMul { static EMU_INLINE float f(float a, float b, float) { return a * b; } };
struct HFma {
  static EMU_INLINE float f(float a, float b, float c) {
    return narrowToOdd(double(a) * double(b) + double(c));
  }
};
struct HMin {
  static EMU_INLINE float f(float a, float b, float) {
    float r = a < b || (a == b && std::signbit(a)) ? a : b;
    return a != a ? b : b != b ? a : r;
  }
};
struct HMax {
  static EMU_INLINE float f(float a, float b, float) {
    float r = a > b || (a == b && !std::signbit(a)) ? a : b;
    return a != a ? b : b != b ? a : r;
  }
};
template <class Plain> struct OrNan {  // .NaN: a NaN wins
  static EMU_INLINE float f(float a, float b, float c) {
    return a != a || b != b ? u2f(kNan) : Plain::f(a, b, c);
  }
};
struct HEx2 { static EMU_INLINE float f(float a, float, float) { return exp2Approx(a); } };
struct HTanh { static EMU_INLINE float f(float a, float, float) { return tanhApprox(a); } };

// in.sel: 1 = .sat, 2 = .relu
template <class Fmt, class F> EMU_INLINE u16 one(u16 a, u16 b, u16 c, u32 sel) {
  float x = F::f(Fmt::load(a), Fmt::load(b), Fmt::load(c));
  if (sel & 1) x = saturate(x);
  if (sel & 2) x = x < 0.0f ? 0.0f : x;
  return Fmt::store(x);
}
template <class Fmt, class F> Step scalarOp(Warp &w, const Instr &in, u32 m) {
  const u16 *a = w.src<u16>(in.a), *b = in.b.present() ? w.src<u16>(in.b) : a;
  const u16 *c = in.c.present() ? w.src<u16>(in.c) : a;
  lanes(w.dst<u16>(in.d), m, [&](int l) { return one<Fmt, F>(a[l], b[l], c[l], in.sel); });
  return Step::Next;
}
template <class Fmt, class F> Step packedOp(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = in.b.present() ? w.src<u32>(in.b) : a;
  const u32 *c = in.c.present() ? w.src<u32>(in.c) : a;
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    u32 lo = one<Fmt, F>(u16(a[l]), u16(b[l]), u16(c[l]), in.sel);
    u32 hi = one<Fmt, F>(u16(a[l] >> 16), u16(b[l] >> 16), u16(c[l] >> 16), in.sel);
    return lo | hi << 16;
  });
  return Step::Next;
}
template <class F> Handler pick(Ty t) {
  switch (t) {
    case Ty::F16: return scalarOp<F16Format, F>;
    case Ty::BF16: return scalarOp<Bf16Format, F>;
    case Ty::F16x2: return packedOp<F16Format, F>;
    default: return packedOp<Bf16Format, F>;
  }
}

// neg and abs are bit operations
Step signBits(Warp &w, const Instr &in, u32 m) {
  u32 flip = in.sel, clear = in.sel2;
  if (bits(in.d.type) == 16) {
    const u16 *a = w.src<u16>(in.a);
    lanes(w.dst<u16>(in.d), m, [&](int l) { return u16((a[l] ^ flip) & ~clear); });
  } else {
    const u32 *a = w.src<u32>(in.a);
    lanes(w.dst<u32>(in.d), m, [&](int l) { return (a[l] ^ flip) & ~clear; });
  }
  return Step::Next;
}

}  // namespace

bool decodeHalf(Decoder &d, Instr &in) {
  Ty t = d.lastType();
  if (t != Ty::F16 && t != Ty::BF16 && t != Ty::F16x2 && t != Ty::BF16x2) return false;
  const std::string &op = d.op();
  if (op == "neg" || op == "abs") {
    (op == "neg" ? in.sel : in.sel2) = bits(t) == 16 ? 0x8000 : 0x80008000;
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.fn = signBits;
    return true;
  }
  struct Row { const char *name; int sources; Handler fn; };
  const Row rows[] = {{"add", 2, pick<HAdd>(t)}, {"sub", 2, pick<HSub>(t)},
                      {"mul", 2, pick<HMul>(t)}, {"fma", 3, pick<HFma>(t)},
                      {"min", 2, pick<HMin>(t)}, {"max", 2, pick<HMax>(t)},
                      {"ex2", 1, pick<HEx2>(t)}, {"tanh", 1, pick<HTanh>(t)}};
  Handler nan = op == "min" ? pick<OrNan<HMin>>(t) : op == "max" ? pick<OrNan<HMax>>(t) : nullptr;
  for (const Row &r : rows) {
    if (op != r.name) continue;
    if (d.has("xorsign") || d.has("oob")) d.unknown();
    in.sel = u32(d.has("sat")) | u32(d.has("relu")) << 1;
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    if (r.sources > 1) in.b = d.src(2, t);
    if (r.sources > 2) in.c = d.src(3, t);
    in.fn = d.has("NaN") ? nan : r.fn;
    return true;
  }
  return false;
}

}  // namespace emu
