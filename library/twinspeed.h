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
  TWINSPEED_NO,          /* the answer is no: it does not fit */
  TWINSPEED_USAGE,       /* arguments that do not go together, or that are missing */
  TWINSPEED_INVALID,     /* a file or a value is wrong */
  TWINSPEED_UNSUPPORTED, /* valid, and not supported */
  TWINSPEED_IO,
  TWINSPEED_MEMORY,
  TWINSPEED_ENVIRONMENT, /* something is missing, such as the simulator's module */
  TWINSPEED_RANK,        /* a rank of a training failed */
  TWINSPEED_INTERNAL     /* a fault of the library */
} twinspeed_status;

typedef struct twinspeed_error {
  twinspeed_status status;
  char message[2048]; /* what is wrong, with its place: file:line:column and key */
  char hint[4096];    /* what to do; may be empty */
} twinspeed_error;

TWINSPEED_API const char *twinspeed_version(void); /* "0.1.0" */
/* Returns the word for a status, such as "INVALID". */
TWINSPEED_API const char *twinspeed_status_name(twinspeed_status status);

/* ---- jobs: a model, a configuration, a cluster and a number of ranks ---- */

/* Texts are read by twinspeed_open() alone. NULL, 0 or -1 (stage, seed) mean "not given". Names and files are those of
 * the command line: `twinspeed estimate --help`. New members are added at the end, which `size` tells apart. */
typedef struct twinspeed_options {
  size_t size;            /* twinspeed_options_init() sets it */
  const char *model;      /* a name such as "gpt2", or a Hugging Face config.json */
  const char *config;     /* a ds_config.json */
  const char *cluster;    /* "dgx-h100:4", a device's name, or a cluster file; NULL: this machine */
  const char *profile;    /* of the devices: a name or a file; NULL: the cluster's */
  const char *runtime;    /* whose memory and time: "twinspeed", "megatron" ...; NULL: that of config's format */
  const char *dtype;      /* "float32", "bf16", "fp16", "fp8" */
  const char *recompute;  /* "none", "selective", "full" */
  const char *schedule;   /* of a pipeline: "1f1b", "gpipe", "interleaved", "zb-h1" ... */
  const char *const *set; /* settings "KEY=VALUE" of the configuration, after its file */
  size_t set_count;
  int64_t ranks, sequence_length, micro_batch, accumulation;
  int64_t pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t stage; /* of ZeRO: 0 to 3 */
  int64_t seed;
} twinspeed_options;

typedef struct twinspeed_job twinspeed_job;

TWINSPEED_API void twinspeed_options_init(twinspeed_options *options);
/* Loads, validates and resolves a job. The caller closes *job; it is NULL after a failure. */
TWINSPEED_API twinspeed_status twinspeed_open(const twinspeed_options *options, twinspeed_job **job,
                                              twinspeed_error *error);
/* NULL is allowed. */
TWINSPEED_API void twinspeed_close(twinspeed_job *job);

typedef struct twinspeed_job_facts {
  int ranks, stages, replicas, tensor_ranks, sequence_ranks, expert_ranks, zero_stage;
  int64_t micro_batch, accumulation, sequence_length;
  double parameters, trained_parameters;
  char model[128], runtime[64], dtype[16], cluster[128];
} twinspeed_job_facts;
TWINSPEED_API void twinspeed_job_describe(const twinspeed_job *job, twinspeed_job_facts *facts);
/* Returns what is remarkable: values that were assumed, keys without effect, notes of model and configuration, a line
 * each ("" if there is nothing). The text lives until the next call for this job, or until it is closed. NULL without
 * memory. */
TWINSPEED_API const char *twinspeed_job_notes(twinspeed_job *job);

/* ---- answers ---- */

enum { TWINSPEED_TIERS = 4, TWINSPEED_CATEGORIES = 16, TWINSPEED_PHASES = 8 };

typedef enum twinspeed_verdict { TWINSPEED_DOES_NOT_FIT, TWINSPEED_TIGHT, TWINSPEED_FITS } twinspeed_verdict;

typedef struct twinspeed_estimate {
  twinspeed_verdict verdict;       /* tight: measured peaks of the runtime reach beyond the device */
  double device_need, device_have; /* of one device: what the rank's arena and the libraries take */
  double node_need, node_have;     /* host memory of one node, all its ranks; have 0: not known */
  double disk_need, disk_have;     /* disks of one node */
  /* the rank that needs the most, at its peak, by tier and category */
  double bytes[TWINSPEED_TIERS][TWINSPEED_CATEGORIES];
  double step_s, tokens_per_s, model_flops, mfu;
  double communication_s;                     /* not overlapped with computation */
  double bubble_s;                            /* waiting for other pipeline stages */
  double host_s, copies_s, disk_s, loading_s; /* not overlapped: the host's optimizer, copies, disks, samples */
  double phase_s[TWINSPEED_PHASES];           /* computing, by phase */
  char bottleneck[256];                       /* in words */
} twinspeed_estimate;
/* Return the names of the indices above, such as "device", "parameters" and "forward"; NULL after the last one. */
TWINSPEED_API const char *twinspeed_tier_name(int tier);
TWINSPEED_API const char *twinspeed_category_name(int category);
TWINSPEED_API const char *twinspeed_phase_name(int phase);

/* Estimates memory and time of a step from its plan. A job that does not fit is no failure: see verdict. */
TWINSPEED_API twinspeed_status twinspeed_estimate_job(const twinspeed_job *job, twinspeed_estimate *answer,
                                                      twinspeed_error *error);

typedef struct twinspeed_check {
  int ranks, ranks_verified;
  double operations; /* that were verified */
} twinspeed_check;
/* Verifies the plans of the ranks together: memory, order, collectives, messages, deadlocks. max_ranks 0: as many as
 * take a few seconds. */
TWINSPEED_API twinspeed_status twinspeed_check_job(const twinspeed_job *job, int max_ranks, twinspeed_check *answer,
                                                   twinspeed_error *error);

typedef struct twinspeed_simulation {
  double step_s, tokens_per_s, mfu, exposed_s;
  double bubble; /* share of the step in which the average rank waits for others */
  double events;
} twinspeed_simulation;
/* Executes the plans in the simulator. fidelity: "analytic", "flow", "message" or "simgrid"; NULL: analytic.
 * TWINSPEED_ENVIRONMENT: its module is not there. */
TWINSPEED_API twinspeed_status twinspeed_simulate_job(const twinspeed_job *job, const char *fidelity,
                                                      twinspeed_simulation *answer, twinspeed_error *error);

/* ---- search ---- */

typedef struct twinspeed_tune_options {
  size_t size;          /* twinspeed_tune_options_init() sets it */
  int64_t global_batch; /* sequences a step; 0: free */
  int axes;             /* 1: tensor, pipeline, sequence and expert ranks too; 0: no; -1: where needed */
  int workers;          /* processes that the search starts; 0: one for each core */
  int best;             /* how many candidates are wanted, at most */
  double budget_s;      /* 0: no limit */
} twinspeed_tune_options;

typedef struct twinspeed_candidate {
  char name[256]; /* "z3_r8_mb4_..." */
  int zero_stage, ranks, pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t micro_batch, accumulation;
  char recompute[16];
  double step_s, tokens_per_s, device_need, device_have;
} twinspeed_candidate;

TWINSPEED_API void twinspeed_tune_options_init(twinspeed_tune_options *options);
/* Searches for the configurations that train fastest. *count of them, best first, are in *candidates, which the caller
 * frees with twinspeed_free(); 0 if nothing fits. Batch keys and the ZeRO stage of `options` are replaced by those of
 * each point. */
TWINSPEED_API twinspeed_status twinspeed_tune(const twinspeed_options *options, const twinspeed_tune_options *how,
                                              twinspeed_candidate **candidates, int *count, twinspeed_error *error);
TWINSPEED_API void twinspeed_free(void *memory);

/* ---- DeepSpeed's estimators ---- */

typedef struct twinspeed_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} twinspeed_zero_memory;
typedef struct twinspeed_zero_request {
  double parameters, largest_layer_parameters; /* the second for stage 3 alone */
  int gpus_per_node, nodes;
  int cpu_offload, cpu_offload_params, zero_init;
  double factor;    /* additional buffer factor: 1.5 */
  int deepspeed_03; /* 1: stage 2 as DeepSpeed 0.3 had it */
} twinspeed_zero_request;
/* estimate_zero2_model_states_mem_needs() and its zero3 sibling. */
TWINSPEED_API twinspeed_zero_memory twinspeed_zero2(const twinspeed_zero_request *request);
TWINSPEED_API twinspeed_zero_memory twinspeed_zero3(const twinspeed_zero_request *request);
/* The tables that they print, to the letter; stage 2 or 3. The caller frees the text with twinspeed_free(); NULL
 * without memory. */
TWINSPEED_API char *twinspeed_zero_table(int stage, const twinspeed_zero_request *request);

#ifdef __cplusplus
}
#endif
#endif
