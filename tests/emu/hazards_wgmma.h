// hazards_wgmma.h - what may not be done to the registers and operands of a wgmma in flight.
#pragma once
#include "hazards.h"
#include "interp.h"

namespace emu {

// An ordinary instruction names wgmma registers.
Step checkWgmmaTouch(Warp &w, const Instr &in);
// A wgmma is about to be issued: fences, uninitialised accumulators; marks its registers in flight.
Step wgmmaRegisterChecks(Warp &w, const Instr &in, bool scaleD, u32 group, u64 shape);
// Packed f16 accumulators to floats and back.
void halfAccumulators(Warp &w, const Instr &in, float *const *d, bool load);

// Shared-memory operands, one 16-byte unit after the other: note the read in the shadow and collect
// what the cells held before.
struct Scan {
  int actor;
  u32 epoch;
  const Instr *instr;
  std::vector<u64> *seen;        // distinct writes << 32 | an offset where each was met
  u32 lastWrite = ~0u, lastFrom = ~0u, lastTo = 0;
};
void hzScan(Cta &cta, u32 off, Scan *scan);
// Check the collected cells against the clock of one issuing warp.
Step hzCheckSeen(Warp &w, const Instr &in, const std::vector<u64> &seen);

}  // namespace emu
