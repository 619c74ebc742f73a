// exec_wgmma.cpp - wgmma: issue, commit, wait, and execution of queued multiplies.
//
// The four warps of a warpgroup run at their own pace; a multiply is complete as an issue when all
// four have issued it, and is executed as one block some time between then and the wait that needs
// it. Operands - shared memory and registers - are read at that moment, accumulators are written.
#include <map>

#include "hazards_wgmma.h"
#include "scheduler.h"
#include "wgmma_math.h"

namespace emu {
namespace {

// What an instruction says, beside its registers. in.imm points to one of these.
struct Shape {
  MmaIn a, b;
  int n;
  bool f16Acc, aRegs, negA, negB, transA, transB, scaleDIsPred, scaleDNegate;
};
const Shape &shapeOf(const Instr &in) { return *reinterpret_cast<const Shape *>(in.imm); }

// ---- shared-memory matrix descriptors ---------------------------------------------------------
struct Descriptor {
  u32 start, lbo, sbo, mode;  // bytes; mode 0 none, 1 = 128 B, 2 = 64 B, 3 = 32 B
  explicit Descriptor(u64 d)
      : start(u32(d & 0x3fff) << 4), lbo(u32(d >> 16 & 0x3fff) << 4),
        sbo(u32(d >> 32 & 0x3fff) << 4), mode(u32(d >> 62)) {}
  u32 span() const { return mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32; }
  u32 swizzle(u32 addr) const {
    u32 mask = mode == 0 ? 0 : span() / 16 - 1;
    return addr ^ ((addr >> 7 & mask) << 4);
  }
  // 16-byte unit `chunk` (0, 1) of row r, K inside.
  u32 kMajor(u32 r, u32 chunk) const {
    u32 along = mode == 0 ? chunk * lbo : chunk * 16;
    return swizzle(start + (r / 8) * sbo + (r % 8) * span() + along);
  }
  // Unit of 8 elements along M or N, for one k.
  u32 mnMajor(u32 unit, u32 k) const {
    u32 per = span() / 16;
    if (mode == 0) return start + unit * sbo + (k / 8) * lbo + (k % 8) * 16;
    return swizzle(start + (unit / per) * lbo + (unit % per) * 16 + (k / 8) * sbo +
                   (k % 8) * span());
  }
};

// Calls f(destination offset in the raw tile, shared offset) for each 16-byte unit.
template <class F> bool forUnits(const Descriptor &d, bool trans, u32 rows, u32 firstRow, u32 tall,
                                 F f) {
  if (!trans) {
    for (u32 r = 0; r < rows; ++r)
      for (u32 c = 0; c < 2; ++c)
        if (!f(r * 32 + c * 16, d.kMajor(firstRow + r, c))) return false;
    return true;
  }
  for (u32 k = 0; k < 16; ++k)
    for (u32 u = firstRow / 8; u < (firstRow + rows) / 8; ++u)
      if (!f(k * tall * 2 + u * 16, d.mnMajor(u, k))) return false;
  return true;
}

bool unitInside(const Cta &cta, u32 addr) {
  return addr >= kSharedBase && addr - kSharedBase + 16 <= cta.smem.size();
}

// rows of the operand -> raw bytes; out-of-bounds was reported at issue and reads as zero here
void gather(const Cta &cta, u64 desc, bool trans, u32 rows, u32 firstRow, u32 tall, u8 *raw) {
  Descriptor d(desc);
  forUnits(d, trans, rows, firstRow, tall, [&](u32 at, u32 addr) {
    if (unitInside(cta, addr)) memcpy(raw + at, cta.smem.data() + addr - kSharedBase, 16);
    else memset(raw + at, 0, 16);
    return true;
  });
}

// ---- execution --------------------------------------------------------------------------------
void executeWarp(Warp &w, const WgmmaOp &op, const Shape &s, const PanelB &b) {
  static PanelA a;
  alignas(64) u8 raw[64 * 32];
  u32 row = (w.id % 4) * 16;
  bool neg = s.negA != s.negB;
  const Instr &in = *op.instr;
  if (s.aRegs) {
    const u32 *regs[4];
    for (int i = 0; i < 4; ++i) regs[i] = w.src<u32>(in.vec2[size_t(i)]);
    panelAFromRegs(&a, regs, s.a, neg);
  } else if (s.transA) {
    gather(*w.cta, op.descA, true, 16, row, 64, raw);
    panelAFromMnMajor(&a, raw, int(row), s.a, neg);
  } else {
    gather(*w.cta, op.descA, false, 16, row, 64, raw);
    panelAFromKMajor(&a, raw, s.a, neg);
  }
  float *d[kMaxN / 2];
  if (!s.f16Acc) {
    for (size_t i = 0; i < in.vec.size(); ++i) d[i] = w.dst<float>(in.vec[i]);
    multiply(d, a, b, s.n, s.a, op.scaleD);
    return;
  }
  alignas(64) static float acc[kMaxN / 2][kLanes];
  for (int i = 0; i < s.n / 2; ++i) d[i] = acc[i];
  halfAccumulators(w, in, d, true);
  multiply(d, a, b, s.n, s.a, op.scaleD);
  halfAccumulators(w, in, d, false);
}

void execute(Warpgroup &wg, const WgmmaOp &op) {
  static PanelB b;
  alignas(64) static u8 raw[kMaxN * 32];
  const Shape &s = shapeOf(*op.instr);
  gather(*wg.warps[0]->cta, op.descB, s.transB, u32(s.n), 0, u32(s.n), raw);
  if (s.transB) panelFromMnMajor(&b, raw, s.n, s.b);
  else panelFromKMajor(&b, raw, s.n, s.b);
  for (Warp *w : wg.warps) executeWarp(*w, op, s, b);
}

}  // namespace

void completeWgmma(Warpgroup &wg, u64 upToSerial) {
  while (wg.headSerial < upToSerial && !wg.queue.empty() && wg.queue.front().issued == 15) {
    execute(wg, wg.queue.front());
    wg.queue.pop_front();
    ++wg.headSerial;
    ++wg.warps[0]->cta->cluster->progress;
  }
}

void wgmmaTick(Cluster &c) {
  if (asyncMode() != 2) return;
  for (auto &cta : c.ctas)
    for (Warpgroup &wg : cta->warpgroups)
      if (!wg.queue.empty() && rng().chance(1, 8))
        completeWgmma(wg, wg.headSerial + 1 + rng().below(4));
}

static u64 waitTarget(const Warp &w, u32 keep) {
  size_t n = w.wgGroupEnd.size();
  return n > keep ? w.wgGroupEnd[n - keep - 1] : 0;
}
static bool allIssued(const Warpgroup &wg, u64 target) {
  for (u64 s = wg.headSerial; s < target; ++s)
    if (s - wg.headSerial >= wg.queue.size() || wg.queue[s - wg.headSerial].issued != 15)
      return false;
  return true;
}

bool wgmmaWaitReady(Warp &w, const Wait &wait) {
  return allIssued(w.cta->warpgroups[w.id / 4], waitTarget(w, wait.id));
}

namespace {

Step fence(Warp &w, const Instr &, u32) {
  std::fill(w.wgTouched.begin(), w.wgTouched.end(), u8(0));
  return Step::Next;
}
Step commit(Warp &w, const Instr &, u32) {
  w.wgGroupEnd.push_back(w.wgIssued);
  return Step::Next;
}
Step waitGroup(Warp &w, const Instr &in, u32) {
  Warpgroup &wg = w.cta->warpgroups[w.id / 4];
  u32 keep = u32(in.imm), n = u32(w.wgGroupEnd.size());
  u64 target = waitTarget(w, keep);
  if (!allIssued(wg, target)) return block(w, WaitKind::WgmmaGroup, keep, 0);
  completeWgmma(wg, target);
  if (n > keep) w.wgGroupsDone = std::max(w.wgGroupsDone, n - keep);
  if (wg.actor >= 0) {
    hzLearn(w, w.live, [&](VClock &c) {
      Known &k = c.at(wg.actor);
      k.executed = k.all = std::max(k.all, w.wgGroupsDone);
      if (w.wgGroupsDone && w.wgGroupsDone <= wg.executed.size())
        c.joinExecuted(wg.executed[w.wgGroupsDone - 1]);  // the others have got that far, too
    });
  }
  return Step::Next;
}

bool sameOnAllLanes(const Warp &w, const Operand &o, u64 *v) {
  const u64 *p = w.src<u64>(o);
  *v = p[0];
  for (int l = 1; l < kLanes; ++l)
    if (p[l] != p[0]) return false;
  return true;
}

// Checks one operand's units; the shadow is told that wgmma group `epoch` reads them.
Step operandAccess(Warp &w, const Instr &in, WgmmaOp &op, u64 desc, bool trans, u32 rows,
                   u32 firstRow, u32 tall, bool first, std::vector<u64> *seen) {
  Descriptor d(desc);
  Cta &cta = *w.cta;
  if ((desc >> 49 & 7) != 0)
    return fatal(w, in, "wgmma-descriptor", "a base offset other than 0 is not modelled");
  u32 bad = 0;
  Scan scan{w.cta->warpgroups[w.id / 4].actor, op.group + 1, &in, seen};
  bool ok = forUnits(d, trans, rows, firstRow, tall, [&](u32, u32 addr) {
    if (!unitInside(cta, addr)) {
      bad = addr;
      return false;
    }
    if (first) hzScan(cta, addr - kSharedBase, &scan);
    return true;
  });
  if (!ok)
    return fatal(w, in, "out-of-bounds",
                 strf("the descriptor 0x%llx leads to shared-memory offset %lld of %zu",
                      (unsigned long long)desc, (long long)bad - kSharedBase, cta.smem.size()));
  return hzCheckSeen(w, in, *seen);
}

Step issue(Warp &w, const Instr &in, u32) {
  if (w.live != kAllLanes)
    return fatal(w, in, "divergence", "lanes of the warp have exited");
  Warpgroup &wg = w.cta->warpgroups[w.id / 4];
  if (!wg.warps[3]) return fatal(w, in, "divergence", "the CTA has no four warps here");
  const Shape &s = shapeOf(in);
  u64 descA = 0, descB = 0;
  if ((!s.aRegs && !sameOnAllLanes(w, in.a, &descA)) || !sameOnAllLanes(w, in.b, &descB))
    return fatal(w, in, "divergence", "the descriptor differs between lanes");
  bool scaleD = true;
  if (in.c.present()) {
    u32 p = w.pred(in.c) ^ (s.scaleDNegate ? ~0u : 0);
    if (p != 0 && p != kAllLanes)
      return fatal(w, in, "divergence", "scale-d differs between lanes");
    scaleD = p != 0;
  }
  u32 group = u32(w.wgGroupEnd.size());
  const u64 shape = u64(s.n) << 8 | u64(mmaK(s.a)) << 1 | s.f16Acc;
  Step st = wgmmaRegisterChecks(w, in, scaleD, group, shape);
  if (st != Step::Next) return st;

  u64 serial = w.wgIssued++;
  if (serial - wg.headSerial >= wg.queue.size()) {
    WgmmaOp op;
    op.instr = &in;
    op.descA = descA;
    op.descB = descB;
    op.scaleD = scaleD;
    op.group = group;
    wg.queue.push_back(std::move(op));
  }
  WgmmaOp &op = wg.queue[serial - wg.headSerial];
  if (op.instr != &in || op.descA != descA || op.descB != descB || op.scaleD != scaleD)
    return fatal(w, in, "divergence",
                 strf("the warps of the warpgroup do not issue the same wgmma (another warp: %s)",
                      w.prog->where(*op.instr).c_str()));
  if (wg.executed.size() <= group) wg.executed.resize(group + 1);
  hzReleaseRelaxed(w, &wg.executed[group]);
  if (group >= 64) wg.executed[group - 64].clear();  // nobody lags so far behind
  bool first = op.issued == 0;
  op.issued |= 1u << (w.id % 4);
  st = operandAccess(w, in, op, descB, s.transB, u32(s.n), 0, u32(s.n), first, &op.seen);
  if (st != Step::Next) return st;
  if (!s.aRegs) {
    std::vector<u64> seenA;
    st = operandAccess(w, in, op, descA, s.transA, 16, (w.id % 4) * 16, 64, true, &seenA);
    if (st != Step::Next) return st;
  }
  if (op.issued == 15 && (asyncMode() == 0 || (asyncMode() == 2 && rng().chance(1, 4))))
    completeWgmma(wg, serial + 1);
  return Step::Next;
}

// ---- decoding ---------------------------------------------------------------------------------
bool inputNamed(Ty t, MmaIn *out) {
  static const std::map<Ty, MmaIn> names = {{Ty::BF16, MmaIn::Bf16}, {Ty::F16, MmaIn::F16},
                                            {Ty::TF32, MmaIn::Tf32}, {Ty::E4M3, MmaIn::E4m3},
                                            {Ty::E5M2, MmaIn::E5m2}};
  auto it = names.find(t);
  if (it == names.end()) return false;
  *out = it->second;
  return true;
}

Shape decodeShape(Decoder &d) {
  Shape s = {};
  int k = 0;
  for (const std::string &p : d.s().parts)
    if (p.rfind("m64n", 0) == 0) sscanf(p.c_str(), "m64n%dk%d", &s.n, &k);
  Ty acc = d.typeAt(2);
  if (!inputNamed(d.typeAt(1), &s.a) || !inputNamed(d.typeAt(0), &s.b)) d.unknown();
  if (s.n < 8 || s.n > 256 || s.n % 8 || k != mmaK(s.a)) d.fail("no such shape");
  bool sameKind = s.a == s.b || (s.a >= MmaIn::E4m3 && s.b >= MmaIn::E4m3);
  if (!sameKind) d.fail("types of A and B do not go together");
  s.f16Acc = acc == Ty::F16;
  if (acc != Ty::F32 && (!s.f16Acc || s.a == MmaIn::Bf16 || s.a == MmaIn::Tf32)) d.unknown();
  return s;
}

s64 sign(Decoder &d, int i) {
  s64 v = s64(d.constantValue(i));
  if (v != 1 && v != -1) d.fail("imm-scale must be 1 or -1");
  return v;
}

void decodeMma(Decoder &d, Instr &in) {
  Shape s = decodeShape(d);
  const Arg &acc = d.arg(0);
  size_t regs = size_t(s.f16Acc ? s.n / 4 : s.n / 2);
  if (acc.kind != Arg::Vec || acc.elems.size() != regs)
    d.fail(strf("the accumulator must have %zu registers", regs));
  for (const Arg &e : acc.elems) {
    in.vec.push_back(d.dst(e, s.f16Acc ? Ty::B32 : Ty::F32));
    d.wgmmaReg(in.vec.back());
  }
  s.aRegs = d.arg(1).kind == Arg::Vec;
  if (s.aRegs) {
    if (d.arg(1).elems.size() != 4) d.fail("A in registers has four of them");
    for (const Arg &e : d.arg(1).elems) {
      in.vec2.push_back(d.src(e, Ty::B32));
      d.wgmmaReg(in.vec2.back());
    }
  } else {
    in.a = d.src(1, Ty::B64);
  }
  in.b = d.src(2, Ty::B64);
  if (d.count() < 6) d.fail("too few operands");
  const Arg &sd = d.arg(3);
  in.c = d.pred(sd, false);
  s.scaleDNegate = sd.kind == Arg::Reg && sd.negate;
  s.negA = sign(d, 4) < 0;
  s.negB = sign(d, 5) < 0;
  bool hasTrans = s.a == MmaIn::Bf16 || s.a == MmaIn::F16;
  int next = 6;
  if (hasTrans && !s.aRegs && d.count() > next) s.transA = d.constantValue(next++) != 0;
  if (hasTrans && d.count() > next) s.transB = d.constantValue(next++) != 0;
  if (d.count() > next) d.fail("too many operands");
  // The accumulators are read, too, unless scale-d is the constant 0; checked at run time.
  if (sd.kind == Arg::Reg || sd.ival)
    for (const Operand &o : in.vec) d.addUse(o);
  static std::vector<std::unique_ptr<Shape>> shapes;
  shapes.push_back(std::make_unique<Shape>(s));
  in.imm = s64(shapes.back().get());
  in.flags |= kOwnUninitCheck;
  in.fn = issue;
}

}  // namespace

bool decodeWgmma(Decoder &d, Instr &in) {
  if (d.op() != "wgmma") return false;
  in.flags |= kCollective | kNotable;
  const std::string &what = d.s().parts[1];
  if (!d.has("aligned")) d.fail(".sync.aligned is missing");
  if (what == "fence") {
    in.fn = fence;
  } else if (what == "commit_group") {
    in.fn = commit;
  } else if (what == "wait_group") {
    in.imm = s64(d.constantValue(0));
    in.fn = waitGroup;
  } else if (what == "mma_async" && !d.has("sp")) {
    decodeMma(d, in);
  } else {
    d.unknown();
  }
  return true;
}

}  // namespace emu
