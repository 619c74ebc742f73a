/* abi.h - the numbers that a kernel and its host code must agree on, and nothing else.
 *
 * Read by the PTX sources (C preprocessor, no C allowed here: #define only) and by src/, where each
 * struct is checked against its offsets: static_assert(offsetof(RefParams, lse) == REF_LSE).
 * Every kernel has one parameter, `.param .align 64 .b8 P[<FAMILY>_PARAMS]`.
 */
#ifndef FA3PTX_ABI_H
#define FA3PTX_ABI_H

/* -DDTYPE of a kernel; the values of fa3ptx_dtype. */
#define DTYPE_BF16 1
#define DTYPE_FP16 2
#define DTYPE_E4M3 3

/* -DROLE of a kernel: the column `role` of src/kernels.def. */
#define ROLE_FWD_REF 1     /* reference forward                                  */
#define ROLE_BWD_REF_DQ 2  /* reference backward: dQ, and rowsum(dO o O)          */
#define ROLE_BWD_REF_DKV 3 /* reference backward: dK and dV                       */
#define ROLE_FWD 4         /* forward                                             */
#define ROLE_FWD_FP8 5     /* forward on FP8 inputs                               */
#define ROLE_BWD_PRE 6     /* backward: rowsum(dO o O), clearing of accumulators  */
#define ROLE_BWD 7         /* backward: the main kernel                           */
#define ROLE_BWD_POST 8    /* backward: fp32 accumulators to gradients            */
#define ROLE_FWD_FP8_REF 9 /* reference forward on FP8 inputs                     */
#define ROLE_QUANT 10      /* bf16/fp16 to FP8                                    */
#define ROLE_FWD_PACKED 11 /* forward, the query heads of a group in one tile      */

/* ---- reference kernels: ref_fwd.ptx, ref_bwd.ptx; struct RefParams in src/plan_ref.cpp ------ */

/* A tensor: data pointer, then byte strides. */
#define REF_TENSOR_DATA 0
#define REF_TENSOR_BATCH 8
#define REF_TENSOR_SEQ 16
#define REF_TENSOR_HEAD 24

#define REF_Q 0
#define REF_K 32
#define REF_V 64
#define REF_O 96
#define REF_DOUT 128
#define REF_DQ 160
#define REF_DK 192
#define REF_DV 224
#define REF_LSE 256        /* fp32 (batch, heads_q, seqlen_q); the forward takes NULL           */
#define REF_DELTA 264      /* fp32 (batch, heads_q, seqlen_q): rowsum(dO o O), in the workspace  */
#define REF_SEQLEN_Q 272
#define REF_SEQLEN_K 276
#define REF_HEADS_Q 280
#define REF_HEADS_KV 284
#define REF_GROUP 288      /* heads_q / heads_kv                                                */
#define REF_HEAD_DIM 292
#define REF_HEAD_DIM_V 296
#define REF_CAUSAL 300     /* 0 or 1                                                            */
#define REF_ROWS 304       /* warps with work: batch * heads * seqlen                           */
#define REF_SCALE 308      /* softmax_scale                                                     */
#define REF_SCALE_LOG2 312 /* softmax_scale * log2(e): scores in base 2, so exp is ex2           */
#define REF_PARAMS 320

/* Head dims go up to this, which is 32 lanes of 16 bytes of a 16-bit type. */
#define REF_MAX_HEAD_DIM 256

#endif
