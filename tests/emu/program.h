// program.h - a kernel decoded once: an array of instructions with handlers and resolved operands.
#pragma once
#include "ptx_parser.h"

namespace emu {

struct Warp;
struct Instr;

// What the interpreter does after a handler returned.
enum class Step : u8 {
  Next,   // go on with the next instruction
  Yield,  // go on, but let other warps run first (spin loops)
  Jump,   // the handler has set the warp's pc itself
  Block,  // stay here: Frag::wait says until when
  Exit,   // the active lanes have left the kernel
  Abort   // a finding stopped the grid
};

using Handler = Step (*)(Warp &, const Instr &, u32 mask);

// A register (off, reg) or 32 copies of a constant (imm).
struct Operand {
  const void *imm = nullptr;
  u32 off = 0;
  int reg = -1;
  Ty type = Ty::None;
  bool present() const { return imm || reg >= 0; }
};

// base register (or none) + constant
struct Address {
  Operand base;
  s64 off = 0;
  Space space = Space::Generic;
  bool wide = true;  // 64-bit base register
};

enum InstrFlags : u32 {
  kCollective = 1,     // .aligned: every live lane of the warp must execute it together
  kTouchesWgmma = 2,   // names a register that some wgmma uses (hazards_wgmma.cpp)
  kMaybeUninit = 4,    // reads a register that is not written on every path
  kTracksInit = 8,     // writes a register whose initialisation is tracked at run time
  kNotable = 16,       // goes into the warp's list of last events
  kOwnUninitCheck = 32 // the handler checks its accumulators itself
};

struct Instr {
  Handler fn = nullptr;
  int guard = -1;            // offset into Warp::preds, -1: none
  bool guardNegate = false;
  u8 vecN = 1;               // vector width of ld/st
  u32 flags = 0;
  Operand d, d2, a, b, c, e;
  Address addr, addr2;
  u32 sel = 0, sel2 = 0;     // small constants, meaning private to the handler
  s64 imm = 0;
  u32 target = 0;            // branch target (instruction index)
  bool floatSum = false;     // a floating-point addition to memory: its order shows in the result
  std::vector<Operand> vec, vec2;
  std::vector<u16> touched;  // wgmma register slots named here (kTouchesWgmma)
  std::vector<int> uninitUses, trackedDefs;
  Loc loc;
  const Stmt *stmt = nullptr;
};

// 32 copies of a constant, so that a handler need not know whether an operand is one.
struct alignas(64) LaneConstant {
  u8 bytes[16 * kLanes];
};

// Registers that are set once when a warp starts (%tid.x and friends).
struct SpecialUse {
  std::string name;
  u32 off;
  Ty type;
};

struct Program {
  std::shared_ptr<Module> module;
  const KernelAst *ast = nullptr;
  std::vector<Instr> code;             // ends with an exit
  std::vector<std::unique_ptr<LaneConstant>> pool;
  u32 regBytes = 0;                    // register file of one warp
  u32 numPreds = 0;
  std::vector<SpecialUse> specials;
  std::vector<u32> regOffset;          // by register index; ~0: not used
  std::vector<std::string> wgmmaRegs;  // slot -> register name
  std::vector<int> wgmmaSlot;          // register index -> slot or -1
  bool usesWgmma = false;
  u32 regsPerThread = 0;               // what ptxas would be held to (setmaxnreg starts from it)
  bool regsAreExact = false;           // it uses setmaxnreg, for which ptxas takes just as many
  std::string where(const Instr &in) const { return module->where(in.loc); }
};

// A CTA's registers are given out by warpgroups: its threads, rounded up to them.
constexpr u32 kRegistersPerSm = 65536;
constexpr u32 wholeWarpgroups(u32 threads) { return (threads + 127) / 128 * 128; }

std::shared_ptr<Program> decodeKernel(std::shared_ptr<Module> m, const KernelAst *k);

}  // namespace emu
