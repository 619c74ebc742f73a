// driver_module.cpp - libraries, modules, kernels and their attributes, launches.
#include <algorithm>
#include <set>

#include "driver.h"

using namespace emu;

namespace {

std::set<const void *> liveKernels, liveImages;

// Device memory for module-scope .global and .const variables.
void placeVariables(Image *image) {
  for (auto &v : image->module->vars) {
    if (v->space != Space::Global && v->space != Space::Const) continue;
    Allocation *a = memory().allocate(std::max<u64>(v->size, 1), -1, "variable " + v->name);
    if (!a) throw PtxError("out of memory for variable " + v->name);
    a->constant = v->space == Space::Const;
    v->address = a->base;
    ::memset(reinterpret_cast<void *>(a->base), 0, a->size);
    memcpy(reinterpret_cast<void *>(a->base), v->init.data(), v->init.size());
    memory().markInit(a, a->base, a->size);
    image->variables.push_back(a->base);
  }
}

bool runsHere(const Module &m, int cc) {
  size_t at = m.target.find("sm_");
  if (at == std::string::npos) return true;
  int want = atoi(m.target.c_str() + at + 3);
  bool exact = m.target.find('a', at) != std::string::npos;  // sm_90a runs on 9.0 only
  return exact ? want == cc : want <= cc;
}

}  // namespace

namespace emu {

CUresult imageFromData(const void *data, Image **out) {
  auto image = std::make_unique<Image>();
  const char *text = static_cast<const char *>(data);
  if (memcmp(text, "\177ELF", 4) == 0 || memcmp(text, "\x50\xed\x55\xba", 4) == 0) {
    image->error = CUDA_ERROR_NO_BINARY_FOR_GPU;  // a cubin or fatbin: nothing to interpret
  } else {
    try {
      image->module = parsePtx(text);
      placeVariables(image.get());
      if (!runsHere(*image->module, options().cc)) image->error = CUDA_ERROR_NO_BINARY_FOR_GPU;
    } catch (const PtxError &e) {
      reportLoadError(e.what());
      image->error = CUDA_ERROR_INVALID_PTX;
    }
  }
  *out = image.release();
  liveImages.insert(*out);
  return (*out)->error;
}

CUresult kernelFromImage(Image *image, const char *name, Kernel **out) {
  if (image->error) return image->error;
  auto it = image->kernels.find(name);
  if (it != image->kernels.end()) {
    *out = it->second;
    return CUDA_SUCCESS;
  }
  for (auto &k : image->module->kernels) {
    if (k->name != name) continue;
    auto kernel = std::make_unique<Kernel>();
    kernel->image = image;
    try {
      kernel->program = decodeKernel(image->module, k.get());
    } catch (const PtxError &e) {
      reportLoadError(e.what());
      return CUDA_ERROR_INVALID_PTX;
    }
    *out = kernel.release();
    image->kernels[name] = *out;
    liveKernels.insert(*out);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

void unloadImage(Image *image) {
  drain(nullptr);
  for (u64 base : image->variables) memory().release(base);
  for (auto &e : image->kernels) {
    liveKernels.erase(e.second);
    delete e.second;
  }
  liveImages.erase(image);
  delete image;
}

Kernel *kernelOf(const void *handle) {
  return liveKernels.count(handle) ? static_cast<Kernel *>(const_cast<void *>(handle)) : nullptr;
}

}  // namespace emu

static Image *imageOf(const void *h) {
  return liveImages.count(h) ? static_cast<Image *>(const_cast<void *>(h)) : nullptr;
}

// ---- libraries -------------------------------------------------------------------------------
// Junk is accepted here and refused at cuLibraryGetKernel, as by the real driver.
CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *, void **, unsigned int,
                           CUlibraryOption *, void **, unsigned int) {
  EMU_ENTER();
  if (!out || !code) return CUDA_ERROR_INVALID_VALUE;
  Image *image;
  imageFromData(code, &image);
  *out = reinterpret_cast<CUlibrary>(image);
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary l) {
  EMU_ENTER();
  Image *image = imageOf(l);
  if (!image) return CUDA_ERROR_INVALID_HANDLE;
  unloadImage(image);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary l, const char *name) {
  EMU_ENTER();
  Image *image = imageOf(l);
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!image) return CUDA_ERROR_INVALID_HANDLE;
  Kernel *k = nullptr;
  CUresult r = kernelFromImage(image, name, &k);
  *out = reinterpret_cast<CUkernel>(k);
  return r;
}
CUresult cuLibraryGetKernelCount(unsigned int *n, CUlibrary l) {
  EMU_ENTER();
  Image *image = imageOf(l);
  if (!n || !image) return CUDA_ERROR_INVALID_VALUE;
  *n = image->module ? unsigned(image->module->kernels.size()) : 0;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *out, const void *code) {
  EMU_ENTER_CONTEXT();
  if (!out || !code) return CUDA_ERROR_INVALID_VALUE;
  Image *image;
  CUresult r = imageFromData(code, &image);
  if (r == CUDA_SUCCESS) *out = reinterpret_cast<CUmodule>(image);
  else unloadImage(image);
  return r;
}
CUresult cuModuleLoadDataEx(CUmodule *out, const void *code, unsigned int, CUjit_option *,
                            void **) {
  return cuModuleLoadData(out, code);
}
CUresult cuModuleUnload(CUmodule m) { return cuLibraryUnload(reinterpret_cast<CUlibrary>(m)); }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  return cuLibraryGetKernel(reinterpret_cast<CUkernel *>(f), reinterpret_cast<CUlibrary>(m), name);
}
CUresult cuKernelGetFunction(CUfunction *f, CUkernel k) {
  EMU_ENTER_CONTEXT();
  if (!kernelOf(k)) return CUDA_ERROR_INVALID_HANDLE;
  *f = reinterpret_cast<CUfunction>(k);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetLibrary(CUlibrary *l, CUkernel k) {
  EMU_ENTER();
  if (!kernelOf(k)) return CUDA_ERROR_INVALID_HANDLE;
  if (!l) return CUDA_ERROR_INVALID_VALUE;
  *l = reinterpret_cast<CUlibrary>(kernelOf(k)->image);
  return CUDA_SUCCESS;
}
static CUresult globalOf(CUdeviceptr *p, size_t *n, const void *handle, const char *name) {
  EMU_ENTER();
  Image *image = imageOf(handle);
  if (!image || !name) return CUDA_ERROR_INVALID_VALUE;
  if (image->error) return image->error;
  for (auto &v : image->module->vars)
    if (v->name == name && (v->space == Space::Global || v->space == Space::Const)) {
      if (p) *p = v->address;
      if (n) *n = v->size;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetGlobal(CUdeviceptr *p, size_t *n, CUmodule m, const char *name) {
  return globalOf(p, n, m, name);
}
CUresult cuLibraryGetGlobal(CUdeviceptr *p, size_t *n, CUlibrary l, const char *name) {
  return globalOf(p, n, l, name);
}

// ---- attributes -------------------------------------------------------------------------------
static u32 threadsOf(const KernelAst &k) {
  u32 n = k.maxntid[0] * std::max(1u, k.maxntid[1]) * std::max(1u, k.maxntid[2]);
  return n ? n : 1024;
}
static CUresult getAttribute(int *v, CUfunction_attribute a, Kernel *k, int device) {
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  if (!v) return CUDA_ERROR_INVALID_VALUE;
  const KernelAst &ast = *k->program->ast;
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = int(threadsOf(ast)); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *v = int(ast.staticShared); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *v = int(ast.localBytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = int(k->program->regsPerThread); break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *v = 83; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = options().cc; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = k->maxDynamic(device); break;
    default: *v = 0; break;
  }
  return CUDA_SUCCESS;
}
static CUresult setAttribute(CUfunction_attribute a, int v, Kernel *k, int device) {
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (v < 0 || v + int(k->program->ast->staticShared) > maxSharedOptin())
      return CUDA_ERROR_INVALID_VALUE;
    k->maxDynamicShared[device] = v;
  } else if (a == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
    k->nonPortableCluster = v != 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int *v, CUfunction_attribute a, CUkernel k, CUdevice d) {
  EMU_ENTER();
  return getAttribute(v, a, kernelOf(k), d);
}
CUresult cuKernelSetAttribute(CUfunction_attribute a, int v, CUkernel k, CUdevice d) {
  EMU_ENTER();
  if (d < 0 || d >= options().devices) return CUDA_ERROR_INVALID_DEVICE;
  return setAttribute(a, v, kernelOf(k), d);
}
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  EMU_ENTER_CONTEXT();
  return getAttribute(v, a, kernelOf(f), currentContext()->device);
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  EMU_ENTER_CONTEXT();
  return setAttribute(a, v, kernelOf(f), currentContext()->device);
}
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache) {
  EMU_ENTER_CONTEXT();
  return kernelOf(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuFuncGetName(const char **name, CUfunction f) {
  EMU_ENTER();
  Kernel *k = kernelOf(f);
  if (!k || !name) return CUDA_ERROR_INVALID_VALUE;
  *name = k->program->ast->name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int threads,
                                                     size_t dynamicShared) {
  EMU_ENTER_CONTEXT();
  Kernel *k = kernelOf(f);
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  if (!n || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *n = int(blocksPerSm(*k->program, u32(threads), u32(dynamicShared)));
  return CUDA_SUCCESS;
}

// ---- launches ---------------------------------------------------------------------------------
namespace {

CUresult checkShape(const Kernel &k, const LaunchConfig &c, int device) {
  const KernelAst &ast = *k.program->ast;
  u64 threads = u64(c.block[0]) * c.block[1] * c.block[2];
  for (int i = 0; i < 3; ++i)
    if (c.grid[i] == 0 || c.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  if (c.grid[0] > 2147483647u || c.grid[1] > 65535 || c.grid[2] > 65535 || threads > 1024 ||
      threads > threadsOf(ast))
    return CUDA_ERROR_INVALID_VALUE;
  if (ast.reqntid)
    for (int i = 0; i < 3; ++i)
      if (c.block[i] != std::max(1u, ast.maxntid[i])) return CUDA_ERROR_INVALID_VALUE;
  if (int(c.dynamicShared) > k.maxDynamic(device) ||
      c.dynamicShared + ast.staticShared > u32(maxSharedOptin()))
    return CUDA_ERROR_INVALID_VALUE;
  if (k.program->regsAreExact &&
      k.program->regsPerThread * wholeWarpgroups(u32(threads)) > kRegistersPerSm)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  u32 size = c.cluster[0] * c.cluster[1] * c.cluster[2];
  if (size == 0 || size > (k.nonPortableCluster ? 16u : 8u)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  for (int i = 0; i < 3; ++i)
    if (c.grid[i] % c.cluster[i]) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i)
    if (ast.cluster[0] && c.cluster[i] != std::max(1u, ast.cluster[i]))
      return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult collectParams(const Kernel &k, void **params, void **extra, std::vector<u8> *out) {
  const KernelAst &ast = *k.program->ast;
  out->assign(ast.paramBytes, 0);
  if (params) {
    for (size_t i = 0; i < ast.params.size(); ++i) {
      if (!params[i]) return CUDA_ERROR_INVALID_VALUE;
      memcpy(out->data() + ast.params[i]->address, params[i], ast.params[i]->size);
    }
    return CUDA_SUCCESS;
  }
  const void *buffer = nullptr;
  size_t size = 0;
  for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t *>(extra[1]);
    else return CUDA_ERROR_INVALID_VALUE;
  }
  if (ast.params.empty()) return CUDA_SUCCESS;
  if (!buffer || size > out->size()) return CUDA_ERROR_INVALID_VALUE;
  memcpy(out->data(), buffer, size);
  return CUDA_SUCCESS;
}

CUresult launch(const void *f, LaunchConfig cfg, CUstream hs, void **params, void **extra) {
  Kernel *k = kernelOf(f);
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  Stream *s = streamOf(hs);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  const KernelAst &ast = *k->program->ast;
  if (!cfg.hasCluster && ast.cluster[0]) {
    for (int i = 0; i < 3; ++i) cfg.cluster[i] = std::max(1u, ast.cluster[i]);
    cfg.hasCluster = true;
  }
  auto l = std::make_shared<Launch>();
  l->prog = k->program;
  l->cfg = cfg;
  l->device = s->device;
  CUresult r = checkShape(*k, cfg, s->device);
  if (r == CUDA_SUCCESS) r = collectParams(*k, params, extra, &l->params);
  if (r != CUDA_SUCCESS) return r;
  enqueue(s, nullptr, l);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream s, void **params,
                        void **extra) {
  EMU_ENTER_CONTEXT();
  LaunchConfig c;
  const u32 grid[3] = {gx, gy, gz}, blk[3] = {bx, by, bz};
  std::copy(grid, grid + 3, c.grid);
  std::copy(blk, blk + 3, c.block);
  c.dynamicShared = shared;
  return launch(f, c, s, params, extra);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params,
                          void **extra) {
  EMU_ENTER_CONTEXT();
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  LaunchConfig c;
  const u32 grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  const u32 blk[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  std::copy(grid, grid + 3, c.grid);
  std::copy(blk, blk + 3, c.block);
  c.dynamicShared = config->sharedMemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute &a = config->attrs[i];
    if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      c.cluster[0] = a.value.clusterDim.x;
      c.cluster[1] = a.value.clusterDim.y;
      c.cluster[2] = a.value.clusterDim.z;
      c.hasCluster = true;
    } else if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      c.programmatic = a.value.programmaticStreamSerializationAllowed != 0;
    }
  }
  return launch(f, c, config->hStream, params, extra);
}
