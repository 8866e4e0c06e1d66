/* Loads this build's module of the simulator. */
#ifndef TESTS_SIM_MODULE_H
#define TESTS_SIM_MODULE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/sim.h"

/* Returns the simulator's functions; NULL where the module was not built. A module that does not load ends the
 * suite. */
static inline const tws_sim_api *load_simulator(void) {
  const char *path = TWS_BUILD_DIR "/twinspeed_sim.so";
  const tws_sim_api *(*get)(void);
  if (access(path, R_OK) != 0) return NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = handle ? dlsym(handle, TWS_SIM_MODULE_SYMBOL) : NULL;
  if (!symbol) {
    fprintf(stderr, "%s\n", dlerror());
    exit(EXIT_FAILURE);
  }
  memcpy(&get, &symbol, sizeof get);
  return get();
}

#endif
