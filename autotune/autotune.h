/* The tuner: which configuration trains a network fastest on a machine.
 *
 *   every point of the space -> memory and time at least (bounds) -> plans of those that may be best -> simulation
 *
 * Points are looked at best first (autotune/frontier.h): a bound only ever rules out, and what is reported was planned.
 * A space of few points is planned as a whole.
 *
 * The result is deterministic: equal requests give equal tables, whatever the number of processes. Nothing here prints
 * or launches: autotune/measure.h runs the winners. */
#ifndef TWS_AUTOTUNE_H
#define TWS_AUTOTUNE_H

#include "base/json.h"
#include "base/log.h"
#include "compat/deepspeed_autotuner.h"
#include "job/fit.h"
#include "job/simulate.h"

enum { TWS_TUNE_LIST = 32, TWS_TUNE_SCHEDULES = 16, TWS_TUNE_REASONS = 32 };
#define TWS_TUNE_MAX_POINTS (INT64_C(1) << 36)

/* An empty list means "all that make sense", as stated. */
typedef struct tws_tune_space {
  int64_t global_batch;       /* sequences a step; 0: free, micro batch x accumulation x ranks decide */
  int stages[4], stage_count; /* 0, 1, 2, 3 */
  int64_t micro[TWS_TUNE_LIST];
  int micro_count;   /* fixed batch: its divisors; free: powers of two */
  int64_t max_micro; /* 0: 64 when free, unlimited under a fixed batch */
  int64_t min_micro; /* smaller ones are left out, unless they are listed */
  /* num > 0, free batch on GPUs: of all devices the points that DeepSpeed's autotuner would run (its fast mode), were
   * its experiments as estimated; params, activation_bytes 0: as estimated. stages, accumulation and the machine are
   * filled in. */
  tws_ds_tuning deepspeed;
  int64_t accumulation[TWS_TUNE_LIST];
  int accumulation_count; /* free batch only: 1; of a pipeline four times its stages */
  tws_recompute recompute[3];
  int recompute_count; /* none, selective, full */
  int ranks[TWS_TUNE_LIST];
  int ranks_count; /* divisors of the cluster's devices that fill whole nodes */
  int threads[TWS_TUNE_LIST];
  int threads_count; /* hosts: divisors of the cores a rank can have to itself */
  int oversubscribe; /* hosts: also rank counts beyond the cores (powers of two up to twice the cores) */
  int every_feature; /* also points that the job's runtime cannot run (job/features.h) */
  /* Axes of ranks besides replicas. Empty lists are what the configuration says, or, when `axes` is set: all legal
   * pipelines; tensor ranks within a node, with and without sequence_parallel; sequence ranks that share a node with
   * the tensor ranks, for sequences of 8192 tokens or more where no list of ZeRO's knobs is given; 1f1b,
   * interleaved with two chunks, zb-h1; all devices; and no ZeRO stage where nothing is left to divide, no pipeline
   * with fewer micro-batches than stages. */
  int axes;
  int pipeline[TWS_TUNE_LIST], pipeline_count;
  int tensor[TWS_TUNE_LIST], tensor_count;
  int sequence[TWS_TUNE_LIST], sequence_count;
  tws_variant_schedule schedules[TWS_TUNE_SCHEDULES];
  int schedule_count;
  int sequence_parallel[2], sequence_parallel_count; /* 0: whole tokens, 1: tokens are split where weights are not */
  /* Of models of experts. Empty: the configuration's, with `axes` also all degrees up to a node's devices that divide
   * experts and replicas. */
  int expert[TWS_TUNE_LIST], expert_count;
  double capacity[TWS_TUNE_LIST];
  int capacity_count; /* twinspeed.expert_capacity_factor */
  /* Values of TWS_EXCHANGE_KEYS. Empty: the configuration's, with `axes` on several nodes also groups of a node's
   * ranks, of the first two keys at stage 3 and of the third with experts on more nodes than one, unless one of the
   * lists below is given. */
  int exchange[TWS_EXCHANGE_COUNT][TWS_TUNE_LIST], exchange_count[TWS_EXCHANGE_COUNT];
  /* Empty: the configuration's. */
  int overlap[2], overlap_count;                 /* tws_variant.overlap */
  int offload[TWS_OFFLOAD_WORDS], offload_count; /* tws_variant.offload */
  int offload_unsaid; /* the list was not named: the configuration offloads, and the search tries it without */
  int64_t reduce_bucket[TWS_TUNE_LIST];
  int reduce_bucket_count;
  int64_t zero3[TWS_ZERO3_LIMIT_COUNT][TWS_TUNE_LIST]; /* tws_variant.zero3 */
  int zero3_count[TWS_ZERO3_LIMIT_COUNT];
} tws_tune_space;

typedef enum tws_tune_verdict {
  TWS_TUNE_FITS,
  TWS_TUNE_NO_DEVICE_MEMORY,
  TWS_TUNE_NO_HOST_MEMORY, /* or room on a node's disk */
  TWS_TUNE_NOT_SUPPORTED   /* the plan refused it: reason says why */
} tws_tune_verdict;

typedef struct tws_tune_candidate {
  tws_variant variant;
  int64_t number; /* of the point in its space */
  uint64_t print; /* tws_bound.print */
  char name[TWS_VARIANT_NAME];
  tws_tune_verdict verdict;
  char reason[160];                     /* of a rejection, in classes that can be counted */
  int implied;                          /* rejected without a plan: needed_bytes are what it needs at least */
  int rough;                            /* step_s and the ledger of the estimate are lower bounds */
  double needed_bytes, available_bytes; /* of one rank, in the tier that decides */
  tws_estimate estimate;                /* valid unless NOT_SUPPORTED or implied */
  double samples;                       /* sequences a step of the whole job */
  double simulated_s;                   /* 0: not simulated */
  tws_sim_result simulation;
  double measured_s, measured_spread_s; /* 0: not measured (autotune/measure.h) */
} tws_tune_candidate;

typedef enum tws_tuner {
  TWS_TUNER_MODEL_BASED, /* simulates in the order of the longest path: the default */
  TWS_TUNER_GRIDSEARCH,  /* in the order of the space */
  TWS_TUNER_RANDOM       /* in an order drawn from the seed */
} tws_tuner;

/* What "best" means. */
typedef enum tws_goal {
  TWS_GOAL_THROUGHPUT, /* samples/s */
  TWS_GOAL_LATENCY,    /* seconds of a step */
  TWS_GOAL_FLOPS,      /* of the model, a second and device */
  TWS_GOAL_MEMORY,     /* bytes of the fullest rank */
  TWS_GOAL_COST,       /* money for a token, by the cluster's price of a device-hour */
  TWS_GOALS
} tws_goal;

typedef struct tws_tune_request {
  tws_job *job;           /* open; batch keys and the stage of its configuration are replaced by those of each point */
  const tws_sim_api *sim; /* NULL: the longest path decides alone */
  tws_fidelity fidelity;
  tws_tune_space space;
  tws_tuner tuner;
  tws_goal goal;      /* tws_tune_order() */
  int trials;         /* simulations at most; 0: 12 */
  int early_stopping; /* stop after so many trials without a better one; 0: never */
  uint64_t seed;
  double memory_bytes;    /* limit of one device instead of the machine's; 0: the machine's */
  tws_progress *progress; /* may be NULL */
  const tws_log *log;     /* may be NULL */
  int list_up_to;         /* a space of so many points is planned as a whole; 0: TWS_TUNE_FEW; -1: none is */
  int workers;            /* processes that look at points, plan and simulate; 0: one for each core */
  double budget_s;        /* look no further after so long, in an order drawn from the seed; 0: no limit */
  const char *state;      /* file that keeps what was found out; of part k > 0 with ".k" behind; NULL: none */
  int resume;             /* go on from it */
  int part, parts;        /* this process looks at a part; part 0 gathers what the others find through their files */
} tws_tune_request;

typedef struct tws_tune_rejection {
  char reason[160];
  int64_t count;
} tws_tune_rejection;

/* Where the points of a space went: considered is the sum of those up to left. */
typedef struct tws_tune_swept {
  int64_t considered;
  int64_t illegal;       /* no such division, batch or combination, or not worth trying where none was named */
  int64_t equal;         /* a knob without effect: the same plan as another point's */
  int64_t refused;       /* by the plan */
  int64_t too_large;     /* for the device, its host or disk */
  int64_t ruled_out;     /* no better than the best, by their bounds */
  int64_t planned;       /* fit, and their steps are known */
  int64_t left;          /* not looked at within the budget */
  double left_better;    /* how much better what is left could be, at most: 0.1 is 10 %; -1: not known */
  int64_t bounds, plans; /* that were made */
  double search_s, plan_s;
  double search_cpu_s, plan_cpu_s, simulate_cpu_s; /* of all processes together */
} tws_tune_swept;

struct tws_tune_result;
/* Configurations of the space: points that are legal and stand for themselves. */
int64_t tws_tune_points(const struct tws_tune_result *result);

/* What became of the points that were considered: each of them went one of these ways. */
enum { TWS_SWEPT_WAYS = 7 };
typedef struct tws_swept_way {
  int64_t count;
  const char *what;
} tws_swept_way;
tws_swept_way tws_tune_swept_way(const tws_tune_swept *swept, int way);

typedef struct tws_tune_result {
  tws_tune_candidate *candidates; /* fitting ones first: simulated by their simulated, then by estimated throughput */
  int count, fits, simulated;
  tws_tune_rejection *rejections; /* most frequent first */
  int rejection_count;
  int smallest;                  /* nothing fits: the candidate that needs least memory; else -1 */
  double estimate_s, simulate_s; /* what the search itself took */
  int every;                     /* all points were planned; else candidates are the best, and if none fits what came
                                  * closest */
  tws_tune_swept swept;
} tws_tune_result;

/* Simulations where no number is given; points of a space that is planned as a whole. */
enum { TWS_TUNE_TRIALS = 12, TWS_TUNE_FEW = 384 };
/* TWS_INVALID for an empty or oversized space. Nothing that fits is not an error: result->fits is then 0. */
tws_code tws_tune(const tws_tune_request *request, tws_tune_result **out, tws_error *err);
void tws_tune_result_destroy(tws_tune_result *result);
/* Removes the files that keep where the search stands. */
void tws_tune_forget(const tws_tune_request *request);

/* Whether the model's states (weights, gradients, optimizer) are more than one device holds, so that ranks have to
 * share a replica or its states: when to set space.axes for somebody who has not said. Never on a host. */
int tws_tune_needs_axes(const tws_tune_request *request);
/* Devices that the states take when nothing of them is held twice: fewer cannot do. 1 on a host. */
double tws_tune_least_devices(const tws_tune_request *request);

/* The points of a space, in order; the caller frees *points with tws_free. */
int tws_tune_has_points(const tws_tune_request *request); /* 0: there is none, or the space is wrong */
tws_code tws_tune_enumerate(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err);

/* Whether a point fits and the longest path of its plan, or why it is rejected. */
tws_code tws_tune_estimate(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);

double tws_tune_throughput(const tws_tune_candidate *candidate); /* samples/s: measured is not used here */
/* The same in tokens/s of the whole job. */
double tws_tune_tokens_per_s(const tws_tune_request *request, const tws_tune_candidate *candidate);

#endif
