/* `twinspeed emulate`, also used by `train --virtual`. */
#ifndef TWS_CLI_EMULATE_H
#define TWS_CLI_EMULATE_H

#include "cli/cli.h"
#include "emulation/scenario.h"

typedef struct tws_emulate_options {
  tws_job_spec job;
  tws_emulated_run run;
  const char *scenario, *trace, *csv, *save, *resume, *tag, *init_from, *figure, *share, *json_lines, *prometheus,
      *comm_log, *trace_schedule;
  tws_strings compared;
  int64_t every, order_seed;
  int force, ignore_memory;
} tws_emulate_options;
extern const tws_emulate_options tws_emulate_defaults;

tws_code tws_emulate_run(tws_cli *cli, tws_emulate_options *options, tws_error *err);

#endif
