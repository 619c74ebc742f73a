// trial.h - small problems that make a kernel go round its ring, run under a given schedule.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "row_machine.h"

struct Schedule {
  const char *multiprocessors; // 1: a CTA does several tiles
  unsigned seed;
};
// Sums in a fixed order, and mutants that live on, get all: some meetings of warps are rare.
constexpr Schedule schedules[] = {{"1", 1},  {"4", 2},  {"1", 3},  {"4", 4},  {"1", 5},  {"4", 6},
                                  {"4", 7},  {"4", 8},  {"4", 9},  {"4", 10}, {"4", 11}, {"4", 12},
                                  {"4", 13}, {"4", 14}, {"4", 15}, {"4", 16}, {"4", 17}, {"4", 18}};
constexpr size_t usual_schedules = 6;
constexpr size_t schedule_count = sizeof schedules / sizeof *schedules;

struct Trial {
  fa3ptx::RowIndex head; // the row that heads the plan; the plan launches the row under test
  Problem problem;
  bool backward;
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
