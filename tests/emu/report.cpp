// report.cpp - see report.h.
#include "report.h"

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "interp.h"

namespace emu {
namespace {

struct Log {
  std::string text;
  int count = 0;
  u32 sticky = 0;
  std::set<std::pair<u64, std::string>> said;  // (grid, code + place): each thing once per launch
} findings;

void emit(const std::string &s) {
  findings.text += s;
  if (!options().quiet) fputs(s.c_str(), stderr);
  if (options().reportFile.empty()) return;
  if (FILE *f = fopen(options().reportFile.c_str(), "a")) {
    fputs(s.c_str(), f);
    fclose(f);
  }
}

u32 resultOf(const std::string &code) {
  if (code == "out-of-bounds" || code == "use-after-free") return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (code == "misaligned") return CUDA_ERROR_MISALIGNED_ADDRESS;
  if (code == "deadlock") return CUDA_ERROR_LAUNCH_TIMEOUT;
  return CUDA_ERROR_LAUNCH_FAILED;
}

void record(Grid *g, const char *code, const std::string &text) {
  ++findings.count;
  if (!findings.sticky) findings.sticky = resultOf(code);
  ++g->findings;
  emit(text);
}

}  // namespace

Options theOptions;

std::string describeWarp(const Warp &w) {
  return strf("CTA (%u,%u,%u) warp %u", w.cta->index[0], w.cta->index[1], w.cta->index[2], w.id);
}

std::string describeActor(const Cluster &c, int actor) {
  const ActorInfo &a = c.actors[size_t(actor)];
  std::string cta = c.ctas.size() > 1 ? strf(" of CTA rank %u", a.cta->rank) : "";
  switch (a.kind) {
    case ActorInfo::WarpActor: return strf("warp %u", a.index) + cta;
    case ActorInfo::WgmmaActor: return strf("wgmma of warpgroup %u", a.index) + cta;
    case ActorInfo::BulkActor:
    case ActorInfo::BulkWriteActor: return strf("a bulk copy of warp %u", a.index) + cta;
    case ActorInfo::CpAsyncActor: return strf("cp.async of warp %u", a.index) + cta;
    default: return strf("a bulk copy that reports to the mbarrier at %u", a.index) + cta;
  }
}

std::string lastEvents(const Warp &w, u32 most) {
  u32 n = std::min(w.numEvents, most);
  if (!n) return "";
  std::string s = "    last events of this warp, oldest first:\n";
  for (u32 i = w.numEvents - n; i < w.numEvents; ++i) {
    const Instr &in = w.prog->code[w.events[i & 7].pc];
    u32 times = w.events[i & 7].times;
    s += strf("      %s: %s", w.prog->where(in).c_str(), in.stmt ? in.stmt->op.c_str() : "exit");
    s += times > 1 ? strf(" (%u times)\n", times) : "\n";
  }
  return s;
}

Step finding(Warp &w, const Instr &in, const char *code, const std::string &text, int lane) {
  Grid &g = *w.grid;
  if (g.aborted) return Step::Abort;
  std::string place = w.prog->where(in);
  if (findings.said.insert({g.id, code + place}).second) {
    std::string s = strf("fa3emu: %s: kernel %s, %s, %s", code, w.prog->ast->name.c_str(),
                         place.c_str(), describeWarp(w).c_str());
    if (lane >= 0) s += strf(" lane %d", lane);
    s += strf(", %s: ", in.stmt ? in.stmt->op.c_str() : "exit") + text + "\n" + lastEvents(w);
    record(&g, code, s);
  }
  if (g.findings >= options().maxFindings) g.aborted = true;
  return g.aborted ? Step::Abort : Step::Next;
}

Step fatal(Warp &w, const Instr &in, const char *code, const std::string &text, int lane) {
  finding(w, in, code, text, lane);
  w.grid->aborted = true;
  return Step::Abort;
}

void findingText(Grid *g, const char *code, const std::string &text) {
  record(g, code, strf("fa3emu: %s: kernel %s: ", code, g->prog->ast->name.c_str()) + text);
}

const std::string &reportText() { return findings.text; }
int findingCount() { return findings.count; }
u32 stickyError() { return findings.sticky; }
void clearFindings() {
  findings.text.clear();
  findings.count = 0;
  findings.sticky = 0;
  findings.said.clear();
}

void reportLoadError(const std::string &text) {
  ++findings.count;
  emit("fa3emu: load: " + text + "\n");
}

}  // namespace emu
