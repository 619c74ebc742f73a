// exec_warp.cpp - what lanes of one warp do together: shfl, vote, match, elect, redux,
// bar.warp.sync.
#include "interp.h"

namespace emu {
namespace {

// All live lanes of `members` must be here. True: go on. False: *s says what to do.
bool converged(Warp &w, const Instr &in, u32 m, u32 members, Step *s) {
  u32 need = members & w.live;
  if ((m & ~members) != 0) {
    *s = fatal(w, in, "divergence",
               strf("lanes 0x%08x execute it but are not in the member mask 0x%08x", m & ~members,
                    members));
    return false;
  }
  u32 missing = need & ~m;
  if (!missing) return true;
  if (missing & w.mask) {  // here, but switched off by the guard
    *s = fatal(w, in, "divergence",
               strf("lanes 0x%08x of the member mask are switched off by the guard", missing));
    return false;
  }
  *s = block(w, WaitKind::Converge, 0, 0, nullptr, need);
  return false;
}

u32 memberMask(const Warp &w, const Operand &o, u32 m) {
  return w.src<u32>(o)[__builtin_ctz(m)];
}

// sel: 0 up 1 down 2 bfly 3 idx
Step shfl(Warp &w, const Instr &in, u32 m) {
  Step s;
  u32 members = memberMask(w, in.e, m);
  if (!converged(w, in, m, members, &s)) return s;
  u32 a[kLanes], out[kLanes], valid = 0;
  memcpy(a, w.src<u32>(in.a), sizeof a);
  const u32 *b = w.src<u32>(in.b), *c = w.src<u32>(in.c);
  FOR_LANES(l, m) {
    u32 clampv = c[l] & 31, seg = c[l] >> 8 & 31, bv = b[l] & 31;
    int maxLane = int((l & seg) | (clampv & ~seg)), minLane = int(l & seg), j;
    bool ok;
    switch (in.sel) {
      case 0: j = int(l) - int(bv); ok = j >= maxLane; break;
      case 1: j = int(l + bv); ok = j <= maxLane; break;
      case 2: j = int(l ^ bv); ok = j <= maxLane; break;
      default: j = minLane | int(bv & ~seg); ok = j <= maxLane; break;
    }
    if (!ok) j = int(l);
    if (!(m >> j & 1))
      return fatal(w, in, "divergence", strf("reads lane %d, which does not take part", j), int(l));
    out[l] = a[j];
    valid |= u32(ok) << l;
  }
  u32 *d = w.dst<u32>(in.d);
  FOR_LANES(k, m) d[k] = out[k];
  if (in.d2.present()) w.setPred(in.d2, m, valid);
  return Step::Next;
}

// sel: 0 all 1 any 2 uni 3 ballot; sel2: predicate negated
Step vote(Warp &w, const Instr &in, u32 m) {
  Step s;
  if (!converged(w, in, m, memberMask(w, in.e, m), &s)) return s;
  u32 p = (w.pred(in.a) ^ (in.sel2 ? ~0u : 0)) & m;
  if (in.sel == 3) {
    lanes(w.dst<u32>(in.d), m, [&](int) { return p; });
    return Step::Next;
  }
  bool r = in.sel == 0 ? p == m : in.sel == 1 ? p != 0 : p == m || p == 0;
  w.setPred(in.d, m, r ? ~0u : 0);
  return Step::Next;
}

// sel: all
template <class T> Step match(Warp &w, const Instr &in, u32 m) {
  Step s;
  if (!converged(w, in, m, memberMask(w, in.e, m), &s)) return s;
  T a[kLanes];
  memcpy(a, w.src<T>(in.a), sizeof a);
  u32 *d = w.dst<u32>(in.d);
  u32 ok = 0;
  FOR_LANES(l, m) {
    u32 same = 0;
    FOR_LANES(k, m) same |= u32(a[k] == a[l]) << k;
    d[l] = in.sel ? (same == m ? m : 0) : same;
    ok |= u32(same == m) << l;
  }
  if (in.d2.present()) w.setPred(in.d2, m, ok);
  return Step::Next;
}

Step activemask(Warp &w, const Instr &in, u32 m) {
  lanes(w.dst<u32>(in.d), m, [&](int) { return m; });
  return Step::Next;
}

Step elect(Warp &w, const Instr &in, u32 m) {
  Step s;
  u32 members = memberMask(w, in.e, m);
  if (!converged(w, in, m, members, &s)) return s;
  u32 leader = u32(__builtin_ctz(m));
  if (in.d.present()) lanes(w.dst<u32>(in.d), m, [&](int) { return leader; });
  w.setPred(in.d2, m, 1u << leader);
  return Step::Next;
}

// sel: 0 add 1 min 2 max 3 and 4 or 5 xor; sel2: signed
Step redux(Warp &w, const Instr &in, u32 m) {
  Step s;
  if (!converged(w, in, m, memberMask(w, in.e, m), &s)) return s;
  const u32 *a = w.src<u32>(in.a);
  u32 r = a[__builtin_ctz(m)];
  FOR_LANES(l, m & (m - 1)) {
    u32 x = a[l];
    bool less = in.sel2 ? s32(x) < s32(r) : x < r;
    switch (in.sel) {
      case 0: r += x; break;
      case 1: r = less ? x : r; break;
      case 2: r = less ? r : x; break;
      case 3: r &= x; break;
      case 4: r |= x; break;
      default: r ^= x; break;
    }
  }
  lanes(w.dst<u32>(in.d), m, [&](int) { return r; });
  return Step::Next;
}

Step warpSync(Warp &w, const Instr &in, u32 m) {
  Step s;
  if (!converged(w, in, m, memberMask(w, in.a, m), &s)) return s;
  hzWarpSync(w, m);
  return Step::Next;
}

int modeNamed(const Decoder &d, std::initializer_list<const char *> names) {
  int i = 0;
  for (const char *n : names) {
    if (d.has(n)) return i;
    ++i;
  }
  d.unknown();
}

}  // namespace

bool decodeWarpOps(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "shfl") {
    if (!d.has("sync")) d.unknown();
    in.sel = u32(modeNamed(d, {"up", "down", "bfly", "idx"}));
    in.d = d.dst(0, Ty::B32);
    if (!d.arg(0).pair.empty()) in.d2 = d.pred(d.arg(0).pair[0], true);
    in.a = d.src(1, Ty::B32);
    in.b = d.src(2, Ty::B32);
    in.c = d.src(3, Ty::B32);
    in.e = d.src(4, Ty::B32);
    in.fn = shfl;
  } else if (op == "vote") {
    if (!d.has("sync")) d.unknown();
    in.sel = u32(modeNamed(d, {"all", "any", "uni", "ballot"}));
    in.d = in.sel == 3 ? d.dst(0, Ty::B32) : d.pred(d.arg(0), true);
    in.a = d.pred(d.arg(1), false);
    in.sel2 = d.arg(1).negate;
    in.e = d.src(2, Ty::B32);
    in.fn = vote;
  } else if (op == "match") {
    in.sel = d.has("all");
    in.d = d.dst(0, Ty::B32);
    if (!d.arg(0).pair.empty()) in.d2 = d.pred(d.arg(0).pair[0], true);
    in.a = d.src(1, d.lastType());
    in.e = d.src(2, Ty::B32);
    in.fn = bits(d.lastType()) == 64 ? match<u64> : match<u32>;
  } else if (op == "activemask") {
    in.d = d.dst(0, Ty::B32);
    in.fn = activemask;
  } else if (op == "elect") {
    if (d.arg(0).pair.empty()) d.fail("expected d|p");
    if (d.arg(0).kind != Arg::Sink) in.d = d.dst(0, Ty::B32);
    in.d2 = d.pred(d.arg(0).pair[0], true);
    in.e = d.src(1, Ty::B32);
    in.fn = elect;
  } else if (op == "redux") {
    in.sel = u32(modeNamed(d, {"add", "min", "max", "and", "or", "xor"}));
    in.sel2 = isSigned(d.lastType());
    if (d.lastType() == Ty::F32) d.unknown();
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.e = d.src(2, Ty::B32);
    in.fn = redux;
  } else if (op == "bar" && d.has("warp")) {
    in.a = d.src(0, Ty::B32);
    in.fn = warpSync;
    in.flags |= kNotable;
  } else {
    return false;
  }
  return true;
}

}  // namespace emu
