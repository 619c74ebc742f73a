// harness_run.cpp - puts a problem into fenced memory, makes the call, fetches what it left.
#include <algorithm>
#include <cstring>
#include <map>

#include "harness.h"
#include "storage.h"

namespace {

constexpr int64_t GUARD = 2048;             // 16-bit words of fence on each side: 4 KiB
constexpr uint16_t FENCE = 0xA5A5;          // round outputs and workspace, and in their gaps
constexpr uint16_t NEVER_WRITTEN = 0xFFFF;  // a NaN in bf16, fp16 and, doubled, in fp32

uint16_t poison_word(Poison poison, fa3ptx_dtype dtype) {
  const uint16_t infinity = dtype == FA3PTX_FP16 ? 0x7C00 : 0x7F80;
  switch (poison) {
    case Poison::zero: return 0;
    case Poison::nan: return 0x7FFF;
    case Poison::plus_inf: return infinity;
    default: return infinity | 0x8000;
  }
}

// A device allocation and the image of it on the host, in 16-bit words: guard, content, guard.
struct Buffer {
  Machine &machine;
  std::string name;
  bool output;
  std::vector<uint16_t> image;
  std::vector<bool> written; // the words an output tensor covers: the call may change these
  uint64_t address;

  Buffer(Machine &m, std::string n, int64_t words, bool out, uint16_t padding)
      : machine(m),
        name(std::move(n)),
        output(out),
        image(size_t(words + 2 * GUARD), padding),
        written(out ? image.size() : 0),
        address(m.allocate(image.size() * 2)) {}
  ~Buffer() { machine.release(address); }
  Buffer(const Buffer &) = delete;

  void upload() { machine.upload(address, image.data(), image.size() * 2); }

  // The content after the call; a sentence for the first word that must not have changed and did.
  std::vector<uint16_t> fetch(Complaints &damage) const {
    std::vector<uint16_t> now(image.size());
    machine.download(now.data(), address, now.size() * 2);
    size_t changed = 0, first = 0;
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i] != image[i] && !(output && written[i]) && changed++ == 0) first = i;
    if (changed)
      damage.push_back(name + (output ? ": " : " (an input): ") + std::to_string(changed) +
                       " words changed that no output covers; the first is " + place(first));
    return now;
  }

  std::string place(size_t i) const {
    const int64_t at = int64_t(i) - GUARD, words = int64_t(image.size()) - 2 * GUARD;
    if (at < 0) return std::to_string(-at) + " words before the buffer";
    if (at >= words) return std::to_string(at - words) + " words after the buffer";
    return "word " + std::to_string(at) + " of " + std::to_string(words);
  }
};

// Where a tensor lies in its buffer, in elements.
struct View {
  Buffer *buffer = nullptr;
  int64_t offset = 0, stride_batch = 0, stride_seq = 0, stride_head = 0;
  int batch = 0, heads = 0, seqlen = 0, dim = 0;

  size_t word(int b, int h, int s) const {
    return size_t(GUARD + offset + b * stride_batch + s * stride_seq + h * stride_head);
  }

  template <class F> // f(word in the buffer, word in the dense tensor), once per row
  void each_row(F f) const {
    size_t at = 0;
    for (int b = 0; b < batch; ++b)
      for (int h = 0; h < heads; ++h)
        for (int s = 0; s < seqlen; ++s, at += size_t(dim)) f(word(b, h, s), at);
  }

  void put(const Dense &x) const {
    each_row([&](size_t to, size_t from) {
      std::copy_n(x.bits.begin() + from, dim, buffer->image.begin() + to);
    });
  }

  void expect_output() const {
    each_row([&](size_t to, size_t) {
      std::fill_n(buffer->image.begin() + to, dim, NEVER_WRITTEN);
      std::fill_n(buffer->written.begin() + to, dim, true);
    });
  }

  fa3ptx_tensor tensor(fa3ptx_dtype dtype) const {
    const uint64_t data = buffer->address + uint64_t(GUARD + offset) * 2;
    return {reinterpret_cast<void *>(data), stride_batch, stride_seq, stride_head, dtype, 0};
  }
};

// Buffers and views of one run.
class Arena {
 public:
  Arena(Machine &machine, const Problem &problem, Poison poison)
      : machine_(machine), p_(problem), poison_(poison) {}

  View input(const char *name, const Dense &x) {
    View view = place(name, x, false);
    view.put(x);
    return view;
  }

  View output(const char *name, int heads, int seqlen, int dim) {
    const Dense shape(p_.batch, heads, seqlen, dim);
    View view = place(name, shape, true);
    view.expect_output();
    return view;
  }

  // A plain block: workspace (cleared to `word`) or LSE.
  Buffer &block(const char *name, size_t words, bool out, uint16_t word) {
    Buffer &buffer = add(name, int64_t(words), out);
    std::fill_n(buffer.image.begin() + GUARD, words, word);
    if (out) std::fill_n(buffer.written.begin() + GUARD, words, true);
    return buffer;
  }

  void upload() {
    for (auto &[name, buffer] : buffers_) buffer->upload();
  }

  void fetch(Complaints &damage) {
    for (auto &[name, buffer] : buffers_) content_[buffer.get()] = buffer->fetch(damage);
  }

  Dense result(const View &view) const {
    const std::vector<uint16_t> &words = content_.at(view.buffer);
    Dense x(view.batch, view.heads, view.seqlen, view.dim);
    view.each_row([&](size_t from, size_t to) {
      std::copy_n(words.begin() + from, view.dim, x.bits.begin() + to);
    });
    return x;
  }

  const std::vector<uint16_t> &content(const Buffer &buffer) const {
    return content_.at(&buffer);
  }

 private:
  Buffer &add(const std::string &name, int64_t words, bool out) {
    auto &slot = buffers_[name];
    const uint16_t padding = out ? FENCE : poison_word(poison_, p_.dtype);
    if (!slot) slot = std::make_unique<Buffer>(machine_, name, words, out, padding);
    return *slot;
  }

  View place(const std::string &name, const Dense &x, bool out) {
    View v;
    v.batch = x.batch, v.heads = x.heads, v.seqlen = x.seqlen, v.dim = x.dim;
    const int64_t b = x.batch, h = x.heads, s = x.seqlen, d = x.dim;
    const bool in_packed = name != "o" && name != "dout";
    if (p_.layout == Layout::packed && in_packed) {
      place_packed(name, out, v);
    } else if (p_.layout == Layout::bhsd) {
      v.stride_batch = h * s * d, v.stride_head = s * d, v.stride_seq = d;
      v.buffer = &add(name, b * h * s * d, out);
    } else if (p_.layout == Layout::fused) {
      // 8 words between heads, 24 and 40 on the sides of a row, 3 rows between batch entries
      v.stride_head = d + 8, v.stride_seq = h * (d + 8) + 64;
      v.stride_batch = (s + 3) * v.stride_seq;
      v.offset = v.stride_seq + 24;
      v.buffer = &add(name, b * v.stride_batch + 2 * v.stride_seq, out);
    } else {
      v.stride_batch = s * h * d, v.stride_seq = h * d, v.stride_head = d;
      if (p_.layout == Layout::broadcast && !out) broadcast(name, v);
      v.buffer = &add(name, b * h * s * d, out);
    }
    return v;
  }

  // Rows of [ heads_q of q | heads_kv of k | heads_kv of v ], the longer length for all three.
  void place_packed(const std::string &name, bool out, View &v) {
    const int64_t q_columns = int64_t(p_.heads_q) * p_.head_dim;
    const int64_t k_columns = int64_t(p_.heads_kv) * p_.head_dim;
    const int64_t columns = q_columns + k_columns + int64_t(p_.heads_kv) * p_.dim_v();
    const int64_t rows = std::max(p_.seqlen_q, p_.seqlen_k);
    const char letter = name.back();
    v.offset = letter == 'q' ? 0 : letter == 'k' ? q_columns : q_columns + k_columns;
    v.stride_head = v.dim, v.stride_seq = columns, v.stride_batch = rows * columns;
    v.buffer = &add(out ? "dqkv" : "qkv", p_.batch * v.stride_batch, out);
  }

  static void broadcast(const std::string &name, View &v) {
    if (name == "q" || name == "dout") v.stride_head = 0;
    if (name == "k" || name == "v" || name == "dout") v.stride_batch = 0;
    if (name == "dout") v.stride_seq = 0;
  }

  Machine &machine_;
  const Problem &p_;
  Poison poison_;
  std::map<std::string, std::unique_ptr<Buffer>> buffers_;
  std::map<const Buffer *, std::vector<uint16_t>> content_;
};

size_t lse_count(const Problem &p) { return size_t(p.batch) * p.heads_q * p.seqlen_q; }

void *content_address(const Buffer &buffer) {
  return reinterpret_cast<void *>(buffer.address + GUARD * 2);
}

template <class Args>
void attach_workspace(Arena &arena, Args &args, size_t bytes, Poison poison) {
  if (bytes == 0) return;
  const uint16_t word = poison == Poison::zero ? 0 : NEVER_WRITTEN;
  args.workspace = content_address(arena.block("workspace", (bytes + 1) / 2, true, word));
  args.workspace_size = bytes;
}

} // namespace

Run run_forward(Machine &machine, const Problem &p, const Values &values, Poison poison) {
  Run run;
  Arena arena(machine, p, poison);
  fa3ptx_forward_args args = shape_args(p);
  const View o = arena.output("o", p.heads_q, p.seqlen_q, p.dim_v());
  args.q = arena.input("q", values.q).tensor(p.dtype);
  args.k = arena.input("k", values.k).tensor(p.dtype);
  args.v = arena.input("v", values.v).tensor(p.dtype);
  args.o = o.tensor(p.dtype);
  Buffer *lse = nullptr;
  if (p.want_lse) {
    lse = &arena.block("lse", lse_count(p) * 2, true, NEVER_WRITTEN);
    args.lse = static_cast<float *>(content_address(*lse));
  }
  size_t bytes = 0;
  run.status = machine.workspace_size(args, bytes);
  if (run.status == FA3PTX_OK) {
    attach_workspace(arena, args, bytes, poison);
    arena.upload();
    run.status = machine.forward(args);
  }
  if (run.status != FA3PTX_OK) {
    run.error = fa3ptx_last_error();
    return run;
  }
  arena.fetch(run.damage);
  run.outputs.o = arena.result(o);
  if (lse) {
    run.outputs.lse.resize(lse_count(p));
    if (!run.outputs.lse.empty())
      std::memcpy(run.outputs.lse.data(), arena.content(*lse).data() + GUARD, lse_count(p) * 4);
  }
  return run;
}

Run run_backward(Machine &machine, const Problem &p, const Values &values, const Outputs &forward,
                 Poison poison) {
  Run run;
  Arena arena(machine, p, poison);
  fa3ptx_backward_args args = backward_shape_args(p);
  const View dq = arena.output("dq", p.heads_q, p.seqlen_q, p.head_dim);
  const View dk = arena.output("dk", p.heads_kv, p.seqlen_k, p.head_dim);
  const View dv = arena.output("dv", p.heads_kv, p.seqlen_k, p.dim_v());
  args.q = arena.input("q", values.q).tensor(p.dtype);
  args.k = arena.input("k", values.k).tensor(p.dtype);
  args.v = arena.input("v", values.v).tensor(p.dtype);
  // Under Layout::broadcast only dout has stride 0; o is what the forward call wrote.
  args.o = arena.input("o", forward.o).tensor(p.dtype);
  args.dout = arena.input("dout", values.dout).tensor(p.dtype);
  args.dq = dq.tensor(p.dtype);
  args.dk = dk.tensor(p.dtype);
  args.dv = dv.tensor(p.dtype);
  Buffer &lse = arena.block("lse", lse_count(p) * 2, false, 0);
  if (!forward.lse.empty())
    std::memcpy(lse.image.data() + GUARD, forward.lse.data(), lse_count(p) * 4);
  args.lse = static_cast<const float *>(content_address(lse));

  size_t bytes = 0;
  run.status = machine.workspace_size(args, bytes);
  if (run.status == FA3PTX_OK) {
    attach_workspace(arena, args, bytes, poison);
    arena.upload();
    run.status = machine.backward(args);
  }
  if (run.status != FA3PTX_OK) {
    run.error = fa3ptx_last_error();
    return run;
  }
  arena.fetch(run.damage);
  run.outputs.dq = arena.result(dq);
  run.outputs.dk = arena.result(dk);
  run.outputs.dv = arena.result(dv);
  return run;
}
