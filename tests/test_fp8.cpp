// test_fp8.cpp - the forward on E4M3 against float64: every row of its kernels, scales of every
// kind, views with foreign memory round them, the accurate mode, and the calls that make E4M3.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "check.h"
#include "ptx_run.h"
#include "row_machine.h"
#include "src/plan.h"
#include "src/validate.h"
#include "storage.h"

using fa3ptx::kRowCount;
using fa3ptx::kRows;
using fa3ptx::Role;
using fa3ptx::Row;
using fa3ptx::RowIndex;

namespace {

enum class Scales { none, tensor, head, block };
enum class Input { normal, outliers, equal_keys, rising, hot_keys, constant };

struct Fp8Problem {
  int batch = 1, seqlen_q = 64, seqlen_k = 64, heads_q = 1, heads_kv = 1, head_dim = 128;
  bool causal = false, fp16_out = false, views = false;
  Scales scales = Scales::none;
  Input input = Input::normal;
  uint32_t flags = 0;
  int scale_layout = 0; // other block sizes, axes and strides of the scales (rearrange)

  std::string name() const {
    static const char *const scale_names[] = {"", " tensor scale", " head scales", " block scales"};
    static const char *const inputs[] = {"", " outliers", " equal keys", " rising", " hot keys",
                                         " constant"};
    char text[128];
    std::snprintf(text, sizeof text, "b%d s%dx%d h%d/%d d%d", batch, seqlen_q, seqlen_k, heads_q,
                  heads_kv, head_dim);
    return std::string(text) + (causal ? " causal" : "") + (fp16_out ? " fp16 out" : "") +
           (views ? " views" : "") + scale_names[int(scales)] + inputs[int(input)] +
           (flags & FA3PTX_FLAG_ACCURATE ? " accurate" : "");
  }
};

// A tensor on host and device: (batch, seqlen, heads, dim), with NaN in all that is not of it.
struct Bytes {
  int batch, seqlen, heads, dim;
  int64_t row, head, entry; // strides
  size_t offset;
  std::vector<uint8_t> data;
  Buffer buffer;

  Bytes(int b, int s, int h, int d, int size, bool views)
      : batch(b), seqlen(s), heads(h), dim(d), head(d + (views ? 16 : 0)),
        buffer(total(b, s, h, d, size, views)) {
    row = head * h + (views ? 32 : 0);
    entry = row * (s + (views ? 3 : 0));
    offset = views ? 64 : 0;
    data.assign(buffer.bytes, size == 1 ? 0x7F : 0xFF);
  }
  static size_t total(int b, int s, int h, int d, int size, bool views) {
    return (size_t(b) * (s + 3) * (size_t(h) * (d + 16) + 32) + 256) * size + (views ? 128 : 0);
  }
  size_t at(int b, int s, int h) const { return size_t(b * entry + s * row + h * head); }
  fa3ptx_tensor tensor(fa3ptx_dtype dtype) const {
    return {reinterpret_cast<void *>(buffer.address + offset), entry, row, head, dtype, 0};
  }
  void upload() { buffer.write(data.data(), data.size()); }
  std::vector<uint8_t> fetch() {
    const std::vector<uint32_t> words = buffer.words(0, buffer.bytes / 4);
    std::vector<uint8_t> bytes(words.size() * 4);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
  }
};

struct HostScale {
  fa3ptx_scale scale = {};
  std::vector<float> values;
  std::unique_ptr<Buffer> buffer;
  int total_heads = 1;
  double at(int b, int h, int row) const {
    if (values.empty()) return 1;
    const int block = scale.block ? row / scale.block : 0;
    const int head = h / (total_heads / scale.heads);
    return values[size_t(b * scale.stride_batch + head * scale.stride_head +
                         block * scale.stride_block)];
  }
};

// Scales of fewer heads and larger blocks, in gaps; returns the floats that they span.
//   1  blocks far apart, heads next to each other     2  all batch entries share
//   3  one block larger than any row number, and a scale for all heads
int rearrange(fa3ptx_scale &s, int layout, int batch, int rows) {
  if (layout == 3) s.block = 1 << 30, s.heads = 1;
  else s.block *= 2;
  const int blocks = layout == 3 ? 1 : (rows + s.block - 1) / s.block;
  s.stride_head = layout == 1 ? 1 : blocks + 2;
  s.stride_block = layout == 1 ? s.heads + 3 : 1;
  s.stride_batch = layout == 2 ? 0 : 5 + (blocks + 2) * (s.heads + 3);
  return int(1 + (batch - 1) * s.stride_batch + (s.heads - 1) * s.stride_head +
             (blocks - 1) * s.stride_block);
}

HostScale make_scale(const Fp8Problem &p, int heads, int scale_heads, int rows, int block,
                     std::mt19937_64 &random) {
  HostScale s;
  s.total_heads = heads;
  s.scale.heads = scale_heads;
  if (p.scales == Scales::none) return s;
  const int blocks = p.scales == Scales::block ? (rows + block - 1) / block : 1;
  if (p.scales == Scales::block) s.scale.block = block, s.scale.stride_block = 1;
  if (p.scales >= Scales::head) {
    s.scale.stride_head = blocks;
    s.scale.stride_batch = blocks * scale_heads;
  }
  int count = p.scales == Scales::tensor ? 1 : p.batch * scale_heads * blocks;
  if (p.scale_layout) count = rearrange(s.scale, p.scale_layout, p.batch, rows);
  std::uniform_real_distribution<float> size(0.25f, 2.0f);
  for (int i = 0; i < count; ++i) s.values.push_back(size(random));
  s.buffer = std::make_unique<Buffer>(s.values.size() * 4);
  s.buffer->write(s.values.data(), s.values.size() * 4);
  s.scale.data = reinterpret_cast<const float *>(s.buffer->address);
  return s;
}

enum Operand { Q, K, V };
void fill(const Fp8Problem &p, Bytes &t, Operand which, std::mt19937_64 &random) {
  std::normal_distribution<float> gauss;
  for (int b = 0; b < t.batch; ++b)
    for (int h = 0; h < t.heads; ++h)
      for (int s = 0; s < t.seqlen; ++s)
        for (int c = 0; c < t.dim; ++c) {
          float x = gauss(random);
          switch (p.input) {
          case Input::normal: break;
          case Input::outliers: if (random() % 1000 == 0) x += 10 * gauss(random); break;
          case Input::equal_keys: if (which == K) x = 0; break;
          // Each block of keys tops the one before: the lazy maximum has to follow.
          case Input::rising:
            if (which != V) x = which == Q ? 1 : 0.02f * s * (c % 2 + 0.5f);
            break;
          case Input::hot_keys: // query s finds the key s * 7 mod seqlen_k by a code of signs
            if (which != V) {
              const unsigned key = which == K ? s : unsigned(s) * 7 % p.seqlen_k;
              x = ((key * 2654435761u + c * 40503u) * 2246822519u >> 15 & 1) ? 1.5f : -1.5f;
            }
            break;
          case Input::constant: x = which == V ? 1.0f + 0.125f * (s % 2) : 0; break;
          }
          t.data[t.offset + t.at(b, s, h) + c] = float_to_e4m3(x);
        }
}

struct Row64 {
  std::vector<double> o, allowed;
  double lse;
};

// One row in float64.  P is rounded by the kernel to within 2^-4 of itself, or 2^-16 of the
// largest (2^-15 without scales of blocks: not allowed for), each by chance; the tolerance is five
// times what that comes to, the FP8 sums' 2^-10, and O's own rounding.
Row64 reference_row(const Fp8Problem &p, const Bytes &q, const Bytes &k, const Bytes &v,
                    const HostScale &qs, const HostScale &ks, const HostScale &vs, int b, int h,
                    int row, const std::vector<double> &table) {
  const int h_kv = h / (p.heads_q / p.heads_kv);
  const int diagonal = row + p.seqlen_k - p.seqlen_q + 1;
  const int visible = p.causal ? std::clamp(diagonal, 0, p.seqlen_k) : p.seqlen_k;
  std::vector<double> s(visible);
  double most = -INFINITY, l = 0;
  const uint8_t *x = &q.data[q.offset + q.at(b, row, h)];
  for (int j = 0; j < visible; ++j) {
    const uint8_t *y = &k.data[k.offset + k.at(b, j, h_kv)];
    double dot = 0;
    for (int c = 0; c < p.head_dim; ++c) dot += table[x[c]] * table[y[c]];
    s[j] = dot * qs.at(b, h, row) * ks.at(b, h_kv, j) / std::sqrt(double(p.head_dim));
    most = std::max(most, s[j]);
  }
  Row64 r;
  r.o.assign(p.head_dim, 0), r.allowed.assign(p.head_dim, 0);
  std::vector<double> square(p.head_dim, 0), size(p.head_dim, 0);
  for (double &w : s) l += w = std::exp(w - most);
  for (int j = 0; j < visible; ++j) {
    const uint8_t *y = &v.data[v.offset + v.at(b, j, h_kv)];
    const double w = s[j] / l * vs.at(b, h_kv, j);
    for (int c = 0; c < p.head_dim; ++c) {
      const double part = w * table[y[c]];
      const double smallest = 0x1p-13 / l * vs.at(b, h_kv, j) * std::fabs(table[y[c]]);
      const double least = std::max(std::fabs(part), smallest);
      r.o[c] += part, square[c] += least * least, size[c] += std::fabs(part);
    }
  }
  // Weights of 1 that meet 1 and 1.125: nothing is rounded but O, if the sums keep all their bits.
  const bool exact_sums = p.input == Input::constant;
  const bool exact_p = p.input == Input::equal_keys || p.input == Input::constant;
  for (int c = 0; c < p.head_dim; ++c)
    r.allowed[c] = (exact_p ? 0 : 0.125 * std::sqrt(square[c])) +
                   (exact_sums ? 0 : size[c] / 1024) +
                   std::fabs(r.o[c]) * (p.fp16_out ? 0x1p-11 : 0x1p-8) + 1e-6;
  r.lse = visible ? most + std::log(l) : -INFINITY;
  return r;
}

// Runs the problem on a row (or on what the library chooses, row < 0) and complains.
std::string run(const Fp8Problem &p, int row_index, int every = 1) {
  std::mt19937_64 random(base_seed() + 77);
  Bytes q(p.batch, p.seqlen_q, p.heads_q, p.head_dim, 1, p.views);
  Bytes k(p.batch, p.seqlen_k, p.heads_kv, p.head_dim, 1, p.views);
  Bytes v(p.batch, p.seqlen_k, p.heads_kv, p.head_dim, 1, p.views);
  Bytes o(p.batch, p.seqlen_q, p.heads_q, p.head_dim, 2, p.views);
  fill(p, q, Q, random), fill(p, k, K, random), fill(p, v, V, random);
  HostScale qs = make_scale(p, p.heads_q, p.scales == Scales::block ? p.heads_q : p.heads_kv,
                            p.seqlen_q, 64, random);
  HostScale ks = make_scale(p, p.heads_kv, p.heads_kv, p.seqlen_k, 32, random);
  HostScale vs = make_scale(p, p.heads_kv, p.heads_kv, p.seqlen_k, 64, random);
  q.upload(), k.upload(), v.upload(), o.upload();
  const size_t rows = size_t(p.batch) * p.heads_q * p.seqlen_q;
  Buffer lse(rows * 4 + 64);
  lse.fill(0xFF, lse.bytes);

  fa3ptx_forward_args a = {};
  a.struct_size = sizeof a;
  a.q = q.tensor(FA3PTX_E4M3), a.k = k.tensor(FA3PTX_E4M3), a.v = v.tensor(FA3PTX_E4M3);
  a.o = o.tensor(p.fp16_out ? FA3PTX_FP16 : FA3PTX_BF16);
  a.lse = reinterpret_cast<float *>(lse.address);
  a.batch = p.batch, a.seqlen_q = p.seqlen_q, a.seqlen_k = p.seqlen_k;
  a.heads_q = p.heads_q, a.heads_kv = p.heads_kv, a.head_dim = p.head_dim;
  a.mask = p.causal ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
  a.flags = p.flags;
  a.q_scale = qs.scale, a.k_scale = ks.scale, a.v_scale = vs.scale;
  const fa3ptx_status status = row_index >= 0 ? RowMachine{RowIndex(row_index)}.forward(a)
                                              : fa3ptx_forward(&a, device().stream);
  if (status != FA3PTX_OK) return std::string("refused: ") + fa3ptx_last_error();
  CUDA(cuStreamSynchronize(device().stream));

  std::vector<double> table(256);
  for (int i = 0; i < 256; ++i) table[i] = e4m3_to_float(uint8_t(i));
  std::vector<uint8_t> got = o.fetch();
  const std::vector<uint32_t> lse_got = lse.words(0, rows + 16);
  std::string complaints;
  int wrong = 0;
  const auto complain = [&](const char *what, int b, int h, int s, int c, double is, double want,
                            double allowed) {
    char text[200];
    std::snprintf(text, sizeof text, "%s[b%d h%d row %d col %d] is %g, should be %g +- %g\n", what,
                  b, h, s, c, is, want, allowed);
    if (++wrong <= 8) complaints += text;
  };
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads_q; ++h)
      for (int s = 0; s < p.seqlen_q; ++s) {
        const size_t at = o.at(b, s, h) * 2 + o.offset;
        if (every == 1 || s % every == every / 2 || s + 1 == p.seqlen_q) {
          const Row64 r = reference_row(p, q, k, v, qs, ks, vs, b, h, s, table);
          for (int c = 0; c < p.head_dim; ++c) {
            uint16_t bits;
            std::memcpy(&bits, &got[at + 2 * c], 2);
            const double is = from_storage(p.fp16_out ? FA3PTX_FP16 : FA3PTX_BF16, bits);
            if (!(std::fabs(is - r.o[c]) <= r.allowed[c]))
              complain("O", b, h, s, c, is, r.o[c], r.allowed[c]);
          }
          const double is = bits_float(lse_got[(size_t(b) * p.heads_q + h) * p.seqlen_q + s]);
          const double allowed = 2e-3 * (1 + std::fabs(r.lse));
          if (!(is == r.lse || std::fabs(is - r.lse) <= allowed))
            complain("LSE", b, h, s, 0, is, r.lse, allowed);
        }
        std::fill_n(got.begin() + at, p.head_dim * 2, uint8_t(0xFF));
      }
  for (uint8_t byte : got)
    if (byte != 0xFF) return complaints + "memory round O was written to\n";
  for (size_t i = rows; i < rows + 16; ++i)
    if (lse_got[i] != 0xFFFFFFFF) return complaints + "memory past LSE was written to\n";
  if (wrong > 8) complaints += std::to_string(wrong) + " in all\n";
  return complaints;
}

void add(const Row &row, int index, Fp8Problem p, Case::Needs needs = Case::any_device) {
  add_case({std::string(row.name) + ": " + p.name(), [=] {
              CHECK(run(p, index, needs == Case::any_device ? 1 : 61) == "");
            }, needs, 300});
}

void add_row_cases(int index) {
  const Row &row = kRows[index];
  const bool is_reference = row.role == Role::FWD_FP8_REF;
  const bool takes_blocks = row.serves != fa3ptx::fp8_heads &&
                            row.serves != fa3ptx::fp8_heads_long &&
                            row.serves != fa3ptx::fp8_heads_short;
  const bool is_exact = is_reference || row.serves == fa3ptx::fp8_exact;
  Fp8Problem base;
  base.head_dim = row.head_dim ? row.head_dim : 80;
  base.causal = row.mask == fa3ptx::Mask::CAUSAL;
  const int m = row.tile_m, n = std::max(row.tile_n, 32);
  const auto lengths = [&](int sq, int sk) {
    Fp8Problem p = base;
    p.seqlen_q = sq, p.seqlen_k = sk;
    return p;
  };
  const int sizes[][2] = {{m, n}, {1, 1}, {m - 1, n - 1}, {m + 1, n + 1}, {2 * m + 3, 5 * n + 3},
                          {m, 2 * n}, {m / 2, 3 * n + 1}};
  for (const auto &s : sizes) add(row, index, lengths(s[0], s[1]));
  Fp8Problem odd = lengths(m + 5, 2 * n + 3);
  odd.batch = 2, odd.heads_q = 4, odd.heads_kv = 2, odd.views = true;
  for (Scales scales : {Scales::none, Scales::tensor, Scales::head, Scales::block}) {
    if (scales == Scales::block && !takes_blocks) continue;
    odd.scales = scales;
    odd.fp16_out = scales == Scales::head;
    add(row, index, odd);
  }
  for (Input input : {Input::outliers, Input::equal_keys, Input::rising, Input::hot_keys}) {
    Fp8Problem p = lengths(m + 9, 4 * n + 7);
    p.input = input;
    add(row, index, p);
  }
  Fp8Problem narrow = odd;
  narrow.scales = Scales::none;
  narrow.head_dim = base.head_dim - 16;
  add(row, index, narrow);
  if (base.causal || is_reference) {
    Fp8Problem blind = lengths(2 * m + 9, 7); // rows and whole tiles that see no key
    blind.causal = true;
    add(row, index, blind);
  }
  if (is_exact) {
    Fp8Problem even = lengths(16, 4 * n + 64);
    even.input = Input::constant;
    add(row, index, even);
    even.seqlen_k = 131072;
    if (!is_reference) add(row, index, even, Case::real_gpu);
  }
  for (int s : {509, 1024, 4096, 16384}) {
    if (is_reference && s > 1024) continue;
    Fp8Problem p = lengths(s, s + 64 * (s % 2));
    p.heads_q = 2;
    add(row, index, p, Case::real_gpu);
  }
}

const bool added = [] {
  for (int r = 0; r < kRowCount; ++r)
    if (kRows[r].role == Role::FWD_FP8 || kRows[r].role == Role::FWD_FP8_REF) add_row_cases(r);
  return true;
}();

} // namespace

DEVICE_CASE("E4M3: no keys at all, no queries, no batch") {
  for (bool causal : {false, true}) {
    Fp8Problem p;
    p.causal = causal;
    p.seqlen_k = 0;
    CHECK(run(p, -1) == "");
    p.seqlen_k = 64, p.seqlen_q = 0;
    CHECK(run(p, -1) == "");
    p.seqlen_q = 64, p.batch = 0;
    CHECK(run(p, -1) == "");
  }
}

DEVICE_CASE("E4M3: groups of eight heads, lengths at the edges of blocks", Case::any_device, 120) {
  const std::vector<int> lengths =
      pick<std::vector<int>>({1, 256, 257, 511, 512, 513, 1025, 2048}, {1, 257});
  for (int s : lengths)
    for (bool causal : {false, true}) {
      Fp8Problem p;
      p.seqlen_q = p.seqlen_k = s;
      p.heads_q = pick(64, 8), p.heads_kv = pick(8, 1);
      p.causal = causal;
      INFO(p.name());
      CHECK(run(p, -1, pick(61, 1)) == "");
    }
}

DEVICE_CASE("E4M3: scales of any layout: block sizes, heads that share, strides of 0") {
  for (int dim : {64, 128})
    for (uint32_t flags : {0u, uint32_t(FA3PTX_FLAG_ACCURATE), uint32_t(FA3PTX_FLAG_REFERENCE)})
      for (int layout : {1, 2, 3}) {
        Fp8Problem p;
        p.batch = 2, p.seqlen_q = 90, p.seqlen_k = 200, p.heads_q = 4, p.heads_kv = 2;
        p.head_dim = dim, p.scales = Scales::block, p.flags = flags, p.scale_layout = layout;
        INFO(p.name(), " layout ", layout);
        CHECK(run(p, -1) == "");
      }
}

DEVICE_CASE("E4M3: the library's own choice, and the flag for the reference") {
  Fp8Problem p;
  p.seqlen_q = 70, p.seqlen_k = 150;
  CHECK(run(p, -1) == "");
  p.flags = FA3PTX_FLAG_REFERENCE;
  CHECK(run(p, -1) == "");
}
