/* Functions that the benchmarks share: exit on an error, CPU time, medians, modules from the build folder. */
#ifndef TWS_BENCH_SUPPORT_H
#define TWS_BENCH_SUPPORT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/number.h"
#include "base/process.h"
#include "base/status.h"

static inline void need(tws_code code, const tws_error *err) {
  if (code == TWS_OK) return;
  fprintf(stderr, "%s\n%s\n", err->message, err->hint);
  exit(tws_code_exit(code));
}

/* Returns the number from 0 to 2^53 that an argument states, or -1, which no benchmark accepts, for any other text. */
static inline int64_t argument_number(const char *text) {
  int64_t value = -1;
  tws_text_integer(text, NULL, 0, INT64_C(1) << 53, &value);
  return value;
}
static inline int argument_int(const char *text) {
  int value = -1;
  tws_text_int(text, NULL, 0, INT32_MAX, &value);
  return value;
}

/* Returns the CPU seconds of the process so far, user and system. */
static inline double cpu_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2];
}

/* Returns the address of a symbol of a module; ends the program if the module or the symbol does not exist. */
static inline void *module_symbol(const char *path, const char *name) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = handle ? dlsym(handle, name) : NULL;
  if (symbol) return symbol;
  fprintf(stderr, "%s\n", dlerror());
  exit(tws_code_exit(TWS_ENVIRONMENT));
}

#endif
