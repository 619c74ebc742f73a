// test_emulator.cpp - the emulated driver as a driver: loading and its errors, launches and their
// limits, streams, events, capture, several devices, findings. (What kernels may and may not do is
// in test_hazards.cpp, single instructions in test_instructions.cpp.)
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

#include "cases.h"
#include "ptx_run.h"

namespace {

#define SPELL_(x) #x
#define SPELL(x) SPELL_(x)
#define CALLS(CALL)                                                                            \
  CALL(cuModuleLoadData) CALL(cuModuleUnload) CALL(cuModuleGetFunction) CALL(cuLaunchKernel)   \
  CALL(cuLibraryLoadData) CALL(cuLibraryGetKernel) CALL(cuLibraryUnload) CALL(cuMemsetD32)     \
  CALL(cuStreamCreate) CALL(cuStreamDestroy) CALL(cuStreamWaitEvent) CALL(cuStreamSynchronize) \
  CALL(cuStreamQuery) CALL(cuStreamIsCapturing) CALL(cuGraphExecDestroy) CALL(cuGraphDestroy)  \
  CALL(cuMemcpyHtoD) CALL(cuMemcpyDtoH) CALL(cuMemAlloc) CALL(cuMemFree) CALL(cuMemsetD32Async) \
  CALL(cuTensorMapEncodeTiled) CALL(cuFuncSetAttribute) CALL(cuFuncGetAttribute)               \
  CALL(cuDeviceGet) CALL(cuDevicePrimaryCtxRetain) CALL(cuCtxSetCurrent) CALL(cuCtxGetDevice)  \
  CALL(cuGetProcAddress) CALL(cuGetErrorName) CALL(cuCtxSynchronize) CALL(cuEventQuery)

struct Api {
#define CALL(name) decltype(&::name) name = nullptr;
  CALLS(CALL)
#undef CALL
  Api() {
    if (!emulator().report) throw Skip("about the emulated driver");
    device();
    void *library = dlopen(std::getenv("FA3PTX_LIBCUDA"), RTLD_NOW);
#define CALL(name)                                                      \
  name = reinterpret_cast<decltype(name)>(dlsym(library, SPELL(name))); \
  REQUIRE(bool(name));
    CALLS(CALL)
#undef CALL
  }
};
// A case begins with api(): what it throws where there is a GPU, CHECK would catch.
const Api &api() {
  static const Api calls;
  return calls;
}

const char HEAD[] = ".version 8.3\n.target sm_90a\n.address_size 64\n";
// out[tid] = in[tid] + add
const char ADD[] =
    ".visible .entry add(.param .u64 OUT, .param .u64 IN, .param .u32 N)\n.maxntid 256, 1, 1\n{\n"
    ".reg .b64 o, i, t; .reg .b32 x, n;\nld.param.u64 o, [OUT]; ld.param.u64 i, [IN];\n"
    "ld.param.u32 n, [N]; mov.u32 x, %tid.x; mul.wide.u32 t, x, 4; add.u64 o, o, t;\n"
    "add.u64 i, i, t; ld.global.u32 x, [i]; add.u32 x, x, n; st.global.u32 [o], x; ret;\n}\n";

struct Module {
  CUmodule handle = nullptr;
  explicit Module(const std::string &body) {
    REQUIRE(api().cuModuleLoadData(&handle, (HEAD + body).c_str()) == CUDA_SUCCESS);
  }
  ~Module() { api().cuModuleUnload(handle); }
  CUfunction function(const char *name) const {
    CUfunction f = nullptr;
    REQUIRE(api().cuModuleGetFunction(&f, handle, name) == CUDA_SUCCESS);
    return f;
  }
};

CUresult launch_add(CUfunction f, CUdeviceptr out, CUdeviceptr in, unsigned n, CUstream s,
                    unsigned threads = 32) {
  void *arguments[] = {&out, &in, &n};
  return api().cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, s, arguments, nullptr);
}

struct Streams {
  CUstream a = nullptr, b = nullptr;
  Streams() {
    REQUIRE(api().cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(api().cuStreamCreate(&b, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
  ~Streams() {
    api().cuStreamDestroy(a);
    api().cuStreamDestroy(b);
  }
};

// ---- loading ------------------------------------------------------------------------------------
DEVICE_CASE("emulator: an unknown instruction is refused with its file and line") {
  api();
  const std::string text = std::string("# 1 \"mine.ptx\"\n") + HEAD +
                           ".visible .entry k()\n{\n# 70 \"part.inc\"\n\n  frobnicate.b32 5;\n}\n";
  CUmodule m;
  CUfunction f;
  REQUIRE(api().cuModuleLoadData(&m, text.c_str()) == CUDA_SUCCESS);
  CHECK(api().cuModuleGetFunction(&f, m, "k") == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(emulator().report()).find("part.inc:71") != std::string::npos);
  CHECK(std::string(emulator().report()).find("frobnicate.b32") != std::string::npos);
  emulator().clear();
}

DEVICE_CASE("emulator: syntax errors, wrong widths and undeclared names are refused") {
  api();
  struct Bad { const char *body, *says; };
  const Bad bad[] = {{"mov.b32 %r1, 0", "expected ';'"},
                     {".reg .b32 a; .reg .b64 b; add.u32 a, b, 1;", "64 bits"},
                     {".reg .b32 a; add.u32 a, nothing, 1;", "unknown name"},
                     {".reg .b32 a; ld.shared.v2.b32 a, [a];", "vector"},
                     {".reg .f32 a; mov.f32 a, 0f0;", "8 digits"},
                     {"bra nowhere;", "nowhere"}};
  for (const Bad &x : bad) {
    CAPTURE(x.body);
    emulator().clear();
    CUmodule m = nullptr;
    CUfunction f;
    const std::string text = std::string(HEAD) + ".visible .entry k()\n{\n" + x.body + "\n}\n";
    CUresult r = api().cuModuleLoadData(&m, text.c_str());
    if (r == CUDA_SUCCESS) r = api().cuModuleGetFunction(&f, m, "k");
    CHECK(r == CUDA_ERROR_INVALID_PTX);
    CHECK(std::string(emulator().report()).find(x.says) != std::string::npos);
  }
  emulator().clear();
}

DEVICE_CASE("emulator: junk passes cuLibraryLoadData and fails at cuLibraryGetKernel") {
  api();
  for (const char *junk : {"\177ELF\2\1\1", "not PTX at all", ""}) {
    CUlibrary l = nullptr;
    CUkernel k = nullptr;
    CHECK(api().cuLibraryLoadData(&l, junk, nullptr, nullptr, 0, nullptr, nullptr, 0) ==
          CUDA_SUCCESS);
    CHECK(api().cuLibraryGetKernel(&k, l, "k") != CUDA_SUCCESS);
    CHECK(api().cuLibraryUnload(l) == CUDA_SUCCESS);
  }
  emulator().clear();
  Module m(ADD);
  CUfunction f = nullptr;
  CHECK(api().cuModuleGetFunction(&f, m.handle, "nosuch") == CUDA_ERROR_NOT_FOUND);
}

// ---- launches -----------------------------------------------------------------------------------
DEVICE_CASE("emulator: launches that cannot be are refused") {
  api();
  Module m(ADD);
  const CUfunction f = m.function("add");
  Buffer b(4096);
  b.fill(0, 4096);
  const auto shape = [&](unsigned gx, unsigned gy, unsigned bx, unsigned shared) {
    unsigned n = 0;
    void *arguments[] = {&b.address, &b.address, &n};
    return api().cuLaunchKernel(f, gx, gy, 1, bx, 1, 1, shared, nullptr, arguments, nullptr);
  };
  CHECK(shape(1, 1, 256, 0) == CUDA_SUCCESS);
  CHECK(shape(0, 1, 32, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 65536, 32, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 1, 257, 0) == CUDA_ERROR_INVALID_VALUE);  // above .maxntid
  CHECK(shape(1, 1, 32, 49153) == CUDA_ERROR_INVALID_VALUE);
  const auto limit = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CHECK(api().cuFuncSetAttribute(f, limit, 232449) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api().cuFuncSetAttribute(f, limit, 232448) == CUDA_SUCCESS);
  CHECK(shape(1, 1, 32, 232448) == CUDA_SUCCESS);
  CHECK(api().cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(api().cuMemcpyHtoD(b.address + 4095, &b, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api().cuMemFree(b.address + 16) == CUDA_ERROR_INVALID_VALUE);
}

// 13 warps of 152 registers would fit, but registers are given out for 16.
DEVICE_CASE("emulator: registers are given out by warpgroups") {
  api();
  const auto launch = [](const std::string &limits, unsigned threads) {
    Module m(".visible .entry k()\n" + limits +
             "\n{\nsetmaxnreg.dec.sync.aligned.u32 24; ret;\n}\n");
    const CUresult result = api().cuLaunchKernel(m.function("k"), 1, 1, 1, threads, 1, 1, 0,
                                                 nullptr, nullptr, nullptr);
    CHECK(api().cuCtxSynchronize() == CUDA_SUCCESS);
    return result;
  };
  CHECK(launch(".maxnreg 152", 416) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(launch(".maxnreg 152", 384) == CUDA_SUCCESS);
  CHECK(launch(".maxntid 416, 1, 1\n.minnctapersm 1", 416) == CUDA_SUCCESS); // ptxas takes 128
  CHECK(launch(".maxnreg 128", 512) == CUDA_SUCCESS);
}

DEVICE_CASE("emulator: a finding fails everything after it until it is cleared") {
  api();
  Module m(ADD);
  const CUfunction f = m.function("add");
  Buffer b(4096);
  b.fill(0, 4096);
  emulator().clear();
  CHECK(launch_add(f, b.address, b.address + 4096, 1, nullptr) == CUDA_SUCCESS);
  CHECK(api().cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(api().cuMemsetD32(b.address, 0, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(emulator().finding_count() == 1);
  CHECK(std::string(emulator().report()).find("out-of-bounds: kernel add") != std::string::npos);
  emulator().clear();
  CHECK(emulator().finding_count() == 0);
  CHECK(launch_add(f, b.address, b.address, 1, nullptr) == CUDA_SUCCESS);
  CHECK(api().cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(b.words(0, 1)[0] == 1);
}

// ---- streams ------------------------------------------------------------------------------------
// Ten additions on one stream, then a copy on another: without the event it comes too early.
unsigned chain(bool with_event, unsigned seed) {
  Module m(ADD);
  const CUfunction f = m.function("add");
  Streams s;
  Buffer x(256), y(256);
  x.fill(0, 256);
  y.fill(0, 256);
  emulator().seed(seed);
  for (int i = 0; i < 10; ++i) REQUIRE(launch_add(f, x.address, x.address, 1, s.a) == CUDA_SUCCESS);
  CUevent e = nullptr;
  CUDA(cuEventCreate(&e, CU_EVENT_DEFAULT));
  CUDA(cuEventRecord(e, s.a));
  if (with_event) REQUIRE(api().cuStreamWaitEvent(s.b, e, 0) == CUDA_SUCCESS);
  REQUIRE(launch_add(f, y.address, x.address, 0, s.b) == CUDA_SUCCESS);
  REQUIRE(api().cuStreamSynchronize(s.b) == CUDA_SUCCESS);
  if (with_event) CHECK(api().cuEventQuery(e) == CUDA_SUCCESS);
  const unsigned got = y.words(0, 1)[0];
  REQUIRE(api().cuStreamSynchronize(s.a) == CUDA_SUCCESS);
  CHECK(x.words(0, 1)[0] == 10);
  CUDA(cuEventDestroy(e));
  return got;
}

DEVICE_CASE("emulator: streams run apart, events order them") {
  api();
  bool early = false;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CHECK(chain(true, seed) == 10);
    early |= chain(false, seed) != 10;
  }
  CHECK(early);
}

DEVICE_CASE("emulator: the default stream waits for blocking streams, and they for it") {
  api();
  Module m(ADD);
  const CUfunction f = m.function("add");
  Buffer x(256);
  CUstream blocking = nullptr;
  REQUIRE(api().cuStreamCreate(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  for (unsigned seed = 1; seed <= 10; ++seed) {
    emulator().seed(seed);
    REQUIRE(api().cuMemsetD32Async(x.address, 5, 64, blocking) == CUDA_SUCCESS);
    REQUIRE(launch_add(f, x.address, x.address, 2, nullptr) == CUDA_SUCCESS);
    REQUIRE(launch_add(f, x.address, x.address, 10, blocking) == CUDA_SUCCESS);
    REQUIRE(api().cuStreamSynchronize(blocking) == CUDA_SUCCESS);
    CHECK(x.words(63 - 32, 1)[0] == 17);
  }
  api().cuStreamDestroy(blocking);
}

DEVICE_CASE("emulator: work is captured, forked and joined by events, and replayed") {
  api();
  Module m(ADD);
  const CUfunction f = m.function("add");
  Streams s;
  Buffer x(256), y(256);
  CUevent fork = nullptr, join = nullptr;
  CUDA(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CUDA(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  x.fill(0, 256);
  y.fill(0, 256);
  CUDA(cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(launch_add(f, x.address, x.address, 1, s.a) == CUDA_SUCCESS);
  CUDA(cuEventRecord(fork, s.a));
  REQUIRE(api().cuStreamWaitEvent(s.b, fork, 0) == CUDA_SUCCESS);
  CHECK(launch_add(f, y.address, x.address, 100, s.b) == CUDA_SUCCESS);
  CUDA(cuEventRecord(join, s.b));
  REQUIRE(api().cuStreamWaitEvent(s.a, join, 0) == CUDA_SUCCESS);
  CHECK(launch_add(f, y.address, y.address, 1000, s.a) == CUDA_SUCCESS);
  CHECK(api().cuStreamSynchronize(s.a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CUDA(cuStreamEndCapture(s.a, &graph));
  CHECK(x.words(0, 1)[0] == 0);  // nothing has run
  CUgraphExec exec = nullptr;
  CUDA(cuGraphInstantiate(&exec, graph, 0));
  for (unsigned i = 1; i <= 3; ++i) {
    CUDA(cuGraphLaunch(exec, s.a));
    CUDA(cuStreamSynchronize(s.a));
    CHECK(y.words(31, 1)[0] == i + 1100);
  }
  CHECK(api().cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(api().cuGraphDestroy(graph) == CUDA_SUCCESS);
  // A fork that is not joined ends the capture with an error.
  CUDA(cuStreamBeginCapture(s.a, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUDA(cuEventRecord(fork, s.a));
  REQUIRE(api().cuStreamWaitEvent(s.b, fork, 0) == CUDA_SUCCESS);
  CHECK(launch_add(f, y.address, x.address, 1, s.b) == CUDA_SUCCESS);
  CHECK(device().cuda.cuStreamEndCapture(s.a, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

// ---- tensor maps --------------------------------------------------------------------------------
DEVICE_CASE("emulator: tensor maps are checked as the real driver checks them") {
  api();
  struct Map {
    uint64_t base = 1 << 20, extent = 64, rows = 16, stride = 128;
    uint32_t box = 64, box_rows = 16;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    CUresult encode() const {
      alignas(64) CUtensorMap map;
      const cuuint64_t extents[] = {extent, rows}, strides[] = {stride};
      const cuuint32_t boxes[] = {box, box_rows}, ones[] = {1, 1};
      return api().cuTensorMapEncodeTiled(
          &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void *>(base), extents,
          strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
  };
  const auto with = [](auto change) {
    Map m;
    change(m);
    return m.encode();
  };
  CHECK(Map().encode() == CUDA_SUCCESS);
  CHECK(with([](Map &m) { m.base = 0; }) == CUDA_SUCCESS);
  CHECK(with([](Map &m) { m.stride = 0; }) == CUDA_SUCCESS);
  CHECK(with([](Map &m) { m.extent = 0; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Map &m) { m.rows = 1, m.stride = 8; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Map &m) { m.base += 8; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Map &m) { m.box_rows = 257; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(with([](Map &m) { m.box = 72; }) == CUDA_ERROR_INVALID_VALUE);  // above the swizzle's span
  CHECK(with([](Map &m) { m.stride = 1ull << 40; }) == CUDA_ERROR_INVALID_VALUE);
}

// ---- other devices: in a process of its own, as knobs are read once -----------------------------
Case second_device{"emulator: child, two devices", [] {
  CUcontext contexts[2];
  CUdeviceptr memory[2];
  CUmodule m = nullptr;
  REQUIRE(api().cuModuleLoadData(&m, (std::string(HEAD) + ADD).c_str()) == CUDA_SUCCESS);
  CUfunction f = nullptr;
  REQUIRE(api().cuModuleGetFunction(&f, m, "add") == CUDA_SUCCESS);
  for (int d = 0; d < 2; ++d) {
    CUdevice handle;
    REQUIRE(api().cuDeviceGet(&handle, d) == CUDA_SUCCESS);
    REQUIRE(api().cuDevicePrimaryCtxRetain(&contexts[d], handle) == CUDA_SUCCESS);
    REQUIRE(api().cuCtxSetCurrent(contexts[d]) == CUDA_SUCCESS);
    REQUIRE(api().cuMemAlloc(&memory[d], 256) == CUDA_SUCCESS);
    REQUIRE(api().cuMemsetD32(memory[d], 1, 64) == CUDA_SUCCESS);
    CHECK(launch_add(f, memory[d], memory[d], 1, nullptr) == CUDA_SUCCESS);
    CHECK(api().cuCtxSynchronize() == CUDA_SUCCESS);
  }
  // The second device is current: the first one's memory is out of its reach.
  CHECK(launch_add(f, memory[1], memory[0], 1, nullptr) == CUDA_SUCCESS);
  CHECK(api().cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(std::string(emulator().report()).find("device 0") != std::string::npos);
  emulator().clear();
}, Case::any_device, 60, true};
const bool second_added = add_case(second_device);

DEVICE_CASE("emulator: knobs for devices and compute capability") {
  api();
  char self[4096] = "";
  REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const auto run = [&](const std::string &knobs) {
    const std::string command = knobs + " FA3EMU_QUIET=1 '" + self +
                                "' --here '--case==emulator: child, two devices' 2>&1";
    FILE *pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    for (int c; (c = fgetc(pipe)) != EOF;) text += char(c);
    pclose(pipe);
    return text;
  };
  CHECK(run("FA3EMU_DEVICES=2").find("1 passed, 0 failed") != std::string::npos);
  CHECK(run("FA3EMU_CC=80").find("compute capability 8.0") != std::string::npos);
  CHECK(run("FA3EMU_DEVICES=0").find("CUDA_ERROR_NO_DEVICE") != std::string::npos);
}

} // namespace
