// exec_barrier.cpp - named CTA barriers (bar, barrier), the cluster barrier, fences.
#include "interp.h"

namespace emu {
namespace {

// sel: 0 sync 1 arrive 2 red; sel2: reduction 0 popc 1 and 2 or (c: predicate, imm: negated)
bool uniformValue(Warp &w, const Instr &in, const Operand &o, u32 m, const char *what, u32 *value) {
  const u32 *v = w.src<u32>(o);
  *value = v[__builtin_ctz(m)];
  if (laneBits([&](int l) { return v[l] != *value; }) & m) {
    fatal(w, in, "barrier-count", strf("the %s differs between lanes", what));
    return false;
  }
  return true;
}

void completeBarrier(Cta &cta, u32 id) {
  NamedBarrier &b = cta.bars[id];
  b.released = b.clock;
  b.clock.clear();
  b.resultAnd = b.reduceAnd;
  b.resultOr = b.reduceOr;
  b.resultPopc = b.reducePopc;
  b.reduceAnd = ~0u;
  b.reduceOr = b.reducePopc = 0;
  b.arrived = b.expected = 0;
  b.who.clear();
  ++b.generation;
  ++cta.cluster->progress;
  for (Warp &w : cta.warps)
    for (Frag &f : w.frags)
      if (f.blocked && f.wait.kind == WaitKind::NamedBarrier && f.wait.id == id)
        hzAcquire(w, f.mask, b.released);
}

// Counts who is there: a warp all of whose lanes (but for those that have exited) have come counts
// as 32.  True if nobody is missing.
bool barrierFull(const Cta &cta, NamedBarrier &b) {
  b.arrived = 0;
  for (const NamedBarrier::Arrival &a : b.who) {
    bool all = (cta.warps[a.warp].live & ~a.lanes) == 0;
    b.arrived += all ? kLanes : u32(__builtin_popcount(a.lanes));
  }
  if (b.whole) b.expected = cta.warpsLeft * kLanes;
  return b.arrived == b.expected;
}

void reduceResult(Warp &w, const Instr &in, u32 m) {
  NamedBarrier &b = w.cta->bars[in.imm >> 8];
  if (in.sel2 == 0) lanes(w.dst<u32>(in.d), m, [&](int) { return b.resultPopc; });
  else w.setPred(in.d, m, (in.sel2 == 1 ? b.resultAnd : b.resultOr) ? ~0u : 0);
}

// The arrival of some lanes of a warp; false after a finding.
bool noteArrival(Warp &w, const Instr &in, NamedBarrier &b, u32 id, u32 m) {
  for (NamedBarrier::Arrival &a : b.who) {
    if (a.warp != w.id) continue;
    if (a.lanes & m) {
      fatal(w, in, "barrier-count",
            strf("barrier %u: warp %u arrives twice before it completes", id, w.id));
      return false;
    }
    a.lanes |= m;
    return true;
  }
  b.who.push_back({w.id, m});
  return true;
}

Step namedBarrier(Warp &w, const Instr &in, u32 m) {
  u32 id, all = w.grid->warpsPerCta * kLanes, count = all;
  if (!uniformValue(w, in, in.a, m, "barrier id", &id)) return Step::Abort;
  bool counted = in.b.present();
  if (counted && !uniformValue(w, in, in.b, m, "thread count", &count)) return Step::Abort;
  if (id > 15) return fatal(w, in, "barrier-count", strf("barrier id %u; there are 16", id));
  if (count == 0 || count % kLanes || count > 1024 || count > all)
    return fatal(w, in, "barrier-count",
                 strf("thread count %u is no multiple of 32 within the CTA's %u", count, all));
  NamedBarrier &b = w.cta->bars[id];
  if (b.who.empty()) {
    b.whole = !counted;
    b.expected = count;
    b.first = &in;
  } else if (b.whole && counted) {
    b.whole = false;
    b.expected = all;
  }
  if (b.expected != count && !b.whole)
    return fatal(w, in, "barrier-count",
                 strf("barrier %u: this warp says %u threads, an earlier one (%s) said %u", id,
                      count, w.prog->where(*b.first).c_str(), b.expected));
  if (!noteArrival(w, in, b, id, m)) return Step::Abort;
  if (in.sel != 1) hzWarpSync(w, m);
  hzRelease(w, m, &b.clock);
  if (in.sel == 2) {
    u32 p = (w.pred(in.c) ^ ((in.imm & 1) ? ~0u : 0)) & m;
    b.reducePopc += u32(__builtin_popcount(p));
    b.reduceAnd &= p == m ? ~0u : 0;
    b.reduceOr |= p;
  }
  ++w.cta->cluster->progress;
  if (barrierFull(*w.cta, b)) {
    completeBarrier(*w.cta, id);
    if (in.sel == 1) return Step::Next;
    hzAcquire(w, m, b.released);
    if (in.sel == 2) reduceResult(w, in, m);
    return Step::Next;
  }
  if (in.sel == 1) return Step::Next;
  return block(w, WaitKind::NamedBarrier, id, b.generation);
}

// ---- cluster barrier --------------------------------------------------------------------------
// sel: 0 arrive 1 wait; sel2: relaxed
Step clusterBarrier(Warp &w, const Instr &in, u32) {
  Cluster &c = *w.cta->cluster;
  if (in.sel == 0) {
    if (w.clusterArrived)
      return fatal(w, in, "barrier-count", "arrives twice at the cluster barrier without a wait");
    w.clusterArrived = true;
    w.clusterPhaseArrived = u32(c.barGeneration);
    if (in.sel2) hzReleaseRelaxed(w, &c.barClock);
    else hzRelease(w, w.live, &c.barClock);
    ++c.barArrived;
    ++c.progress;
    clusterBarrierCheck(c);
    return Step::Next;
  }
  if (!w.clusterArrived)
    return fatal(w, in, "barrier-count", "waits at the cluster barrier without having arrived");
  if (u32(c.barGeneration) == w.clusterPhaseArrived)
    return block(w, WaitKind::ClusterBarrier, 0, c.barGeneration);
  w.clusterArrived = false;
  hzWarpSync(w, w.live);
  hzAcquire(w, w.live, c.barReleased);
  return Step::Next;
}

// ---- fences -----------------------------------------------------------------------------------
// sel: 1 proxy.async on shared memory, 8 on global memory, 2 mbarrier_init, 4 memory fence;
// sel2: scope of a memory fence
Step fence(Warp &w, const Instr &in, u32 m) {
  if (in.sel & 9) hzProxyFence(w, m, in.sel & 1, in.sel & 8);
  if (in.sel & 3) {
    for (auto &cta : w.cta->cluster->ctas)
      for (auto &e : cta->mbars) {
        if (e.second->initWarp != &w || !(m >> e.second->initLane & 1)) continue;
        e.second->fenced |= (in.sel & 2) != 0;
        e.second->proxyFenced |= (in.sel & 1) != 0;
      }
  }
  if (in.sel & 4) syncFence(w, m, in.sel2);
  return Step::Next;
}

}  // namespace

void clusterBarrierCheck(Cluster &c) {
  if (c.barArrived == 0 || c.barArrived < c.warpsLeft) return;
  c.barReleased = c.barClock;
  c.barClock.clear();
  c.barArrived = 0;
  ++c.barGeneration;
  ++c.progress;
}

void namedBarriersAfterExit(Cta &cta) {
  for (u32 id = 0; id < 16; ++id)
    if (!cta.bars[id].who.empty() && barrierFull(cta, cta.bars[id])) completeBarrier(cta, id);
}

void namedBarrierResume(Warp &w, const Instr &in, u32 m) {
  if (in.sel == 2) reduceResult(w, in, m);
}

bool decodeBarriers(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  in.flags |= kNotable;
  if (op == "membar" || op == "fence") {
    if (d.has("proxy")) {
      bool async = d.has("async") || d.has("async::generic");
      if (async) in.sel = d.has("global") ? 8 : d.hasPrefix("shared") ? 1 : 9;
    } else if (d.has("mbarrier_init")) {
      in.sel = 2;
    } else {
      in.sel = 4;
      in.sel2 = scopeNamed(d);
    }
    if (d.has("proxy") && d.has("tensormap::generic") && d.count() > 0)
      d.address(d.arg(0), Space::Generic);
    in.fn = fence;
    return true;
  }
  if (op == "barrier" && d.has("cluster")) {
    in.sel = d.has("wait");
    in.sel2 = d.has("relaxed");
    in.flags |= kCollective;
    in.fn = clusterBarrier;
    return true;
  }
  if ((op == "bar" && !d.has("warp")) || op == "barrier") {
    if (op == "bar") in.flags |= kCollective;  // to `barrier` lanes may come one by one
    in.sel = d.has("sync") ? 0 : d.has("arrive") ? 1 : d.has("red") ? 2 : 3;
    if (in.sel == 3) d.unknown();
    int first = 0;
    if (in.sel == 2) {
      in.sel2 = d.has("popc") ? 0 : d.has("and") ? 1 : 2;
      in.d = in.sel2 == 0 ? d.dst(0, Ty::B32) : d.pred(d.arg(0), true);
      int at = d.count() - 1;
      in.c = d.pred(d.arg(at), false);
      in.imm = d.arg(at).negate;
      if (!d.isConstant(1)) d.fail("the barrier id of a reduction must be a constant");
      in.imm |= s64(d.constantValue(1)) << 8;
      first = 1;
      if (at > 2) in.b = d.src(2, Ty::B32);
    } else if (d.count() > 1) {
      in.b = d.src(1, Ty::B32);
    } else if (in.sel == 1) {
      d.fail("arrive needs a thread count");
    }
    in.a = d.src(first, Ty::B32);
    in.fn = namedBarrier;
    return true;
  }
  in.flags &= ~u32(kNotable);
  return false;
}

}  // namespace emu
