/* Estimators: readers of a plan that answer without running it. */
#ifndef TWS_ESTIMATORS_H
#define TWS_ESTIMATORS_H

#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "plan/representatives.h"
#include "plan/run_order.h"

/* ---- memory ledger ---- */
typedef struct tws_ledger_tier {
  uint64_t arena_bytes;                  /* the size of the arena that the engine allocates: the peak */
  uint64_t live_bytes;                   /* largest sum of the bytes of buffers that are alive together */
  uint32_t peak_op;                      /* the operation at which live_bytes is reached */
  uint64_t category[TWS_CATEGORY_COUNT]; /* bytes alive at peak_op, by category */
  uint64_t gaps;                         /* arena_bytes - live_bytes: alignment and fragmentation */
} tws_ledger_tier;
typedef struct tws_ledger {
  tws_ledger_tier tier[TWS_TIER_COUNT];
  uint64_t loss_bytes; /* most bytes alive on the device while the loss is computed; 0: the plan computes no loss */
} tws_ledger;
tws_code tws_ledger_read(const tws_plan *plan, tws_ledger *ledger, tws_error *err);
/* Reads the ledger of programs that run one after another over one state: of each tier, the ledger of the program with
 * the largest arena, which is the arena that the engine allocates. */
tws_code tws_ledger_of_programs(const tws_plan *const *plans, int count, tws_ledger *ledger, tws_error *err);
/* Live bytes by category after each operation, as CSV: op,phase,micro_batch,name,<category columns>,total */
tws_code tws_ledger_csv(const tws_plan *plan, tws_tier tier, tws_text *out, tws_error *err);

/* ---- which model, configuration and plan a result belongs to ---- */
typedef struct tws_fingerprint {
  char model[17], configuration[17], plan[17]; /* 16 hexadecimal digits each */
} tws_fingerprint;
/* Computes the fingerprint of the whole job, whatever request->rank and ->max_accumulation are. Equal texts mean equal
 * descriptions, so that results of different models, configurations or plans can be told apart although they look
 * alike. Names and paths of files do not count; nor does padding of the vocabulary in the model's, nor do keys without
 * effect in the configuration's. */
tws_code tws_fingerprint_read(const tws_plan_request *request, tws_fingerprint *out, tws_error *err);
/* Computes a hash of the plan of request->rank with two micro-batches, with operands, offsets and arenas: ranks of a
 * stage with equal hashes take the same time and hold the same bytes. */
tws_code tws_fingerprint_shape(const tws_plan_request *request, uint64_t *out, tws_error *err);
/* Adds "fingerprint": {"model": ..., "configuration": ..., "plan": ...}; empty texts are left out. */
void tws_fingerprint_json(const tws_fingerprint *fingerprint, cJSON *object);
uint64_t tws_network_fingerprint(const tws_network *network);

/* ---- time: longest path over the plan ---- */

/* Communication is reported by axis, as config/axes.def says; messages are reported under "pipe". TWS_REPORT_OTHER is
 * for operations without an axis: copies, host work, and kernels on communication streams. */
enum { TWS_REPORT_OTHER = TWS_AXIS_COUNT, TWS_REPORT_COUNT };
const char *tws_report_name(int axis);
int tws_report_of_group(const tws_group *group);

typedef struct tws_path_result {
  double step_s;
  double stream_busy_s[TWS_STREAM_COUNT];
  double phase_s[TWS_PHASE_COUNT]; /* busy time of the compute stream by phase */
  /* Step time in which the compute stream neither computes nor copies. Each such moment counts once: in bubble_s when
   * the operation that holds up the compute stream waits for another rank (to reach a message or a collective, or to
   * finish the step), else in axis_exposed_s of that operation. What the compute stream itself communicates is exposed.
   * So exposed_s = bubble_s + the sum of axis_exposed_s. */
  double exposed_s, bubble_s, axis_exposed_s[TWS_REPORT_COUNT];
  /* The part of exposed_s that is due to offloading: host kernels, copies between device and host, the disk. */
  double host_exposed_s, copies_exposed_s, disk_exposed_s;
  double loading_s; /* seconds in which the step waits for its samples; counted in no other member (tws_path_load()) */
  double
      axis_busy_s[TWS_REPORT_COUNT]; /* communication, hidden or not: sum over operations, without waiting for other
                                        ranks */
  double collective_s[TWS_COLLECTIVE_COUNT]; /* from when this rank is ready until the collective ends */
  double kernel_s[TWS_KERNEL_COUNT];         /* kernels of the device, and of the host where the host is the device */
  double flops;                              /* executed by this rank */
  double passed_s[TWS_STREAM_COUNT]; /* per stream: when the last operation that was issued before the last forward
                                        kernel ended. With more micro-batches, all streams end these later by the same
                                        number of seconds. */
  const char *bottleneck;            /* one sentence, static or in the caller's buffer below */
  char text[256];
} tws_path_result;
typedef struct tws_machine { /* the hardware that a plan is costed on */
  const tws_cluster *cluster;
  const tws_profile *profile;
} tws_machine;
tws_node_mapping tws_machine_mapping(const tws_machine *machine, int ranks);
/* Returns the seconds of one interned work of a plan on a machine. All costs of plans come from here, the simulator's
 * too. On a host whose ranks outnumber its cores, compute time is multiplied by ranks x threads / cores if the last
 * argument is not 0. Copies between tiers run at the rate of the device's link to its host or of the node's disk (a
 * usual rate where the cluster file gives none), and host kernels of jobs on devices at the bandwidth of the host's
 * memory; the ranks of a node share both. */
double tws_plan_work_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch);
/* Returns 1 if the work is a kernel that the host launches on the device. */
static inline int tws_work_is_launched(const tws_work *work) {
  return work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_DEVICE;
}
/* Returns the factor by which launch overhead lengthens kernels that the host launches in host_s and the device runs in
 * device_s. Launches run ahead of execution, so the longer of the two dominates; but where both are of similar length,
 * long and short kernels alternate and neither hides all of the other: (device^2.5 + host^2.5)^(1/2.5), with an
 * exponent fitted to half of a group of runs (docs/accuracy.md). Where launches do not run ahead (in_turns), the two
 * add up. */
double tws_host_stretch(double device_s, double host_s, int in_turns);
/* The first returns that factor for the forward and backward passes of a rank. The second is tws_plan_work_seconds(),
 * multiplied by `launched`, the factor, if the work is a kernel of the device. */
double tws_plan_host_stretch(const tws_plan *plan, const tws_machine *machine);
double tws_plan_launched_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch,
                                 double launched);
/* Returns the seconds of a message between two ranks. Ranks of the pipeline stage whose messages leave their node at
 * the same time share its NICs; no other traffic is on the links. The second function is for a message of the plan to
 * or from `peer`. */
double tws_message_seconds(const tws_topology *topology, int rank, int peer, uint64_t bytes,
                           const tws_machine *machine);
double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine);

/* Reads the account of one rank's step from the times of its operations, and writes the sentence on its bottleneck. The
 * longest path, the simulator and measured runs share it, so that they report alike. `serial`: the rank has one queue
 * for all streams. step_s may be later than the end of the rank's last operation. */
tws_code tws_path_read(const tws_plan *plan, const tws_op_times *times, int serial, double step_s,
                       tws_path_result *result, tws_error *err);

/* The category of work that takes most of a step, and the step's length without it. */
typedef struct tws_bottleneck {
  const char *what, *resource;
  double seconds, share; /* share: of the step; of communication only what is exposed */
  int axis;              /* communication: the axis along which ranks wait most (tws_report_name()); otherwise -1 */
  double without_s; /* lower bound of the step if this took no time: operations that it hides on other streams still
                       take theirs */
  const char *next; /* the second largest category */
  double next_share;
} tws_bottleneck;
tws_bottleneck tws_path_bottleneck(const tws_path_result *result);

/* Returns the seconds of a step that are exposed because of offloading; because of communication. */
double tws_path_offloading(const tws_path_result *result);
double tws_path_communicating(const tws_path_result *result);
/* Returns `seconds` as a share of the step; 0 where the step takes no time. */
double tws_path_share(const tws_path_result *result, double seconds);
/* Writes the sentence on the bottleneck from the numbers of an account, for callers that changed them. */
void tws_path_judge(tws_path_result *result);

/* Extrapolates: adds to `path` `more` times its difference to `fewer`, the account of a step that is shorter by one
 * round of micro-batches. */
void tws_path_extrapolate(tws_path_result *path, const tws_path_result *fewer, double more);
/* Adds `share` times the account of another program, one that runs between steps. */
void tws_path_add(tws_path_result *path, const tws_path_result *other, double share);
/* Returns by how many bytes the arena grows from the plan's micro-batches to `wanted` of them: only the network's
 * inputs grow. */
uint64_t tws_arena_growth(const tws_plan *plan, int64_t wanted);

tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err);

/* The same for several ranks: plans[i] represents one pipeline stage each, or the plans are any set of ranks such that
 * every other rank of the job does the same as one of them. Writes the seconds of the whole step, and the account of
 * each plan's rank to results (may be NULL). */
tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err);

/* ---- stages: what one rank of each pipeline stage holds and does ---- */
typedef struct tws_stage_estimate {
  int stage, rank;   /* the representative rank of the stage */
  int layers;        /* transformer layers that the stage runs, wholly or partly */
  double parameters; /* elements that the rank holds of the model, before ZeRO partitions them among replicas */
  uint64_t arena_bytes[TWS_TIER_COUNT];
  uint64_t live_bytes; /* of the device, as in tws_ledger_tier */
  uint64_t loss_bytes; /* as in tws_ledger */
  tws_path_result path;
} tws_stage_estimate;
double tws_stage_bytes(const tws_stage_estimate *stage); /* arenas of all tiers together */
/* Reads all members from a plan except path and loss_bytes, and takes the arena's size for live_bytes. */
tws_code tws_stage_read(const tws_plan *plan, tws_stage_estimate *stage, tws_error *err);
/* Balance of the stages. Imbalances are the largest over the mean, of compute time and of device memory; 1 is even. */
typedef struct tws_stage_balance {
  double bubble; /* mean over stages of the share of the step in which a stage waits for others */
  double compute_imbalance, memory_imbalance;
  int largest; /* index of the stage whose device arena is largest: the first of them */
} tws_stage_balance;
tws_stage_balance tws_stage_compare(const tws_stage_estimate *stages, int count);

/* An estimate reads plans of as few micro-batches as determine the whole step (plan/fold.h), and is exact for any
 * number of micro-batches. It ignores request->rank, ->max_accumulation and ->use. */
typedef struct tws_estimate {
  tws_ledger ledger;         /* of the pipeline stage whose device arena is largest */
  int stage;                 /* that stage */
  tws_stage_balance balance; /* 0, 1 and 1 without a pipeline */
  double step_s, tokens_per_s;
  double loading_s;     /* seconds in which nodes load the step's samples, overlapped with the step before; 0: the
                           cluster gives no rate */
  double model_flops;   /* of the whole job's step, without recomputation */
  double mfu;           /* against the dense peak of all devices */
  tws_path_result path; /* of the stage that waits least, extrapolated */
  int64_t built;        /* micro-batches of the plan that the ledger was read from; ledger.peak_op is an operation of
                           that plan */
  int64_t timed;        /* micro-batches of the longest plans that times were read from */
} tws_estimate;
/* Returns the tokens/s of the job, and its MFU, if the step takes `step_s`, such as a simulated time; 0 where either
 * step takes no time. */
double tws_estimate_tokens_per_s(const tws_estimate *estimate, double step_s);
double tws_estimate_mfu(const tws_estimate *estimate, double step_s);
/* Reads the ledger of one plan of the estimate's stage, which may have fewer micro-batches than the `wanted` of the
 * step: the bytes of the step, and peak operations of this plan. */
tws_code tws_estimate_ledger(const tws_estimate *estimate, const tws_plan *plan, int64_t wanted, tws_ledger *out,
                             tws_error *err);
/* Returns the model FLOPs of the whole job's training step or evaluation: without recomputation, and without gradients
 * that are not needed. */
double tws_model_flops(const tws_plan_request *request);
/* Returns the dense peak of all devices of a job, in FLOP/s, in the type of its activations; 0: the profile does not
 * say. */
double tws_peak_flops(const tws_plan_request *request, const tws_machine *machine);
/* Chooses the ranks whose plans an estimate reads. The caller frees the set, also on failure. */
tws_code tws_estimate_ranks(const tws_plan_request *request, const tws_machine *machine, tws_rank_set *out,
                            tws_error *err);
/* Reads the ledger of the rank that has most bytes alive on its device at once. Plans are not laid out, so arenas have
 * no fragmentation. */
tws_code tws_estimate_live(const tws_plan_request *request, const tws_machine *machine, tws_ledger *out,
                           tws_error *err);
tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err);
/* The same, and the estimate of each stage: stages has room for the size of the "pipe" axis (at least 1), or is
 * NULL. */
tws_code tws_estimate_job(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                          tws_stage_estimate *stages, tws_error *err);
/* Returns the seconds in which the cluster's nodes (samples_per_s each) load the samples of one step, overlapped with
 * the step before: no step is shorter. 0: the cluster file gives no rate. */
double tws_loading_s(const tws_plan_request *request, const tws_machine *machine);
/* Adds waits_s seconds of waiting for samples to the step; no change if waits_s <= 0. */
void tws_path_load(double waits_s, tws_path_result *path);
/* Estimates what programs that run between training steps add to each step: to step_s and path by their share, to the
 * ledger, tier by tier, the largest of these programs; zeros where there is none. tws_estimate_step() and _job()
 * include it. */
tws_code tws_estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                              tws_error *err);

#endif
