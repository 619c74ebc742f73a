// plan.h - what a call will enqueue, worked out without a driver.
//
// plan() turns a Problem into at most kMaxSteps steps.  It is pure: the same problem and device
// properties give the same plan, so all of it is tested on any machine, and fa3ptx_explain_* prints
// it.  launch.cpp then carries the steps out.
//
// A new kernel family adds: its rows to kernels.def; a plan_<family>.cpp that fills in steps, with
// the `serves` predicates of its rows; one line here and one in the table of plan.cpp.
#pragma once

#include "src/problem.h"
#include "src/status.h"

namespace fa3ptx {

struct DeviceProps {
  int32_t sm_count;
};
constexpr DeviceProps kAssumedDevice = {132}; // an H100 or H200, when there is no device to ask

constexpr RowIndex kNoRow = RowIndex(-1);
constexpr int kMaxSteps = 6;
constexpr int kMaxMaps = 10;
constexpr size_t kMaxParams = 2048;
constexpr size_t kWorkspaceAlign = 256;

// A TMA tensor map to be encoded into the parameters: a view of a tensor, (head_dim, seqlen, heads,
// batch) unless a family says otherwise, and the box one TMA instruction moves.  Zero is read
// outside the extents.
struct TensorMap {
  enum Swizzle : uint8_t { SWIZZLE_NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B };
  enum Element : uint8_t { BF16, FP16, FP32, BYTE };
  void *data;
  uint32_t extent[5];
  int64_t stride[4]; // bytes; of axes 1 and up
  uint16_t box[5];
  uint8_t rank;
  uint16_t offset; // into Step::params, a multiple of 64
  Element element;
  Swizzle swizzle;
  bool read_once; // L2 fetches no more than is asked for (memory-bound: 5 % faster)
};

struct Step {
  enum Kind : uint8_t { LAUNCH, MEMSET };
  Kind kind;
  bool overlaps_previous; // LAUNCH: programmatic dependent launch; the kernel itself waits
  uint8_t map_count;
  RowIndex row;     // LAUNCH; threads and shared memory are the row's
  uint32_t grid[3]; // LAUNCH; all >= 1
  uint32_t cluster; // LAUNCH; CTAs of a cluster along x, 1: none
  void *dst;        // MEMSET: zeros `bytes` bytes, a multiple of 4
  size_t bytes;
  uint32_t param_size;
  TensorMap maps[kMaxMaps];
  alignas(64) unsigned char params[kMaxParams];
};

// Not cleared when made: only what count says, and what a step says of itself, is set.
struct Plan {
  int count;      // steps
  int main;       // the step that fa3ptx_explain_* describes; -1: nothing to do
  RowIndex row;   // the row that won, also when there is nothing to do
  bool too_large; // a grid would not fit: the call is refused
  size_t workspace;
  const char *reason; // why this row: a static string
  Step steps[kMaxSteps];

  // The next step; its grid in 64 bits, so that products need no care.
  Step &launch(RowIndex which, uint64_t gx, uint64_t gy = 1, uint64_t gz = 1);
  void clear(void *dst, size_t bytes);
};

// Copies a parameter struct into a step and returns it there, to set tensor maps by its offsets.
template <class Params> void set_params(Step &s, const Params &p) {
  static_assert(sizeof(Params) <= kMaxParams, "raise kMaxParams");
  static_assert(alignof(Params) <= 64, "kernel parameters are aligned to 64 bytes");
  __builtin_memcpy(s.params, &p, sizeof p);
  s.param_size = sizeof p;
}

// Adds a 4-D map of `t`, (batch, seqlen, heads, dim) of 16-bit or 8-bit elements, encoded at
// `offset` of the parameters; the box covers box_rows rows of box_columns columns.
void add_map(Step &s, uint16_t offset, const fa3ptx_tensor &t, int32_t dim, int32_t seqlen,
             int32_t heads, int32_t batch, int box_columns, int box_rows,
             TensorMap::Swizzle swizzle);

// Plans the first row of kernels.def that serves the problem; FA3PTX_ERROR_UNSUPPORTED if none.
fa3ptx_status make_plan(const Problem &p, const DeviceProps &device, Plan &plan, Error &e);

// Plans this row, whatever its `serves` says (tests and benches name rows);
// FA3PTX_ERROR_UNSUPPORTED if the problem does not fit it.
fa3ptx_status plan_row(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan,
                       Error &e);

// The first row of a role that fits the problem; kNoRow if none.  For rows marked `part`.
RowIndex find_row(const Problem &p, Role role);

// Text of fa3ptx_explain_*: fills every field but struct_size.
void explain(const Problem &p, const DeviceProps &device, const Plan &plan,
             fa3ptx_plan_info &info);

// ---- Families: each fills the steps for a row that won ------------------------------------------
void plan_ref_forward(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
void plan_ref_backward(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
void plan_forward(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
void plan_forward_packed(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
bool rows_fit(const Problem &p); // row and key numbers of a tile that is part empty fit 32 bits
bool tiles_fit(const Problem &p); // and so do the numbers of its tiles
bool packs(const Problem &p); // whether a group's heads fit plan_forward_packed
void plan_backward(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
void plan_fp8(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);
void plan_fp8_reference(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan);

constexpr float kLog2e = 1.4426950408889634f; // exponentials are powers of 2 in the kernels

// A divisor as kernels use it: n / d = (2n * factor >> 32) >> shift for n < 2^31 (ptx/sched.inc).
// factor / 2^(31 + shift) exceeds 1/d by at most 1 / (d 2^31): too little to reach the next whole.
struct Divisor {
  uint32_t d = 1, factor = 0, shift = 0;
  Divisor() = default;
  explicit Divisor(uint32_t by) : d(by) {
    while (shift < 31 && (uint32_t(1) << shift) < d) shift++;
    if (d > 0) factor = uint32_t((uint64_t(1) << (31 + shift)) / d + 1);
  }
};

// Whether 192-row tiles, so much faster per row, beat 128-row ones on this number of rows.
bool tall_tiles_pay(const Problem &p, const DeviceProps &device, int64_t percent_faster);

// ---- Predicates of the column `serves` ----------------------------------------------------------
bool always(const Problem &, const DeviceProps &);
bool fwd_any(const Problem &, const DeviceProps &);  // always, with a reason of its own
bool fwd_packed(const Problem &, const DeviceProps &); // few rows: heads of a group share tiles
bool fwd_few(const Problem &, const DeviceProps &); // all rows of a group in one warpgroup
bool fwd_long(const Problem &, const DeviceProps &); // many query rows: tiles of 192 pay
bool fp8_heads(const Problem &, const DeviceProps &);  // E4M3 with one scale for a head's rows
bool fp8_heads_long(const Problem &, const DeviceProps &); // the same, many query rows
bool fp8_heads_short(const Problem &, const DeviceProps &); // the same, few keys
bool fp8_blocks(const Problem &, const DeviceProps &); // E4M3 with scales of blocks
bool fp8_exact(const Problem &, const DeviceProps &);  // E4M3, FA3PTX_FLAG_ACCURATE
bool bwd_long(const Problem &, const DeviceProps &); // many keys: tiles of 192 pay
bool part(const Problem &, const DeviceProps &); // never: launched along with another row

inline uint32_t ceil_div(int64_t a, int64_t b) { return uint32_t((a + b - 1) / b); }
inline size_t align_up(size_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

} // namespace fa3ptx
