// machine.h - the state of running kernels: Grid > Cluster > Cta > Warp, and what they wait for.
#pragma once
#include <deque>
#include <functional>
#include <set>
#include <unordered_map>

#include "memory.h"
#include "program.h"
#include "vclock.h"

namespace emu {

struct Cta;
struct Cluster;
struct Grid;
struct Mbar;

// ---- address windows --------------------------------------------------------------------------
// A 64-bit generic address carries its window in the top byte; global memory has none (host
// addresses). Shared addresses: CTA rank in bits 24.., offset below; offsets start at 1 KiB, as on
// hardware, so that address 0 is never valid.
constexpr u64 kSharedWindow = 0x11ull << 56;
constexpr u64 kParamWindow = 0x12ull << 56;
constexpr u64 kLocalWindow = 0x13ull << 56;
constexpr u64 kWindowMask = 0xffull << 56;
constexpr u32 kSharedBase = 1024;
constexpr u32 kRankShift = 24;

// ---- waiting ----------------------------------------------------------------------------------
enum class WaitKind : u8 {
  None, Converge, Mbarrier, NamedBarrier, ClusterBarrier, WgmmaGroup, GridDependency, Registers
};

struct Wait {
  WaitKind kind = WaitKind::None;
  u32 id = 0;            // barrier id, parity, group count ...
  u64 generation = 0;
  u32 need = 0;          // Converge: lanes that must be here
  Mbar *mbar = nullptr;
  bool timedOut = false; // Mbarrier: give the instruction back with "not yet"
};

// Lanes of one warp that share a pc. A converged warp has exactly one.
struct Frag {
  u32 pc = 0, mask = 0;
  bool blocked = false;
  Wait wait;
};

// ---- asynchronous work ------------------------------------------------------------------------
// A bulk copy or reduction. `read` moves its source into `data`, `write` delivers it and signals.
struct AsyncOp {
  Warp *issuer = nullptr;
  const Instr *instr = nullptr;
  int lane = 0;                 // of the issuer
  bool readDone = false, done = false;
  std::function<void(AsyncOp &)> read, write;
  std::vector<u8> data;
  u32 delay = 0;                // scheduler ticks until it may complete (random mode)
};
using AsyncPtr = std::shared_ptr<AsyncOp>;
using BulkGroup = std::vector<AsyncPtr>;

// cp.async of one warp: completes in order; an item is copies, or an arrival on an mbarrier.
struct CpItem {
  struct Copy { u64 from; u8 *to; u32 bytes, fromBytes; };
  std::vector<Copy> copies;
  Mbar *arrive = nullptr;
  u32 arrivals = 0;
  u32 group = 0, epoch = 0;
  const Instr *instr = nullptr;
};

// One wgmma of one warpgroup, assembled from the four warps' issues.
struct WgmmaOp {
  const Instr *instr = nullptr;
  u32 issued = 0;               // warps (bits) that have issued it
  u64 descA = 0, descB = 0;
  bool scaleD = true;
  u32 group = 0;                // of the first issuer; the others' must agree
  std::vector<u64> seen;        // distinct shadow cells of B, checked against each issuer's clock
};

struct Warpgroup {
  int actor = -1;
  u32 index = 0;
  Warp *warps[4] = {};
  std::deque<WgmmaOp> queue;    // issued by somebody, not executed
  std::vector<VClock> executed; // by group: what its issuers had executed by then
  u64 headSerial = 0;           // serial number of queue.front()
};

// ---- warps ------------------------------------------------------------------------------------
struct WarpEvent { u32 pc, times; };  // `times` in a row: a wait that spins

struct Warp {
  Cta *cta = nullptr;
  Grid *grid = nullptr;
  const Program *prog = nullptr;
  u32 id = 0;                    // in its CTA
  u8 *regs = nullptr;
  u32 *preds = nullptr;
  u32 pc = 0, mask = 0, live = 0;
  u32 mergePc = ~0u;
  std::vector<Frag> frags;
  int cur = 0;
  bool done() const { return live == 0; }

  template <class T> EMU_INLINE T *dst(const Operand &o) const {
    return reinterpret_cast<T *>(regs + o.off);
  }
  template <class T> EMU_INLINE const T *src(const Operand &o) const {
    return reinterpret_cast<const T *>(o.imm ? o.imm : regs + o.off);
  }
  EMU_INLINE u32 pred(const Operand &o) const {
    return o.imm ? *static_cast<const u32 *>(o.imm) : preds[o.off];
  }
  void setPred(const Operand &o, u32 m, u32 v) { preds[o.off] = (preds[o.off] & ~m) | (v & m); }

  // happens-before bookkeeping (hazards.h)
  int actor = 0;
  u32 epoch = 1;
  VClock clock;                  // what every lane knows
  VClock partial;                // clock, plus what only partialLanes have learnt since the last
  u32 partialLanes = 0;          // warp-wide synchronisation
  VClock fenceClock, acquirePending;  // around fence.acq_rel: see syncStore and syncLoad
  bool fenced = false;
  u32 fenceScope = 0;
  struct LastWrite {             // the last write event made, to be reused within an epoch
    const Instr *instr = nullptr;
    u32 epoch = 0, event = 0;
  } lastWrite, lastGlobalWrite;
  // Unordered plain stores to global memory, held back: harmless if the value stays the same.
  struct Suspect {
    int lane;
    u64 addr;
    u32 old, mask;               // the word before the store, and its bits that are stored to
    std::string text;
  };
  std::vector<Suspect> suspects;

  // wgmma
  u64 wgIssued = 0;              // wgmmas issued by this warp, ever
  std::vector<u64> wgGroupEnd;   // per committed group: serial after its last wgmma
  u32 wgGroupsDone = 0;          // groups known to be complete
  // per wgmma register slot: group + 1 of the last wgmma that uses it (0: none), what that was
  // (shape of an accumulator, 0: A operand), and whether it was touched since the last wgmma.fence
  std::vector<u32> wgBusyGroup;
  std::vector<u64> wgShape;
  std::vector<u8> wgTouched;

  // cp.async.bulk groups
  int bulkActor = -1;            // reads of shared memory by this warp's bulk stores
  int bulkWriteActor = -1;       // and their writes of global memory
  BulkGroup bulkOpen;
  std::deque<BulkGroup> bulkGroups;
  u32 bulkCommitted = 0;

  // cp.async
  int cpActor = -1;
  std::deque<CpItem> cpQueue;
  u32 cpCommitted = 0, cpEpoch = 1;
  std::vector<u32> cpGroupEpoch; // last epoch of each committed group

  u32 carry = 0;                 // CC.CF, one bit per lane
  u32 regsPerThread = 0;
  std::string regHistory;        // setmaxnreg values so far
  std::vector<u32> initMask;     // lanes written, for tracked registers
  const Mbar *gaveUpOn = nullptr;  // the last mbarrier and phase for which a try_wait gave up
  u64 gaveUpPhase = 0;
  u32 clusterPhaseArrived = 0;
  bool clusterArrived = false;
  u64 instrCount = 0;

  WarpEvent events[8] = {};
  u32 numEvents = 0;
  void note(u32 at) {
    WarpEvent &last = events[(numEvents - 1) & 7];
    if (numEvents && last.pc == at) ++last.times;
    else events[numEvents++ & 7] = {at, 1};
  }
};

// ---- barriers ---------------------------------------------------------------------------------
struct NamedBarrier {
  u32 expected = 0;              // threads; 0: idle
  bool whole = false;            // nobody gave a count: all threads that have not exited
  u32 arrived = 0;
  u64 generation = 0;
  VClock clock;                  // of those who have arrived
  VClock released;               // of the last completed generation
  u32 reduceAnd = ~0u, reduceOr = 0, reducePopc = 0;
  u32 resultAnd = 0, resultOr = 0, resultPopc = 0;
  struct Arrival { u32 warp, lanes; };
  std::vector<Arrival> who;
  const Instr *first = nullptr;
};

struct Mbar {
  bool valid = false;
  Cta *cta = nullptr;
  u32 offset = 0;                // in shared memory, without kSharedBase
  u32 count = 0;
  s64 pending = 0;               // arrivals still to come in this phase
  s64 tx = 0;                    // bytes still to come
  u64 phase = 0;                 // completed phases, over the whole life of the address
  u64 phaseBase = 0;             // phase number at init (parity is counted from here)
  int actor = -1;
  bool fenced = false;           // fence.mbarrier_init after init: for peers and for TMA
  bool proxyFenced = false;      // fence.proxy.async after init: for the CTA's own TMA
  Warp *initWarp = nullptr;
  int initLane = 0;
  u32 initEpoch = 0;
  const Instr *initInstr = nullptr;
  VClock clock, released;
  u64 lastTxPhase = 0;           // phase + 1 of the last copy that reports here
  u32 inFlight = 0;              // copies that will still signal
  struct Waiter {                // the last wait of a warp that succeeded
    const Warp *warp;
    u64 phase;                   // completed phases at that time
    u32 epoch;
    const Instr *instr;
  };
  std::vector<Waiter> waiters;
};

// ---- shared-memory shadow ---------------------------------------------------------------------
// One cell per 4 bytes. w = write event << 5 | lane; r = read set << 6 | several lanes << 5 | lane.
struct Cell {
  u32 w = 0, r = 0;
};
// For a CTA that accesses less than 4 bytes at a time: which bytes of a cell have been written at
// all, by the last write, and read since. Masks; 0: all four (or, if the cell says so, nobody).
struct Parts {
  u8 written = 0, last = 0, read = 0;
};

struct Cta {
  Cluster *cluster = nullptr;
  Grid *grid = nullptr;
  u32 index[3] = {};
  u32 rank = 0;
  std::vector<u8> smem;
  std::vector<Cell> shadow;
  std::vector<Parts> parts;      // by cell; empty until there is a narrow access
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  NamedBarrier bars[16];
  std::unordered_map<u32, std::unique_ptr<Mbar>> mbars;
  std::vector<u8> regFile, local, localWritten;  // the last: a flag for each byte of `local`
  std::vector<u32> predFile;
  u32 warpsLeft = 0;
  bool exited = false;
  s64 regPool = 0;               // registers free for setmaxnreg.inc
  bool waited = false;           // one of its threads has executed griddepcontrol.wait
  bool launchedDependents = false;
  VClock remoteTouch;            // peers' accesses to this CTA's shared memory ("executed")
  u32 smid = 0;
};

struct ActorInfo {
  enum Kind { WarpActor, WgmmaActor, BulkActor, BulkWriteActor, CpAsyncActor, MbarActor } kind;
  Cta *cta;
  u32 index;                     // warp, warpgroup or mbarrier offset
};

struct WriteEvent {
  int actor = -1;
  u32 epoch = 0;
  const Instr *instr = nullptr;
  bool async = false;     // by the async proxy
  bool anyLane = false;   // not the work of one known lane
  bool atomic = false;
  bool isMbar = false;
};

// A write of global memory, kept for the launch (and the programmatic launches after it).
struct GlobalWrite {
  u64 grid = 0, cluster = 0;
  int actor = -1;
  u32 epoch = 0;
  const Instr *instr = nullptr;
  const Program *prog = nullptr;
  u32 cta[3] = {}, warp = 0;
  bool async = false, atomic = false;
  u32 before = 0;  // of an atomic: one of another CTA before it, unordered (event << 5 | lane)
};
struct GlobalLog {
  u64 id = 0;
  std::vector<GlobalWrite> writes{GlobalWrite()};          // [0]: not written
  std::unordered_map<u64, VClock::Foreign> flags;          // what release stores have published
  std::unordered_map<u64, VClock::Foreign> ctaFlags;       // the same, for their own CTA only
  std::unordered_map<u64, GlobalWrite> earlyReads;         // by address; before griddepcontrol.wait
  u64 earlyFirst = ~0ull, earlyEnd = 0;                    // the range they lie in
};

struct ReadEntry {
  int actor;
  u32 epoch, lanes;       // the last entry's lanes are in the cell
  const Instr *instr;
  bool async, atomic;
};
using ReadSet = std::vector<ReadEntry>;  // at most one entry per actor; the last reader is last

struct Cluster {
  Grid *grid = nullptr;
  u64 index = 0;                 // linear cluster number in the grid
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<ActorInfo> actors;
  std::vector<AsyncPtr> pending;      // issued, not complete
  u32 barArrived = 0;            // cluster barrier: warps
  u64 barGeneration = 0;
  VClock barClock, barReleased;
  u32 warpsLeft = 0;
  std::vector<WriteEvent> writes;       // [0] = never written
  std::vector<ReadSet> readSets;        // [0] = nobody
  std::unordered_map<u64, std::vector<u32>> readIndex;  // hash of contents -> candidates
  struct ReadMemo {              // recent results of adding a reader, by hash
    u32 from = ~0u, to = 0;
    ReadEntry now = {-1, 0, 0, nullptr, false, false};
  } readMemo[256];
  std::set<u64> heardFrom;       // clusters that have released something to this one
  u64 progress = 0;              // counts everything that changes what others can see
  int newActor(ActorInfo a) {
    actors.push_back(a);
    return int(actors.size()) - 1;
  }
};

struct LaunchConfig {
  u32 grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1};
  bool hasCluster = false;
  u32 dynamicShared = 0;
  bool programmatic = false;     // may start before the previous kernel of its stream ends
};

struct Grid {
  std::shared_ptr<Program> prog;
  LaunchConfig cfg;
  std::vector<u8> params;
  int device = 0;
  u64 id = 0;
  u32 threads = 0, warpsPerCta = 0, ctasPerCluster = 0;
  u32 sharedBytes = 0, dynamicOffset = 0;
  u64 numClusters = 0, nextCluster = 0, clustersDone = 0;
  u32 window = 1;                // clusters in flight at most, while all goes well
  u32 resident = 1;              // what fits the device: more start if those in flight wait
  std::vector<std::unique_ptr<Cluster>> running;
  u64 ctasTriggered = 0;         // launch_dependents or exit
  Grid *after = nullptr;         // programmatic launch: the grid griddepcontrol.wait waits for
  bool waited = false;           // somebody has executed griddepcontrol.wait
  bool handedOverEarly = false;  // a CTA let the next grid start and had not waited itself
  bool finished = false, aborted = false;
  u32 findings = 0;
  u64 instrs = 0;
  Allocation *lastAlloc = nullptr;
  std::shared_ptr<GlobalLog> log;
  bool impatient = false;        // in this launch each try_wait that has to wait gives up once
  bool allTriggered() const {
    return ctasTriggered >= numClusters * ctasPerCluster;
  }
};

}  // namespace emu
