// async_copy.cpp - the life of an asynchronous copy: issued, source read, delivered.
//
// When each step happens is up to the seed: eager (at issue), lazy (when somebody waits, or when
// nobody can go on otherwise) or random. Hazards do not depend on it: they are judged at issue by
// vector clocks (hazards.cpp).
#include "async_copy.h"

#include <algorithm>

#include "numeric.h"
#include "scheduler.h"

namespace emu {

void asyncRead(AsyncOp &op) {
  if (op.readDone) return;
  op.readDone = true;
  if (op.read) op.read(op);
}

void asyncComplete(AsyncOp &op) {
  if (op.done) return;
  asyncRead(op);
  op.done = true;
  if (op.write) op.write(op);
  op.data = {};
  ++op.issuer->cta->cluster->progress;
}

void asyncIssue(Warp &w, AsyncPtr op, bool bulkGroup) {
  if (bulkGroup) w.bulkOpen.push_back(op);
  bool now = asyncMode() == 0 || (asyncMode() == 2 && rng().chance(1, 4));
  if (now) {
    asyncComplete(*op);
    return;
  }
  op->delay = asyncMode() == 2 ? 1 + rng().below(rng().chance(1, 4) ? 200 : 20) : ~0u;
  w.cta->cluster->pending.push_back(std::move(op));
}

static void dropDone(Cluster &c) {
  auto &v = c.pending;
  v.erase(std::remove_if(v.begin(), v.end(), [](const AsyncPtr &o) { return o->done; }), v.end());
}

static void completeCpItem(Warp &w) {
  CpItem item = std::move(w.cpQueue.front());
  w.cpQueue.pop_front();
  for (const CpItem::Copy &c : item.copies) {
    memcpy(c.to, reinterpret_cast<const void *>(c.from), c.fromBytes);
    memset(c.to + c.fromBytes, 0, c.bytes - c.fromBytes);
  }
  if (item.arrive) {
    Known &k = item.arrive->clock.at(w.cpActor);
    k.all = std::max(k.all, item.epoch);
    k.executed = k.all;
    mbarArrive(w, *item.instr, *item.arrive, item.arrivals, -1);
  }
  ++w.cta->cluster->progress;
}

void cpAsyncComplete(Warp &w, u32 groups) {  // all groups numbered below `groups`
  while (!w.cpQueue.empty() && w.cpQueue.front().group < groups) completeCpItem(w);
}

void asyncTick(Cluster &c) {
  if (asyncMode() != 2) return;
  if (!c.pending.empty()) {
    // Indexed: completing one may not add others, but keep the loop simple to trust.
    for (size_t i = 0; i < c.pending.size(); ++i) {
      AsyncPtr op = c.pending[i];
      if (op->delay == 0 || --op->delay == 0) asyncComplete(*op);
      else if (!op->readDone && rng().chance(1, 16)) asyncRead(*op);
    }
    dropDone(c);
  }
  for (auto &cta : c.ctas)
    for (Warp &w : cta->warps)
      if (!w.cpQueue.empty() && rng().chance(1, 8)) completeCpItem(w);
}

bool asyncForceOne(Cluster &c) {
  dropDone(c);
  if (!c.pending.empty()) {
    AsyncPtr op = c.pending[options().jitter ? rng().below(u32(c.pending.size())) : 0];
    asyncComplete(*op);
    dropDone(c);
    return true;
  }
  for (auto &cta : c.ctas)
    for (Warp &w : cta->warps)
      if (!w.cpQueue.empty()) {
        completeCpItem(w);
        return true;
      }
  return false;
}

// ---- pieces of copies -------------------------------------------------------------------------
u8 *globalRange(AsyncOp &op, u64 addr, u64 bytes, bool write) {
  Warp &w = *op.issuer;
  Allocation *a = w.grid->lastAlloc;
  if (!a || !a->contains(addr, bytes)) {
    a = memory().find(addr);
    if (!a || !a->live || !a->contains(addr, bytes) ||
        (!a->host && a->device >= 0 && a->device != w.grid->device)) {
      fatal(w, *op.instr, a && !a->live ? "use-after-free" : "out-of-bounds",
            strf("the copy %s %s", write ? "writes" : "reads",
                 memory().describe(addr, bytes).c_str()));
      return nullptr;
    }
    w.grid->lastAlloc = a;
  }
  if (write) {
    memory().markInit(a, addr, bytes);
  } else if (options().uninitGlobal && !memory().isInit(a, addr, bytes)) {
    finding(w, *op.instr, "uninitialised",
            strf("the copy reads global memory never written: %s",
                 memory().describe(addr, bytes).c_str()));
    memory().markInit(a, addr, bytes);
  }
  return reinterpret_cast<u8 *>(addr);
}

void globalReadIssued(AsyncOp &op, u64 addr, u64 bytes) {
  Allocation *a = memory().find(addr);
  if (a && a->contains(addr, bytes))
    hgAsyncRead(*op.issuer, *op.instr, op.lane, *a, addr, bytes);
}
void globalWriteIssued(AsyncOp &op, u64 addr, u64 bytes, bool reduce) {
  Allocation *a = memory().find(addr);
  if (a && a->contains(addr, bytes))
    hgAsyncWrite(*op.issuer, *op.instr, op.lane, *a, addr, bytes, reduce);
}

bool deliveries(Warp &w, const Instr &in, u64 dst, u64 mbarAddr, u32 ctaMask, bool multicast,
                u32 bytes, int lane, std::vector<Delivery> *out, u32 *off) {
  u32 mbarOff;
  Cta *home = resolveShared(w, in, dst, bytes, 16, true, off, lane);
  if (!home) return false;
  Cta *mbarHome = resolveShared(w, in, mbarAddr, 8, 8, true, &mbarOff, lane);
  if (!mbarHome) return false;
  if (home != mbarHome) {
    fatal(w, in, "mbarrier-init", "destination and mbarrier lie in different CTAs", lane);
    return false;
  }
  Cluster &c = *w.cta->cluster;
  for (size_t r = 0; r < c.ctas.size(); ++r) {
    Cta *cta = multicast ? c.ctas[r].get() : home;
    if (multicast && !(ctaMask >> r & 1)) continue;
    if (!multicast && r > 0) break;
    u64 at = (u64(cta->rank) << kRankShift) | (mbarOff + kSharedBase);
    Mbar *m = mbarAt(w, in, at, true, lane);
    if (!m) return false;
    hzMbarUse(w, in, *m, true, lane);
    ++m->inFlight;
    m->clock.joinExecuted(w.clock);  // who sees the copy complete knows that it was issued
    m->clock.at(w.actor).executed = w.epoch;
    m->lastTxPhase = m->phase + 1;
    out->push_back({cta, m, m->phase});
  }
  if (multicast && (ctaMask >> c.ctas.size()) != 0) {
    fatal(w, in, "out-of-bounds", strf("multicast mask 0x%x in a cluster of %zu", ctaMask,
                                       c.ctas.size()), lane);
    return false;
  }
  return true;
}

void signalDeliveries(AsyncOp &op, const std::vector<Delivery> &to, s64 bytes) {
  for (const Delivery &d : to) {
    --d.mbar->inFlight;
    mbarCompleteTx(*op.issuer, *op.instr, *d.mbar, bytes, d.phase);
  }
}

void bulkActorOf(Warp &w) {
  if (w.bulkActor >= 0) return;
  w.bulkActor = w.cta->cluster->newActor({ActorInfo::BulkActor, w.cta, w.id});
  w.bulkWriteActor = w.cta->cluster->newActor({ActorInfo::BulkWriteActor, w.cta, w.id});
}

bool reduceNamed(const Decoder &d, Reduce *out) {
  struct Row { const char *name; Reduce op; };
  static const Row rows[] = {{"add", Reduce::Add}, {"min", Reduce::Min}, {"max", Reduce::Max},
                             {"inc", Reduce::Inc}, {"dec", Reduce::Dec}, {"and", Reduce::And},
                             {"or", Reduce::Or},   {"xor", Reduce::Xor}};
  for (const Row &r : rows)
    if (d.has(r.name)) {
      *out = r.op;
      return true;
    }
  return false;
}

namespace {

template <class T> T reduceOne(Reduce op, T a, T b) {
  switch (op) {
    case Reduce::Add: return T(a + b);
    case Reduce::Min: return a < b ? a : b;
    case Reduce::Max: return a > b ? a : b;
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case Reduce::Inc: return a >= b ? T(0) : T(a + 1);
      case Reduce::Dec: return a == 0 || a > b ? b : T(a - 1);
      case Reduce::And: return a & b;
      case Reduce::Or: return a | b;
      default: return a ^ b;
    }
  }
  return a;
}
template <class T> void reduceAll(u8 *dst, const u8 *src, u64 n, Reduce op) {
  for (u64 i = 0; i + sizeof(T) <= n; i += sizeof(T)) {
    T a, b;
    memcpy(&a, dst + i, sizeof a);
    memcpy(&b, src + i, sizeof b);
    a = reduceOne(op, a, b);
    if constexpr (std::is_same_v<T, float>) a = canonical(a);
    memcpy(dst + i, &a, sizeof a);
  }
}
template <float (*Load)(u16), u16 (*Store)(float)>
void reduceHalf(u8 *dst, const u8 *src, u64 n, Reduce op) {
  for (u64 i = 0; i + 2 <= n; i += 2) {
    u16 a, b;
    memcpy(&a, dst + i, 2);
    memcpy(&b, src + i, 2);
    a = Store(reduceOne(op, Load(a), Load(b)));
    memcpy(dst + i, &a, 2);
  }
}

}  // namespace

void reduceBytes(u8 *dst, const u8 *src, u64 n, Reduce op, Ty type) {
  switch (type) {
    case Ty::F16: reduceHalf<fromF16, toF16>(dst, src, n, op); break;
    case Ty::BF16: reduceHalf<fromBf16, toBf16>(dst, src, n, op); break;
    case Ty::F32: reduceAll<float>(dst, src, n, op); break;
    case Ty::F64: reduceAll<double>(dst, src, n, op); break;
    case Ty::S32: reduceAll<s32>(dst, src, n, op); break;
    case Ty::S64: reduceAll<s64>(dst, src, n, op); break;
    case Ty::U64: case Ty::B64: reduceAll<u64>(dst, src, n, op); break;
    default: reduceAll<u32>(dst, src, n, op); break;
  }
}

}  // namespace emu
