#include "scheduler.h"
namespace emu {
void hzGeneric(Warp &, const Instr &, Cta &, u32, u32, int, bool, bool){}
void hzMbarWord(Warp &, const Instr &, Mbar &){}
void hzMbarUse(Warp &, const Instr &, Mbar &, bool){}
void hzRelease(Warp &, u32, VClock *){}
void hzReleaseRelaxed(Warp &, VClock *){}
void hzAcquire(Warp &, const VClock &){}
void hzWarpSync(Warp &, u32){}
void hzProxyFence(Warp &, u32){}
void hzRemoteTouch(Warp &, Cta &){}
void hzCtaExit(Warp &, const Instr &){}
void hzWarpExit(Warp &, const Instr &){}
void syncStore(Warp &, const Instr &, u32, u8 *const *){}
void syncLoad(Warp &, const Instr &, u32, u8 *const *){}
void syncFence(Warp &){}
Step checkWgmmaTouch(Warp &, const Instr &){return Step::Next;}
bool decodeMatrix(Decoder &, Instr &){return false;}
bool decodeCopies(Decoder &, Instr &){return false;}
bool decodeTensor(Decoder &, Instr &){return false;}
bool decodeWgmma(Decoder &, Instr &){return false;}
void asyncTick(Cluster &){}
bool asyncForceOne(Cluster &){return false;}
void wgmmaTick(Cluster &){}
void asyncCheckClusterEnd(Cluster &){}
bool wgmmaWaitReady(Warp &, const Wait &){return true;}
bool bulkWaitReady(Warp &, const Wait &){return true;}
bool cpAsyncWaitReady(Warp &, const Wait &){return true;}
}
