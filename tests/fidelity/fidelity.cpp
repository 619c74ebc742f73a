// fidelity.cpp - the same problems on two drivers: do a GPU and the emulated one agree?
//
//     fidelity dump FILE          runs a problem for each row of src/kernels.def that heads plans
//                                 and writes what came out: O and LSE, or the gradients
//     fidelity compare A B        a line for each problem that differs by more than it may, and
//                                 `N passed, N failed, N skipped`
//     fidelity damage FILE        changes one number a little more than it may change
//
// Both drivers get the same inputs, the backward the same O and LSE.  What they may differ by:
//   LSE         1e-5 max(1, |LSE|)
//   O, dQ, ...  STEPS units in the last place, in the storage type, of the largest element of the
//               row.  Products are added alike (tests/emu/wgmma_math.cpp); exponentials differ by
//               an ulp or two and sums through atomics come in any order, and so now and then a P,
//               a dS or a result is rounded the other way.  E4M3 has coarser P: STEPS_E4M3.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "device_call.h"
#include "row_machine.h"
#include "storage.h"

using namespace fa3ptx;

namespace {

constexpr double STEPS = 1, STEPS_E4M3 = 2;

struct Tensor {
  std::string name; // "<row>: <problem>: O"
  uint32_t dtype = 0, row = 1; // 0: fp32 (LSE); elements of a row
  std::vector<float> values;
};

// ---- Running ----------------------------------------------------------------------------------

std::vector<float> widened(fa3ptx_dtype dtype, const std::vector<uint16_t> &bits) {
  std::vector<float> wide;
  for (uint16_t b : bits) wide.push_back(from_storage(dtype, b));
  return wide;
}

void require(fa3ptx_status status) {
  if (status != FA3PTX_OK) throw std::runtime_error(fa3ptx_last_error());
}

// Two query tiles, a ring of keys and a bit, both ends off the tile's edges; grouped heads.
::Problem small_problem(const Row &row) {
  ::Problem p = problem_of(row);
  const bool packed = row.role == Role::FWD_PACKED;
  p.seqlen_q = packed ? 37 : row.tile_m + 5;
  p.seqlen_k = (row.stages + 1) * row.tile_n + 3;
  p.heads_q = packed ? 8 : 2;
  return p;
}

using Tensors = std::vector<Tensor>;

void run_e4m3(const std::string &name, const ::Problem &p, RowMachine &machine, Tensors &to) {
  DeviceCall call(p, false, machine);
  const size_t rows = size_t(p.heads_q) * p.seqlen_q;
  const Buffer lse(rows * 4);
  call.forward.lse = reinterpret_cast<float *>(lse.address);
  require(machine.forward(call.forward));
  std::vector<uint16_t> o(rows * p.dim_v());
  std::vector<float> l(rows);
  machine.download(o.data(), reinterpret_cast<uint64_t>(call.forward.o.data), o.size() * 2);
  machine.download(l.data(), lse.address, l.size() * 4);
  to.push_back({name + ": O", FA3PTX_E4M3, uint32_t(p.dim_v()), widened(FA3PTX_BF16, o)});
  to.push_back({name + ": LSE", 0, 1, l});
}

void run(const Row &row, ::Problem p, Tensors &to) {
  RowMachine machine{RowIndex(&row - kRows)};
  const std::string name = std::string(row.name) + ": " + p.name();
  if (p.dtype == FA3PTX_E4M3) return run_e4m3(name, p, machine, to);
  const Values values = make_values(p);
  const auto add = [&](const char *what, const Dense &x) {
    to.push_back({name + ": " + what, uint32_t(p.dtype), uint32_t(x.dim),
                  widened(p.dtype, x.bits)});
  };
  if (!is_backward(row)) {
    const Run r = run_forward(machine, p, values);
    if (r.status != FA3PTX_OK) throw std::runtime_error(r.error);
    add("O", r.outputs.o);
    to.push_back({name + ": LSE", 0, 1, r.outputs.lse});
    return;
  }
  const Outputs forward = forward_of(p, reference(p, values, false));
  const Run r = run_backward(machine, p, values, forward);
  if (r.status != FA3PTX_OK) throw std::runtime_error(r.error);
  add("dQ", r.outputs.dq);
  add("dK", r.outputs.dk);
  add("dV", r.outputs.dv);
}

Tensors run_all() {
  Tensors all;
  for (const Row &row : kRows) {
    if (!heads_plans(row) || row.role == Role::QUANT) continue;
    ::Problem p = small_problem(row);
    run(row, p, all);
    if (is_backward(row) && row.role != Role::BWD_REF_DQ) {
      p.flags |= FA3PTX_FLAG_DETERMINISTIC;
      run(row, p, all);
    }
  }
  return all;
}

// ---- The file -----------------------------------------------------------------------------------

void write_word(std::FILE *f, uint32_t x) { std::fwrite(&x, 4, 1, f); }
bool read_word(std::FILE *f, uint32_t &x) { return std::fread(&x, 4, 1, f) == 1; }

void save(const Tensors &all, const char *path) {
  std::FILE *f = std::fopen(path, "wb");
  if (!f) throw std::runtime_error(std::string("cannot write ") + path);
  for (const Tensor &t : all) {
    for (size_t n : {t.name.size(), size_t(t.dtype), size_t(t.row), t.values.size()})
      write_word(f, uint32_t(n));
    std::fwrite(t.name.data(), 1, t.name.size(), f);
    std::fwrite(t.values.data(), 4, t.values.size(), f);
  }
  if (std::fclose(f)) throw std::runtime_error(std::string("cannot write ") + path);
}

Tensors load(const char *path) {
  std::FILE *f = std::fopen(path, "rb");
  if (!f) throw std::runtime_error(std::string("cannot read ") + path);
  Tensors all;
  for (uint32_t name, n; read_word(f, name);) {
    Tensor t;
    if (!read_word(f, t.dtype) || !read_word(f, t.row) || !read_word(f, n)) break;
    t.name.resize(name);
    t.values.resize(n);
    if (std::fread(&t.name[0], 1, name, f) != name || std::fread(t.values.data(), 4, n, f) != n)
      throw std::runtime_error(std::string(path) + " is cut short");
    all.push_back(t);
  }
  std::fclose(f);
  return all;
}

// ---- Comparing ----------------------------------------------------------------------------------

// How far element i may be from its twin, in whatever unit `worst` is told in.
struct Limit {
  const Tensor &t;
  double unit(size_t i) const {
    if (t.dtype == 0) return 1e-5 * std::max(1.0, std::fabs(double(t.values[i])));
    double most = 0;
    for (size_t j = i / t.row * t.row, end = j + t.row; j < end; ++j)
      most = std::max(most, std::fabs(double(t.values[j])));
    return most > 0 ? std::ldexp(1.0, std::ilogb(most) - (t.dtype == FA3PTX_FP16 ? 10 : 7)) : 0;
  }
  double units() const { return t.dtype == 0 ? 1 : t.dtype == FA3PTX_E4M3 ? STEPS_E4M3 : STEPS; }
};

// The worst difference of two tensors, in units; infinite where only one is finite.
double worst(const Tensor &a, const Tensor &b, size_t &equal) {
  const Limit limit{a};
  double most = 0, unit = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (i % a.row == 0) unit = limit.unit(i);
    const float x = a.values[i], y = b.values[i];
    if (x == y) { // -inf, too
      ++equal;
      continue;
    }
    const double error = std::fabs(double(x) - y) / unit;
    most = error <= most ? most : std::isnan(error) ? INFINITY : error;
  }
  return most;
}

int compare(const char *one, const char *other) {
  const Tensors a = load(one), b = load(other);
  int passed = 0, failed = 0;
  std::map<std::string, double> by_kind; // "O", "LSE", ...: the worst
  size_t equal = 0, all = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i].name != b[i].name || a[i].row != b[i].row ||
        a[i].values.size() != b[i].values.size()) {
      std::printf("FAILED: the two drivers did not run the same problems\n");
      ++failed;
      break;
    }
    const double most = worst(a[i], b[i], equal);
    all += a[i].values.size();
    const std::string kind = (a[i].dtype == FA3PTX_E4M3 ? "E4M3 " : "") +
                             a[i].name.substr(a[i].name.rfind(' ') + 1);
    by_kind[kind] = std::max(by_kind[kind], most);
    if (most <= Limit{a[i]}.units()) {
      ++passed;
      continue;
    }
    ++failed;
    std::printf("FAILED: %s: differs by %.3g units\n", a[i].name.c_str(), most);
  }
  if (all == 0) std::printf("FAILED: nothing was run\n"), ++failed;
  std::printf("%zu of %zu numbers are equal; largest difference, in units:", equal, all);
  for (const auto &[kind, most] : by_kind) std::printf(" %s %.3g", kind.c_str(), most);
  std::printf("\n%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}

void damage(const char *path) {
  Tensors all = load(path);
  Tensor &t = all.at(all.size() / 2);
  const Limit limit{t};
  float &x = t.values.at(t.values.size() / 2);
  x += float(1.01 * limit.units() * limit.unit(t.values.size() / 2));
  save(all, path);
}

} // namespace

int main(int argc, char **argv) {
  try {
    if (argc == 3 && !std::strcmp(argv[1], "dump")) return save(run_all(), argv[2]), 0;
    if (argc == 3 && !std::strcmp(argv[1], "damage")) return damage(argv[2]), 0;
    if (argc == 4 && !std::strcmp(argv[1], "compare")) return compare(argv[2], argv[3]);
    std::fprintf(stderr, "usage: fidelity dump FILE | compare A B | damage FILE\n");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 2;
}
