// launch.h - carries out a plan.
#pragma once

#include "src/driver.h"

namespace fa3ptx {

// Everything that can fail without the device (kernels loaded, tensor maps encoded) comes before
// the first launch.  Encodes maps into the plan's parameters.
fa3ptx_status launch(const Driver &driver, CUdevice device, Plan &plan, CUstream stream, Error &e);

} // namespace fa3ptx
