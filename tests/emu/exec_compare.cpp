// exec_compare.cpp - setp, set, selp, slct.
#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

enum Cmp { Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan };

// f32 views of the types that are compared as floats
template <class T> struct View {
  using type = T;
  static EMU_INLINE T get(T x) { return x; }
};
struct Half { u16 v; };
struct Bhalf { u16 v; };
template <> struct View<Half> {
  using type = float;
  static EMU_INLINE float get(Half x) { return fromF16(x.v); }
};
template <> struct View<Bhalf> {
  using type = float;
  static EMU_INLINE float get(Bhalf x) { return fromBf16(x.v); }
};

template <class V> EMU_INLINE bool compare(Cmp c, V a, V b) {
  switch (c) {
    case Eq: return a == b;
    case Ne: return (a < b) | (a > b);
    case Lt: return a < b;
    case Le: return a <= b;
    case Gt: return a > b;
    case Ge: return a >= b;
    case Equ: return !((a < b) | (a > b));
    case Neu: return !(a == b);
    case Ltu: return !(a >= b);
    case Leu: return !(a > b);
    case Gtu: return !(a <= b);
    case Geu: return !(a < b);
    case Num: return (a == a) & (b == b);
    default: return !((a == a) & (b == b));
  }
}

template <class T, Cmp C, bool Ftz> u32 compareLanes(const Warp &w, const Instr &in) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  using W = View<T>;
  return laneBits([&](int l) {
    auto x = W::get(a[l]), y = W::get(b[l]);
    if constexpr (Ftz) { x = flush(x); y = flush(y); }
    return compare<typename W::type>(C, x, y);
  });
}

using Comparison = u32 (*)(const Warp &, const Instr &);

template <class T, bool Ftz> Comparison pickCmp(int c) {
  static const Comparison table[] = {
      compareLanes<T, Eq, Ftz>,  compareLanes<T, Ne, Ftz>,  compareLanes<T, Lt, Ftz>,
      compareLanes<T, Le, Ftz>,  compareLanes<T, Gt, Ftz>,  compareLanes<T, Ge, Ftz>,
      compareLanes<T, Equ, Ftz>, compareLanes<T, Neu, Ftz>, compareLanes<T, Ltu, Ftz>,
      compareLanes<T, Leu, Ftz>, compareLanes<T, Gtu, Ftz>, compareLanes<T, Geu, Ftz>,
      compareLanes<T, Num, Ftz>, compareLanes<T, Nan, Ftz>};
  return table[c];
}

Comparison pickComparison(Ty t, int c, bool ftz) {
  switch (t) {
    case Ty::S16: return pickCmp<s16, false>(c);
    case Ty::U16: case Ty::B16: return pickCmp<u16, false>(c);
    case Ty::S32: return pickCmp<s32, false>(c);
    case Ty::U32: case Ty::B32: return pickCmp<u32, false>(c);
    case Ty::S64: return pickCmp<s64, false>(c);
    case Ty::U64: case Ty::B64: return pickCmp<u64, false>(c);
    case Ty::F32: return ftz ? pickCmp<float, true>(c) : pickCmp<float, false>(c);
    case Ty::F64: return pickCmp<double, false>(c);
    case Ty::F16: return pickCmp<Half, false>(c);
    case Ty::BF16: return pickCmp<Bhalf, false>(c);
    default: return nullptr;
  }
}

// sel: bits 0-1 combine with c (1 and, 2 or, 3 xor), bit 2: c negated. imm: the comparison.
EMU_INLINE u32 combine(const Warp &w, const Instr &in, u32 r) {
  if (!(in.sel & 3)) return r;
  u32 c = w.pred(in.c) ^ (in.sel & 4 ? ~0u : 0);
  return (in.sel & 3) == 1 ? r & c : (in.sel & 3) == 2 ? r | c : r ^ c;
}

Step setp(Warp &w, const Instr &in, u32 m) {
  u32 r = reinterpret_cast<Comparison>(in.imm)(w, in);
  u32 first = combine(w, in, r), second = combine(w, in, ~r);
  w.setPred(in.d, m, first);
  if (in.d2.present()) w.setPred(in.d2, m, second);
  return Step::Next;
}

Step set(Warp &w, const Instr &in, u32 m) {
  u32 r = combine(w, in, reinterpret_cast<Comparison>(in.imm)(w, in));
  u32 yes = in.sel2 ? 0x3f800000u : ~0u;
  lanes(w.dst<u32>(in.d), m, [&](int l) { return (r >> l & 1) ? yes : 0u; });
  return Step::Next;
}

// setp/set on packed pairs: one comparison per half. imm: the comparison.
template <bool Bf, bool ToPred> Step packedCompare(Warp &w, const Instr &in, u32 m) {
  const u32 *a = w.src<u32>(in.a), *b = w.src<u32>(in.b);
  u32 r[2];
  for (int h = 0; h < 2; ++h)
    r[h] = laneBits([&](int l) {
      u16 x = u16(a[l] >> (16 * h)), y = u16(b[l] >> (16 * h));
      return Bf ? compare(Cmp(in.imm), fromBf16(x), fromBf16(y))
                : compare(Cmp(in.imm), fromF16(x), fromF16(y));
    });
  if (ToPred) {
    w.setPred(in.d, m, combine(w, in, r[0]));
    w.setPred(in.d2, m, combine(w, in, r[1]));
    return Step::Next;
  }
  u32 one = in.sel2 == 0 ? 0xffff : Bf ? 0x3f80 : 0x3c00;
  lanes(w.dst<u32>(in.d), m, [&](int l) {
    return ((r[0] >> l & 1) ? one : 0) | ((r[1] >> l & 1) ? one << 16 : 0);
  });
  return Step::Next;
}

template <class T> Step selp(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  u32 p = w.pred(in.c);
  lanes(w.dst<T>(in.d), m, [&](int l) { return (p >> l & 1) ? a[l] : b[l]; });
  return Step::Next;
}
template <class T, class C> Step slct(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a), *b = w.src<T>(in.b);
  const C *c = w.src<C>(in.c);
  lanes(w.dst<T>(in.d), m, [&](int l) { return c[l] >= C(0) ? a[l] : b[l]; });
  return Step::Next;
}

int comparisonNamed(const Decoder &d, Ty t) {
  static const char *names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ",
                                "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  for (int i = 0; i < 14; ++i)
    if (d.has(names[i])) return i;
  static const char *unsignedNames[] = {"lo", "ls", "hi", "hs"};
  for (int i = 0; i < 4; ++i)
    if (d.has(unsignedNames[i]) && !isSigned(t)) return Lt + i;
  d.fail("no comparison named");
}

void decodeCombine(Decoder &d, Instr &in, int at) {
  in.sel = d.has("and") ? 1 : d.has("or") ? 2 : d.has("xor") ? 3 : 0;
  if (!in.sel) return;
  in.c = d.pred(d.arg(at), false);
  if (d.arg(at).negate) in.sel |= 4;
}

bool decodeSetp(Decoder &d, Instr &in) {
  Ty t = d.lastType();
  int c = comparisonNamed(d, t);
  in.d = d.pred(d.arg(0), true);
  if (!d.arg(0).pair.empty()) in.d2 = d.pred(d.arg(0).pair[0], true);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  decodeCombine(d, in, 3);
  if (t == Ty::F16x2 || t == Ty::BF16x2) {
    if (!in.d2.present()) d.fail("needs two destination predicates");
    in.imm = c;
    in.fn = t == Ty::BF16x2 ? packedCompare<true, true> : packedCompare<false, true>;
    return true;
  }
  in.imm = s64(pickComparison(t, c, d.has("ftz")));
  in.fn = in.imm ? setp : nullptr;
  return true;
}

bool decodeSet(Decoder &d, Instr &in) {
  Ty t = d.lastType(), to = d.typeAt(1);
  int c = comparisonNamed(d, t);
  in.d = d.dst(0, to);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  decodeCombine(d, in, 3);
  in.sel2 = isFloat(to);
  if (t == Ty::F16x2 || t == Ty::BF16x2) {
    in.imm = c;
    in.fn = t == Ty::BF16x2 ? packedCompare<true, false> : packedCompare<false, false>;
    return true;
  }
  if (bits(to) != 32) d.unknown();
  in.imm = s64(pickComparison(t, c, d.has("ftz")));
  in.fn = in.imm ? set : nullptr;
  return true;
}

}  // namespace

bool decodeCompare(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "setp") return decodeSetp(d, in);
  if (op == "set") return decodeSet(d, in);
  if (op != "selp" && op != "slct") return false;
  Ty t = op == "selp" ? d.lastType() : d.typeAt(1);
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  in.b = d.src(2, t);
  if (op == "selp") {
    in.c = d.pred(d.arg(3), false);
    if (d.arg(3).negate) std::swap(in.a, in.b);
    in.fn = bits(t) == 16 ? selp<u16> : bits(t) == 32 ? selp<u32> : selp<u64>;
  } else {
    bool f = d.lastType() == Ty::F32;
    in.c = d.src(3, d.lastType());
    if (bits(t) == 32) in.fn = f ? slct<u32, float> : slct<u32, s32>;
    else in.fn = f ? slct<u64, float> : slct<u64, s32>;
  }
  return true;
}

}  // namespace emu
