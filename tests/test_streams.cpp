// test_streams.cpp - calls in streams and in graphs.
#include "hand_call.h"
#include "row_machine.h"

namespace {

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

// Each call of the row has one like it right in front, whose outputs it overwrites.
struct Twice : RowMachine {
  explicit Twice(fa3ptx::RowIndex row)
      : RowMachine(row), backward_row(is_backward(fa3ptx::kRows[row])) {}
  const bool backward_row;
  using RowMachine::workspace_size;
  fa3ptx_status workspace_size(const fa3ptx_forward_args &a, size_t &bytes) override {
    return backward_row ? gpu().workspace_size(a, bytes) : RowMachine::workspace_size(a, bytes);
  }
  fa3ptx_status forward(const fa3ptx_forward_args &a) override {
    if (backward_row) return gpu().forward(a);
    const fa3ptx_status status = enqueue(a);
    return status == FA3PTX_OK ? RowMachine::forward(a) : status;
  }
  fa3ptx_status backward(const fa3ptx_backward_args &a) override {
    const fa3ptx_status status = enqueue(a);
    return status == FA3PTX_OK ? RowMachine::backward(a) : status;
  }
};

} // namespace

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

// On the emulated driver a kernel that does not wait for the one before is reported.
DEVICE_CASE("a call may follow another without a wait in between, for every kernel") {
  for (int i = 0; i < fa3ptx::kRowCount; ++i) {
    const fa3ptx::Row &row = fa3ptx::kRows[i];
    if (!heads_plans(row) || row.dtype != fa3ptx::Dtype::BF16) continue;
    if (row.role == fa3ptx::Role::QUANT) continue;
    Problem p = problem_of(row);
    p.heads_q = p.heads_kv = 2;
    p.seqlen_q = row.tile_m + 5, p.seqlen_k = row.tile_n + 3;
    INFO(row.name);
    Twice machine{fa3ptx::RowIndex(i)};
    CHECK(join(verify(machine, p, is_backward(row) ? with_backward({}) : VerifyOptions{})) == "");
  }
}

namespace {

// y = forward(x), z = forward(y), the gradients of that, x = forward(z), x in E4M3, forward(x):
// each reads what calls before it wrote, and x is overwritten.  Returns all that was written.
std::vector<uint32_t> chain(const Problem &p, const std::function<void()> &between) {
  const CUstream stream = device().stream;
  Call first(p), second(p), third(p);
  second.args.q = first.o.tensor;
  third.args.q = second.o.tensor, third.args.o = first.q.tensor;

  const Values &values = first.values;
  DeviceTensor dout(p, values.dout), dq(p, values.q), dk(p, values.k), dv(p, values.v);
  fa3ptx_backward_args b = backward_shape_args(p);
  b.q = second.args.q, b.k = second.args.k, b.v = second.args.v;
  b.o = second.args.o, b.lse = second.args.lse, b.dout = dout.tensor;
  b.dq = dq.tensor, b.dk = dk.tensor, b.dv = dv.tensor;
  REQUIRE(fa3ptx_backward_workspace_size(&b, &b.workspace_size) == FA3PTX_OK);
  Buffer workspace(b.workspace_size), scale(256);
  b.workspace = reinterpret_cast<void *>(workspace.address);

  Problem fp8 = p;
  fp8.dtype = FA3PTX_E4M3, fp8.heads_kv = p.heads_q;
  Buffer small(values.q.bits.size());
  fa3ptx_quantize_args quantize = {};
  quantize.struct_size = sizeof quantize;
  quantize.src = quantize.dst = first.q.tensor;
  quantize.dst.data = reinterpret_cast<void *>(small.address), quantize.dst.dtype = FA3PTX_E4M3;
  quantize.scale = reinterpret_cast<float *>(scale.address);
  quantize.batch = p.batch, quantize.seqlen = p.seqlen_q, quantize.heads = p.heads_q;
  quantize.head_dim = p.head_dim;
  DeviceTensor last(p, values.q);
  fa3ptx_forward_args a = shape_args(fp8);
  a.q = a.k = a.v = quantize.dst, a.o = last.tensor;
  a.q_scale = a.k_scale = a.v_scale = fa3ptx_quantized(&quantize);

  CUDA(cuCtxSynchronize());
  const auto done = [&](fa3ptx_status status) {
    CHECK(status == FA3PTX_OK);
    between();
  };
  done(fa3ptx_forward(&first.args, stream));
  done(fa3ptx_forward(&second.args, stream));
  done(fa3ptx_backward(&b, stream));
  done(fa3ptx_forward(&third.args, stream));
  done(fa3ptx_quantize(&quantize, stream));
  done(fa3ptx_forward(&a, stream));
  CUDA(cuStreamSynchronize(stream));
  std::vector<uint32_t> all;
  for (DeviceTensor *t : {&first.q, &first.o, &second.o, &dq, &dk, &dv, &last})
    for (uint32_t word : t->buffer.words(0, t->buffer.bytes / 4 - 64)) all.push_back(word);
  return all;
}

} // namespace

DEVICE_CASE("calls without a wait in between read and overwrite what those before left") {
  for (int head_dim : {64, 96, 128, 192, 256})
    for (bool causal : {false, true}) {
      Problem p = shape(1, pick(1030, 130), 4, 2, head_dim, causal);
      p.flags = FA3PTX_FLAG_DETERMINISTIC;
      INFO(p.name());
      const auto want = chain(p, [] { CUDA(cuStreamSynchronize(device().stream)); });
      for (int i = 0; i < pick(20, 1); ++i) CHECK(chain(p, [] {}) == want);
    }
}
