// hazards_sync.cpp - what synchronisation does to clocks, and what has to be known at an exit.
#include "hazards.h"
#include "mbarrier.h"

namespace emu {

// ---- synchronisation --------------------------------------------------------------------------
void hzRelease(Warp &w, u32 lanes, VClock *into) {
  into->join(lanes & w.partialLanes ? w.partial : w.clock);
  Known &k = into->at(w.actor);
  if (lanes == w.live) {
    k.all = w.epoch;
  } else {
    k.some = w.epoch;
    k.lanes |= lanes;
  }
  k.executed = w.epoch++;
}
void hzReleaseRelaxed(Warp &w, VClock *into) {
  into->joinExecuted(w.clock);
  into->at(w.actor).executed = w.epoch++;
}
void hzAcquire(Warp &w, u32 lanes, const VClock &from) {
  hzLearn(w, lanes, [&](VClock &c) { c.join(from); });
}

void hzWarpSync(Warp &w, u32 lanes) {
  if (lanes != w.live) return;
  if (w.partialLanes) w.clock = w.partial;
  w.partialLanes = 0;
  Known &k = w.clock.at(w.actor);
  k.all = k.executed = w.epoch++;
}

void hzProxyFence(Warp &w, u32 lanes, bool shared, bool global) {
  Cluster &c = *w.cta->cluster;
  bool everyLane = lanes == w.live;
  hzLearn(w, lanes, [&](VClock &clock) {
    Known &k = clock.at(w.actor);
    if (global) {
      if (everyLane) k.globalProxied = w.epoch;
      clock.fenceForeign();
    }
    if (!shared) return;
    if (everyLane) {
      k.proxied = w.epoch;
    } else {
      k.proxiedSome = w.epoch;
      k.proxiedLanes |= lanes;
    }
    // Whoever knows of an access may fence it; cp.async writes have nobody else who could.
    for (size_t i = 0; i < clock.size(); ++i)
      if (c.actors[i].kind == ActorInfo::CpAsyncActor || options().readerFence) {
        Known &o = clock.at(int(i));
        o.proxied = std::max(o.proxied, o.all);
      }
  });
  ++w.epoch;
}

void hzRemoteTouch(Warp &w, const Instr &in, Cta &target) {
  Known &k = target.remoteTouch.at(w.actor);
  (in.stmt->parts[0] == "cp" ? k.executed : k.all) = w.epoch;
}

// ---- exit -------------------------------------------------------------------------------------
static const VClock &everythingKnown(const Warp &w) { return w.partialLanes ? w.partial : w.clock; }

void hzWarpExit(Warp &w, const Instr &in) {
  if (w.grid->aborted) return;
  if (!w.bulkOpen.empty())
    finding(w, in, "exit-in-flight", "exits with bulk copies that were never committed");
  else if (w.bulkActor >= 0 && everythingKnown(w).get(w.bulkActor).all < w.bulkCommitted)
    finding(w, in, "exit-in-flight",
            strf("exits while bulk copies may still read shared memory (%u groups committed, %u "
                 "waited for)", w.bulkCommitted, everythingKnown(w).get(w.bulkActor).all));
  if (w.wgIssued && w.wgGroupsDone < w.wgGroupEnd.size())
    finding(w, in, "exit-in-flight", "exits with wgmma groups that were not waited for");
  else if (w.wgIssued && (w.wgGroupEnd.empty() || w.wgGroupEnd.back() < w.wgIssued))
    finding(w, in, "exit-in-flight", "exits with wgmmas that were never committed");
}

// Does anybody in the CTA know that the actor has executed this epoch, or (landed) that what it did
// there has arrived?
static bool anyKnows(const Cta &cta, int actor, u32 epoch, bool landed) {
  for (const Warp &w : cta.warps) {
    Known k = everythingKnown(w).get(actor);
    if ((landed ? std::max(k.all, k.some) : k.executed) >= epoch) return true;
  }
  return false;
}

void hzCtaExit(Warp &w, const Instr &in) {
  Cta &cta = *w.cta;
  if (w.grid->aborted || !options().races) return;
  for (auto &e : cta.mbars) {
    Mbar &m = *e.second;
    if (m.lastTxPhase && !anyKnows(cta, m.actor, u32(m.lastTxPhase), true))
      finding(w, in, "exit-in-flight",
              "the CTA exits while bulk copies to its shared memory may be in flight: nobody has "
              "waited for the " + describeMbar(m));
    else if (m.valid && m.tx != 0 && m.inFlight == 0)
      finding(w, in, "tx-count", "bytes are left over at exit: " + describeMbar(m));
  }
  // A relaxed cluster barrier says that the peer got there, not that its stores and arrivals have
  // arrived; whether its copies have, the barriers above know.
  for (size_t a = 0; a < cta.remoteTouch.size(); ++a) {
    Known last = cta.remoteTouch.get(int(a));
    if (!anyKnows(cta, int(a), last.executed, false) || !anyKnows(cta, int(a), last.all, true))
      finding(w, in, "cluster-exit",
              strf("the CTA exits while %s may still access its shared memory: nothing orders the "
                   "last access before the exit", describeActor(*cta.cluster, int(a)).c_str()));
  }
  for (size_t i = 0; i + 1 < cta.warps.size(); ++i)
    if (i / 4 == (i + 1) / 4 && cta.warps[i].regHistory != cta.warps[i + 1].regHistory) {
      finding(w, in, "setmaxnreg",
              strf("warps %zu and %zu of one warpgroup did not execute the same setmaxnreg:%s |%s",
                   i, i + 1, cta.warps[i].regHistory.c_str(), cta.warps[i + 1].regHistory.c_str()));
      break;
    }
}

}  // namespace emu
