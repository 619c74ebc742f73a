// exec_move.cpp - mov (packing and unpacking included), cvta, isspacep, mapa, clocks.
#include <chrono>

#include "interp.h"

namespace emu {
namespace {

template <class T> Step mov(Warp &w, const Instr &in, u32 m) {
  const T *a = w.src<T>(in.a);
  lanes(w.dst<T>(in.d), m, [&](int l) { return a[l]; });
  return Step::Next;
}
Step movPred(Warp &w, const Instr &in, u32 m) {
  w.setPred(in.d, m, w.pred(in.a) ^ (in.sel ? ~0u : 0));
  return Step::Next;
}
// d = base + imm: the address of a variable
template <class T> Step movAddress(Warp &w, const Instr &in, u32 m) {
  const u32 *base = in.a.present() ? w.src<u32>(in.a) : nullptr;
  lanes(w.dst<T>(in.d), m, [&](int l) { return T(u64(in.imm) + (base ? base[l] : 0)); });
  return Step::Next;
}
template <class Big, class Small> Step pack(Warp &w, const Instr &in, u32 m) {
  Big *d = w.dst<Big>(in.d);
  constexpr u32 step = 8 * sizeof(Small);
  const Small *p[sizeof(Big) / sizeof(Small)];
  for (size_t i = 0; i < in.vec.size(); ++i) p[i] = w.src<Small>(in.vec[i]);
  lanes(d, m, [&](int l) {
    Big v = 0;
    for (u32 i = 0; i < sizeof(Big) / sizeof(Small); ++i) v |= Big(p[i][l]) << (step * i);
    return v;
  });
  return Step::Next;
}
template <class Big, class Small> Step unpack(Warp &w, const Instr &in, u32 m) {
  Big a[kLanes];
  memcpy(a, w.src<Big>(in.a), sizeof a);
  constexpr u32 step = 8 * sizeof(Small);
  for (size_t i = 0; i < in.vec.size(); ++i)
    if (in.vec[i].present())
      lanes(w.dst<Small>(in.vec[i]), m, [&](int l) { return Small(a[l] >> (step * i)); });
  return Step::Next;
}

// sel: 0 %clock 1 %clock64 2 %globaltimer 3 %clock_hi 4 %globaltimer_lo
Step clockRegister(Warp &w, const Instr &in, u32 m) {
  u64 t = tick() * 4 + w.instrCount;
  if (in.sel == 2 || in.sel == 4)
    t = u64(std::chrono::steady_clock::now().time_since_epoch().count());
  if (in.sel == 3) t >>= 32;
  if (bits(in.d.type) == 64) lanes(w.dst<u64>(in.d), m, [&](int) { return t; });
  else lanes(w.dst<u32>(in.d), m, [&](int) { return u32(t); });
  return Step::Yield;
}

// imm: window, sel: 1 = towards the named space (strip), sel2: bytes of the source register
Step cvta(Warp &w, const Instr &in, u32 m) {
  const u64 *a = w.src<u64>(in.a);
  u64 window = u64(in.imm);
  u64 *d = w.dst<u64>(in.d);
  FOR_LANES(l, m) {
    if (in.sel) {
      if (window && (a[l] & kWindowMask) != window)
        return fatal(w, in, "out-of-bounds",
                     strf("cvta.to: 0x%llx is no address of that state space",
                          (unsigned long long)a[l]), int(l));
      d[l] = window ? a[l] & ~kWindowMask : a[l];
    } else {
      d[l] = a[l] | window;
    }
  }
  return Step::Next;
}
Step cvtaAddress(Warp &w, const Instr &in, u32 m) {  // of a variable
  const u32 *base = in.a.present() ? w.src<u32>(in.a) : nullptr;
  u64 window = u64(in.sel2) << 56;
  lanes(w.dst<u64>(in.d), m,
        [&](int l) { return (u64(in.imm) + (base ? base[l] : 0)) | window; });
  return Step::Next;
}

// imm: window (0: global)
Step isspacep(Warp &w, const Instr &in, u32 m) {
  const u64 *a = w.src<u64>(in.a);
  w.setPred(in.d, m, laneBits([&](int l) { return (a[l] & kWindowMask) == u64(in.imm); }));
  return Step::Next;
}

// mapa: the same offset in the shared memory of another CTA of the cluster. sel: generic result.
Step mapa(Warp &w, const Instr &in, u32 m) {
  const u32 *rank = w.src<u32>(in.b);
  u32 n = w.grid->ctasPerCluster;
  FOR_LANES(l, m) {
    if (rank[l] >= n)
      return fatal(w, in, "out-of-bounds",
                   strf("mapa: CTA rank %u in a cluster of %u", rank[l], n), int(l));
    if (in.sel) {
      u64 a = w.src<u64>(in.a)[l];
      w.dst<u64>(in.d)[l] = (a & ~(0xffull << kRankShift)) | u64(rank[l]) << kRankShift;
    } else {
      u32 a = bits(in.a.type) == 64 ? u32(w.src<u64>(in.a)[l]) : w.src<u32>(in.a)[l];
      u32 v = (a & ((1u << kRankShift) - 1)) | rank[l] << kRankShift;
      if (bits(in.d.type) == 64) w.dst<u64>(in.d)[l] = v;
      else w.dst<u32>(in.d)[l] = v;
    }
  }
  return Step::Next;
}
// getctarank
Step ctaRank(Warp &w, const Instr &in, u32 m) {
  u32 *d = w.dst<u32>(in.d);
  FOR_LANES(l, m) {
    u64 a = bits(in.a.type) == 64 ? w.src<u64>(in.a)[l] : w.src<u32>(in.a)[l];
    d[l] = u32(a >> kRankShift & 255);
  }
  return Step::Next;
}

Handler packHandler(int big, int small, bool packing) {
  if (big == 32 && small == 16) return packing ? pack<u32, u16> : unpack<u32, u16>;
  if (big == 64 && small == 32) return packing ? pack<u64, u32> : unpack<u64, u32>;
  if (big == 64 && small == 16) return packing ? pack<u64, u16> : unpack<u64, u16>;
  return nullptr;
}

bool decodeVectorMov(Decoder &d, Instr &in, Ty t) {
  bool packing = d.arg(1).kind == Arg::Vec;
  const Arg &v = d.arg(packing ? 1 : 0);
  if (v.elems.empty()) d.fail("empty vector");
  int small = bits(t) / int(v.elems.size());
  Ty st = small == 16 ? Ty::B16 : small == 32 ? Ty::B32 : small == 64 ? Ty::B64 : Ty::None;
  in.fn = packHandler(bits(t), small, packing);
  if (!in.fn) d.unknown();
  if (packing) in.d = d.dst(0, t);
  else in.a = d.src(1, t);
  for (const Arg &e : v.elems) {
    if (packing) in.vec.push_back(d.src(e, st));
    else in.vec.push_back(e.kind == Arg::Sink ? Operand{} : d.dst(e, st));
  }
  return true;
}

// Address of a variable as base operand + constant.
void variableAddress(Decoder &d, Instr &in, const Arg &a) {
  Arg mem;
  mem.kind = Arg::Mem;
  mem.var = a.var;
  mem.ival = a.ival;
  Address at = d.address(mem, Space::Generic);
  in.a = at.base;
  in.imm = at.off;
}

bool decodeMov(Decoder &d, Instr &in) {
  Ty t = d.lastType();
  if (t == Ty::Pred) {
    in.d = d.pred(d.arg(0), true);
    in.a = d.pred(d.arg(1), false);
    in.sel = d.arg(1).negate;
    in.fn = movPred;
    return true;
  }
  if (d.arg(0).kind == Arg::Vec || d.arg(1).kind == Arg::Vec) return decodeVectorMov(d, in, t);
  if (d.arg(1).kind == Arg::Var) {
    in.d = d.dst(0, t);
    variableAddress(d, in, d.arg(1));
    in.fn = bits(t) == 64 ? movAddress<u64> : movAddress<u32>;
    return true;
  }
  if (d.arg(1).kind == Arg::Special) {
    static const char *clocks[] = {"%clock", "%clock64", "%globaltimer", "%clock_hi",
                                   "%globaltimer_lo"};
    for (u32 i = 0; i < 5; ++i)
      if (d.arg(1).name == clocks[i]) {
        in.d = d.dst(0, t);
        in.sel = i;
        in.fn = clockRegister;
        return true;
      }
  }
  in.d = d.dst(0, t);
  in.a = d.src(1, t);
  in.fn = bits(t) == 16 ? mov<u16> : bits(t) == 32 ? mov<u32> : bits(t) == 64 ? mov<u64>
          : bits(t) == 128 ? mov<unsigned __int128> : nullptr;
  return true;
}

u64 windowOf(Space s) {
  switch (s) {
    case Space::Shared: case Space::SharedCluster: return kSharedWindow;
    case Space::Param: return kParamWindow;
    case Space::Local: return kLocalWindow;
    default: return 0;
  }
}

bool decodeCvta(Decoder &d, Instr &in) {
  u64 window = windowOf(d.spaceOf());
  in.d = d.dst(0, Ty::B64);
  if (d.arg(1).kind == Arg::Var) {
    if (d.has("to")) d.fail("takes a register");
    variableAddress(d, in, d.arg(1));
    in.sel2 = u32(window >> 56);
    in.fn = cvtaAddress;
    return true;
  }
  in.a = d.src(1, Ty::B64);
  in.imm = s64(window);
  in.sel = d.has("to");
  in.fn = cvta;
  return true;
}

}  // namespace

bool decodeMove(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "mov") return decodeMov(d, in);
  if (op == "cvta") return decodeCvta(d, in);
  if (op == "isspacep") {
    in.d = d.pred(d.arg(0), true);
    in.a = d.src(1, Ty::B64);
    in.imm = s64(windowOf(d.spaceOf()));
    in.fn = isspacep;
    return true;
  }
  if (op == "mapa") {
    Ty t = d.lastType();
    if (d.arg(1).kind == Arg::Var) d.fail("of a variable: move its address to a register first");
    in.sel = d.spaceOf() == Space::Generic;
    in.d = d.dst(0, t);
    in.a = d.src(1, t);
    in.b = d.src(2, Ty::B32);
    in.fn = mapa;
    return true;
  }
  if (op == "getctarank") {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, d.lastType());
    in.fn = ctaRank;
    return true;
  }
  return false;
}

}  // namespace emu
