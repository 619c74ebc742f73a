// waits.cpp - when a blocked fragment may go on, and how to say what it waits for.
#include "mbarrier.h"
#include "scheduler.h"

namespace emu {

bool wgmmaWaitReady(Warp &w, const Wait &wait);  // exec_wgmma.cpp

bool waitReady(Warp &w, Frag &f) {
  const Wait &wait = f.wait;
  switch (wait.kind) {
    case WaitKind::Converge: return (wait.need & w.live & ~f.mask) == 0;
    case WaitKind::Mbarrier: return !wait.mbar->valid || wait.mbar->phase != wait.generation;
    case WaitKind::NamedBarrier:
      if (w.cta->bars[wait.id].generation == wait.generation) return false;
      namedBarrierResume(w, w.prog->code[f.pc], f.mask);
      ++f.pc;
      return true;
    case WaitKind::ClusterBarrier: return w.cta->cluster->barGeneration != wait.generation;
    case WaitKind::WgmmaGroup: return wgmmaWaitReady(w, wait);
    case WaitKind::GridDependency: return w.grid->after->finished;
    case WaitKind::Registers:
      return (s64(wait.id) - s64(w.regsPerThread)) * kLanes <= w.cta->regPool;
    default: return true;
  }
}

std::string describeWait(const Warp &w, const Frag &f) {
  const Wait &wait = f.wait;
  const NamedBarrier &b = w.cta->bars[wait.id & 15];
  std::string who;
  switch (wait.kind) {
    case WaitKind::Converge: return strf("lanes 0x%08x wait for lanes 0x%08x of the same warp",
                                         f.mask, wait.need & w.live & ~f.mask);
    case WaitKind::Mbarrier: return "waits for the " + describeMbar(*wait.mbar);
    case WaitKind::NamedBarrier:
      for (const NamedBarrier::Arrival &a : b.who) who += strf(" %u", a.warp);
      return strf("waits at named barrier %u: %u of %u threads have arrived (warps%s)", wait.id,
                  b.arrived, b.expected, who.c_str());
    case WaitKind::ClusterBarrier:
      return strf("waits at the cluster barrier: %u of %u warps have arrived",
                  w.cta->cluster->barArrived, w.cta->cluster->warpsLeft);
    case WaitKind::WgmmaGroup: return "waits for wgmma groups that miss a warp of the warpgroup";
    case WaitKind::GridDependency: return "waits for the kernel before (griddepcontrol.wait)";
    case WaitKind::Registers:
      return strf("setmaxnreg.inc to %u registers per thread needs %lld more registers than the "
                  "CTA's pool has free", wait.id,
                  (long long)((s64(wait.id) - s64(w.regsPerThread)) * kLanes - w.cta->regPool));
    default: return "is running (spins)";
  }
}

}  // namespace emu
