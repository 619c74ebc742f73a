// hand_call.h - a forward call on the device, made by hand: its arguments are the test's to change.
#pragma once
#include "check.h"
#include "ptx_run.h"

inline Problem shape(int batch, int seqlen, int heads_q, int heads_kv, int head_dim,
                     bool causal = false) {
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
