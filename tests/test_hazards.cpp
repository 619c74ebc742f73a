// test_hazards.cpp - the emulated driver reports every planted hazard of hazards/, and leaves the
// corrected twins alone.
//
// Each row of hazards.def is run under several seeds, i.e. several orders of warps and several
// completion times of asynchronous work.  Built with -DBUG=1 it has to be reported under at least
// one of them, with the right kind of finding at a line marked "flagged: <kernel or file>"; built
// with -DBUG=0 under none.
#include <doctest/doctest.h>

#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "cases.h"
#include "ptx_run.h"

namespace {

constexpr unsigned SEEDS = 12;
constexpr size_t BYTES = 65536;   // of IN and of OUT
constexpr size_t CLEARED = 4096;  // at the start of OUT; the rest is as allocated

struct Row {
  std::string file, kernel;
  unsigned grid, block, cluster, shared;
  std::string finding;
};

const Row rows[] = {
#define HAZARD(file, kernel, grid, block, cluster, shared, finding) \
  {#file, #kernel, grid, block, cluster, shared, finding},
#include "hazards/hazards.def"
#undef HAZARD
};

// What a launch is made from; gone, with all memory, after each run.
struct Setup {
  const Row &row;
  const PtxFile &ptx;
  bool bug;
  std::unique_ptr<Buffer> in = std::make_unique<Buffer>(BYTES);
  std::unique_ptr<Buffer> out = std::make_unique<Buffer>(BYTES);
  CUtensorMap load = map(*in), store = map(*out);

  static CUtensorMap map(const Buffer &b) { return tensor_map(b.address, 2, {64, 512}, {64, 32}); }
  void start(const std::string &kernel, CUstream stream, bool programmatic = false) {
    LaunchShape shape{row.grid, row.block, row.cluster, row.shared, programmatic};
    const CUresult result = launch(ptx.kernel(kernel), shape, stream,
                                   {&in->address, &out->address, &load, &store});
    REQUIRE(result == CUDA_SUCCESS);
  }
};

// The emulated driver fails the call after a finding; the report has what there is to say.
void wait_for(CUstream stream) { device().cuda.cuStreamSynchronize(stream); }

// How a row is run: most launch their kernel, a few take more.
void plain(Setup &s) {
  s.start(s.row.kernel, device().stream);
  wait_for(device().stream);
}

void use_after_free(Setup &s) {
  const CUdeviceptr in = s.in->address;
  if (s.bug) CUDA(cuMemFree(in));
  plain(s);
  if (s.bug) s.in->address = 0;
}

// The consumer on a stream of its own; the event that orders it after the producer is the fix.
void two_streams(Setup &s) {
  CUstream other = nullptr;
  CUevent event = nullptr;
  CUDA(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  s.start("produce", device().stream);
  CUDA(cuEventRecord(event, device().stream));
  if (!s.bug) stream_wait_event(other, event);
  s.start("consume", other);
  wait_for(other);
  wait_for(device().stream);
}

void dependent_launch(Setup &s) {
  s.start("produce", device().stream);
  s.start(s.row.kernel, device().stream, true);
  wait_for(device().stream);
}

void chain_of_three(Setup &s, const char *second) {
  s.start("produce", device().stream);
  s.start(second, device().stream, true);
  s.start(s.row.kernel, device().stream, true);
  wait_for(device().stream);
}

void after_a_late_wait(Setup &s) { chain_of_three(s, "produce_more"); }
void after_a_first_wait(Setup &s) { chain_of_three(s, "pass_on"); }

struct Special {
  void (*run)(Setup &);
  size_t word; // if not 0, this word of OUT has to be `value` in the end
  uint32_t value;
};
const std::map<std::string, Special> specials = {
    {"use_after_free", {use_after_free, 0, 0}},
    {"destination_read_early", {plain, 2048, 0x3f803f80}},
    {"counter_after_wait_read", {plain, 512, 0x3f800000}},
    {"release_missing", {plain, 512, 1}},
    {"consume", {two_streams, 1029, 5}},
    {"consume_dependent", {dependent_launch, 1029, 5}},
    {"consume_chain", {after_a_late_wait, 1029, 5}},
    {"consume_ahead", {after_a_first_wait, 1029, 5}},
};

// Everything that was found, "" if nothing.
std::string run_once(const Row &row, const PtxFile &ptx, bool bug, unsigned seed) {
  emulator().clear();
  emulator().seed(seed);
  Setup setup{row, ptx, bug};
  const std::vector<uint16_t> ones(BYTES / 2, 0x3f80);
  setup.in->write(ones.data(), BYTES);
  setup.out->fill(0, CLEARED);
  const auto special = specials.find(row.kernel);
  (special == specials.end() ? plain : special->second.run)(setup);
  std::string report;
  if (emulator().finding_count()) report = emulator().report();
  emulator().clear();
  if (report.empty() && special != specials.end() && special->second.word) {
    const uint32_t got = setup.out->words(special->second.word, 1)[0];
    if (got != special->second.value) report = "wrong-result: " + std::to_string(got);
  }
  return report;
}

// Lines of the sources that may be blamed, as "file.ptx:12".
std::vector<std::string> flagged_lines(const Row &row) {
  std::ifstream list(built_file("hazards", "flagged.txt")); // grep -n's output
  REQUIRE(list);
  std::vector<std::string> places;
  for (std::string line; std::getline(list, line);) {
    const size_t colon = line.find(':', line.find(':') + 1), mark = line.rfind("flagged: ");
    const std::string who = line.substr(mark + 9);
    const size_t slash = line.rfind('/', colon);
    if (who == row.kernel || who == row.file)
      places.push_back(line.substr(slash + 1, colon - slash - 1));
  }
  REQUIRE(!places.empty());
  return places;
}

bool has_word(const std::string &text, const std::string &word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if (!std::isdigit(static_cast<unsigned char>(text.c_str()[at + word.size()]))) return true;
  return false;
}

bool reported(const Row &row, const std::string &report, const std::vector<std::string> &places) {
  bool kind = false, place = report.find("wrong-result") == 0;
  std::istringstream kinds(row.finding);
  for (std::string one; std::getline(kinds, one, '|');)
    kind |= report.find(one) != std::string::npos;
  for (const std::string &one : places) place |= has_word(report, one);
  return kind && place;
}

void run_row(const Row &row) {
  if (!emulator().report) throw Skip("only the emulated driver reports hazards");
  const std::vector<std::string> places = flagged_lines(row);
  for (const bool bug : {false, true}) {
    const PtxFile ptx(built_file("hazards", row.file + (bug ? ".1.ptx" : ".0.ptx")));
    bool caught = false;
    std::string last;
    for (unsigned seed = 1; seed <= SEEDS && !caught; ++seed) {
      const std::string report = run_once(row, ptx, bug, seed);
      if (!bug) {
        INFO("the corrected twin, seed ", seed);
        CHECK(report == "");
      }
      if (!report.empty()) last = report;
      caught = bug && reported(row, report, places);
    }
    if (!bug) continue;
    INFO("expected ", row.finding, "; the last report of ", SEEDS, " seeds was:\n", last);
    CHECK(caught);
  }
}

const bool added = [] {
  for (const Row &row : rows)
    add_case({"hazard " + row.file + "/" + row.kernel, [&row] { run_row(row); }, Case::any_device,
              30});
  return true;
}();

} // namespace
