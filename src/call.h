// call.h - a whole call, as fa3ptx_forward and fa3ptx_backward make it.
#pragma once

#include "src/driver.h"

namespace fa3ptx {

// `only`: see make_plan.  Errors go to the thread's sentence, fa3ptx_last_error().
fa3ptx_status call(const fa3ptx_forward_args *args, CUstream stream, RowIndex only = kAnyRow);
fa3ptx_status call(const fa3ptx_backward_args *args, CUstream stream, RowIndex only = kAnyRow);

} // namespace fa3ptx
