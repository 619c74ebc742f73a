// hazards.cpp - see hazards.h. The rules, for a cell of shared memory and an access to it:
//
//   race          the last write, and for a write also every read since, must happen before it
//   proxy-fence   if one of the two is ordinary and the other asynchronous (wgmma, bulk copies),
//                 a fence.proxy.async must lie between: of the thread of the ordinary one, or of one
//                 that knows of it
//   uninitialised a read needs a write before it
//
// Within a warp, different lanes are ordered by bar.warp.sync (or a wider barrier) only. Of a cell
// that is accessed in bytes or halves, each byte is initialised for itself, and accesses of other
// bytes do not clash; which bytes is kept for the last write and, as a whole, the reads after it.
#include "hazards.h"

#include "hazards_wgmma.h"
#include "interp.h"
#include "mbarrier.h"

namespace emu {
namespace {

constexpr u32 kAnyLane = 32;

bool happensBefore(const VClock &c, int actor, u32 epoch, u32 lanes) {
  Known k = c.get(actor);
  return epoch <= k.all || (epoch <= k.some && lanes && (lanes & ~k.lanes) == 0);
}
bool proxyFenced(const VClock &c, int actor, u32 epoch, u32 lanes) {
  Known k = c.get(actor);
  return epoch <= k.proxied ||
         (epoch <= k.proxiedSome && lanes && (lanes & ~k.proxiedLanes) == 0);
}

// One access, as the checks see it.
struct Touch {
  Warp &w;
  const Instr &in;
  Cta &cta;
  int lane;        // -1: several
  bool async;      // by the async proxy
  bool write, atomic;
  u32 off;
};

// Does an earlier access (actor, epoch, lanes) come before this one?
bool ordered(const Touch &a, int actor, u32 epoch, u32 lanes) {
  if (actor == a.w.actor && a.lane >= 0 && lanes == 1u << a.lane) return true;  // program order
  return happensBefore(hzClock(a.w, a.lane), actor, epoch, lanes);
}

std::string bytesAt(const Touch &a) {
  std::string s = strf("shared-memory offset %u", a.off & ~3u);
  if (&a.cta != a.w.cta) s += strf(" of CTA rank %u", a.cta.rank);
  return s;
}

Step complain(const Touch &a, const char *code, const char *verb, int actor, const Instr *other,
              const char *why) {
  return finding(a.w, a.in, code,
                 strf("%s %s, %s by %s at %s, %s",
                      a.write ? (a.async ? "the copy overwrites" : "writes")
                              : (a.async ? "the async proxy reads" : "reads"),
                      bytesAt(a).c_str(), verb,
                      describeActor(*a.w.cta->cluster, actor).c_str(),
                      other ? a.w.prog->where(*other).c_str() : "?", why), a.lane);
}

void checkAgainstWrite(const Touch &a, u32 packed) {
  Cluster &c = *a.w.cta->cluster;
  const WriteEvent &e = c.writes[packed >> 5];
  u32 lanes = e.anyLane || e.async ? kAllLanes : 1u << (packed & 31);
  if (e.isMbar && !a.atomic) {
    finding(a.w, a.in, "mbarrier-init", "ordinary access to a live mbarrier, " + bytesAt(a),
            a.lane);
    return;
  }
  if (e.atomic && a.atomic) return;
  if (!ordered(a, e.actor, e.epoch, lanes)) {
    complain(a, "race", "written", e.actor, e.instr,
             e.async ? "whose completion was not waited for" : "and nothing orders the two");
  } else if (a.async && !e.async && !proxyFenced(hzClock(a.w, a.lane), e.actor, e.epoch, lanes)) {
    complain(a, "proxy-fence", "written", e.actor, e.instr,
             "and no fence.proxy.async lies between");
  }
}

void checkAgainstReads(const Touch &a, u32 packed) {
  Cluster &c = *a.w.cta->cluster;
  const ReadSet &set = c.readSets[packed >> 6];
  u32 cellLanes = packed & 32 ? kAllLanes : 1u << (packed & 31);
  for (size_t i = 0; i < set.size(); ++i) {
    const ReadEntry &e = set[i];
    if (e.atomic && a.atomic) continue;
    u32 lanes = e.async ? kAllLanes : i + 1 == set.size() ? cellLanes : e.lanes;
    if (!ordered(a, e.actor, e.epoch, lanes)) {
      complain(a, "race", "still being read", e.actor, e.instr,
               e.async ? "whose completion was not waited for" : "and nothing orders the two");
    } else if (a.async && !e.async && options().warProxy &&
               !proxyFenced(hzClock(a.w, a.lane), e.actor, e.epoch, lanes)) {
      complain(a, "proxy-fence", "read", e.actor, e.instr,
               "and no fence.proxy.async lies between");
    }
  }
}

// ---- events and read sets ---------------------------------------------------------------------
u32 newWrite(Cluster &c, const WriteEvent &e) {
  c.writes.push_back(e);
  return u32(c.writes.size() - 1);
}

u64 hashSet(const ReadSet &s) {
  u64 h = 1469598103934665603ull;
  for (const ReadEntry &e : s)
    for (u64 v : {u64(e.actor), u64(e.epoch), u64(e.lanes)}) h = (h ^ v) * 1099511628211ull;
  return h;
}
bool sameSet(const ReadSet &a, const ReadSet &b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].actor != b[i].actor || a[i].epoch != b[i].epoch || a[i].lanes != b[i].lanes ||
        a[i].instr != b[i].instr)
      return false;
  return true;
}
u32 intern(Cluster &c, const ReadSet &s) {
  std::vector<u32> &bucket = c.readIndex[hashSet(s)];
  for (u32 i : bucket)
    if (sameSet(c.readSets[i], s)) return i;
  c.readSets.push_back(s);
  bucket.push_back(u32(c.readSets.size() - 1));
  return bucket.back();
}

// The cell's read field after another read. `now.lanes` is a lane number here, or kAnyLane.
// `synced`: up to this epoch the reading warp's lanes are in order.
u32 addReader(Cluster &c, u32 packed, const ReadEntry &now, u32 synced = ~0u) {
  u32 slot = packed * 2654435761u ^ now.epoch * 40503u ^ u32(now.actor) * 977u ^ now.lanes * 131u;
  Cluster::ReadMemo &memo = c.readMemo[(slot ^ slot >> 16) & 255];
  if (memo.from == packed && memo.now.actor == now.actor && memo.now.epoch == now.epoch &&
      memo.now.instr == now.instr && memo.now.lanes == now.lanes)
    return memo.to;
  ReadSet s = c.readSets[packed >> 6];
  u32 lane = now.lanes, oldLane = packed & 63;
  // Older entries remember lane 0 (who often acts for the warp) or "several".
  if (!s.empty()) s.back().lanes = oldLane == 0 ? 1 : kAllLanes;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i].actor != now.actor) continue;
    bool last = i + 1 == s.size();
    u32 before = last ? oldLane : s[i].lanes == 1 ? 0 : kAnyLane;
    if (before != lane && s[i].epoch > synced) lane = kAnyLane;
    s.erase(s.begin() + long(i));
    break;
  }
  s.push_back(now);
  s.back().lanes = 0;
  memo.from = packed;
  memo.now = now;
  memo.to = intern(c, s) << 6 | lane;
  return memo.to;
}

u32 genericWrite(Warp &w, const Instr &in, const WriteEvent &proto) {
  if (w.lastWrite.instr != &in || w.lastWrite.epoch != proto.epoch)
    w.lastWrite = {&in, proto.epoch, newWrite(*w.cta->cluster, proto)};
  return w.lastWrite.event;
}

// ---- accesses of single bytes and halves ------------------------------------------------------
// The bytes of cell i that an access covers, 0: all.
u32 bytesOf(u32 off, u32 bytes) { return bytes < 4 ? ((1u << bytes) - 1) << (off & 3) : 0; }
bool disjoint(u32 a, u32 b) { return a && b && !(a & b); }
u8 joined(u32 old, u32 now) {  // of two masks
  u32 all = old | now;
  return u8(!old || !now || all == 15 ? 0 : all);
}
bool partlyWritten(const Cta &cta, u32 i, u32 mask = 15) {
  return !cta.parts.empty() && cta.parts[i].written && (mask & ~cta.parts[i].written);
}
void wroteAll(Cta &cta, u32 i) {
  if (!cta.parts.empty()) cta.parts[i] = Parts{};
}
void readAll(Cta &cta, u32 i) {
  if (!cta.parts.empty()) cta.parts[i].read = 0;
}

void reportUninit(const Touch &a) {
  if (options().uninitShared)
    finding(a.w, a.in, "uninitialised", "reads " + bytesAt(a) + ", never written", a.lane);
}

}  // namespace

// ---- accesses ---------------------------------------------------------------------------------
void hzGeneric(Warp &w, const Instr &in, Cta &target, u32 off, u32 bytes, int lane, Access acc) {
  if (!options().races) return;
  Cluster &c = *w.cta->cluster;
  bool write = writes(acc), atomic = acc != Access::Read && acc != Access::Write;
  Touch a{w, in, target, lane, false, write, atomic, off};
  u32 synced = w.clock.get(w.actor).all, mask = bytesOf(off, bytes);
  if (mask && target.parts.empty()) target.parts.resize(target.shadow.size());
  Parts none;
  for (u32 i = off / 4; i <= (off + bytes - 1) / 4; ++i) {
    Cell &cell = target.shadow[i];
    Parts &parts = target.parts.empty() ? none : target.parts[i];
    a.off = i * 4;
    if (cell.w && !disjoint(parts.last, mask)) checkAgainstWrite(a, cell.w);
    if (reads(acc) && (!cell.w || partlyWritten(target, i, mask ? mask : 15))) reportUninit(a);
    if (!write) {
      u32 who = lane < 0 ? kAnyLane : u32(lane);
      parts.read = cell.r ? joined(parts.read, mask) : u8(mask);
      cell.r = addReader(c, cell.r, {w.actor, w.epoch, who, &in, false, atomic}, synced);
      continue;
    }
    if (cell.r && !disjoint(parts.read, mask)) {
      checkAgainstReads(a, cell.r);
      cell.r = 0;
    }
    WriteEvent e;
    e.actor = w.actor;
    e.epoch = w.epoch;
    e.instr = &in;
    e.anyLane = lane < 0;
    e.atomic = atomic;
    parts.written = cell.w ? joined(parts.written, mask) : u8(mask);
    parts.last = u8(mask);
    cell.w = genericWrite(w, in, e) << 5 | (lane < 0 ? 0 : u32(lane));
  }
}

void hzAsyncWrite(Warp &issuer, const Instr &in, int lane, Cta &target, u32 off, u32 bytes,
                  int actor, u32 epoch) {
  if (!options().races) return;
  Cluster &c = *issuer.cta->cluster;
  Touch a{issuer, in, target, lane, true, true, false, off};
  WriteEvent e;
  e.actor = actor;
  e.epoch = epoch;
  e.instr = &in;
  e.async = true;
  u32 event = newWrite(c, e) << 5;
  u32 okW = 0, okR = 0;  // the last values found in order
  for (u32 i = off / 4; i < (off + bytes + 3) / 4; ++i) {
    Cell &cell = target.shadow[i];
    a.off = i * 4;
    if (cell.w && cell.w != okW) {
      checkAgainstWrite(a, cell.w);
      okW = cell.w;
    }
    if (cell.r && cell.r != okR) {
      checkAgainstReads(a, cell.r);
      okR = cell.r;
    }
    cell.w = event;
    cell.r = 0;
    wroteAll(target, i);
  }
}

void hzAsyncRead(Warp *const *who, int numWho, const Instr &in, int lane, Cta &target, u32 off,
                 u32 bytes, int actor, u32 epoch) {
  if (!options().races) return;
  Cluster &c = *who[0]->cta->cluster;
  u32 ok = 0;
  bool saidUninit = false;
  for (u32 i = off / 4; i < (off + bytes + 3) / 4; ++i) {
    Cell &cell = target.shadow[i];
    for (int k = 0; k < numWho; ++k) {
      Touch a{*who[k], in, target, lane, true, false, false, i * 4};
      if ((!cell.w || partlyWritten(target, i)) && !saidUninit) {
        reportUninit(a);
        saidUninit = true;
      } else if (cell.w && cell.w != ok) {
        checkAgainstWrite(a, cell.w);
      }
    }
    ok = cell.w;
    cell.r = addReader(c, cell.r, {actor, epoch, kAnyLane, &in, true, false});
    readAll(target, i);
  }
}

void hzScan(Cta &cta, u32 off, Scan *scan) {
  if (!options().races) return;
  for (u32 i = off / 4; i < off / 4 + 4; ++i) {
    Cell &cell = cta.shadow[i];
    if (cell.w != scan->lastWrite) {
      bool known = false;
      for (u64 s : *scan->seen) known |= (s >> 32) == cell.w;
      if (!known) scan->seen->push_back(u64(cell.w) << 32 | i * 4);
      scan->lastWrite = cell.w;
    }
    if (cell.r != scan->lastFrom) {
      scan->lastFrom = cell.r;
      scan->lastTo = addReader(*cta.cluster, cell.r,
                               {scan->actor, scan->epoch, kAnyLane, scan->instr, true, false});
    }
    cell.r = scan->lastTo;
    readAll(cta, i);
    if (partlyWritten(cta, i)) scan->seen->push_back(i * 4);  // like a cell never written
  }
}

Step hzCheckSeen(Warp &w, const Instr &in, const std::vector<u64> &seen) {
  for (u64 s : seen) {
    Touch a{w, in, *w.cta, -1, true, false, false, u32(s)};
    if (s >> 32) checkAgainstWrite(a, u32(s >> 32));
    else reportUninit(a);
  }
  return w.grid->aborted ? Step::Abort : Step::Next;
}

void hzCpAsyncWrite(Warp &w, const Instr &in, int lane, Cta &target, u32 off, u32 bytes) {
  if (!options().races) return;
  Touch a{w, in, target, lane, false, true, false, off};
  WriteEvent e;
  e.actor = w.cpActor;
  e.epoch = w.cpEpoch;
  e.instr = &in;
  e.anyLane = true;
  u32 event = genericWrite(w, in, e);
  for (u32 i = off / 4; i < (off + bytes + 3) / 4; ++i) {
    Cell &cell = target.shadow[i];
    a.off = i * 4;
    if (cell.w) checkAgainstWrite(a, cell.w);
    if (cell.r) checkAgainstReads(a, cell.r);
    cell.w = event << 5;
    cell.r = 0;
    wroteAll(target, i);
  }
}

void hzMbarWord(Warp &w, const Instr &in, Mbar &m, int lane) {
  if (!options().races) return;
  WriteEvent e;
  e.actor = w.actor;
  e.epoch = w.epoch;
  e.instr = &in;
  e.isMbar = true;
  u32 event = newWrite(*w.cta->cluster, e);
  Touch a{w, in, *m.cta, lane, false, true, true, m.offset};
  for (u32 i = m.offset / 4; i < m.offset / 4 + 2; ++i) {
    Cell &cell = m.cta->shadow[i];
    if (cell.w) checkAgainstWrite(a, cell.w);
    if (cell.r) checkAgainstReads(a, cell.r);
    cell.w = event << 5 | u32(lane);
    cell.r = 0;
    wroteAll(*m.cta, i);
  }
}

void hzMbarInval(Warp &w, const Instr &in, Mbar &m, int lane) {
  if (!options().races) return;
  WriteEvent e;
  e.actor = w.actor;
  e.epoch = w.epoch;
  e.instr = &in;
  u32 event = newWrite(*w.cta->cluster, e);
  for (u32 i = m.offset / 4; i < m.offset / 4 + 2; ++i) m.cta->shadow[i].w = event << 5 | u32(lane);
}

void hzMbarUse(Warp &w, const Instr &in, Mbar &m, bool async, int lane) {
  if (!options().races) return;
  bool remote = m.cta != w.cta;
  if ((remote && !m.fenced) || (async && !m.fenced && !m.proxyFenced)) {
    m.fenced = true;  // say it once
    finding(w, in, "mbarrier-init",
            strf("%s uses an mbarrier that was initialised at %s without fence.mbarrier_init%s "
                 "after it", remote ? "a peer CTA" : "the async proxy",
                 w.prog->where(*m.initInstr).c_str(), remote ? "" : " (or a proxy fence)"));
  }
  if (m.initWarp == &w) return;
  Known k = hzClock(w, lane).get(m.initWarp->actor);
  bool known = m.initEpoch <= k.all || m.initEpoch <= k.some ||
               (m.fenced && m.initEpoch <= k.executed);
  if (known) return;
  finding(w, in, "mbarrier-init",
          strf("uses the mbarrier at shared offset %u, initialised by warp %u at %s; nothing "
               "orders the two", m.offset, m.initWarp->id, w.prog->where(*m.initInstr).c_str()));
}

}  // namespace emu
