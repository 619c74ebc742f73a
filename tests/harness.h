// harness.h - the test harness: problems, nasty memory, runs, the comparison with float64.
//
//   Problem  -> make_values()     seeded inputs, already rounded to the storage type
//            -> run_forward() ... puts them into fenced and poisoned device memory in the problem's
//                                 layout, makes the call, fetches the results, looks for damage
//            -> reference()       float64 on the CPU, and the tolerance that goes with it
//            -> compare()         sentences about everything that is wrong; none when all is well
//   verify() does it all, several times over, with other bits in memory that must not matter.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "include/fa3ptx.h"

// ---- Problems ------------------------------------------------------------------------------

enum class Layout {
  bshd,     // contiguous (batch, seqlen, heads, dim)
  bhsd,     // contiguous (batch, heads, seqlen, dim)
  packed,   // q, k, v (and dq, dk, dv) are columns of one buffer of rows
  fused,    // views with foreign columns, rows and gaps between heads all round them
  broadcast // inputs of stride 0: q over heads, k and v over the batch, dout over everything
};

enum class Fill {
  normal,      // N(0, 1)
  outliers,    // N(0, 1), and one element in fifty with a standard deviation of 10 added
  constant,    // everything 1
  big_scores,  // q and k of standard deviation 8: nearly one-hot rows, scores in the hundreds
  equal_keys,  // K = 0, V[j] a code of j: LSE counts the visible keys, O is their mean
  hot_keys,    // each row finds one key by a code of signs: tile edges, mask edges, others
  rising,      // scores grow along the keys, faster in some rows: the maximum is always the newest
  opposed      // q = k = v = 0, dout of +-32768 that cancels over the heads of a group
};

struct Problem {
  fa3ptx_dtype dtype = FA3PTX_BF16;
  int batch = 1;
  int seqlen_q = 128, seqlen_k = 128;
  int heads_q = 1, heads_kv = 1;
  int head_dim = 64, head_dim_v = 0; // head_dim_v 0: the same
  bool causal = false;
  float softmax_scale = 0;
  uint32_t flags = 0;
  Layout layout = Layout::bshd;
  Fill fill = Fill::normal;
  bool want_lse = true;
  uint64_t seed = 1;

  int dim_v() const { return head_dim_v ? head_dim_v : head_dim; }
  double scale() const;
  int visible(int row) const; // keys [0, visible) are seen by the query row
  std::string name() const;   // "b1 s128x128 h1 d64 bf16 causal fused outliers"
};

// Floating-point operations as the FlashAttention papers count them: two products forward, five
// backward, half of the pairs where a causal mask hides half.
double flops(const Problem &, bool backward);

fa3ptx_forward_args shape_args(const Problem &);           // no pointers: for the size and plan
fa3ptx_backward_args backward_shape_args(const Problem &); // queries
fa3ptx_plan_info explain(const Problem &, bool backward);  // throws std::runtime_error

// ---- Values --------------------------------------------------------------------------------

// Storage bits of one tensor, dense, (batch, heads, seqlen, dim).
struct Dense {
  int batch = 0, heads = 0, seqlen = 0, dim = 0;
  std::vector<uint16_t> bits;

  Dense() = default;
  Dense(int b, int h, int s, int d)
      : batch(b), heads(h), seqlen(s), dim(d), bits(size_t(b) * h * s * d) {}
  size_t row(int b, int h, int s) const { return ((size_t(b) * heads + h) * seqlen + s) * dim; }
};

struct Values {
  Dense q, k, v, dout;
};
Values make_values(const Problem &);
uint64_t base_seed(); // 1, or environment variable FA3PTX_TEST_SEED; mixed into every seed

struct Outputs {
  Dense o, dq, dk, dv;
  std::vector<float> lse; // (batch, heads_q, seqlen_q)
};
bool same_bits(const Outputs &, const Outputs &);

// ---- Running -------------------------------------------------------------------------------

// Where the harness runs: the CUDA device, or the CPU fake that tests the harness itself.
struct Machine {
  virtual ~Machine() = default;
  virtual uint64_t allocate(size_t bytes) = 0;
  virtual void release(uint64_t address) = 0;
  virtual void upload(uint64_t to, const void *from, size_t bytes) = 0;
  virtual void download(void *to, uint64_t from, size_t bytes) = 0;
  // Like the library's functions; the calls return when the work is done.
  virtual fa3ptx_status workspace_size(const fa3ptx_forward_args &, size_t &bytes) = 0;
  virtual fa3ptx_status workspace_size(const fa3ptx_backward_args &, size_t &bytes) = 0;
  virtual fa3ptx_status forward(const fa3ptx_forward_args &) = 0;
  virtual fa3ptx_status backward(const fa3ptx_backward_args &) = 0;
};
Machine &gpu(); // throws NoDevice (device.h)

// What lies in input memory that no tensor covers: padding, gaps, the space after the last row.
enum class Poison { zero, nan, plus_inf, minus_inf };

struct Run {
  fa3ptx_status status = FA3PTX_OK;
  std::string error; // fa3ptx_last_error() if the call failed
  Outputs outputs;
  std::vector<std::string> damage; // guards, padding or inputs that were written to
};
Run run_forward(Machine &, const Problem &, const Values &, Poison = Poison::nan);
// The backward reads o and lse from `forward`.
Run run_backward(Machine &, const Problem &, const Values &, const Outputs &forward,
                 Poison = Poison::nan);

// ---- Judging -------------------------------------------------------------------------------

struct RowBlock {
  int batch, head, first, end; // query rows [first, end) of a query head
};

// The float64 results of some query rows, and how far off a kernel may be:
//     2 * max|LOW - REF| + 1e-5 * (1 + max|REF|)     3 in place of 2 for gradients
// LOW being the same maths in fp32 with P, dS and the outputs rounded to the storage type.  LOW may
// round the few largest elements luckily, and a kernel unluckily: under another seed, about one
// problem in a thousand asks more than a sound kernel gives.
struct Reference {
  std::vector<RowBlock> rows;          // those of o and lse, in order
  std::vector<double> o, lse;          // one after the other in the order of `rows`
  std::vector<double> dq, dk, dv;      // like Dense; empty unless asked for
  double allowed_o = 0, allowed_dq = 0, allowed_dk = 0, allowed_dv = 0;
};
std::vector<RowBlock> all_rows(const Problem &);
// A cheap choice for large problems: first, middle and last rows of some heads.
std::vector<RowBlock> some_rows(const Problem &, int rows_per_block = 8);
Reference reference(const Problem &, const Values &, bool backward);
Reference reference(const Problem &, const Values &, const std::vector<RowBlock> &); // forward

using Complaints = std::vector<std::string>;
Complaints compare_forward(const Problem &, const Reference &, const Outputs &);
Complaints compare_backward(const Problem &, const Reference &, const Outputs &);
Outputs forward_of(const Problem &, const Reference &); // REF's O and LSE as a kernel stores them
// max |O - REF| over the checked rows
double worst_error(const Problem &, const Reference &, const Outputs &);

struct VerifyOptions {
  bool forward = true, backward = false; // backward alone starts from float64's O and LSE
  // Runs after the first, which has NaN as poison; each must repeat its results.
  std::vector<Poison> again = {Poison::zero};
  // The rows to compare; empty: all.
  std::vector<RowBlock> rows;
};
Complaints verify(Machine &, const Problem &, const VerifyOptions & = {});
std::string join(const Complaints &); // one a line
