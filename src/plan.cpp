// plan.cpp - which row of kernels.def serves a problem, and the words for it.
#include "src/plan.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace fa3ptx {

// Roles that head a plan, and the family that fills it in.  Reference kernels serve what is left
// over, degenerate problems, and calls with FA3PTX_FLAG_REFERENCE.
static const struct Family {
  Role role;
  bool backward, reference;
  void (*fill)(const Problem &, const DeviceProps &, RowIndex, Plan &);
  bool (*fits)(const Problem &); // what its rows need beside their columns; NULL: nothing
} kFamilies[] = {
    {Role::FWD_REF, false, true, plan_ref_forward, nullptr},
    {Role::FWD_FP8, false, false, plan_fp8, rows_fit},
    {Role::FWD_FP8_REF, false, true, plan_fp8_reference, nullptr},
    {Role::BWD_REF_DQ, true, true, plan_ref_backward, nullptr},
    {Role::FWD, false, false, plan_forward, tiles_fit},
    {Role::FWD_PACKED, false, false, plan_forward_packed, packs},
    {Role::BWD, true, false, plan_backward, rows_fit},
};

bool rows_fit(const Problem &p) {
  constexpr int32_t kMost = INT32_MAX - 1024;
  return p.seqlen_q <= kMost && p.seqlen_k <= kMost;
}
bool always(const Problem &, const DeviceProps &) { return true; }
bool fwd_any(const Problem &, const DeviceProps &) { return true; }
bool part(const Problem &, const DeviceProps &) { return false; }

const Row kRows[kRowCount] = {
#define KERNEL(name, source, role, dtype, dim, dim_v, mask, m, n, st, thr, regs, smem, serves)     \
  {#name, Role::role, Dtype::dtype, dim, dim_v, Mask::mask, m, n, st, thr, regs, smem, serves},
#include "src/kernels.def"
#undef KERNEL
};

static const Family *family_of(Role role) {
  for (const Family &f : kFamilies)
    if (f.role == role) return &f;
  return nullptr;
}

// A row serves its head dim and, by zero fill, smaller ones; rows stand in order of head dim.
static bool covers(int32_t row_dim, int32_t dim) { return row_dim == 0 || dim <= row_dim; }

static bool matches(const Row &row, const Problem &p) {
  const Mask mask = p.causal ? Mask::CAUSAL : Mask::NONE;
  return int32_t(row.dtype) == p.q.dtype && covers(row.head_dim, p.head_dim) &&
         covers(row.head_dim_v, p.head_dim_v) &&
         (row.mask == Mask::ANY || row.mask == mask);
}

RowIndex find_row(const Problem &p, Role role) {
  for (int i = 0; i < kRowCount; i++)
    if (kRows[i].role == role && in_build(RowIndex(i)) && matches(kRows[i], p)) return RowIndex(i);
  return kNoRow;
}

// Fast kernels assume at least one query and one key; the reference kernels know what to do.
static bool is_degenerate(const Problem &p) { return p.rows_q() == 0 || p.rows_k() == 0; }

// The family that can make a plan of this row for this problem, or NULL.
static const Family *planner(const Problem &p, const Row &row) {
  const Family *family = family_of(row.role);
  if (!family || family->backward != p.backward || !matches(row, p)) return nullptr;
  if (family->fits && !family->fits(p)) return nullptr;
  return family->reference || !is_degenerate(p) ? family : nullptr;
}

// Why a problem went to the reference kernels.
static const char *reference_reason(const Problem &p, const DeviceProps &device) {
  if (p.has(FA3PTX_FLAG_REFERENCE)) return "FA3PTX_FLAG_REFERENCE asks for it";
  if (is_degenerate(p)) return "the problem has no query or no key";
  for (int i = 0; i < kRowCount; i++)
    if (!in_build(RowIndex(i)) && planner(p, kRows[i]) && kRows[i].serves(p, device))
      return "this build leaves out the faster kernels for these shapes";
  return "no faster kernel serves these shapes";
}

// Why a row of the fast families was taken, by its predicate: what that found, in words.
static const struct { Serves serves; const char *words; } kReasons[] = {
    {always, "it serves this head_dim at any length"},
    {fwd_any, "it is the forward for this head_dim, and no special case holds"},
    {fwd_few, "all query rows of a group of heads fit one tile of 64"},
    {fwd_packed, "the query heads of a group share tiles, which saves a quarter of them or more"},
    {fwd_long, "the rows are long enough for tiles of 192"},
    {bwd_long, "there are keys enough for tiles of 192"},
    {fp8_heads, "each head has one scale, or none"},
    {fp8_heads_long, "each head has one scale, or none, and tiles of 192 rows pay"},
    {fp8_heads_short, "each head has one scale, or none, and there are few keys"},
    {fp8_blocks, "blocks of rows have scales of their own"},
    {fp8_exact, "FA3PTX_FLAG_ACCURATE asks for sums in fp32"},
};

static const char *reason_of(const Row &row) {
  for (const auto &r : kReasons)
    if (r.serves == row.serves) return r.words;
  return "it was named";
}

static fa3ptx_status fill_in(const Problem &p, const DeviceProps &device, RowIndex row,
                             const Family &family, Plan &plan, Error &e) {
  plan.count = 0;
  plan.main = -1;
  plan.row = row;
  plan.too_large = false;
  plan.workspace = 0;
  plan.reason = family.reference ? reference_reason(p, device) : reason_of(kRows[row]);
  family.fill(p, device, row, plan);
  if (!plan.too_large) return FA3PTX_OK;
  return fail(e, FA3PTX_ERROR_UNSUPPORTED,
              "batch %d, heads_q %d, seqlen_q %d, seqlen_k %d: too large a grid for kernel %s",
              p.batch, p.heads_q, p.seqlen_q, p.seqlen_k, kRows[row].name);
}

fa3ptx_status make_plan(const Problem &p, const DeviceProps &device, Plan &plan, Error &e) {
  const bool reference = p.has(FA3PTX_FLAG_REFERENCE);
  for (int i = 0; i < kRowCount; i++) {
    const Family *family = in_build(RowIndex(i)) ? planner(p, kRows[i]) : nullptr;
    if (!family || (reference && !family->reference) || !kRows[i].serves(p, device)) continue;
    return fill_in(p, device, RowIndex(i), *family, plan, e);
  }
  return fail(e, FA3PTX_ERROR_UNSUPPORTED,
              "no %s%s kernel of this build serves q.dtype %s, head_dim %d, head_dim_v %d%s",
              reference ? "reference " : "", p.backward ? "backward" : "forward",
              dtype_name(p.q.dtype), p.head_dim, p.head_dim_v, p.causal ? ", causal" : "");
}

fa3ptx_status plan_row(const Problem &p, const DeviceProps &device, RowIndex row, Plan &plan,
                       Error &e) {
  const Family *family = in_build(row) ? planner(p, kRows[row]) : nullptr;
  if (!family)
    return fail(e, FA3PTX_ERROR_UNSUPPORTED, "kernel %s cannot serve this problem",
                kRows[row].name);
  return fill_in(p, device, row, *family, plan, e);
}

Step &Plan::launch(RowIndex which, uint64_t gx, uint64_t gy, uint64_t gz) {
  Step &s = steps[count++];
  s.kind = Step::LAUNCH;
  s.overlaps_previous = false;
  s.map_count = 0;
  s.row = which;
  s.grid[0] = uint32_t(gx), s.grid[1] = uint32_t(gy), s.grid[2] = uint32_t(gz);
  if (gx > INT32_MAX || gy > UINT16_MAX || gz > UINT16_MAX) too_large = true;
  s.cluster = 1;
  s.param_size = 0;
  if (which == row || main < 0) main = count - 1;
  return s;
}

void Plan::clear(void *dst, size_t bytes) {
  Step &s = steps[count++];
  s.kind = Step::MEMSET;
  s.dst = dst;
  s.bytes = bytes;
}

void add_map(Step &s, uint16_t offset, const fa3ptx_tensor &t, int32_t dim, int32_t seqlen,
             int32_t heads, int32_t batch, int box_columns, int box_rows,
             TensorMap::Swizzle swizzle) {
  TensorMap &m = s.maps[s.map_count++];
  const int64_t size = dtype_size(t.dtype);
  m.data = t.data;
  m.extent[0] = uint32_t(dim), m.extent[1] = uint32_t(seqlen);
  m.extent[2] = uint32_t(heads), m.extent[3] = uint32_t(batch);
  // The driver wants a legal stride even of an axis of extent 1, where the caller's is not read.
  m.stride[0] = seqlen > 1 ? t.stride_seq * size : 16;
  m.stride[1] = heads > 1 ? t.stride_head * size : 16;
  m.stride[2] = batch > 1 ? t.stride_batch * size : 16;
  m.box[0] = uint16_t(box_columns), m.box[1] = uint16_t(box_rows), m.box[2] = 1, m.box[3] = 1;
  m.rank = 4;
  m.offset = offset;
  m.element = t.dtype == FA3PTX_BF16   ? TensorMap::BF16
              : t.dtype == FA3PTX_FP16 ? TensorMap::FP16
                                       : TensorMap::BYTE;
  m.swizzle = swizzle;
  m.read_once = false;
}

namespace {
struct Text {
  char *at;
  size_t left;
  __attribute__((format(printf, 2, 3))) void add(const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(at, left, format, list);
    va_end(list);
    const size_t used = n < 0 ? 0 : size_t(n) < left ? size_t(n) : left - 1;
    at += used, left -= used;
  }
};
} // namespace

void explain(const Problem &p, const DeviceProps &device, const Plan &plan,
             fa3ptx_plan_info &info) {
  const size_t struct_size = info.struct_size;
  memset(&info, 0, sizeof info);
  info.struct_size = struct_size;
  const Row &row = kRows[plan.row];
  snprintf(info.kernel, sizeof info.kernel, "%s", row.name);
  info.tile_m = row.tile_m;
  info.tile_n = row.tile_n;
  info.stages = row.stages;
  info.threads = row.threads;
  info.shared_memory = size_t(row.smem);
  info.workspace = plan.workspace;
  info.cluster = 1;
  for (int i = 0; i < plan.count; i++) info.launches += plan.steps[i].kind == Step::LAUNCH;
  if (plan.main >= 0) {
    const Step &s = plan.steps[plan.main];
    for (int i = 0; i < 3; i++) info.grid[i] = int32_t(s.grid[i]);
    info.cluster = int32_t(s.cluster);
  }
  Text text = {info.text, sizeof info.text};
  text.add("%s: tile %d x %d in %d stages, %d threads, %d bytes of shared memory", row.name,
           row.tile_m, row.tile_n, row.stages, row.threads, row.smem);
  if (plan.main < 0) text.add("; nothing to launch: the problem is empty");
  else
    text.add("; grid %d x %d x %d in clusters of %d on %d multiprocessors, step %d of %d",
             info.grid[0], info.grid[1], info.grid[2], info.cluster, device.sm_count,
             plan.main + 1, plan.count);
  text.add("; workspace %zu bytes; chosen because %s%s.", plan.workspace,
           plan.reason, p.has(FA3PTX_FLAG_DETERMINISTIC) ? "; deterministic" : "");
}

} // namespace fa3ptx
