// decode.h - what the instruction families (exec_*.cpp) use to turn a statement into an Instr.
#pragma once
#include "program.h"

namespace emu {

class Decoder {
 public:
  Decoder(std::shared_ptr<Module> m, const KernelAst *k);
  std::shared_ptr<Program> run();

  // --- the statement at hand ---
  const Stmt &s() const { return *stmt_; }
  const std::string &op() const { return stmt_->parts[0]; }
  bool has(std::string_view part) const;          // `.part` is among the modifiers
  bool hasPrefix(std::string_view part) const;    // some modifier starts with it
  int count() const { return int(stmt_->args.size()); }
  const Arg &arg(int i) const;
  Ty lastType() const;                            // the last type named in the opcode
  Ty typeAt(int fromEnd) const;                   // types counted from the end, 0 = last
  [[noreturn]] void fail(const std::string &what) const;
  [[noreturn]] void unknown() const;

  // --- operands ---
  Operand dst(int i, Ty t) { return dst(arg(i), t); }
  Operand src(int i, Ty t) { return src(arg(i), t); }
  Operand dst(const Arg &a, Ty t, bool widerOk = false);
  Operand src(const Arg &a, Ty t, bool widerOk = false);
  Operand pred(const Arg &a, bool isDst);         // predicate register, plain
  Address address(const Arg &a, Space space);
  Operand constant(u64 raw, Ty t);                // 32 copies
  u64 constantValue(int i);                       // operand must be a constant
  bool isConstant(int i) const { return arg(i).kind == Arg::Int; }
  Space spaceOf() const;                          // space named by the modifiers
  void addUse(const Operand &o) { uses_.push_back(o.reg); }
  void wgmmaReg(const Operand &o);                // this register is a wgmma operand
  Program &program() { return *prog_; }
  Ty regType(const Arg &a) const { return ast_->regs[a.reg].type; }

 private:
  void decodeOne(size_t i);
  u32 regOffset(int reg);
  Operand special(const std::string &name, Ty t);
  void finishWgmma();
  void findUninitialised();
  void successors(size_t i, std::vector<u32> *out) const;

  std::shared_ptr<Program> prog_;
  std::shared_ptr<Module> mod_;
  const KernelAst *ast_;
  const Stmt *stmt_ = nullptr;
  std::vector<std::vector<int>> allDefs_, allUses_;
  std::vector<int> defs_, uses_;
  std::map<std::string, Operand> specials_;
  std::vector<Variable *> usedVars_;
};

// Each family returns true if the statement was its own. d.s() is the statement.
bool decodeInt(Decoder &d, Instr &in);
bool decodeFloat(Decoder &d, Instr &in);
bool decodeHalf(Decoder &d, Instr &in);
bool decodeCompare(Decoder &d, Instr &in);
bool decodeConvert(Decoder &d, Instr &in);
bool decodeMove(Decoder &d, Instr &in);
bool decodeMemory(Decoder &d, Instr &in);
bool decodeAtomic(Decoder &d, Instr &in);
bool decodeControl(Decoder &d, Instr &in);
bool decodeWarpOps(Decoder &d, Instr &in);
bool decodeMatrix(Decoder &d, Instr &in);
bool decodeBarriers(Decoder &d, Instr &in);
bool decodeMbarrier(Decoder &d, Instr &in);
bool decodeCopies(Decoder &d, Instr &in);
bool decodeTensor(Decoder &d, Instr &in);
bool decodeWgmma(Decoder &d, Instr &in);

}  // namespace emu
