/* Options of --serve, which `estimate` and `tune` share, and the specification of a job that serves. */
#ifndef TWS_CLI_SERVE_OPTIONS_H
#define TWS_CLI_SERVE_OPTIONS_H

#include "cli/cli.h"
#include "job/serving.h"
#include "job/spec.h"
#include "models/quantized.h"

typedef struct tws_serve_options {
  int serve;
  int64_t prompt, output, cache_block;
  double device_share;
  const char *software, *weights, *cache;
} tws_serve_options;
enum { TWS_SERVE_TOKENS = 512 }; /* default number of tokens of a prompt and of an output */
#define TWS_SERVE_DEFAULTS \
  { .prompt = TWS_SERVE_TOKENS, .output = TWS_SERVE_TOKENS }

/* Rows for a subcommand's option table: `type` is its options struct, `field` the tws_serve_options in it, `help` the
 * text of --serve. */
#define TWS_SERVE_OPTIONS(type, field, help)                                                                          \
  TWS_FLAG("serve", 0, type, field.serve, help),                                                                      \
      TWS_INTEGER("prompt-tokens", 0, "N", type, field.prompt, 1, 16777216,                                           \
                  "--serve: tokens of a prompt (default 512)"),                                                       \
      TWS_INTEGER("output-tokens", 0, "N", type, field.output, 1, 16777216,                                           \
                  "--serve: generated tokens of a text (default 512)"),                                               \
      TWS_STRING("software", 0, "NAME", type, field.software,                                                         \
                 "--serve: twinspeed (default), deepspeed-inference, vllm, tensorrt-llm, llama.cpp and others"),      \
      TWS_NUMBER("device-share", 0, "SHARE", type, field.device_share, 0.01, 1,                                       \
                 "--serve: share of a device's memory that the software uses, as vLLM's gpu_memory_utilization "      \
                 "(default: the software's)"),                                                                        \
      TWS_STRING("weights", 0, "TYPE", type, field.weights,                                                           \
                 "--serve: " TWS_CODE_TYPES ": linear layers' weights in 8 or 4 bits, with a scale for 64 of a row"), \
      TWS_STRING("cache", 0, "TYPE", type, field.cache, "--serve: fp8: keys and values in 8 bits"),                   \
      TWS_INTEGER("cache-block", 0, "N", type, field.cache_block, 1, 16777216,                                        \
                  "--serve: keys and values in blocks of N positions")

/* Names of the options above, and of those of a job that have an effect on inference: for tws_args_only(). */
#define TWS_SERVE_OPTION_NAMES                                                                                       \
  "model", "config", "cluster", "profile", "dtype", "threads", "set", "strict", "seed", "collectives", "axis-order", \
      "serve", "prompt-tokens", "output-tokens", "software", "device-share", "weights", "cache", "cache-block"

/* Reads the options. Fails with TWS_USAGE for a type or software that does not exist. */
tws_code tws_serve_options_read(const tws_serve_options *options, tws_serve_request *request, tws_error *err);
/* Fails with TWS_USAGE if one of the options is given without --serve. */
tws_code tws_serve_options_refuse(const tws_serve_options *options, tws_error *err);
/* Changes the spec to that of a job that serves: its runtime is this program's own engine, to which the costs of the
 * software are added; a configuration file of DeepSpeed's inference engine becomes settings of the spec and of the
 * request (job/inference.h). Appends a line for each key without effect to `notes` unless it is NULL. Fails with
 * TWS_INVALID for bad configurations. */
tws_code tws_serve_spec(tws_job_spec *spec, tws_serve_request *request, tws_text *notes, tws_error *err);

#endif
