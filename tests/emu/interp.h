// interp.h - helpers that instruction handlers share.
#pragma once
#include "decode.h"
#include "hazards.h"

namespace emu {

#define FOR_LANES(l, m) for (u32 l##_m = (m), l; l##_m && ((l = u32(__builtin_ctz(l##_m))), true); \
                             l##_m &= l##_m - 1)

// Element-wise result: all 32 lanes are computed, inactive lanes keep the old value.
template <class D, class F> EMU_INLINE void lanes(D *d, u32 m, F f) {
  if (m == kAllLanes) {
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) d[l] = f(l);
  } else {
    D t[kLanes];
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) t[l] = f(l);
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) d[l] = (m >> l & 1) ? t[l] : d[l];
  }
}
// A predicate from 32 comparisons.
template <class F> EMU_INLINE u32 laneBits(F f) {
  u32 r = 0;
  for (int l = 0; l < kLanes; ++l) r |= u32(f(l)) << l;
  return r;
}

// Lane addresses of [base + off].
void laneAddresses(const Warp &w, const Address &a, u64 out[kLanes]);

// Resolves one lane's access; null after a finding. `inSmem`/`off` are set for shared memory.
struct Place {
  u8 *p = nullptr;
  Cta *cta = nullptr;  // shared memory of this CTA, at `off`
  u32 off = 0;
};
enum class Access : u8 { Read, Write, AtomicRead, AtomicWrite, Update };
inline bool writes(Access a) { return a != Access::Read && a != Access::AtomicRead; }
inline bool reads(Access a) { return !writes(a) || a == Access::Update; }
Place resolve(Warp &w, const Instr &in, Space space, u64 addr, u32 bytes, u32 align, Access acc,
              int lane);
// Shared memory only: which CTA and offset; null after a finding.
Cta *resolveShared(Warp &w, const Instr &in, u64 addr, u32 bytes, u32 align, bool clusterOk,
                   u32 *off, int lane);

// Flags in memory (hazards_global.cpp): release stores and acquire loads carry clocks from one warp
// to another. Kinds: bit 0 relaxed, 1 acquire, 2 release. Scopes: 0 CTA, 1 cluster, 2 GPU, system.
void syncStore(Warp &w, u32 kind, u32 scope, u32 m, u8 *const *p);
void syncLoad(Warp &w, u32 kind, u32 scope, u32 m, u8 *const *p);
void syncFence(Warp &w, u32 lanes, u32 scope);
u32 scopeNamed(const Decoder &d);

void clusterBarrierCheck(Cluster &c);                       // after an arrival or an exit
void namedBarriersAfterExit(Cta &cta);
void namedBarrierResume(Warp &w, const Instr &in, u32 m);   // a blocked bar.red gets its result

// ---- scheduler services (scheduler.cpp) ----
u64 tick();
Rng &rng();
int asyncMode();                     // 0 eager, 1 lazy, 2 random, of the current launch
void completeWgmma(Warpgroup &wg, u64 upToSerial);   // executes queued wgmmas

inline Step block(Warp &w, WaitKind kind, u32 id, u64 gen, Mbar *m = nullptr, u32 need = 0) {
  Frag &f = w.frags[size_t(w.cur)];
  f.blocked = true;
  f.wait = Wait{kind, id, gen, need, m, false};
  return Step::Block;
}

}  // namespace emu
