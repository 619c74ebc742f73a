// vclock.h - vector clocks: who is known to have done what.
//
// An *actor* is something that touches memory in its own program order: a warp, the wgmma queue of
// a warpgroup, the bulk-copy queue of a warp, or one mbarrier (standing for the TMA writes that
// report to it: epoch = phase number + 1). Each access is stamped with (actor, epoch). Each warp
// carries a vector clock; a barrier collects the clocks of those who arrive and hands the join to
// those who wait. An access A happens before B exactly if B's warp knows A's epoch.
//
// Actors are numbered within a cluster. Clusters tell each other what they know through release and
// acquire on global memory only: that is the `foreign` part, empty in most kernels.
#pragma once
#include <algorithm>
#include <map>
#include <memory>

#include "base.h"

namespace emu {

// What one clock knows about one actor.
struct Known {
  u32 all = 0;        // accesses of every lane up to this epoch
  u32 some = 0;       // accesses of the lanes below up to this epoch (a lone lane has arrived)
  u32 lanes = 0;
  u32 proxied = 0;    // up to here every lane has executed fence.proxy.async after its accesses
  u32 proxiedSome = 0, proxiedLanes = 0;  // the same for the lanes of a mask
  u32 globalProxied = 0;                  // as `proxied`, for global memory
  u32 globalAcquired = 0;                 // other clusters: a proxy fence came after the acquire
  u32 executed = 0;   // has executed up to here (relaxed arrivals count, memory or not)
};

class VClock {
 public:
  Known &at(int actor) {
    if (size_t(actor) >= k_.size()) k_.resize(size_t(actor) + 1);
    return k_[size_t(actor)];
  }
  Known get(int actor) const { return size_t(actor) < k_.size() ? k_[size_t(actor)] : Known{}; }
  void clear() { *this = VClock(); }
  size_t size() const { return k_.size(); }

  void join(const VClock &o) {
    if (k_.size() < o.k_.size()) k_.resize(o.k_.size());
    for (size_t i = 0; i < o.k_.size(); ++i) joinOne(&k_[i], o.k_[i]);
    if (o.foreign_) joinForeign(*o.foreign_);
    afterDependency |= o.afterDependency;
  }
  // What is known about the actors of other clusters, by cluster; null: nothing.
  using Foreign = std::map<u64, VClock>;
  const Foreign *foreign() const { return foreign_.get(); }
  void joinForeign(const Foreign &f) {
    if (foreign_.get() == &f) return;
    auto mine = foreign_ ? std::make_shared<Foreign>(*foreign_) : std::make_shared<Foreign>();
    for (auto &e : f) (*mine)[e.first].join(e.second);
    foreign_ = mine;
  }
  // fence.proxy.async on global memory: asynchronous accesses may follow what others have released.
  void fenceForeign() {
    if (!foreign_) return;
    auto mine = std::make_shared<Foreign>(*foreign_);
    for (auto &e : *mine)
      for (Known &k : e.second.k_) k.globalAcquired = k.all;
    foreign_ = mine;
  }
  VClock withoutForeign() const {
    VClock c = *this;
    c.foreign_ = nullptr;
    return c;
  }
  bool afterDependency = false;  // griddepcontrol.wait has been passed
  void joinExecuted(const VClock &o) {
    if (k_.size() < o.k_.size()) k_.resize(o.k_.size());
    for (size_t i = 0; i < o.k_.size(); ++i)
      k_[i].executed = std::max(k_[i].executed, o.k_[i].executed);
  }
  static void joinOne(Known *a, const Known &b) {
    a->all = std::max(a->all, b.all);
    a->lanes |= b.lanes;
    a->some = std::max(a->some, b.some);
    a->proxied = std::max(a->proxied, b.proxied);
    a->proxiedSome = std::max(a->proxiedSome, b.proxiedSome);
    a->proxiedLanes |= b.proxiedLanes;
    a->globalProxied = std::max(a->globalProxied, b.globalProxied);
    a->globalAcquired = std::max(a->globalAcquired, b.globalAcquired);
    a->executed = std::max(a->executed, b.executed);
  }

 private:
  std::vector<Known> k_;
  std::shared_ptr<const Foreign> foreign_;
};

}  // namespace emu
