// driver.h - what the files that export the driver API share.
#pragma once
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <map>

#include "streams.h"

namespace emu {

struct Context {
  u32 magic = 0x43545854;
  int device = 0;
  bool primary = false;
  int retained = 0;
};

// A PTX image. Several devices may use it; module variables exist once, for all of them.
struct Image {
  u32 magic = 0x494d4147;
  std::shared_ptr<Module> module;   // null: not PTX
  CUresult error = CUDA_SUCCESS;    // why it cannot be used
  std::map<std::string, struct Kernel *> kernels;
  std::vector<u64> variables;       // device allocations
};

struct Kernel {
  u32 magic = 0x4b45524e;
  Image *image = nullptr;
  std::shared_ptr<Program> program;
  std::map<int, int> maxDynamicShared;  // by device
  bool nonPortableCluster = false;
  int maxDynamic(int device) const {
    auto it = maxDynamicShared.find(device);
    return it != maxDynamicShared.end() ? it->second
                                        : std::max(0, 49152 - int(program->ast->staticShared));
  }
};

void initOptions();
bool initialised();
Context *currentContext();               // null: none
Stream *streamOf(CUstream s);            // null: not a stream
CUresult imageFromData(const void *data, Image **out);
CUresult kernelFromImage(Image *image, const char *name, Kernel **out);
void unloadImage(Image *image);
Kernel *kernelOf(const void *handle);

// What nearly every entry point starts with: lock, initialised, a context, no sticky error.
#define EMU_ENTER()                                                    \
  std::lock_guard<std::recursive_mutex> emuGuard(emu::driverLock());   \
  if (!emu::initialised()) return CUDA_ERROR_NOT_INITIALIZED
#define EMU_ENTER_CONTEXT()                                            \
  EMU_ENTER();                                                         \
  if (!emu::currentContext()) return CUDA_ERROR_INVALID_CONTEXT;       \
  if (emu::stickyError()) return CUresult(emu::stickyError())

}  // namespace emu
