// exec_mem.cpp - addresses, bounds and alignment; ld, st, prefetch.
#include "interp.h"

namespace emu {

void laneAddresses(const Warp &w, const Address &a, u64 out[kLanes]) {
  if (!a.base.present()) {
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) out[l] = u64(a.off);
  } else if (a.wide) {
    const u64 *b = w.src<u64>(a.base);
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) out[l] = b[l] + u64(a.off);
  } else {
    const u32 *b = w.src<u32>(a.base);
    EMU_IVDEP for (int l = 0; l < kLanes; ++l) out[l] = u32(b[l] + u32(a.off));
  }
}

namespace {

Space spaceOfGeneric(u64 addr) {
  switch (addr & kWindowMask) {
    case kSharedWindow: return Space::SharedCluster;
    case kParamWindow: return Space::Param;
    case kLocalWindow: return Space::Local;
    default: return Space::Global;
  }
}

const char *verb(Access a) {
  return !writes(a) ? "reads" : a == Access::Update ? "updates" : "writes";
}

Place misaligned(Warp &w, const Instr &in, u64 addr, u32 bytes, u32 align, Access acc, int lane) {
  fatal(w, in, "misaligned",
        strf("%s %u bytes at 0x%llx, which is no multiple of %u", verb(acc), bytes,
             (unsigned long long)addr, align), lane);
  return {};
}

Place resolveGlobal(Warp &w, const Instr &in, u64 addr, u32 bytes, Access acc, int lane) {
  Allocation *a = w.grid->lastAlloc;
  if (!a || !a->contains(addr, bytes)) {
    a = memory().find(addr);
    if (!a || !a->contains(addr, bytes) || !a->live) {
      fatal(w, in, a && !a->live ? "use-after-free" : "out-of-bounds",
            strf("%s %s", verb(acc), memory().describe(addr, bytes).c_str()), lane);
      return {};
    }
    if (!a->host && a->device >= 0 && a->device != w.grid->device) {
      fatal(w, in, "out-of-bounds",
            strf("%s %s, which lies on device %d while the kernel runs on device %d", verb(acc),
                 memory().describe(addr, bytes).c_str(), a->device, w.grid->device), lane);
      return {};
    }
    if (writes(acc) && a->constant) {
      fatal(w, in, "out-of-bounds", "writes to constant memory", lane);
      return {};
    }
    w.grid->lastAlloc = a;
  }
  if (reads(acc) && options().uninitGlobal && !memory().isInit(a, addr, bytes)) {
    finding(w, in, "uninitialised",
            strf("reads %s, never written", memory().describe(addr, bytes).c_str()), lane);
    memory().markInit(a, addr, bytes);  // say it once
  }
  if (writes(acc)) memory().markInit(a, addr, bytes);
  hgAccess(w, in, *a, addr, bytes, lane, acc);
  Place p;
  p.p = reinterpret_cast<u8 *>(addr);
  return p;
}

bool insideOneParameter(const KernelAst &ast, u64 addr, u64 bytes) {
  for (auto &p : ast.params)
    if (addr >= p->address && addr + bytes <= p->address + p->size) return true;
  return false;
}

}  // namespace

Cta *resolveShared(Warp &w, const Instr &in, u64 addr, u32 bytes, u32 align, bool clusterOk,
                   u32 *off, int lane) {
  addr &= ~kWindowMask;
  u32 rank = u32(addr >> kRankShift), o = u32(addr & ((1u << kRankShift) - 1));
  Cluster &c = *w.cta->cluster;
  if ((addr >> 32) || rank >= c.ctas.size()) {
    fatal(w, in, "out-of-bounds",
          strf("0x%llx is no shared-memory address", (unsigned long long)addr), lane);
    return nullptr;
  }
  Cta *t = c.ctas[rank].get();
  if (t != w.cta && !clusterOk) {
    fatal(w, in, "out-of-bounds",
          strf("shared::cta access to the shared memory of CTA rank %u", rank), lane);
    return nullptr;
  }
  if (o < kSharedBase || o - kSharedBase + bytes > t->smem.size()) {
    fatal(w, in, "out-of-bounds",
          strf("shared-memory bytes %lld..%lld of %zu", (long long)o - kSharedBase,
               (long long)o - kSharedBase + bytes - 1, t->smem.size()), lane);
    return nullptr;
  }
  if (o & (align - 1)) {
    misaligned(w, in, o - kSharedBase, bytes, align, Access::Read, lane);
    return nullptr;
  }
  if (t->exited) {
    fatal(w, in, "exit-in-flight",
          strf("touches the shared memory of CTA rank %u, which has exited", rank), lane);
    return nullptr;
  }
  if (t != w.cta) hzRemoteTouch(w, in, *t);
  *off = o - kSharedBase;
  return t;
}

Place resolve(Warp &w, const Instr &in, Space space, u64 addr, u32 bytes, u32 align, Access acc,
              int lane) {
  bool generic = space == Space::Generic;
  if (generic) space = spaceOfGeneric(addr);
  if (space == Space::Global || space == Space::Const) {
    if (addr & (align - 1)) return misaligned(w, in, addr, bytes, align, acc, lane);
    return resolveGlobal(w, in, addr, bytes, acc, lane);
  }
  Place p;
  if (space == Space::Shared || space == Space::SharedCluster) {
    p.cta = resolveShared(w, in, addr, bytes, align, space == Space::SharedCluster, &p.off, lane);
    if (p.cta) {
      p.p = p.cta->smem.data() + p.off;
      hzGeneric(w, in, *p.cta, p.off, bytes, lane, acc);
    }
    return p;
  }
  addr &= ~kWindowMask;
  if (addr & (align - 1)) return misaligned(w, in, addr, bytes, align, acc, lane);
  u64 size = space == Space::Param ? w.grid->params.size() : w.prog->ast->localBytes;
  if (addr > size || bytes > size - addr) {
    fatal(w, in, "out-of-bounds",
          strf("%s %s bytes %llu..%llu of %llu", verb(acc),
               space == Space::Param ? "parameter" : "local-memory", (unsigned long long)addr,
               (unsigned long long)addr + bytes - 1, (unsigned long long)size), lane);
    return {};
  }
  if (space == Space::Param) {
    if (writes(acc)) {
      fatal(w, in, "out-of-bounds", "writes to a kernel parameter", lane);
      return {};
    }
    if (!insideOneParameter(*w.prog->ast, addr, bytes)) {
      fatal(w, in, "out-of-bounds",
            strf("reads parameter bytes %llu..%llu, which are not all of one parameter",
                 (unsigned long long)addr, (unsigned long long)addr + bytes - 1), lane);
      return {};
    }
    p.p = w.grid->params.data() + addr;
  } else {
    u64 at = (u64(w.id) * kLanes + u64(lane)) * size + addr;
    p.p = w.cta->local.data() + at;
    u8 *written = w.cta->localWritten.data() + at;
    if (reads(acc) && options().uninitShared && memchr(written, 0, bytes))
      finding(w, in, "uninitialised",
              strf("reads local-memory bytes %llu..%llu, never written", (unsigned long long)addr,
                   (unsigned long long)addr + bytes - 1), lane);
    memset(written, 1, bytes);  // or say it once
  }
  return p;
}

namespace {

template <class T> Step storeLanes(Warp &w, const Instr &in, u32 m, u8 *const *p, int v,
                                   const Operand &o) {
  // sel2: bits of the register
  FOR_LANES(l, m) {
    T x;
    if (in.sel2 == 16) x = T(w.src<u16>(o)[l]);
    else if (in.sel2 == 32) x = T(w.src<u32>(o)[l]);
    else x = T(w.src<u64>(o)[l]);
    memcpy(p[l] + size_t(v) * sizeof(T), &x, sizeof(T));
  }
  return Step::Next;
}

template <class T, class R> void loadInto(Warp &w, const Operand &o, u32 m, u8 *const *p, int v) {
  R *d = w.dst<R>(o);
  FOR_LANES(l, m) {
    T x;
    memcpy(&x, p[l] + size_t(v) * sizeof(T), sizeof(T));
    d[l] = R(x);
  }
}
template <class T> void loadLanes(Warp &w, const Instr &in, u32 m, u8 *const *p, int v,
                                  const Operand &o) {
  using S32 = std::conditional_t<std::is_signed_v<T>, s32, u32>;
  if (in.sel2 == 16) loadInto<T, std::make_unsigned_t<T>>(w, o, m, p, v);
  else if (in.sel2 == 32) loadInto<T, S32>(w, o, m, p, v);
  else loadInto<T, std::conditional_t<std::is_signed_v<T>, s64, u64>>(w, o, m, p, v);
}
// 8- and 16-bit loads into 16-bit registers extend to 16 bits.
template <> void loadLanes<u8>(Warp &w, const Instr &in, u32 m, u8 *const *p, int v,
                               const Operand &o) {
  if (in.sel2 == 16) loadInto<u8, u16>(w, o, m, p, v);
  else if (in.sel2 == 32) loadInto<u8, u32>(w, o, m, p, v);
  else loadInto<u8, u64>(w, o, m, p, v);
}
template <> void loadLanes<s8>(Warp &w, const Instr &in, u32 m, u8 *const *p, int v,
                               const Operand &o) {
  if (in.sel2 == 16) loadInto<s8, s16>(w, o, m, p, v);
  else if (in.sel2 == 32) loadInto<s8, s32>(w, o, m, p, v);
  else loadInto<s8, s64>(w, o, m, p, v);
}

// Plain loads of initialised global memory that this launch has not written, all lanes in the
// allocation used last: the common case, without the questions that cannot arise.
bool quickLoad(const Warp &w, const Instr &in, u32 m, u32 bytes, const u64 *addr, u8 **p) {
  if (in.addr.space != Space::Global && in.addr.space != Space::Generic) return false;
  const Allocation *a = w.grid->lastAlloc;
  if (!a || a->size < bytes || a->writtenBy == w.grid->log->id || w.grid->after) return false;
  u32 bits = bytes >= 8 ? 255 : (1u << bytes) - 1;
  bool checkInit = a->init && options().uninitGlobal;
  FOR_LANES(l, m) {
    u64 at = addr[l] - a->base;
    if (at > a->size - bytes || (addr[l] & (bytes - 1))) return false;
    for (u64 b = at; checkInit && b < at + bytes; b += 8)
      if ((a->init[b >> 3] >> (b & 7) & bits) != bits) return false;
    p[l] = reinterpret_cast<u8 *>(addr[l]);
  }
  return true;
}

bool places(Warp &w, const Instr &in, u32 m, u32 bytes, Access acc, u8 **p) {
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  if (acc == Access::Read && quickLoad(w, in, m, bytes, addr, p)) return true;
  FOR_LANES(l, m) {
    Place at = resolve(w, in, in.addr.space, addr[l], bytes, bytes, acc, int(l));
    if (!at.p) return false;
    p[l] = at.p;
  }
  return true;
}

template <class T> Step load(Warp &w, const Instr &in, u32 m) {
  u8 *p[kLanes];
  Access acc = in.sel ? Access::AtomicRead : Access::Read;
  if (!places(w, in, m, u32(sizeof(T)) * in.vecN, acc, p)) return Step::Abort;
  if (in.vecN == 1) {
    loadLanes<T>(w, in, m, p, 0, in.d);
  } else {
    for (int v = 0; v < in.vecN; ++v)
      if (in.vec[size_t(v)].present()) loadLanes<T>(w, in, m, p, v, in.vec[size_t(v)]);
  }
  if (in.sel) syncLoad(w, in.sel, in.target, m, p);
  return in.sel ? Step::Yield : Step::Next;
}
template <class T> Step store(Warp &w, const Instr &in, u32 m) {
  u8 *p[kLanes];
  Access acc = in.sel ? Access::AtomicWrite : Access::Write;
  if (!places(w, in, m, u32(sizeof(T)) * in.vecN, acc, p)) return Step::Abort;
  if (in.vecN == 1) {
    storeLanes<T>(w, in, m, p, 0, in.d);
  } else {
    for (int v = 0; v < in.vecN; ++v) storeLanes<T>(w, in, m, p, v, in.vec[size_t(v)]);
  }
  ++w.cta->cluster->progress;
  if (in.sel) syncStore(w, in.sel, in.target, m, p);
  return w.suspects.empty() ? Step::Next : hgStored(w, in);
}

// Parameters at a constant offset: the same value for every lane.
template <class T> Step loadParam(Warp &w, const Instr &in, u32 m) {
  u64 off = u64(in.addr.off);
  u32 bytes = u32(sizeof(T)) * in.vecN;
  Place at = resolve(w, in, Space::Param, off, bytes, bytes, Access::Read, 0);
  if (!at.p) return Step::Abort;
  u8 *p[kLanes];
  for (auto &x : p) x = at.p;
  if (in.vecN == 1) {
    loadLanes<T>(w, in, m, p, 0, in.d);
  } else {
    for (int v = 0; v < in.vecN; ++v)
      if (in.vec[size_t(v)].present()) loadLanes<T>(w, in, m, p, v, in.vec[size_t(v)]);
  }
  return Step::Next;
}

Step nothing(Warp &, const Instr &, u32) { return Step::Next; }

Step prefetchTensormap(Warp &w, const Instr &in, u32 m) {
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  FOR_LANES(l, m) {
    if (!resolve(w, in, in.addr.space, addr[l], 128, 64, Access::Read, int(l)).p)
      return Step::Abort;
  }
  return Step::Next;
}

Handler pickLoad(Ty t, bool param) {
  bool s = isSigned(t);
  switch (bits(t)) {
    case 8: return param ? (s ? loadParam<s8> : loadParam<u8>) : s ? load<s8> : load<u8>;
    case 16: return param ? (s ? loadParam<s16> : loadParam<u16>) : s ? load<s16> : load<u16>;
    case 32: return param ? (s ? loadParam<s32> : loadParam<u32>) : s ? load<s32> : load<u32>;
    case 64: return param ? loadParam<u64> : load<u64>;
    default: return nullptr;
  }
}
Handler pickStore(Ty t) {
  switch (bits(t)) {
    case 8: return store<u8>;
    case 16: return store<u16>;
    case 32: return store<u32>;
    case 64: return store<u64>;
    default: return nullptr;
  }
}

// sel: kind (interp.h), 0 for a plain access; target: scope
void decodeOrdering(Decoder &d, Instr &in) {
  if (d.has("volatile") || d.has("relaxed") || d.has("mmio")) in.sel = 1;
  if (d.has("acquire")) in.sel = 3;
  if (d.has("release")) in.sel = 5;
  in.target = d.has("volatile") ? 2 : scopeNamed(d);
}

}  // namespace

bool decodeMemory(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "prefetch" && d.has("tensormap")) {
    in.addr = d.address(d.arg(0), d.spaceOf());
    in.fn = prefetchTensormap;
    return true;
  }
  if (op == "prefetch" || op == "prefetchu" || op == "discard" || op == "applypriority") {
    d.address(d.arg(0), d.spaceOf());
    in.fn = nothing;
    return true;
  }
  bool isLoad = op == "ld" || op == "ldu";
  if (!isLoad && op != "st") return false;
  if (op == "st" && d.has("async")) return false;  // exec_copy.cpp
  Ty t = d.lastType();
  in.vecN = d.has("v2") ? 2 : d.has("v4") ? 4 : d.has("v8") ? 8 : 1;
  int valueAt = isLoad ? 0 : 1, addrAt = isLoad ? 1 : 0;
  in.addr = d.address(d.arg(addrAt), d.spaceOf());
  if (d.hasPrefix("L2::cache_hint")) d.src(2, Ty::B64);
  decodeOrdering(d, in);
  // Registers may be wider than the type; 8-bit values live in 16-bit (or wider) registers.
  Ty least = bits(t) == 8 ? Ty::B16 : t;
  auto value = [&](const Arg &a) {
    if (isLoad && a.kind == Arg::Sink && in.vecN > 1) return Operand{};
    if (a.kind == Arg::Reg) in.sel2 = u32(bits(d.regType(a)));
    else in.sel2 = u32(std::max(16, bits(t)));
    return isLoad ? d.dst(a, least, true) : d.src(a, least, true);
  };
  const Arg &v = d.arg(valueAt);
  if (in.vecN == 1) {
    if (v.kind == Arg::Vec) d.fail("vector operand without .v2/.v4");
    in.d = value(v);
  } else {
    if (v.kind != Arg::Vec || v.elems.size() != in.vecN) d.fail("vector operand of another width");
    u32 width = 0;
    for (const Arg &e : v.elems) {
      in.vec.push_back(value(e));
      if (e.kind == Arg::Reg) {
        if (width && width != in.sel2) d.fail("registers of different widths");
        width = in.sel2;
      }
    }
    if (width) in.sel2 = width;
  }
  bool param = isLoad && in.addr.space == Space::Param && !in.addr.base.present();
  in.fn = isLoad ? pickLoad(t, param) : pickStore(t);
  return true;
}

}  // namespace emu
