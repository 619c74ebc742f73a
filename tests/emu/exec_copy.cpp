// exec_copy.cpp - cp.async, cp.async.bulk (not tensor), bulk groups, st.async.
#include "async_copy.h"

namespace emu {

void cpAsyncComplete(Warp &w, u32 groups);  // async_copy.cpp

namespace {

// ---- cp.async ---------------------------------------------------------------------------------
void cpActorOf(Warp &w) {
  if (w.cpActor < 0) w.cpActor = w.cta->cluster->newActor({ActorInfo::CpAsyncActor, w.cta, w.id});
}

// imm: size; a: source size (optional), c: "ignore the source" predicate
Step cpAsync(Warp &w, const Instr &in, u32 m) {
  cpActorOf(w);
  u64 to[kLanes], from[kLanes];
  laneAddresses(w, in.addr, to);
  laneAddresses(w, in.addr2, from);
  CpItem item;
  item.group = w.cpCommitted;
  item.epoch = w.cpEpoch;
  item.instr = &in;
  u32 size = u32(in.imm), skip = in.c.present() ? w.pred(in.c) : 0;
  FOR_LANES(l, m) {
    u32 off, n = in.a.present() ? w.src<u32>(in.a)[l] : size;
    if (skip >> l & 1) n = 0;
    if (n > size) return fatal(w, in, "out-of-bounds", "source size above the copy size", int(l));
    Cta *cta = resolveShared(w, in, to[l], size, size, false, &off, int(l));
    if (!cta) return Step::Abort;
    CpItem::Copy c{from[l], cta->smem.data() + off, size, n};
    if (n) {
      Place p = resolve(w, in, in.addr2.space, from[l], n, n == size ? size : 1, Access::Read,
                        int(l));
      if (!p.p) return Step::Abort;
      c.from = u64(p.p);
      if (from[l] % size)
        return fatal(w, in, "misaligned", strf("source 0x%llx is no multiple of %u",
                                               (unsigned long long)from[l], size), int(l));
    }
    hzCpAsyncWrite(w, in, int(l), *cta, off, size);
    item.copies.push_back(c);
  }
  w.cpQueue.push_back(std::move(item));
  if (asyncMode() == 0) cpAsyncComplete(w, w.cpCommitted + 1);
  return Step::Next;
}
Step cpCommit(Warp &w, const Instr &, u32) {
  cpActorOf(w);
  ++w.cpCommitted;
  w.cpGroupEpoch.push_back(w.cpEpoch++);
  return Step::Next;
}
Step cpWait(Warp &w, const Instr &in, u32 m) {
  cpActorOf(w);
  u32 keep = u32(in.imm);
  if (in.sel) {  // wait_all: what is not committed, too
    cpAsyncComplete(w, w.cpCommitted + 1);
    hzLearn(w, m, [&](VClock &c) { c.at(w.cpActor).all = w.cpEpoch; });
    ++w.cpEpoch;
  } else if (w.cpCommitted > keep) {
    cpAsyncComplete(w, w.cpCommitted - keep);
    u32 done = w.cpGroupEpoch[w.cpCommitted - keep - 1];
    hzLearn(w, m, [&](VClock &c) { c.at(w.cpActor).all = std::max(c.at(w.cpActor).all, done); });
  }
  return Step::Next;
}
// sel: noinc
Step cpMbarArrive(Warp &w, const Instr &in, u32 m) {
  cpActorOf(w);
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  FOR_LANES(l, m) {
    Mbar *b = mbarAt(w, in, addr[l], false, int(l));
    if (!b) return Step::Abort;
    hzMbarUse(w, in, *b, false, int(l));
    if (!in.sel) ++b->pending;
    bool merged = !w.cpQueue.empty() && w.cpQueue.back().arrive == b &&
                  w.cpQueue.back().instr == &in && w.cpQueue.back().epoch == w.cpEpoch;
    if (merged) {
      ++w.cpQueue.back().arrivals;
      continue;
    }
    CpItem item;
    item.group = w.cpCommitted;
    item.epoch = w.cpEpoch;
    item.instr = &in;
    item.arrive = b;
    item.arrivals = 1;
    w.cpQueue.push_back(item);
  }
  ++w.cpEpoch;
  if (asyncMode() == 0) cpAsyncComplete(w, w.cpCommitted + 1);
  return Step::Next;
}

// ---- cp.async.bulk ----------------------------------------------------------------------------
bool bulkSizeOk(Warp &w, const Instr &in, u32 size, u64 global, int lane) {
  if (size % 16 || global % 16) {
    fatal(w, in, "misaligned",
          strf("size %u and global address 0x%llx must be multiples of 16", size,
               (unsigned long long)global), lane);
    return false;
  }
  return true;
}

// a: size, b: multicast mask; addr: destination, addr2: source, vec[0]: mbarrier address
Step bulkLoad(Warp &w, const Instr &in, u32 m) {
  u64 dst[kLanes], src[kLanes], mbar[kLanes];
  laneAddresses(w, in.addr, dst);
  laneAddresses(w, in.addr2, src);
  Address mb{in.vec[0], in.imm, Space::Shared, in.sel2 != 0};
  laneAddresses(w, mb, mbar);
  FOR_LANES(l, m) {
    u32 size = w.src<u32>(in.a)[l], off;
    if (!bulkSizeOk(w, in, size, in.sel ? 0 : src[l], int(l))) return Step::Abort;
    if (size == 0) continue;
    u32 mask = in.b.present() ? w.src<u16>(in.b)[l] : 0;
    std::vector<Delivery> to;
    if (!deliveries(w, in, dst[l], mbar[l], mask, in.b.present(), size, int(l), &to, &off))
      return Step::Abort;
    auto op = std::make_shared<AsyncOp>();
    op->issuer = &w;
    op->instr = &in;
    op->lane = int(l);
    if (in.sel) {  // from shared memory of this CTA
      u32 from;
      Cta *cta = resolveShared(w, in, src[l], size, 16, false, &from, int(l));
      if (!cta) return Step::Abort;
      Warp *self = &w;
      hzAsyncRead(&self, 1, in, int(l), *cta, from, size, to[0].mbar->actor, u32(to[0].phase) + 1);
      op->read = [cta, from, size](AsyncOp &o) {
        o.data.assign(cta->smem.data() + from, cta->smem.data() + from + size);
      };
    } else {
      u64 from = src[l];
      if (hgWantsReads(w)) globalReadIssued(*op, from, size);
      op->read = [from, size](AsyncOp &o) {
        if (u8 *p = globalRange(o, from, size, false)) o.data.assign(p, p + size);
      };
    }
    for (const Delivery &d : to)
      hzAsyncWrite(w, in, int(l), *d.cta, off, size, d.mbar->actor, u32(d.phase) + 1);
    op->write = [to, off, size](AsyncOp &o) {
      if (o.data.size() != size) return;
      for (const Delivery &d : to) memcpy(d.cta->smem.data() + off, o.data.data(), size);
      signalDeliveries(o, to, size);
    };
    asyncIssue(w, op, false);
  }
  return Step::Next;
}

// a: size; sel: Reduce; addr: global destination, addr2: shared source; d.type: element type
Step bulkStore(Warp &w, const Instr &in, u32 m) {
  u64 dst[kLanes], src[kLanes];
  laneAddresses(w, in.addr, dst);
  laneAddresses(w, in.addr2, src);
  bulkActorOf(w);
  Reduce red = Reduce(in.sel);
  Ty type = in.d.type;
  FOR_LANES(l, m) {
    u32 size = w.src<u32>(in.a)[l], off;
    u64 to = dst[l];
    if (!bulkSizeOk(w, in, size, to, int(l))) return Step::Abort;
    if (size == 0) continue;
    Cta *cta = resolveShared(w, in, src[l], size, 16, false, &off, int(l));
    if (!cta) return Step::Abort;
    Warp *self = &w;
    hzAsyncRead(&self, 1, in, int(l), *cta, off, size, w.bulkActor, w.bulkCommitted + 1);
    auto op = std::make_shared<AsyncOp>();
    op->issuer = &w;
    op->instr = &in;
    op->lane = int(l);
    op->read = [cta, off, size](AsyncOp &o) {
      o.data.assign(cta->smem.data() + off, cta->smem.data() + off + size);
    };
    globalWriteIssued(*op, to, size, red != Reduce::None);
    op->write = [to, size, red, type](AsyncOp &o) {
      if (red != Reduce::None && !globalRange(o, to, size, false)) return;
      u8 *p = globalRange(o, to, size, true);
      if (!p) return;
      if (red == Reduce::None) memcpy(p, o.data.data(), size);
      else reduceBytes(p, o.data.data(), size, red, type);
    };
    asyncIssue(w, op, true);
  }
  return Step::Next;
}

Step bulkCommit(Warp &w, const Instr &, u32) {
  bulkActorOf(w);
  w.bulkGroups.push_back(std::move(w.bulkOpen));
  w.bulkOpen.clear();
  ++w.bulkCommitted;
  return Step::Next;
}
// sel: .read
Step bulkWait(Warp &w, const Instr &in, u32 m) {
  bulkActorOf(w);
  size_t keep = size_t(in.imm);
  for (size_t i = 0; i + keep < w.bulkGroups.size(); ++i)
    for (AsyncPtr &op : w.bulkGroups[i]) in.sel ? asyncRead(*op) : asyncComplete(*op);
  if (w.bulkCommitted > keep) {
    u32 done = w.bulkCommitted - u32(keep);
    hzLearn(w, m, [&](VClock &c) {
      Known &k = c.at(w.bulkActor);
      k.executed = k.all = std::max(k.all, done);
      if (!in.sel) c.at(w.bulkWriteActor).all = done;
    });
  }
  while (!in.sel && w.bulkGroups.size() > keep) w.bulkGroups.pop_front();
  return Step::Next;
}

Step bulkPrefetch(Warp &w, const Instr &in, u32 m) {
  u64 src[kLanes];
  laneAddresses(w, in.addr2, src);
  FOR_LANES(l, m)
    if (!bulkSizeOk(w, in, w.src<u32>(in.a)[l], src[l], int(l))) return Step::Abort;
  return Step::Next;
}

// st.async: values to a peer's shared memory, bytes to its mbarrier. vec: values, a: mbarrier
Step storeAsync(Warp &w, const Instr &in, u32 m) {
  u64 dst[kLanes], mbar[kLanes];
  laneAddresses(w, in.addr, dst);
  laneAddresses(w, in.addr2, mbar);
  u32 each = u32(in.imm), bytes = each * u32(in.vec.size());
  FOR_LANES(l, m) {
    u32 off, mo;
    Cta *cta = resolveShared(w, in, dst[l], bytes, bytes, true, &off, int(l));
    if (!cta || !resolveShared(w, in, mbar[l], 8, 8, true, &mo, int(l))) return Step::Abort;
    Mbar *b = mbarAt(w, in, mbar[l], true, int(l));
    if (!b) return Step::Abort;
    hzMbarUse(w, in, *b, true, int(l));
    ++b->inFlight;
    b->lastTxPhase = b->phase + 1;
    std::vector<Delivery> to{{cta, b, b->phase}};
    hzAsyncWrite(w, in, int(l), *cta, off, bytes, b->actor, u32(b->phase) + 1);
    auto op = std::make_shared<AsyncOp>();
    op->issuer = &w;
    op->instr = &in;
    op->lane = int(l);
    for (const Operand &v : in.vec) {
      const u8 *p = each == 4 ? reinterpret_cast<const u8 *>(w.src<u32>(v) + l)
                              : reinterpret_cast<const u8 *>(w.src<u64>(v) + l);
      op->data.insert(op->data.end(), p, p + each);
    }
    op->write = [to, off, bytes](AsyncOp &o) {
      memcpy(to[0].cta->smem.data() + off, o.data.data(), bytes);
      signalDeliveries(o, to, bytes);
    };
    asyncIssue(w, op, false);
  }
  return Step::Next;
}

bool decodeCpAsync(Decoder &d, Instr &in) {
  if (d.has("mbarrier")) {
    in.addr = d.address(d.arg(0), d.spaceOf());
    in.sel = d.has("noinc");
    in.fn = cpMbarArrive;
  } else if (d.has("commit_group")) {
    in.fn = cpCommit;
  } else if (d.has("wait_group") || d.has("wait_all")) {
    in.sel = d.has("wait_all");
    if (!in.sel) in.imm = s64(d.constantValue(0));
    in.fn = cpWait;
  } else {
    in.addr = d.address(d.arg(0), Space::Shared);
    in.addr2 = d.address(d.arg(1), Space::Global);
    in.imm = s64(d.constantValue(2));
    if (in.imm != 4 && in.imm != 8 && in.imm != 16) d.fail("the size must be 4, 8 or 16");
    if (d.has("cg") && in.imm != 16) d.fail(".cg copies 16 bytes");
    bool hint = d.has("L2::cache_hint");
    if (d.count() > 3 + int(hint)) {
      const Arg &a = d.arg(3);
      if (a.kind == Arg::Reg && d.regType(a) == Ty::Pred) in.c = d.pred(a, false);
      else in.a = d.src(3, Ty::B32);
    }
    in.fn = cpAsync;
    return true;
  }
  in.flags |= kNotable;
  return true;
}

}  // namespace

bool decodeCopies(Decoder &d, Instr &in) {
  const auto &parts = d.s().parts;
  bool reduce = parts[0] == "cp" && d.has("reduce");
  if (parts[0] == "st" && d.has("async")) {
    Ty t = d.lastType();
    in.addr = d.address(d.arg(0), Space::SharedCluster);
    in.addr2 = d.address(d.arg(2), Space::SharedCluster);
    in.imm = bits(t) / 8;
    if (d.arg(1).kind == Arg::Vec)
      for (const Arg &e : d.arg(1).elems) in.vec.push_back(d.src(e, t));
    else in.vec.push_back(d.src(1, t));
    in.flags |= kNotable;
    in.fn = storeAsync;
    return true;
  }
  if (parts[0] != "cp" || d.has("tensor")) return false;
  if (!d.has("bulk")) return reduce ? false : decodeCpAsync(d, in);
  in.flags |= kNotable;
  bool hint = d.has("L2::cache_hint");
  if (d.has("commit_group")) {
    in.fn = bulkCommit;
    return true;
  }
  if (d.has("wait_group")) {
    in.imm = s64(d.constantValue(0));
    in.sel = d.has("read");
    in.fn = bulkWait;
    return true;
  }
  if (d.has("prefetch")) {
    in.addr2 = d.address(d.arg(0), Space::Global);
    in.a = d.src(1, Ty::B32);
    in.fn = bulkPrefetch;
    return true;
  }
  if (hint) d.src(d.count() - 1, Ty::B64);
  in.a = d.src(2, Ty::B32);
  if (d.has("bulk_group")) {
    in.addr = d.address(d.arg(0), Space::Global);
    in.addr2 = d.address(d.arg(1), Space::Shared);
    if (reduce) {
      Reduce r;
      if (!reduceNamed(d, &r)) d.unknown();
      in.sel = u32(r);
      in.d.type = d.lastType();
      in.floatSum = isFloat(in.d.type) && r == Reduce::Add;
    }
    in.fn = bulkStore;
    return true;
  }
  if (reduce) d.unknown();
  // parts: cp async bulk DST SRC ...
  in.sel = parts[4] != "global";
  in.addr = d.address(d.arg(0), Space::SharedCluster);
  in.addr2 = d.address(d.arg(1), in.sel ? Space::Shared : Space::Global);
  Address mb = d.address(d.arg(3), Space::SharedCluster);
  in.vec.push_back(mb.base);
  in.imm = mb.off;
  in.sel2 = mb.wide;
  if (d.has("multicast::cluster")) in.b = d.src(4, Ty::B16);
  in.fn = bulkLoad;
  return true;
}

}  // namespace emu
