// trace.cpp - runs a kernel that was built with -DTRACED (ptx/trace.inc) and writes down when each
// event of its drawn timeline began and ended, warpgroup by warpgroup.
//
//   trace ROW [--seqlen N] [--batch N] [--heads N] [--cta N] [--blocks A:B] [--csv F] [--json F]
//
// --cta: the first CTA of TRACE_CTAS that are traced.  --csv: the spans of that CTA, of --blocks of
// its first consumer, in clocks from the first of them.  --json: all CTAs, for chrome://tracing or
// ui.perfetto.dev; a clock counts as a nanosecond there.  On an emulated driver the problem is
// small, and a clock says what came before what, within a warp, but not how long.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include <dlfcn.h>

#include "ptx/abi_trace.h"
#include "src/registry.h"
#include "tests/device.h"
#include "tests/device_call.h"
#include "tests/row_machine.h"

namespace {

const char *const kNames[EVENT_COUNT] = {
    "",   "wait", "load Q", "load K", "load V", "QK", "softmax", "PV", "store O", "load Q, dO",
    "S",  "dP",   "P",      "dV",     "dS",     "dK", "dQ",      "add dQ", "store dK, dV"};

struct Span {
  int cta, sm, role, event, number; // number: of the block within its tile; of loads, in all
  uint32_t begin, end;              // clocks of that multiprocessor
};

struct Options {
  std::string row, csv, json, problem;
  int seqlen = 0, batch = 0, heads = 0, cta = 0, first = 0, last = -1; // blocks; -1: all
};

Options read_options(int argc, char **argv) {
  Options o;
  if (argc < 2) throw std::runtime_error("trace ROW [--seqlen N] ...: see bench/trace/trace.cpp");
  o.row = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--csv") o.csv = value;
    else if (name == "--json") o.json = value;
    else if (name == "--seqlen") o.seqlen = std::atoi(value);
    else if (name == "--batch") o.batch = std::atoi(value);
    else if (name == "--heads") o.heads = std::atoi(value);
    else if (name == "--cta") o.cta = std::atoi(value);
    else if (name == "--blocks") std::sscanf(value, "%d:%d", &o.first, &o.last);
    else throw std::runtime_error("unknown option " + name);
  }
  return o;
}

fa3ptx::RowIndex find_row(const std::string &name) {
  for (int r = 0; r < fa3ptx::kRowCount; ++r)
    if (name == fa3ptx::kRows[r].name && fa3ptx::in_build(fa3ptx::RowIndex(r)))
      return fa3ptx::RowIndex(r);
  throw std::runtime_error("no traced kernel is called " + name);
}

// The kernel's lists in device memory.
CUdeviceptr trace_buffer(fa3ptx::RowIndex row) {
  const char *path = std::getenv("FA3PTX_LIBCUDA");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto symbol = [&](const char *name) { // the headers of CUDA 12.4 do not have the first
    void *found = library ? dlsym(library, name) : nullptr;
    return found ? found : throw std::runtime_error(std::string("the driver has no ") + name);
  };
  const auto get_library =
      reinterpret_cast<CUresult (*)(CUlibrary *, CUkernel)>(symbol("cuKernelGetLibrary"));
  const auto get_global =
      reinterpret_cast<decltype(&::cuLibraryGetGlobal)>(symbol("cuLibraryGetGlobal"));
  fa3ptx::Error e = {};
  const fa3ptx::Driver *driver = nullptr;
  CUkernel kernel = nullptr;
  if (fa3ptx::get_driver(driver, e) != FA3PTX_OK ||
      fa3ptx::get_kernel(*driver, device().handle, row, kernel, e) != FA3PTX_OK)
    throw std::runtime_error("the kernel does not load");
  CUlibrary image = nullptr;
  CUdeviceptr buffer = 0;
  size_t bytes = 0;
  cuda_check(get_library(&image, kernel), "cuKernelGetLibrary");
  cuda_check(get_global(&buffer, &bytes, image, "fa3ptx_trace"), "cuLibraryGetGlobal");
  if (bytes != TRACE_BYTES) throw std::runtime_error("fa3ptx_trace has another size");
  return buffer;
}

std::vector<uint32_t> run(Options &o, fa3ptx::RowIndex index) {
  const fa3ptx::Row &row = fa3ptx::kRows[index];
  const bool backward = is_backward(row), emulated = device().emulated;
  Problem p = problem_of(row);
  p.seqlen_q = p.seqlen_k = o.seqlen ? o.seqlen : emulated ? 640 : 8192;
  p.batch = o.batch ? o.batch : emulated ? 1 : 2;
  p.heads_q = p.heads_kv = o.heads ? o.heads : emulated ? 2 : 2048 / p.head_dim;
  o.problem = p.name();
  RowMachine machine(index, emulated ? 1 : 0);
  const DeviceCall call(p, backward, machine);
  const auto enqueue = [&] {
    const fa3ptx_status status =
        backward ? machine.enqueue(call.backward) : machine.enqueue(call.forward);
    if (status != FA3PTX_OK) throw std::runtime_error(fa3ptx_last_error());
  };
  const CUdeviceptr buffer = trace_buffer(index);
  std::vector<uint32_t> words(TRACE_BYTES / 4);
  words[0] = uint32_t(o.cta);
  if (!emulated) // until clocks and caches have settled
    std::printf("%.1f us a call\n", 1e6 * time_on_gpu(enqueue, 0.5, 0.01, 5));
  CUDA(cuMemcpyHtoDAsync(buffer, words.data(), TRACE_BYTES, device().stream));
  enqueue();
  CUDA(cuMemcpyDtoHAsync(words.data(), buffer, TRACE_BYTES, device().stream));
  CUDA(cuStreamSynchronize(device().stream));
  return words;
}

// The spans of a list.  Numbers count what has ended since the last store began: the first QK of a
// tile begins in the tile before, and ends in its own.
void read_list(const uint32_t *entry, Span span, std::vector<Span> &spans) {
  if (entry[0] == 0) return;
  span.sm = int(entry[0]) - 1;
  bool open[EVENT_COUNT] = {};
  uint32_t begins[EVENT_COUNT] = {};
  int count[EVENT_COUNT] = {};
  for (int i = 1; i < TRACE_LIST_BYTES / 8 && entry[2 * i] != 0; ++i) {
    const uint32_t ended = entry[2 * i] & 255, begun = entry[2 * i] >> 8, clock = entry[2 * i + 1];
    if (ended >= EVENT_COUNT || begun >= EVENT_COUNT) throw std::runtime_error("a list is torn");
    if (open[ended] && ended != EVENT_NONE) {
      span.event = int(ended), span.number = count[ended]++;
      span.begin = begins[ended], span.end = clock;
      spans.push_back(span);
      open[ended] = false;
    }
    if (begun == EVENT_STORE_O) memset(count, 0, sizeof count);
    if (begun != EVENT_NONE) begins[begun] = clock, open[begun] = true;
  }
}

std::vector<Span> read_spans(const std::vector<uint32_t> &words, int first_cta) {
  std::vector<Span> spans;
  for (int list = 0; list < TRACE_CTAS * TRACE_ROLES; ++list) {
    Span span = {};
    span.cta = first_cta + list / TRACE_ROLES, span.role = list % TRACE_ROLES;
    read_list(&words[size_t(1 + list) * TRACE_LIST_BYTES / 4], span, spans);
  }
  return spans;
}

std::string role_name(const Span &s, bool backward) {
  if (s.role == 0) return backward ? "loads, dQ" : "producer";
  return "warpgroup " + std::to_string(s.role);
}

void write_json(const std::string &path, const std::vector<Span> &spans, bool backward) {
  std::ofstream out(path);
  std::map<int, uint32_t> start; // of each multiprocessor's clock
  for (const Span &s : spans)
    if (!start.count(s.sm) || int32_t(s.begin - start[s.sm]) < 0) start[s.sm] = s.begin;
  std::map<std::pair<int, int>, std::string> lanes;
  out << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  const char *comma = "\n";
  for (const Span &s : spans) {
    const int lane = s.role * EVENT_COUNT + s.event;
    lanes[{s.cta, lane}] = role_name(s, backward) + ", " + kNames[s.event];
    char line[256];
    std::snprintf(line, sizeof line,
                  "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s %d\", "
                  "\"cat\": \"%s\", \"ts\": %.3f, \"dur\": %.3f}",
                  s.cta, lane, kNames[s.event], s.number, kNames[s.event],
                  (s.begin - start[s.sm]) / 1e3, (s.end - s.begin) / 1e3);
    out << comma << line;
    comma = ",\n";
  }
  for (const auto &lane : lanes)
    out << comma << "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": " << lane.first.first
        << ", \"tid\": " << lane.first.second << ", \"args\": {\"name\": \"" << lane.second
        << "\"}}";
  out << "\n]}\n";
  if (!out) throw std::runtime_error("cannot write " + path);
}

// The spans of a CTA, all of them or those between two blocks of its first consumer.
void write_csv(const Options &o, std::vector<Span> spans, bool backward) {
  std::ofstream out(o.csv);
  const int product = backward ? EVENT_S : EVENT_QK;
  uint32_t from = 0, to = 0;
  int block = 0;
  for (const Span &s : spans) {
    if (s.cta != o.cta || s.role != 1 || s.event != product) continue;
    if (block == o.first) from = s.begin;
    if (block++ == o.last) to = s.begin;
  }
  const auto at = [&](uint32_t clock) { return int32_t(clock - from); };
  out << "# card: " << device().name << "\n# kernel: " << o.row << "\n# cta: " << o.cta
      << "\n# problem: " << o.problem << "\nrole,event,number,begin,end\n";
  for (const Span &s : spans)
    if (s.cta == o.cta && (o.last < 0 || (at(s.end) > 0 && at(s.begin) < at(to))))
      out << (s.role == 0 ? "0" : std::to_string(s.role)) << ',' << '"' << kNames[s.event] << '"'
          << ',' << s.number << ',' << at(s.begin) << ',' << at(s.end) << '\n';
  if (!out) throw std::runtime_error("cannot write " + o.csv);
}

// Mean clocks of each event, by role, of the first CTA.
void print_means(const Options &o, const std::vector<Span> &spans, bool backward) {
  std::map<std::pair<int, int>, std::pair<double, int>> sums;
  std::map<int, std::string> roles;
  for (const Span &s : spans) {
    if (s.cta != o.cta) continue;
    auto &sum = sums[{s.role, s.event}];
    sum.first += double(s.end - s.begin), ++sum.second;
    roles[s.role] = role_name(s, backward);
  }
  for (const auto &sum : sums)
    std::printf("%-12s %-12s %5d times, mean %7.0f clocks\n", roles[sum.first.first].c_str(),
                kNames[sum.first.second], sum.second.second, sum.second.first / sum.second.second);
}

} // namespace

int main(int argc, char **argv) try {
  Options o = read_options(argc, argv);
  const fa3ptx::RowIndex row = find_row(o.row);
  const bool backward = is_backward(fa3ptx::kRows[row]);
  std::printf("%s on %s, CTA %d\n", o.row.c_str(), device().name.c_str(), o.cta);
  const std::vector<Span> spans = read_spans(run(o, row), o.cta);
  if (spans.empty()) throw std::runtime_error("nothing was traced");
  print_means(o, spans, backward);
  if (!o.csv.empty()) write_csv(o, spans, backward);
  if (!o.json.empty()) write_json(o.json, spans, backward);
  return 0;
} catch (const std::exception &e) {
  std::fprintf(stderr, "trace: %s\n", e.what());
  return 1;
}
