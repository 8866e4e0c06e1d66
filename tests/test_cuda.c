/* The CUDA module as far as it goes without a GPU: it loads, exports one table of functions, answers what it supports,
 * and returns an error on a machine without a device. Tests that need a device are in tests/gpu. */
#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "build_interface.h"
#include "real/cuda/cuda.h"
#include "suite.h"

#ifndef TWS_CUDA_STUB
#define TWS_CUDA_STUB "" /* built without the toolkit */
#endif

static void *module;
static const tws_cuda_api *api;

/* Returns the work of a kernel with small sizes. Casts to 8 bits take a type of codes as their second type. */
static tws_work work_of(tws_kernel kernel, tws_dtype dtype, tws_dtype dtype2) {
  if (kernel == TWS_KERNEL_QUANTIZE) dtype2 = dtype2 == TWS_F32 ? TWS_E5M2 : TWS_E4M3;
  return (tws_work){.code = (uint8_t)kernel, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype2, .d = {4, 8, 2, 2, 64}};
}

START_TEST(table) {
  ck_assert_int_eq(api->version, TWS_INTERFACE);
  ck_assert_str_eq(api->backend->name, "cuda");
  ck_assert_str_eq(api->comm_ops->name, "nccl");
  const tws_backend_ops *b = api->backend;
  ck_assert(b->create && b->destroy && b->allocate && b->release && b->run && b->copy && b->wait && b->synchronize &&
            b->supports);
  const tws_comm_ops *c = api->comm_ops;
  ck_assert(c->collective && c->send && c->receive && c->start_collective && c->start_message && !c->allocate);
  /* The program's core is linked into the module, but its symbols are not exported. */
  ck_assert_ptr_null(dlsym(module, "tws_fail"));
  ck_assert_ptr_null(dlsym(module, "tws_check_operands"));
  char text[200];
  ck_assert_ptr_nonnull(strstr(api->describe(NULL, text, (int)sizeof text), "CUDA"));
}
END_TEST

/* The module supports every kernel in all types, except the shapes that it excludes. */
START_TEST(support) {
  for (int k = 0; k < TWS_KERNEL_COUNT; k++) {
    tws_work w = work_of((tws_kernel)k, TWS_F32, TWS_F32);
    ck_assert_msg(api->backend->supports(&w), "%s", tws_kernel_name((tws_kernel)k));
    w = work_of((tws_kernel)k, TWS_BF16, TWS_F32);
    ck_assert(api->backend->supports(&w));
    w = work_of((tws_kernel)k, TWS_BF16, TWS_BF16);
    ck_assert(api->backend->supports(&w));
    w = work_of((tws_kernel)k, TWS_F16, TWS_F32);
    ck_assert(api->backend->supports(&w));
    w.dtype = TWS_I32;
    ck_assert_int_eq(api->backend->supports(&w), k == TWS_KERNEL_CLIP || k == TWS_KERNEL_TRANSPOSE);
  }
  tws_work w = work_of(TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
  w.d[4] = 256;
  ck_assert(api->backend->supports(&w));
  w.d[4] = 257;
  ck_assert(!api->backend->supports(&w));
  w = work_of(TWS_KERNEL_ROPE, TWS_BF16, TWS_BF16);
  w.d[3] = 63;
  ck_assert(!api->backend->supports(&w));
  w.code = TWS_KERNEL_COUNT;
  ck_assert(!api->backend->supports(&w));
}
END_TEST

/* Describes a device to cuDNN, which builds the graphs of attention for devices that are absent. The test learns in
 * this way which shapes cuDNN takes; the backend's own kernels compute all others. */
static const char *describe_device(int version, int multiprocessors, int shared_bytes) {
  static char text[1024];
  snprintf(text, sizeof text,
           "{\"deviceName\":\"described\",\"deviceVer\":%d,\"multiProcessorCount\":%d,"
           "\"maxSharedMemoryPerBlockOptin\":%d,\"maxGridSize\":[2147483647,65535,65535],"
           "\"maxBlockSize\":[1024,1024,64],\"cudaDeviceId\":0,\"driverVer\":13000,\"smClockRateKHz\":1980000,"
           "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"warpSize\":32,\"regsPerBlock\":65536,"
           "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
           "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
           "\"totalGlobalMem\":80000000000,\"supportCoopLaunch\":1,\"isTccDriver\":0,\"pciDeviceId\":0}",
           version, multiprocessors, shared_bytes);
  return text;
}

START_TEST(attention_graphs) {
  static const int devices[3][3] = {{800, 108, 166912}, {900, 132, 232448}, {1000, 148, 232448}};
  static const struct {
    int64_t d[5];
    int deterministic; /* 1: the plan's workspace suffices for the deterministic backward pass */
  } shapes[] = {{{8, 1024, 12, 12, 64}, 0}, {{2, 1000, 25, 25, 64}, 0}, {{4, 2048, 32, 8, 64}, 0},
                {{1, 4096, 32, 8, 128}, 0}, {{2, 70, 4, 2, 128}, 1},    {{3, 64, 3, 3, 64}, 1}};
  tws_error err = {0};
  tws_work w = work_of(TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
  /* cuDNN needs a driver's library; without a driver the toolkit's stub suffices. */
  if (!dlopen("libcuda.so.1", RTLD_NOW) && !dlopen(TWS_CUDA_STUB, RTLD_NOW)) return;
  if (api->attention_for(describe_device(900, 132, 232448), &w, 0, &err) == TWS_UNSUPPORTED &&
      (strstr(err.message, "cuDNN is not there") || strstr(err.message, "knows no cuDNN")))
    return;
  for (int device = 0; device < 3; device++) {
    const char *described = describe_device(devices[device][0], devices[device][1], devices[device][2]);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      for (int kind = 0; kind < 3; kind++) { /* forward, backward, deterministic backward */
        w = work_of(kind ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
        memcpy(w.d, shapes[i].d, sizeof shapes[i].d);
        const tws_code want = kind == 2 && !shapes[i].deterministic ? TWS_UNSUPPORTED : TWS_OK;
        const tws_code got = api->attention_for(described, &w, kind == 2, &err);
        ck_assert_msg(got == want, "device %d, shape %zu, kind %d: %s", devices[device][0], i, kind, err.message);
      }
  }
  w = work_of(TWS_KERNEL_ATTENTION, TWS_F32, TWS_F32);
  ck_assert_int_eq(api->attention_for(describe_device(900, 132, 232448), &w, 0, &err), TWS_UNSUPPORTED);
  w = work_of(TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
  w.d[4] = 63;
  ck_assert_int_eq(api->attention_for(describe_device(900, 132, 232448), &w, 0, &err), TWS_UNSUPPORTED);
  ck_assert_int_eq(api->attention_for("{}", &w, 0, &err), TWS_UNSUPPORTED);
}
END_TEST

/* Windows, documents and bidirectional attention are given to cuDNN only on request. It takes all of them, except
 * the backward pass with documents before Hopper. */
START_TEST(masked_attention_graphs) {
  static const struct {
    uint32_t flags;
    int64_t window;
  } masks[] = {{0, 256},
               {TWS_BIDIRECTIONAL, 0},
               {TWS_DOCUMENTS, 0},
               {TWS_DOCUMENTS, 256},
               {TWS_BIDIRECTIONAL, 256},
               {TWS_BIDIRECTIONAL | TWS_DOCUMENTS, 0}};
  static const int devices[3][3] = {{800, 108, 166912}, {900, 132, 232448}, {1000, 148, 232448}};
  static const int64_t shapes[][5] = {{4, 2048, 32, 8, 64}, {1, 4096, 32, 8, 128}};
  tws_error err = {0};
  if (!dlopen("libcuda.so.1", RTLD_NOW) && !dlopen(TWS_CUDA_STUB, RTLD_NOW)) return;
  tws_work w = work_of(TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
  if (api->attention_for(describe_device(900, 132, 232448), &w, 0, &err) != TWS_OK) return; /* no cuDNN */
  for (int n = 0; n < 3 * 2 * 2 * (int)(sizeof masks / sizeof *masks); n++) {
    const int mask = n / 12, device = n % 3, gradient = n / 3 % 2, shape = n / 6 % 2;
    const char *described = describe_device(devices[device][0], devices[device][1], devices[device][2]);
    w = work_of(gradient ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
    memcpy(w.d, shapes[shape], sizeof shapes[shape]);
    w.flags = masks[mask].flags, w.d[6] = masks[mask].window;
    unsetenv("TWINSPEED_CUDA_FUSED_MASKS");
    ck_assert_int_eq(api->attention_for(described, &w, 0, &err), TWS_UNSUPPORTED);
    setenv("TWINSPEED_CUDA_FUSED_MASKS", "1", 1);
    const tws_code got = api->attention_for(described, &w, 0, &err);
    const int declined = devices[device][0] < 900 && gradient && (w.flags & TWS_DOCUMENTS);
    ck_assert_msg(got == (declined ? TWS_UNSUPPORTED : TWS_OK), "device %d, shape %d, mask %d, gradient %d: %s",
                  devices[device][0], shape, mask, gradient, err.message);
  }
}
END_TEST

/* On a GPU the same graphs are built; that also requires kernels for this device, which a description cannot prove. */
START_TEST(attention_is_built) {
  static const int64_t shapes[][5] = {{8, 1024, 12, 12, 64}, {1, 2048, 32, 8, 64}, {1, 1024, 8, 8, 128}};
  tws_error err = {0};
  int count = 0;
  if (api->device_count(&count, &err) != TWS_OK) return;
  for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
    tws_work w = work_of(i % 2 ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, TWS_BF16, TWS_BF16);
    memcpy(w.d, shapes[i / 2], sizeof shapes[i / 2]);
    const tws_code code = api->attention_for(NULL, &w, 0, &err);
    if (code == TWS_UNSUPPORTED && strstr(err.message, "knows no cuDNN")) return;
    ck_assert_msg(code == TWS_OK, "shape %zu, %s: %s", i / 2, i % 2 ? "backward" : "forward", err.message);
  }
}
END_TEST

/* The workspace of the attention gradient has room for its row sums, and the forward kernel needs no workspace. */
START_TEST(workspace_is_enough) {
  for (int64_t head = 1; head <= 256; head += 51) {
    tws_work w = work_of(TWS_KERNEL_ATTENTION_GRAD, TWS_BF16, TWS_BF16);
    memcpy(w.d, (int64_t[]){3, 70, 6, 2, head}, 5 * sizeof *w.d);
    ck_assert_uint_ge(tws_work_workspace(&w, TWS_BACKEND_CUDA, 1), 3 * 70 * 6 * sizeof(float));
    w.code = TWS_KERNEL_ATTENTION;
    ck_assert_uint_eq(tws_work_workspace(&w, TWS_BACKEND_CUDA, 1), 0);
  }
}
END_TEST

START_TEST(no_device) {
  int count = -1;
  tws_error err = {0};
  if (api->device_count(&count, &err) == TWS_OK) { /* on a machine with GPUs the test asks for one more than there
                                                    * are */
    tws_backend *backend = NULL;
    ck_assert_int_ge(count, 1);
    ck_assert_int_eq(api->backend->create(count, 0, &backend, &err), TWS_ENVIRONMENT);
    ck_assert_ptr_null(backend);
    return;
  }
  ck_assert_int_eq(count, 0);
  ck_assert_int_eq(err.code, TWS_ENVIRONMENT);
  ck_assert_msg(strstr(err.message, "no CUDA device") != NULL, "%s", err.message);
  for (int device = -1; device < 2; device++) {
    tws_backend *backend = (tws_backend *)&count;
    err = (tws_error){0};
    ck_assert_int_eq(api->backend->create(device, 1, &backend, &err), TWS_ENVIRONMENT);
    ck_assert_ptr_null(backend);
    ck_assert_msg(strstr(err.message, "no CUDA device") != NULL, "%s", err.message);
    ck_assert_int_ne(err.hint[0], 0);
  }
  api->backend->destroy(NULL);
  api->comm_destroy(NULL);
}
END_TEST

/* The engine finds the module in its own folder. */
START_TEST(found_by_the_engine) {
  void *engine = dlopen(TWS_BUILD_DIR "/twinspeed_real.so", RTLD_NOW | RTLD_LOCAL);
  if (!engine) return; /* not built */
  const tws_real_api *(*entry)(void) = (const tws_real_api *(*)(void))dlsym(engine, TWS_REAL_MODULE_SYMBOL);
  unsetenv("TWINSPEED_MODULES");
  ck_assert_ptr_eq(entry()->backend("cuda"), api->backend);
  ck_assert_ptr_null(entry()->backend("cud"));
}
END_TEST

int main(void) {
  const char *path = TWS_BUILD_DIR "/twinspeed_cuda.so";
  if (access(path, R_OK) != 0) {
    fprintf(stderr, "the CUDA module was not built: nothing to test\n");
    return 0;
  }
  module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const tws_cuda_api *(*entry)(void) = (const tws_cuda_api *(*)(void))dlsym(module, TWS_CUDA_MODULE_SYMBOL);
  api = entry ? entry() : NULL;
  if (!api) return 1;
  Suite *suite = suite_create("cuda");
  TCase *tests = tcase_create("without a device");
  tcase_add_test(tests, table);
  tcase_add_test(tests, support);
  tcase_add_test(tests, workspace_is_enough);
  tcase_add_test(tests, attention_graphs);
  tcase_add_test(tests, masked_attention_graphs);
  tcase_add_test(tests, attention_is_built);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, no_device);
  tcase_add_test(tests, found_by_the_engine);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
