// test_quantize.cpp - bf16/fp16 to E4M3: bit by bit where nothing is rotated, in float64 where rows
// are, and that a rotation keeps scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "ptx/abi_fp8.h"
#include "ptx_run.h"
#include "storage.h"

namespace {

struct Shape {
  fa3ptx_dtype dtype;
  int batch, seqlen, heads, head_dim, block;
  uint32_t flags;
  uint64_t seed = 5;
  int pad = 0; // foreign columns between heads
  bool graph = false;
};

struct Result {
  std::vector<float> in, scale;  // (batch, seqlen, heads, dim); (batch, heads, blocks)
  std::vector<uint8_t> out;      // like in
  int blocks;
  std::string complaint;
};

Result quantize(const Shape &s) {
  Result r;
  const int head = s.head_dim + s.pad, row = s.heads * head;
  const size_t count = size_t(s.batch) * s.seqlen * row;
  std::vector<uint16_t> words(count, 0xFFFF);
  std::mt19937_64 random(base_seed() + 3);
  std::normal_distribution<float> gauss;
  for (size_t i = 0; i < count; ++i)
    if (int(i % head) < s.head_dim) {
      const float x = gauss(random) + (random() % 1000 ? 0 : 10 * gauss(random));
      words[i] = to_storage(s.dtype, i / row % s.seqlen == 3 ? 0 : x); // one row of zeros
      r.in.push_back(from_storage(s.dtype, words[i]));
    }
  r.blocks = s.block ? (s.seqlen + s.block - 1) / s.block : 1;
  const size_t scales = size_t(s.batch) * s.heads * r.blocks;
  Buffer src(count * 2), dst(count + 16), scale(scales * 4 + 16);
  src.write(words.data(), count * 2);
  dst.fill(0xEE, dst.bytes), scale.fill(0xEE, scale.bytes);
  fa3ptx_quantize_args a = {};
  a.struct_size = sizeof a;
  a.src = {reinterpret_cast<void *>(src.address), int64_t(s.seqlen) * row, row, head, s.dtype, 0};
  a.dst = a.src;
  a.dst.data = reinterpret_cast<void *>(dst.address), a.dst.dtype = FA3PTX_E4M3;
  a.scale = reinterpret_cast<float *>(scale.address);
  a.batch = s.batch, a.seqlen = s.seqlen, a.heads = s.heads, a.head_dim = s.head_dim;
  a.block = s.block, a.flags = s.flags, a.seed = s.seed;
  fa3ptx_status status = FA3PTX_OK;
  const auto call = [&] { status = fa3ptx_quantize(&a, device().stream); };
  s.graph ? run_as_graph(call, 2) : call();
  if (status != FA3PTX_OK) {
    r.complaint = fa3ptx_last_error();
    return r;
  }
  CUDA(cuStreamSynchronize(device().stream));
  const std::vector<uint32_t> bytes = dst.words(0, dst.bytes / 4), sc = scale.words(0, scales + 4);
  const uint8_t *p = reinterpret_cast<const uint8_t *>(bytes.data());
  for (size_t i = 0; i < count + 16; ++i)
    if (i < count && int(i % head) < s.head_dim) r.out.push_back(p[i]);
    else if (p[i] != 0xEE) r.complaint = "memory round dst was written to";
  for (size_t i = 0; i < scales + 4; ++i)
    if (i < scales) r.scale.push_back(bits_float(sc[i]));
    else if (sc[i] != 0xEEEEEEEE) r.complaint = "memory past scale was written to";
  return r;
}

size_t scale_at(const Shape &s, const Result &r, int b, int row, int h) {
  return size_t(b * s.heads + h) * r.blocks + (s.block ? row / s.block : 0);
}

// H x / sqrt(d), which undoes itself.
std::vector<double> hadamard(std::vector<double> x) {
  const size_t d = x.size();
  for (size_t step = 1; step < d; step *= 2)
    for (size_t i = 0; i < d; ++i)
      if (!(i & step)) {
        const double a = x[i], b = x[i | step];
        x[i] = a + b, x[i | step] = a - b;
      }
  for (double &v : x) v /= std::sqrt(double(d));
  return x;
}

void check_plain(const Shape &s) {
  CAPTURE(s.seqlen);
  CAPTURE(s.head_dim);
  CAPTURE(s.block);
  const Result r = quantize(s);
  REQUIRE(r.complaint == "");
  std::vector<float> most(r.scale.size(), 0x1p-100f);
  const auto each = [&](auto f) {
    size_t i = 0;
    for (int b = 0; b < s.batch; ++b)
      for (int row = 0; row < s.seqlen; ++row)
        for (int h = 0; h < s.heads; ++h)
          for (int c = 0; c < s.head_dim; ++c, ++i) f(i, scale_at(s, r, b, row, h));
  };
  each([&](size_t i, size_t at) { most[at] = std::max(most[at], std::fabs(r.in[i])); });
  int wrong = 0;
  for (size_t i = 0; i < most.size(); ++i) wrong += !(r.scale[i] == most[i] / 448);
  CHECK(wrong == 0);
  each([&](size_t i, size_t at) {
    wrong += r.out[i] != float_to_e4m3(r.in[i] * (1 / r.scale[at]));
  });
  CHECK(wrong == 0);
}

void check_rotated(const Shape &s) {
  CAPTURE(s.head_dim);
  CAPTURE(s.block);
  const Result r = quantize(s);
  REQUIRE(r.complaint == "");
  // Undo H: every column must be the input's, up to a sign that all rows share.  The sums of
  // products tell the signs, then each row is measured by itself.
  std::vector<double> agree(s.head_dim, 0), sign(s.head_dim);
  int wrong = 0, flipped = 0;
  for (bool learning : {true, false}) {
    size_t i = 0;
    for (int b = 0; b < s.batch; ++b)
      for (int row = 0; row < s.seqlen; ++row)
        for (int h = 0; h < s.heads; ++h, i += s.head_dim) {
          const double scale = r.scale[scale_at(s, r, b, row, h)];
          std::vector<double> y(s.head_dim);
          double size = 0, off = 0, largest = 0;
          for (int c = 0; c < s.head_dim; ++c) {
            y[c] = e4m3_to_float(r.out[i + c]) * scale;
            largest = std::max(largest, std::fabs(y[c]));
          }
          y = hadamard(y);
          for (int c = 0; c < s.head_dim; ++c) {
            const double x = r.in[i + c];
            if (learning) agree[c] += x * y[c];
            size += x * x, off += std::pow(y[c] - sign[c] * x, 2);
          }
          if (learning) continue;
          wrong += !(off <= size / 512 + 1e-9); // 2^-4.5 of the row, rms
          wrong += !(largest <= 448 * scale * (1 + 1e-6));
        }
    for (int c = 0; c < s.head_dim; ++c) sign[c] = agree[c] < 0 ? -1 : 1;
  }
  CHECK(wrong == 0);
  for (double x : sign) flipped += x < 0;
  CHECK(flipped > s.head_dim / 4);
  CHECK(flipped < 3 * s.head_dim / 4);
}

} // namespace

DEVICE_CASE("quantize: blocks and whole heads, bit by bit") {
  for (fa3ptx_dtype dtype : {FA3PTX_BF16, FA3PTX_FP16})
    for (int block : {0, 16, 32, 64, 128})
      for (int dim : {64, 128, 256}) check_plain({dtype, 2, 150, 2, dim, block, 0});
  for (int dim : {16, 48, 80, 112, 192}) check_plain({FA3PTX_BF16, 1, 37, 3, dim, 32, 0, 1, 16});
}

DEVICE_CASE("quantize: lengths beside warps and tiles; nothing where there is nothing") {
  for (int seqlen : {1, 7, 9, 127, 129, 257})
    for (int block : {0, 16, 128}) check_plain({FA3PTX_FP16, 1, seqlen, 2, 128, block, 0});
  fa3ptx_quantize_args a = {};
  a.struct_size = sizeof a;
  a.heads = 2, a.head_dim = 128, a.src.dtype = FA3PTX_BF16, a.dst.dtype = FA3PTX_E4M3;
  for (int batch : {0, 1}) {
    a.batch = batch, a.seqlen = 1 - batch;
    CHECK(fa3ptx_quantize(&a, device().stream) == FA3PTX_OK);
  }
}

DEVICE_CASE("quantize: more tiles than CTAs find room for") {
  for (int dim : {64, 128, 256}) {
    const int heads = device().multiprocessors * QUANT_CTAS(dim);
    check_plain({FA3PTX_BF16, 1, 5 * 128 + 7, heads, dim, dim == 128 ? 0 : 32, 0});
  }
}

DEVICE_CASE("quantize: captured") {
  REQUIRE(fa3ptx_preload() == FA3PTX_OK);
  for (int block : {0, 64}) check_plain({FA3PTX_BF16, 2, 150, 2, 128, block, 0, 1, 0, true});
}

DEVICE_CASE("quantize: rotated rows") {
  for (int dim : {64, 128, 256})
    for (int block : {0, 64}) {
      check_rotated({FA3PTX_BF16, 1, 260, 1, dim, block, FA3PTX_FLAG_HADAMARD});
      check_rotated({FA3PTX_FP16, 2, 131, 2, dim, block, FA3PTX_FLAG_HADAMARD, 99, 32});
    }
}

DEVICE_CASE("quantize: another seed is another rotation, the same seed the same") {
  Shape s = {FA3PTX_BF16, 1, 64, 1, 128, 64, FA3PTX_FLAG_HADAMARD};
  const Result a = quantize(s), b = quantize(s);
  s.seed++;
  const Result c = quantize(s);
  REQUIRE(a.complaint + b.complaint + c.complaint == "");
  CHECK(a.out == b.out);
  CHECK(a.out != c.out);
}

TEST_CASE("quantize: wrong arguments are named") {
  fa3ptx_quantize_args good = {};
  good.struct_size = sizeof good;
  good.src = fa3ptx_bshd(reinterpret_cast<void *>(0x1000), FA3PTX_BF16, 64, 2, 128);
  good.dst = fa3ptx_bshd(reinterpret_cast<void *>(0x2000), FA3PTX_E4M3, 64, 2, 128);
  good.scale = reinterpret_cast<float *>(0x3000);
  good.batch = 1, good.seqlen = 64, good.heads = 2, good.head_dim = 128, good.block = 64;
  const auto refused = [&](const char *word, auto change) {
    fa3ptx_quantize_args a = good;
    change(a);
    CHECK(fa3ptx_quantize(&a, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(fa3ptx_last_error()).find(word) == 0);
  };
  using A = fa3ptx_quantize_args;
  CHECK(fa3ptx_quantize(nullptr, nullptr) == FA3PTX_ERROR_INVALID_ARGUMENT);
  refused("struct_size", [](A &a) { a.struct_size = 8; });
  refused("batch", [](A &a) { a.batch = -1; });
  refused("seqlen", [](A &a) { a.seqlen = -1; });
  refused("heads", [](A &a) { a.heads = 0; });
  refused("batch * heads * seqlen", [](A &a) { a.seqlen = a.heads = 1 << 20; });
  refused("head_dim", [](A &a) { a.head_dim = 24; });
  refused("head_dim", [](A &a) { a.head_dim = 96, a.flags = FA3PTX_FLAG_HADAMARD; });
  refused("src.dtype", [](A &a) { a.src.dtype = FA3PTX_E4M3; });
  refused("dst.dtype", [](A &a) { a.dst.dtype = FA3PTX_BF16; });
  refused("block", [](A &a) { a.block = 48; });
  refused("flags", [](A &a) { a.flags = 1; });
  refused("src.stride_seq", [](A &a) { a.src.stride_seq = 4; });
  refused("dst.stride_head", [](A &a) { a.dst.stride_head = 64; });
  refused("dst.data", [](A &a) { a.dst.data = a.src.data; });
  refused("scale", [](A &a) { a.scale = nullptr; });
  refused("scale", [](A &a) { a.scale = static_cast<float *>(a.dst.data); });
}
