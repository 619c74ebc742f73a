// hazards.h - happens-before checks on shared memory, and what synchronisation does to clocks.
#pragma once
#include "report.h"

namespace emu {

// --- accesses ---------------------------------------------------------------------------------
// Ordinary (generic proxy) access by one lane, or by several (-1). `off` excludes kSharedBase.
enum class Access : u8;
void hzGeneric(Warp &w, const Instr &in, Cta &target, u32 off, u32 bytes, int lane, Access acc);
// Write by the async proxy that reports to an mbarrier (or another actor).
void hzAsyncWrite(Warp &issuer, const Instr &in, int lane, Cta &target, u32 off, u32 bytes,
                  int actor, u32 epoch);
// Read by the async proxy: `who` = the warps whose knowledge must cover the data.
void hzAsyncRead(Warp *const *who, int numWho, const Instr &in, int lane, Cta &target, u32 off,
                 u32 bytes, int actor, u32 epoch);
// cp.async: an asynchronous write of the generic proxy.
void hzCpAsyncWrite(Warp &issuer, const Instr &in, int lane, Cta &target, u32 off, u32 bytes);
void hzMbarWord(Warp &w, const Instr &in, Mbar &m, int lane);  // init: claims the 8 bytes
void hzMbarInval(Warp &w, const Instr &in, Mbar &m, int lane); // the 8 bytes are ordinary again
void hzMbarUse(Warp &w, const Instr &in, Mbar &m, bool async, int lane);

// --- global memory (hazards_global.cpp) --------------------------------------------------------
void hgAccess(Warp &w, const Instr &in, Allocation &a, u64 addr, u32 bytes, int lane, Access acc);
void hgAsyncWrite(Warp &w, const Instr &in, int lane, Allocation &a, u64 addr, u64 bytes,
                  bool reduce);
void hgAsyncRead(Warp &w, const Instr &in, int lane, Allocation &a, u64 addr, u64 bytes);
Step hgStored(Warp &w, const Instr &in);   // after a store: reports the races that changed a value
bool hgWantsReads(const Warp &w);          // is there anything that a read could clash with?

// --- synchronisation --------------------------------------------------------------------------
// What a lane knows, or all of them (-1).
inline const VClock &hzClock(const Warp &w, int lane) {
  return lane >= 0 && (w.partialLanes >> lane & 1) ? w.partial : w.clock;
}
// f(clock) adds what `lanes` have just learnt.
template <class F> void hzLearn(Warp &w, u32 lanes, F f) {
  if (lanes == w.live) {
    f(w.clock);
    if (w.partialLanes) f(w.partial);
    return;
  }
  if (!w.partialLanes) w.partial = w.clock;
  w.partialLanes |= lanes;
  f(w.partial);
}
void hzRelease(Warp &w, u32 lanes, VClock *into);            // arrive
void hzReleaseRelaxed(Warp &w, VClock *into);                // execution order only
void hzAcquire(Warp &w, u32 lanes, const VClock &from);      // wait
void hzWarpSync(Warp &w, u32 lanes);                         // bar.warp.sync
void hzProxyFence(Warp &w, u32 lanes, bool shared, bool global);  // fence.proxy.async
void hzRemoteTouch(Warp &w, const Instr &in, Cta &target);   // for the check at CTA exit
void hzCtaExit(Warp &lastWarp, const Instr &in);
void hzWarpExit(Warp &w, const Instr &in);

}  // namespace emu
