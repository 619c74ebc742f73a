// trial.h - small problems that make a kernel go round its ring, run under a given schedule.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "row_machine.h"

struct Schedule {
  const char *multiprocessors; // 1: a CTA does several tiles; 12: all CTAs are there at once
  const char *behind;          // 1: a warp, a warpgroup or every other cluster falls behind; 2: a
                               // warpgroup
  unsigned seed;
};
// Sums in a fixed order, and mutants that live on, get all: some meetings of warps are rare.
constexpr Schedule schedules[] = {
    {"1", "0", 1}, {"4", "1", 2}, {"1", "1", 3}, {"4", "0", 4}, {"1", "1", 5}, {"12", "1", 6},
    {"1", "2", 7}, {"4", "2", 8}, {"1", "1", 9}, {"4", "1", 10}, {"1", "2", 11}, {"12", "2", 12},
    {"1", "1", 13}, {"4", "1", 14}, {"1", "2", 15}, {"12", "1", 16}, {"1", "1", 17},
    {"4", "2", 18}, {"1", "2", 19}, {"12", "1", 20}, {"1", "1", 21}, {"4", "1", 22},
    {"1", "2", 23}, {"4", "2", 24}};
constexpr size_t usual_schedules = 6;
constexpr size_t schedule_count = sizeof schedules / sizeof *schedules;

struct Trial {
  fa3ptx::RowIndex head; // the row that heads the plan; the plan launches the row under test
  Problem problem;
  bool backward;
  bool again;          // the call is made twice, the second right behind the first
  Values values;       // these three not for E4M3
  Reference expected;
  Outputs forward;     // what a backward reads
  bool repeatable;     // every schedule has to give the same bits, on the same device:
  std::map<std::string, std::string> bits; // by multiprocessors, of the kernel as it is
};

// Empty if no plan launches the row.
std::vector<Trial> trials_of(fa3ptx::RowIndex row);

// "=" and a hash of the outputs if all is well, else what is wrong, in a line.  Once a process.
std::string run_trial(const Trial &, const Schedule &);
