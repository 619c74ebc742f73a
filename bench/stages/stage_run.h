// stage_run.h - rows of stages.def, and one of them on the device: for the program that times them
// and for the test.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ptx_run.h"

struct Stage {
  std::string name, source, defines, unit, limit_text;
  // The second line of the row; see stages.def.
  double (*work)(const Stage &);
  double (*limit)(const Stage &);
  double (*value)(const Stage &, double n);

  double operator()(const std::string &define) const; // 0 if the row has none of that name
  unsigned cluster() const;
  bool on_host() const { return unit == "us"; }
};
const std::vector<Stage> &stages();
const Stage &stage(const std::string &name); // throws std::runtime_error

struct Limit {
  std::string name;
  double value;
  std::string where_from;
};
const std::vector<Limit> &limits();

// What rows measured in this run, for limits that are other rows: `of`.
std::map<std::string, double> &measured();
double memory(); // GB/s: what the device says of its memory's clock and width; 0 if it says nothing

// One launch: clocks and seconds are those of the median CTA, `all` goes from the first beginning
// of a CTA to the last end.
struct StageTimes {
  double clocks = 0, seconds = 0, all = 0;
  float value = 0;
};

class StageRun {
 public:
  // `large`: memory enough that nothing stays in L2, and random operands.  Not large, as in tests:
  // two CTAs (or clusters), little memory, operands of 1.
  StageRun(const Stage &, bool large);
  StageTimes run(unsigned iterations);
  void enqueue(unsigned iterations);
  void fit(); // no more clusters than run at once
  unsigned ctas() const { return shape_.grid; }
  double tensor_bytes() const { return double(rows_) * row_bytes_; }
  Buffer &output() { return *out_; }

 private:
  void set_maps(unsigned char *params);

  const Stage &stage_;
  PtxFile file_;
  CUkernel kernel_;
  LaunchShape shape_;
  unsigned rows_, row_bytes_;
  std::unique_ptr<Buffer> in_, out_, result_;
  alignas(64) unsigned char params_[64 + 128 * 10];
};

// First line that a command prints, "unknown" if it prints none: for the facts of results files.
std::string output_of(const char *command);
constexpr const char *kCommitCommand = // FA3PTX_COMMIT: of a copy that is no repository
    "echo ${FA3PTX_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}";
