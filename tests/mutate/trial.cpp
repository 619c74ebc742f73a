// trial.cpp - see trial.h.
#include "trial.h"

#include <cstdlib>
#include <cstring>

#include "ptx_run.h"
#include "src/validate.h"

using namespace fa3ptx;

namespace {

// Also keeps what the call leaves in its workspace: fp32 sums, the order of which would hardly
// ever show in outputs of 16 bits.  `again`: each call has one like it right in front.
class Watched : public RowMachine {
 public:
  Watched(RowIndex row, bool again) : RowMachine(row), again_(again) {}
  std::vector<unsigned char> workspace;
  fa3ptx_status forward(const fa3ptx_forward_args &args) override {
    const fa3ptx_status status = again_ ? enqueue(args) : FA3PTX_OK;
    return status == FA3PTX_OK ? RowMachine::forward(args) : status;
  }
  fa3ptx_status backward(const fa3ptx_backward_args &args) override {
    if (again_ && enqueue(args) != FA3PTX_OK) return FA3PTX_ERROR_DRIVER;
    const fa3ptx_status status = RowMachine::backward(args);
    workspace.resize(args.workspace_size);
    download(workspace.data(), uint64_t(args.workspace), args.workspace_size);
    return status;
  }

 private:
  bool again_;
};

std::string hash_of(const Outputs &o, const std::vector<unsigned char> &workspace) {
  uint64_t hash = 14695981039346656037u;
  const auto mix = [&](const auto &values) {
    const auto *bytes = reinterpret_cast<const unsigned char *>(values.data());
    for (size_t i = 0; i < values.size() * sizeof values[0]; ++i)
      hash = (hash ^ bytes[i]) * 1099511628211u;
  };
  mix(o.o.bits), mix(o.dq.bits), mix(o.dk.bits), mix(o.dv.bits), mix(o.lse), mix(workspace);
  return "=" + std::to_string(hash);
}

std::string judged(const Trial &t, const Run &run, const Watched &machine) {
  if (run.status != FA3PTX_OK) return "error: " + run.error;
  if (!run.damage.empty()) return "wrong: " + run.damage[0];
  const Complaints wrong = t.backward ? compare_backward(t.problem, t.expected, run.outputs)
                                      : compare_forward(t.problem, t.expected, run.outputs);
  return wrong.empty() ? hash_of(run.outputs, machine.workspace) : "wrong: " + wrong[0];
}

// Operands of mixed numbers below 2 (of either sign; none if `salt` is 0), contiguous.  E4M3
// numbers are test_fp8's business: here the bits of the sound kernel are the reference.
struct Operand {
  Buffer memory;
  fa3ptx_tensor tensor = {};
  Operand(const ::Problem &p, int heads, int seqlen, int dim, fa3ptx_dtype dtype, uint32_t salt)
      : memory(size_t(p.batch) * heads * seqlen * dim * (dtype == FA3PTX_E4M3 ? 1 : 2)) {
    std::vector<unsigned char> bytes(memory.bytes, 0xff);
    for (size_t i = 0; i < bytes.size() && salt; ++i)
      bytes[i] = (uint32_t(i + salt) * 2654435761u >> 13) &
                 (dtype == FA3PTX_E4M3 || i % 2 ? 0xbf : 0xff);
    memory.write(bytes.data(), bytes.size());
    tensor.data = reinterpret_cast<void *>(memory.address);
    tensor.stride_head = dim;
    tensor.stride_seq = int64_t(heads) * dim;
    tensor.stride_batch = tensor.stride_seq * seqlen;
    tensor.dtype = dtype;
  }
};

std::string run_bytes(RowMachine &machine, const ::Problem &p) {
  fa3ptx_forward_args args = shape_args(p);
  Operand q(p, p.heads_q, p.seqlen_q, p.head_dim, p.dtype, 1);
  Operand k(p, p.heads_kv, p.seqlen_k, p.head_dim, p.dtype, 7919);
  Operand v(p, p.heads_kv, p.seqlen_k, p.dim_v(), p.dtype, 104729);
  Operand o(p, p.heads_q, p.seqlen_q, p.dim_v(), FA3PTX_BF16, 0);
  Buffer lse(size_t(p.batch) * p.heads_q * p.seqlen_q * 4);
  args.q = q.tensor, args.k = k.tensor, args.v = v.tensor, args.o = o.tensor;
  args.lse = reinterpret_cast<float *>(lse.address);
  size_t bytes = 0;
  if (machine.workspace_size(args, bytes) != FA3PTX_OK) return "error: no workspace size";
  Buffer workspace(bytes + 16);
  args.workspace = bytes ? reinterpret_cast<void *>(workspace.address) : nullptr;
  args.workspace_size = bytes;
  if (machine.forward(args) != FA3PTX_OK) return std::string("error: ") + fa3ptx_last_error();
  Outputs out;
  const std::vector<uint32_t> words = o.memory.words(0, o.memory.bytes / 4);
  out.o.bits.resize(words.size() * 2);
  std::memcpy(out.o.bits.data(), words.data(), words.size() * 4);
  for (const uint16_t bits : out.o.bits)
    if ((bits & 0x7f80) == 0x7f80) return "wrong: O is not finite";
  const std::vector<uint32_t> sums = lse.words(0, lse.bytes / 4);
  out.lse.resize(sums.size());
  std::memcpy(out.lse.data(), sums.data(), sums.size() * 4);
  return hash_of(out, {});
}

// A scale per block of 64 rows, and one per head, which takes two launches.
std::string run_quantize(const ::Problem &p) {
  Outputs out;
  for (const int block : {64, 0}) {
    Operand src(p, p.heads_q, p.seqlen_q, p.head_dim, p.dtype, 1);
    Operand dst(p, p.heads_q, p.seqlen_q, p.head_dim, FA3PTX_E4M3, 0);
    const int blocks = block ? (p.seqlen_q + block - 1) / block : 1;
    Buffer scale(size_t(p.batch) * p.heads_q * blocks * 4);
    fa3ptx_quantize_args args = {};
    args.struct_size = sizeof args;
    args.src = src.tensor, args.dst = dst.tensor;
    args.scale = reinterpret_cast<float *>(scale.address);
    args.batch = p.batch, args.seqlen = p.seqlen_q, args.heads = p.heads_q;
    args.head_dim = p.head_dim, args.block = block;
    if (fa3ptx_quantize(&args, device().stream) != FA3PTX_OK)
      return std::string("error: ") + fa3ptx_last_error();
    for (const uint32_t word : dst.memory.words(0, dst.memory.bytes / 4)) {
      out.o.bits.push_back(uint16_t(word));
      out.o.bits.push_back(uint16_t(word >> 16));
    }
    for (const uint32_t bits : scale.words(0, scale.bytes / 4)) {
      float number;
      std::memcpy(&number, &bits, 4);
      out.lse.push_back(number);
    }
  }
  return hash_of(out, {});
}

bool plan_has(const ::Problem &p, RowIndex head, RowIndex row) {
  const bool backward = is_backward(kRows[head]);
  const fa3ptx_forward_args forward_args = shape_args(p);
  const fa3ptx_backward_args backward_args = backward_shape_args(p);
  Error e;
  fa3ptx::Problem checked;
  Plan plan;
  const fa3ptx_status status = backward ? validate(&backward_args, Depth::SHAPES, checked, e)
                                        : validate(&forward_args, Depth::SHAPES, checked, e);
  if (status != FA3PTX_OK || plan_row(checked, kAssumedDevice, head, plan, e) != FA3PTX_OK)
    return false;
  for (int i = 0; i < plan.count; ++i)
    if (plan.steps[i].kind == Step::LAUNCH && plan.steps[i].row == row) return true;
  return false;
}

Trial trial_of(const ::Problem &p, RowIndex head, bool again) {
  Trial t{head, p, is_backward(kRows[head]), again, {}, {}, {}, false, {}};
  t.repeatable = !t.backward || (p.flags & FA3PTX_FLAG_DETERMINISTIC);
  if (p.dtype == FA3PTX_E4M3) return t;
  t.values = make_values(p);
  t.expected = reference(p, t.values, t.backward);
  if (t.backward) t.forward = forward_of(p, t.expected);
  return t;
}

// The lengths that a kernel's loop walks along and across (a forward's ring holds key tiles, a
// backward's query tiles), in tiles and rows more or less than that.
::Problem with_tiles(::Problem p, const Row &row, int along, int more, int across,
                     int more_across) {
  const bool backward = is_backward(row);
  const int ring = backward ? row.tile_m : row.tile_n, other = backward ? row.tile_n : row.tile_m;
  (backward ? p.seqlen_q : p.seqlen_k) = along * ring + more;
  (backward ? p.seqlen_k : p.seqlen_q) = across * other + more_across;
  return p;
}

// The ring wraps with whole tiles; with odd lengths, at which the warpgroups of a causal tile see
// different numbers of blocks; it is filled just once; it holds less than a tile.
std::vector<::Problem> problems_of(const Row &row) {
  std::vector<::Problem> problems;
  const int deep = row.stages + 2, across = is_backward(row) ? 3 : 2;
  for (const bool causal : {false, true}) {
    if (row.mask != Mask::ANY && causal != (row.mask == Mask::CAUSAL)) continue;
    ::Problem p = problem_of(row);
    p.causal = causal;
    p.heads_q = 2;
    problems.push_back(with_tiles(p, row, deep, 0, across, 0));
    p.heads_q = p.heads_kv = 3;
    ::Problem odd;
    for (int along = deep; along <= deep + 1; ++along) {
      odd = with_tiles(p, row, along, -5, across, -3);
      if (!is_backward(row)) // the diagonal enters a tile ten columns after its edge
        odd.seqlen_k -= (odd.seqlen_k - odd.seqlen_q + row.tile_n - 10) % row.tile_n;
      if (causal || along > deep) problems.push_back(odd);
    }
    problems.push_back(with_tiles(p, row, row.stages, -7, across, -3));
    problems.push_back(with_tiles(p, row, 1, -5, across, -3));
    if (!is_backward(row)) {
      // An odd number of blocks in a CTA of several tiles, which so ends on the other P set; with a
      // mask, only the first warpgroup of a tile is done after its first block.
      ::Problem few = with_tiles(p, row, deep | 1, -5, 1, -3);
      if (causal) few.seqlen_k = few.seqlen_q + row.tile_n - 74, few.heads_q = few.heads_kv = 7;
      problems.push_back(few);
      continue;
    }
    if (causal) { // the second warpgroup's keys are past the end, in each head of a group
      ::Problem half = p;
      half.heads_q = 7, half.heads_kv = 1;
      half.seqlen_q = row.tile_m - 5;
      half.seqlen_k = row.tile_n / 2 - 8;
      problems.push_back(half);
    }
    odd.flags = FA3PTX_FLAG_DETERMINISTIC;
    problems.push_back(odd);
  }
  return problems;
}

} // namespace

std::vector<Trial> trials_of(RowIndex row) {
  std::vector<Trial> trials;
  if (kRows[row].role == Role::QUANT) {
    ::Problem p;
    p.dtype = fa3ptx_dtype(kRows[row].dtype), p.head_dim = kRows[row].head_dim;
    p.batch = 1, p.heads_q = 5, p.seqlen_q = 6 * kRows[row].tile_m - 5;
    trials.push_back({row, p, false, false, {}, {}, {}, true, {}});
    return trials;
  }
  for (int head = 0; head < kRowCount && trials.empty(); ++head)
    if (heads_plans(kRows[head]) && kRows[head].dtype == kRows[row].dtype)
      for (const ::Problem &p : problems_of(kRows[head]))
        if (plan_has(p, RowIndex(head), row)) trials.push_back(trial_of(p, RowIndex(head), false));
  if (!trials.empty()) trials.push_back(trial_of(trials[0].problem, trials[0].head, true));
  return trials;
}

std::string run_trial(const Trial &t, const Schedule &s) {
  setenv("FA3EMU_SMS", s.multiprocessors, 1);
  setenv("FA3EMU_BEHIND", s.behind, 1);
  const Emulator emulated = emulator();
  if (!emulated.report) return "error: this is not the emulated driver";
  device();
  emulated.seed(s.seed);
  std::string answer;
  try {
    Watched machine(t.head, t.again);
    if (kRows[t.head].role == Role::QUANT) answer = run_quantize(t.problem);
    else if (t.problem.dtype == FA3PTX_E4M3) answer = run_bytes(machine, t.problem);
    else if (t.backward)
      answer = judged(t, run_backward(machine, t.problem, t.values, t.forward), machine);
    else answer = judged(t, run_forward(machine, t.problem, t.values), machine);
  } catch (const std::exception &e) {
    answer = std::string("error: ") + e.what();
  }
  if (emulated.finding_count()) answer = std::string("finding: ") + emulated.report();
  return answer.substr(0, answer.find('\n'));
}
