// hazards_wgmma.cpp - see hazards_wgmma.h.
#include "hazards_wgmma.h"

#include "numeric.h"

namespace emu {

Step checkWgmmaTouch(Warp &w, const Instr &in) {
  for (u16 slot : in.touched) {
    u32 busy = w.wgBusyGroup[slot];
    if (busy > w.wgGroupsDone) {
      bool open = busy > w.wgGroupEnd.size();
      Step s = finding(w, in, "wgmma-register",
                       strf("touches %s while the wgmma of group %u that %s it is in flight (%s)",
                            w.prog->wgmmaRegs[slot].c_str(), busy - 1,
                            w.wgShape[slot] ? "accumulates into" : "reads",
                            open ? "its group is not even committed"
                                 : strf("%zu groups committed, %u waited for", w.wgGroupEnd.size(),
                                        w.wgGroupsDone).c_str()));
      w.wgBusyGroup[slot] = 0;  // say it once
      if (s != Step::Next) return s;
    }
    w.wgTouched[slot] = 1;
  }
  return Step::Next;
}

static Step fenceMissing(Warp &w, const Instr &in, int slot, const char *role) {
  w.wgTouched[size_t(slot)] = 0;
  return finding(w, in, "wgmma-fence",
                 strf("%s %s was touched by ordinary instructions (or is used for the first time) "
                      "and no wgmma.fence came after that", role,
                      w.prog->wgmmaRegs[size_t(slot)].c_str()));
}

Step wgmmaRegisterChecks(Warp &w, const Instr &in, bool scaleD, u32 group, u64 shape) {
  Step s;
  for (const Operand &o : in.vec) {
    size_t slot = size_t(w.prog->wgmmaSlot[size_t(o.reg)]);
    if (w.wgTouched[slot] && (s = fenceMissing(w, in, int(slot), "accumulator")) != Step::Next)
      return s;
    bool inFlight = w.wgBusyGroup[slot] > w.wgGroupsDone;
    if (inFlight && w.wgShape[slot] != shape) {
      s = finding(w, in, w.wgShape[slot] ? "wgmma-fence" : "wgmma-register",
                  strf("accumulator %s is still used by a wgmma of another %s",
                       w.prog->wgmmaRegs[slot].c_str(), w.wgShape[slot] ? "shape" : "kind"));
      if (s != Step::Next) return s;
    }
    if (scaleD && (in.flags & kMaybeUninit) && options().uninitRegs) {
      u32 bad = ~w.initMask[size_t(o.reg)];
      bool tracked = false;
      for (int r : in.uninitUses) tracked |= r == o.reg;
      if (tracked && bad) {
        w.initMask[size_t(o.reg)] = kAllLanes;
        s = finding(w, in, "uninitialised",
                    "accumulates into " + w.prog->ast->regs[size_t(o.reg)].name +
                        ", never written", __builtin_ctz(bad));
        if (s != Step::Next) return s;
      }
    }
    w.wgBusyGroup[slot] = group + 1;
    w.wgShape[slot] = shape;
  }
  for (const Operand &o : in.vec2) {
    size_t slot = size_t(w.prog->wgmmaSlot[size_t(o.reg)]);
    if (w.wgTouched[slot] && (s = fenceMissing(w, in, int(slot), "A register")) != Step::Next)
      return s;
    if (w.wgBusyGroup[slot] > w.wgGroupsDone && w.wgShape[slot] != 0) {
      s = finding(w, in, "wgmma-register",
                  strf("A register %s is the accumulator of a wgmma in flight",
                       w.prog->wgmmaRegs[slot].c_str()));
      if (s != Step::Next) return s;
    }
    w.wgBusyGroup[slot] = group + 1;
    w.wgShape[slot] = 0;
  }
  return Step::Next;
}

// Register 2j + h holds row lane/4 + 8h, columns 8j + 2 (lane % 4) and the next.
void halfAccumulators(Warp &w, const Instr &in, float *const *d, bool load) {
  for (size_t i = 0; i < in.vec.size(); ++i) {
    size_t at = 4 * (i / 2) + 2 * (i % 2);
    u32 *r = w.dst<u32>(in.vec[i]);
    for (int l = 0; l < kLanes; ++l) {
      if (load) {
        d[at][l] = fromF16(u16(r[l]));
        d[at + 1][l] = fromF16(u16(r[l] >> 16));
      } else {
        r[l] = u32(toF16(d[at][l])) | u32(toF16(d[at + 1][l])) << 16;
      }
    }
  }
}

}  // namespace emu
