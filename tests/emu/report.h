// report.h - findings: what a kernel did wrong, where, and what its warp did last.
#pragma once
#include "machine.h"

namespace emu {

// Environment knobs (README.md lists them); read once, at cuInit.
struct Options {
  int devices = 1, cc = 90, sms = 4;
  u64 seed = 1;
  int async = 2;            // 0 eager, 1 lazy, 2 random (drawn per launch by seed: may be any)
  int window = 0;           // clusters in flight; 0: drawn by seed
  bool jitter = true;       // random warp order and burst lengths
  int behind = -1;          // somebody falls behind: 1 in every launch, 0 in none, -1 in a third;
                            // 2: a warpgroup in every launch that has several
  bool uninitGlobal = true, uninitShared = true, uninitRegs = true;
  bool warProxy = true;     // ask for a proxy fence between generic reads and a TMA overwrite
  bool readerFence = true;  // accept the proxy fence on the side that knows of the access
  bool races = true;        // vector clocks on shared memory
  u32 maxFindings = 8;      // per launch, then the grid is stopped
  u64 timeout = 200;        // million warp instructions without progress
  bool quiet = false;
  std::string reportFile;
};
extern Options theOptions;
inline Options &options() { return theOptions; }
// Shared memory of a CTA at most.
inline int maxSharedOptin() { return options().cc >= 90 ? 232448 : 166912; }

// Codes are short names such as "race"; README.md lists them all.
// Returns Step::Abort once a launch has enough findings, else Step::Next.
Step finding(Warp &w, const Instr &in, const char *code, const std::string &text, int lane = -1);
Step fatal(Warp &w, const Instr &in, const char *code, const std::string &text, int lane = -1);
void findingText(Grid *g, const char *code, const std::string &text);  // no single warp to blame

std::string describeWarp(const Warp &w);
std::string lastEvents(const Warp &w, u32 most = 8);
std::string describeActor(const Cluster &c, int actor);

const std::string &reportText();
int findingCount();
void clearFindings();
u32 stickyError();          // CUresult of the first finding since the last clear, 0 = none
void reportLoadError(const std::string &text);  // PTX that cannot be read: text only, not sticky

}  // namespace emu
