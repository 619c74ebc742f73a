// exec_mbarrier.cpp - the mbarrier instructions.
//
// A barrier's state is kept beside shared memory (Cta::mbars), not in its 8 bytes: the layout is
// opaque on hardware too. Phases are counted over the barrier's life; parity is phase & 1. A state
// token is phase << 20 | pending arrivals.
#include "mbarrier.h"

namespace emu {

constexpr s64 kMaxCount = (1 << 20) - 1;

std::string describeMbar(const Mbar &m) {
  return strf("mbarrier at shared offset %u of CTA (%u,%u,%u) (count %u, phase %llu, %lld arrivals "
              "and %lld bytes missing)", m.offset, m.cta->index[0], m.cta->index[1],
              m.cta->index[2], m.count, (unsigned long long)(m.phase - m.phaseBase),
              (long long)m.pending, (long long)m.tx);
}

bool mbarPhaseDone(const Mbar &m, u32 parity) {
  return ((m.phase - m.phaseBase) & 1) != (parity & 1);
}

static Mbar *mbarLookup(Warp &w, const Instr &in, u64 addr, bool clusterOk, int lane, Cta **cta,
                        u32 *off) {
  *cta = resolveShared(w, in, addr, 8, 8, clusterOk, off, lane);
  if (!*cta) return nullptr;
  auto it = (*cta)->mbars.find(*off);
  return it == (*cta)->mbars.end() ? nullptr : it->second.get();
}

Mbar *mbarAt(Warp &w, const Instr &in, u64 addr, bool clusterOk, int lane) {
  Cta *cta;
  u32 off;
  Mbar *m = mbarLookup(w, in, addr, clusterOk, lane, &cta, &off);
  if (!cta) return nullptr;
  if (!m || !m->valid) {
    fatal(w, in, "mbarrier-init",
          strf("no initialised mbarrier at shared offset %u of CTA rank %u", off, cta->rank), lane);
    return nullptr;
  }
  return m;
}

// A wait names its phase by one bit. It must be certain that whoever waits for a phase has seen it
// before the next one completes; or, a little slower, it would wait for the wrong one, maybe for
// ever.
static void checkWaiters(Warp &w, const Instr &in, const Mbar &m) {
  for (const Mbar::Waiter &x : m.waiters) {
    if (x.phase != m.phase || m.clock.get(x.warp->actor).executed >= x.epoch) continue;
    finding(w, in, "mbarrier-parity",
            strf("completes a phase although nothing makes sure that warp %u (waiting at %s) has "
                 "seen the one before: a slower warp would miss it and wait for the wrong parity; "
                 "%s", x.warp->id, w.prog->where(*x.instr).c_str(), describeMbar(m).c_str()));
    return;
  }
}

static void tryComplete(Warp &w, const Instr &in, Mbar &m) {
  if (m.pending != 0 || m.tx != 0) return;
  if (options().races) checkWaiters(w, in, m);
  ++m.phase;
  m.pending = m.count;
  Known &k = m.clock.at(m.actor);
  k.all = std::max(k.all, u32(m.phase));
  k.executed = k.all;
  m.released = m.clock;
  ++m.cta->cluster->progress;
}

void mbarArrive(Warp &w, const Instr &in, Mbar &m, u32 n, int lane) {
  if (m.pending < s64(n)) {
    finding(w, in, "mbarrier-count",
            strf("%u arrivals while only %lld are pending: %s", n, (long long)m.pending,
                 describeMbar(m).c_str()), lane);
    m.pending = n;
  }
  m.pending -= n;
  ++m.cta->cluster->progress;
  tryComplete(w, in, m);
}

static void checkTxRange(Warp &w, const Instr &in, Mbar &m, int lane) {
  if (m.tx > kMaxCount || m.tx < -kMaxCount)
    finding(w, in, "tx-count", "transaction count out of range: " + describeMbar(m), lane);
}

void mbarExpectTx(Warp &w, const Instr &in, Mbar &m, s64 bytes, int lane) {
  m.tx += bytes;
  checkTxRange(w, in, m, lane);
}

void mbarCompleteTx(Warp &w, const Instr &in, Mbar &m, s64 bytes, u64 phase) {
  if (!m.valid) {
    finding(w, in, "mbarrier-init", "a copy signals an mbarrier that was invalidated");
    return;
  }
  if (phase != m.phase)
    finding(w, in, "tx-count",
            strf("the copy was issued in phase %llu, whose completion did not wait for its bytes "
                 "(expect_tx missing or too small): %s", (unsigned long long)(phase - m.phaseBase),
                 describeMbar(m).c_str()));
  m.tx -= bytes;
  checkTxRange(w, in, m, -1);
  ++m.cta->cluster->progress;
  tryComplete(w, in, m);
}

namespace {

void noteWaiter(const Warp &w, const Instr &in, Mbar &m) {
  for (Mbar::Waiter &x : m.waiters)
    if (x.warp == &w) {
      x = {&w, m.phase, w.epoch, &in};
      return;
    }
  m.waiters.push_back({&w, m.phase, w.epoch, &in});
}

// A warp that completes a phase by an instruction of its own has seen what it waited for before it.
void seenByItself(const Warp &w, Mbar &m) {
  for (Mbar::Waiter &x : m.waiters)
    if (x.warp == &w) x.epoch = 0;
}

// Calls f(mbar, lanes of the group, first lane) for each group of lanes with the same address.
template <class F> Step forGroups(Warp &w, const Instr &in, u32 m, bool clusterOk, F f) {
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  while (m) {
    int first = __builtin_ctz(m);
    u32 group = m & laneBits([&](int l) { return addr[l] == addr[first]; });
    m &= ~group;
    Mbar *b = mbarAt(w, in, addr[first], clusterOk, first);
    if (!b) return Step::Abort;
    f(*b, group, first);
  }
  return w.grid->aborted ? Step::Abort : Step::Next;
}

Step init(Warp &w, const Instr &in, u32 m) {
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  FOR_LANES(l, m) {
    Cta *cta;
    u32 off, count = w.src<u32>(in.a)[l];
    Mbar *b = mbarLookup(w, in, addr[l], false, int(l), &cta, &off);
    if (!cta) return Step::Abort;
    if (count == 0 || count > kMaxCount)
      return fatal(w, in, "mbarrier-count", strf("count %u is not in 1..2^20-1", count), int(l));
    if (b && b->valid)
      finding(w, in, "mbarrier-init", "initialises a live " + describeMbar(*b), int(l));
    if (!b) {
      auto owned = std::make_unique<Mbar>();
      b = owned.get();
      b->cta = cta;
      b->offset = off;
      b->actor = cta->cluster->newActor({ActorInfo::MbarActor, cta, off});
      cta->mbars[off] = std::move(owned);
    }
    hzMbarWord(w, in, *b, int(l));
    b->valid = true;
    b->count = count;
    b->pending = count;
    b->tx = 0;
    b->phaseBase = b->phase;
    b->fenced = b->proxyFenced = false;
    b->initWarp = &w;
    b->initLane = int(l);
    b->initEpoch = w.epoch;
    b->initInstr = &in;
  }
  return Step::Next;
}

Step inval(Warp &w, const Instr &in, u32 m) {
  return forGroups(w, in, m, false, [&](Mbar &b, u32, int lane) {
    hzMbarUse(w, in, b, false, lane);
    if (b.inFlight)
      finding(w, in, "mbarrier-init", "invalidated while copies are to signal it: " +
                                            describeMbar(b), lane);
    b.valid = false;
    hzMbarInval(w, in, b, lane);
  });
}

// sel: 1 expect_tx with the arrival, 2 noComplete, 4 drop, 8 relaxed
Step arrive(Warp &w, const Instr &in, u32 m) {
  return forGroups(w, in, m, true, [&](Mbar &b, u32 group, int first) {
    hzMbarUse(w, in, b, false, first);
    if (in.d.present()) {
      u64 *d = w.dst<u64>(in.d);
      FOR_LANES(l, group) d[l] = b.phase << 20 | u64(b.pending);
    }
    if (in.sel & 8) hzReleaseRelaxed(w, &b.clock);
    else hzRelease(w, group, &b.clock);
    u32 n = 0;
    FOR_LANES(l, group) {
      u32 v = in.a.present() ? w.src<u32>(in.a)[l] : 1;
      if (in.sel & 1) mbarExpectTx(w, in, b, v, int(l));
      n += in.sel & 1 ? 1 : v;
    }
    if (in.sel & 4) b.count -= u32(__builtin_popcount(group));
    if ((in.sel & 2) && b.pending <= s64(n))
      finding(w, in, "mbarrier-count", "noComplete arrival would complete the phase", first);
    mbarArrive(w, in, b, n, first);
  });
}

// sel: 1 complete_tx
Step expectTx(Warp &w, const Instr &in, u32 m) {
  return forGroups(w, in, m, true, [&](Mbar &b, u32 group, int first) {
    hzMbarUse(w, in, b, false, first);
    FOR_LANES(l, group) {
      s64 bytes = w.src<u32>(in.a)[l];
      if (in.sel) {
        seenByItself(w, b);
        mbarCompleteTx(w, in, b, bytes, b.phase);
      } else {
        mbarExpectTx(w, in, b, bytes, int(l));
      }
    }
  });
}

bool givesUp(Warp &w, const Mbar &m) {
  if (!w.grid->impatient || (w.gaveUpOn == &m && w.gaveUpPhase == m.phase)) return false;
  w.gaveUpOn = &m;
  w.gaveUpPhase = m.phase;
  return true;
}

// sel: 1 parity form, 2 try_wait (may suspend), 4 relaxed
Step wait(Warp &w, const Instr &in, u32 m) {
  u32 yes = 0;
  Mbar *waiting = nullptr;
  Step s = forGroups(w, in, m, false, [&](Mbar &b, u32 group, int first) {
    hzMbarUse(w, in, b, false, first);
    u32 ok = 0;
    FOR_LANES(l, group) {
      bool done = in.sel & 1 ? mbarPhaseDone(b, w.src<u32>(in.a)[l])
                             : b.phase > w.src<u64>(in.a)[l] >> 20;
      ok |= u32(done) << l;
    }
    if (ok) {
      if (in.sel & 1) noteWaiter(w, in, b);
      if (!(in.sel & 4)) hzAcquire(w, ok, b.released);
    } else {
      waiting = &b;
    }
    yes |= ok;
  });
  if (s != Step::Next) return s;
  Frag &f = w.frags[size_t(w.cur)];
  bool timedOut = f.wait.timedOut;
  f.wait.timedOut = false;
  bool mayBlock = (in.sel & 2) && !yes && !timedOut;
  if (mayBlock && options().jitter && (rng().chance(1, 64) || givesUp(w, *waiting)))
    mayBlock = false;  // allowed at any time
  if (mayBlock) return block(w, WaitKind::Mbarrier, 0, waiting->phase, waiting);
  w.setPred(in.d, m, yes);
  return yes == m ? Step::Next : Step::Yield;
}

Step pendingCount(Warp &w, const Instr &in, u32 m) {
  const u64 *a = w.src<u64>(in.a);
  lanes(w.dst<u32>(in.d), m, [&](int l) { return u32(a[l] & kMaxCount); });
  return Step::Next;
}

}  // namespace

bool decodeMbarrier(Decoder &d, Instr &in) {
  if (d.op() != "mbarrier") return false;
  in.flags |= kNotable;
  Space space = d.spaceOf();
  const std::string &what = d.s().parts[1];
  if (what == "init") {
    in.addr = d.address(d.arg(0), space);
    in.a = d.src(1, Ty::B32);
    in.fn = init;
  } else if (what == "inval") {
    in.addr = d.address(d.arg(0), space);
    in.fn = inval;
  } else if (what == "arrive" || what == "arrive_drop") {
    int at = d.arg(0).kind == Arg::Mem ? 0 : 1;
    if (at && d.arg(0).kind != Arg::Sink) in.d = d.dst(0, Ty::B64);
    in.addr = d.address(d.arg(at), space);
    if (d.count() > at + 1) in.a = d.src(at + 1, Ty::B32);
    in.sel = u32(d.has("expect_tx")) | u32(d.has("noComplete")) << 1 |
             u32(what == "arrive_drop") << 2 | u32(d.has("relaxed")) << 3;
    if ((in.sel & 1) && !in.a.present()) d.fail("expect_tx needs a byte count");
    in.fn = arrive;
  } else if (what == "expect_tx" || what == "complete_tx") {
    in.addr = d.address(d.arg(0), space);
    in.a = d.src(1, Ty::B32);
    in.sel = what == "complete_tx";
    in.fn = expectTx;
  } else if (what == "test_wait" || what == "try_wait") {
    in.d = d.pred(d.arg(0), true);
    in.addr = d.address(d.arg(1), space);
    bool parity = d.has("parity");
    in.a = d.src(2, parity ? Ty::B32 : Ty::B64);
    if (d.count() > 3) d.src(3, Ty::B32);
    in.sel = u32(parity) | u32(what == "try_wait") << 1 | u32(d.has("relaxed")) << 2;
    in.fn = wait;
  } else if (what == "pending_count") {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B64);
    in.fn = pendingCount;
  } else {
    d.unknown();
  }
  return true;
}

}  // namespace emu
