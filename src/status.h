// status.h - how a failure travels: a status code and one sentence.
#pragma once

#include "include/fa3ptx.h"

namespace fa3ptx {

struct Error {
  char text[512]; // written only when something fails
};

// Writes the sentence and returns `status`, so that a check reads: return fail(e, ..., "...").
__attribute__((format(printf, 3, 4))) fa3ptx_status fail(Error &e, fa3ptx_status status,
                                                         const char *format, ...);

// The calling thread's error, which fa3ptx_last_error() shows.
Error &thread_error();

const char *dtype_name(int dtype);

} // namespace fa3ptx
