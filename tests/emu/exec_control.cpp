// exec_control.cpp - branches, exit, trap, nanosleep, setmaxnreg, programmatic launch.
#include "interp.h"

namespace emu {

Step exitHandler(Warp &, const Instr &, u32) { return Step::Exit; }

namespace {

// Lanes that take the branch go to the target; if others stay, the warp splits in two fragments.
Step branch(Warp &w, const Instr &in, u32 m) {
  u32 stay = w.mask & ~m;
  if (!stay) {
    w.pc = in.target;
    return Step::Jump;
  }
  Frag taken;
  taken.pc = in.target;
  taken.mask = m;
  w.frags.push_back(taken);
  w.frags[size_t(w.cur)].mask = stay;
  w.mask = stay;
  w.pc += 1;
  w.mergePc = 0;  // have the run loop look at the fragments again
  return Step::Jump;
}

Step trap(Warp &w, const Instr &in, u32 m) {
  return fatal(w, in, "trap", "trap executed", __builtin_ctz(m));
}

Step nanosleep(Warp &, const Instr &, u32) { return Step::Yield; }

// setmaxnreg: the CTA's register pool was filled at launch; .dec gives to it, .inc waits for it.
Step setmaxnreg(Warp &w, const Instr &in, u32) {
  u32 want = u32(in.imm), have = w.regsPerThread;
  bool inc = in.sel;
  if (have == 0)
    return finding(w, in, "setmaxnreg", "the kernel has neither .maxnreg nor .maxntid, so the "
                                        "register count at launch is not known");
  if (inc ? want < have : want > have)
    return finding(w, in, "setmaxnreg", strf("%s to %u from %u registers", inc ? "inc" : "dec",
                                             want, have));
  s64 need = (s64(want) - s64(have)) * kLanes;
  if (need > w.cta->regPool) return block(w, WaitKind::Registers, want, 0);
  w.cta->regPool -= need;
  w.regsPerThread = want;
  w.regHistory += strf(" %s %u", inc ? "inc" : "dec", want);
  ++w.cta->cluster->progress;
  return Step::Next;
}

Step gridDepWait(Warp &w, const Instr &, u32 m) {
  if (w.grid->after && !w.grid->after->finished)
    return block(w, WaitKind::GridDependency, 0, 0);
  w.grid->waited = w.cta->waited = true;
  hzLearn(w, m, [](VClock &c) { c.afterDependency = true; });
  return Step::Next;
}
Step gridDepLaunch(Warp &w, const Instr &, u32 m) {
  if (!w.cta->launchedDependents) {
    if (!hzClock(w, __builtin_ctz(m)).afterDependency) w.grid->handedOverEarly = true;
    w.cta->launchedDependents = true;
    ++w.grid->ctasTriggered;
  }
  return Step::Next;
}
Step nothing(Warp &, const Instr &, u32) { return Step::Next; }

}  // namespace

bool decodeControl(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "bra") {
    if (d.arg(0).kind != Arg::Label) d.fail("expected a label");
    in.target = u32(d.arg(0).label);
    in.fn = branch;
  } else if (op == "exit" || op == "ret") {
    in.fn = exitHandler;
  } else if (op == "trap" || op == "brkpt") {
    in.fn = trap;
  } else if (op == "nanosleep") {
    d.src(0, Ty::B32);
    in.fn = nanosleep;
  } else if (op == "setmaxnreg") {
    in.imm = s64(d.constantValue(0));
    if (in.imm % 8 || in.imm < 24 || in.imm > 256)
      d.fail("the count must be a multiple of 8 from 24 to 256");
    in.sel = d.has("inc");
    in.flags |= kCollective | kNotable;
    in.fn = setmaxnreg;
  } else if (op == "griddepcontrol") {
    bool wait = d.has("wait");
    in.flags |= kNotable;
    in.fn = wait ? gridDepWait : gridDepLaunch;
  } else if (op == "pmevent" || op == "createpolicy") {
    if (op == "createpolicy") {
      in.d = d.dst(0, Ty::B64);
      in.a = d.constant(0x14F0000000000000ull, Ty::B64);
      in.fn = [](Warp &w, const Instr &i, u32 m) {
        const u64 *a = w.src<u64>(i.a);
        lanes(w.dst<u64>(i.d), m, [&](int l) { return a[l]; });
        return Step::Next;
      };
      return true;
    }
    in.fn = nothing;
  } else {
    return false;
  }
  return true;
}

}  // namespace emu
