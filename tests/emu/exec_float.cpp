// exec_float.cpp - f32 and f64 arithmetic and the approximate functions.
#include <cfenv>

#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

struct FAdd { template <class T> static EMU_INLINE T f(T a, T b) { return a + b; } };
struct FSub { template <class T> static EMU_INLINE T f(T a, T b) { return a - b; } };
struct FMul { template <class T> static EMU_INLINE T f(T a, T b) { return a * b; } };
struct FDiv { template <class T> static EMU_INLINE T f(T a, T b) { return a / b; } };
// min and max: the other operand wins over a NaN; -0 < +0.
struct FMin {
  template <class T> static EMU_INLINE T f(T a, T b) {
    T r = a < b ? a : b;
    r = a == b ? (std::signbit(a) ? a : b) : r;
    return a != a ? b : b != b ? a : r;
  }
};
struct FMax {
  template <class T> static EMU_INLINE T f(T a, T b) {
    T r = a > b ? a : b;
    r = a == b ? (std::signbit(a) ? b : a) : r;
    return a != a ? b : b != b ? a : r;
  }
};

// .NaN: a NaN wins.
template <class Plain> struct OrNan {
  template <class T> static EMU_INLINE T f(T a, T b) {
    T r = Plain::f(a, b);
    return a != a || b != b ? T(u2f(kNan)) : r;
  }
};

template <bool Ftz> EMU_INLINE float in32(float x) { return Ftz ? flush(x) : x; }
template <bool Ftz, bool Sat> EMU_INLINE float out32(float x) {
  float y = Ftz ? flush(x) : x;
  return Sat ? saturate(y) : canonical(y);
}

template <class F, bool Ftz, bool Sat> Step binary32(Warp &w, const Instr &in, u32 m) {
  const float *a = w.src<float>(in.a), *b = w.src<float>(in.b);
  lanes(w.dst<float>(in.d), m, [&](int l) {
    return out32<Ftz, Sat>(F::f(in32<Ftz>(a[l]), in32<Ftz>(b[l])));
  });
  return Step::Next;
}
template <class F> Step binary64(Warp &w, const Instr &in, u32 m) {
  const double *a = w.src<double>(in.a), *b = w.src<double>(in.b);
  lanes(w.dst<double>(in.d), m, [&](int l) { return F::f(a[l], b[l]); });
  return Step::Next;
}
template <class F> Handler pick32(bool ftz, bool sat) {
  if (ftz) return sat ? binary32<F, true, true> : binary32<F, true, false>;
  return sat ? binary32<F, false, true> : binary32<F, false, false>;
}

template <bool Ftz, bool Sat> Step fma32(Warp &w, const Instr &in, u32 m) {
  const float *a = w.src<float>(in.a), *b = w.src<float>(in.b), *c = w.src<float>(in.c);
  lanes(w.dst<float>(in.d), m, [&](int l) {
    return out32<Ftz, Sat>(__builtin_fmaf(in32<Ftz>(a[l]), in32<Ftz>(b[l]), in32<Ftz>(c[l])));
  });
  return Step::Next;
}
Step fma64(Warp &w, const Instr &in, u32 m) {
  const double *a = w.src<double>(in.a), *b = w.src<double>(in.b), *c = w.src<double>(in.c);
  lanes(w.dst<double>(in.d), m, [&](int l) { return __builtin_fma(a[l], b[l], c[l]); });
  return Step::Next;
}

// Directed rounding: rare, so the plain handler runs (sel2 = rounding mode) inside a changed mode.
template <Handler Plain> Step rounded(Warp &w, const Instr &in, u32 m) {
  int old = fegetround();
  fesetround(int(in.sel2));
  Step s = Plain(w, in, m);
  fesetround(old);
  return s;
}

int roundingMode(const Decoder &d) {
  if (d.has("rz")) return FE_TOWARDZERO;
  if (d.has("rm")) return FE_DOWNWARD;
  if (d.has("rp")) return FE_UPWARD;
  return FE_TONEAREST;
}

// ---- one-operand functions --------------------------------------------------------------------
EMU_INLINE float fneg(float x) { return u2f(f2u(x) ^ 0x80000000); }
EMU_INLINE float fabs32(float x) { return u2f(f2u(x) & 0x7fffffff); }
EMU_INLINE float frcp(float x) { return 1.0f / x; }
EMU_INLINE float fsqrt(float x) { return std::sqrt(x); }
EMU_INLINE float frsqrt(float x) { return float(1.0 / std::sqrt(double(x))); }
float flog2(float x) { return std::log2(x); }
float fsin(float x) { return std::sin(x); }
float fcos(float x) { return std::cos(x); }

template <float (*F)(float), bool Ftz> Step func32(Warp &w, const Instr &in, u32 m) {
  const float *a = w.src<float>(in.a);
  lanes(w.dst<float>(in.d), m, [&](int l) { return canonical(in32<Ftz>(F(in32<Ftz>(a[l])))); });
  return Step::Next;
}
template <float (*F)(float)> Handler pickFunc(bool ftz) {
  return ftz ? func32<F, true> : func32<F, false>;
}

double dneg(double x) { return -x; }
double dabs(double x) { return std::fabs(x); }
double drcp(double x) { return 1.0 / x; }
double dsqrt(double x) { return std::sqrt(x); }
double drsqrt(double x) { return 1.0 / std::sqrt(x); }
template <double (*F)(double)> Step func64(Warp &w, const Instr &in, u32 m) {
  const double *a = w.src<double>(in.a);
  lanes(w.dst<double>(in.d), m, [&](int l) { return F(a[l]); });
  return Step::Next;
}

Step copysign32(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b);
  lanes(w.dst<u32>(in.d), m, [&](int l) { return (a[l] & 0x80000000) | (b[l] & 0x7fffffff); });
  return Step::Next;
}

// sel: 0 finite 1 infinite 2 number 3 notanumber 4 normal 5 subnormal
Step testp32(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a);
  u32 r = laneBits([&](int l) {
    u32 x = a[l] & 0x7fffffff;
    bool exp = x & 0x7f800000, big = x >= 0x7f800000;
    switch (in.sel) {
      case 0: return !big;
      case 1: return x == 0x7f800000;
      case 2: return x <= 0x7f800000;
      case 3: return x > 0x7f800000;
      case 4: return exp && !big;
      default: return !exp && x != 0;
    }
  });
  w.setPred(in.d, m, r);
  return Step::Next;
}

bool decodeFunctions(Decoder &d, Instr &in, Ty t) {
  const std::string &op = d.op();
  bool ftz = d.has("ftz");
  if (t == Ty::F64) {
    struct Row { const char *name; Handler fn; };
    const Row rows[] = {{"neg", func64<dneg>}, {"abs", func64<dabs>}, {"rcp", func64<drcp>},
                        {"sqrt", func64<dsqrt>}, {"rsqrt", func64<drsqrt>}};
    for (const Row &r : rows)
      if (op == r.name) in.fn = r.fn;
  } else {
    struct Row { const char *name; Handler fn; };
    const Row rows[] = {
        {"neg", pickFunc<fneg>(ftz)}, {"abs", pickFunc<fabs32>(ftz)}, {"rcp", pickFunc<frcp>(ftz)},
        {"sqrt", pickFunc<fsqrt>(ftz)}, {"rsqrt", pickFunc<frsqrt>(ftz)},
        {"ex2", pickFunc<exp2Approx>(ftz)}, {"lg2", pickFunc<flog2>(ftz)},
        {"sin", pickFunc<fsin>(ftz)}, {"cos", pickFunc<fcos>(ftz)},
        {"tanh", pickFunc<tanhApprox>(false)}};
    for (const Row &r : rows)
      if (op == r.name) in.fn = r.fn;
  }
  if (!in.fn) return false;
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  return true;
}

bool decodeArithmetic(Decoder &d, Instr &in, Ty t) {
  const std::string &op = d.op();
  bool ftz = d.has("ftz"), sat = d.has("sat"), wide = t == Ty::F64;
  int mode = roundingMode(d);
  bool directed = mode != FE_TONEAREST;
  in.sel2 = u32(mode);
  if (op == "add") {
    in.fn = wide ? (directed ? rounded<binary64<FAdd>> : binary64<FAdd>)
            : directed ? rounded<binary32<FAdd, false, false>> : pick32<FAdd>(ftz, sat);
  } else if (op == "sub") {
    in.fn = wide ? (directed ? rounded<binary64<FSub>> : binary64<FSub>)
            : directed ? rounded<binary32<FSub, false, false>> : pick32<FSub>(ftz, sat);
  } else if (op == "mul") {
    in.fn = wide ? (directed ? rounded<binary64<FMul>> : binary64<FMul>)
            : directed ? rounded<binary32<FMul, false, false>> : pick32<FMul>(ftz, sat);
  } else if (op == "div") {
    in.fn = wide ? binary64<FDiv>
            : directed ? rounded<binary32<FDiv, false, false>> : pick32<FDiv>(ftz, false);
  } else if (op == "min" || op == "max") {
    if (d.has("xorsign") || d.count() != 3) d.unknown();
    bool mn = op == "min", nan = d.has("NaN");
    in.fn = nan ? (mn ? pick32<OrNan<FMin>>(ftz, false) : pick32<OrNan<FMax>>(ftz, false))
            : wide ? (mn ? binary64<FMin> : binary64<FMax>)
            : mn ? pick32<FMin>(ftz, false) : pick32<FMax>(ftz, false);
  } else if (op == "fma" || op == "mad") {
    if (wide) in.fn = directed ? rounded<fma64> : fma64;
    else if (directed) in.fn = ftz ? rounded<fma32<true, false>> : rounded<fma32<false, false>>;
    else if (ftz) in.fn = sat ? fma32<true, true> : fma32<true, false>;
    else in.fn = sat ? fma32<false, true> : fma32<false, false>;
    in.c = d.src(3, t);
  } else if (op == "copysign" && !wide) {
    in.fn = copysign32;
  } else {
    return false;
  }
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  return true;
}

}  // namespace

bool decodeFloat(Decoder &d, Instr &in) {
  Ty t = d.lastType();
  if (t != Ty::F32 && t != Ty::F64) return false;
  if (d.op() == "testp" && t == Ty::F32) {
    static const char *kinds[] = {"finite", "infinite", "number", "notanumber", "normal",
                                  "subnormal"};
    for (u32 i = 0; i < 6; ++i)
      if (d.has(kinds[i])) in.sel = i;
    in.d = d.pred(d.arg(0), true);
    in.a = d.src(1, t);
    in.fn = testp32;
    return true;
  }
  return decodeFunctions(d, in, t) || decodeArithmetic(d, in, t);
}

}  // namespace emu
