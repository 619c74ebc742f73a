// exec_barrier.cpp - named CTA barriers (bar, barrier), the cluster barrier, fences.
#include "interp.h"

namespace emu {
namespace {

// sel: 0 sync 1 arrive 2 red; sel2: reduction 0 popc 1 and 2 or (c: predicate, imm: negated)
u32 uniformValue(const Warp &w, const Operand &o, u32 m) {
  return w.src<u32>(o)[__builtin_ctz(m)];
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
        hzAcquire(w, w.live, b.released);
}

void reduceResult(Warp &w, const Instr &in, u32 m) {
  NamedBarrier &b = w.cta->bars[in.imm >> 8];
  if (in.sel2 == 0) lanes(w.dst<u32>(in.d), m, [&](int) { return b.resultPopc; });
  else w.setPred(in.d, m, (in.sel2 == 1 ? b.resultAnd : b.resultOr) ? ~0u : 0);
}

Step namedBarrier(Warp &w, const Instr &in, u32 m) {
  u32 id = uniformValue(w, in.a, m), all = w.grid->warpsPerCta * kLanes;
  u32 count = in.b.present() ? uniformValue(w, in.b, m) : all;
  if (id > 15) return fatal(w, in, "barrier-count", strf("barrier id %u; there are 16", id));
  if (count == 0 || count % kLanes || count > 1024 || count > all)
    return fatal(w, in, "barrier-count",
                 strf("thread count %u is no multiple of 32 within the CTA's %u", count, all));
  NamedBarrier &b = w.cta->bars[id];
  if (b.expected && b.expected != count)
    return fatal(w, in, "barrier-count",
                 strf("barrier %u: this warp says %u threads, an earlier one (%s) said %u", id,
                      count, w.prog->where(*b.first).c_str(), b.expected));
  for (u32 other : b.who)
    if (other == w.id)
      return fatal(w, in, "barrier-count",
                   strf("barrier %u: warp %u arrives twice before it completes", id, w.id));
  if (!b.expected) b.first = &in;
  b.expected = count;
  b.arrived += kLanes;
  b.who.push_back(w.id);
  if (in.sel != 1) hzWarpSync(w, m);
  hzRelease(w, m, &b.clock);
  if (in.sel == 2) {
    u32 p = (w.pred(in.c) ^ ((in.imm & 1) ? ~0u : 0)) & m;
    b.reducePopc += u32(__builtin_popcount(p));
    b.reduceAnd &= p == m ? ~0u : 0;
    b.reduceOr |= p;
  }
  ++w.cta->cluster->progress;
  bool complete = b.arrived == b.expected;
  if (complete) {
    completeBarrier(*w.cta, id);
    if (in.sel == 1) return Step::Next;
    hzAcquire(w, w.live, b.released);
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
        if (e.second->initWarp != &w) continue;
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
    in.flags |= kCollective;
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
