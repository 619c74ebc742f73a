// scheduler.cpp - the interpreter loop of a warp, and the order in which warps get their turn.
#include "scheduler.h"

#include <algorithm>

namespace emu {
namespace {

struct Engine {
  Rng rng;
  u64 tick = 0;
  int mode = 2;
  u64 gridSerial = 0;
} engine;

}  // namespace

u64 tick() { return engine.tick; }
Rng &rng() { return engine.rng; }
int asyncMode() { return engine.mode; }
void seedScheduler(u64 seed) { engine.rng.s = seed * 0x2545f4914f6cdd1dull + 12345; }

// ---- one warp ---------------------------------------------------------------------------------
namespace {

// Merges fragments that stand at the same pc and are both ready (or both wait to converge).
void mergeFrags(Warp &w) {
  auto joins = [](const Frag &f) { return !f.blocked || f.wait.kind == WaitKind::Converge; };
  for (size_t i = 0; i < w.frags.size(); ++i) {
    for (size_t j = i + 1; j < w.frags.size();) {
      Frag &a = w.frags[i], &b = w.frags[j];
      if (a.pc == b.pc && joins(a) && joins(b)) {
        a.mask |= b.mask;
        a.blocked = a.blocked && b.blocked;
        w.frags.erase(w.frags.begin() + long(j));
      } else {
        ++j;
      }
    }
  }
}

// Chooses the fragment to run: the one furthest behind, now and then another. False: all wait.
bool pickFrag(Warp &w, bool mix) {
  if (w.frags.size() > 1) mergeFrags(w);
  int best = -1, ready = 0;
  for (size_t i = 0; i < w.frags.size(); ++i) {
    Frag &f = w.frags[i];
    if (f.blocked && waitReady(w, f)) {
      f.blocked = false;
      f.wait.kind = WaitKind::None;
    }
    if (f.blocked) continue;
    ++ready;
    if (best < 0 || f.pc < w.frags[size_t(best)].pc) best = int(i);
  }
  if (best < 0) return false;
  if (ready > 1 && mix && rng().chance(1, 4)) {
    u32 skip = rng().below(u32(ready));
    for (size_t i = 0; i < w.frags.size(); ++i)
      if (!w.frags[i].blocked && skip-- == 0) best = int(i);
  }
  w.cur = best;
  w.pc = w.frags[size_t(best)].pc;
  w.mask = w.frags[size_t(best)].mask;
  w.mergePc = ~0u;
  for (size_t i = 0; i < w.frags.size(); ++i)
    if (int(i) != best && (!w.frags[i].blocked || w.frags[i].wait.kind == WaitKind::Converge) &&
        w.frags[i].pc > w.pc)
      w.mergePc = std::min(w.mergePc, w.frags[i].pc);
  return true;
}

Step checkUninit(Warp &w, const Instr &in, u32 m) {
  for (int r : in.uninitUses) {
    bool accumulator = false;  // of a wgmma: read only if scale-d says so, checked there
    if (in.flags & kOwnUninitCheck)
      for (const Operand &o : in.vec) accumulator |= o.reg == r;
    if (accumulator) continue;
    bool isGuard = w.prog->ast->regs[size_t(r)].type == Ty::Pred && in.stmt->guard == r;
    u32 bad = (isGuard ? w.mask : m) & ~w.initMask[size_t(r)];
    if (!bad || !options().uninitRegs) continue;
    w.initMask[size_t(r)] = kAllLanes;  // say it once
    Step s = finding(w, in, "uninitialised",
                     "reads " + w.prog->ast->regs[size_t(r)].name + ", never written by this lane",
                     __builtin_ctz(bad));
    if (s != Step::Next) return s;
  }
  return Step::Next;
}

}  // namespace

Step checkWgmmaTouch(Warp &w, const Instr &in);  // hazards_wgmma.cpp

namespace {

// The rarely needed part of one step; true: the handler may run.
bool slowChecks(Warp &w, const Instr &in, u32 m, Step *s) {
  if (in.flags & kCollective) {
    if (w.mask != w.live) {
      *s = block(w, WaitKind::Converge, 0, 0, nullptr, w.live);
      return false;
    }
    if (m && m != w.mask) {
      *s = fatal(w, in, "divergence",
                 strf("an .aligned instruction runs with lanes 0x%08x of 0x%08x", m, w.mask));
      return false;
    }
  }
  if (in.flags & kMaybeUninit) {
    if ((*s = checkUninit(w, in, m)) != Step::Next) return false;
  }
  if (!m) return true;
  if (in.flags & kTouchesWgmma) {
    if ((*s = checkWgmmaTouch(w, in)) != Step::Next) return false;
  }
  if (in.flags & kNotable) w.note(w.pc);
  return true;
}

void exitLanes(Warp &w, const Instr &in, u32 m) {
  w.live &= ~m;
  Frag &f = w.frags[size_t(w.cur)];
  f.mask &= ~m;
  f.pc = w.pc + 1;
  if (!f.mask) w.frags.erase(w.frags.begin() + w.cur);
  Cta &cta = *w.cta;
  if (w.live) return namedBarriersAfterExit(cta);
  hzWarpExit(w, in);
  Cluster &c = *cta.cluster;
  ++c.progress;
  --c.warpsLeft;
  if (--cta.warpsLeft == 0) {
    hzCtaExit(w, in);
    cta.exited = true;
    if (!cta.launchedDependents) {
      if (!cta.waited) cta.grid->handedOverEarly = true;
      ++cta.grid->ctasTriggered;
    }
    cta.launchedDependents = true;
  }
  namedBarriersAfterExit(cta);
  clusterBarrierCheck(c);
}

// Runs one warp for up to `burst` instructions.
void runWarp(Warp &w, int burst) {
  const Instr *code = w.prog->code.data();
  u64 start = u64(burst);
  while (burst-- > 0) {
    const Instr &in = code[w.pc];
    u32 m = w.mask;
    if (in.guard >= 0) m &= in.guardNegate ? ~w.preds[in.guard] : w.preds[in.guard];
    Step s = Step::Next;
    if (!in.flags || slowChecks(w, in, m, &s)) {
      if (m) {
        s = in.fn(w, in, m);
        if (in.flags & kTracksInit)
          for (int r : in.trackedDefs) w.initMask[size_t(r)] |= m;
      }
    }
    if (s == Step::Next) {
      ++w.pc;
    } else if (s == Step::Yield) {
      ++w.pc;
      burst = std::min(burst, 4);
    } else if (s == Step::Block) {
      w.frags[size_t(w.cur)].pc = w.pc;
      if (!pickFrag(w, true)) break;
      continue;
    } else if (s == Step::Exit) {
      exitLanes(w, in, m);
      if (w.done() || !pickFrag(w, true)) { w.cur = -1; break; }
      continue;
    } else if (s == Step::Abort) {
      break;
    }
    if (w.grid->aborted) break;
    if (w.pc >= w.mergePc) {
      w.frags[size_t(w.cur)].pc = w.pc;
      if (!pickFrag(w, false)) break;
    }
  }
  if (!w.done() && w.cur >= 0 && size_t(w.cur) < w.frags.size() &&
      !w.frags[size_t(w.cur)].blocked)
    w.frags[size_t(w.cur)].pc = w.pc;
  u64 ran = start - u64(std::max(burst, 0));
  w.instrCount += ran;
  w.grid->instrs += ran;
}

bool spins(const Warp &w) {
  for (const Frag &f : w.frags)
    if (!f.blocked) return true;
  return false;
}

bool allConvergeBlocked(const Warp &w) {
  for (const Frag &f : w.frags)
    if (!f.blocked || f.wait.kind != WaitKind::Converge) return false;
  return !w.frags.empty();
}

// ---- one grid ---------------------------------------------------------------------------------
class GridRunner {
 public:
  explicit GridRunner(Grid &g) : g_(g) {
    bool wanted = options().behind < 0 ? rng().chance(1, 3) : options().behind != 0;
    if (!options().jitter || !wanted) return;
    starves_ = Starves(rng().below(g.warpsPerCta >= 8 ? 3 : 2));
    if (options().behind == 2 && g.warpsPerCta >= 8) starves_ = Starves::Warpgroup;
    starved_ = rng().below(starves_ == Starves::Cluster ? 2
                           : starves_ == Starves::Warp  ? g.warpsPerCta
                                                        : g.warpsPerCta / 4);
  }

  bool mayStart() const { return !g_.after || g_.after->allTriggered() || g_.after->finished; }

  // One round over all warps in flight. False: nobody could move.
  bool round() {
    while (g_.running.size() < g_.window && g_.nextCluster < g_.numClusters) startCluster();
    bool any = false;
    order_.clear();
    for (auto &c : g_.running)
      for (auto &cta : c->ctas)
        for (Warp &w : cta->warps)
          if (!w.done()) order_.push_back(&w);
    if (options().jitter)
      for (size_t i = order_.size(); i > 1; --i)
        std::swap(order_[i - 1], order_[rng().below(u32(i))]);
    bool leaveOut = options().jitter && order_.size() > 1 && rng().chance(1, 2);
    Warp *lazy = leaveOut ? order_.back() : nullptr;
    if (starves_ != Starves::Nobody)
      std::stable_partition(order_.begin(), order_.end(), [&](Warp *w) { return !starved(*w); });
    for (Warp *w : order_)
      any |= turn(*w, any && (w == lazy || (starved(*w) && !rng().chance(1, 32))));
    for (auto &c : g_.running) {
      asyncTick(*c);
      wgmmaTick(*c);
    }
    retire();
    checkProgress(any);
    return any || g_.finished;
  }

  // Nobody can move: complete something asynchronous, start another cluster, let try_wait time
  // out; else it is a deadlock.
  bool unstick() {
    for (auto &c : g_.running)
      if (asyncForceOne(*c)) return true;
    if (g_.nextCluster < g_.numClusters && g_.running.size() < maxWindow()) {
      startCluster();
      return true;
    }
    return false;
  }

  bool timeOutWaits() {
    u64 now = 0;
    for (auto &c : g_.running) now += c->progress;
    if (now != lastProgress_) rounds_ = 0;
    lastProgress_ = now;
    if (++rounds_ > 20) return false;
    bool any = false;
    for (auto &c : g_.running)
      for (auto &cta : c->ctas)
        for (Warp &w : cta->warps)
          for (Frag &f : w.frags)
            if (f.blocked && f.wait.kind == WaitKind::Mbarrier) {
              f.blocked = false;
              f.wait.timedOut = true;
              any = true;
            }
    return any;
  }

  void deadlock(const std::string &what) {
    std::string text = what + ":\n";
    int listed = 0;
    const char *code = "deadlock";
    for (auto &c : g_.running)
      for (auto &cta : c->ctas)
        for (Warp &w : cta->warps) {
          if (w.done()) continue;
          for (const Frag &f : w.frags) {
            if (f.wait.kind == WaitKind::Converge && !spins(w)) code = "divergence";
            if (++listed <= 24)
              text += "    " + describeWarp(w) + " at " + w.prog->where(w.prog->code[f.pc]) + ": " +
                      describeWait(w, f) + "\n";
            if (listed <= 6) text += lastEvents(w, 4);
          }
        }
    if (listed > 24) text += strf("    ... and %d more\n", listed - 24);
    findingText(&g_, code, text);
    g_.aborted = true;
    g_.finished = true;
    g_.running.clear();
  }

  u32 maxWindow() const { return std::max(g_.window, g_.resident); }

 private:
  bool starved(const Warp &w) const {
    switch (starves_) {
      case Starves::Warp: return w.id == starved_;
      case Starves::Cluster: return w.cta->cluster->index % 2 == starved_;
      case Starves::Warpgroup: return w.id / 4 == starved_;
      default: return false;
    }
  }
  void startCluster() { g_.running.push_back(makeCluster(g_, g_.nextCluster++)); }

  bool turn(Warp &w, bool skip) {
    if (g_.aborted || skip) return skip;
    if (!pickFrag(w, true)) {
      if (allConvergeBlocked(w)) {
        const Frag &f = w.frags[0];
        const Instr &in = w.prog->code[f.pc];
        std::string text = "the lanes of this warp wait for each other at different instructions:";
        for (const Frag &x : w.frags)
          text += strf(" lanes 0x%08x at %s", x.mask, w.prog->where(w.prog->code[x.pc]).c_str());
        fatal(w, in, "divergence", text);
      }
      return false;
    }
    int burst = options().jitter ? 1 + int(rng().below(rng().chance(1, 4) ? 2000 : 200)) : 1000;
    ++engine.tick;
    runWarp(w, burst);
    asyncTick(*w.cta->cluster);
    wgmmaTick(*w.cta->cluster);
    return true;
  }

  void retire() {
    if (g_.aborted) {
      g_.finished = true;
      g_.running.clear();
      return;
    }
    for (size_t i = 0; i < g_.running.size();) {
      Cluster &c = *g_.running[i];
      if (c.warpsLeft == 0) {
        while (asyncForceOne(c)) {}
        ++g_.clustersDone;
        g_.running.erase(g_.running.begin() + long(i));
      } else {
        ++i;
      }
    }
    if (g_.clustersDone == g_.numClusters || g_.aborted) g_.finished = true;
  }

  // A spin loop on memory executes instructions for ever; stop if nothing visible changes.
  void checkProgress(bool any) {
    u64 now = g_.clustersDone;
    for (auto &c : g_.running) now += c->progress;
    if (now != spinProgress_) {
      spinProgress_ = now;
      spinStart_ = g_.instrs;
      spinRounds_ = 0;
      return;
    }
    if (any && ++spinRounds_ % 64 == 0 && g_.running.size() < maxWindow() &&
        g_.nextCluster < g_.numClusters)
      startCluster();  // perhaps somebody spins on what a later CTA will write
    if (any && spinRounds_ % 64 == 32)
      for (auto &c : g_.running) asyncForceOne(*c);
    if (g_.instrs - spinStart_ > options().timeout * 1000000)
      deadlock(strf("%llu million warp instructions without a visible change",
                    (unsigned long long)options().timeout));
  }

  Grid &g_;
  std::vector<Warp *> order_;
  // In some launches a warp or a warpgroup of each CTA, or every other cluster, moves when all
  // others wait, and rarely else: it falls behind as far as the kernel's waits allow.
  enum class Starves { Warp, Cluster, Warpgroup, Nobody } starves_ = Starves::Nobody;
  u32 starved_ = 0;
  u64 lastProgress_ = ~0ull, spinProgress_ = ~0ull, spinStart_ = 0;
  u32 rounds_ = 0, spinRounds_ = 0;
};

}  // namespace

void runGrids(const std::vector<Grid *> &chain) {
  std::vector<GridRunner> runners;
  auto log = std::make_shared<GlobalLog>();
  static u64 logSerial = 0;
  log->id = ++logSerial;
  for (Grid *g : chain) {
    g->log = log;
    runners.emplace_back(*g);
  }
  for (;;) {
    bool all = true, any = false;
    for (size_t i = 0; i < chain.size(); ++i) {
      if (chain[i]->finished) continue;
      all = false;
      bool bad = i > 0 && chain[i - 1]->aborted;
      if (bad) {
        chain[i]->aborted = chain[i]->finished = true;
        continue;
      }
      if (runners[i].mayStart()) any |= runners[i].round();
    }
    if (all) return;
    if (any) continue;
    for (size_t i = 0; i < chain.size() && !any; ++i)
      if (!chain[i]->finished && runners[i].mayStart()) any = runners[i].unstick();
    for (size_t i = 0; i < chain.size() && !any; ++i)
      if (!chain[i]->finished && runners[i].mayStart()) any = runners[i].timeOutWaits();
    if (any) continue;
    for (size_t i = 0; i < chain.size(); ++i)
      if (!chain[i]->finished && runners[i].mayStart()) {
        runners[i].deadlock("no warp can go on");
        break;
      }
  }
}

u32 blocksPerSm(const Program &prog, u32 threads, u32 dynamicShared) {
  u32 shared = dynamicShared + prog.ast->staticShared + 1024;
  u32 regs = std::max(1u, prog.regsPerThread) * wholeWarpgroups(threads);
  return std::min({2048 / threads, u32(maxSharedOptin() + 1024) / shared, kRegistersPerSm / regs,
                   32u});
}

std::unique_ptr<Grid> makeGrid(std::shared_ptr<Program> prog, const LaunchConfig &cfg,
                               const std::vector<u8> &params, int device) {
  auto g = std::make_unique<Grid>();
  g->prog = prog;
  g->cfg = cfg;
  g->params = params;
  g->device = device;
  g->id = ++engine.gridSerial;
  g->threads = cfg.block[0] * cfg.block[1] * cfg.block[2];
  g->warpsPerCta = (g->threads + kLanes - 1) / kLanes;
  g->ctasPerCluster = cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2];
  u32 st = prog->ast->staticShared;
  u32 align = 16;
  auto widen = [&](const std::vector<std::unique_ptr<Variable>> &list) {
    for (auto &v : list)
      if (v->space == Space::Shared && v->isExtern) align = std::max(align, v->align);
  };
  widen(prog->ast->locals);
  widen(prog->module->vars);
  g->dynamicOffset = (st + align - 1) / align * align;
  if (st == 0) g->dynamicOffset = 0;
  g->sharedBytes = g->dynamicOffset + cfg.dynamicShared;
  g->numClusters = u64(cfg.grid[0]) * cfg.grid[1] * cfg.grid[2] / g->ctasPerCluster;
  const u32 windows[] = {1, 1, 2, 3, 4};
  u32 w = options().window ? u32(options().window) : windows[rng().below(5)];
  g->window = std::max(1u, std::min(w, u32(options().sms) / g->ctasPerCluster));
  g->resident = std::max(1u, blocksPerSm(*prog, g->threads, cfg.dynamicShared) *
                                 u32(options().sms) / g->ctasPerCluster);
  engine.mode = options().async == 2 ? int(rng().below(4)) : options().async;
  if (engine.mode == 3) engine.mode = 2;
  g->impatient = Rng{options().seed << 32 | g->id}.chance(1, 2);  // leaves `engine.rng` as it is
  return g;
}

}  // namespace emu
