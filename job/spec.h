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
      *sequence_algorithm, *collectives, *allocator;
  int64_t ranks, sequence, micro_batch, accumulation, threads, vocabulary_multiple;    /* 0: not given */
  int64_t pipeline_stages, tensor_ranks, sequence_ranks, expert_ranks, virtual_stages; /* 0: not given */
  int64_t stage, seed;                                                                 /* -1: not given */
  int64_t warmup_steps;                                                                /* 0: not given */
  double learning_rate;                                                                /* 0: not given */
  int sequence_parallel, strict;
  /* 1: the command plans the job and does not run it; if `runtime` is not given, the configuration's format determines
   * it (job/runtime_choice.h) */
  int planned;
  int nodes;            /* number of nodes to use of the cluster; 0: all. No flag sets it: recovery does, to continue
                      without failed nodes */
  tws_strings set;      /* texts KEY=VALUE, which override keys of the configuration file */
  tws_strings measured; /* measurements that rescale the profile (job/measured.h) */
} tws_job_spec;
#define TWS_JOB_SPEC_DEFAULTS \
  { .stage = -1, .seed = -1 }
#define TWS_JOB_SPEC_PLANNED \
  { .stage = -1, .seed = -1, .planned = 1 }

/* Changes the spec to that of an inference: a micro batch and accumulation steps that are not given are 1, and batches
 * of a training configuration have no effect. */
void tws_job_spec_infer(tws_job_spec *spec);
/* Changes the spec to that of a job that generates tokens: one sample on each replica. Ranks that no option divides
 * become tensor ranks, or replicas if there are expert ranks, stage 3 or a given number of tensor ranks. Of a training
 * configuration only the model's keys have an effect, and at stage 3 those of ZeRO. */
void tws_job_spec_generate(tws_job_spec *spec);
/* Reads only the configuration of a job, which is not resolved; the caller destroys it. Errors name a member by its
 * command-line flag. Fails with TWS_INVALID for keys without effect if spec->strict is 1, and with TWS_USAGE if several
 * files are standard input. */
tws_code tws_job_spec_config(const tws_job_spec *spec, tws_config **out, tws_error *err);
/* Sets *flag to the flag whose file is standard input ("-"), or to NULL. Fails with TWS_USAGE if several are. */
tws_code tws_job_spec_input(const tws_job_spec *spec, const char **flag, tws_error *err);
/* Fails with TWS_USAGE if a file is standard input: ranks or trials are separate processes, which cannot read it. */
tws_code tws_job_spec_check_shared(const tws_job_spec *spec, tws_error *err);
/* Appends the spec to argv, from argv[*argc] on, as arguments for another process of this program; at most `capacity`
 * arguments. The texts are allocated in `arena`. */
tws_code tws_job_spec_arguments(const tws_job_spec *spec, tws_arena *arena, const char **argv, int capacity, int *argc,
                                tws_error *err);

#endif
