/* A module of the simulator with version 1, as if it were built from older headers: tests check that the program
 * refuses it. */
#include "sim/sim.h"

__attribute__((visibility("default"))) const tws_sim_api *tws_sim_module(void);
const tws_sim_api *tws_sim_module(void) {
  static const tws_sim_api api = {.version = 1};
  return &api;
}
