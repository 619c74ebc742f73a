// validate.h - the rules of fa3ptx.h, checked on the host.  Pure: no driver, no pointer followed.
#pragma once

#include "src/problem.h"
#include "src/status.h"

namespace fa3ptx {

enum class Depth {
  SHAPES, // sizes, dtypes, mask, flags: what the workspace and explain queries read
  ALL     // pointers and strides too
};

// On success fills `p`, defaults resolved.  Otherwise the sentence in `e` names the argument, its
// value and the rule.
fa3ptx_status validate(const fa3ptx_forward_args *args, Depth depth, Problem &p, Error &e);
fa3ptx_status validate(const fa3ptx_backward_args *args, Depth depth, Problem &p, Error &e);

fa3ptx_status validate(const fa3ptx_quantize_args *args, Error &e);

// The workspace that the plan asks for.
fa3ptx_status validate_workspace(const Problem &p, size_t needed, Error &e);

} // namespace fa3ptx
