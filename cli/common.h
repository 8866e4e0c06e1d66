/* The options that say what job is meant, shared by the verbs, and the function that loads it.
 *
 * Order of precedence: the configuration file, then --set KEY=VALUE in order, then the flags (--stage,
 * --micro-batch...). */
#ifndef TWS_CLI_COMMON_H
#define TWS_CLI_COMMON_H

#include "cli/cli.h"
#include "config/cluster.h"
#include "config/ds_config.h"
#include "estimators/estimators.h"
#include "models/hardware/profile.h"
#include "models/network/network.h"
#include "plan/plan.h"

typedef struct tws_job_options {
  const char *model, *config, *cluster, *profile, *recompute, *dtype, *schedule, *axis_order;
  int64_t ranks, sequence, micro_batch, accumulation, threads, vocabulary_multiple; /* 0: not given */
  int64_t pipeline_stages, tensor_ranks, sequence_ranks, virtual_stages;            /* 0: not given */
  int64_t stage, seed;                                                              /* -1: not given */
  int sequence_parallel, strict;
  tws_strings set;
} tws_job_options;
#define TWS_JOB_DEFAULTS \
  { .stage = -1, .seed = -1 }

/* How the ranks are divided. */
#define TWS_AXIS_OPTIONS(type, field)                                                                                 \
  TWS_INTEGER("pp", 0, "N", type, field.pipeline_stages, 1, 4096, "pipeline stages"),                                 \
      TWS_INTEGER("tp", 0, "N", type, field.tensor_ranks, 1, 65536, "ranks that share weights (tensor parallelism)"), \
      TWS_INTEGER("sp", 0, "N", type, field.sequence_ranks, 1, 65536, "ranks that share a sequence (Ulysses)"),       \
      TWS_STRING("schedule", 0, "KIND", type, field.schedule, "of a pipeline: gpipe, 1f1b, interleaved or zb-h1"),    \
      TWS_INTEGER("virtual-stages", 0, "N", type, field.virtual_stages, 1, 4096, "chunks of a stage (interleaved)"),  \
      TWS_STRING("axis-order", 0, "AXES", type, field.axis_order, "slowest first (pipe,data,sequence,model)"),        \
      TWS_FLAG("sequence-parallel", 0, type, field.sequence_parallel,                                                 \
               "with --tp: Megatron sequence parallelism (split tokens)")

#define TWS_STRICT_OPTION(type, field) \
  TWS_FLAG("strict", 0, type, field.strict, "warnings of the configuration are errors")

/* Rows for a verb's option table: `type` is its options struct, `field` the tws_job_options member in it. */
#define TWS_JOB_OPTIONS(type, field)                                                                                  \
  TWS_STRING("model", 'm', "MODEL", type, field.model, "Hugging Face config.json, or a built-in model's name"),       \
      TWS_STRING("config", 'c', "FILE", type, field.config, "ds_config.json (\"-\": standard input)"),                \
      TWS_STRING("cluster", 0, "NAME[:NODES]", type, field.cluster, "cluster file or built-in name (default: host)"), \
      TWS_STRING("profile", 0, "NAME", type, field.profile, "hardware profile: built-in name or a calibrated file"),  \
      TWS_INTEGER("ranks", 'n', "N", type, field.ranks, 1, 65536, "number of ranks (default: all devices; host: 1)"), \
      TWS_INTEGER("stage", 0, "0..3", type, field.stage, 0, 3, "ZeRO stage"), TWS_AXIS_OPTIONS(type, field),          \
      TWS_INTEGER("seq", 0, "TOKENS", type, field.sequence, 1, 16777216, "sequence length (default: the model's)"),   \
      TWS_INTEGER("micro-batch", 0, "N", type, field.micro_batch, 1, 1048576, "micro batch size of one rank"),        \
      TWS_INTEGER("accumulation", 0, "N", type, field.accumulation, 1, 1048576, "gradient accumulation steps"),       \
      TWS_STRING("recompute", 0, "MODE", type, field.recompute, "none, selective or full"),                           \
      TWS_STRING("dtype", 0, "TYPE", type, field.dtype, "fp32, bf16 or fp16"),                                        \
      TWS_INTEGER("threads", 0, "N", type, field.threads, 1, 1024, "threads of one host rank"),                       \
      TWS_INTEGER("vocab-multiple", 0, "N", type, field.vocabulary_multiple, 1, 65536, "pad the vocabulary to this"), \
      TWS_INTEGER("seed", 0, "N", type, field.seed, 0, 9007199254740992.0, "seed of weights and data order"),         \
      TWS_LIST("set", 0, "KEY=VALUE", type, field.set, "set a configuration key: --set zero_optimization.stage=3"),   \
      TWS_STRICT_OPTION(type, field)

typedef struct tws_job {
  tws_network *network;
  tws_config *config;  /* resolved */
  tws_program program; /* that plans are made of: a training step */
  tws_cluster cluster;
  tws_profile *profile;
  tws_topology topology; /* of the job's ranks: plan/plan.h, tws_plan_topology() */
  tws_machine machine;   /* points into this struct: do not copy a tws_job */
  tws_backend_kind backend;
  int ranks;
  int threads;       /* of one host rank; 1 on GPUs */
  int assumed_dtype; /* nobody said a type: see tws_job_assume_dtype() */
} tws_job;

/* Load, validate and resolve the job. *job may be released in any case after the call. */
tws_code tws_job_load(const tws_job_options *options, tws_job *job, tws_error *err);
void tws_job_release(tws_job *job);
/* The configuration alone, with --set and flags applied, not resolved; the caller destroys it. */
tws_code tws_job_config(const tws_job_options *options, tws_config **out, tws_error *err);
/* Where neither the configuration nor a flag says a type, that of the model's file is set, which *assumed tells. */
tws_code tws_job_assume_dtype(tws_config *config, const tws_network *network, int *assumed, tws_error *err);
/* On standard error: keys without effect as warnings; what of the model is left out, which of two models a name means
 * and the type that was assumed as notes. */
void tws_job_remarks(const tws_cli *cli, const tws_job_options *options, const tws_job *job);
void tws_config_remarks(const tws_cli *cli, const tws_config *config);
void tws_model_remarks(const tws_cli *cli, const char *model, const tws_network *network, int assumed_dtype);
/* The last two alone, for a verb that shows the model's notes in its result. */
void tws_model_assumptions(const tws_cli *cli, const char *model, const tws_network *network, int assumed_dtype);
/* That a text is trained on as bytes, where the model's vocabulary is larger than that. */
void tws_data_remark(const tws_cli *cli, const char *path, const tws_network *network);
/* TWS_INVALID with every warning that tws_config_remarks() would give. */
tws_code tws_config_strict(const tws_config *config, tws_error *err);
/* The same job for another number of ranks or another configuration (resolved here, cloned; not kept). */
tws_plan_request tws_job_request(const tws_job *job, int rank);
/* Ranks along an axis of the topology; 1 without that axis. */
int tws_job_ranks_along(const tws_job *job, tws_axis axis);
/* Pipeline stages of the job, and the rank that stands for one: the first along every other axis. */
int tws_job_stages(const tws_job *job);
int tws_job_stage_rank(const tws_job *job, int stage);
tws_code tws_job_plan(const tws_job *job, int rank, tws_plan **out, tws_error *err);
/* A plan of another program than job->program; over the state of a plan that was made before, or NULL. */
tws_code tws_job_program(const tws_job *job, int rank, tws_program program, tws_state *state, tws_plan **out,
                         tws_error *err);
/* Of what --program names; NULL: leaves it as it is. */
tws_code tws_job_choose_program(tws_job *job, const char *name, tws_error *err);
#define TWS_PROGRAM_OPTION(type) \
  TWS_STRING("program", 0, "NAME", type, program, "what is planned: train (a step, default), evaluate (forward passes)")
/* --model, --config, ... as command-line arguments for another twinspeed process, appended to argv[*argc]. They live
 * in the arena. */
tws_code tws_job_arguments(const tws_job_options *options, tws_arena *arena, const char **argv, int capacity, int *argc,
                           tws_error *err);
/* What the results of the job are of: see tws_fingerprint_read(). */
tws_code tws_job_fingerprint(const tws_job *job, tws_fingerprint *out, tws_error *err);
/* {"model": ..., "ranks": ..., ...}: what was asked for, for the --json results. */
cJSON *tws_job_json(const tws_job *job);

#endif
