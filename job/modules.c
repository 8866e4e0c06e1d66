#include "job/modules.h"
#include <dlfcn.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/system.h"
#include "base/unfinished.h"
#include "build_interface.h"

#ifndef TWS_MODULE_DIR
#define TWS_MODULE_DIR "lib/twinspeed" /* relative to the installation prefix, which contains bin/ */
#endif

#ifndef TWS_DATA_DIR
#define TWS_DATA_DIR "share/twinspeed/scenarios"
#endif
#ifndef TWS_SOURCE_DATA_DIR
#define TWS_SOURCE_DATA_DIR "scenarios"
#endif

/* Writes the folder of the shared library that contains this code to `buffer`; "" if this code is linked into the
 * program. */
static void library_folder(char *buffer, size_t size) {
  Dl_info info;
  char program[PATH_MAX], object[PATH_MAX];
  buffer[0] = '\0';
  tws_program_path(program, (int)sizeof program);
  if (!dladdr((const void *)(uintptr_t)&tws_module_path, &info) || !info.dli_fname || !realpath(info.dli_fname, object))
    return;
  char *slash = strrchr(object, '/');
  if (!slash || strcmp(object, program) == 0) return;
  *slash = '\0';
  snprintf(buffer, size, "%s", object);
}

const char *tws_module_path(const char *file, char *buffer, int size) {
  char program[PATH_MAX], library[PATH_MAX];
  tws_program_path(program, (int)sizeof program);
  library_folder(library, sizeof library);
  char *slash = strrchr(program, '/');
  if (slash) *slash = '\0';
  const char *chosen = getenv("TWINSPEED_MODULES");
  const char *const folders[] = {chosen && *chosen ? chosen : NULL, *library ? library : NULL,
                                 *library ? library : NULL, program, program};
  static const char *const below[] = {"", "", "/twinspeed", "", ("/../" TWS_MODULE_DIR)};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    if (!folders[i]) continue;
    int length = snprintf(buffer, (size_t)size, "%s%s/%s", folders[i], below[i], file);
    if (length > 0 && length < size && access(buffer, R_OK) == 0) return buffer;
  }
  buffer[0] = '\0';
  return buffer;
}

const char *tws_data_path(const char *name, char *buffer, int size) {
  char program[PATH_MAX];
  tws_program_path(program, (int)sizeof program);
  char *slash = strrchr(program, '/');
  if (slash) *slash = '\0';
  for (int i = 0; i < 2; i++) {
    int length = i == 0 ? snprintf(buffer, (size_t)size, "%s/../%s/%s", program, TWS_DATA_DIR, name)
                        : snprintf(buffer, (size_t)size, "%s/%s", TWS_SOURCE_DATA_DIR, name);
    if (length > 0 && length < size && access(buffer, R_OK) == 0) return buffer;
  }
  buffer[0] = '\0';
  return buffer;
}

const char *tws_plots_path(char *buffer, int size) {
  const char *given = getenv("TWINSPEED_PLOTS");
  if (!given || !*given) return tws_data_path("plots", buffer, size);
  snprintf(buffer, (size_t)size, "%s", given);
  return buffer;
}

/* Loads the unwinder. C++ libraries of modules throw and catch exceptions if memory is exhausted. glibc loads libgcc at
 * the first exception, and aborts the process if there is no memory for that, so it is loaded in advance. */
static void load_unwinder(void) {
#ifdef __GLIBC__
  void *frame;
  backtrace(&frame, 1);
#endif
}

static tws_code load_module(const char *file, const char *symbol, const char *remedy, void *function, tws_error *err) {
  char path[PATH_MAX];
  if (!*tws_module_path(file, path, (int)sizeof path))
    return tws_fail(err, TWS_ENVIRONMENT, remedy, "module %s was not found", file);
  sigset_t before;
  load_unwinder();
  tws_hold_signals(&before); /* BLAS libraries start threads when they are loaded */
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  tws_release_signals(&before);
  if (!handle) {
    const char *reason = dlerror();
    return tws_fail(err, TWS_ENVIRONMENT, remedy, "module %s does not load: %s", file, reason ? reason : "unknown");
  }
  void *address = dlsym(handle, symbol);
  if (!address) return tws_fail(err, TWS_ENVIRONMENT, remedy, "module %s has no %s", path, symbol);
  memcpy(function, &address, sizeof address); /* converts an object pointer to a function pointer, as POSIX allows */
  return TWS_OK;
}

static tws_code check_module(const char *file, int version, tws_error *err) {
  if (version == TWS_INTERFACE) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "build program and modules together",
                  "module %s was built from other headers than this program (%07x, %07x)", file, (unsigned)version,
                  (unsigned)TWS_INTERFACE);
}

tws_code tws_sim_load(const tws_sim_api **api, tws_error *err) {
  static const tws_sim_api *table;
  if (!table) {
    const tws_sim_api *(*get)(void);
    TWS_TRY(load_module("twinspeed_sim.so", TWS_SIM_MODULE_SYMBOL,
                        "the simulator needs SimGrid: install libsimgrid-dev and build again", &get, err));
    const tws_sim_api *found = get();
    TWS_TRY(check_module("twinspeed_sim.so", found->version, err));
    table = found;
  }
  *api = table;
  return TWS_OK;
}

tws_code tws_real_load(const tws_real_api **api, tws_error *err) {
  static const tws_real_api *table;
  if (!table) {
    const tws_real_api *(*get)(void);
    TWS_TRY(load_module("twinspeed_real.so", TWS_REAL_MODULE_SYMBOL,
                        "the engine needs MPI and OpenBLAS: install libopenmpi-dev libopenblas-dev and build again",
                        &get, err));
    const tws_real_api *found = get();
    TWS_TRY(check_module("twinspeed_real.so", found->version, err));
    found->use_unfinished(tws_unfinished_list());
    table = found;
  }
  *api = table;
  return TWS_OK;
}
