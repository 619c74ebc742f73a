// fake.h - a CPU that answers the calls, with a fault planted on request.  The harness's own tests
// run on it: without a fault every check must pass, with one some check must fail.
#pragma once
#include "harness.h"

enum class Fault {
  none,
  dropped_key,     // the last visible key of every row is left out
  doubled_key,     // the first key counts twice
  unwritten_row,   // the last query row (key row, in the backward) is not stored
  mask_off_by_one, // causal rows see one key more
  swapped_heads,   // query heads 0 and 1 read each other's keys
  scale_error,     // softmax_scale is 1 % too large
  stale_nan,       // keys past the end enter the products with weight zero
  guard_overwrite, // the element after the end of O (dQ) is written
  changed_input,   // the first element of Q is written
  lse_base_2,      // LSE in units of log 2
  lost_tile,       // keys 64..127 are left out
  unlike_bits,     // the last bit of O[0] (dQ[0]) differs from call to call
  stale_workspace  // what the workspace held before reaches the output
};

class FakeMachine : public Machine {
 public:
  explicit FakeMachine(Fault fault) : fault_(fault) {}
  uint64_t allocate(size_t bytes) override;
  void release(uint64_t address) override;
  void upload(uint64_t to, const void *from, size_t bytes) override;
  void download(void *to, uint64_t from, size_t bytes) override;
  fa3ptx_status workspace_size(const fa3ptx_forward_args &, size_t &bytes) override;
  fa3ptx_status workspace_size(const fa3ptx_backward_args &, size_t &bytes) override;
  fa3ptx_status forward(const fa3ptx_forward_args &) override;
  fa3ptx_status backward(const fa3ptx_backward_args &) override;

 private:
  Fault fault_;
  int calls_ = 0;
};
