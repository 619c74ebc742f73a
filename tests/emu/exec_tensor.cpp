// exec_tensor.cpp - cp.async.bulk.tensor and cp.reduce.async.bulk.tensor, tile mode.
//
// A box is copied row by row (innermost dimension). In shared memory rows follow each other without
// gaps; a swizzle then exchanges 16-byte units: bits 4.. of the address are xor-ed with bits 7..
// (1, 2 or 3 bits for 32, 64 or 128 B). Elements outside the tensor read as zero and are not
// written; a load counts the whole box in bytes, wherever it lies.
#include "async_copy.h"

#include <cuda.h>

namespace emu {
namespace {

struct Box {
  TensorMap map;
  s32 start[5] = {0, 0, 0, 0, 0};
  u32 rowBytes = 0, rows = 1, bytes = 0;
};

Ty typeOfMap(u8 t) {
  switch (t) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return Ty::F16;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return Ty::BF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return Ty::F32;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return Ty::F64;
    case CU_TENSOR_MAP_DATA_TYPE_INT32: return Ty::S32;
    case CU_TENSOR_MAP_DATA_TYPE_INT64: return Ty::S64;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64: return Ty::U64;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16: return Ty::U16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return Ty::U8;
    default: return Ty::U32;
  }
}

// imm: rank; addr2: the map; vec: coordinates
bool readBox(Warp &w, const Instr &in, u64 mapAddr, int lane, Box *b) {
  Place p = resolve(w, in, in.addr2.space, mapAddr, 128, 64, Access::Read, lane);
  if (!p.p) return false;
  memcpy(&b->map, p.p, sizeof b->map);
  if (b->map.magic != kTensorMapMagic || b->map.check != tensorMapCheck(b->map)) {
    fatal(w, in, "tensormap", strf("there is no tensor map at 0x%llx (an address in parameter "
                                   "memory needs cvta.param first)", (unsigned long long)mapAddr),
          lane);
    return false;
  }
  if (b->map.rank != u32(in.imm)) {
    fatal(w, in, "tensormap", strf("the instruction is %lldd, the map %ud", (long long)in.imm,
                                   b->map.rank), lane);
    return false;
  }
  s64 firstByte = s64(w.src<s32>(in.vec[0])[lane]) * b->map.elementBytes;
  if (firstByte % 16) {  // an illegal instruction on hardware; documented nowhere
    fatal(w, in, "misaligned", strf("the box starts at byte %lld of its rows: not a multiple of 16",
                                    (long long)firstByte), lane);
    return false;
  }
  for (int i = 0; i < int(in.imm); ++i) {
    b->start[i] = w.src<s32>(in.vec[size_t(i)])[lane];
    if (i) b->rows *= b->map.box[i];
  }
  b->rowBytes = u32(b->map.box[0]) * b->map.elementBytes;
  b->bytes = b->rowBytes * b->rows;
  return true;
}

// Calls f(box offset, global address, bytes, bytes skipped at the row's start) for each row that
// lies at least partly inside the tensor; rows outside give bytes = 0.
template <class F> void forRows(const Box &b, F f) {
  const TensorMap &m = b.map;
  u32 idx[5] = {0, 0, 0, 0, 0};
  s64 es = m.elementBytes, x0 = b.start[0], n0 = s64(m.extent[0]) + 1;
  s64 first = std::max<s64>(0, -x0), last = std::min<s64>(m.box[0], n0 - x0);
  for (u32 r = 0; r < b.rows; ++r) {
    bool inside = last > first;
    u64 addr = m.address;
    for (int d = 1; d < m.rank; ++d) {
      s64 c = s64(b.start[d]) + s64(idx[d]);
      inside &= c >= 0 && c <= s64(m.extent[d]);
      addr += u64(c) * m.stride[d - 1];
    }
    u64 skip = inside ? u64(first * es) : 0, n = inside ? u64((last - first) * es) : 0;
    f(r * b.rowBytes, addr + u64((x0 + first) * es), n, skip);
    for (int d = 1; d < m.rank && ++idx[d] == m.box[d]; ++d) idx[d] = 0;
  }
}

u32 swizzled(u32 off, u8 mode) {
  const u32 mask = mode == 0 ? 0 : (1u << mode) - 1;
  return off ^ ((off >> 7 & mask) << 4);
}

// Copies between the dense box image and shared memory, 16 bytes at a time.
void boxToShared(u8 *smem, u32 off, const u8 *box, u32 bytes, u8 mode) {
  if (mode == 0) {
    memcpy(smem + off, box, bytes);
    return;
  }
  for (u32 i = 0; i < bytes; i += 16) memcpy(smem + swizzled(off + i, mode), box + i, 16);
}
void sharedToBox(u8 *box, const u8 *smem, u32 off, u32 bytes, u8 mode) {
  if (mode == 0) {
    memcpy(box, smem + off, bytes);
    return;
  }
  for (u32 i = 0; i < bytes; i += 16) memcpy(box + i, smem + swizzled(off + i, mode), 16);
}

void readGlobalBox(AsyncOp &op, const Box &b) {
  op.data.assign(b.bytes, 0);
  if (b.map.fillNan)
    for (u32 i = 0; i + b.map.elementBytes <= b.bytes; i += b.map.elementBytes)
      memset(op.data.data() + i, 0xff, b.map.elementBytes);
  forRows(b, [&](u32 at, u64 addr, u64 n, u64 skip) {
    if (!n || op.issuer->grid->aborted) return;
    if (const u8 *p = globalRange(op, addr, n, false)) memcpy(op.data.data() + at + skip, p, n);
  });
}

bool checkShared(Warp &w, const Instr &in, u64 addr, const Box &b, int lane, Cta **cta, u32 *off,
                 bool clusterOk) {
  *cta = resolveShared(w, in, addr, b.bytes, 128, clusterOk, off, lane);
  return *cta != nullptr;
}

// addr: destination, addr2: map, a: multicast mask, b: mbarrier base (+ target as offset)
Step tensorLoad(Warp &w, const Instr &in, u32 m) {
  u64 dst[kLanes], map[kLanes], mbar[kLanes];
  laneAddresses(w, in.addr, dst);
  laneAddresses(w, in.addr2, map);
  Address mb{in.b, s64(s32(in.target)), Space::Shared, in.sel2 != 0};
  laneAddresses(w, mb, mbar);
  FOR_LANES(l, m) {
    Box b;
    Cta *cta;
    u32 off;
    if (!readBox(w, in, map[l], int(l), &b)) return Step::Abort;
    if (!checkShared(w, in, dst[l], b, int(l), &cta, &off, true)) return Step::Abort;
    std::vector<Delivery> to;
    u32 mask = in.a.present() ? w.src<u16>(in.a)[l] : 0;
    if (!deliveries(w, in, dst[l], mbar[l], mask, in.a.present(), b.bytes, int(l), &to, &off))
      return Step::Abort;
    for (const Delivery &d : to) {
      if (d.cta != w.cta) hzRemoteTouch(w, in, *d.cta);
      hzAsyncWrite(w, in, int(l), *d.cta, off, b.bytes, d.mbar->actor, u32(d.phase) + 1);
    }
    auto op = std::make_shared<AsyncOp>();
    op->issuer = &w;
    op->instr = &in;
    op->lane = int(l);
    if (hgWantsReads(w))
      forRows(b, [&](u32, u64 addr, u64 n, u64) { if (n) globalReadIssued(*op, addr, n); });
    op->read = [b](AsyncOp &o) { readGlobalBox(o, b); };
    op->write = [b, to, off](AsyncOp &o) {
      if (o.issuer->grid->aborted) return;
      for (const Delivery &d : to)
        boxToShared(d.cta->smem.data(), off, o.data.data(), b.bytes, b.map.swizzle);
      signalDeliveries(o, to, b.bytes);
    };
    asyncIssue(w, op, false);
  }
  return Step::Next;
}

// Only loads may begin in front of the tensor (CUDA Programming Guide, Tensor Memory Access); a box
// that is stored or added there is an illegal instruction on an H200.
bool startsInside(Warp &w, const Instr &in, const Box &b, int lane) {
  for (int d = 0; d < b.map.rank; ++d) {
    if (b.start[d] >= 0) continue;
    fatal(w, in, "out-of-bounds",
          strf("a stored box begins at coordinate %d of axis %d: only loads may begin in front of "
               "the tensor", b.start[d], d), lane);
    return false;
  }
  return true;
}

// addr: source, addr2: map, sel: Reduce
Step tensorStore(Warp &w, const Instr &in, u32 m) {
  u64 src[kLanes], map[kLanes];
  laneAddresses(w, in.addr, src);
  laneAddresses(w, in.addr2, map);
  bulkActorOf(w);
  Reduce red = Reduce(in.sel);
  FOR_LANES(l, m) {
    Box b;
    Cta *cta;
    u32 off;
    if (!readBox(w, in, map[l], int(l), &b)) return Step::Abort;
    if (!startsInside(w, in, b, int(l))) return Step::Abort;
    if (!checkShared(w, in, src[l], b, int(l), &cta, &off, false)) return Step::Abort;
    Warp *self = &w;
    hzAsyncRead(&self, 1, in, int(l), *cta, off, b.bytes, w.bulkActor, w.bulkCommitted + 1);
    auto op = std::make_shared<AsyncOp>();
    op->issuer = &w;
    op->instr = &in;
    op->lane = int(l);
    op->read = [b, cta, off](AsyncOp &o) {
      o.data.resize(b.bytes);
      sharedToBox(o.data.data(), cta->smem.data(), off, b.bytes, b.map.swizzle);
    };
    forRows(b, [&](u32, u64 addr, u64 n, u64) {
      if (n) globalWriteIssued(*op, addr, n, red != Reduce::None);
    });
    op->write = [b, red](AsyncOp &o) {
      forRows(b, [&](u32 at, u64 addr, u64 n, u64 skip) {
        if (!n || o.issuer->grid->aborted) return;
        if (red != Reduce::None && !globalRange(o, addr, n, false)) return;
        u8 *p = globalRange(o, addr, n, true);
        if (!p) return;
        if (red == Reduce::None) memcpy(p, o.data.data() + at + skip, n);
        else reduceBytes(p, o.data.data() + at + skip, n, red, typeOfMap(b.map.type));
      });
    };
    asyncIssue(w, op, true);
  }
  return Step::Next;
}

Step tensorPrefetch(Warp &w, const Instr &in, u32 m) {
  u64 map[kLanes];
  laneAddresses(w, in.addr2, map);
  FOR_LANES(l, m) {
    Box b;
    if (!readBox(w, in, map[l], int(l), &b)) return Step::Abort;
  }
  return Step::Next;
}

// [map, {c0, c1, ..}]
void decodeMapOperand(Decoder &d, Instr &in, const Arg &a) {
  if (a.kind != Arg::Mem || a.elems.size() != 2 || a.elems[1].kind != Arg::Vec)
    d.fail("expected [map, {coordinates}]");
  in.addr2 = d.address(a, Space::Generic);
  for (int r = 1; r <= 5; ++r)
    if (d.has(strf("%dd", r))) in.imm = r;
  if (in.imm == 0 || a.elems[1].elems.size() != size_t(in.imm))
    d.fail("the number of coordinates does not fit the rank");
  for (const Arg &c : a.elems[1].elems) in.vec.push_back(d.src(c, Ty::B32));
}

}  // namespace

bool decodeTensor(Decoder &d, Instr &in) {
  if (d.op() != "cp" || !d.has("tensor")) return false;
  if (d.hasPrefix("im2col") || d.hasPrefix("tile::") || d.hasPrefix("cta_group")) d.unknown();
  in.flags |= kNotable;
  bool hint = d.has("L2::cache_hint");
  if (hint) d.src(d.count() - 1, Ty::B64);
  if (d.has("prefetch")) {
    decodeMapOperand(d, in, d.arg(0));
    in.fn = tensorPrefetch;
  } else if (d.has("bulk_group")) {
    decodeMapOperand(d, in, d.arg(0));
    in.addr = d.address(d.arg(1), Space::Shared);
    if (d.has("reduce")) {
      Reduce r;
      if (!reduceNamed(d, &r)) d.unknown();
      in.sel = u32(r);
      in.floatSum = r == Reduce::Add;
    }
    in.fn = tensorStore;
  } else {
    in.addr = d.address(d.arg(0), Space::SharedCluster);
    decodeMapOperand(d, in, d.arg(1));
    Address mb = d.address(d.arg(2), Space::SharedCluster);
    in.b = mb.base;
    in.target = u32(mb.off);
    in.sel2 = mb.wide;
    if (d.has("multicast::cluster")) in.a = d.src(3, Ty::B16);
    in.fn = tensorLoad;
  }
  return true;
}

}  // namespace emu
