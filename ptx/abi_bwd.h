// abi_bwd.h - parameter blocks of the backward kernels: numbers only.
// Read by the PTX (cpp) and by src/plan_bwd.cpp, which proves them against the C++ structs.
//
// Words used below
//   slot      a (batch, query head) pair: batch * heads_q + head
//   block     64 query rows of a slot, or 64 key rows of a (batch, key head) pair
//   fragment  64 x D fp32 numbers as a warpgroup holds them (wgmma.inc), 16 rows a warp: float4 i
//             of lane l of warp w, its accumulators 4i .. 4i+3, is float4 number (w D/8 + i) 32 + l

// Statistics of a block: fp32, in the order a fragment's columns fall to threads.  Row
// 16o + 8h + 2c + e of the block, e = 0, 1 and c = 0 .. 3, has
//   -LSE log2(e)   at float 16o + 4c + 2h + e
//   -D             at float BWD_STAT_D / 4 + 32o + 16h + 4c + e, and again 2 floats on: a thread's
//                  four accumulators of columns 2c, 2c + 1 start there
#define BWD_STAT_D 256
// and -D again as the sum of three bf16 numbers, the upper 8 bits of its significand, the next, the
// rest: number k of row r at byte BWD_STAT_PARTS + 128k + 2 (r ^ 8k), a row of 128 bytes in
// the 128 B swizzle (bwd_minus_d.inc; some kernels read these, some the others)
#define BWD_STAT_PARTS 768
#define BWD_PARTS_BYTES 384
#define BWD_STAT_BYTES 1152

// Deterministic mode: two u32 counters a block, one for each CTA of a pair, of the warps that have
// added; those of the first block of a turn are used (bwd_turn.inc).
#define BWD_TURN_BYTES 8

// ---- the main kernel: bwd_d64.ptx, bwd_d128.ptx, bwd_d192.ptx ---------------------------------
#define BWD_TMAP_Q 0
#define BWD_TMAP_K 128
#define BWD_TMAP_V 256
#define BWD_TMAP_DO 384
#define BWD_TMAP_DK 512
#define BWD_TMAP_DV 640
#define BWD_STATS 768           // u64  statistics[slot][m_blocks], BWD_STAT_BYTES each
#define BWD_DQ_ACC 776          // u64  fragment[slot][m_blocks]: sum of dS K
#define BWD_DK_ACC 784          // u64  fragment[part][batch][heads_kv][n64_blocks], if parts > 1
#define BWD_DV_ACC 792          // u64  the same for dV
#define BWD_TURN 800            // u64  BWD_TURN_BYTES[slot][m_blocks], or 0 (any order)
#define BWD_SCALE 808           // f32  softmax_scale
#define BWD_SCALE_LOG2 812      // f32  softmax_scale * log2(e)
#define BWD_SEQLEN_Q 816        // s32
#define BWD_SEQLEN_K 820        // s32
#define BWD_HEADS_Q 824         // u32
#define BWD_HEADS_KV 828        // u32
#define BWD_PARTS 832           // u32  CTAs that share a key tile's query heads
#define BWD_PART_HEADS 836      // u32  query heads each of them works through
#define BWD_M_BLOCKS 840        // u32  ceil(seqlen_q / 64)
#define BWD_N_BLOCKS 844        // u32  ceil(seqlen_k / TILE_N)
#define BWD_SECTION 848         // u32  streams worked on together, or 0: bwd_tile.inc
#define BWD_STREAMS 852         // u32  batch * heads_kv * parts
#define BWD_GROUP 856           // u32  deterministic, causal: key tiles of a group
#define BWD_PARAMS 896

// ---- bwd_pre.ptx --------------------------------------------------------------------------------
#define BWD_PRE_O 0             // u64  and byte strides: batch, seq, head
#define BWD_PRE_O_BATCH 8
#define BWD_PRE_O_SEQ 16
#define BWD_PRE_O_HEAD 24
#define BWD_PRE_DO 32
#define BWD_PRE_DO_BATCH 40
#define BWD_PRE_DO_SEQ 48
#define BWD_PRE_DO_HEAD 56
#define BWD_PRE_LSE 64          // u64  float[slot][seqlen_q]
#define BWD_PRE_STATS 72        // u64  as above
#define BWD_PRE_DQ_ACC 80       // u64  cleared
#define BWD_PRE_TURN 88         // u64  cleared, unless 0
#define BWD_PRE_SEQLEN_Q 96     // u32
#define BWD_PRE_HEADS_Q 100     // u32
#define BWD_PRE_HEAD_DIM_V 104  // u32  columns of O and dO
#define BWD_PRE_M_BLOCKS 108    // u32
#define BWD_PRE_ACC_BYTES 112   // u32  bytes of one fragment of dQ
#define BWD_PRE_PARAMS 128

// ---- bwd_post.ptx -------------------------------------------------------------------------------
#define BWD_POST_OUT 0          // u64  and byte strides: batch, seq, head
#define BWD_POST_OUT_BATCH 8
#define BWD_POST_OUT_SEQ 16
#define BWD_POST_OUT_HEAD 24
#define BWD_POST_ACC 32         // u64  fragment[part][batch][heads][blocks]
#define BWD_POST_PART_BYTES 40  // u64  from one part to the next
#define BWD_POST_PARTS 48       // u32
#define BWD_POST_SEQLEN 52      // u32
#define BWD_POST_HEADS 56       // u32
#define BWD_POST_HEAD_DIM 60    // u32  columns that exist
#define BWD_POST_BLOCKS 64      // u32  ceil(seqlen / 64)
#define BWD_POST_SCALE 68       // f32
#define BWD_POST_ACC_DIM 72     // u32  D of the fragments: a multiple of 32
#define BWD_POST_PARAMS 128
