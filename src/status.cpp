#include "src/status.h"

#include <cstdarg>
#include <cstdio>

namespace fa3ptx {

fa3ptx_status fail(Error &e, fa3ptx_status status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(e.text, sizeof e.text, format, list);
  va_end(list);
  return status;
}

Error &thread_error() {
  static thread_local Error e; // zero: ""
  return e;
}

const char *dtype_name(int dtype) {
  switch (dtype) {
  case FA3PTX_BF16: return "BF16";
  case FA3PTX_FP16: return "FP16";
  case FA3PTX_E4M3: return "E4M3";
  }
  return "none";
}

} // namespace fa3ptx

extern "C" const char *fa3ptx_status_string(fa3ptx_status status) {
  switch (status) {
  case FA3PTX_OK: return "success";
  case FA3PTX_ERROR_INVALID_ARGUMENT: return "invalid argument";
  case FA3PTX_ERROR_UNSUPPORTED: return "no kernel for this problem";
  case FA3PTX_ERROR_WORKSPACE: return "workspace missing, too small or misaligned";
  case FA3PTX_ERROR_NO_DRIVER: return "no CUDA driver, or no device";
  case FA3PTX_ERROR_NO_CONTEXT: return "no CUDA context is current";
  case FA3PTX_ERROR_WRONG_DEVICE: return "the device is not of compute capability 9.0";
  case FA3PTX_ERROR_DRIVER: return "a CUDA driver call failed";
  }
  return "unknown status";
}

extern "C" const char *fa3ptx_last_error(void) { return fa3ptx::thread_error().text; }

extern "C" int fa3ptx_version(void) { return FA3PTX_VERSION; }
