/* Prints the effect of a runtime: the same job on Twinspeed's own engine, for comparison. */
#ifndef TWS_CLI_RUNTIME_VIEW_H
#define TWS_CLI_RUNTIME_VIEW_H

#include "cli/cli.h"
#include "job/own_engine.h"

/* Prints the engine's longest path and device memory next to those of the runtime. */
void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes);
/* Adds "own_engine" {"step_s", "device_bytes"} to a result, if they are known. */
void tws_own_engine_json(const tws_own_engine *own, cJSON *root);

#endif
