// decode.cpp - statements to instructions: operands, register file layout, branch targets, and two
// static analyses: which registers wgmma uses, and which reads may see an unwritten register.
#include "decode.h"

#include <algorithm>

namespace emu {

Decoder::Decoder(std::shared_ptr<Module> m, const KernelAst *k)
    : prog_(std::make_shared<Program>()), mod_(std::move(m)), ast_(k) {
  prog_->module = mod_;
  prog_->ast = k;
  prog_->regOffset.assign(k->regs.size(), ~0u);
  prog_->wgmmaSlot.assign(k->regs.size(), -1);
}

void Decoder::fail(const std::string &what) const {
  throw PtxError(mod_->where(stmt_->loc) + ": " + stmt_->op + ": " + what);
}
void Decoder::unknown() const {
  throw PtxError(mod_->where(stmt_->loc) + ": instruction not known to the emulator: " + stmt_->op);
}

bool Decoder::has(std::string_view part) const {
  for (size_t i = 1; i < stmt_->parts.size(); ++i)
    if (stmt_->parts[i] == part) return true;
  return false;
}
bool Decoder::hasPrefix(std::string_view part) const {
  for (size_t i = 1; i < stmt_->parts.size(); ++i)
    if (stmt_->parts[i].compare(0, part.size(), part) == 0) return true;
  return false;
}
const Arg &Decoder::arg(int i) const {
  if (i < 0 || i >= count()) fail("too few operands");
  return stmt_->args[size_t(i)];
}
Ty Decoder::typeAt(int fromEnd) const {
  for (size_t i = stmt_->parts.size(); i-- > 1;)
    if (Ty t = typeFromName(stmt_->parts[i]); t != Ty::None && fromEnd-- == 0) return t;
  return Ty::None;
}
Ty Decoder::lastType() const { return typeAt(0); }

// ---- registers --------------------------------------------------------------------------------
u32 Decoder::regOffset(int reg) {
  u32 &off = prog_->regOffset[size_t(reg)];
  if (off == ~0u) {
    Ty t = ast_->regs[size_t(reg)].type;
    if (t == Ty::Pred) {
      off = prog_->numPreds++;
    } else {
      off = prog_->regBytes;
      prog_->regBytes += u32(std::max(bits(t), 16)) / 8 * kLanes;
    }
  }
  return off;
}

Operand Decoder::pred(const Arg &a, bool isDst) {
  Operand o;
  o.type = Ty::Pred;
  if (a.kind == Arg::Sink) {
    o.off = prog_->numPreds++;
    o.reg = 1 << 30;  // present, but nobody's
    return o;
  }
  if (a.kind == Arg::Int && !isDst) return constant(a.ival ? ~0ull : 0, Ty::B32);
  if (a.kind != Arg::Reg || regType(a) != Ty::Pred) fail("expected a predicate register");
  o.reg = a.reg;
  o.off = regOffset(a.reg);
  (isDst ? defs_ : uses_).push_back(a.reg);
  return o;
}

Operand Decoder::dst(const Arg &a, Ty t, bool widerOk) {
  Operand o;
  o.type = t;
  if (a.kind == Arg::Sink) {
    o.off = prog_->regBytes;
    prog_->regBytes += u32(std::max(bits(t), 16)) / 8 * kLanes;
    o.reg = 1 << 30;
    return o;
  }
  if (a.kind != Arg::Reg) fail("expected a destination register");
  int have = bits(regType(a)), want = bits(t);
  if (have != want && !(widerOk && have > want))
    fail(strf("register %s has %d bits, the instruction wants %d",
              ast_->regs[size_t(a.reg)].name.c_str(), have, want));
  o.reg = a.reg;
  o.off = regOffset(a.reg);
  defs_.push_back(a.reg);
  return o;
}

Operand Decoder::constant(u64 raw, Ty t) {
  int bytes = std::max(bits(t), 8) / 8;
  prog_->pool.push_back(std::make_unique<LaneConstant>());
  u8 *p = prog_->pool.back()->bytes;
  for (int l = 0; l < kLanes; ++l) {
    memset(p + l * bytes, 0, size_t(bytes));
    memcpy(p + l * bytes, &raw, size_t(std::min(bytes, 8)));
  }
  Operand o;
  o.imm = p;
  o.type = t;
  return o;
}

u64 Decoder::constantValue(int i) {
  if (arg(i).kind != Arg::Int) fail(strf("operand %d must be an integer constant", i + 1));
  return u64(arg(i).ival);
}

static u64 constantBits(const Arg &a, Ty t) {
  double f = a.kind == Arg::Float ? a.fval : double(a.ival);
  if (a.kind == Arg::F32Bits) {
    if (t != Ty::F64) return u64(a.ival);
    float x;
    memcpy(&x, &a.ival, 4);
    f = x;
  } else if (a.kind == Arg::F64Bits) {
    if (t == Ty::F64 || bits(t) == 64) return u64(a.ival);
    memcpy(&f, &a.ival, 8);
  } else if (a.kind == Arg::Int && !(t == Ty::F32 || t == Ty::F64)) {
    return u64(a.ival);
  }
  u64 raw = 0;
  if (t == Ty::F64 || (bits(t) == 64 && a.kind == Arg::Float)) {
    memcpy(&raw, &f, 8);
  } else {
    float x = float(f);
    memcpy(&raw, &x, 4);
  }
  return raw;
}

Operand Decoder::src(const Arg &a, Ty t, bool widerOk) {
  if (a.kind == Arg::Int || a.kind == Arg::Float || a.kind == Arg::F32Bits ||
      a.kind == Arg::F64Bits)
    return constant(constantBits(a, t), t);
  if (a.kind == Arg::Special) return special(a.name, t);
  if (a.kind != Arg::Reg) fail("expected a register or a constant");
  int have = bits(regType(a)), want = bits(t);
  if (have != want && !(widerOk && have > want))
    fail(strf("register %s has %d bits, the instruction wants %d",
              ast_->regs[size_t(a.reg)].name.c_str(), have, want));
  Operand o;
  o.type = t;
  o.reg = a.reg;
  o.off = regOffset(a.reg);
  uses_.push_back(a.reg);
  return o;
}

Operand Decoder::special(const std::string &name, Ty t) {
  static const char *known[] = {
      "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y",
      "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid",
      "%smid", "%nsmid", "%gridid", "%lanemask_eq", "%lanemask_le", "%lanemask_lt",
      "%lanemask_ge", "%lanemask_gt", "%clusterid.x", "%clusterid.y", "%clusterid.z",
      "%nclusterid.x", "%nclusterid.y", "%nclusterid.z", "%cluster_ctaid.x",
      "%cluster_ctaid.y", "%cluster_ctaid.z", "%cluster_nctaid.x", "%cluster_nctaid.y",
      "%cluster_nctaid.z", "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster",
      "%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size",
      "@dynamic", "@static"};  // the last two: where shared memory's two parts start
  if (std::find(std::begin(known), std::end(known), name) == std::end(known))
    fail("unknown name '" + name + "'");
  std::string key = name + (bits(t) == 64 ? "/64" : bits(t) == 16 ? "/16" : "/32");
  auto it = specials_.find(key);
  if (it != specials_.end()) return it->second;
  Operand o;
  o.type = t;
  o.reg = 1 << 30;
  o.off = prog_->regBytes;
  prog_->regBytes += u32(bits(t)) / 8 * kLanes;
  prog_->specials.push_back({name, o.off, t});
  return specials_[key] = o;
}

Space Decoder::spaceOf() const {
  for (size_t i = 1; i < stmt_->parts.size(); ++i) {
    const std::string &p = stmt_->parts[i];
    if (p == "global") return Space::Global;
    if (p == "shared" || p == "shared::cta") return Space::Shared;
    if (p == "shared::cluster") return Space::SharedCluster;
    if (p == "param" || p == "param::entry") return Space::Param;
    if (p == "const") return Space::Const;
    if (p == "local") return Space::Local;
  }
  return Space::Generic;
}

Address Decoder::address(const Arg &a, Space space) {
  if (a.kind != Arg::Mem) fail("expected an address in [ ]");
  Address out;
  out.space = space;
  out.off = a.ival;
  if (a.var) {
    Variable *v = a.var;
    bool sharedVar = v->space == Space::Shared, wantShared = space == Space::Shared ||
                                                             space == Space::SharedCluster;
    if (space != Space::Generic && v->space != space && !(sharedVar && wantShared))
      fail("variable " + v->name + " lies in another state space");
    if (sharedVar || v->space == Space::Param || v->space == Space::Local) {
      if (sharedVar) {  // the address is fixed at launch: extern arrays follow static ones
        out.base = special(v->isExtern ? "@dynamic" : "@static", Ty::B32);
        out.wide = false;
        out.off += s64(v->isExtern ? 0 : v->address);
        if (space == Space::Generic) out.space = Space::Shared;
      } else {
        out.off += s64(v->address);
        out.space = v->space;
      }
    } else {
      out.off += s64(v->address);  // filled in when the module was loaded
    }
    return out;
  }
  if (!a.elems.empty() && a.elems[0].kind == Arg::Reg) {
    const Arg &r = a.elems[0];
    int have = bits(regType(r));
    if (have != 32 && have != 64) fail("an address register has 32 or 64 bits");
    out.base = src(r, have == 64 ? Ty::B64 : Ty::B32);
    out.wide = have == 64;
  }
  return out;
}

void Decoder::wgmmaReg(const Operand &o) {
  if (o.reg < 0 || o.reg >= int(prog_->wgmmaSlot.size())) return;
  int &slot = prog_->wgmmaSlot[size_t(o.reg)];
  if (slot >= 0) return;
  slot = int(prog_->wgmmaRegs.size());
  prog_->wgmmaRegs.push_back(ast_->regs[size_t(o.reg)].name);
}

// ---- the whole kernel -------------------------------------------------------------------------
void Decoder::decodeOne(size_t i) {
  stmt_ = &ast_->stmts[i];
  defs_.clear();
  uses_.clear();
  Instr in;
  in.loc = stmt_->loc;
  in.stmt = stmt_;
  if (stmt_->guard >= 0) {
    in.guard = int(regOffset(stmt_->guard));
    in.guardNegate = stmt_->guardNegate;
    uses_.push_back(stmt_->guard);
  }
  if (has("aligned")) in.flags |= kCollective;
  using Family = bool (*)(Decoder &, Instr &);
  static const Family families[] = {
      decodeMove, decodeInt, decodeFloat, decodeHalf, decodeCompare, decodeConvert, decodeMemory,
      decodeAtomic, decodeControl, decodeWarpOps, decodeMatrix, decodeBarriers, decodeMbarrier,
      decodeCopies, decodeTensor, decodeWgmma};
  bool done = false;
  for (Family f : families)
    if ((done = f(*this, in))) break;
  if (!done || !in.fn) unknown();
  allDefs_[i] = defs_;
  allUses_[i] = uses_;
  prog_->code[i] = std::move(in);
}

Step exitHandler(Warp &, const Instr &, u32);

std::shared_ptr<Program> Decoder::run() {
  size_t n = ast_->stmts.size();
  prog_->code.resize(n + 1);
  allDefs_.resize(n + 1);
  allUses_.resize(n + 1);
  for (size_t i = 0; i < n; ++i) decodeOne(i);
  prog_->code[n].fn = exitHandler;  // falling off the end is an exit
  prog_->code[n].loc = n ? ast_->stmts[n - 1].loc : ast_->loc;
  prog_->code[n].stmt = n ? &ast_->stmts[n - 1] : nullptr;
  finishWgmma();
  findUninitialised();
  u32 threads = ast_->maxntid[0] * std::max(1u, ast_->maxntid[1]) * std::max(1u, ast_->maxntid[2]);
  if (ast_->maxnreg) {
    prog_->regsPerThread = ast_->maxnreg;
  } else if (threads) {
    u32 perSm = wholeWarpgroups(threads) * std::max(1u, ast_->minnctapersm);
    prog_->regsPerThread = std::min(256u, kRegistersPerSm / perSm / 8 * 8);
  }
  for (const Stmt &s : ast_->stmts) prog_->regsAreExact |= s.parts[0] == "setmaxnreg";
  return prog_;
}

// Marks every other instruction that names a register of some wgmma.
void Decoder::finishWgmma() {
  prog_->usesWgmma = !prog_->wgmmaRegs.empty();
  if (!prog_->usesWgmma) return;
  for (size_t i = 0; i + 1 < prog_->code.size(); ++i) {
    Instr &in = prog_->code[i];
    if (in.stmt->parts[0] == "wgmma") continue;
    for (auto *list : {&allDefs_[i], &allUses_[i]})
      for (int r : *list)
        if (r < int(prog_->wgmmaSlot.size()) && prog_->wgmmaSlot[size_t(r)] >= 0)
          in.touched.push_back(u16(prog_->wgmmaSlot[size_t(r)]));
    std::sort(in.touched.begin(), in.touched.end());
    in.touched.erase(std::unique(in.touched.begin(), in.touched.end()), in.touched.end());
    if (!in.touched.empty()) in.flags |= kTouchesWgmma;
  }
}

void Decoder::successors(size_t i, std::vector<u32> *out) const {
  const Instr &in = prog_->code[i];
  const std::string &op = in.stmt ? in.stmt->parts[0] : "exit";
  out->clear();
  if (op == "bra") out->push_back(in.target);
  bool ends = op == "bra" || op == "exit" || op == "ret" || op == "trap";
  if (!ends || in.guard >= 0) out->push_back(u32(i + 1));
}

// Forward analysis: a register is "written" at a point if it is written on every path to it by an
// unguarded instruction. Reads of any other register are checked while the kernel runs.
void Decoder::findUninitialised() {
  size_t n = prog_->code.size(), words = (ast_->regs.size() + 63) / 64;
  std::vector<std::vector<u64>> in(n);
  std::vector<u32> work{0}, succ;
  std::vector<u64> cur;
  std::vector<u8> seen(n);
  in[0].assign(words, 0);
  seen[0] = 1;
  while (!work.empty()) {
    u32 i = work.back();
    work.pop_back();
    // Follow straight-line code without going through the work list.
    for (;;) {
      if (i + 1 >= n) break;
      cur = in[i];
      if (prog_->code[i].guard < 0)
        for (int r : allDefs_[i])
          if (r < int(ast_->regs.size())) cur[size_t(r) / 64] |= 1ull << (r % 64);
      successors(i, &succ);
      u32 follow = ~0u;
      for (u32 s : succ) {
        bool changed = false;
        if (!seen[s]) {
          in[s] = cur;
          seen[s] = 1;
          changed = true;
        } else {
          for (size_t k = 0; k < words; ++k) {
            u64 both = in[s][k] & cur[k];
            if (both != in[s][k]) { in[s][k] = both; changed = true; }
          }
        }
        if (!changed) continue;
        if (follow == ~0u) follow = s;
        else work.push_back(s);
      }
      if (follow == ~0u) break;
      i = follow;
    }
  }
  std::vector<u8> tracked(ast_->regs.size());
  for (size_t i = 0; i + 1 < n; ++i) {
    if (!seen[i]) continue;
    for (int r : allUses_[i]) {
      if (r >= int(ast_->regs.size()) || (in[i][size_t(r) / 64] >> (r % 64) & 1)) continue;
      prog_->code[i].uninitUses.push_back(r);
      prog_->code[i].flags |= kMaybeUninit;
      tracked[size_t(r)] = 1;
    }
  }
  for (size_t i = 0; i + 1 < n; ++i)
    for (int r : allDefs_[i])
      if (r < int(tracked.size()) && tracked[size_t(r)]) {
        prog_->code[i].trackedDefs.push_back(r);
        prog_->code[i].flags |= kTracksInit;
      }
}

std::shared_ptr<Program> decodeKernel(std::shared_ptr<Module> m, const KernelAst *k) {
  return Decoder(std::move(m), k).run();
}

}  // namespace emu
