// hazards_global.cpp - happens-before on global memory, within a launch.
//
// Only writes are remembered (4-byte cells, per allocation, for one launch and the programmatic
// launches that may run beside it); a read or another write of the same cell must come after them:
// through barriers within a CTA or cluster, through release and acquire between clusters, through
// griddepcontrol.wait between kernels. Two atomic accesses never clash, but for floating-point sums
// of CTAs that order themselves by flags: there the order is meant to be fixed. An access of the
// async proxy after an ordinary write, or after another CTA's copy that a flag told of, wants a
// fence.proxy.async (global) between the two as well.
#include <algorithm>

#include "interp.h"

namespace emu {
namespace {

u64 clusterKey(const Warp &w) { return w.grid->id << 32 | w.cta->cluster->index; }

// Is that grid known to be complete?  The one before is, after griddepcontrol.wait; the one before
// that only if its successor has waited for it in its turn.  Without a wait of one's own the one
// before that is, if all of its successor's CTAs waited before they let this grid start.
bool isComplete(const Warp &w, u64 grid, int lane) {
  const Grid *g = w.grid->after;
  if (!hzClock(w, lane).afterDependency) {
    if (!g || g->handedOverEarly) return false;
    g = g->after;
  }
  for (; g; g = g->after) {
    if (g->id == grid) return true;
    if (!g->waited) return false;
  }
  return false;
}

bool happensBefore(const Warp &w, const GlobalWrite &e, u32 lane, int myLane) {
  const VClock &clock = hzClock(w, myLane);
  if (e.grid != w.grid->id) return isComplete(w, e.grid, myLane);
  if (e.cluster == clusterKey(w)) {
    if (e.actor == w.actor && myLane >= 0 && lane == u32(myLane)) return true;
    Known k = clock.get(e.actor);
    return e.epoch <= k.all || (e.epoch <= k.some && (k.lanes >> lane & 1));
  }
  if (!clock.foreign()) return false;
  auto it = clock.foreign()->find(e.cluster);
  if (it == clock.foreign()->end()) return false;
  Known k = it->second.get(e.actor);
  return e.epoch <= k.all || (e.epoch <= k.some && (k.lanes >> lane & 1));
}

// An asynchronous access after a write that happened before it: is a proxy fence between them? By
// the writer, or, where the news came from another CTA through a flag, by whoever read the flag.
bool fencedForAsync(const Warp &w, const GlobalWrite &e, int myLane) {
  const VClock &clock = hzClock(w, myLane);
  if (e.grid != w.grid->id) return true;
  if (e.cluster == clusterKey(w)) return e.async || e.epoch <= clock.get(e.actor).globalProxied;
  Known k = clock.foreign()->find(e.cluster)->second.get(e.actor);
  return e.epoch <= k.globalAcquired || (!e.async && e.epoch <= k.globalProxied);
}

std::string who(const GlobalWrite &e) {
  return strf("%s CTA (%u,%u,%u) warp %u at %s", e.async ? " a bulk copy of" : "", e.cta[0],
              e.cta[1], e.cta[2], e.warp, e.prog->where(*e.instr).c_str());
}

void complainFence(Warp &w, const Instr &in, const GlobalWrite &e, u64 addr, bool write,
                   int myLane) {
  finding(w, in, "proxy-fence",
          strf("the copy %s %s, written by%s; no fence.proxy.async on global memory lies between",
               write ? "writes" : "reads", memory().describe(addr & ~3ull, 4).c_str(),
               who(e).c_str()), myLane);
}

bool nonCoherent(const Instr &in) {
  const auto &parts = in.stmt->parts;
  return parts[0] == "ld" && std::find(parts.begin(), parts.end(), "nc") != parts.end();
}

// One earlier write against an access by `w`.
void check(Warp &w, const Instr &in, const GlobalWrite &e, u32 lane, int myLane, u64 addr,
           bool write, bool atomic, bool async, u32 bits = ~0u) {
  if (!write && e.grid == w.grid->id && nonCoherent(in)) {
    finding(w, in, "race",
            strf("ld.global.nc reads %s, written in this kernel by%s",
                 memory().describe(addr & ~3ull, 4).c_str(), who(e).c_str()), myLane);
    return;
  }
  if (e.atomic && atomic) {
    // No race. But where flags order the CTAs, sums are meant to be in a fixed order, too.
    bool flags = e.cluster != clusterKey(w) && w.cta->cluster->heardFrom.count(e.cluster);
    if (!in.floatSum || !flags) return;
    if (happensBefore(w, e, lane, myLane)) {
      if (async && !fencedForAsync(w, e, myLane)) complainFence(w, in, e, addr, write, myLane);
      return;
    }
    finding(w, in, "race",
            strf("adds to %s in no fixed order: CTAs of this kernel are ordered by flags, but not "
                 "this addition after that of%s", memory().describe(addr & ~3ull, 4).c_str(),
                 who(e).c_str()), myLane);
    return;
  }
  if (!happensBefore(w, e, lane, myLane)) {
    const char *what = write ? "writes" : async ? "the copy reads" : "reads";
    std::string place = memory().describe(addr & ~3ull, 4);
    const char *why = e.grid > w.grid->id ? "the next kernel, which has not waited "
                                            "(griddepcontrol.wait)"
                      : e.grid < w.grid->id ? "an earlier kernel that was not waited for "
                                              "(griddepcontrol.wait)"
                      : e.async ? "whose completion was not waited for, or nobody told this warp"
                                : "and nothing orders the two";
    std::string text = strf("%s %s, written by%s, %s", what, place.c_str(), who(e).c_str(), why);
    if (write && !atomic && !async)
      w.suspects.push_back(
          {myLane, addr & ~3ull, *reinterpret_cast<u32 *>(addr & ~3ull), bits, text});
    else
      finding(w, in, "race", text, myLane);
  } else if (async && !fencedForAsync(w, e, myLane)) {
    complainFence(w, in, e, addr, write, myLane);
  }
  if (e.before && !atomic)
    check(w, in, w.grid->log->writes[e.before >> 5], e.before & 31, myLane, addr, write, atomic,
          async, bits);
}

// The cells of this launch; cleared when a launch writes to the allocation for the first time.
std::vector<u32> &cells(Warp &w, Allocation &a) {
  if (a.writtenBy != w.grid->log->id) {
    a.writers.assign((a.size + 3) / 4 + 1, 0);
    a.writerBytes.clear();
    a.writtenBy = w.grid->log->id;
  }
  return a.writers;
}

void describe(const Warp &w, const Instr &in, GlobalWrite *e) {
  e->grid = w.grid->id;
  e->cluster = clusterKey(w);
  e->instr = &in;
  e->prog = w.prog;
  for (int i = 0; i < 3; ++i) e->cta[i] = w.cta->index[i];
  e->warp = w.id;
}

u32 newEvent(Warp &w, const Instr &in, int actor, u32 epoch, bool async, bool atomic) {
  GlobalWrite e;
  describe(w, in, &e);
  e.actor = actor;
  e.epoch = epoch;
  e.async = async;
  e.atomic = atomic;
  auto &writes = w.grid->log->writes;
  writes.push_back(e);
  return u32(writes.size() - 1);
}

}  // namespace

// An atomic that comes, unordered, after one of another CTA: who follows both has to know of both.
// (Floating-point sums, of which there may be millions, are read by other kernels.)
static u32 onTopOf(Warp &w, const Instr &in, u32 old, u32 packed, int lane) {
  auto &log = w.grid->log->writes;
  const GlobalWrite &e = log[old >> 5];
  if (!e.atomic || e.cluster == clusterKey(w) || happensBefore(w, e, old & 31, lane)) return packed;
  u32 event = newEvent(w, in, w.actor, w.epoch, false, true);
  log[event].before = old;
  return event << 5 | (packed & 31);
}

// A read of a dependent grid that has not waited for all grids before it: what it read must not be
// written any more.
static bool early(const Warp &w, int lane) {
  const Grid *first = w.grid->after;
  while (first && first->after) first = first->after;
  return first && !(hzClock(w, lane).afterDependency && isComplete(w, first->id, lane));
}

bool hgWantsReads(const Warp &w) {
  return options().races && (w.grid->log->writes.size() > 1 || w.grid->after);
}

static void noteEarlyRead(Warp &w, const Instr &in, u64 addr, u64 bytes) {
  GlobalWrite r;
  describe(w, in, &r);
  GlobalLog &log = *w.grid->log;
  for (u64 a = addr & ~3ull; a < addr + bytes; a += 4) log.earlyReads.emplace(a, r);
  log.earlyFirst = std::min<u64>(log.earlyFirst, addr & ~3ull);
  log.earlyEnd = std::max(log.earlyEnd, addr + bytes);
}
static void checkEarlyReads(Warp &w, const Instr &in, u64 addr, u64 bytes) {
  const GlobalLog &log = *w.grid->log;
  const auto &reads = log.earlyReads;
  if (addr >= log.earlyEnd || addr + bytes <= log.earlyFirst) return;
  for (u64 a = addr & ~3ull; a < addr + bytes; a += 4) {
    auto it = reads.find(a);
    if (it == reads.end() || it->second.grid <= w.grid->id) continue;
    finding(w, in, "race",
            strf("writes %s, read by%s of a later kernel, which has not executed "
                 "griddepcontrol.wait, or one before it has not", memory().describe(a, 4).c_str(),
                 who(it->second).c_str()));
    return;
  }
}

void hgAccess(Warp &w, const Instr &in, Allocation &a, u64 addr, u32 bytes, int lane, Access acc) {
  if (!options().races) return;
  bool write = writes(acc), atomic = acc != Access::Read && acc != Access::Write;
  if (write) checkEarlyReads(w, in, addr, bytes);
  if (reads(acc) && early(w, lane)) noteEarlyRead(w, in, addr, bytes);
  if (!write && a.writtenBy != w.grid->log->id) return;
  std::vector<u32> &c = cells(w, a);
  const auto &log = w.grid->log->writes;
  u32 packed = 0;
  if (write) {
    if (w.lastGlobalWrite.instr != &in || w.lastGlobalWrite.epoch != w.epoch)
      w.lastGlobalWrite = {&in, w.epoch, newEvent(w, in, w.actor, w.epoch, false, atomic)};
    packed = w.lastGlobalWrite.event << 5 | u32(lane & 31);
  }
  u32 shift = u32(addr & 3), mask = bytes < 4 ? ((1u << bytes) - 1) << shift : 0;
  u32 bits = bytes < 4 ? ((1u << 8 * bytes) - 1) << 8 * shift : ~0u;
  if (write && mask && a.writerBytes.empty()) a.writerBytes.resize(c.size());
  for (u64 i = (addr - a.base) / 4; i <= (addr - a.base + bytes - 1) / 4; ++i) {
    u32 old = c[i], others = a.writerBytes.empty() ? 0 : a.writerBytes[i];
    bool neighbours = mask && others && !(mask & others);  // other bytes of the word
    if (old && old != packed && !neighbours)
      check(w, in, log[old >> 5], old & 31, lane, a.base + 4 * i, write, atomic, false, bits);
    if (!write) continue;
    c[i] = packed;
    if (atomic && old && !in.floatSum) c[i] = onTopOf(w, in, old, packed, lane);
    if (!a.writerBytes.empty()) a.writerBytes[i] = u8(mask);
  }
}

Step hgStored(Warp &w, const Instr &in) {
  for (const Warp::Suspect &s : w.suspects)
    if ((*reinterpret_cast<u32 *>(s.addr) ^ s.old) & s.mask) finding(w, in, "race", s.text, s.lane);
  w.suspects.clear();
  return w.grid->aborted ? Step::Abort : Step::Next;
}

void hgAsyncWrite(Warp &w, const Instr &in, int lane, Allocation &a, u64 addr, u64 bytes,
                  bool reduce) {
  if (!options().races) return;
  checkEarlyReads(w, in, addr, bytes);
  std::vector<u32> &c = cells(w, a);
  u32 epoch = w.bulkCommitted + 1;
  u32 packed = newEvent(w, in, w.bulkWriteActor, epoch, true, reduce) << 5, seen = 0;
  const auto &log = w.grid->log->writes;
  for (u64 i = (addr - a.base) / 4; i <= (addr - a.base + bytes - 1) / 4; ++i) {
    u32 old = c[i];
    if (old && old != seen)
      check(w, in, log[old >> 5], old & 31, lane, a.base + 4 * i, true, reduce, true);
    seen = old;
    c[i] = packed;
    if (!a.writerBytes.empty()) a.writerBytes[i] = 0;
  }
}

void hgAsyncRead(Warp &w, const Instr &in, int lane, Allocation &a, u64 addr, u64 bytes) {
  if (!options().races) return;
  if (early(w, lane)) noteEarlyRead(w, in, addr, bytes);
  if (a.writtenBy != w.grid->log->id) return;
  const auto &log = w.grid->log->writes;
  u32 seen = 0;
  for (u64 i = (addr - a.base) / 4; i <= (addr - a.base + bytes - 1) / 4; ++i) {
    u32 old = a.writers[i];
    if (old && old != seen)
      check(w, in, log[old >> 5], old & 31, lane, a.base + 4 * i, false, false, true);
    seen = old;
  }
}

// ---- flags ------------------------------------------------------------------------------------
u32 scopeNamed(const Decoder &d) {
  if (d.has("cta")) return 0;
  if (d.has("cluster")) return 1;
  return 2;
}

namespace {

// Everything the warp knows, itself included, by cluster.
VClock::Foreign publish(Warp &w, const VClock &mine) {
  VClock::Foreign f;
  if (mine.foreign()) f = *mine.foreign();
  f[clusterKey(w)].join(mine.withoutForeign());
  return f;
}
void take(Warp &w, VClock *into, const VClock::Foreign &f) {
  VClock::Foreign others;
  for (auto &e : f) {
    if (e.first == clusterKey(w)) into->join(e.second);
    else others[e.first] = e.second;
    if (e.first != clusterKey(w)) w.cta->cluster->heardFrom.insert(e.first);
  }
  if (!others.empty()) into->joinForeign(others);
}
void add(VClock::Foreign *to, const VClock::Foreign &f) {
  for (auto &e : f) (*to)[e.first].join(e.second);
}

}  // namespace

void syncStore(Warp &w, u32 kind, u32 scope, u32 m, u8 *const *p) {
  bool release = kind & 4;
  if (!release && !w.fenced) return;
  VClock mine;
  if (release) hzRelease(w, m, &mine);
  else mine = w.fenceClock;
  if (!release) scope = std::min(scope, w.fenceScope);
  VClock::Foreign f = publish(w, mine);
  GlobalLog &log = *w.grid->log;
  FOR_LANES(l, m) add(scope ? &log.flags[u64(p[l])] : &log.ctaFlags[u64(p[l])], f);
}

// An acquire load of a word that another cluster has written: these two order themselves by flags,
// also if the release on the other side is missing.
static void noteFlag(Warp &w, u64 addr) {
  Allocation *a = memory().find(addr);
  if (!a || a->writtenBy != w.grid->log->id) return;
  const GlobalWrite &e = w.grid->log->writes[a->writers[(addr - a->base) / 4] >> 5];
  if (e.grid == w.grid->id && e.cluster != clusterKey(w))
    w.cta->cluster->heardFrom.insert(e.cluster);
}

void syncLoad(Warp &w, u32 kind, u32 scope, u32 m, u8 *const *p) {
  GlobalLog &log = *w.grid->log;
  if ((kind & 2) && scope) FOR_LANES(l, m) noteFlag(w, u64(p[l]));
  if (log.flags.empty() && log.ctaFlags.empty()) return;
  FOR_LANES(l, m) {
    auto it = log.flags.find(u64(p[l]));
    VClock got;
    if (it != log.flags.end() && (scope > 0 || !(kind & 2))) take(w, &got, it->second);
    it = log.ctaFlags.find(u64(p[l]));
    if (it != log.ctaFlags.end())
      if (auto own = it->second.find(clusterKey(w)); own != it->second.end()) got.join(own->second);
    if (kind & 2) hzAcquire(w, 1u << l, got);
    w.acquirePending.join(got);
  }
}

void syncFence(Warp &w, u32 lanes, u32 scope) {
  hzAcquire(w, lanes, w.acquirePending);
  w.fenceClock.clear();
  hzRelease(w, lanes, &w.fenceClock);
  w.fenced = true;
  w.fenceScope = scope;
}

}  // namespace emu
