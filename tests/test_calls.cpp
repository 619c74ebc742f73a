// test_calls.cpp - what a call of the library asks of the driver, and what it makes of the answers.
//
// The library opens its driver once in a process, so each case runs in a child of its own; the
// driver there is tests/scripted.  A child writes a line for each thing that is wrong.
#include <doctest/doctest.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ptx_run.h" // built_file
#include "scripted/scripted.h"
#include "src/kernels.h"

namespace {

const std::string kScripted = built_file("scripted", "libcuda.so.1");

// ---- In the child -------------------------------------------------------------------------------
std::string wrong;

void expect(bool good, const char *what) {
  if (!good) wrong += std::string(what) + "; last error: " + fa3ptx_last_error() + "\n";
}
#define EXPECT(condition) expect((condition), #condition)

bool says(const char *words) { return strstr(fa3ptx_last_error(), words) != nullptr; }

Scripted &scripted() {
  void *library = dlopen(kScripted.c_str(), RTLD_NOW | RTLD_LOCAL);
  return *static_cast<Scripted *>(dlsym(library, "scripted"));
}

void use_driver(const std::string &path) { setenv("FA3PTX_LIBCUDA", path.c_str(), 1); }

fa3ptx_forward_args forward_args() {
  fa3ptx_forward_args a = {};
  a.struct_size = sizeof a;
  a.batch = 2, a.seqlen_q = 40, a.seqlen_k = 50, a.heads_q = 4, a.heads_kv = 2, a.head_dim = 64;
  a.q = fa3ptx_bshd((void *)0x10000000, FA3PTX_FP16, 40, 4, 64);
  a.k = fa3ptx_bshd((void *)0x20000000, FA3PTX_FP16, 50, 2, 64);
  a.v = fa3ptx_bshd((void *)0x30000000, FA3PTX_FP16, 50, 2, 64);
  a.o = fa3ptx_bshd((void *)0x40000000, FA3PTX_FP16, 40, 4, 64);
  a.flags = FA3PTX_FLAG_REFERENCE;
  return a;
}

fa3ptx_backward_args backward_args() {
  const fa3ptx_forward_args f = forward_args();
  fa3ptx_backward_args a = {};
  a.struct_size = sizeof a;
  a.batch = f.batch, a.seqlen_q = f.seqlen_q, a.seqlen_k = f.seqlen_k;
  a.heads_q = f.heads_q, a.heads_kv = f.heads_kv, a.head_dim = f.head_dim;
  a.q = f.q, a.k = f.k, a.v = f.v, a.o = f.o, a.flags = f.flags;
  a.dout = a.o, a.dq = a.q, a.dk = a.k, a.dv = a.v;
  a.dout.data = (void *)0x50000000, a.dq.data = (void *)0x60000000;
  a.dk.data = (void *)0x70000000, a.dv.data = (void *)0x80000000;
  a.lse = (const float *)0x90000000;
  a.workspace = (void *)0xa0000000, a.workspace_size = 1 << 20;
  return a;
}

fa3ptx_status forward(CUstream stream = nullptr) {
  const fa3ptx_forward_args a = forward_args();
  return fa3ptx_forward(&a, stream);
}
fa3ptx_status backward() {
  const fa3ptx_backward_args a = backward_args();
  return fa3ptx_backward(&a, nullptr);
}

// ---- In the parent ------------------------------------------------------------------------------
void in_child(void (*body)()) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);
    use_driver(kScripted);
    body();
    const ssize_t written = write(pipe_ends[1], wrong.data(), wrong.size());
    _exit(written == ssize_t(wrong.size()) ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  close(pipe_ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  if (text.compare(0, 6, "note: ") == 0) MESSAGE(text);
  else CHECK(text == "");
}

} // namespace

TEST_CASE("no driver: a status, and the failure is not remembered") {
  in_child([] {
    use_driver("/nowhere/libcuda.so.1");
    EXPECT(forward() == FA3PTX_ERROR_NO_DRIVER);
    EXPECT(says("/nowhere/libcuda.so.1 cannot be opened"));
    EXPECT(fa3ptx_preload() == FA3PTX_ERROR_NO_DRIVER);
    use_driver(kScripted);
    EXPECT(forward() == FA3PTX_OK);
    EXPECT(backward() == FA3PTX_OK);
  });
}

TEST_CASE("something that is no driver") {
  in_child([] {
    use_driver("libm.so.6");
    EXPECT(forward() == FA3PTX_ERROR_NO_DRIVER);
    EXPECT(says("libm.so.6 is too old: it has no cuInit"));
  });
}

TEST_CASE("a driver without a device") {
  in_child([] {
    scripted().init = CUDA_ERROR_NO_DEVICE;
    EXPECT(forward() == FA3PTX_ERROR_NO_DRIVER);
    EXPECT(says("no usable device") && says("CUDA_ERROR_NO_DEVICE"));
    EXPECT(scripted().launches == 0);
  });
}

TEST_CASE("no current context; then one") {
  in_child([] {
    scripted().context = CUDA_ERROR_INVALID_CONTEXT;
    EXPECT(forward() == FA3PTX_ERROR_NO_CONTEXT);
    EXPECT(fa3ptx_preload() == FA3PTX_ERROR_NO_CONTEXT);
    EXPECT(says("no CUDA context"));
    scripted().context = CUDA_SUCCESS;
    EXPECT(forward() == FA3PTX_OK);
  });
}

TEST_CASE("devices are told apart: one of 9.0, one of 10.0") {
  in_child([] {
    scripted().capability[1] = 100;
    for (int turn = 0; turn < 3; turn++) {
      scripted().device = 1;
      EXPECT(forward() == FA3PTX_ERROR_WRONG_DEVICE);
      EXPECT(says("device 1") && says("10.0") && says("9.0"));
      scripted().device = 0;
      EXPECT(forward() == FA3PTX_OK);
    }
    EXPECT(scripted().launches == 3);
  });
}

TEST_CASE("each driver call that fails is named, and the next call works") {
  in_child([] {
    Scripted &s = scripted();
    const struct { CUresult *answer; const char *call; } calls[] = {
        {&s.context, "cuCtxGetDevice"}, {&s.attribute, "cuDeviceGetAttribute"},
        {&s.load, "cuLibraryLoadData"}, {&s.get_kernel, "cuLibraryGetKernel"},
        {&s.set_attribute, "cuKernelSetAttribute"}, {&s.launch, "cuLaunchKernelEx"}};
    for (const auto &call : calls) { // in the order in which a first call makes them
      *call.answer = CUDA_ERROR_OUT_OF_MEMORY;
      EXPECT(forward() == FA3PTX_ERROR_DRIVER);
      if (!says(call.call) || !says("2 (CUDA_ERROR_OUT_OF_MEMORY: no description)"))
        wrong += std::string(call.call) + ": " + fa3ptx_last_error() + "\n";
      *call.answer = CUDA_SUCCESS;
    }
    EXPECT(forward() == FA3PTX_OK);
    s.get_function = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT(fa3ptx_preload() == FA3PTX_ERROR_DRIVER);
    EXPECT(says("cuKernelGetFunction"));
  });
}

TEST_CASE("a launch carries the row's threads and shared memory, the stream and the parameters") {
  in_child([] {
    Scripted &s = scripted();
    s.param_size = REF_PARAMS;
    EXPECT(forward(reinterpret_cast<CUstream>(0x1234)) == FA3PTX_OK);
    const fa3ptx::Row &row = fa3ptx::kRows[fa3ptx::k_fwd_ref_fp16];
    EXPECT(s.launches == 1);
    EXPECT(s.memsets == 0);
    EXPECT(s.last.hStream == reinterpret_cast<CUstream>(0x1234));
    EXPECT(s.last.blockDimX == unsigned(row.threads));
    EXPECT(s.last.blockDimY == 1 && s.last.blockDimZ == 1);
    EXPECT(s.last.gridDimX == 2 * 40 * 4 / 8 && s.last.gridDimY == 1 && s.last.gridDimZ == 1);
    EXPECT(s.last.sharedMemBytes == unsigned(row.smem));
    EXPECT(s.last.numAttrs == 0);
    uint64_t q, stride;
    int32_t seqlen_k;
    memcpy(&q, s.params + REF_Q + REF_TENSOR_DATA, 8);
    memcpy(&stride, s.params + REF_K + REF_TENSOR_SEQ, 8);
    memcpy(&seqlen_k, s.params + REF_SEQLEN_K, 4);
    EXPECT(q == 0x10000000);
    EXPECT(stride == 2 * 64 * 2);
    EXPECT(seqlen_k == 50);
    EXPECT(backward() == FA3PTX_OK);
    EXPECT(s.launches == 3);
  });
}

TEST_CASE("a rejected call launches nothing; queries need no driver and leave the sentence alone") {
  in_child([] {
    fa3ptx_forward_args a = forward_args();
    a.head_dim = 12;
    EXPECT(fa3ptx_forward(&a, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
    fa3ptx_backward_args b = backward_args();
    b.workspace_size = 10;
    EXPECT(fa3ptx_backward(&b, nullptr) == FA3PTX_ERROR_WORKSPACE);
    EXPECT(scripted().launches == 0);
    const std::string before = fa3ptx_last_error();
    use_driver("/nowhere/libcuda.so.1");
    size_t bytes = 0;
    EXPECT(fa3ptx_backward_workspace_size(&b, &bytes) == FA3PTX_OK);
    EXPECT(bytes > 0);
    EXPECT(fa3ptx_last_error() == before);
    use_driver(kScripted);
    EXPECT(forward() == FA3PTX_OK);
  });
}

TEST_CASE("a query without a driver assumes 132 multiprocessors, and does not complain") {
  in_child([] {
    use_driver("/nowhere/libcuda.so.1");
    fa3ptx_plan_info info = {};
    info.struct_size = sizeof info;
    const fa3ptx_forward_args a = forward_args();
    EXPECT(fa3ptx_explain_forward(&a, &info) == FA3PTX_OK);
    EXPECT(strstr(info.text, "132 multiprocessors") != nullptr);
    EXPECT(fa3ptx_last_error()[0] == 0);
    use_driver(kScripted);
    scripted().multiprocessors[0] = 114;
    EXPECT(fa3ptx_explain_forward(&a, &info) == FA3PTX_OK);
    EXPECT(strstr(info.text, "114 multiprocessors") != nullptr);
  });
}

TEST_CASE("sixteen threads and two devices: one load a kernel, one attribute a kernel and device") {
  in_child([] {
    Scripted &s = scripted();
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    const auto hammer = [&] {
      for (int i = 0; i < 200; i++) failures += forward() != FA3PTX_OK || backward() != FA3PTX_OK;
    };
    for (int i = 0; i < 16; i++) threads.emplace_back(hammer);
    for (std::thread &t : threads) t.join();
    EXPECT(failures == 0);
    EXPECT(s.loads == 3);
    s.device = 1;
    hammer();
    EXPECT(s.loads == 3);
    EXPECT(s.attributes_set >= 6); // threads that meet there may set it twice, to the same value
    const int settled = s.attributes_set;
    hammer();
    EXPECT(s.attributes_set == settled);
    EXPECT(s.launches == 3 * 200 * 18);
  });
}

TEST_CASE("preload loads every row, once") {
  in_child([] {
    EXPECT(fa3ptx_preload() == FA3PTX_OK);
    EXPECT(scripted().loads == fa3ptx::kRowCount);
    EXPECT(scripted().functions == fa3ptx::kRowCount);
    EXPECT(forward() == FA3PTX_OK);
    EXPECT(fa3ptx_preload() == FA3PTX_OK);
    EXPECT(scripted().loads == fa3ptx::kRowCount);
  });
}

TEST_CASE("a call costs the host less than 5 microseconds beside the driver's own time") {
  in_child([] {
    fa3ptx_forward_args f = forward_args();
    fa3ptx_backward_args b = backward_args();
    char text[200] = "note: microseconds of forward, backward";
    for (uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_REFERENCE)}) {
      f.flags = b.flags = flags;
      double best[2] = {1e9, 1e9}; // of many batches: the machine may be busy
      for (int batch = 0; batch < 100; batch++) {
        const auto start = std::chrono::steady_clock::now();
        const bool backward = batch % 2;
        for (int i = 0; i < 200; i++)
          EXPECT((backward ? fa3ptx_backward(&b, nullptr) : fa3ptx_forward(&f, nullptr)) ==
                 FA3PTX_OK);
        const std::chrono::duration<double, std::micro> time =
            std::chrono::steady_clock::now() - start;
        if (time.count() / 200 < best[backward]) best[backward] = time.count() / 200;
      }
      EXPECT(best[0] < 5);
      EXPECT(best[1] < 5);
      const size_t used = strlen(text);
      snprintf(text + used, sizeof text - used, "%s %.2f, %.2f", flags ? "; reference" : ":",
               best[0], best[1]);
    }
    if (wrong.empty()) wrong = text;
  });
}
