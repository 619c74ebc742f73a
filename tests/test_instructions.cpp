// test_instructions.cpp - single PTX instructions against the same operation written in C++.
//
// What it guards is the emulated driver's interpreter; on a GPU the same rows check the C++ side.
// Each row is a kernel of its own: 77 threads (two full warps and a part of one) read three 64-bit
// operands, random ones and corners, and store one 64-bit result.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "cases.h"
#include "ptx_run.h"

namespace {

constexpr unsigned THREADS = 77;
using Bits = uint64_t;

struct Row {
  std::string code;  // {d} {a} {b} {c} stand for registers of the width, {q} {r} for predicates
  int width;         // 16, 32 or 64
  std::function<Bits(Bits, Bits, Bits)> meant;
};

std::string replaced(std::string text, int width) {
  const std::string suffix = std::to_string(width);
  for (const char *name : {"d", "a", "b", "c"})
    for (size_t at; (at = text.find(std::string("{") + name + "}")) != std::string::npos;)
      text.replace(at, 3, std::string(name) + suffix);
  return text;
}

std::string module_text(const std::string &body, int width) {
  std::string s = ".version 8.3\n.target sm_90a\n.address_size 64\n"
                  ".visible .entry one(.param .u64 IN, .param .u64 OUT)\n{\n"
                  ".reg .b64 a64, b64, c64, d64, in, out, o; .reg .b32 a32, b32, c32, d32, t;\n"
                  ".reg .b16 a16, b16, c16, d16; .reg .pred q, r; .reg .f32 f<4>; .reg .b32 x, y;\n"
                  "ld.param.u64 in, [IN]; ld.param.u64 out, [OUT]; mov.u32 t, %tid.x;\n"
                  "mul.wide.u32 o, t, 24; add.u64 in, in, o; mul.wide.u32 o, t, 8;\n"
                  "add.u64 out, out, o; ld.global.b64 a64, [in]; ld.global.b64 b64, [in + 8];\n"
                  "ld.global.b64 c64, [in + 16]; cvt.u32.u64 a32, a64; cvt.u32.u64 b32, b64;\n"
                  "cvt.u32.u64 c32, c64; cvt.u16.u32 a16, a32; cvt.u16.u32 b16, b32;\n"
                  "cvt.u16.u32 c16, c32; mov.b64 d64, 0; mov.b32 d32, 0; mov.b16 d16, 0;\n" +
                  replaced(body, width) + "\n";
  const std::string w = std::to_string(width);
  if (width < 64) s += "cvt.u64.u" + w + " d64, d" + w + ";\n";
  return s + "st.global.b64 [out], d64;\nret;\n}\n";
}

struct TextFile {  // PtxFile reads files
  char path[32] = "/tmp/fa3ptx_XXXXXX";
  explicit TextFile(const std::string &text) {
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    REQUIRE(write(fd, text.data(), text.size()) == ssize_t(text.size()));
    close(fd);
  }
  ~TextFile() { unlink(path); }
};

std::vector<Bits> operands() {
  static const Bits corners[] = {0, 1, 2, 31, 32, 33, 63, 64, 0x7fff, 0x8000, 0xffff, 0x7fffffff,
                                 0x80000000, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f800000,
                                 0x00000001ull << 33, 0x7fffffffffffffff, 0x8000000000000000,
                                 0xffffffffffffffff, 0x0000000100000000, 0x4f000000, 0xcf000000};
  std::mt19937_64 random(7);
  std::vector<Bits> list(3 * THREADS);
  for (size_t i = 0; i < list.size(); ++i) {
    const Bits r = random();
    list[i] = r % 3 == 0 ? corners[r / 3 % std::size(corners)] : random() >> (r / 8 % 60);
  }
  return list;
}

void run_row(const Row &row) {
  const TextFile file(module_text(row.code, row.width));
  const PtxFile ptx(file.path);
  const std::vector<Bits> in = operands();
  Buffer from(in.size() * 8), to(THREADS * 8);
  from.write(in.data(), in.size() * 8);
  LaunchShape shape;
  shape.block = THREADS;
  cuda_check(launch(ptx.kernel("one"), shape, device().stream, {&from.address, &to.address}),
             "launch");
  CUDA(cuStreamSynchronize(device().stream));
  const std::vector<uint32_t> out = to.words(0, THREADS * 2);
  const Bits mask = row.width == 64 ? ~0ull : (1ull << row.width) - 1;
  for (unsigned t = 0; t < THREADS; ++t) {
    const Bits a = in[3 * t] & mask, b = in[3 * t + 1] & mask, c = in[3 * t + 2] & mask;
    const Bits got = out[2 * t] | Bits(out[2 * t + 1]) << 32;
    CAPTURE(a);
    CAPTURE(b);
    CAPTURE(c);
    CHECK(got == (row.meant(a, b, c) & mask));
  }
}

// ---- the meanings -------------------------------------------------------------------------------
int32_t s(Bits x) { return int32_t(uint32_t(x)); }
uint32_t u(Bits x) { return uint32_t(x); }
float f(Bits x) {
  const uint32_t bits = u(x);
  float r;
  std::memcpy(&r, &bits, 4);
  return r;
}
Bits bits_of(float x) {
  uint32_t r;
  std::memcpy(&r, &x, 4);
  return r;
}
// A NaN has no set bits to compare: both sides make it this one.
Bits plain(float x) { return std::isnan(x) ? 0x7fffffff : bits_of(x); }
const char *const NO_NAN = " setp.nan.f32 q, f0, f0; @q mov.b32 f0, 0x7fffffff; mov.b32 {d}, f0;";
std::string float_op(const std::string &op, int operands) {
  std::string code = "mov.b32 f1, {a}; mov.b32 f2, {b}; mov.b32 f3, {c}; " + op + " f0, f1";
  if (operands > 1) code += ", f2";
  if (operands > 2) code += ", f3";
  return code + ";" + NO_NAN;
}
int top_bit(uint32_t x) { return x ? 31 - __builtin_clz(x) : -1; }
// bfe, bit by bit
Bits field(Bits x, unsigned at, unsigned length, bool is_signed) {
  Bits r = 0;
  const unsigned last = std::min(at + length - 1, 31u);
  const bool sign = is_signed && length && (x >> last & 1);
  for (unsigned i = 0; i < 32; ++i) {
    const bool bit = i < length && at + i <= 31 ? x >> (at + i) & 1 : sign;
    r |= Bits(bit) << i;
  }
  return r;
}
Bits to_int(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 2147483648.f) return 0x7fffffff;
  if (x < -2147483648.f) return 0x80000000;
  return u(Bits(int64_t(x)));
}

const Row rows[] = {
    {"add.s32 {d}, {a}, {b};", 32, [](Bits a, Bits b, Bits) { return a + b; }},
    {"sub.u16 {d}, {a}, {b};", 16, [](Bits a, Bits b, Bits) { return a - b; }},
    {"mul.lo.u64 {d}, {a}, {b};", 64, [](Bits a, Bits b, Bits) { return a * b; }},
    {"mul.hi.u32 {d}, {a}, {b};", 32, [](Bits a, Bits b, Bits) { return a * b >> 32; }},
    {"mul.hi.s32 {d}, {a}, {b};", 32,
     [](Bits a, Bits b, Bits) { return Bits(int64_t(s(a)) * s(b) >> 32); }},
    {"mul.hi.u64 {d}, {a}, {b};", 64,
     [](Bits a, Bits b, Bits) { return Bits((unsigned __int128)a * b >> 64); }},
    {"mad.lo.s32 {d}, {a}, {b}, {c};", 32, [](Bits a, Bits b, Bits c) { return a * b + c; }},
    {"mad.wide.u32 {d}, a32, b32, {c};", 64,
     [](Bits a, Bits b, Bits c) { return Bits(u(a)) * u(b) + c; }},
    {"mul.wide.s32 {d}, a32, b32;", 64,
     [](Bits a, Bits b, Bits) { return Bits(int64_t(s(a)) * s(b)); }},
    {"mul24.lo.u32 {d}, {a}, {b};", 32,
     [](Bits a, Bits b, Bits) { return (a & 0xffffff) * (b & 0xffffff); }},
    {"or.b32 b32, b32, 1; div.u32 {d}, {a}, {b};", 32,
     [](Bits a, Bits b, Bits) { return a / (b | 1); }},
    {"or.b32 b32, b32, 2; rem.s32 {d}, {a}, {b};", 32,
     [](Bits a, Bits b, Bits) { return Bits(int64_t(s(a)) % s(b | 2)); }},
    {"add.cc.u32 x, {a}, {b}; addc.u32 {d}, {c}, 0;", 32,
     [](Bits a, Bits b, Bits c) { return c + ((a + b) >> 32); }},
    {"sub.cc.u32 x, {a}, {b}; subc.u32 {d}, {c}, 0;", 32,
     [](Bits a, Bits b, Bits c) { return c - (a < b); }},
    {"min.s32 {d}, {a}, {b};", 32,
     [](Bits a, Bits b, Bits) { return Bits(std::min(s(a), s(b))); }},
    {"max.u64 {d}, {a}, {b};", 64, [](Bits a, Bits b, Bits) { return std::max(a, b); }},
    {"abs.s32 {d}, {a};", 32, [](Bits a, Bits, Bits) { return s(a) < 0 ? -a : a; }},
    {"sad.u32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return c + (a < b ? b - a : a - b); }},
    {"xor.b64 {d}, {a}, {b}; not.b64 {d}, {d};", 64, [](Bits a, Bits b, Bits) { return ~(a ^ b); }},
    {"shl.b32 {d}, {a}, b32;", 32, [](Bits a, Bits b, Bits) { return b > 31 ? 0 : a << b; }},
    {"shr.u64 {d}, {a}, b32;", 64, [](Bits a, Bits b, Bits) { return u(b) > 63 ? 0 : a >> u(b); }},
    {"shr.s32 {d}, {a}, b32;", 32,
     [](Bits a, Bits b, Bits) { return Bits(s(a) >> std::min<Bits>(b, 31)); }},
    {"shf.l.wrap.b32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return (b << 32 | a) << (c & 31) >> 32; }},
    {"shf.r.clamp.b32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return (b << 32 | a) >> std::min<Bits>(c, 32); }},
    {"bfe.u32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return field(a, b & 255, c & 255, false); }},
    {"bfe.s32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return field(a, b & 255, c & 255, true); }},
    {"bfi.b32 {d}, {a}, {b}, 5, 9;", 32,
     [](Bits a, Bits b, Bits) { return (b & ~(511ull << 5)) | (a & 511) << 5; }},
    {"popc.b64 d32, a64; cvt.u64.u32 {d}, d32;", 64,
     [](Bits a, Bits, Bits) { return Bits(__builtin_popcountll(a)); }},
    {"clz.b32 {d}, {a};", 32, [](Bits a, Bits, Bits) { return Bits(31 - top_bit(u(a))); }},
    {"bfind.s32 {d}, {a};", 32,
     [](Bits a, Bits, Bits) { return Bits(top_bit(s(a) < 0 ? ~u(a) : u(a))); }},
    {"brev.b32 {d}, {a}; brev.b32 {d}, {d};", 32, [](Bits a, Bits, Bits) { return a; }},
    {"lop3.b32 {d}, {a}, {b}, {c}, 0xe2;", 32,
     [](Bits a, Bits b, Bits c) { return (b & a) | (~b & c); }},
    {"setp.lt.s32 q, {a}, {b}; selp.b32 {d}, {a}, {c}, q;", 32,
     [](Bits a, Bits b, Bits c) { return s(a) < s(b) ? a : c; }},
    {"setp.gt.u32 q, {a}, {c}; setp.le.and.u32 q|r, {a}, {b}, q; selp.b32 {d}, 1, 0, q;"
     " @r add.u32 {d}, {d}, 2;", 32,
     [](Bits a, Bits b, Bits c) {
       return Bits(a <= b && a > c) + 2 * Bits(!(a <= b) && a > c);
     }},
    {"slct.s32.s32 {d}, {a}, {b}, {c};", 32,
     [](Bits a, Bits b, Bits c) { return s(c) >= 0 ? a : b; }},
    {"mov.b32 {d}, {a16, b16}; mov.b32 {c16, _}, {d}; cvt.u32.u16 x, c16; xor.b32 {d}, {d}, x;", 32,
     [](Bits, Bits b, Bits) { return (b & 0xffff) << 16; }},
    {"cvt.s32.s8 {d}, {a};", 32, [](Bits a, Bits, Bits) { return Bits(int8_t(a)); }},
    {"cvt.sat.u8.s32 {d}, {a};", 32,
     [](Bits a, Bits, Bits) { return Bits(std::min(255, std::max(0, s(a)))); }},
    {"cvt.s64.s32 {d}, a32;", 64, [](Bits a, Bits, Bits) { return Bits(int64_t(s(a))); }},
    {"cvt.rn.f32.u32 f0, {a}; mov.b32 {d}, f0;", 32,
     [](Bits a, Bits, Bits) { return bits_of(float(u(a))); }},
    {"cvt.rn.f32.s64 f0, a64; mov.b32 d32, f0; cvt.u64.u32 {d}, d32;", 64,
     [](Bits a, Bits, Bits) { return bits_of(float(int64_t(a))); }},
    {"mov.b32 f1, {a}; cvt.rzi.s32.f32 {d}, f1;", 32,
     [](Bits a, Bits, Bits) { return to_int(f(a)); }},
    {float_op("add.rn.f32", 2), 32, [](Bits a, Bits b, Bits) { return plain(f(a) + f(b)); }},
    {float_op("mul.rn.f32", 2), 32, [](Bits a, Bits b, Bits) { return plain(f(a) * f(b)); }},
    {float_op("fma.rn.f32", 3), 32,
     [](Bits a, Bits b, Bits c) { return plain(std::fma(f(a), f(b), f(c))); }},
    {float_op("div.rn.f32", 2), 32, [](Bits a, Bits b, Bits) { return plain(f(a) / f(b)); }},
    {float_op("sqrt.rn.f32", 1), 32, [](Bits a, Bits, Bits) { return plain(std::sqrt(f(a))); }},
    {float_op("add.ftz.f32", 2), 32,
     [](Bits a, Bits b, Bits) {
       const auto flush = [](float x) {
         return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x;
       };
       return plain(flush(flush(f(a)) + flush(f(b))));
     }},
    // A loop that each lane leaves at its own time, with a branch inside.
    {"and.b32 x, {a}, 1023; or.b32 x, x, 1; loop: setp.eq.u32 q, x, 1; @q bra over;"
     " add.u32 {d}, {d}, 1; and.b32 y, x, 1; setp.eq.u32 r, y, 0; @r bra even;"
     " mad.lo.u32 x, x, 3, 1; bra loop; even: shr.u32 x, x, 1; bra loop; over: ", 32,
     [](Bits a, Bits, Bits) {
       Bits x = (a & 1023) | 1, steps = 0;
       for (; x != 1; ++steps) x = x & 1 ? 3 * x + 1 : x / 2;
       return steps;
     }},
};

const bool added = [] {
  for (const Row &row : rows)
    add_case({"instruction " + row.code, [&row] { run_row(row); }});
  return true;
}();

} // namespace
