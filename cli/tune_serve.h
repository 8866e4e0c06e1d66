/* twinspeed tune --serve: tuning of inference (autotune/serving.h). */
#ifndef TWS_CLI_TUNE_SERVE_H
#define TWS_CLI_TUNE_SERVE_H

#include "autotune/serving.h"
#include "cli/cli.h"
#include "cli/serve_options.h"

typedef struct tws_tune_serve_options {
  tws_serve_options texts;
  double first_token_s, token_s;
} tws_tune_serve_options;
#define TWS_TUNE_SERVE_DEFAULTS \
  { .texts = TWS_SERVE_DEFAULTS }

#define TWS_TUNE_SERVE_OPTIONS(type, field)                                                                 \
  TWS_SERVE_OPTIONS(type, field.texts, "tune inference: divisions of the devices and texts at a time"),     \
      TWS_NUMBER("first-token-within", 0, "SECONDS", type, field.first_token_s, 1e-6, 1e9,                  \
                 "--serve: limit of the time until the first token"),                                       \
      TWS_NUMBER("token-within", 0, "SECONDS", type, field.token_s, 1e-6, 1e9,                              \
                 "--serve: limit of the time between two tokens")

tws_code tws_tune_serve(tws_cli *cli, const tws_job_spec *spec, const tws_tune_serve_options *o, tws_error *err);

#endif
