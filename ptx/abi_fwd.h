// abi_fwd.h - parameter block of the warp-specialised forward kernels: numbers only.
// Read by the PTX (cpp) and by src/plan_fwd.cpp, which proves them against the C++ struct.
// Packed rows (pack.inc): a key/value head counts as one head of seqlen_q * group rows, so that
// HEADS_Q is heads_kv, GROUP 1, and M_BLOCKS goes by those rows; SEQLEN_Q stays what it is.
#ifndef FA3PTX_ABI_FWD_H
#define FA3PTX_ABI_FWD_H
#define FWD_TMAP_Q 0
#define FWD_TMAP_K 128
#define FWD_TMAP_V 256
#define FWD_TMAP_O 384
#define FWD_LSE 512         // u64  float[batch][heads_q][seqlen_q], or 0
#define FWD_SCALE_LOG2 520  // f32  softmax_scale * log2(e)
#define FWD_SEQLEN_Q 524    // s32
#define FWD_SEQLEN_K 528    // s32
#define FWD_HEADS_Q 532     // u32
#define FWD_GROUP 536       // u32  heads_q / heads_kv
#define FWD_M_BLOCKS 540    // u32  ceil(seqlen_q / TILE_M)
#define FWD_TICKETS 544     // u32  2 * jobs (sched.inc)
#define FWD_TILES 544       // u32  FP8: M_BLOCKS * heads_q * batch
#define FWD_LEVELS 548      // u32  FP8: query tiles of a head that are neighbours in the tile order
#define FWD_LEVEL_TILES 552 // u32  FP8: LEVELS * heads_q * batch
#define FWD_PACK_SHIFT 556  // u32  packed rows: log2 of the group (pack.inc)
#define FWD_PAIRED_TICKETS 560 // u32  2 * jobs that are pairs
#define FWD_PAIRED_HEADS 564   // u32  heads, over all batches, that are worked through in pairs
#define FWD_FIRST_ROW 568      // s32  first row of tile 0: 0, -64 or -128
#define FWD_BY_HEAD_JOBS 572   // Divisor (src/plan.h): jobs of a head that is paired
#define FWD_BY_LAST_HEADS 584  // Divisor: the other heads
#define FWD_BY_HEADS 596       // Divisor: HEADS_Q
#define FWD_BY_CTAS 608        // Divisor: CTAs of the grid
#define FWD_PARAMS 640
#endif
