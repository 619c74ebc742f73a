// scheduler.h - runs grids to their end.
#pragma once
#include "interp.h"

namespace emu {

// Prepares a launch; null and *why on an impossible configuration.
std::unique_ptr<Grid> makeGrid(std::shared_ptr<Program> prog, const LaunchConfig &cfg,
                               const std::vector<u8> &params, int device);
// CTAs that fit a multiprocessor at a time.
u32 blocksPerSm(const Program &prog, u32 threads, u32 dynamicShared);
// Runs a kernel and the programmatic launches that follow it in its stream.
void runGrids(const std::vector<Grid *> &chain);
void seedScheduler(u64 seed);

std::unique_ptr<Cluster> makeCluster(Grid &g, u64 index);   // cta.cpp
void asyncTick(Cluster &c);                                  // async_copy.cpp: random completions
bool asyncForceOne(Cluster &c);                              // complete something; false: idle
void wgmmaTick(Cluster &c);
bool waitReady(Warp &w, Frag &f);                            // waits.cpp: may it go on?
std::string describeWait(const Warp &w, const Frag &f);

}  // namespace emu
