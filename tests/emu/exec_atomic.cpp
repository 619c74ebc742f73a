// exec_atomic.cpp - atom and red.
#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

enum AtomOp : u32 { Add, Min, Max, Exch, Cas, Inc, Dec, And, Or, Xor };

template <class T> T combine(u32 op, T old, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case Add: return T(U(old) + U(a));
    case Min: return old < a ? old : a;
    case Max: return old > a ? old : a;
    case Exch: return a;
    case Cas: return old == a ? b : old;
    case Inc: return old >= a ? T(0) : T(old + 1);
    case Dec: return old == 0 || old > a ? a : T(old - 1);
    case And: return old & a;
    case Or: return old | a;
    default: return old ^ a;
  }
}

// Sums of f32 in global memory flush denormals, in shared memory they don't.
float sum32(float a, float b, bool global) {
  float s = global ? flush(flush(a) + flush(b)) : a + b;
  return canonical(s);
}

// One element of `in.a.type`; a and b are raw bits.
u64 update(const Instr &in, u8 *p, bool global, u64 a, u64 b) {
  u64 old = 0;
  size_t n = size_t(bits(in.a.type)) / 8;
  memcpy(&old, p, n);
  u64 r = 0;
  auto half = [&](u16 x, u16 y, bool bf) -> u64 {
    float u = bf ? fromBf16(x) : fromF16(x), v = bf ? fromBf16(y) : fromF16(y);
    float s = in.sel == Min ? std::fmin(u, v) : in.sel == Max ? std::fmax(u, v) : u + v;
    return bf ? toBf16(s) : toF16(s);
  };
  switch (in.a.type) {
    case Ty::F32:
      r = in.sel == Exch ? u32(a) : f2u(sum32(u2f(u32(old)), u2f(u32(a)), global));
      break;
    case Ty::F64: r = bitcast<u64>(bitcast<double>(old) + bitcast<double>(a)); break;
    case Ty::F16: case Ty::BF16: r = half(u16(old), u16(a), in.a.type == Ty::BF16); break;
    case Ty::F16x2: case Ty::BF16x2: {
      bool bf = in.a.type == Ty::BF16x2;
      r = half(u16(old), u16(a), bf) | half(u16(old >> 16), u16(a >> 16), bf) << 16;
      break;
    }
    case Ty::S32: r = u32(combine<s32>(in.sel, s32(old), s32(a), s32(b))); break;
    case Ty::S64: r = u64(combine<s64>(in.sel, s64(old), s64(a), s64(b))); break;
    case Ty::U16: case Ty::B16: r = combine<u16>(in.sel, u16(old), u16(a), u16(b)); break;
    case Ty::U32: case Ty::B32: r = combine<u32>(in.sel, u32(old), u32(a), u32(b)); break;
    default: r = combine<u64>(in.sel, old, a, b); break;
  }
  memcpy(p, &r, n);
  return old;
}

u64 rawOf(const Warp &w, const Operand &o, Ty t, u32 l) {
  if (!o.present()) return 0;
  return bits(t) == 16 ? w.src<u16>(o)[l] : bits(t) == 32 ? w.src<u32>(o)[l] : w.src<u64>(o)[l];
}
void setRaw(const Warp &w, const Operand &o, Ty t, u32 l, u64 v) {
  if (bits(t) == 16) w.dst<u16>(o)[l] = u16(v);
  else if (bits(t) == 32) w.dst<u32>(o)[l] = u32(v);
  else w.dst<u64>(o)[l] = v;
}

Step atomic(Warp &w, const Instr &in, u32 m) {
  u64 addr[kLanes];
  u8 *p[kLanes];
  bool global[kLanes];
  laneAddresses(w, in.addr, addr);
  u32 size = u32(bits(in.a.type)) / 8, n = in.vecN;
  FOR_LANES(l, m) {
    Place at = resolve(w, in, in.addr.space, addr[l], size * n, size * n, Access::Update, int(l));
    if (!at.p) return Step::Abort;
    p[l] = at.p;
    global[l] = !at.cta;
  }
  syncLoad(w, in.sel2, in.target, m, p);
  syncStore(w, in.sel2, in.target, m, p);
  FOR_LANES(l, m) {
    for (u32 v = 0; v < n; ++v) {
      const Operand &a = n > 1 ? in.vec[v] : in.a;
      u64 old = update(in, p[l] + v * size, global[l], rawOf(w, a, in.a.type, l),
                       rawOf(w, in.b, in.a.type, l));
      if (n > 1 && !in.vec2.empty()) setRaw(w, in.vec2[v], in.a.type, l, old);
      else if (in.d.present()) setRaw(w, in.d, in.a.type, l, old);
    }
  }
  ++w.cta->cluster->progress;
  return Step::Next;
}

}  // namespace

bool decodeAtomic(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if ((op != "atom" && op != "red") || d.has("async")) return false;
  static const char *names[] = {"add", "min", "max", "exch", "cas", "inc", "dec", "and", "or",
                                "xor"};
  in.sel = ~0u;
  for (u32 i = 0; i < 10; ++i)
    if (d.has(names[i])) in.sel = i;
  if (in.sel == ~0u) d.unknown();
  Ty t = d.lastType();
  if (bits(t) == 128) d.unknown();
  if (isFloat(t) && in.sel != Add && in.sel != Min && in.sel != Max && in.sel != Exch) d.unknown();
  in.vecN = d.has("v2") ? 2 : d.has("v4") ? 4 : d.has("v8") ? 8 : 1;
  int at = op == "atom" ? 1 : 0;
  in.addr = d.address(d.arg(at), d.spaceOf());
  if (in.vecN > 1) {
    for (const Arg &e : d.arg(at + 1).elems) in.vec.push_back(d.src(e, t));
    if (in.vec.size() != in.vecN) d.fail("vector operand of another width");
    if (op == "atom")
      for (const Arg &e : d.arg(0).elems) in.vec2.push_back(d.dst(e, t));
  } else {
    if (op == "atom") in.d = d.dst(0, t);
    in.a = d.src(at + 1, t);
    if (in.sel == Cas) in.b = d.src(at + 2, t);
  }
  in.a.type = t;
  bool rel = d.has("release") || d.has("acq_rel"), acq = d.has("acquire") || d.has("acq_rel");
  in.sel2 = 1 | u32(acq) << 1 | u32(rel) << 2;
  in.target = scopeNamed(d);
  in.floatSum = isFloat(t) && in.sel == Add;
  in.fn = atomic;
  return true;
}

}  // namespace emu
