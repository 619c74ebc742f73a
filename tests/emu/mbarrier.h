// mbarrier.h - phases, arrivals and transaction bytes; used by exec_mbarrier.cpp and the copies.
#pragma once
#include "interp.h"

namespace emu {

// The barrier at a shared address, or null after a finding. Reports use of one never initialised.
Mbar *mbarAt(Warp &w, const Instr &in, u64 addr, bool clusterOk, int lane);
void mbarArrive(Warp &w, const Instr &in, Mbar &m, u32 n, int lane);
void mbarExpectTx(Warp &w, const Instr &in, Mbar &m, s64 bytes, int lane);
// Bytes of a copy that was issued during `phase` have landed.
void mbarCompleteTx(Warp &w, const Instr &in, Mbar &m, s64 bytes, u64 phase);
bool mbarPhaseDone(const Mbar &m, u32 parity);
std::string describeMbar(const Mbar &m);

}  // namespace emu
