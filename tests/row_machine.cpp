// row_machine.cpp - see row_machine.h.
#include "row_machine.h"

#include "device.h"
#include "src/validate.h"

using namespace fa3ptx;

namespace {

template <class Args>
fa3ptx_status prepare(const Args &args, Depth depth, RowIndex row, int multiprocessors,
                      fa3ptx::Problem &problem, Plan &plan) {
  Error &e = thread_error();
  const fa3ptx_status status = validate(&args, depth, problem, e);
  if (status != FA3PTX_OK) return status;
  if (multiprocessors == 0) multiprocessors = device().multiprocessors;
  return plan_row(problem, {multiprocessors}, row, plan, e);
}

template <class Args>
fa3ptx_status size(const Args &args, RowIndex row, int multiprocessors, size_t &bytes) {
  fa3ptx::Problem problem;
  Plan plan;
  const fa3ptx_status status = prepare(args, Depth::SHAPES, row, multiprocessors, problem, plan);
  bytes = status == FA3PTX_OK ? plan.workspace : 0;
  return status;
}

template <class Args>
fa3ptx_status enqueue_row(const Args &args, RowIndex row, int multiprocessors) {
  Error &e = thread_error();
  fa3ptx::Problem problem;
  Plan plan;
  fa3ptx_status status = prepare(args, Depth::ALL, row, multiprocessors, problem, plan);
  if (status == FA3PTX_OK) status = validate_workspace(problem, plan.workspace, e);
  const Driver *driver = nullptr;
  if (status == FA3PTX_OK) status = get_driver(driver, e);
  if (status == FA3PTX_OK) status = launch(*driver, device().handle, plan, device().stream, e);
  return status;
}

} // namespace

fa3ptx_status RowMachine::workspace_size(const fa3ptx_forward_args &args, size_t &bytes) {
  return size(args, row_, multiprocessors_, bytes);
}
fa3ptx_status RowMachine::workspace_size(const fa3ptx_backward_args &args, size_t &bytes) {
  return size(args, row_, multiprocessors_, bytes);
}
fa3ptx_status RowMachine::enqueue(const fa3ptx_forward_args &args) {
  return enqueue_row(args, row_, multiprocessors_);
}
fa3ptx_status RowMachine::enqueue(const fa3ptx_backward_args &args) {
  return enqueue_row(args, row_, multiprocessors_);
}
fa3ptx_status RowMachine::forward(const fa3ptx_forward_args &args) {
  const fa3ptx_status status = enqueue(args);
  CUDA(cuStreamSynchronize(device().stream));
  return status;
}
fa3ptx_status RowMachine::backward(const fa3ptx_backward_args &args) {
  const fa3ptx_status status = enqueue(args);
  CUDA(cuStreamSynchronize(device().stream));
  return status;
}

bool heads_plans(const Row &row) {
  return row.serves != part && in_build(RowIndex(&row - fa3ptx::kRows));
}

bool is_backward(const Row &row) {
  switch (row.role) {
    case Role::BWD_REF_DQ:
    case Role::BWD_REF_DKV:
    case Role::BWD_PRE:
    case Role::BWD:
    case Role::BWD_POST: return true;
    default: return false;
  }
}

::Problem problem_of(const Row &row) {
  ::Problem p;
  p.dtype = fa3ptx_dtype(row.dtype);
  p.head_dim = row.head_dim ? row.head_dim : 64;
  p.head_dim_v = row.head_dim_v;
  p.causal = row.mask == Mask::CAUSAL;
  return p;
}
