// test_mutants.cpp - the mutation run damages what it says it damages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "mutants.h"
#include "src/kernels.h"

#define KERNEL(name, ...) \
  extern "C" __attribute__((visibility("hidden"), weak)) const char fa3ptx_image_##name[];
#include "src/kernels.def"
#undef KERNEL

static const char *const kernel = R"(# 1 "a.ptx"
.version 8.3
.const .b32 table[2] = {1, 2};
.visible .entry k(.param .b64 P)
{
  .reg .pred p;
  bar.sync 0; fence.proxy.async.shared::cta;
# 40 "ring.inc" 1
  { .reg .pred done;
    spin: mbarrier.try_wait.parity.shared::cta.b64 done, [a + 8], 1;
    @!done bra spin; }
# 9 "a.ptx" 2
  @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [a],
    4096;
again:
  ld.acquire.gpu.global.b32 x, [b];
  setp.eq.u32 p, x, 0;
  @p bra again;
wait:
  setp.ge.u32 p, x, 3;
  @p bra came;
  ld.acquire.gpu.global.b32 x, [b];
  bra.uni wait;
came:
  st.shared.v2.b32 [c], {x, x};
  ret;
}
)";

TEST_CASE("mutants are found at their source lines") {
  const std::vector<Mutant> found = find_mutants(kernel);
  const struct {
    const char *file;
    int line, nth;
    const char *statement, *what;
  } expected[] = {
      {"a.ptx", 6, 1, "bar.sync 0;", "dropped"},
      {"a.ptx", 6, 2, "fence.proxy.async.shared::cta;", "dropped"},
      {"ring.inc", 41, 1, "mbarrier.try_wait.parity.shared::cta.b64 done, [a + 8], 1;",
       "passes at once"},
      {"a.ptx", 9, 1, "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [a], 4096;", "dropped"},
      {"a.ptx", 9, 2, "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [a], 4096;",
       "expects no bytes"},
      {"a.ptx", 12, 1, "ld.acquire.gpu.global.b32 x, [b];", "relaxed"},
      {"a.ptx", 14, 1, "@p bra again;", "spin loop left at once"},
      {"a.ptx", 18, 1, "ld.acquire.gpu.global.b32 x, [b];", "relaxed"},
      {"a.ptx", 19, 1, "bra.uni wait;", "spin loop left at once"},
  };
  REQUIRE(found.size() == sizeof expected / sizeof *expected);
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].file == expected[i].file);
    CHECK(found[i].line == expected[i].line);
    CHECK(found[i].nth == expected[i].nth);
    CHECK(found[i].statement == expected[i].statement);
    CHECK(found[i].what == expected[i].what);
  }
}

TEST_CASE("a mutant changes its statement and no other, and keeps lines where they are") {
  const std::string text = kernel;
  std::vector<Mutant> all = find_mutants(text);
  for (size_t i = 0, n = all.size(); i < n; ++i) all.push_back(trap_at(all[i]));
  for (const Mutant &m : all) {
    std::string damaged = text;
    apply(m, &damaged[0]);
    REQUIRE(damaged.size() == text.size());
    CHECK(damaged != text);
    CHECK(damaged.substr(0, m.begin) == text.substr(0, m.begin));
    CHECK(damaged.substr(m.end) == text.substr(m.end));
    CHECK(damaged.compare(m.begin, m.replacement.size(), m.replacement) == 0);
    CHECK(std::count(damaged.begin(), damaged.end(), '\n') ==
          std::count(text.begin(), text.end(), '\n'));
  }
}

// That it would survive, the mutation run finds out; that there still is such a mutant, this does.
TEST_CASE("every line of the list of equivalents speaks of a mutant of some kernel") {
  static const char *const images[] = {
#define KERNEL(name, ...) fa3ptx_image_##name,
#include "src/kernels.def"
#undef KERNEL
  };
  std::vector<Equivalent> list = read_equivalents();
  CHECK(list.size() > 10);
  for (int row = 0; row < fa3ptx::kRowCount; ++row) {
    if (!images[row] || !std::memcmp(images[row], "\177ELF", 4)) {
      MESSAGE("a build without the PTX of every row: nothing to compare");
      return;
    }
    for (const Mutant &m : find_mutants(images[row]))
      for (Equivalent &e : list) {
        std::vector<Equivalent> alone{e};
        if (!e.used && find_equivalent(alone, fa3ptx::kRows[row].name, m)) e.used = true;
      }
  }
  for (const Equivalent &e : list) {
    INFO(e.kernel, " | ", e.file, " | ", e.source, " | ", e.statement, " #", e.repeat);
    CHECK(e.used);
  }
}
