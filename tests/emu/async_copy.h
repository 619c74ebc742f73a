// async_copy.h - issue and completion of bulk copies; what cp.async and cp.async.bulk share.
#pragma once
#include "mbarrier.h"
#include "tensormap.h"

namespace emu {

// Where a bulk load delivers: shared memory of one or more CTAs, each with its mbarrier.
struct Delivery {
  Cta *cta;
  Mbar *mbar;
  u64 phase;       // of the mbarrier at issue
};

void asyncIssue(Warp &w, AsyncPtr op, bool bulkGroup);
void asyncRead(AsyncOp &op);                  // make the source available for reuse
void asyncComplete(AsyncOp &op);              // read and write

// Bounds and initialisation of a stretch of global memory, reported against op's instruction.
u8 *globalRange(AsyncOp &op, u64 addr, u64 bytes, bool write);

// At issue: happens-before checks of the global side (ranges outside every allocation are left to
// globalRange).
void globalReadIssued(AsyncOp &op, u64 addr, u64 bytes);
void globalWriteIssued(AsyncOp &op, u64 addr, u64 bytes, bool reduce);

// `lane` of `in` names the mbarrier [in.addr2 or address]; collects deliveries for a load.
bool deliveries(Warp &w, const Instr &in, u64 dst, u64 mbarAddr, u32 ctaMask, bool multicast,
                u32 bytes, int lane, std::vector<Delivery> *out, u32 *off);
void signalDeliveries(AsyncOp &op, const std::vector<Delivery> &to, s64 bytes);

// Element-wise reduction of `n` bytes: dst op= src.
enum class Reduce : u8 { None, Add, Min, Max, Inc, Dec, And, Or, Xor };
void reduceBytes(u8 *dst, const u8 *src, u64 n, Reduce op, Ty type);
bool reduceNamed(const Decoder &d, Reduce *out);

void bulkActorOf(Warp &w);

}  // namespace emu
