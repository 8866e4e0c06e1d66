/* twinspeed tune --serve: tuning of inference (autotune/serving.h). */
#ifndef TWS_CLI_TUNE_SERVE_H
#define TWS_CLI_TUNE_SERVE_H

#include "autotune/serving.h"
#include "cli/cli.h"
#include "models/quantized.h"

typedef struct tws_tune_serve_options {
  int serve;
  int64_t prompt, output, cache_block;
  double first_token_s, token_s;
  const char *software, *weights, *cache;
} tws_tune_serve_options;

#define TWS_TUNE_SERVE_OPTIONS(type, field)                                                                \
  TWS_FLAG("serve", 0, type, field.serve, "tune inference: divisions of the devices and texts at a time"), \
      TWS_INTEGER("prompt-tokens", 0, "N", type, field.prompt, 1, 16777216,                                \
                  "--serve: tokens of a prompt (default 512)"),                                            \
      TWS_INTEGER("output-tokens", 0, "N", type, field.output, 1, 16777216,                                \
                  "--serve: generated tokens of a text (default 512)"),                                    \
      TWS_NUMBER("first-token-within", 0, "SECONDS", type, field.first_token_s, 1e-6, 1e9,                 \
                 "--serve: limit of the time until the first token"),                                      \
      TWS_NUMBER("token-within", 0, "SECONDS", type, field.token_s, 1e-6, 1e9,                             \
                 "--serve: limit of the time between two tokens"),                                         \
      TWS_STRING("software", 0, "NAME", type, field.software, "--serve: as that of estimate --serve"),     \
      TWS_STRING("weights", 0, "TYPE", type, field.weights, "--serve: " TWS_CODE_TYPES),                   \
      TWS_STRING("cache", 0, "TYPE", type, field.cache, "--serve: fp8"),                                   \
      TWS_INTEGER("cache-block", 0, "N", type, field.cache_block, 1, 16777216,                             \
                  "--serve: keys and values in blocks of N positions")

tws_code tws_tune_serve(tws_cli *cli, const tws_job_spec *spec, const tws_tune_serve_options *o, tws_error *err);

#endif
