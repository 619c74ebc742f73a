// test_memory.cpp - strides, views, and what lies in memory beside the tensors.  test_refusals.cpp
// has what is not accepted, test_streams.cpp streams and graphs, test_cases.cpp shapes and values,
// test_large.cpp sizes beyond 32 bits.
#include <unistd.h>

#include <fstream>

#include "hand_call.h"
#include "storage.h"

namespace {

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

DEVICE_CASE("without keys K and V may be null pointers") {
  Call call(shape(1, 64, 4, 4, 64));
  call.args.seqlen_k = 0;
  call.args.k.data = call.args.v.data = nullptr;
  REQUIRE(call.run() == FA3PTX_OK);
  const size_t words = size_t(64) * 4 * 64 / 2;
  for (uint32_t word : call.o.buffer.words(0, words)) REQUIRE(word == 0);
  for (uint32_t word : call.lse.words(0, size_t(64) * 4)) REQUIRE(word == 0xFF800000); // -inf
}
