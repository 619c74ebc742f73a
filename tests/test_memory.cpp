// test_memory.cpp - strides, views, alignment, streams, graphs, messages: what a caller can do with
// memory and calls.  test_cases.cpp has shapes and values, test_large.cpp sizes beyond 32 bits.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <cmath>

#include "check.h"
#include "ptx_run.h"
#include "storage.h"

namespace {

Problem shape(int batch, int seqlen, int heads_q, int heads_kv, int head_dim, bool causal = false) {
  Problem p;
  p.batch = batch;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.head_dim = head_dim;
  p.causal = causal;
  return p;
}

// A contiguous (batch, seqlen, heads, dim) tensor on the device: for calls made by hand.
struct DeviceTensor {
  Buffer buffer;
  fa3ptx_tensor tensor;

  DeviceTensor(const Problem &p, const Dense &x)
      : buffer(x.bits.size() * 2 + 256),
        tensor(fa3ptx_bshd(reinterpret_cast<void *>(buffer.address), p.dtype, x.seqlen, x.heads,
                           x.dim)) {
    write(x);
  }

  void write(const Dense &x) {
    std::vector<uint16_t> words;
    for (int b = 0; b < x.batch; ++b)
      for (int s = 0; s < x.seqlen; ++s)
        for (int h = 0; h < x.heads; ++h)
          words.insert(words.end(), x.bits.begin() + x.row(b, h, s),
                       x.bits.begin() + x.row(b, h, s) + x.dim);
    buffer.write(words.data(), words.size() * 2);
  }
};

// A forward call whose arguments a test changes before making it.
struct Call {
  Problem p;
  Values values;
  DeviceTensor q, k, v, o;
  Buffer lse;
  fa3ptx_forward_args args;

  explicit Call(const Problem &problem)
      : p(problem),
        values(make_values(p)),
        q(p, values.q),
        k(p, values.k),
        v(p, values.v),
        o(p, Dense(p.batch, p.heads_q, p.seqlen_q, p.dim_v())),
        lse(size_t(p.batch) * p.heads_q * p.seqlen_q * 4),
        args(shape_args(p)) {
    args.q = q.tensor;
    args.k = k.tensor;
    args.v = v.tensor;
    args.o = o.tensor;
    args.lse = reinterpret_cast<float *>(lse.address);
    clear();
  }

  void clear() {
    o.buffer.fill(0xFF, o.buffer.bytes);
    lse.fill(0xFF, lse.bytes);
    CUDA(cuCtxSynchronize());
  }

  fa3ptx_status run() {
    const fa3ptx_status status = fa3ptx_forward(&args, device().stream);
    CUDA(cuStreamSynchronize(device().stream));
    return status;
  }

  std::vector<uint32_t> output() { return o.buffer.words(0, o.buffer.bytes / 4); }

  bool untouched() {
    for (uint32_t word : output())
      if (word != 0xFFFFFFFF) return false;
    return true;
  }
};

// Makes the call with changed arguments: it has to be refused in words that name `what`, leave O
// alone and do no lasting harm.
template <class Change>
void refused(Call &call, const std::string &what, Change change) {
  const fa3ptx_forward_args good = call.args;
  change(call.args);
  call.clear();
  const fa3ptx_status status = call.run();
  const std::string sentence = fa3ptx_last_error();
  INFO("expected a refusal that names ", what, "; status ", int(status), ": ", sentence);
  CHECK(status == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(sentence.find(what) != std::string::npos);
  CHECK(call.untouched());
  call.args = good;
  CHECK(call.run() == FA3PTX_OK);
}

// The GPU, to be changed in one point.
struct Through : Machine {
  uint64_t allocate(size_t n) override { return gpu().allocate(n); }
  void release(uint64_t a) override { gpu().release(a); }
  void upload(uint64_t to, const void *from, size_t n) override { gpu().upload(to, from, n); }
  void download(void *to, uint64_t from, size_t n) override { gpu().download(to, from, n); }
  fa3ptx_status workspace_size(const fa3ptx_forward_args &a, size_t &n) override {
    return gpu().workspace_size(a, n);
  }
  fa3ptx_status workspace_size(const fa3ptx_backward_args &a, size_t &n) override {
    return gpu().workspace_size(a, n);
  }
  fa3ptx_status forward(const fa3ptx_forward_args &a) override { return gpu().forward(a); }
  fa3ptx_status backward(const fa3ptx_backward_args &a) override { return gpu().backward(a); }
};

// Calls are captured, and the graph is launched twice.
struct AsGraph : Through {
  fa3ptx_status forward(const fa3ptx_forward_args &a) override {
    fa3ptx_status status = FA3PTX_OK;
    run_as_graph([&] { status = fa3ptx_forward(&a, device().stream); }, 2);
    return status;
  }
  fa3ptx_status backward(const fa3ptx_backward_args &a) override {
    fa3ptx_status status = FA3PTX_OK;
    run_as_graph([&] { status = fa3ptx_backward(&a, device().stream); }, 2);
    return status;
  }
};

// Leaves NaN bits in the shared memory of every multiprocessor.
void stain_shared_memory() {
  static const char text[] = R"(
.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 shared[];
.visible .entry stain(.param .u32 bytes) {
  .reg .b32 %at, %end, %start;
  .reg .pred %more;
  mov.u32 %at, %tid.x;
  shl.b32 %at, %at, 2;
  ld.param.u32 %end, [bytes];
  mov.u32 %start, shared;
fill:
  setp.lt.u32 %more, %at, %end;
  @!%more bra done;
  { .reg .b32 %a;
    add.u32 %a, %start, %at;
    st.shared.b32 [%a], -1; }
  add.u32 %at, %at, 1024;
  bra fill;
done:
  ret;
}
)";
  const std::string path = "/tmp/fa3ptx_stain_" + std::to_string(getpid()) + ".ptx";
  std::ofstream(path) << text;
  const PtxFile file(path);
  unlink(path.c_str());
  const uint32_t bytes = pick<uint32_t>(220 * 1024, 64 * 1024);
  LaunchShape shape;
  shape.grid = pick(unsigned(device().multiprocessors), 2u);
  shape.block = 256;
  shape.shared = bytes;
  cuda_check(launch(file.kernel("stain"), shape, device().stream, {&bytes}), "stain");
  CUDA(cuStreamSynchronize(device().stream));
}

} // namespace

// ---- Views ---------------------------------------------------------------------------------

DEVICE_CASE("columns of a fused buffer give the bits of dense tensors, neighbours untouched") {
  for (int s : {5, 129, pick(300, 70)}) {
    Problem dense = shape(2, s, 4, 4, 128, true), packed = dense, fused = dense, heads = dense;
    packed.layout = Layout::packed;
    fused.layout = Layout::fused;
    heads.layout = Layout::bhsd;
    dense.flags = packed.flags = fused.flags = heads.flags = FA3PTX_FLAG_DETERMINISTIC;
    const Values values = make_values(dense);
    const Outputs want = forward(dense, values), gradient = backward(dense, values, want);
    for (const Problem &p : {packed, fused, heads}) {
      INFO(p.name());
      CHECK(same_bits(want, forward(p, values)));
      CHECK(same_bits(gradient, backward(p, values, want)));
    }
  }
}

DEVICE_CASE("what lies between and behind the rows does not matter, whatever bits it has") {
  for (int head_dim : {64, 128, 256}) {
    Problem p = shape(2, 100, 4, 2, head_dim);
    p.layout = Layout::fused;
    p.flags = FA3PTX_FLAG_DETERMINISTIC;
    check(p, with_backward({Poison::zero, Poison::plus_inf, Poison::minus_inf}));
  }
}

DEVICE_CASE("outputs are written with their own strides, several rows and heads, long keys") {
  for (Layout layout : {Layout::bshd, Layout::fused, Layout::bhsd}) {
    Problem p = shape(1, 7, 8, 8, 128);
    p.seqlen_k = pick(4096, 300);
    p.layout = layout;
    check(p);
  }
}

DEVICE_CASE("the stride of an axis of extent 1 is not read") {
  Call call(shape(1, 1, 32, 8, 128));
  REQUIRE(call.run() == FA3PTX_OK);
  const std::vector<uint32_t> want = call.output();
  for (int64_t stride : {4096, 1, 0, 3, -1}) {
    INFO("stride ", stride);
    call.clear();
    for (fa3ptx_tensor *t : {&call.args.q, &call.args.k, &call.args.v, &call.args.o})
      t->stride_seq = t->stride_batch = stride;
    CHECK(call.run() == FA3PTX_OK);
    CHECK(call.output() == want);
  }
  // One key: O is V, each row of it for the four heads of a group.
  for (int h = 0; h < 32; ++h)
    for (int c = 0; c < 128; c += 2) {
      uint32_t pair;
      std::memcpy(&pair, &call.values.v.bits[call.values.v.row(0, h / 4, 0) + c], 4);
      REQUIRE(want[(h * 128 + c) / 2] == pair);
    }
}

DEVICE_CASE("a broadcast dO, stride 0, gives the bits of a dense one", Case::any_device, 120) {
  Problem p = shape(1, 1, pick(16, 4), pick(16, 4), 64), broadcast = p;
  p.seqlen_k = broadcast.seqlen_k = pick(65536, 200);
  p.flags = broadcast.flags = FA3PTX_FLAG_DETERMINISTIC;
  broadcast.layout = Layout::broadcast;
  const Values values = make_values(broadcast); // equal rows: the same values suit both
  const Outputs out = forward(p, values);
  const Outputs dense = backward(p, values, out), view = backward(broadcast, values, out);
  CHECK(same_bits(dense, view));
  const Reference ref = reference(p, values, true);
  CHECK(join(compare_backward(p, ref, view)) == "");
}

DEVICE_CASE("bits left in shared memory by another kernel do not matter", Case::any_device, 120) {
  for (int s : {8, 9, 12, 63, 65, 127, 129, 193}) {
    if (device().emulated && s > 65) continue;
    Problem p = shape(pick(9, 1), s, pick(20, 2), pick(4, 1), 128);
    p.flags = FA3PTX_FLAG_DETERMINISTIC;
    const Values values = make_values(p);
    const Reference ref = reference(p, values, true);
    const Outputs clean = forward(p, values), gradient = backward(p, values, clean);
    CHECK(join(compare_forward(p, ref, clean)) == "");
    CHECK(join(compare_backward(p, ref, gradient)) == "");
    for (int i = 0; i < pick(10, 1); ++i) {
      stain_shared_memory();
      CHECK(same_bits(clean, forward(p, values)));
      stain_shared_memory();
      CHECK(same_bits(gradient, backward(p, values, clean)));
    }
  }
}

// ---- Refusals ------------------------------------------------------------------------------

DEVICE_CASE("pointers and strides that are no multiple of 16 bytes are refused by name") {
  Call call(shape(1, 64, 2, 2, 64));
  const auto tensors = {std::make_pair("q", &fa3ptx_forward_args::q),
                        std::make_pair("k", &fa3ptx_forward_args::k),
                        std::make_pair("v", &fa3ptx_forward_args::v),
                        std::make_pair("o", &fa3ptx_forward_args::o)};
  for (const auto &[name, member] : tensors) {
    const auto with = [&, member = member](const std::string &field, auto change) {
      refused(call, field, [&](fa3ptx_forward_args &a) { change(a.*member); });
    };
    const std::string prefix = name;
    for (int bytes : {2, 4, 8})
      with(prefix + ".data",
           [=](fa3ptx_tensor &t) { t.data = static_cast<char *>(t.data) + bytes; });
    with(prefix + ".data", [](fa3ptx_tensor &t) { t.data = nullptr; });
    for (int64_t stride : {132, 130, -128})
      with(prefix + ".stride_seq", [=](fa3ptx_tensor &t) { t.stride_seq = stride; });
    with(prefix + ".stride_head", [](fa3ptx_tensor &t) { t.stride_head = 68; });
  }
}

DEVICE_CASE("a refusal names the argument, and the next call works") {
  Call call(shape(1, 64, 6, 2, 64));
  using Args = fa3ptx_forward_args;
  refused(call, "head_dim", [](Args &a) { a.head_dim = 63; });
  refused(call, "heads_q", [](Args &a) { a.heads_kv = 4; });
  refused(call, "heads_kv", [](Args &a) { a.heads_kv = 0; });
  refused(call, "seqlen_q", [](Args &a) { a.seqlen_q = -1; });
  refused(call, "seqlen_k", [](Args &a) { a.seqlen_k = -7; });
  refused(call, "batch", [](Args &a) { a.batch = -1; });
  refused(call, "q.dtype", [](Args &a) { a.q.dtype = 99; });
  refused(call, "v.dtype", [](Args &a) { a.v.dtype = FA3PTX_FP16; });
  refused(call, "mask", [](Args &a) { a.mask = 7; });
  refused(call, "softmax_scale", [](Args &a) { a.softmax_scale = -1; });
  refused(call, "softmax_scale", [](Args &a) { a.softmax_scale = NAN; });
  refused(call, "softmax_scale", [](Args &a) { a.softmax_scale = INFINITY; });
  refused(call, "struct_size", [](Args &a) { a.struct_size -= 8; });
  refused(call, "flags", [](Args &a) { a.flags = 1u << 30; });
  refused(call, "lse", [](Args &a) { a.lse = reinterpret_cast<float *>(uintptr_t(a.lse) + 2); });
}

DEVICE_CASE("a backward workspace one byte too small is refused") {
  Problem p = shape(1, 64, 2, 1, 64);
  fa3ptx_backward_args args = backward_shape_args(p);
  size_t bytes = 0;
  REQUIRE(fa3ptx_backward_workspace_size(&args, &bytes) == FA3PTX_OK);
  if (bytes == 0) throw Skip("the backward kernel in use needs no workspace");
  struct Small : Through { // hands out one byte less than is asked for
    using Through::workspace_size;
    fa3ptx_status workspace_size(const fa3ptx_backward_args &a, size_t &n) override {
      const fa3ptx_status status = gpu().workspace_size(a, n);
      --n;
      return status;
    }
  } small;
  const Values values = make_values(p);
  const Outputs out = forward(p, values);
  const Run run = run_backward(small, p, values, out);
  CHECK(run.status == FA3PTX_ERROR_WORKSPACE);
  CHECK(run.error.find("workspace") != std::string::npos);
}

TEST_CASE("FP8 is refused by name where no kernel takes it") {
  Problem p = shape(1, 64, 2, 2, 64);
  p.dtype = FA3PTX_E4M3;
  fa3ptx_forward_args args = shape_args(p);
  args.o.dtype = FA3PTX_BF16;
  size_t bytes = 0;
  const fa3ptx_status status = fa3ptx_forward_workspace_size(&args, &bytes);
  if (status != FA3PTX_OK) {
    CHECK(status == FA3PTX_ERROR_UNSUPPORTED);
    CHECK(std::string(fa3ptx_last_error()).find("E4M3") != std::string::npos);
  }
  const fa3ptx_backward_args gradients = backward_shape_args(p);
  CHECK(fa3ptx_backward_workspace_size(&gradients, &bytes) == FA3PTX_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(fa3ptx_last_error()).find("q.dtype") != std::string::npos);
}

DEVICE_CASE("without keys K and V may be null pointers") {
  Call call(shape(1, 64, 4, 4, 64));
  call.args.seqlen_k = 0;
  call.args.k.data = call.args.v.data = nullptr;
  REQUIRE(call.run() == FA3PTX_OK);
  const size_t words = size_t(64) * 4 * 64 / 2;
  for (uint32_t word : call.o.buffer.words(0, words)) REQUIRE(word == 0);
  for (uint32_t word : call.lse.words(0, size_t(64) * 4)) REQUIRE(word == 0xFF800000); // -inf
}

// ---- Streams and graphs --------------------------------------------------------------------

DEVICE_CASE("a captured call replays with whatever the buffers hold then") {
  for (int seqlen_k : {pick(300, 70), 0}) {
    Problem p = shape(2, 65, 4, 2, 64, true);
    p.seqlen_k = seqlen_k;
    Call call(p);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUDA(cuStreamBeginCapture(device().stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(fa3ptx_forward(&call.args, device().stream) == FA3PTX_OK);
    CUDA(cuStreamEndCapture(device().stream, &graph));
    CUDA(cuGraphInstantiate(&exec, graph, 0));
    CHECK(call.untouched()); // capturing runs nothing
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      p.seed = seed;
      const Values values = make_values(p);
      call.q.write(values.q);
      call.k.write(values.k);
      call.v.write(values.v);
      CUDA(cuCtxSynchronize());
      call.clear();
      REQUIRE(call.run() == FA3PTX_OK);
      const std::vector<uint32_t> eager = call.output();
      call.clear();
      CUDA(cuGraphLaunch(exec, device().stream));
      CUDA(cuStreamSynchronize(device().stream));
      CHECK(call.output() == eager);
    }
  }
}

DEVICE_CASE("captured in the strictest mode, forward and backward are right, every launch again") {
  REQUIRE(fa3ptx_preload() == FA3PTX_OK); // loading a kernel is more than enqueuing
  AsGraph machine;
  const uint32_t kinds[] = {0, FA3PTX_FLAG_DETERMINISTIC, FA3PTX_FLAG_REFERENCE};
  for (int head_dim : {64, 128, 192, 256})
    for (uint32_t flags : kinds)
      for (int seqlen_k : {140, 0}) {
        Problem p = shape(1, 65, 4, 2, head_dim, true);
        p.seqlen_k = seqlen_k, p.flags = flags;
        INFO(p.name());
        CHECK(join(verify(machine, p, with_backward({}))) == "");
      }
}

DEVICE_CASE("work goes to the caller's stream, after what is in it", Case::real_gpu) {
  // A long forward call keeps the stream busy; then the real inputs overwrite NaN; then the call.
  Call busy(shape(4, 8192, 16, 16, 128));
  Call call(shape(2, 131, 3, 3, 64));
  REQUIRE(call.run() == FA3PTX_OK);
  const std::vector<uint32_t> want = call.output();
  const Dense real = call.values.q;
  Dense nan = real;
  nan.bits.assign(nan.bits.size(), 0x7FFF);
  DeviceTensor source(call.p, real);
  call.q.write(nan);
  call.clear();
  for (int i = 0; i < 20; ++i) CHECK(fa3ptx_forward(&busy.args, device().stream) == FA3PTX_OK);
  CUDA(cuMemcpyDtoDAsync(call.q.buffer.address, source.buffer.address, real.bits.size() * 2,
                         device().stream));
  CHECK(fa3ptx_forward(&call.args, device().stream) == FA3PTX_OK);
  CHECK(device().cuda.cuStreamQuery(device().stream) == CUDA_ERROR_NOT_READY); // calls don't wait
  CUDA(cuStreamSynchronize(device().stream));
  CHECK(call.output() == want);
}

DEVICE_CASE("every kernel can be loaded beforehand") {
  CHECK(fa3ptx_preload() == FA3PTX_OK);
  CHECK(fa3ptx_preload() == FA3PTX_OK);
}
