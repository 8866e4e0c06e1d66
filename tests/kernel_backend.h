/* The backend under test; its kernels run on operands in the memory of the backend. */
#ifndef TESTS_KERNEL_BACKEND_H
#define TESTS_KERNEL_BACKEND_H

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "real/real.h"
static tws_backend_kind backend_kind = TWS_BACKEND_HOST;
#define KERNEL_BACKEND backend_kind
#include "tests/device_run.h"
#include "tests/kernel_operands.h"

/* The tested backend: the host, or the backend that TWINSPEED_TEST_BACKEND names, with memory of its own
 * ("host-staged": the host with staged copies of operands, which tests the copies). */
static const tws_backend_ops *host;
static int staged;
static int most_threads = 3;

/* Check records every assertion in a file, which is too slow for an assertion per element: REQUIRE() reports failures
 * only. */
#define REQUIRE(condition, ...)                  \
  do {                                           \
    if (!(condition)) ck_abort_msg(__VA_ARGS__); \
  } while (0)

static inline tws_code run_kernel(tws_backend *backend, const tws_work *w, const tws_arguments *a, void *const *data,
                                  const tws_dtype *types, int count, tws_error *err) {
  operand_info info[KERNEL_MAX_OPERANDS];
  if (!staged) return host->run(backend, w, a, data, types, count, TWS_STREAM_COMPUTE, err);
  kernel_operands(w, a, most_threads, info);
  return device_run(host, backend, w, a, info, data, types, count, err);
}

/* Returns the backend for an instruction set and a number of threads; backends are kept, because creating one compiles
 * kernels in the library. NULL: the machine lacks this instruction set. */
static tws_backend *kept_backends[4][4];
static inline tws_backend *use_backend(int device, int threads) {
  tws_error err = {0};
  if (backend_kind != TWS_BACKEND_HOST && device > 0) return NULL;
  if (threads > most_threads) threads = most_threads; /* one does for all */
  tws_backend *backend = kept_backends[device][threads];
  if (backend) return backend;
  const tws_code code = host->create(device, threads, &backend, &err);
  if (code == TWS_UNSUPPORTED && device > 0) return NULL;
  REQUIRE(code == TWS_OK, "%s", err.message);
  return kept_backends[device][threads] = backend;
}

static inline const tws_backend_ops *load_backend(const char *name) {
  const char *path = getenv("TWINSPEED_REAL_MODULE");
  if (!path) path = TWS_BUILD_DIR "/twinspeed_real.so";
  if (access(path, R_OK) != 0) return NULL;
  void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  const tws_real_api *(*entry)(void) = (const tws_real_api *(*)(void))dlsym(module, TWS_REAL_MODULE_SYMBOL);
  return entry ? entry()->backend(name) : NULL;
}

static inline void drop_backends(void) {
  for (int i = 0; i < 16; ++i) host->destroy(kept_backends[i / 4][i % 4]);
}

/* The status of the program. */
static inline int run_kernel_suite(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  if (!getenv("CK_FORK")) srunner_set_fork_status(runner, CK_NOFORK); /* a forked process would have to create its
                                                                       * backends again */
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  drop_backends();
  return failed != 0;
}

#endif
