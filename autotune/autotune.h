/* The tuner searches for the configuration that trains a network fastest on a cluster.
 *
 *   each point of the space -> lower bounds of memory and time -> plans of the promising points -> simulation
 *
 * The search is best-first (autotune/frontier.h): a bound can only exclude a point, and every reported candidate has a
 * plan. In a small space every point is planned.
 *
 * The result is deterministic: equal requests yield equal tables with any number of processes. Nothing in this file
 * prints or starts processes of a job: autotune/measure.h runs the winners. */
#ifndef TWS_AUTOTUNE_H
#define TWS_AUTOTUNE_H

#include "base/json.h"
#include "base/log.h"
#include "compat/deepspeed_autotuner.h"
#include "job/fit.h"
#include "job/simulate.h"

enum { TWS_TUNE_LIST = 32, TWS_TUNE_SCHEDULES = 16, TWS_TUNE_REASONS = 32 };
#define TWS_TUNE_MAX_POINTS (INT64_C(1) << 36)

/* A search space. An empty list stands for the default values that the comment next to it states. */
typedef struct tws_tune_space {
  int64_t global_batch;       /* sequences per step; 0: the batch is free: it is the product of micro batch,
                               * accumulation and replicas */
  int stages[4], stage_count; /* 0, 1, 2, 3 */
  int64_t micro[TWS_TUNE_LIST];
  int micro_count;   /* default for a fixed batch: its divisors; for a free one: powers of two */
  int64_t max_micro; /* largest micro batch; 0: 64 for a free batch, unlimited for a fixed one */
  int64_t min_micro; /* smaller micro batches are excluded, unless they are listed */
  /* num > 0, with a free batch on GPUs: the space consists of the points that DeepSpeed's autotuner would run in its
   * fast mode on all devices, with estimates in place of its experiments. params and activation_bytes may be 0 (then
   * they are estimated); the tuner sets stages, accumulation and the machine. */
  tws_ds_tuning deepspeed;
  int64_t accumulation[TWS_TUNE_LIST];
  int accumulation_count; /* only for a free batch; default: 1, for a pipeline four times its stages */
  tws_recompute recompute[3];
  int recompute_count; /* default: none, selective, full */
  int ranks[TWS_TUNE_LIST];
  int ranks_count; /* default: divisors of the cluster's number of devices that fill whole nodes */
  int threads[TWS_TUNE_LIST];
  int threads_count; /* default on hosts: divisors of the number of cores that one rank can use alone */
  int oversubscribe; /* 1: on hosts, the space also has more ranks than cores (powers of two up to twice the cores) */
  int every_feature; /* 1: the space also has points that the job's runtime cannot run (job/features.h) */
  /* Parallel axes other than data parallelism. An empty list keeps the configuration's value, or, if `axes` is set,
   * stands for: every legal number of pipeline stages; tensor ranks within a node, with and without
   * sequence_parallel; sequence ranks within a node together with the tensor ranks, for sequences of 8192 tokens or
   * more if no list of ZeRO knobs is given; the schedules 1f1b, interleaved with two chunks, and zb-h1. With `axes`
   * all devices are used, ZeRO stages that have nothing to partition are excluded, and so are pipelines with fewer
   * micro-batches than stages. */
  int axes;
  int pipeline[TWS_TUNE_LIST], pipeline_count;
  int tensor[TWS_TUNE_LIST], tensor_count;
  int sequence[TWS_TUNE_LIST], sequence_count;
  tws_variant_schedule schedules[TWS_TUNE_SCHEDULES];
  int schedule_count;
  int sequence_parallel[2], sequence_parallel_count; /* 0: each rank has all tokens; 1: tokens are split between ranks
                                                      * in the layers whose weights are not */
  /* Expert-parallel degrees, for mixture-of-experts models. Empty: the configuration's value; with `axes` also all
   * degrees up to a node's devices that divide the numbers of experts and of replicas. */
  int expert[TWS_TUNE_LIST], expert_count;
  double capacity[TWS_TUNE_LIST];
  int capacity_count; /* values of twinspeed.expert_capacity_factor */
  /* Values of TWS_EXCHANGE_KEYS. Empty: the configuration's value; with `axes` on several nodes also groups of one
   * node's ranks, for the first two keys at stage 3 and for the third with experts on more than one node, unless one of
   * the lists below is given. */
  int exchange[TWS_EXCHANGE_COUNT][TWS_TUNE_LIST], exchange_count[TWS_EXCHANGE_COUNT];
  /* Empty: the configuration's value. */
  int overlap[2], overlap_count;                 /* values of tws_variant.overlap */
  int offload[TWS_OFFLOAD_WORDS], offload_count; /* values of tws_variant.offload */
  /* 1: the user listed no `offload`, and the configuration offloads: the search also tries no offload */
  int offload_is_default;
  int64_t reduce_bucket[TWS_TUNE_LIST];
  int reduce_bucket_count;
  int64_t zero3[TWS_ZERO3_LIMIT_COUNT][TWS_TUNE_LIST]; /* values of tws_variant.zero3 */
  int zero3_count[TWS_ZERO3_LIMIT_COUNT];
} tws_tune_space;

typedef enum tws_tune_verdict {
  TWS_TUNE_FITS,
  TWS_TUNE_NO_DEVICE_MEMORY,
  TWS_TUNE_NO_HOST_MEMORY, /* the memory of a node, or the space on its disk, is exceeded */
  TWS_TUNE_NOT_SUPPORTED   /* the plan was refused; `reason` says why */
} tws_tune_verdict;

typedef struct tws_tune_candidate {
  tws_variant variant;
  int64_t number; /* number of the point in its space */
  uint64_t print; /* fingerprint of the bound, as tws_bound.print */
  char name[TWS_VARIANT_NAME];
  tws_tune_verdict verdict;
  /* reason of the rejection, with the same text for similar candidates, so that they can be counted */
  char reason[160];
  int implied;                          /* 1: rejected without a plan: needed_bytes is a lower bound */
  int rough;                            /* 1: step_s and the ledger of the estimate are lower bounds */
  double needed_bytes, available_bytes; /* memory of one rank, in the tier that is exceeded */
  tws_estimate estimate;                /* valid unless NOT_SUPPORTED or implied */
  double samples;                       /* sequences per step of the whole job */
  double simulated_s;                   /* simulated seconds of a step; 0: not simulated */
  tws_sim_result simulation;
  /* measured seconds of a step: median, and interquartile range; 0: not measured (autotune/measure.h) */
  double measured_s, measured_spread_s;
} tws_tune_candidate;

typedef enum tws_tuner {
  TWS_TUNER_MODEL_BASED, /* the default: simulates points in the order of the step times that the longest path predicts,
                          * the fastest first */
  TWS_TUNER_GRIDSEARCH,  /* simulates points in the order of the space */
  TWS_TUNER_RANDOM       /* simulates points in a random order that is drawn from the seed */
} tws_tuner;

/* The objective of a search. */
typedef enum tws_goal {
  TWS_GOAL_THROUGHPUT, /* samples/s */
  TWS_GOAL_LATENCY,    /* seconds per step */
  TWS_GOAL_FLOPS,      /* model FLOPs per second and device */
  TWS_GOAL_MEMORY,     /* peak bytes of the fullest rank */
  TWS_GOAL_COST,       /* price per token, from the price of a device-hour in the cluster file */
  TWS_GOALS
} tws_goal;

typedef struct tws_tune_request {
  tws_job *job;           /* open; the batch keys and the ZeRO stage of its configuration are replaced by those of each
                           * point */
  const tws_sim_api *sim; /* NULL: candidates are ranked by the longest path alone */
  tws_fidelity fidelity;
  tws_tune_space space;
  tws_tuner tuner;
  tws_goal goal;      /* objective by which tws_tune_order() sorts the result */
  int trials;         /* maximum number of simulations; 0: 12 */
  int early_stopping; /* stop after this many trials without an improvement; 0: never */
  uint64_t seed;
  double memory_bytes;    /* memory limit of one device; 0: the device's own */
  int keeps_margin;       /* 1: memory_bytes excludes the margin of the runtime's interval of measured peaks, so that no
                     * candidate is tight */
  tws_progress *progress; /* may be NULL */
  const tws_log *log;     /* may be NULL */
  int list_up_to;         /* a space of at most this many points is planned completely; 0: TWS_TUNE_FEW; -1: never */
  int workers;            /* processes that compute bounds, plans and simulations; 0: one per core */
  double budget_s;        /* time limit; the order of points is then drawn from the seed; 0: no limit */
  const char *state;      /* file of the search's state, with the suffix ".k" for part k > 0; NULL: none */
  int resume;             /* continue from the state file */
  int part, parts;        /* this process searches one of `parts` parts; part 0 merges the results of the others from
                           * their files */
} tws_tune_request;

typedef struct tws_tune_rejection {
  char reason[160];
  int64_t count;
} tws_tune_rejection;

/* Counts of the points of a space by outcome: `considered` is the sum of the members from `illegal` to `left`. */
typedef struct tws_tune_swept {
  int64_t considered;
  int64_t illegal;       /* points whose division, batch or combination is not legal, or that the defaults exclude */
  int64_t equal;         /* points in which a knob has no effect, so that another point has the same plan */
  int64_t refused;       /* the plan refuses the point */
  int64_t too_large;     /* points that exceed the memory of the device or its host, or the disk */
  int64_t ruled_out;     /* points that a bound shows not to be better than the best plan */
  int64_t planned;       /* points that fit and whose step time was computed from a plan */
  int64_t left;          /* points that were not evaluated within the time limit */
  double left_better;    /* upper bound of the relative improvement among points left (0.1: 10 %); -1: not known */
  int64_t bounds, plans; /* number of bounds, and of plans, that were computed */
  double search_s, plan_s;
  double search_cpu_s, plan_cpu_s, simulate_cpu_s; /* CPU seconds, summed over all processes */
} tws_tune_swept;

struct tws_tune_result;
/* Returns the number of distinct configurations of the space: legal points whose plan no other point has. */
int64_t tws_tune_points(const struct tws_tune_result *result);

/* Returns outcome number `way` of the points that were considered, as a count and a description; each point has exactly
 * one outcome. */
enum { TWS_SWEPT_OUTCOMES = 7 };
typedef struct tws_swept_outcome {
  int64_t count;
  const char *what;
} tws_swept_outcome;
tws_swept_outcome tws_tune_swept_outcome(const tws_tune_swept *swept, int way);

typedef struct tws_tune_result {
  tws_tune_candidate *candidates; /* fitting candidates first: simulated ones by simulated throughput, then the others
                                   * by estimated throughput */
  int count, fits, simulated;
  tws_tune_rejection *rejections; /* most frequent first */
  int rejection_count;
  int smallest;                  /* if nothing fits: index of the candidate that needs the least memory; else -1 */
  double estimate_s, simulate_s; /* wall-clock seconds of the search and of the simulations */
  int every;                     /* 1: every point was planned; 0: candidates are the best points, or, if nothing fits,
                                  * those closest to fitting */
  tws_tune_swept swept;
} tws_tune_result;

/* Default number of simulations, and size of the largest space that is planned completely. */
enum { TWS_TUNE_TRIALS = 12, TWS_TUNE_FEW = 384 };
/* Runs the search. Fails with TWS_INVALID if the space is empty or too large. It is no error if nothing fits:
 * result->fits is 0 then. */
tws_code tws_tune(const tws_tune_request *request, tws_tune_result **out, tws_error *err);
void tws_tune_result_destroy(tws_tune_result *result);
/* Removes the files of the search's state. */
void tws_tune_forget(const tws_tune_request *request);

/* Returns 1 if the model's states (weights, gradients, optimizer) exceed one device, so that ranks must share a replica
 * or its states: callers then set space.axes, unless the user chose axes. Returns 0 for jobs on a host. */
int tws_tune_needs_axes(const tws_tune_request *request);
/* Returns a lower bound of the number of devices: the states divided by a device's memory, without replication. Returns
 * 1 for jobs on a host. */
double tws_tune_least_devices(const tws_tune_request *request);

/* Returns 1 if the space has points, 0 if it is empty or invalid. */
int tws_tune_has_points(const tws_tune_request *request);
/* Lists the points of a space in order; the caller frees *points with tws_free. */
tws_code tws_tune_enumerate(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err);

/* Returns 1 if a candidate fits but might not fit with the largest memory peaks that were measured for its runtime (the
 * upper end of their interval). */
int tws_tune_is_tight(const tws_tune_request *request, const tws_tune_candidate *candidate);

/* Plans a candidate: sets its verdict with the reason, and the longest path of its plan if it fits. */
tws_code tws_tune_estimate(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);

/* returns the seconds of a step: simulated, else estimated */
double tws_tune_predicted(const tws_tune_candidate *candidate);
/* returns samples/s, simulated or estimated; measurements are not used */
double tws_tune_throughput(const tws_tune_candidate *candidate);
/* Returns the predicted throughput in tokens/s of the whole job. */
double tws_tune_tokens_per_s(const tws_tune_request *request, const tws_tune_candidate *candidate);

#endif
