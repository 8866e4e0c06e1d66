/* Views of runtimes: the list of them, and what each changes about a job. */
#ifndef TWS_CLI_RUNTIME_VIEW_H
#define TWS_CLI_RUNTIME_VIEW_H

#include "cli/cli.h"
#include "job/own_engine.h"

/* Prints the engine's longest path and device memory next to those of the runtime. */
void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes);
/* Adds "own_engine" {"step_s", "device_bytes"} to a result, if they are known. */
void tws_own_engine_json(const tws_own_engine *own, cJSON *root);
/* A line with the step and the memory of each; nothing where there are none. */
void tws_other_runtimes_print(const tws_other_runtime *list, int count);
/* Adds "other_runtimes" to a result. */
void tws_other_runtimes_json(const tws_other_runtime *list, int count, cJSON *root);
/* Prints all runtimes with a sentence each. */
void tws_runtimes_print(void);

#endif
