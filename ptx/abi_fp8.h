// abi_fp8.h - parameter blocks of the FP8 kernels: numbers only.
// Read by the PTX (cpp) and by src/plan_fp8.cpp, which proves them against the C++ structs.
#ifndef FA3PTX_ABI_FP8_H
#define FA3PTX_ABI_FP8_H

/* ---- forward on E4M3 inputs: fwd_fp8.ptx.  The first part is that of abi_fwd.h: the tile order
 *      and the epilogue read it. */
#include "abi_fwd.h"
#define FP8_Q_SCALE 576    // FP8_SCALE_BYTES each: scale of Q, K, V
#define FP8_K_SCALE 616
#define FP8_V_SCALE 656
#define FP8_OUT_FP16 696   // u32  1: O is fp16; 0: bf16
#define FP8_HEADS_KV 700   // u32
#define FP8_PARAMS 704

/* A scale tensor: entry (batch, head, row >> shift), strides in bytes. */
#define FP8_SCALE_DATA 0   // u64  float*; 0: every scale is 1
#define FP8_SCALE_BATCH 8  // s64
#define FP8_SCALE_HEAD 16  // s64
#define FP8_SCALE_BLOCK 24 // s64
#define FP8_SCALE_SHIFT 32 // u32  log2 of the rows that share a scale; 31: all of a head's
#define FP8_SCALE_SPLIT 36 // u32  heads that share an entry
#define FP8_SCALE_BYTES 40

/* ---- its reference: ref_fwd_fp8.ptx.  Tensors as REF_TENSOR_* of abi.h. */
#define FP8_REF_Q 0
#define FP8_REF_K 32
#define FP8_REF_V 64
#define FP8_REF_O 96
#define FP8_REF_LSE 128
#define FP8_REF_SEQLEN_Q 136
#define FP8_REF_SEQLEN_K 140
#define FP8_REF_HEADS_Q 144
#define FP8_REF_HEADS_KV 148
#define FP8_REF_GROUP 152
#define FP8_REF_HEAD_DIM 156
#define FP8_REF_CAUSAL 160     // 0 or 1
#define FP8_REF_ROWS 164       // batch * heads_q * seqlen_q
#define FP8_REF_OUT_FP16 168
#define FP8_REF_SCALE_LOG2 172
#define FP8_REF_Q_SCALE 176
#define FP8_REF_K_SCALE 216
#define FP8_REF_V_SCALE 256
#define FP8_REF_PARAMS 296

/* ---- quantisation: quant.ptx ----------------------------------------------------------------- */
#define QUANT_SRC 0          // u64  bf16/fp16
#define QUANT_DST 8          // u64  e4m3
#define QUANT_SCALE 16       // u64  float: scales, dense (batch, heads, blocks)
#define QUANT_SRC_BATCH 24   // s64  strides in bytes
#define QUANT_SRC_SEQ 32
#define QUANT_SRC_HEAD 40
#define QUANT_DST_BATCH 48
#define QUANT_DST_SEQ 56
#define QUANT_DST_HEAD 64
#define QUANT_SEQLEN 72      // u32
#define QUANT_HEADS 76       // u32
#define QUANT_HEAD_DIM 80    // u32
#define QUANT_TILES 84       // u32  ceil(seqlen / TILE_M)
#define QUANT_PARTS 88       // u32  CTAs that share a head's tiles
#define QUANT_STEP 92        // s32  rows from a tile of a CTA to its next
#define QUANT_BLOCK 96       // u32  rows that share a scale; all of a head's: more than seqlen
#define QUANT_BLOCKS 100     // u32  scales of a head
#define QUANT_GROUP 104      // u32  warps (8 rows each) of a CTA that share a scale, a power of two
#define QUANT_MODE 108       // u32  QUANT_MODE_*
#define QUANT_NORM 112       // f32  1/sqrt(head_dim): rotate; 1: do not
#define QUANT_SIGNS 116      // u32[8]  sign bits of the columns: 1 flips
#define QUANT_SRC_STEP 152   // s64  bytes of QUANT_STEP rows
#define QUANT_DST_STEP 160
#define QUANT_SCALE_STEP 168
#define QUANT_PARAMS 176
#define QUANT_MODE_BLOCKS 0  // a scale for each block, and the data
#define QUANT_MODE_LARGEST 1 // only raises the scale
#define QUANT_MODE_GIVEN 2   // the data, by the scale that is there
#define QUANT_CTAS(d) ((d) == 64 ? 3 : (d) == 128 ? 2 : 1) // of a multiprocessor
#endif
