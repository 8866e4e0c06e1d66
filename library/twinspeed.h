/* Twinspeed as a library: what the training of a network needs and how long it takes, without running it.
 *
 * Link with -ltwinspeed (pkg-config twinspeed). Every function that can fail returns a status and takes a
 * `twinspeed_error *` as its last argument, which may be NULL. Nothing here prints, exits or changes the signals of the
 * process. Calls come from one thread at a time; several jobs may be open at once. Sizes are bytes, times are
 * seconds, rates are per second, unless a name says otherwise.
 *
 *   twinspeed_options options;
 *   twinspeed_options_init(&options);
 *   options.model = "llama-3-8b";
 *   options.cluster = "dgx-h100";
 *   options.stage = 3;
 *   twinspeed_job *job;
 *   twinspeed_estimate answer;
 *   twinspeed_error error;
 *   if (twinspeed_open(&options, &job, &error) == TWINSPEED_OK &&
 *       twinspeed_estimate_job(job, &answer, &error) == TWINSPEED_OK)
 *     printf("%.2f GiB of a device, %.3f s a step\n", answer.device_need / 1073741824, answer.step_s);
 *   twinspeed_close(job);
 */
#ifndef TWINSPEED_H
#define TWINSPEED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#define TWINSPEED_API __attribute__((visibility("default")))
#else
#define TWINSPEED_API
#endif

/* ---- errors ---- */

typedef enum twinspeed_status {
  TWINSPEED_OK,
  TWINSPEED_NO,          /* the answer is no: for example, the job does not fit */
  TWINSPEED_USAGE,       /* arguments contradict each other, or are missing */
  TWINSPEED_INVALID,     /* a file or a value is wrong */
  TWINSPEED_UNSUPPORTED, /* valid input that the library does not support */
  TWINSPEED_IO,
  TWINSPEED_MEMORY,
  TWINSPEED_ENVIRONMENT, /* something is missing on the machine, such as the simulator's module */
  TWINSPEED_RANK,        /* a rank of a training failed */
  TWINSPEED_INTERNAL     /* an internal error of the library */
} twinspeed_status;

typedef struct twinspeed_error {
  twinspeed_status status;
  char message[2048]; /* the problem, with its position: file:line:column and key */
  char hint[4096];    /* the remedy; may be empty */
} twinspeed_error;

TWINSPEED_API const char *twinspeed_version(void); /* "0.1.0" */
/* Returns the word for a status, such as "INVALID". */
TWINSPEED_API const char *twinspeed_status_name(twinspeed_status status);

/* ---- jobs: a model, a configuration, a cluster and a number of ranks ---- */

/* Options of a job. The strings are only read by twinspeed_open(). NULL, 0 or -1 (stage, seed) mean "not given". Names
 * and files are those of the command line: see `twinspeed estimate --help`. New versions of the library append members;
 * `size` says which version the caller was compiled for. */
typedef struct twinspeed_options {
  size_t size;            /* sizeof the structure, set by twinspeed_options_init() */
  const char *model;      /* a built-in name such as "gpt2", or the path of a Hugging Face config.json */
  const char *config;     /* path of a ds_config.json */
  const char *cluster;    /* "dgx-h100:4", a device's name, or the path of a cluster file; NULL: this machine */
  const char *profile;    /* profile of the devices: a name or a file; NULL: the cluster's */
  const char *runtime;    /* software whose memory and time are predicted: "twinspeed", "megatron", ...;
                              NULL: that of the format of `config` */
  const char *dtype;      /* "float32", "bf16", "fp16", "fp8" */
  const char *recompute;  /* "none", "selective", "full" */
  const char *schedule;   /* pipeline schedule: "1f1b", "gpipe", "interleaved", "zb-h1" ... */
  const char *const *set; /* settings "KEY=VALUE", applied after the configuration file */
  size_t set_count;
  int64_t ranks, sequence_length, micro_batch, accumulation;
  int64_t pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t stage; /* ZeRO stage, 0 to 3 */
  int64_t seed;
} twinspeed_options;

typedef struct twinspeed_job twinspeed_job;

TWINSPEED_API void twinspeed_options_init(twinspeed_options *options);
/* Loads, validates and resolves a job. The caller closes *job with twinspeed_close(); it is NULL after a failure. */
TWINSPEED_API twinspeed_status twinspeed_open(const twinspeed_options *options, twinspeed_job **job,
                                              twinspeed_error *error);
/* Frees a job; NULL is allowed. */
TWINSPEED_API void twinspeed_close(twinspeed_job *job);

typedef struct twinspeed_job_facts {
  int ranks, stages, replicas, tensor_ranks, sequence_ranks, expert_ranks, zero_stage;
  int64_t micro_batch, accumulation, sequence_length;
  double parameters, trained_parameters;
  char model[128], runtime[64], dtype[16], cluster[128];
} twinspeed_job_facts;
TWINSPEED_API void twinspeed_job_describe(const twinspeed_job *job, twinspeed_job_facts *facts);
/* Returns notes on the job, one per line ("" if there are none): values that were assumed, keys without effect, remarks
 * on model and configuration. The text lives until the next call for this job, or until the job is closed. Returns NULL
 * if memory is exhausted. */
TWINSPEED_API const char *twinspeed_job_notes(twinspeed_job *job);

/* ---- results ---- */

enum { TWINSPEED_TIERS = 4, TWINSPEED_CATEGORIES = 16, TWINSPEED_PHASES = 8 };

typedef enum twinspeed_verdict { TWINSPEED_DOES_NOT_FIT, TWINSPEED_TIGHT, TWINSPEED_FITS } twinspeed_verdict;

typedef struct twinspeed_estimate {
  twinspeed_verdict verdict;       /* tight: the prediction fits, but measured peaks of the runtime may not */
  double device_need, device_have; /* bytes of one device, needed (arena and libraries) and existing */
  double node_need, node_have;     /* bytes of host memory of a node, for all its ranks; have 0: not known */
  double disk_need, disk_have;     /* bytes of the disks of one node */
  /* peak bytes of the rank that needs the most memory, by tier and category */
  double bytes[TWINSPEED_TIERS][TWINSPEED_CATEGORIES];
  double step_s, tokens_per_s, model_flops, mfu;
  double communication_s;                     /* seconds of communication that are not overlapped with computation */
  double bubble_s;                            /* seconds of waiting for other pipeline stages */
  double host_s, copies_s, disk_s, loading_s; /* seconds not overlapped: host optimizer, copies, disks, samples */
  double phase_s[TWINSPEED_PHASES];           /* seconds of computation by phase */
  char bottleneck[256];                       /* a sentence that names the bottleneck */
} twinspeed_estimate;
/* Return the name of an index of the arrays above, such as "device", "parameters" and "forward"; NULL after the last
 * one. */
TWINSPEED_API const char *twinspeed_tier_name(int tier);
TWINSPEED_API const char *twinspeed_category_name(int category);
TWINSPEED_API const char *twinspeed_phase_name(int phase);

/* Estimates memory and time of a step from its plan. A job that does not fit is no failure: its verdict says so. */
TWINSPEED_API twinspeed_status twinspeed_estimate_job(const twinspeed_job *job, twinspeed_estimate *answer,
                                                      twinspeed_error *error);

typedef struct twinspeed_check {
  int ranks, ranks_verified;
  double operations; /* number of verified operations */
} twinspeed_check;
/* Verifies the plans of the ranks together: memory, order, collectives, messages and deadlocks. max_ranks: most ranks
 * to verify; 0: as many as a few seconds suffice for. */
TWINSPEED_API twinspeed_status twinspeed_check_job(const twinspeed_job *job, int max_ranks, twinspeed_check *answer,
                                                   twinspeed_error *error);

typedef struct twinspeed_simulation {
  double step_s, tokens_per_s, mfu, exposed_s;
  double bubble; /* share (0 to 1) of the step in which the average rank waits for others */
  double events;
} twinspeed_simulation;
/* Executes the plans in the simulator. fidelity: "analytic", "flow", "message" or "simgrid"; NULL: analytic. Fails with
 * TWINSPEED_ENVIRONMENT if the simulator's module is not installed. */
TWINSPEED_API twinspeed_status twinspeed_simulate_job(const twinspeed_job *job, const char *fidelity,
                                                      twinspeed_simulation *answer, twinspeed_error *error);

/* ---- search ---- */

typedef struct twinspeed_tune_options {
  size_t size;          /* sizeof the structure, set by twinspeed_tune_options_init() */
  int64_t global_batch; /* sequences per step; 0: not fixed */
  int axes;             /* 1: also tensor, pipeline, sequence and expert ranks; 0: not; -1: if needed */
  int workers;          /* processes that the search starts; 0: one for each core */
  int best;             /* most candidates to return */
  double budget_s;      /* time limit of the search in seconds; 0: none */
} twinspeed_tune_options;

typedef struct twinspeed_candidate {
  char name[256]; /* such as "z3_r8_mb4_..." */
  int zero_stage, ranks, pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t micro_batch, accumulation;
  char recompute[16];
  double step_s, tokens_per_s, device_need, device_have;
} twinspeed_candidate;

TWINSPEED_API void twinspeed_tune_options_init(twinspeed_tune_options *options);
/* Searches for the configurations that train fastest. *candidates receives *count of them, best first, or none if
 * nothing fits; the caller frees it with twinspeed_free(). Each candidate replaces the batch keys and the ZeRO stage of
 * `options` by its own. */
TWINSPEED_API twinspeed_status twinspeed_tune(const twinspeed_options *options, const twinspeed_tune_options *how,
                                              twinspeed_candidate **candidates, int *count, twinspeed_error *error);
TWINSPEED_API void twinspeed_free(void *memory);

/* ---- custom metrics ---- */

/* The monitors that a configuration enables (tensorboard, csv_monitor, wandb, comet), for a program that trains by
 * other means: DeepSpeed's MonitorMaster. Only one process of a job should open them. */
typedef struct twinspeed_monitor twinspeed_monitor;
/* Creates folders and files. samples: the samples of an earlier run that this one continues, or 0. Fails with
 * TWINSPEED_INVALID if the configuration enables no monitor. */
TWINSPEED_API twinspeed_status twinspeed_monitor_open(const char *config, int64_t samples, twinspeed_monitor **monitor,
                                                      twinspeed_error *error);
/* Writes one number, at `samples` samples since the beginning of the training, to all monitors. tag: at most 128
 * printable ASCII characters without quotes and backslashes, "Train/Samples/accuracy". */
TWINSPEED_API twinspeed_status twinspeed_monitor_write(twinspeed_monitor *monitor, const char *tag, double value,
                                                       int64_t samples, twinspeed_error *error);
/* Closes and frees; NULL is allowed. */
TWINSPEED_API twinspeed_status twinspeed_monitor_close(twinspeed_monitor *monitor, twinspeed_error *error);

/* ---- DeepSpeed's estimators ---- */

typedef struct twinspeed_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} twinspeed_zero_memory;
typedef struct twinspeed_zero_request {
  double parameters, largest_layer_parameters; /* largest_layer_parameters: used by stage 3 only */
  int gpus_per_node, nodes;
  int cpu_offload, cpu_offload_params, zero_init;
  double factor;    /* DeepSpeed's "additional_buffer_factor": 1.5 */
  int deepspeed_03; /* 1: stage 2 as DeepSpeed 0.3 computed it */
} twinspeed_zero_request;
/* Return the results of DeepSpeed's estimate_zero2_model_states_mem_needs() and
 * estimate_zero3_model_states_mem_needs(). */
TWINSPEED_API twinspeed_zero_memory twinspeed_zero2(const twinspeed_zero_request *request);
TWINSPEED_API twinspeed_zero_memory twinspeed_zero3(const twinspeed_zero_request *request);
/* Returns the table that DeepSpeed's memory estimator of stage 2 or 3 prints, character by character; NULL if memory is
 * exhausted. The caller frees the text with twinspeed_free(). */
TWINSPEED_API char *twinspeed_zero_table(int stage, const twinspeed_zero_request *request);

#ifdef __cplusplus
}
#endif
#endif
