// exec_convert.cpp - cvt in all its forms. In packed conversions the *first* source is the high
// half.
#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

enum Round : u32 { Rn, Rz, Rm, Rp, Rna };

// in.sel: rounding; in.sel2 bits: 1 sat, 2 ftz, 4 relu, 8 rounding to an integer asked for
u64 readRaw(const Warp &w, const Operand &o, int regBits, int l) {
  switch (regBits) {
    case 16: return w.src<u16>(o)[l];
    case 32: return w.src<u32>(o)[l];
    default: return w.src<u64>(o)[l];
  }
}
void writeRaw(const Warp &w, const Operand &o, int regBits, int l, u64 v) {
  switch (regBits) {
    case 16: w.dst<u16>(o)[l] = u16(v); break;
    case 32: w.dst<u32>(o)[l] = u32(v); break;
    default: w.dst<u64>(o)[l] = v; break;
  }
}

double roundToInt(double x, u32 mode) {
  switch (mode) {
    case Rz: return std::trunc(x);
    case Rm: return std::floor(x);
    case Rp: return std::ceil(x);
    default: return std::nearbyint(x);
  }
}

float roundTo32(double x, u32 mode) {
  float f = float(x);
  if (mode == Rz && std::fabs(double(f)) > std::fabs(x)) f = std::nextafterf(f, 0.0f);
  if (mode == Rm && double(f) > x) f = std::nextafterf(f, -INFINITY);
  if (mode == Rp && double(f) < x) f = std::nextafterf(f, INFINITY);
  return f;
}

double floatValue(u64 raw, Ty t) {
  switch (t) {
    case Ty::F16: return fromF16(u16(raw));
    case Ty::BF16: return fromBf16(u16(raw));
    case Ty::F64: return bitcast<double>(raw);
    default: return u2f(u32(raw));
  }
}

u64 floatBits(double x, Ty t, const Instr &in) {
  if (in.sel2 & 1) x = x > 0 ? (x < 1 ? x : 1) : 0;
  if ((in.sel2 & 4) && x <= 0) x = 0;  // -0, too
  switch (t) {
    case Ty::F64: return bitcast<u64>(x);
    case Ty::F16: return in.sel == Rz ? toF16Rz(roundTo32(x, Rz)) : toF16(float(x));
    case Ty::BF16: return in.sel == Rz ? toBf16Rz(roundTo32(x, Rz)) : toBf16(float(x));
    case Ty::TF32: return f2u(in.sel == Rna ? toTf32Rna(float(x)) : toTf32Rn(float(x)));
    default: {
      float f = roundTo32(x, in.sel);
      return f2u(in.sel2 & 2 ? flush(f) : f);
    }
  }
}

u64 clampToInt(double x, Ty t, u32 mode) {
  if (x != x) return 0;
  x = roundToInt(x, mode);
  int n = bits(t);
  if (isSigned(t)) {
    double top = std::ldexp(1.0, n - 1);
    if (x >= top) return (1ull << (n - 1)) - 1;
    if (x < -top) return u64(-1) << (n - 1);
    return u64(s64(x));
  }
  if (x <= 0) return 0;
  if (x >= std::ldexp(1.0, n)) return n == 64 ? ~0ull : (1ull << n) - 1;
  return u64(x);
}

s64 signExtend(u64 v, int n) { return n == 64 ? s64(v) : s64(v << (64 - n)) >> (64 - n); }
u64 zeroExtend(u64 v, int n) { return n == 64 ? v : v & ((1ull << n) - 1); }

u64 saturateInt(s64 v, bool srcSigned, Ty t) {
  int n = bits(t);
  u64 umax = n == 64 ? ~0ull : (1ull << n) - 1, smax = umax >> 1;
  bool neg = srcSigned && v < 0;
  if (!isSigned(t)) return neg ? 0 : std::min(u64(v), umax);
  if (neg) return n < 64 && v < -s64(smax) - 1 ? ~smax : u64(v);
  return std::min(u64(v), smax);
}

// The general form, lane by lane. imm: source register bits | destination register bits << 8.
Step cvtAny(Warp &w, const Instr &in, u32 m) {
  Ty to = in.d.type, from = in.a.type;
  int sb = int(in.imm & 255), db = int(in.imm >> 8);
  FOR_LANES(l, m) {
    u64 raw = readRaw(w, in.a, sb, int(l)), r;
    if (isFloat(from)) {
      double x = floatValue(raw, from);
      if ((in.sel2 & 2) && from == Ty::F32) x = flush(float(x));
      if (isFloat(to)) r = floatBits(in.sel2 & 8 ? roundToInt(x, in.sel) : x, to, in);
      else r = clampToInt(x, to, in.sel);
    } else {
      bool sg = isSigned(from);
      s64 v = sg ? signExtend(raw, bits(from)) : s64(zeroExtend(raw, bits(from)));
      if (isFloat(to)) {
        // 64-bit integers do not fit a double: round once, by hand
        if (to == Ty::F32 && in.sel == Rn) r = f2u(sg ? float(v) : float(u64(v)));
        else r = floatBits(sg ? double(v) : double(u64(v)), to, in);
      } else {
        r = in.sel2 & 1 ? saturateInt(v, sg, to) : u64(v);
      }
    }
    if (!isFloat(to)) r = isSigned(to) ? u64(signExtend(r, bits(to))) : zeroExtend(r, bits(to));
    writeRaw(w, in.d, db, int(l), r);
  }
  return Step::Next;
}

// ---- the common ones, vectorised --------------------------------------------------------------
template <class D, class S> Step cvtInt(Warp &w, const Instr &in, u32 m) {
  const S *a = w.src<S>(in.a);
  lanes(w.dst<D>(in.d), m, [&](int l) { return D(a[l]); });
  return Step::Next;
}
template <class S> Step cvtIntToF32(Warp &w, const Instr &in, u32 m) {
  const S *a = w.src<S>(in.a);
  lanes(w.dst<float>(in.d), m, [&](int l) { return float(a[l]); });
  return Step::Next;
}
float numberFromF16(u16 h) { return canonical(fromF16(h)); }
template <float (*F)(u16)> Step cvt16ToF32(Warp &w, const Instr &in, u32 m) {
  const u16 *a = w.src<u16>(in.a);
  lanes(w.dst<float>(in.d), m, [&](int l) { return F(a[l]); });
  return Step::Next;
}
template <u16 (*F)(float)> Step cvtF32To16(Warp &w, const Instr &in, u32 m) {
  const float *a = w.src<float>(in.a);
  lanes(w.dst<u16>(in.d), m, [&](int l) { return F(a[l]); });
  return Step::Next;
}
template <u16 (*F)(float)> Step packPair(Warp &w, const Instr &in, u32 m) {
  const float *hi = w.src<float>(in.a), *lo = w.src<float>(in.b);
  bool relu = in.sel2 & 4;
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    float x = lo[l], y = hi[l];
    if (relu) { x = x <= 0 ? 0 : x; y = y <= 0 ? 0 : y; }
    return u32(F(x)) | u32(F(y)) << 16;
  });
  return Step::Next;
}
template <u8 (*F)(float)> Step packPair8(Warp &w, const Instr &in, u32 m) {
  const float *hi = w.src<float>(in.a), *lo = w.src<float>(in.b);
  bool relu = in.sel2 & 4;
  lanes(w.dst<u16>(in.d), m, [&](int l) {
    float x = lo[l], y = hi[l];
    if (relu) { x = x <= 0 ? 0 : x; y = y <= 0 ? 0 : y; }
    return u16(F(x) | F(y) << 8);
  });
  return Step::Next;
}
template <u8 (*F)(float)> Step halfPairTo8(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a);
  lanes(w.dst<u16>(in.d), m, [&](int l) {
    return u16(F(fromF16(u16(a[l]))) | F(fromF16(u16(a[l] >> 16))) << 8);
  });
  return Step::Next;
}
template <float (*F)(u8)> Step pair8ToHalf(Warp &w, const Instr &in, u32 m) {
  const u16 *a = w.src<u16>(in.a);
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    return u32(toF16(F(u8(a[l])))) | u32(toF16(F(u8(a[l] >> 8)))) << 16;
  });
  return Step::Next;
}

bool decodePacked(Decoder &d, Instr &in, Ty to, Ty from) {
  if (to == Ty::F16x2 && (from == Ty::E4M3x2 || from == Ty::E5M2x2)) {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B16);
    in.fn = from == Ty::E4M3x2 ? pair8ToHalf<fromE4m3> : pair8ToHalf<fromE5m2>;
    return true;
  }
  if ((to == Ty::E4M3x2 || to == Ty::E5M2x2) && from == Ty::F16x2) {
    in.d = d.dst(0, Ty::B16);
    in.a = d.src(1, Ty::B32);
    in.fn = to == Ty::E4M3x2 ? halfPairTo8<toE4m3> : halfPairTo8<toE5m2>;
    return true;
  }
  if (from != Ty::F32) return false;
  if (to == Ty::E4M3x2 || to == Ty::E5M2x2) {
    if (!d.has("satfinite")) d.fail("8-bit conversions need .satfinite");
    in.d = d.dst(0, Ty::B16);
    in.fn = to == Ty::E4M3x2 ? packPair8<toE4m3> : packPair8<toE5m2>;
  } else if (to == Ty::BF16x2) {
    in.d = d.dst(0, Ty::B32);
    in.fn = in.sel == Rz ? packPair<toBf16Rz> : packPair<toBf16>;
  } else if (to == Ty::F16x2) {
    in.d = d.dst(0, Ty::B32);
    in.fn = in.sel == Rz ? packPair<toF16Rz> : packPair<toF16>;
  } else {
    return false;
  }
  in.a = d.src(1, Ty::F32);
  in.b = d.src(2, Ty::F32);
  return true;
}

// A vector handler if register and operand widths agree and nothing special is asked for.
Handler fastCvt(Ty to, Ty from, const Instr &in, int sb, int db) {
  if (in.sel2 || sb != bits(from) || db != bits(to)) return nullptr;
  bool rn = in.sel == Rn;
  if (from == Ty::BF16 && to == Ty::F32) return cvt16ToF32<fromBf16>;
  if (from == Ty::F16 && to == Ty::F32) return cvt16ToF32<numberFromF16>;
  if (from == Ty::F32 && to == Ty::BF16 && rn) return cvtF32To16<toBf16>;
  if (from == Ty::F32 && to == Ty::F16 && rn) return cvtF32To16<toF16>;
  if (from == Ty::U32 && to == Ty::F32 && rn) return cvtIntToF32<u32>;
  if (from == Ty::S32 && to == Ty::F32 && rn) return cvtIntToF32<s32>;
  if (isFloat(from) || isFloat(to)) return nullptr;
  bool s = isSigned(from);
  if (bits(from) == 32 && bits(to) == 64) return s ? cvtInt<s64, s32> : cvtInt<u64, u32>;
  if (bits(from) == 64 && bits(to) == 32) return cvtInt<u32, u64>;
  if (bits(from) == 16 && bits(to) == 32) return s ? cvtInt<s32, s16> : cvtInt<u32, u16>;
  if (bits(from) == 32 && bits(to) == 16) return cvtInt<u16, u32>;
  return nullptr;
}

}  // namespace

bool decodeConvert(Decoder &d, Instr &in) {
  if (d.op() != "cvt") return false;
  Ty to = d.typeAt(1), from = d.typeAt(0);
  if (to == Ty::None) d.unknown();
  struct Mode { const char *name; u32 mode; bool integer; };
  static const Mode modes[] = {{"rn", Rn, false}, {"rz", Rz, false}, {"rm", Rm, false},
                               {"rp", Rp, false}, {"rna", Rna, false}, {"rni", Rn, true},
                               {"rzi", Rz, true}, {"rmi", Rm, true},   {"rpi", Rp, true}};
  for (const Mode &m : modes)
    if (d.has(m.name)) {
      in.sel = m.mode;
      if (m.integer) in.sel2 |= 8;
    }
  if (d.has("sat")) in.sel2 |= 1;
  if (d.has("ftz")) in.sel2 |= 2;
  if (d.has("relu")) in.sel2 |= 4;
  if (bits(to) > 32 && to != Ty::F64 && isFloat(to)) d.unknown();
  if (decodePacked(d, in, to, from)) return true;
  if (to == Ty::F16x2 || to == Ty::BF16x2 || to == Ty::E4M3x2 || to == Ty::E5M2x2 ||
      from == Ty::F16x2 || from == Ty::BF16x2 || from == Ty::E4M3x2 || from == Ty::E5M2x2)
    d.unknown();
  // Registers may be wider than the types.
  in.d = d.dst(d.arg(0), to == Ty::B8 || bits(to) == 8 ? Ty::B16 : to, true);
  in.d.type = to;
  in.a = d.src(d.arg(1), bits(from) == 8 ? Ty::B16 : from, true);
  in.a.type = from;
  int db = bits(d.regType(d.arg(0)));
  int sb = d.arg(1).kind == Arg::Reg ? bits(d.regType(d.arg(1))) : std::max(16, bits(from));
  in.imm = sb | db << 8;
  in.fn = fastCvt(to, from, in, sb, db);
  if (!in.fn) in.fn = cvtAny;
  return true;
}

}  // namespace emu
