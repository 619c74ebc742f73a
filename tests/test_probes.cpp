// test_probes.cpp - what the hardware does, as tables: fragment maps, descriptors, swizzles, box
// edges, conversions, sums (probes/*.ptx, one row each in probes/probes.def).
//
// probes/h200.txt holds what an H200 answered; every driver, emulated or not, must answer the same.
// On a GPU this appends its answers to a file, in which there may be new ones:
//
//     FA3PTX_PROBES_RECORD=answers.txt build/tests/test_probes --jobs=1
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "cases.h"
#include "ptx_run.h"

namespace {

constexpr size_t BYTES = 65536; // of IN and of OUT
using Words = std::vector<uint32_t>;

enum class Map {
  none, in_plain, in_sw128, in_sw64, in_sw32, in_4d, out_4d, out_words, out_plain, out_sw128
};

struct Row {
  std::string file, kernel, label;
  unsigned threads, shared_kib;
  uint64_t argument;
  Map map;
  size_t words;
  uint32_t ulps;
  std::string name() const { return file + "/" + kernel + (label == "-" ? "" : "/" + label); }
};

constexpr uint64_t DESC(uint64_t swizzle, uint64_t leading, uint64_t stride, uint64_t start) {
  return swizzle << 62 | stride >> 4 << 32 | leading >> 4 << 16 | start >> 4;
}
constexpr uint64_t AT(int x, int y, int z, int w) {
  return uint64_t(x & 255) | uint64_t(y & 255) << 8 | uint64_t(z & 255) << 16 |
         uint64_t(w & 255) << 24;
}
uint64_t RANGE(float start, float step) {
  uint32_t bits[2];
  std::memcpy(&bits[0], &start, 4);
  std::memcpy(&bits[1], &step, 4);
  return bits[0] | uint64_t(bits[1]) << 32;
}

const Row rows[] = {
#define ROW(file, kernel, label, threads, kib, argument, map, words, ulps) \
  {#file, #kernel, #label, threads, kib, argument, Map::map, words, ulps},
#include "probes/probes.def"
#undef ROW
};

CUtensorMap make_map(Map which, const Buffer &in, const Buffer &out) {
  const auto swizzled = [&](const Buffer &b, CUtensorMapSwizzle swizzle, uint32_t columns) {
    return tensor_map(b.address, 2, {64, 64}, {columns, 1024 / columns}, swizzle);
  };
  switch (which) {
  case Map::in_sw128: return swizzled(in, CU_TENSOR_MAP_SWIZZLE_128B, 64);
  case Map::in_sw64: return swizzled(in, CU_TENSOR_MAP_SWIZZLE_64B, 32);
  case Map::in_sw32: return swizzled(in, CU_TENSOR_MAP_SWIZZLE_32B, 16);
  case Map::in_4d: return tensor_map(in.address, 2, {24, 5, 3, 2}, {16, 4, 2, 1});
  case Map::out_4d: return tensor_map(out.address, 2, {24, 5, 3, 2}, {16, 4, 2, 1});
  case Map::out_words:
    return tensor_map(out.address, 4, {12, 5, 3, 2}, {8, 4, 2, 1}, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_DATA_TYPE_UINT32);
  case Map::out_plain: return swizzled(out, CU_TENSOR_MAP_SWIZZLE_NONE, 64);
  case Map::out_sw128: return swizzled(out, CU_TENSOR_MAP_SWIZZLE_128B, 64);
  case Map::none:
  case Map::in_plain: break;
  }
  return swizzled(in, CU_TENSOR_MAP_SWIZZLE_NONE, 64);
}

Words ask(const Row &row) {
  static std::map<std::string, std::unique_ptr<PtxFile>> files;
  std::unique_ptr<PtxFile> &file = files[row.file];
  if (!file) {
    const char *kind = device().emulated ? ".ptx" : ".cubin";
    file = std::make_unique<PtxFile>(built_file("probes", row.file + kind));
  }
  Buffer in(BYTES), out(BYTES);
  std::vector<uint16_t> numbers(BYTES / 2);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint16_t(i);
  in.write(numbers.data(), BYTES);
  out.fill(0xee, BYTES);
  const CUtensorMap map = make_map(row.map, in, out);
  const LaunchShape shape{1, row.threads, 1, row.shared_kib * 1024};
  cuda_check(launch(file->kernel(row.kernel), shape, device().stream,
                    {&in.address, &out.address, &row.argument, &map}),
             "cuLaunchKernelEx");
  return out.words(0, row.words);
}

// ---- The file: one line "name: tokens" a probe, wrapped.  A token is a word, decimal or x + hex,
// and any number of "+d*n" after it: what stands before, n times, each time d more.  A layout thus
// shows its strides: 0+128*4+1*8 is 0 128 256 384 1 129 257 385 2 ...

std::string spell(uint32_t word) {
  char text[16];
  std::snprintf(text, sizeof text, word < 100000 ? "%u" : "x%x", word);
  return text;
}

std::string encode(const Words &v) {
  std::string text, line;
  for (size_t i = 0; i < v.size();) {
    std::string token = spell(v[i]);
    size_t length = 1;
    while (i + 2 * length <= v.size()) {
      const uint32_t step = v[i + length] - v[i];
      size_t n = 1;
      const auto repeats = [&] {
        for (size_t j = 0; j < length; ++j)
          if (v[i + n * length + j] != v[i + j] + uint32_t(n) * step) return false;
        return true;
      };
      while (i + (n + 1) * length <= v.size() && repeats()) ++n;
      if (n < 2) break;
      token += "+" + std::to_string(int32_t(step)) + "*" + std::to_string(n);
      length *= n;
    }
    if (length == 2) token = spell(v[i]), length = 1; // no shorter than the two words
    i += length;
    if (line.size() + token.size() > 97) text += line + "\n", line.clear();
    line += " " + token;
  }
  return text + line + "\n";
}

Words decode(const std::string &text) {
  Words all;
  std::istringstream stream(text);
  for (std::string token; stream >> token;) {
    const char *at = token.c_str();
    char *end;
    Words block{uint32_t(*at == 'x' ? std::strtoul(at + 1, &end, 16) : std::strtoul(at, &end, 10))};
    while (*end == '+') {
      const long step = std::strtol(end + 1, &end, 10);
      const size_t n = std::strtoul(end + 1, &end, 10), length = block.size();
      for (size_t i = length; i < n * length; ++i)
        block.push_back(block[i - length] + uint32_t(step));
    }
    REQUIRE(*end == 0);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

// name -> tokens; empty if there is no file
std::map<std::string, std::string> recorded() {
  std::ifstream file(built_file("probes", "h200.txt"));
  std::map<std::string, std::string> tables;
  std::string name;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] == ' ') tables[name] += line;
    else if (!line.empty() && line[0] != '#') name = line.substr(0, line.find(':'));
  return tables;
}

// Distance of two fp32 numbers in units in the last place; NaNs are alike.
uint32_t distance(uint32_t a, uint32_t b) {
  const auto nan = [](uint32_t x) { return (x & 0x7fffffff) > 0x7f800000; };
  if (nan(a) || nan(b)) return nan(a) && nan(b) ? 0 : ~0u;
  const auto place = [](uint32_t x) { return x >> 31 ? -int64_t(x & 0x7fffffff) : int64_t(x); };
  const int64_t d = place(a) - place(b);
  return uint32_t(d < 0 ? -d : d);
}

void compare(const Row &row, const Words &expected, const Words &got) {
  REQUIRE(expected.size() == got.size());
  size_t wrong = 0, first = 0;
  uint32_t worst = 0;
  for (size_t i = got.size(); i-- > 0;) {
    const uint32_t off = row.ulps ? distance(expected[i], got[i]) : expected[i] != got[i];
    worst = std::max(worst, off);
    if (off > row.ulps) ++wrong, first = i;
  }
  INFO("word ", first, ": H200 ", spell(expected[first]), ", here ", spell(got[first]),
       "; largest distance ", worst, " (", row.ulps, " allowed)");
  CHECK(wrong == 0);
}

// What the device refuses to execute is an answer too, " refused" in the file.
std::string answer_of(const Row &row, Words &words) {
  try {
    words = ask(row);
    return encode(words);
  } catch (const std::runtime_error &e) {
    const std::string what = e.what();
    const char *const refusals[] = {"ILLEGAL_INSTRUCTION", "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS",
                                    "LAUNCH_FAILED"};
    if (std::none_of(std::begin(refusals), std::end(refusals), [&](const char *name) {
          return what.find(std::string("CUDA_ERROR_") + name) != std::string::npos;
        }))
      throw;
  }
  if (emulator().clear) emulator().clear(); // a finding was to be expected
  else spent_device();
  return " refused\n";
}

void run_row(const Row &row) {
  Words words;
  const std::string answer = answer_of(row, words);
  const char *path = std::getenv("FA3PTX_PROBES_RECORD");
  if (path) std::ofstream(path, std::ios::app) << row.name() << ":\n" << answer;
  const auto tables = recorded();
  const auto table = tables.find(row.name());
  if (path && table == tables.end()) return;
  REQUIRE(table != tables.end());
  const bool refused = answer == " refused\n";
  INFO("recorded: ", table->second.substr(0, 60), ", here: ", answer.substr(0, 60));
  REQUIRE(refused == (table->second == " refused"));
  if (!refused) compare(row, decode(table->second), words);
}

const bool added = [] {
  for (const Row &row : rows)
    add_case({"probe " + row.name(), [&row] { run_row(row); }, Case::any_device, 60});
  return true;
}();

} // namespace

TEST_CASE("probe tables survive being written and read") {
  Words words;
  for (uint32_t i = 0; i < 3000; ++i)
    words.push_back(i < 1000 ? (i ^ i >> 3) * 128 : i < 2000 ? i * 0x9e3779b1u : i / 4 * 7 + i % 4);
  CHECK(decode(encode(words)) == words);
  CHECK(decode(encode({})) == Words{});
  CHECK(encode({0, 128, 256, 384, 1, 129, 257, 385}) == " 0+128*4+1*2\n");
}
