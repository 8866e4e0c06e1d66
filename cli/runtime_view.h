/* Prints the list of runtimes, and how a job's step and memory change with each. */
#ifndef TWS_CLI_RUNTIME_VIEW_H
#define TWS_CLI_RUNTIME_VIEW_H

#include "cli/cli.h"
#include "job/own_engine.h"

/* Prints the longest path and the device memory of Twinspeed's own engine next to those of the job's runtime. */
void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes);
/* Adds "own_engine" {"step_s", "device_bytes"} to a result, if they are known. */
void tws_own_engine_json(const tws_own_engine *own, cJSON *root);
/* Prints a line with the step and the memory of each listed runtime; prints nothing if there are none. */
void tws_other_runtimes_print(const tws_other_runtime *list, int count);
/* Adds "other_runtimes" to a result. */
void tws_other_runtimes_json(const tws_other_runtime *list, int count, cJSON *root);
/* Prints all runtimes with a sentence each. */
void tws_runtimes_print(void);

#endif
