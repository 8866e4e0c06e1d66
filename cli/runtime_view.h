/* How it is shown what a runtime style changes. */
#ifndef TWS_CLI_RUNTIME_VIEW_H
#define TWS_CLI_RUNTIME_VIEW_H

#include "cli/cli.h"
#include "job/own_engine.h"

/* Beside what the style says: its longest path and what it needs of a device. */
void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes);
/* Adds "own_engine" {"step_s", "device_bytes"} to a result, where it is known. */
void tws_own_engine_json(const tws_own_engine *own, cJSON *root);

#endif
