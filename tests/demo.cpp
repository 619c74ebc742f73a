// demo.cpp - `make demo`: two attention calls, forward and backward; how exact and how fast.
#include <cmath>
#include <cstdio>

#include "device.h"
#include "device_call.h"
#include "harness.h"
#include "storage.h"

namespace {

double worst(fa3ptx_dtype dtype, const Dense &got, const std::vector<double> &want) {
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(from_storage(dtype, got.bits[i]) - want[i]);
    if (!(e <= error)) error = e;
  }
  return error;
}

void print_error(const char *name, double error, double allowed) {
  std::printf("    %-3s max error %.2e, allowed %.2e\n", name, error, allowed);
}

void print_kernel(const Problem &p, bool backward) {
  const fa3ptx_plan_info info = explain(p, backward);
  std::printf("  %s: kernel %s, %d launch%s\n", backward ? "backward" : "forward", info.kernel,
              info.launches, info.launches == 1 ? "" : "es");
}

void print_speed(const Problem &p, bool backward) {
  const DeviceCall call(p, backward);
  const bool emulated = device().emulated;
  const double seconds = emulated ? time_on_gpu([&] { call.enqueue(); }, 0, 0, 1)
                                  : time_on_gpu([&] { call.enqueue(); }, 0.2, 0.02, 9);
  std::printf("    %.3f ms, %.1f TFLOP/s%s\n", seconds * 1e3, flops(p, backward) / seconds * 1e-12,
              emulated ? " (emulated: says nothing about a GPU)" : "");
}

// True if everything is within the tolerance.
bool show(const char *title, const Problem &p) {
  std::printf("\n%s: %s\n", title, p.name().c_str());
  const Values values = make_values(p);
  const Reference ref = reference(p, values, true);

  const Run forward = run_forward(gpu(), p, values);
  if (forward.status != FA3PTX_OK)
    return std::printf("  failed: %s\n", forward.error.c_str()), false;
  print_kernel(p, false);
  print_error("O", worst_error(p, ref, forward.outputs), ref.allowed_o);
  print_speed(p, false);

  const Run backward = run_backward(gpu(), p, values, forward.outputs);
  if (backward.status != FA3PTX_OK)
    return std::printf("  failed: %s\n", backward.error.c_str()), false;
  print_kernel(p, true);
  print_error("dQ", worst(p.dtype, backward.outputs.dq, ref.dq), ref.allowed_dq);
  print_error("dK", worst(p.dtype, backward.outputs.dk, ref.dk), ref.allowed_dk);
  print_error("dV", worst(p.dtype, backward.outputs.dv, ref.dv), ref.allowed_dv);
  print_speed(p, true);

  Complaints wrong = compare_forward(p, ref, forward.outputs);
  for (const std::string &sentence : compare_backward(p, ref, backward.outputs))
    wrong.push_back(sentence);
  for (const Run *run : {&forward, &backward})
    wrong.insert(wrong.end(), run->damage.begin(), run->damage.end());
  std::printf("%s", join(wrong).c_str());
  return wrong.empty();
}

} // namespace

int main() try {
  const bool emulated = device().emulated;
  std::printf("device: %s, %d multiprocessors%s\n", device().name.c_str(), device().multiprocessors,
              emulated ? " (emulated driver: no GPU found)" : "");
  std::printf("errors are against float64 on the CPU; FLOPs are counted as in the papers\n");
  Problem small;
  small.batch = emulated ? 1 : 2;
  small.seqlen_q = emulated ? 70 : 200;
  small.seqlen_k = emulated ? 90 : 333;
  small.heads_q = emulated ? 4 : 8;
  small.heads_kv = 2;
  small.causal = true;
  Problem large;
  large.batch = emulated ? 1 : 2;
  large.seqlen_q = large.seqlen_k = emulated ? 192 : 4096;
  large.heads_q = large.heads_kv = emulated ? 1 : 16;
  large.head_dim = 128;
  const bool good = show("small, grouped queries, causal", small) & show("larger", large);
  std::printf("\n%s\n", good ? "all within the tolerance" : "NOT within the tolerance");
  return good ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "demo: %s\n", error.what());
  return 1;
}
