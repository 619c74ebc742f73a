// test_large.cpp - tensors whose offsets do not fit into 32 bits.  Only a GPU with 40 GiB free runs
// these; they come last and one at a time.
//
// The data stays small: a few rows far apart, or one batch entry that all others share by stride 0.
#include <functional>

#include "check.h"
#include "ptx_run.h"

namespace {

// A tensor of any strides on the device, filled with NaN bits; rows are copied one by one.
struct FarTensor {
  Dense shape;
  int64_t stride_batch, stride_seq, stride_head;
  Buffer buffer;

  FarTensor(const Dense &x, int64_t batch, int64_t seq, int64_t head)
      : shape(x.batch, x.heads, x.seqlen, x.dim),
        stride_batch(batch),
        stride_seq(seq),
        stride_head(head),
        buffer(2 * size_t((x.batch - 1) * batch + (x.seqlen - 1) * seq + (x.heads - 1) * head +
                          x.dim)) {
    CUDA(cuMemsetD8Async(buffer.address, 0xFF, buffer.bytes, device().stream));
  }

  void each_row(const std::function<void(CUdeviceptr, size_t)> &f) const {
    for (int b = 0; b < shape.batch; ++b)
      for (int h = 0; h < shape.heads; ++h)
        for (int s = 0; s < shape.seqlen; ++s)
          f(buffer.address + 2 * uint64_t(b * stride_batch + s * stride_seq + h * stride_head),
            shape.row(b, h, s));
  }

  void put(const Dense &x) {
    each_row([&](CUdeviceptr to, size_t row) {
      CUDA(cuMemcpyHtoDAsync(to, &x.bits[row], size_t(x.dim) * 2, device().stream));
    });
    CUDA(cuStreamSynchronize(device().stream));
  }

  Dense get() const {
    Dense x = shape;
    each_row([&](CUdeviceptr from, size_t row) {
      CUDA(cuMemcpyDtoHAsync(&x.bits[row], from, size_t(x.dim) * 2, device().stream));
    });
    CUDA(cuStreamSynchronize(device().stream));
    return x;
  }

  fa3ptx_tensor tensor(fa3ptx_dtype dtype) const {
    void *data = reinterpret_cast<void *>(buffer.address);
    return {data, stride_batch, stride_seq, stride_head, dtype, 0};
  }
};

void finish(fa3ptx_status status) {
  INFO(std::string(fa3ptx_last_error()));
  REQUIRE(status == FA3PTX_OK);
  CUDA(cuStreamSynchronize(device().stream));
}

std::vector<float> read_floats(const Buffer &buffer) {
  std::vector<float> values(buffer.bytes / 4);
  CUDA(cuMemcpyDtoHAsync(values.data(), buffer.address, buffer.bytes, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
  return values;
}

// Forward and backward of `p` with these strides for every tensor, against float64.
void check_far(const Problem &p, int64_t batch, int64_t seq, int64_t head) {
  INFO(p.name());
  const Values x = make_values(p);
  const Reference ref = reference(p, x, true);
  const auto far = [&](const Dense &shape) { return FarTensor(shape, batch, seq, head); };
  FarTensor q = far(x.q), k = far(x.k), v = far(x.v), dout = far(x.dout), o = far(x.dout);
  FarTensor dq = far(x.q), dk = far(x.k), dv = far(x.v);
  q.put(x.q), k.put(x.k), v.put(x.v), dout.put(x.dout);
  Buffer lse(size_t(p.batch) * p.heads_q * p.seqlen_q * 4);

  fa3ptx_forward_args args = shape_args(p);
  args.q = q.tensor(p.dtype), args.k = k.tensor(p.dtype), args.v = v.tensor(p.dtype);
  args.o = o.tensor(p.dtype);
  args.lse = reinterpret_cast<float *>(lse.address);
  finish(fa3ptx_forward(&args, device().stream));
  Outputs out;
  out.o = o.get();
  out.lse = read_floats(lse);
  CHECK(join(compare_forward(p, ref, out)) == "");

  fa3ptx_backward_args grad = backward_shape_args(p);
  grad.q = args.q, grad.k = args.k, grad.v = args.v, grad.o = args.o, grad.lse = args.lse;
  grad.dout = dout.tensor(p.dtype), grad.dq = dq.tensor(p.dtype);
  grad.dk = dk.tensor(p.dtype), grad.dv = dv.tensor(p.dtype);
  REQUIRE(fa3ptx_backward_workspace_size(&grad, &grad.workspace_size) == FA3PTX_OK);
  Buffer workspace(grad.workspace_size + 256);
  grad.workspace = reinterpret_cast<void *>(workspace.address);
  finish(fa3ptx_backward(&grad, device().stream));
  out.dq = dq.get(), out.dk = dk.get(), out.dv = dv.get();
  CHECK(join(compare_backward(p, ref, out)) == "");
}

Problem shape(int batch, int seqlen_q, int seqlen_k, int heads_q, int heads_kv, int head_dim,
              bool causal) {
  Problem p;
  p.batch = batch, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
  p.heads_q = heads_q, p.heads_kv = heads_kv, p.head_dim = head_dim, p.causal = causal;
  return p;
}

// All batch entries read the same inputs (stride 0) and write outputs of their own, more than 2^31
// elements of them: each must get what the first gets, and that must be right.
void check_many(const Problem &p, bool gradients) {
  INFO(p.name());
  Problem one = p;
  one.batch = 1;
  const Values x = make_values(one);
  const auto dense = [](const Dense &s, int64_t batches) {
    return FarTensor(Dense(int(batches), s.heads, s.seqlen, s.dim),
                     int64_t(s.heads) * s.seqlen * s.dim, int64_t(s.heads) * s.dim, s.dim);
  };
  const auto repeated = [&](const FarTensor &t) {
    fa3ptx_tensor view = t.tensor(p.dtype);
    view.stride_batch = 0;
    return view;
  };
  FarTensor q = dense(x.q, 1), k = dense(x.k, 1), v = dense(x.v, 1), dout = dense(x.dout, 1);
  q.put(x.q), k.put(x.k), v.put(x.v), dout.put(x.dout);
  FarTensor o = dense(x.dout, p.batch);
  Buffer lse(size_t(p.batch) * p.heads_q * p.seqlen_q * 4);
  // The result of one batch entry.
  const auto entry = [&](const FarTensor &t, int b) {
    FarTensor first = dense(t.shape, 1);
    CUDA(cuMemcpyDtoDAsync(first.buffer.address, t.buffer.address + 2 * b * t.stride_batch,
                           first.buffer.bytes, device().stream));
    return first.get();
  };

  fa3ptx_forward_args args = shape_args(p);
  args.q = repeated(q), args.k = repeated(k), args.v = repeated(v), args.o = o.tensor(p.dtype);
  args.lse = reinterpret_cast<float *>(lse.address);
  finish(fa3ptx_forward(&args, device().stream));
  Outputs out;
  out.o = entry(o, 0);
  out.lse = read_floats(lse);
  CHECK(join(compare_forward(one, reference(one, x, some_rows(one)), out)) == "");
  for (int b : {1, p.batch / 2, p.batch - 1}) CHECK(entry(o, b).bits == out.o.bits);
  for (size_t i = 0; i < out.lse.size(); ++i)
    REQUIRE(out.lse[i] == out.lse[i % (size_t(p.heads_q) * p.seqlen_q)]);
  if (!gradients) return;

  FarTensor dq = dense(x.q, p.batch), dk = dense(x.k, p.batch), dv = dense(x.v, p.batch);
  fa3ptx_backward_args grad = backward_shape_args(p);
  grad.q = args.q, grad.k = args.k, grad.v = args.v, grad.o = repeated(o), grad.lse = args.lse;
  grad.dout = repeated(dout), grad.dq = dq.tensor(p.dtype);
  grad.dk = dk.tensor(p.dtype), grad.dv = dv.tensor(p.dtype);
  grad.flags |= FA3PTX_FLAG_DETERMINISTIC;
  REQUIRE(fa3ptx_backward_workspace_size(&grad, &grad.workspace_size) == FA3PTX_OK);
  Buffer workspace(grad.workspace_size + 256);
  grad.workspace = reinterpret_cast<void *>(workspace.address);
  finish(fa3ptx_backward(&grad, device().stream));
  out.dq = entry(dq, 0), out.dk = entry(dk, 0), out.dv = entry(dv, 0);
  CHECK(join(compare_backward(one, reference(one, x, true), out)) == "");
  for (int b : {1, p.batch / 2, p.batch - 1}) {
    CHECK(entry(dq, b).bits == out.dq.bits);
    CHECK(entry(dk, b).bits == out.dk.bits);
    CHECK(entry(dv, b).bits == out.dv.bits);
  }
}

} // namespace

DEVICE_CASE("batch entries 2^30 elements apart", Case::large_gpu, 120) {
  check_far(shape(3, 300, 300, 2, 2, 128, true), int64_t(1) << 30, 2 * 128, 128);
}

DEVICE_CASE("rows 2^20 elements apart", Case::large_gpu, 120) {
  check_far(shape(1, 2100, 2100, 2, 1, 64, true), 0, int64_t(1) << 20, 64);
}

DEVICE_CASE("heads 2^30 elements apart", Case::large_gpu, 120) {
  check_far(shape(1, 200, 200, 3, 3, 64, false), 0, 64, int64_t(1) << 30);
}

DEVICE_CASE("2^31 elements of O and dQ: a large batch of long queries", Case::large_gpu, 120) {
  check_many(shape(400, 10496, 128, 4, 4, 128, false), true);
}

DEVICE_CASE("2^31 elements of O: many sequences of grouped heads", Case::large_gpu, 120) {
  check_many(shape(520, 512, 512, 32, 2, 256, true), false);
}
