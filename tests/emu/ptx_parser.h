// ptx_parser.h - tokens to a syntax tree: variables, kernels, statements with resolved names.
//
// Registers, variables and labels are resolved here (scopes included); what an opcode means is
// left to decode.h.
#pragma once
#include <map>
#include <memory>

#include "ptx_lexer.h"

namespace emu {

enum class Space : u8 { Generic, Global, Shared, SharedCluster, Param, Const, Local };

struct Variable {
  std::string name;
  Space space = Space::Global;
  Ty type = Ty::B8;
  u32 align = 1;
  u64 size = 0;                // 0: extern array, sized at launch
  bool isExtern = false;
  std::vector<u8> init;        // empty: zero
  u64 address = 0;             // shared/param/local: offset; global/const: filled in at load
  Loc loc;
};

// One operand as written.
struct Arg {
  enum Kind { Reg, Var, Int, Float, F32Bits, F64Bits, Vec, Mem, Label, Special, Sink } kind = Int;
  int reg = -1;                // Reg: index into KernelAst::regs
  Variable *var = nullptr;     // Var, or base of Mem
  std::string name;            // Label, Special
  bool negate = false;         // `!p`
  s64 ival = 0;                // Int; offset added to Var; offset of Mem
  double fval = 0;             // Float
  int label = -1;              // Label: statement index, filled in at the end of the kernel
  std::vector<Arg> elems;      // Vec: elements. Mem: [0] base (if a register), then the rest
  std::vector<Arg> pair;       // `p|q`: the second destination
};

struct RegDecl {
  std::string name;
  Ty type = Ty::B32;
};

struct Stmt {
  Loc loc;
  std::string op;                   // whole opcode as written
  std::vector<std::string> parts;   // opcode split at dots: {"ld","shared::cta","b32"}
  int guard = -1;                   // predicate register, -1 none
  bool guardNegate = false;
  std::vector<Arg> args;
};

struct KernelAst {
  std::string name;
  Loc loc;
  std::vector<std::unique_ptr<Variable>> params, locals;
  u32 paramBytes = 0;
  std::vector<RegDecl> regs;
  std::vector<Stmt> stmts;
  u32 maxntid[3] = {0, 0, 0};
  bool reqntid = false;
  u32 minnctapersm = 0, maxnreg = 0;
  u32 cluster[3] = {0, 0, 0};       // .reqnctapercluster
  u32 staticShared = 0, localBytes = 0;
  std::vector<std::string> labelNames;  // by statement index, "" where there is none
};

struct Module {
  std::string text;                 // token texts point in here
  std::vector<std::string> files;
  std::string version, target;
  std::vector<std::unique_ptr<Variable>> vars;
  std::vector<std::unique_ptr<KernelAst>> kernels;
  u32 staticShared = 0;             // module-scope .shared variables
  std::string where(Loc l) const { return strf("%s:%d", files[l.file].c_str(), l.line); }
};

std::unique_ptr<Module> parsePtx(std::string text);  // throws PtxError

}  // namespace emu
