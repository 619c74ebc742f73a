/* abi_c.c - the C ABI from C11: linked with -lfa3ptx alone, forward and backward in a dozen lines.
 *
 * The inputs have answers that can be written down: with K = 0 all visible keys weigh the same, so
 * O is the mean of the visible V, LSE the logarithm of their number, and dV_j, for dO = 1, the sum
 * of 1 / (number of keys seen) over the queries that see j.
 */
#include <fa3ptx.h>

#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, SQ = 40, SK = 50, HQ = 4, HK = 2, D = 64 };
enum { Q = B * SQ * HQ * D, K = B * SK * HK * D, ROWS = B * HQ * SQ }; /* elements */

/* ---- The calls that the test is about -------------------------------------------------------- */
static fa3ptx_status forward(void *q, void *k, void *v, void *o, float *lse, CUstream stream) {
  fa3ptx_forward_args a = {.struct_size = sizeof a, .mask = FA3PTX_MASK_CAUSAL, .lse = lse};
  a.batch = B, a.seqlen_q = SQ, a.seqlen_k = SK, a.heads_q = HQ, a.heads_kv = HK, a.head_dim = D;
  a.q = fa3ptx_bshd(q, FA3PTX_BF16, SQ, HQ, D);
  a.k = fa3ptx_bshd(k, FA3PTX_BF16, SK, HK, D);
  a.v = fa3ptx_bshd(v, FA3PTX_BF16, SK, HK, D);
  a.o = fa3ptx_bshd(o, FA3PTX_BF16, SQ, HQ, D);
  return fa3ptx_forward(&a, stream);
}

static fa3ptx_backward_args backward_args(void *const t[8], const float *lse) {
  fa3ptx_backward_args a = {.struct_size = sizeof a, .mask = FA3PTX_MASK_CAUSAL, .lse = lse};
  a.batch = B, a.seqlen_q = SQ, a.seqlen_k = SK, a.heads_q = HQ, a.heads_kv = HK, a.head_dim = D;
  fa3ptx_tensor *like_q[4] = {&a.q, &a.o, &a.dout, &a.dq};
  fa3ptx_tensor *like_k[4] = {&a.k, &a.v, &a.dk, &a.dv};
  for (int i = 0; i < 4; i++) *like_q[i] = fa3ptx_bshd(t[i], FA3PTX_BF16, SQ, HQ, D);
  for (int i = 0; i < 4; i++) *like_k[i] = fa3ptx_bshd(t[4 + i], FA3PTX_BF16, SK, HK, D);
  return a;
}

/* ---- The driver: enough of it for memory ---------------------------------------------------- */
static CUresult (*init)(unsigned), (*get_device)(CUdevice *, int),
    (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext), (*allocate)(CUdeviceptr *, size_t),
    (*to_device)(CUdeviceptr, const void *, size_t), (*to_host)(void *, CUdeviceptr, size_t),
    (*attribute)(int *, CUdevice_attribute, CUdevice);

static const char *open_driver(void) {
  const char *path = getenv("FA3PTX_LIBCUDA");
  void *lib = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
  const struct { void *pointer; const char *name; } list[] = {
      {&init, "cuInit"}, {&get_device, "cuDeviceGet"}, {&retain, "cuDevicePrimaryCtxRetain"},
      {&set_current, "cuCtxSetCurrent"}, {&allocate, "cuMemAlloc_v2"},
      {&to_device, "cuMemcpyHtoD_v2"}, {&to_host, "cuMemcpyDtoH_v2"},
      {&attribute, "cuDeviceGetAttribute"}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    void *symbol = lib ? dlsym(lib, list[i].name) : NULL;
    if (!symbol) return "no CUDA driver";
    memcpy(list[i].pointer, &symbol, sizeof symbol);
  }
  CUdevice device;
  CUcontext context;
  int major = 0;
  if (init(0) || get_device(&device, 0)) return "no CUDA device";
  attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (major != 9) return "the device is not of compute capability 9.0";
  if (retain(&context, device) || set_current(context)) return "no CUDA context";
  return NULL;
}

static void *device_copy(const void *data, size_t bytes) {
  CUdeviceptr p = 0;
  if (allocate(&p, bytes) || to_device(p, data, bytes)) {
    fprintf(stderr, "no device memory\n");
    exit(2);
  }
  return (void *)(uintptr_t)p;
}

/* ---- bf16 and the checks -------------------------------------------------------------------- */
static float from_bf16(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &word, 4);
  return x;
}
static uint16_t small_bf16(float x) { /* of numbers that bf16 holds exactly */
  uint32_t word;
  memcpy(&word, &x, 4);
  return (uint16_t)(word >> 16);
}

static int passed, failed;
static void check(int good, const char *what) {
  good ? passed++ : failed++;
  if (!good) printf("FAILED: %s (last error: %s)\n", what, fa3ptx_last_error());
}
static int near(double got, double want) { return fabs(got - want) <= 0.005 * (1 + fabs(want)); }

static uint16_t q[Q], k[K], v[K], o[Q], ones[Q], dv[K];
static float lse[ROWS];

static int o_is_right(void) {
  for (int i = 0; i < Q; i++) { /* (b, s, h, d); V[j] = j % 16 in every column */
    const int s = i / D / HQ % SQ, seen = s + 1 + SK - SQ;
    double mean = 0;
    for (int j = 0; j < seen; j++) mean += (double)(j % 16) / seen;
    if (!near(from_bf16(o[i]), mean)) return 0;
  }
  return 1;
}
static int lse_is_right(void) {
  for (int i = 0; i < ROWS; i++)
    if (!(fabs(lse[i] - log(i % SQ + 1 + SK - SQ)) <= 1e-4)) return 0;
  return 1;
}
static int dv_is_right(void) {
  for (int i = 0; i < K; i++) {
    const int j = i / D / HK % SK;
    double sum = 0;
    for (int s = 0; s < SQ; s++)
      if (j < s + 1 + SK - SQ) sum += (double)(HQ / HK) / (s + 1 + SK - SQ);
    if (!near(from_bf16(dv[i]), sum)) return 0;
  }
  return 1;
}

int main(void) {
  check(fa3ptx_version() == FA3PTX_VERSION, "header and library are of one version");
  check(strcmp(fa3ptx_status_string(FA3PTX_OK), "success") == 0, "status strings");
  const char *reason = open_driver();
  if (reason) {
    printf("skipped 6: %s\n%d passed, %d failed, 6 skipped\n", reason, passed, failed);
    return failed != 0;
  }
  for (int i = 0; i < Q; i++) q[i] = small_bf16((float)(i % 7)), ones[i] = small_bf16(1);
  for (int i = 0; i < K; i++) v[i] = small_bf16((float)(i / D / HK % SK % 16));
  memset(o, 0xff, sizeof o), memset(dv, 0xff, sizeof dv), memset(lse, 0xff, sizeof lse);
  void *t[8] = {device_copy(q, sizeof q), device_copy(o, sizeof o), device_copy(ones, sizeof ones),
                device_copy(o, sizeof o), device_copy(k, sizeof k), device_copy(v, sizeof v),
                device_copy(dv, sizeof dv), device_copy(dv, sizeof dv)};
  float *d_lse = device_copy(lse, sizeof lse);
  check(forward(t[0], t[4], t[5], t[1], d_lse, NULL) == FA3PTX_OK, "forward");
  to_host(o, (CUdeviceptr)(uintptr_t)t[1], sizeof o);
  to_host(lse, (CUdeviceptr)(uintptr_t)d_lse, sizeof lse);
  check(o_is_right(), "O is the mean of the visible V");
  check(lse_is_right(), "LSE is the logarithm of the number of visible keys");

  fa3ptx_backward_args a = backward_args(t, d_lse);
  check(fa3ptx_backward_workspace_size(&a, &a.workspace_size) == FA3PTX_OK, "workspace size");
  char *zeros = calloc(1, a.workspace_size + 1);
  a.workspace = device_copy(zeros, a.workspace_size + 1);
  free(zeros);
  check(fa3ptx_backward(&a, NULL) == FA3PTX_OK, "backward");
  to_host(dv, (CUdeviceptr)(uintptr_t)t[7], sizeof dv);
  check(dv_is_right(), "dV is the sum of the weights");
  printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
