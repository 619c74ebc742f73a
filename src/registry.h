// registry.h - embedded images to launchable kernels, each loaded once per process.
#pragma once

#include "src/driver.h"

namespace fa3ptx {

// The kernel of a row, ready for its dynamic shared memory on `device` (the current one).  Takes no
// lock after the first use of the row.  A CUkernel belongs to no context: one serves every device.
fa3ptx_status get_kernel(const Driver &driver, CUdevice device, RowIndex row, CUkernel &kernel,
                         Error &e);

// As get_kernel, and has the driver place it in the current context now.
fa3ptx_status preload_kernel(const Driver &driver, CUdevice device, RowIndex row, Error &e);

} // namespace fa3ptx
