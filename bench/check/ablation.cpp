// ablation.cpp - checks the kernels of one variant of bench/ablations.def; linked once for each.
//
// Every row in it that heads a plan works on a few tiles, some part empty, on fewer multiprocessors
// than tiles, with more blocks than stages, and is compared with float64.  The emulated driver
// reports hazards as well.
#include <cstdio>

#include "tests/device.h"
#include "tests/row_machine.h"

int main() {
  int passed = 0, failed = 0;
  try {
    device();
  } catch (const NoDevice &reason) {
    std::printf("%s\n0 passed, 0 failed, 1 skipped\n", reason.what());
    return 0;
  }
  for (int r = 0; r < fa3ptx::kRowCount; ++r) {
    const fa3ptx::Row &row = fa3ptx::kRows[r];
    if (!heads_plans(row)) continue;
    Problem p = problem_of(row);
    p.heads_q = 2;
    p.seqlen_q = row.tile_m + 70;
    p.seqlen_k = (row.stages + 1) * row.tile_n + 37;
    VerifyOptions options;
    options.forward = !is_backward(row);
    options.backward = is_backward(row);
    options.again.clear();
    RowMachine machine(fa3ptx::RowIndex(r), 2);
    const Complaints complaints = verify(machine, p, options);
    complaints.empty() ? ++passed : ++failed;
    if (!complaints.empty()) std::printf("%s: %s\n", row.name, join(complaints).c_str());
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
