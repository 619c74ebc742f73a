// test_refusals.cpp - what a call refuses, in which words, and that nothing is harmed by it.
// (test_validate.cpp has every rule, without a device.)
#include <cmath>

#include "hand_call.h"

namespace {

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

} // namespace

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
