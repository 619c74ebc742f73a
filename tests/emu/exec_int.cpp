// exec_int.cpp - integer arithmetic, logic and shifts.
#include "interp.h"

namespace emu {
namespace {

template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> struct Twice;
template <> struct Twice<u16> { using type = u32; };
template <> struct Twice<s16> { using type = s32; };
template <> struct Twice<u32> { using type = u64; };
template <> struct Twice<s32> { using type = s64; };
template <> struct Twice<u64> { using type = unsigned __int128; };
template <> struct Twice<s64> { using type = __int128; };

template <class T, class F> Step unary(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  lanes(w.dst<T>(in.d), m, [&](int l) { return F::template f<T>(a[l]); });
  return Step::Next;
}
template <class T, class F> Step binary(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  lanes(w.dst<T>(in.d), m, [&](int l) { return F::template f<T>(a[l], b[l]); });
  return Step::Next;
}
template <class T, class F> Step ternary(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b), *c = w.src<T>(in.c);
  lanes(w.dst<T>(in.d), m, [&](int l) { return F::template f<T>(a[l], b[l], c[l]); });
  return Step::Next;
}

#define UNARY(Name, expr) \
  struct Name { template <class T> static EMU_INLINE T f(T a) { return T(expr); } };
#define BINARY(Name, expr) \
  struct Name { template <class T> static EMU_INLINE T f(T a, T b) { return T(expr); } };
#define TERNARY(Name, expr) \
  struct Name { template <class T> static EMU_INLINE T f(T a, T b, T c) { return T(expr); } };

template <class T> EMU_INLINE T mulHi(T a, T b) {
  using W = typename Twice<T>::type;
  return T(W(a) * W(b) >> (8 * sizeof(T)));
}
template <class T> EMU_INLINE T safeDiv(T a, T b) {
  if (b == 0) return T(~T(0));
  if (std::is_signed_v<T> && b == T(-1)) return T(0 - Unsigned<T>(a));
  return a / b;
}
template <class T> EMU_INLINE T safeRem(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == T(-1)) return 0;
  return a % b;
}
EMU_INLINE u32 low24(u32 a) { return a & 0xffffff; }
EMU_INLINE s32 low24(s32 a) { return s32(u32(a) << 8) >> 8; }

BINARY(Add, Unsigned<T>(a) + Unsigned<T>(b))
BINARY(Sub, Unsigned<T>(a) - Unsigned<T>(b))
BINARY(MulLo, u64(a) * u64(b))
BINARY(MulHi, mulHi(a, b))
BINARY(Div, safeDiv(a, b))
BINARY(Rem, safeRem(a, b))
BINARY(Min, a < b ? a : b)
BINARY(Max, a > b ? a : b)
BINARY(And, a &b)
BINARY(Or, a | b)
BINARY(Xor, a ^ b)
UNARY(Not, ~a)
UNARY(Cnot, a == 0)
UNARY(Neg, Unsigned<T>(0) - Unsigned<T>(a))
UNARY(Abs, a < 0 ? Unsigned<T>(0) - Unsigned<T>(a) : Unsigned<T>(a))
TERNARY(MadLo, u64(a) * u64(b) + u64(c))
TERNARY(MadHi, Unsigned<T>(mulHi(a, b)) + Unsigned<T>(c))
TERNARY(Sad, Unsigned<T>(c) + (a < b ? Unsigned<T>(b) - Unsigned<T>(a)
                                     : Unsigned<T>(a) - Unsigned<T>(b)))

template <class F> Handler pickUnary(Ty t) {
  switch (t) {
    case Ty::S16: return unary<s16, F>;
    case Ty::U16: case Ty::B16: return unary<u16, F>;
    case Ty::S32: return unary<s32, F>;
    case Ty::U32: case Ty::B32: return unary<u32, F>;
    case Ty::S64: return unary<s64, F>;
    case Ty::U64: case Ty::B64: return unary<u64, F>;
    default: return nullptr;
  }
}
template <class F> Handler pickBinary(Ty t) {
  switch (t) {
    case Ty::S16: return binary<s16, F>;
    case Ty::U16: case Ty::B16: return binary<u16, F>;
    case Ty::S32: return binary<s32, F>;
    case Ty::U32: case Ty::B32: return binary<u32, F>;
    case Ty::S64: return binary<s64, F>;
    case Ty::U64: case Ty::B64: return binary<u64, F>;
    default: return nullptr;
  }
}
template <class F> Handler pickTernary(Ty t) {
  switch (t) {
    case Ty::S16: return ternary<s16, F>;
    case Ty::U16: return ternary<u16, F>;
    case Ty::S32: return ternary<s32, F>;
    case Ty::U32: return ternary<u32, F>;
    case Ty::S64: return ternary<s64, F>;
    case Ty::U64: return ternary<u64, F>;
    default: return nullptr;
  }
}

template <class T> Step mulWide(Warp &w, const Instr &in, u32 m) {
  using W = typename Twice<T>::type;
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  lanes(w.dst<W>(in.d), m, [&](int l) { return W(a[l]) * W(b[l]); });
  return Step::Next;
}
template <class T> Step madWide(Warp &w, const Instr &in, u32 m) {
  using W = typename Twice<T>::type;
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  const W *c = w.src<W>(in.c);
  lanes(w.dst<W>(in.d), m, [&](int l) { return W(u64(W(a[l]) * W(b[l])) + u64(c[l])); });
  return Step::Next;
}
template <class T, bool Add3> Step mul24(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  const T *c = Add3 ? w.src<T>(in.c) : a;
  bool hi = in.sel;
  lanes(w.dst<T>(in.d), m, [&](int l) {
    u64 p = u64(s64(low24(a[l])) * s64(low24(b[l])));
    return T(u32(hi ? p >> 16 : p) + (Add3 ? u32(c[l]) : 0));
  });
  return Step::Next;
}

// ---- carry chains -----------------------------------------------------------------------------
// sel: 1 = carry in, 2 = carry out, 4 = subtract, 8 = multiply first (mad), 16 = .hi
template <class T> Step carryOp(Warp &w, const Instr &in, u32 m) {
  using W = typename Twice<T>::type;
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  const T *c = in.sel & 8 ? w.src<T>(in.c) : b;
  T *d = w.dst<T>(in.d);
  u32 out = w.carry;
  FOR_LANES(l, m) {
    T x = a[l], y = b[l];
    if (in.sel & 8) {
      x = in.sel & 16 ? mulHi(x, y) : T(x * y);
      y = c[l];
    }
    T carryIn = in.sel & 1 ? T(w.carry >> l & 1) : T(0);
    W sum = in.sel & 4 ? W(x) - W(y) - W(carryIn) : W(x) + W(y) + W(carryIn);
    bool carry = (sum >> (8 * sizeof(T))) & 1;
    d[l] = T(sum);
    if (in.sel & 2) out = (out & ~(1u << l)) | u32(carry) << l;
  }
  w.carry = out;
  return Step::Next;
}

// ---- bits -------------------------------------------------------------------------------------
template <class T> Step shl(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  const u32 *b = w.src<u32>(in.b);
  constexpr u32 n = 8 * sizeof(T);
  lanes(w.dst<T>(in.d), m, [&](int l) { return T(b[l] >= n ? 0 : u64(a[l]) << (b[l] & 63)); });
  return Step::Next;
}
template <class T> Step shr(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  const u32 *b = w.src<u32>(in.b);
  constexpr u32 n = 8 * sizeof(T);
  lanes(w.dst<T>(in.d), m, [&](int l) {
    u32 s = b[l] >= n ? n - 1 : b[l];
    T v = T(a[l] >> s);
    return std::is_signed_v<T> || b[l] < n ? v : T(0);
  });
  return Step::Next;
}
template <bool Left, bool Wrap> Step shf(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    u32 n = Wrap ? c[l] & 31 : (c[l] < 32 ? c[l] : 32);
    u64 v = u64(b[l]) << 32 | a[l];
    return Left ? u32((n == 32 ? v << 32 : v << n) >> 32) : u32(n == 32 ? v >> 32 : v >> n);
  });
  return Step::Next;
}
template <class T> Step bfe(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  const u32 *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  using U = Unsigned<T>;
  constexpr u32 n = 8 * sizeof(T);
  lanes(w.dst<T>(in.d), m, [&](int l) {
    u32 pos = b[l] & 255, len = c[l] & 255;
    if (len == 0) return T(0);
    bool sign = std::is_signed_v<T> && (U(a[l]) >> std::min(pos + len - 1, n - 1) & 1);
    U field = pos < n ? U(U(a[l]) >> pos) : U(0);
    u32 have = std::min(len, pos < n ? n - pos : 0);
    U mask = have >= n ? ~U(0) : U((U(1) << have) - 1);
    return T((field & mask) | (sign ? U(~mask) : U(0)));
  });
  return Step::Next;
}
template <class T> Step bfi(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  const u32 *c = w.src<u32>(in.c), *e = w.src<u32>(in.e);
  constexpr u32 n = 8 * sizeof(T);
  lanes(w.dst<T>(in.d), m, [&](int l) {
    u32 pos = c[l] & 255, len = e[l] & 255;
    if (len == 0 || pos >= n) return b[l];
    T mask = T((len >= n ? T(~T(0)) : T((T(1) << len) - 1)) << pos);
    return T((b[l] & ~mask) | (T(a[l] << pos) & mask));
  });
  return Step::Next;
}
template <class T> Step bfind(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  using U = Unsigned<T>;
  u32 *d = w.dst<u32>(in.d);
  FOR_LANES(l, m) {
    U v = U(std::is_signed_v<T> && a[l] < 0 ? ~a[l] : a[l]);
    u32 top = v ? 63 - u32(__builtin_clzll(u64(v))) : ~0u;
    d[l] = v && in.sel ? u32(8 * sizeof(T) - 1 - top) : top;
  }
  return Step::Next;
}
template <class T> Step popc(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  u32 *d = w.dst<u32>(in.d);
  FOR_LANES(l, m) d[l] = u32(__builtin_popcountll(a[l]));
  return Step::Next;
}
template <class T> Step clz(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  u32 *d = w.dst<u32>(in.d);
  constexpr u32 n = 8 * sizeof(T);
  FOR_LANES(l, m) d[l] = a[l] ? u32(__builtin_clzll(a[l])) - (64 - n) : n;
  return Step::Next;
}
template <class T> Step brev(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  T *d = w.dst<T>(in.d);
  FOR_LANES(l, m) {
    T v = a[l], r = 0;
    for (u32 i = 0; i < 8 * sizeof(T); ++i) r |= T((v >> i & 1)) << (8 * sizeof(T) - 1 - i);
    d[l] = r;
  }
  return Step::Next;
}

u32 permute(u32 a, u32 b, u32 sel) {
  u64 v = u64(b) << 32 | a;
  u32 r = 0;
  for (u32 i = 0; i < 4; ++i) {
    u32 s = sel >> (4 * i) & 15;
    u32 byte = u32(v >> (8 * (s & 7))) & 255;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * i);
  }
  return r;
}
u32 permuteSelector(u32 mode, u32 c) {  // the named modes of prmt, as byte selectors
  static const u16 table[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543},   // f4e
      {0x5670, 0x6701, 0x7012, 0x0123},   // b4e
      {0x0000, 0x1111, 0x2222, 0x3333},   // rc8
      {0x3210, 0x3211, 0x3222, 0x3333},   // ecl
      {0x0000, 0x1110, 0x2210, 0x3210},   // ecr
      {0x1010, 0x3232, 0x1010, 0x3232}};  // rc16
  return mode == 0 ? c : table[mode - 1][c & 3];
}
Step prmt(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  u32 *d = w.dst<u32>(in.d);
  FOR_LANES(l, m) d[l] = permute(a[l], b[l], permuteSelector(in.sel, c[l]));
  return Step::Next;
}

Step lop3(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  u32 t = in.sel, k[8];
  for (int i = 0; i < 8; ++i) k[i] = t >> i & 1 ? ~0u : 0;
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    u32 x = a[l], y = b[l], z = c[l];
    return (k[0] & ~x & ~y & ~z) | (k[1] & ~x & ~y & z) | (k[2] & ~x & y & ~z) |
           (k[3] & ~x & y & z) | (k[4] & x & ~y & ~z) | (k[5] & x & ~y & z) |
           (k[6] & x & y & ~z) | (k[7] & x & y & z);
  });
  return Step::Next;
}

// dp4a / dp2a; sel bit 0: a signed, 1: b signed, 2: dp2a, 3: dp2a.hi
Step dotBytes(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  u32 *d = w.dst<u32>(in.d);
  auto byte = [](u32 v, u32 i, bool sign) {
    return sign ? s64(s8(v >> (8 * i))) : s64(u8(v >> (8 * i)));
  };
  FOR_LANES(l, m) {
    s64 sum = 0;
    for (u32 i = 0; i < 4; ++i) {
      if (!(in.sel & 4)) {
        sum += byte(a[l], i, in.sel & 1) * byte(b[l], i, in.sel & 2);
      } else if (i < 2) {
        u32 half = a[l] >> (16 * i);
        sum += (in.sel & 1 ? s64(s16(half)) : s64(u16(half))) *
               byte(b[l], i + (in.sel & 8 ? 2 : 0), in.sel & 2);
      }
    }
    d[l] = c[l] + u32(sum);
  }
  return Step::Next;
}

// Predicate logic: and/or/xor/not on .pred registers.
Step predLogic(Warp &w, const Instr &in, u32 m) {
  u32 a = w.pred(in.a), b = in.b.present() ? w.pred(in.b) : 0;
  u32 r = in.sel == 0 ? a & b : in.sel == 1 ? a | b : in.sel == 2 ? a ^ b : ~a;
  w.setPred(in.d, m, r);
  return Step::Next;
}

Ty unsignedOf(Ty t) {
  switch (bits(t)) {
    case 16: return Ty::U16;
    case 32: return Ty::U32;
    case 64: return Ty::U64;
    default: return Ty::None;
  }
}

bool decodeLogic(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  Ty t = d.lastType();
  int which = op == "and" ? 0 : op == "or" ? 1 : op == "xor" ? 2 : op == "not" ? 3 : -1;
  if (which < 0) return false;
  if (t == Ty::Pred) {
    in.d = d.pred(d.arg(0), true);
    in.a = d.pred(d.arg(1), false);
    if (which < 3) in.b = d.pred(d.arg(2), false);
    in.sel = u32(which);
    in.fn = predLogic;
    return true;
  }
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  if (which < 3) in.b = d.src(2, t);
  Ty u = unsignedOf(t);
  in.fn = which == 0 ? pickBinary<And>(u) : which == 1 ? pickBinary<Or>(u)
          : which == 2 ? pickBinary<Xor>(u) : pickUnary<Not>(u);
  return true;
}

bool decodeShift(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  Ty t = d.lastType();
  if (op == "shl" || op == "shr") {
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.b = d.src(2, Ty::B32);
    bool left = op == "shl";
    switch (bits(t)) {
      case 16: in.fn = left ? shl<u16> : isSigned(t) ? shr<s16> : shr<u16>; break;
      case 32: in.fn = left ? shl<u32> : isSigned(t) ? shr<s32> : shr<u32>; break;
      case 64: in.fn = left ? shl<u64> : isSigned(t) ? shr<s64> : shr<u64>; break;
      default: d.fail("bad type");
    }
    return true;
  }
  if (op == "shf") {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    bool wrap = d.has("wrap");
    if (d.has("l")) in.fn = wrap ? shf<true, true> : shf<true, false>;
    else in.fn = wrap ? shf<false, true> : shf<false, false>;
    return true;
  }
  return false;
}

bool decodeBits(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  Ty t = d.lastType();
  bool wide = bits(t) == 64;
  if (op == "popc" || op == "clz" || op == "bfind") {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, t);
    if (op == "popc") in.fn = wide ? popc<u64> : popc<u32>;
    else if (op == "clz") in.fn = wide ? clz<u64> : clz<u32>;
    else if (isSigned(t)) in.fn = wide ? bfind<s64> : bfind<s32>;
    else in.fn = wide ? bfind<u64> : bfind<u32>;
    in.sel = d.has("shiftamt");
    return true;
  }
  if (op == "brev") {
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.fn = wide ? brev<u64> : brev<u32>;
    return true;
  }
  if (op == "bfe") {
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    if (isSigned(t)) in.fn = wide ? bfe<s64> : bfe<s32>;
    else in.fn = wide ? bfe<u64> : bfe<u32>;
    return true;
  }
  if (op == "bfi") {
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.b = d.src(2, t);
    in.c = d.src(3, Ty::B32);
    in.e = d.src(4, Ty::B32);
    in.fn = wide ? bfi<u64> : bfi<u32>;
    return true;
  }
  if (op == "prmt") {
    static const char *modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    for (u32 i = 0; i < 6; ++i)
      if (d.has(modes[i])) in.sel = i + 1;
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    in.fn = prmt;
    return true;
  }
  if (op == "lop3") {
    if (d.count() != 5) d.fail("only the form with four sources is supported");
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    in.sel = u32(d.constantValue(4));
    in.fn = lop3;
    return true;
  }
  if (op == "dp4a" || op == "dp2a") {
    in.sel = u32(isSigned(d.typeAt(1))) | u32(isSigned(d.typeAt(0))) << 1 |
             u32(op == "dp2a") << 2 | u32(d.has("hi")) << 3;
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    in.fn = dotBytes;
    return true;
  }
  return false;
}

bool decodeCarry(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  bool cc = d.has("cc"), withC = op == "addc" || op == "subc" || op == "madc";
  if (!cc && !withC) return false;
  if (op != "add" && op != "sub" && op != "mad" && !withC) return false;
  Ty t = d.lastType();
  bool mad = op[0] == 'm';
  in.sel = u32(withC) | u32(cc) << 1 | u32(op[0] == 's') << 2 | u32(mad) << 3 |
           u32(d.has("hi")) << 4;
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  if (mad) in.c = d.src(3, t);
  in.fn = bits(t) == 64 ? carryOp<u64> : carryOp<u32>;
  return true;
}

bool decodeMultiply(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  Ty t = d.lastType();
  bool mad = op == "mad" || op == "mad24";
  if (!mad && op != "mul" && op != "mul24") return false;
  bool s = isSigned(t);
  if (d.has("wide")) {
    Ty wide = bits(t) == 16 ? Ty::B32 : Ty::B64;
    in.d = d.dst(0, wide);
    in.a = d.src(1, t);
    in.b = d.src(2, t);
    if (mad) in.c = d.src(3, wide);
    if (bits(t) == 16)
      in.fn = mad ? (s ? madWide<s16> : madWide<u16>) : s ? mulWide<s16> : mulWide<u16>;
    else
      in.fn = mad ? (s ? madWide<s32> : madWide<u32>) : s ? mulWide<s32> : mulWide<u32>;
    return true;
  }
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  if (mad) in.c = d.src(3, t);
  bool hi = d.has("hi");
  if (op == "mul24" || op == "mad24") {
    in.sel = hi;
    in.fn = mad ? (s ? mul24<s32, true> : mul24<u32, true>)
                : s ? mul24<s32, false> : mul24<u32, false>;
  } else if (mad) {
    in.fn = hi ? pickTernary<MadHi>(t) : pickTernary<MadLo>(t);
  } else {
    in.fn = hi ? pickBinary<MulHi>(t) : pickBinary<MulLo>(t);
  }
  return true;
}

}  // namespace

bool decodeInt(Decoder &d, Instr &in) {
  if (decodeLogic(d, in) || decodeShift(d, in) || decodeBits(d, in)) return true;
  Ty t = d.lastType();
  if (isFloat(t) || t == Ty::Pred || t == Ty::None) return false;
  if (decodeCarry(d, in) || decodeMultiply(d, in)) return true;
  const std::string &op = d.op();
  struct Row { const char *name; int sources; Handler fn; };
  const Row rows[] = {{"add", 2, pickBinary<Add>(t)}, {"sub", 2, pickBinary<Sub>(t)},
                      {"div", 2, pickBinary<Div>(t)}, {"rem", 2, pickBinary<Rem>(t)},
                      {"min", 2, pickBinary<Min>(t)}, {"max", 2, pickBinary<Max>(t)},
                      {"neg", 1, pickUnary<Neg>(t)},  {"abs", 1, pickUnary<Abs>(t)},
                      {"cnot", 1, pickUnary<Cnot>(t)}, {"sad", 3, pickTernary<Sad>(t)}};
  for (const Row &r : rows) {
    if (op != r.name) continue;
    if (d.has("sat") || d.has("relu")) d.unknown();
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    if (r.sources > 1) in.b = d.src(2, t);
    if (r.sources > 2) in.c = d.src(3, t);
    in.fn = r.fn;
    return true;
  }
  return false;
}

}  // namespace emu
