/* Functions that the subcommands generate and predict share, which run forward passes of a trained model: the options
 * that name its weights, their check, and the start of the engine. */
#ifndef TWS_CLI_FORWARD_H
#define TWS_CLI_FORWARD_H

#include "cli/cli.h"
#include "job/job.h"
#include "real/real.h"

typedef struct tws_weights_options {
  const char *resume, *tag, *init_from; /* NULL: not given */
} tws_weights_options;

/* Rows for a subcommand's option table: `type` is its options struct, `field` the tws_weights_options in it. */
#define TWS_WEIGHTS_OPTIONS(type, field)                                                                            \
  TWS_STRING("resume", 0, "DIR", type, field.resume, "weights of a checkpoint of any number of ranks"),             \
      TWS_STRING("tag", 0, "TAG", type, field.tag, "its name (default: the one that DIR/latest names)"),            \
      TWS_STRING("init-from", 0, "FILE", type, field.init_from, "weights of a Hugging Face model")

/* Fails with TWS_USAGE unless weights are given, also by a model's file (NULL: there is none) that has some, and if a
 * tag is given without a checkpoint. verb: the subcommand that the message names. */
tws_code tws_weights_check(const tws_weights_options *weights, const char *model, const char *verb, tws_error *err);
/* Loads the engine and starts it on this rank; *rank receives the rank's number. Fails with TWS_UNSUPPORTED if no
 * engine of this program runs on the job's devices. */
tws_code tws_forward_load(const tws_cli *cli, const tws_job *job, const tws_job_spec *spec, const tws_real_api **api,
                          int *rank, tws_error *err);

#endif
