/* What a runtime style changes: the same job as this program's own engine would run it. */
#ifndef TWS_CLI_RUNTIME_VIEW_H
#define TWS_CLI_RUNTIME_VIEW_H

#include "cli/cli.h"
#include "job/job.h"

typedef struct tws_own_engine {
  int known; /* a style was asked for, and the job can be planned without it; else nothing below is set */
  double step_s, device_bytes;
} tws_own_engine;

/* program: as tws_job_choose_program(). */
tws_own_engine tws_own_engine_find(const tws_job_spec *spec, const char *program);
/* Beside what the style says: its longest path and what it needs of a device. */
void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes);
/* Adds "own_engine" {"step_s", "device_bytes"} to a result, where it is known. */
void tws_own_engine_json(const tws_own_engine *own, cJSON *root);

#endif
