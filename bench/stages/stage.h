/* stage.h - the parameter block of the stage kernels: numbers only, read by PTX and by C++. */
#ifndef FA3PTX_STAGE_H
#define FA3PTX_STAGE_H
#define STAGE_MAP_IN 0      /* tensor maps: what is loaded, and what is stored to */
#define STAGE_MAP_OUT 128
#define STAGE_IN 256        /* u64  global memory under the maps */
#define STAGE_OUT 264       /* u64 */
#define STAGE_RESULT 272    /* u64  a CTA: u64 clocks, u64 ns, u64 beginning, f32 value */
#define STAGE_ITERATIONS 280
#define STAGE_ROWS 284      /* u32  rows of a map, a power of two: boxes wrap there */
#define STAGE_SEED 288      /* u32  0: operands are 1; else random */
#define STAGE_SCALE 292     /* f32 */
#define STAGE_OFFSET 296    /* f32 */
#define STAGE_ZERO 300      /* f32  0, which ptxas does not know */
#define STAGE_PARAMS 320
#define STAGE_RESULT_BYTES 32
#define STAGE_HEADS 16      /* boxes of a row of the maps, as of so many heads */
#endif
