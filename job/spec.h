/* The specification of a job as the user gave it: texts and numbers, before anything is loaded.
 *
 * Order of precedence: the configuration file, then `set` in order, then the other members. */
#ifndef TWS_JOB_SPEC_H
#define TWS_JOB_SPEC_H

#include "base/memory.h"
#include "base/strings.h"
#include "config/ds_config.h"

typedef struct tws_job_spec {
  const char *model, *config, *cluster, *profile, *runtime, *recompute, *dtype, *schedule, *axis_order,
      *sequence_algorithm, *collectives;
  int64_t ranks, sequence, micro_batch, accumulation, threads, vocabulary_multiple;    /* 0: not given */
  int64_t pipeline_stages, tensor_ranks, sequence_ranks, expert_ranks, virtual_stages; /* 0: not given */
  int64_t stage, seed;                                                                 /* -1: not given */
  int64_t warmup_steps;                                                                /* 0: not given */
  double learning_rate;                                                                /* 0: not given */
  int sequence_parallel, strict;
  int planned;     /* of a verb that plans and does not run the job: without `runtime` the configuration's format says
                      it (job/runtime_choice.h) */
  int nodes;       /* number of the cluster's nodes that are left; 0: all. No flag sets it: recovery does, to continue
                      without failed nodes */
  tws_strings set; /* KEY=VALUE */
} tws_job_spec;
#define TWS_JOB_SPEC_DEFAULTS \
  { .stage = -1, .seed = -1 }
#define TWS_JOB_SPEC_PLANNED \
  { .stage = -1, .seed = -1, .planned = 1 }

/* The spec of a job that generates tokens: one rank, one sample; of a configuration of training its model's part
 * counts. */
void tws_job_spec_generate(tws_job_spec *spec);
/* The configuration alone, not resolved; the caller destroys it. Errors name the members as the flags of the command
 * line that give them. With `strict`, TWS_INVALID for keys without effect. TWS_USAGE for
 * several files that are all standard input. */
tws_code tws_job_spec_config(const tws_job_spec *spec, tws_config **out, tws_error *err);
/* The flag whose file is standard input ("-"), or NULL. TWS_USAGE where several are. */
tws_code tws_job_spec_input(const tws_job_spec *spec, const char **flag, tws_error *err);
/* TWS_USAGE where one is, and the job's ranks or trials are processes of their own, which cannot read it. */
tws_code tws_job_spec_check_shared(const tws_job_spec *spec, tws_error *err);
/* As arguments for another process of this program, appended to argv[*argc]. The texts live in the arena. */
tws_code tws_job_spec_arguments(const tws_job_spec *spec, tws_arena *arena, const char **argv, int capacity, int *argc,
                                tws_error *err);

#endif
