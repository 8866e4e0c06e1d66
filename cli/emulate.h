/* The verb `emulate`, for `train --virtual` too. */
#ifndef TWS_CLI_EMULATE_H
#define TWS_CLI_EMULATE_H

#include "cli/cli.h"
#include "job/spec.h"

typedef struct tws_emulate_options {
  tws_job_spec job;
  const char *scenario, *data, *eval_data, *fidelity, *trace, *csv, *save, *resume, *tag, *init_from, *figure, *share;
  tws_strings beside;
  int64_t steps, every, eval_every, eval_steps, save_every, keep, restarts, order_seed;
  double deadline_s, start_s;
  int force, ignore_memory, synchronous;
} tws_emulate_options;
extern const tws_emulate_options tws_emulate_defaults;

tws_code tws_emulate_run(tws_cli *cli, tws_emulate_options *options, tws_error *err);

#endif
