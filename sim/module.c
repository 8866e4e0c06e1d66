/* The table of functions that the program finds when it loads the simulator. */
#include "build_interface.h"
#include "sim/adapter.h"
#include "sim/executor.h"

static const tws_sim_api api = {
    .version = TWS_INTERFACE,
    .simulate = tws_sim_run,
    .description = tws_engine_description,
};

__attribute__((visibility("default"))) const tws_sim_api *tws_sim_module(void);

const tws_sim_api *tws_sim_module(void) {
  return &api;
}
