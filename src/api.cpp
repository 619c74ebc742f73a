// api.cpp - the C functions: validate, find the device, plan, launch.
#include "src/driver.h"
#include "src/launch.h"
#include "src/plan.h"
#include "src/registry.h"
#include "src/status.h"
#include "src/validate.h"

namespace fa3ptx {
namespace {

template <class Args> fa3ptx_status run(const Args *args, CUstream stream) {
  Error &e = thread_error();
  Problem problem;
  fa3ptx_status status = validate(args, Depth::ALL, problem, e);
  if (status != FA3PTX_OK) return status;
  Device device;
  status = current_device(device, e);
  if (status != FA3PTX_OK) return status;
  Plan plan;
  status = make_plan(problem, device.props, plan, e);
  if (status != FA3PTX_OK) return status;
  status = validate_workspace(problem, plan.workspace, e);
  if (status != FA3PTX_OK) return status;
  return launch(*device.driver, device.handle, plan, stream, e);
}

// A query is answered without a device, too; what went wrong in asking for one is of no interest.
DeviceProps device_or_assumed() {
  Error ignored;
  Device device;
  return current_device(device, ignored) == FA3PTX_OK ? device.props : kAssumedDevice;
}

template <class Args>
fa3ptx_status query(const Args *args, Problem &problem, DeviceProps &device, Plan &plan) {
  Error &e = thread_error();
  const fa3ptx_status status = validate(args, Depth::SHAPES, problem, e);
  if (status != FA3PTX_OK) return status;
  device = device_or_assumed();
  return make_plan(problem, device, plan, e);
}

template <class Args> fa3ptx_status workspace_size(const Args *args, size_t *bytes) {
  if (!bytes)
    return fail(thread_error(), FA3PTX_ERROR_INVALID_ARGUMENT, "bytes = NULL: no place to answer");
  Problem problem;
  DeviceProps device;
  Plan plan;
  const fa3ptx_status status = query(args, problem, device, plan);
  if (status == FA3PTX_OK) *bytes = plan.workspace;
  return status;
}

template <class Args> fa3ptx_status explain_call(const Args *args, fa3ptx_plan_info *info) {
  Error &e = thread_error();
  if (!info)
    return fail(e, FA3PTX_ERROR_INVALID_ARGUMENT, "info = NULL: no place to answer");
  if (info->struct_size != sizeof *info)
    return fail(e, FA3PTX_ERROR_INVALID_ARGUMENT,
                "info->struct_size = %zu: must be sizeof(fa3ptx_plan_info), %zu", info->struct_size,
                sizeof *info);
  Problem problem;
  DeviceProps device;
  Plan plan;
  const fa3ptx_status status = query(args, problem, device, plan);
  if (status == FA3PTX_OK) explain(problem, device, plan, *info);
  return status;
}

} // namespace
} // namespace fa3ptx

extern "C" {

fa3ptx_status fa3ptx_forward(const fa3ptx_forward_args *args, CUstream_st *stream) {
  return fa3ptx::run(args, stream);
}

fa3ptx_status fa3ptx_backward(const fa3ptx_backward_args *args, CUstream_st *stream) {
  return fa3ptx::run(args, stream);
}

fa3ptx_status fa3ptx_forward_workspace_size(const fa3ptx_forward_args *args, size_t *bytes) {
  return fa3ptx::workspace_size(args, bytes);
}

fa3ptx_status fa3ptx_backward_workspace_size(const fa3ptx_backward_args *args, size_t *bytes) {
  return fa3ptx::workspace_size(args, bytes);
}

fa3ptx_status fa3ptx_explain_forward(const fa3ptx_forward_args *args, fa3ptx_plan_info *info) {
  return fa3ptx::explain_call(args, info);
}

fa3ptx_status fa3ptx_explain_backward(const fa3ptx_backward_args *args, fa3ptx_plan_info *info) {
  return fa3ptx::explain_call(args, info);
}

fa3ptx_status fa3ptx_preload(void) {
  using namespace fa3ptx;
  Error &e = thread_error();
  Device device;
  fa3ptx_status status = current_device(device, e);
  for (int row = 0; row < kRowCount && status == FA3PTX_OK; row++)
    if (in_build(RowIndex(row)))
      status = preload_kernel(*device.driver, device.handle, RowIndex(row), e);
  return status;
}

} // extern "C"
