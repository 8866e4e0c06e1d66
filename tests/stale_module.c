/* A simulator that was built from other headers: tests see it refused. */
#include "sim/sim.h"

__attribute__((visibility("default"))) const tws_sim_api *tws_sim_module(void);
const tws_sim_api *tws_sim_module(void) {
  static const tws_sim_api api = {.version = 1};
  return &api;
}
