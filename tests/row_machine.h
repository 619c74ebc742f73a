// row_machine.h - the GPU, made to serve each call with a given row of src/kernels.def.
//
// It takes the same steps as fa3ptx_forward (validate, plan, check the workspace, launch) but plans
// the row it was given, whether or not the library would have chosen it: a kernel meant for long
// sequences can so be tested on short ones.
#pragma once
#include "harness.h"
#include "src/launch.h"

class RowMachine : public Machine {
 public:
  // Plans as for so many multiprocessors; 0: those that there are.
  explicit RowMachine(fa3ptx::RowIndex row, int multiprocessors = 0)
      : row_(row), multiprocessors_(multiprocessors) {}
  uint64_t allocate(size_t bytes) override { return gpu().allocate(bytes); }
  void release(uint64_t address) override { gpu().release(address); }
  void upload(uint64_t to, const void *from, size_t n) override { gpu().upload(to, from, n); }
  void download(void *to, uint64_t from, size_t n) override { gpu().download(to, from, n); }
  fa3ptx_status workspace_size(const fa3ptx_forward_args &, size_t &bytes) override;
  fa3ptx_status workspace_size(const fa3ptx_backward_args &, size_t &bytes) override;
  fa3ptx_status forward(const fa3ptx_forward_args &) override;
  fa3ptx_status backward(const fa3ptx_backward_args &) override;
  // The same without waiting for the work to be done.
  fa3ptx_status enqueue(const fa3ptx_forward_args &);
  fa3ptx_status enqueue(const fa3ptx_backward_args &);

 private:
  fa3ptx::RowIndex row_;
  int multiprocessors_;
};

// True for a row that heads plans; the others are launched along with one that does.
bool heads_plans(const fa3ptx::Row &); // and is in this build
bool is_backward(const fa3ptx::Row &);
// A problem whose dtype, head dims and mask are the row's.  A row for any head dim gets 64, one for
// any mask none.
Problem problem_of(const fa3ptx::Row &);
