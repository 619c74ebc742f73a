// cta.cpp - sets up the CTAs of a cluster: memory, register files, special registers, actors.
#include "scheduler.h"

namespace emu {
namespace {

u64 specialValue(const Cta &cta, const Warp &w, const std::string &name, int lane) {
  const Grid &g = *cta.grid;
  const LaunchConfig &c = g.cfg;
  u32 t = w.id * kLanes + u32(lane);
  u32 tid[3] = {t % c.block[0], t / c.block[0] % c.block[1], t / c.block[0] / c.block[1]};
  int axis = name.back() == 'y' ? 1 : name.back() == 'z' ? 2 : 0;
  auto starts = [&](const char *p) { return name.rfind(p, 0) == 0; };
  if (starts("%tid.")) return tid[axis];
  if (starts("%ntid.")) return c.block[axis];
  if (starts("%ctaid.")) return cta.index[axis];
  if (starts("%nctaid.")) return c.grid[axis];
  if (starts("%clusterid.")) return cta.index[axis] / c.cluster[axis];
  if (starts("%nclusterid.")) return c.grid[axis] / c.cluster[axis];
  if (starts("%cluster_ctaid.")) return cta.index[axis] % c.cluster[axis];
  if (starts("%cluster_nctaid.")) return c.cluster[axis];
  if (name == "%cluster_ctarank") return cta.rank;
  if (name == "%cluster_nctarank") return g.ctasPerCluster;
  if (name == "%is_explicit_cluster") return c.hasCluster ? 1 : 0;
  if (name == "%laneid") return u64(lane);
  if (name == "%warpid") return w.id;
  if (name == "%nwarpid") return 64;
  if (name == "%smid") return cta.smid;
  if (name == "%nsmid") return u64(options().sms);
  if (name == "%gridid") return g.id;
  if (name == "%lanemask_eq") return 1u << lane;
  if (name == "%lanemask_lt") return (1u << lane) - 1;
  if (name == "%lanemask_le") return (2ull << lane) - 1;
  if (name == "%lanemask_gt") return u32(~((2ull << lane) - 1));
  if (name == "%lanemask_ge") return u32(~((1u << lane) - 1));
  if (name == "%dynamic_smem_size") return c.dynamicShared;
  if (name == "%total_smem_size" || name == "%aggr_smem_size") return g.sharedBytes;
  u32 base = kSharedBase + (cta.rank << kRankShift);
  if (name == "@static") return base;
  if (name == "@dynamic") return base + g.dynamicOffset;
  return 0;
}

void initWarp(Cta &cta, Warp &w) {
  const Program &p = *cta.grid->prog;
  Grid &g = *cta.grid;
  w.cta = &cta;
  w.grid = &g;
  w.prog = &p;
  w.regs = cta.regFile.data() + size_t(w.id) * p.regBytes;
  w.regs = reinterpret_cast<u8 *>((u64(w.regs) + 63) / 64 * 64);
  w.preds = cta.predFile.data() + size_t(w.id) * p.numPreds;
  u32 first = w.id * kLanes, n = std::min(u32(kLanes), g.threads - first);
  w.live = n == kLanes ? kAllLanes : (1u << n) - 1;
  w.mask = w.live;
  w.frags.push_back(Frag{0, w.live, false, {}});
  w.actor = cta.cluster->newActor({ActorInfo::WarpActor, &cta, w.id});
  w.regsPerThread = p.regsPerThread;
  w.wgTouched.assign(p.wgmmaRegs.size(), 1);  // before the first wgmma.fence nothing is ordered
  w.wgBusyGroup.assign(p.wgmmaRegs.size(), 0);
  w.wgShape.assign(p.wgmmaRegs.size(), 0);
  w.initMask.assign(p.ast->regs.size(), 0);
  for (const SpecialUse &s : p.specials) {
    for (int l = 0; l < kLanes; ++l) {
      u64 v = specialValue(cta, w, s.name, l);
      memcpy(w.regs + s.off + size_t(l) * size_t(bits(s.type)) / 8, &v, size_t(bits(s.type)) / 8);
    }
  }
}

void initCta(Cluster &c, Cta &cta) {
  Grid &g = *c.grid;
  const Program &p = *g.prog;
  cta.cluster = &c;
  cta.grid = &g;
  cta.smid = u32((c.index * g.ctasPerCluster + cta.rank) % u64(options().sms));
  cta.smem.assign(g.sharedBytes, 0xff);
  cta.shadow.assign((g.sharedBytes + 3) / 4, Cell{});
  cta.regFile.assign(size_t(p.regBytes) * g.warpsPerCta + 64, 0);
  Rng fill{g.id * 77 + c.index};   // registers hold junk at the start, as on hardware
  for (size_t i = 0; i + 8 <= cta.regFile.size(); i += 8) {
    u64 v = fill.next();
    memcpy(&cta.regFile[i], &v, 8);
  }
  cta.predFile.assign(size_t(p.numPreds) * g.warpsPerCta + 1, 0);
  for (u32 &v : cta.predFile) v = u32(fill.next());
  cta.local.assign(size_t(p.ast->localBytes) * g.warpsPerCta * kLanes, 0xff);
  cta.localWritten.assign(cta.local.size(), 0);
  cta.warps.resize(g.warpsPerCta);
  cta.warpsLeft = g.warpsPerCta;
  for (u32 i = 0; i < g.warpsPerCta; ++i) {
    cta.warps[i].id = i;
    initWarp(cta, cta.warps[i]);
  }
  cta.warpgroups.resize((g.warpsPerCta + 3) / 4);
  for (size_t i = 0; i < cta.warpgroups.size(); ++i) {
    Warpgroup &wg = cta.warpgroups[i];
    wg.index = u32(i);
    for (size_t k = 0; k < 4; ++k)
      wg.warps[k] = i * 4 + k < cta.warps.size() ? &cta.warps[i * 4 + k] : nullptr;
    if (p.usesWgmma) wg.actor = c.newActor({ActorInfo::WgmmaActor, &cta, u32(i)});
  }
}

}  // namespace

std::unique_ptr<Cluster> makeCluster(Grid &g, u64 index) {
  auto c = std::make_unique<Cluster>();
  c->grid = &g;
  c->index = index;
  c->writes.push_back({});
  c->readSets.push_back({});
  const LaunchConfig &cfg = g.cfg;
  u64 nx = cfg.grid[0] / cfg.cluster[0], ny = cfg.grid[1] / cfg.cluster[1];
  u32 cx = u32(index % nx), cy = u32(index / nx % ny), cz = u32(index / nx / ny);
  c->warpsLeft = g.warpsPerCta * g.ctasPerCluster;
  for (u32 r = 0; r < g.ctasPerCluster; ++r) {
    auto cta = std::make_unique<Cta>();
    cta->rank = r;
    cta->index[0] = cx * cfg.cluster[0] + r % cfg.cluster[0];
    cta->index[1] = cy * cfg.cluster[1] + r / cfg.cluster[0] % cfg.cluster[1];
    cta->index[2] = cz * cfg.cluster[2] + r / cfg.cluster[0] / cfg.cluster[1];
    initCta(*c, *cta);
    c->ctas.push_back(std::move(cta));
  }
  return c;
}

}  // namespace emu
