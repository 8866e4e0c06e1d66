/* Estimators: readers of a plan that answer without running it. */
#ifndef TWS_ESTIMATORS_H
#define TWS_ESTIMATORS_H

#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "plan/representatives.h"
#include "plan/run_order.h"

/* ---- memory ledger ---- */
typedef struct tws_ledger_tier {
  uint64_t arena_bytes;                  /* what the engine allocates: the peak */
  uint64_t live_bytes;                   /* largest sum of buffers alive together */
  uint32_t peak_op;                      /* the operation at which that is */
  uint64_t category[TWS_CATEGORY_COUNT]; /* bytes alive at peak_op, by category */
  uint64_t gaps;                         /* arena_bytes - live_bytes: alignment and fragmentation */
} tws_ledger_tier;
typedef struct tws_ledger {
  tws_ledger_tier tier[TWS_TIER_COUNT];
  uint64_t loss_bytes; /* most on the device while the loss is computed; 0: it is not */
} tws_ledger;
tws_code tws_ledger_read(const tws_plan *plan, tws_ledger *ledger, tws_error *err);
/* Of programs that run in turn over one state: for each tier the ledger of the one that needs the most, whose arena is
 * then the largest, and so what the engine allocates. */
tws_code tws_ledger_of_programs(const tws_plan *const *plans, int count, tws_ledger *ledger, tws_error *err);
/* Live bytes by category after each operation, as CSV: op,phase,micro_batch,name,<category columns>,total */
tws_code tws_ledger_csv(const tws_plan *plan, tws_tier tier, tws_text *out, tws_error *err);

/* ---- what a result is of ---- */
typedef struct tws_fingerprint {
  char model[17], configuration[17], plan[17]; /* 16 hexadecimal digits each */
} tws_fingerprint;
/* Of the whole job, whatever request->rank and ->max_accumulation are: equal texts for equal descriptions, so that
 * results of different models, configurations or plans can be told apart although they look alike. Neither names nor
 * paths of files count, nor padding of the vocabulary for the model, nor keys without effect for the configuration. */
tws_code tws_fingerprint_read(const tws_plan_request *request, tws_fingerprint *out, tws_error *err);
/* Of the plan of request->rank, of two micro-batches: ranks of a stage with equal ones take as long and hold as much.
 */
tws_code tws_fingerprint_shape(const tws_plan_request *request, uint64_t *out, tws_error *err);
/* Adds "fingerprint": {"model": ..., "configuration": ..., "plan": ...}; empty texts are left out. */
void tws_fingerprint_json(const tws_fingerprint *fingerprint, cJSON *object);
uint64_t tws_network_fingerprint(const tws_network *network);

/* ---- time: longest path over the plan ---- */

/* What reports tell apart: the axes that config/axes.def reports communication under, messages under "pipe", and what
 * has no axis: copies, host work, and kernels on streams of communication. */
enum { TWS_REPORT_OTHER = TWS_AXIS_COUNT, TWS_REPORT_COUNT };
const char *tws_report_name(int axis);
int tws_report_of_group(const tws_group *group);
int tws_report_of_op(const tws_plan *plan, const tws_op *op);
int tws_op_computes(const tws_op *op); /* or copies; else it communicates */

typedef struct tws_path_result {
  double step_s;
  double stream_busy_s[TWS_STREAM_COUNT];
  double phase_s[TWS_PHASE_COUNT]; /* busy time of the compute stream by phase */
  /* Step time in which the compute stream neither computes nor copies. Each such moment counts once: in bubble_s when
   * the operation that holds up the compute stream waits for another rank (to reach a message or a collective, or to
   * finish the step), else in axis_exposed_s of that operation. What the compute stream itself communicates is exposed.
   * So exposed_s = bubble_s + the sum of axis_exposed_s. */
  double exposed_s, bubble_s, axis_exposed_s[TWS_REPORT_COUNT];
  /* Of what is exposed, the part of offloading: the host's computing, copies between device and host, the disk. */
  double host_exposed_s, copies_exposed_s, disk_exposed_s;
  double loading_s; /* for so long the step waits for its samples; part of nothing else (tws_path_load()) */
  double
      axis_busy_s[TWS_REPORT_COUNT]; /* communication, hidden or not: sum over operations, waiting for ranks left out */
  double collective_s[TWS_COLLECTIVE_COUNT]; /* from when this rank is there to the end */
  double kernel_s[TWS_KERNEL_COUNT];         /* on streams: what the host computes beside the device is left out */
  double flops;                              /* executed by this rank */
  double passed_s[TWS_STREAM_COUNT]; /* when the streams ended what was issued until the last forward pass was: of steps
                                        of more micro-batches all of them do so later by one and the same time */
  const char *bottleneck;            /* one sentence, static or in the caller's buffer below */
  char text[256];
} tws_path_result;
typedef struct tws_machine { /* what a plan is costed on */
  const tws_cluster *cluster;
  const tws_profile *profile;
} tws_machine;
tws_node_mapping tws_machine_mapping(const tws_machine *machine, int ranks);
/* Seconds of one interned work of a plan on a machine: the one place where plan costs come from (also for sim). For
 * a host whose ranks outnumber cores, computing time is stretched by ranks x threads / cores when stretch != 0.
 * Copies between tiers run at the rate of the device's link to its host or of the node's disk (the usual one
 * where the cluster does not say), kernels of the host's cores beside a device at that of its memory, both shared by
 * the node's ranks. */
double tws_plan_work_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch);
/* Whether the host launches it as a kernel of the device. */
static inline int tws_work_is_launched(const tws_work *work) {
  return work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_DEVICE;
}
/* How much longer kernels take that a host launches in host_s and a device runs in device_s: launches run ahead, so the
 * longer of the two counts, but neither hides all of the other where they are near, as long and short kernels take
 * turns: the 2.5th root of the sum of their powers (an exponent fitted to half of a group of runs, docs/accuracy.md).
 * Where launches do not run ahead (in_turns), they add up. */
double tws_host_stretch(double device_s, double host_s, int in_turns);
/* The same of a rank's passes. What a whole plan's works cost is tws_plan_work_seconds() with kernels of the device
 * stretched by this. */
double tws_plan_host_stretch(const tws_plan *plan, const tws_machine *machine);
double tws_plan_launched_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch,
                                 double launched);
/* Seconds of a message between two ranks. Ranks of the pipeline stage whose messages leave their node at the same time
 * share its NICs; nothing else is on the links. The second is of a plan's message to or from `peer`. */
double tws_message_seconds(const tws_topology *topology, int rank, int peer, uint64_t bytes,
                           const tws_machine *machine);
double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine);

/* The account of one rank's step, and the sentence on its bottleneck: shared by all that know the times, so
 * that they report alike. `serial`: the rank has one queue for all streams. step_s may be later than the rank's
 * last operation. */
tws_code tws_path_read(const tws_plan *plan, const tws_op_times *times, int serial, double step_s,
                       tws_path_result *result, tws_error *err);
/* What made an operation ready: of the one before it on its queue (or TWS_NONE) and those that it waits for the last to
 * end; of several that end at once, but for rounding, no message, and what was issued last. */
uint32_t tws_path_cause(const tws_plan *plan, const tws_op_times *times, uint32_t before, uint32_t op);

/* What takes most of a step, and what a step without it would take. */
typedef struct tws_bottleneck {
  const char *what, *resource;
  double seconds, share; /* of the step; communication: what is not hidden */
  int axis;              /* communication: along which ranks wait most (tws_report_name()); else -1 */
  double without_s; /* the step at least, if this took no time: what it hides on other streams takes its time still */
  const char *next; /* what takes most besides */
  double next_share;
} tws_bottleneck;
tws_bottleneck tws_path_bottleneck(const tws_path_result *result);

/* Seconds of a step that are exposed and are those of offloading. */
double tws_path_offloading(const tws_path_result *result);
/* The sentence on what to look at first, from the numbers of an account: for those who changed them. */
void tws_path_judge(tws_path_result *result);

/* The account of a step with `more` times what `path` has beyond `fewer`, of a step that is shorter by a round. */
void tws_path_extrapolate(tws_path_result *path, const tws_path_result *fewer, double more);
/* Adds that share of another account, of a program that runs between steps. */
void tws_path_add(tws_path_result *path, const tws_path_result *other, double share);
/* By how many bytes the arena of a step of `wanted` micro-batches is larger than that of the plan, of which it is a
 * longer version: the network's inputs are the one thing that grows. */
uint64_t tws_arena_growth(const tws_plan *plan, int64_t wanted);

tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err);

/* The same for ranks that differ: plans[i] stands for one pipeline stage each (any set of ranks of a job whose other
 * ranks do the same as one of them). Seconds of the whole step, and of each plan's rank in results (may be NULL). */
tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err);

/* ---- stages: what one rank of each pipeline stage holds and does ---- */
typedef struct tws_stage_estimate {
  int stage, rank;   /* the rank that stands for the stage */
  int layers;        /* transformer layers, whole or in part */
  double parameters; /* of the rank's part of the model, before ZeRO divides it among replicas */
  uint64_t arena_bytes[TWS_TIER_COUNT];
  uint64_t loss_bytes; /* as in tws_ledger */
  tws_path_result path;
} tws_stage_estimate;
/* All but path and loss_bytes, from a plan. */
tws_code tws_stage_read(const tws_plan *plan, tws_stage_estimate *stage, tws_error *err);
/* Means over stages; 1 is even: largest / mean of the time that stages compute, and of their device memory. */
typedef struct tws_stage_balance {
  double bubble; /* share of the step in which the average stage waits for others */
  double compute_imbalance, memory_imbalance;
  int largest; /* index of the stage whose device arena is largest: the first of them */
} tws_stage_balance;
tws_stage_balance tws_stage_compare(const tws_stage_estimate *stages, int count);

/* Estimate from real plans of as few micro-batches as say all of the step (plan/fold.h): exact for any number of them.
 * request->rank, ->max_accumulation and ->use are not looked at. */
typedef struct tws_estimate {
  tws_ledger ledger;         /* of the pipeline stage whose device arena is largest */
  int stage;                 /* that stage */
  tws_stage_balance balance; /* 0, 1 and 1 without a pipeline */
  double step_s, tokens_per_s;
  double loading_s;     /* in which nodes load the step's samples, beside the step before; 0: not said how fast */
  double model_flops;   /* of the whole job's step, without recomputation */
  double mfu;           /* against the dense peak of all devices */
  tws_path_result path; /* of the stage that waits least, extrapolated */
  int64_t built;        /* micro-batches of the plan that the ledger was read from: what ledger.peak_op counts in */
  int64_t timed;        /* of the longest plans that times were read from */
} tws_estimate;
/* Of the whole job's step, or its evaluation: without recomputation, and without gradients that are not needed. */
double tws_model_flops(const tws_plan_request *request);
/* Which ranks' plans it is made from. The caller frees them, also on failure. */
tws_code tws_estimate_ranks(const tws_plan_request *request, const tws_machine *machine, tws_rank_set *out,
                            tws_error *err);
/* The ledger of the rank of which most bytes of the device are alive at once: its plan's, which is not laid out, so
 * arenas are without gaps. */
tws_code tws_estimate_live(const tws_plan_request *request, const tws_machine *machine, tws_ledger *out,
                           tws_error *err);
tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err);
/* The same, and each stage's part: stages has room for the topology's "pipe" dimension (at least 1), or is NULL. */
tws_code tws_estimate_job(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                          tws_stage_estimate *stages, tws_error *err);
/* Seconds in which the cluster's nodes (samples_per_s) load the samples of one step, beside the step before: no step is
 * shorter. 0: the cluster does not say how fast. */
double tws_loading_s(const tws_plan_request *request, const tws_machine *machine);
/* A step that waits so long for its samples; not more than 0: nothing changes. */
void tws_path_load(double waits_s, tws_path_result *path);
/* What runs between training steps adds to each of them: step_s and path by its share, and the ledger of the largest of
 * these programs, tier by tier; zeros where there is none. Estimates of steps have it in them. */
tws_code tws_estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                              tws_error *err);

#endif
