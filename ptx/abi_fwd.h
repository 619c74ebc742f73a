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
#define FWD_TILES 544       // u32  M_BLOCKS * heads_q * batch
#define FWD_LEVELS 548      // u32  query tiles of one head that are neighbours in the tile order
#define FWD_LEVEL_TILES 552 // u32  LEVELS * heads_q * batch
#define FWD_PACK_SHIFT 556  // u32  packed rows: log2 of the group (pack.inc)
#define FWD_PARAMS 576
#endif
