// tensormap.h - TensorMap descriptions to the driver's 128-byte CUtensorMap.
#pragma once

#include "src/driver.h"

namespace fa3ptx {

// Encodes every map of a step into its parameters.
fa3ptx_status encode_maps(const Driver &driver, Step &step, Error &e);

} // namespace fa3ptx
