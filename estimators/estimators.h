/* Estimators compute the time and memory of plans without running them. */
#ifndef TWS_ESTIMATORS_H
#define TWS_ESTIMATORS_H

#include "config/cluster.h"
#include "models/hardware/caching_allocator.h"
#include "models/hardware/profile.h"
#include "plan/representatives.h"
#include "plan/run_order.h"

/* ---- memory ledger ---- */
/* The bytes that a caching allocator has from CUDA for a plan's buffers on the device; zeros: none places them. */
typedef struct tws_allocator_bytes {
  uint64_t needed;   /* the most that it cannot return, on a device without memory left whenever it asks for more */
  uint64_t held;     /* the most that it cannot return, on a device with memory enough; 0: was not replayed */
  uint64_t reserved; /* the most that it has, on a device with memory enough; 0: was not replayed */
} tws_allocator_bytes;
typedef struct tws_ledger_tier {
  uint64_t arena_bytes;                  /* bytes of the arena that the engine allocates, which is the peak of memory */
  uint64_t live_bytes;                   /* largest number of bytes of buffers that are alive at the same time */
  uint32_t peak_op;                      /* index of the operation at which live_bytes is reached */
  uint64_t category[TWS_CATEGORY_COUNT]; /* per category: bytes alive at peak_op */
  uint64_t gaps;                         /* arena_bytes - live_bytes: bytes lost by alignment and fragmentation */
  tws_allocator_bytes allocator;         /* of the device (tws_ledger_replay()); zeros in the other tiers */
} tws_ledger_tier;
typedef struct tws_ledger {
  tws_ledger_tier tier[TWS_TIER_COUNT];
  /* largest number of bytes alive on the device while the loss is computed; 0: the plan computes no loss */
  uint64_t loss_bytes;
} tws_ledger;
tws_code tws_ledger_read(const tws_plan *plan, tws_ledger *ledger, tws_error *err);
/* Whose allocations are replayed. */
typedef struct tws_replayed {
  tws_allocator_kind kind;
  /* 1: gradients that the optimizer reads have one buffer for all steps; 0: it is freed after the optimizer phase */
  int keeps_gradients;
} tws_replayed;
/* The replays of a plan's allocations: one on a device without memory left, and one on a device with memory enough,
 * which peaks and reserved bytes are computed from; without TWS_REPLAY_ALL the latter is left out where it cannot
 * change whether a job fits. */
typedef enum tws_replays { TWS_REPLAY_NEEDED, TWS_REPLAY_ALL } tws_replays;
/* Runs a plan's allocations through a caching allocator and writes the bytes that it has from CUDA; without an
 * allocator (TWS_ALLOCATOR_AHEAD) they are zeros, and without TWS_REPLAY_ALL `needed` may be the only one. State and
 * buffers of the whole program are allocated first, every other buffer at its first operation in issue order, and freed
 * after its last one. The program runs twice, since blocks that the first step leaves are those that the second one
 * finds. */
tws_code tws_ledger_replay(const tws_plan *plan, const tws_replayed *software, tws_replays replays,
                           tws_allocator_bytes *out, tws_error *err);
/* Reads the ledger of programs that run one after another over one state. Each tier is that of the program with the
 * largest arena in this tier, since the engine allocates an arena of this size. */
tws_code tws_ledger_of_programs(const tws_plan *const *plans, int count, tws_ledger *ledger, tws_error *err);
/* Writes the live bytes by category after each operation as CSV: op,phase,micro_batch,name,<category columns>,total */
tws_code tws_ledger_csv(const tws_plan *plan, tws_tier tier, tws_text *out, tws_error *err);

/* ---- which model, configuration and plan a result belongs to ---- */
typedef struct tws_fingerprint {
  char model[17], configuration[17], plan[17]; /* 16 hexadecimal digits each */
} tws_fingerprint;
/* Computes the fingerprint of the whole job; ignores request->rank and ->max_accumulation. Equal fingerprints mean
 * equal descriptions, so that results of different models, configurations or plans can be distinguished even if they
 * look alike. Names and paths of files do not change a fingerprint; padding of the vocabulary does not change that of
 * the model, and keys without effect do not change that of the configuration. */
tws_code tws_fingerprint_read(const tws_plan_request *request, tws_fingerprint *out, tws_error *err);
/* Computes a hash of the plan of request->rank with two micro-batches, including operands, offsets and arenas. Ranks of
 * a stage with equal hashes take the same time and need the same bytes. */
tws_code tws_fingerprint_shape(const tws_plan_request *request, uint64_t *out, tws_error *err);
/* Adds "fingerprint": {"model": ..., "configuration": ..., "plan": ...}; empty texts are left out. */
void tws_fingerprint_json(const tws_fingerprint *fingerprint, cJSON *object);
uint64_t tws_network_fingerprint(const tws_network *network);

/* ---- time: longest path over the plan ---- */

/* Indices of communication times in reports: an axis of config/axes.def; messages are reported under "pipe".
 * TWS_REPORT_OTHER is for operations without an axis: copies, host work, and kernels on communication streams. */
enum { TWS_REPORT_OTHER = TWS_AXIS_COUNT, TWS_REPORT_COUNT };
const char *tws_report_name(int axis);
int tws_report_of_group(const tws_group *group);

typedef struct tws_path_result {
  double step_s;
  double stream_busy_s[TWS_STREAM_COUNT];
  double phase_s[TWS_PHASE_COUNT]; /* per phase: busy seconds of the compute stream */
  /* exposed_s: seconds of the step in which the compute stream neither computes nor copies. Each of these seconds
   * counts once: in bubble_s if the operation that delays the compute stream is itself waiting for another rank (to
   * reach a message or a collective, or to finish the step), else in axis_exposed_s of that operation. Communication on
   * the compute stream itself is exposed. So exposed_s = bubble_s + the sum of axis_exposed_s. */
  double exposed_s, bubble_s, axis_exposed_s[TWS_REPORT_COUNT];
  /* The seconds of exposed_s that are due to offloading: to host kernels, to copies between device and host, to the
   * disk. */
  double host_exposed_s, copies_exposed_s, disk_exposed_s;
  /* seconds in which the step waits for its samples; no other member includes them (tws_path_load()) */
  double loading_s;
  double
      /* seconds of communication, overlapped or not: sum over operations, without waiting for other ranks */
      axis_busy_s[TWS_REPORT_COUNT];
  /* per collective: seconds from when this rank is ready until the collective ends, summed over operations */
  double collective_s[TWS_COLLECTIVE_COUNT];
  double kernel_s[TWS_KERNEL_COUNT]; /* per kernel: seconds of the device, or of the host if the host is the device */
  double flops;                      /* floating-point operations that this rank executes */
  /* per stream: seconds from the start of the step until the last operation ended that was issued before the last
   * forward kernel. With more micro-batches, this time grows by the same number of seconds on all streams. */
  double passed_s[TWS_STREAM_COUNT];
  const char *bottleneck; /* one sentence, a constant or in `text` */
  char text[256];
} tws_path_result;
typedef struct tws_machine { /* the hardware for which costs of a plan are computed */
  const tws_cluster *cluster;
  const tws_profile *profile;
} tws_machine;
tws_node_mapping tws_machine_mapping(const tws_machine *machine, int ranks);
/* Returns the seconds of one interned work of a plan on a machine. All costs of plans come from this function, those of
 * the simulator too. If the last argument is 1, compute time on a host whose ranks outnumber its cores is multiplied by
 * ranks x threads / cores. Copies between tiers run at the bandwidth of the device's link to its host or of the node's
 * disk (a usual bandwidth if the cluster file gives none), and host kernels of jobs on devices at the bandwidth of the
 * host's memory; the ranks of a node share the disk and the host's memory. */
double tws_plan_work_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch);
/* Returns 1 if the work is a kernel that the host launches on the device. */
static inline int tws_work_is_launched(const tws_work *work) {
  return work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_DEVICE;
}
/* Returns the factor by which launch overhead lengthens kernels that the host launches in host_s and the device runs in
 * device_s. Launches run ahead of execution, so the longer of the two times dominates; but if both are of similar
 * length, long and short kernels alternate and neither time fully overlaps with the other: the time is (device^2.5 +
 * host^2.5)^(1/2.5), with an exponent fitted to half of a group of runs (docs/accuracy.md). If launches do not run
 * ahead (in_turns 1), the two times add up. */
double tws_launch_slowdown(double device_s, double host_s, int in_turns);
/* The slowdown of one rank's kernels by launches on the host, and of its copies by each other. The optimizer phase has
 * a few launches over all parameters, so a kernel that only this phase runs keeps its time. Copies in opposite
 * directions share the link between device and host (tws_copy_rates.both_ways). */
typedef struct tws_launches {
  double factor;                       /* of tws_launch_slowdown() for the forward and backward passes */
  double copies; /* factor on the seconds of copies between device and host; 0: as 1 */
  uint8_t in_passes[TWS_KERNEL_COUNT]; /* 1: a forward or backward pass runs this kernel on the device */
} tws_launches;
tws_launches tws_plan_launches(const tws_plan *plan, const tws_machine *machine);
/* Returns the factor by which a work is lengthened: by launches, if it is a kernel of the passes on the device, or by
 * copies that run the other way, if it is a copy between device and host; otherwise 1. */
double tws_launches_factor(const tws_launches *launches, const tws_work *work);
/* Returns tws_plan_work_seconds(), multiplied by tws_launches_factor(). */
double tws_plan_launched_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch,
                                 const tws_launches *launches);
/* Returns the seconds of a message of the plan to or from the rank `peer`. Ranks of the pipeline stage whose messages
 * leave their node at the same time share its NICs; other traffic on the links is not counted. */
double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine);

/* Computes the time account of one rank's step from the times of its operations, and writes the sentence on its
 * bottleneck. The longest path, the simulator and measured runs all use this function, so that their reports are
 * comparable. `serial`: the rank has one queue for all streams. step_s may be later than the end of the rank's last
 * operation. */
tws_code tws_path_read(const tws_plan *plan, const tws_op_times *times, int serial, double step_s,
                       tws_path_result *result, tws_error *err);

/* The category of work that takes the largest share of a step, and the step's time without it. */
typedef struct tws_bottleneck {
  const char *what, *resource;
  /* seconds of the category, and their share of the step; of communication only the exposed seconds */
  double seconds, share;
  int axis; /* communication: the axis along which ranks wait longest (tws_report_name()); other categories: -1 */
  /* lower bound in seconds of the step if the category took no time: operations that overlap with it on other streams
   * still take their time */
  double without_s;
  const char *next; /* name of the second largest category */
  double next_share;
} tws_bottleneck;
tws_bottleneck tws_path_bottleneck(const tws_path_result *result);

/* tws_path_offloading() returns the seconds of a step that are exposed because of offloading, tws_path_communicating()
 * those that are exposed because of communication. */
double tws_path_offloading(const tws_path_result *result);
double tws_path_communicating(const tws_path_result *result);
/* Returns `seconds` divided by the seconds of the step; 0 if the step takes no time. */
double tws_path_share(const tws_path_result *result, double seconds);
/* Writes the sentence on the bottleneck of an account anew, for callers that changed its numbers. */
void tws_path_judge(tws_path_result *result);

/* Extrapolates an account: adds `more` times the difference between `path` and `fewer` to `path`. `fewer` is the
 * account of a step that is shorter by one round of micro-batches. */
void tws_path_extrapolate(tws_path_result *path, const tws_path_result *fewer, double more);
/* Adds `share` times the account of another program, which runs between steps, to `path`. */
void tws_path_add(tws_path_result *path, const tws_path_result *other, double share);
/* Returns the number of bytes by which the arena grows from the plan's micro-batches to `wanted` micro-batches: only
 * the network's inputs grow. */
uint64_t tws_arena_growth(const tws_plan *plan, int64_t wanted);

tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err);

/* Computes the longest path of a job over the plans of several ranks: plans[i] represents one pipeline stage each, or
 * the plans are those of any set of ranks such that every other rank of the job does the same as one of them. Writes
 * the seconds of the whole step, and the account of each plan's rank to results (may be NULL). */
tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err);

/* ---- stages: what one rank of each pipeline stage holds and does ---- */
typedef struct tws_stage_estimate {
  int stage, rank; /* index of the stage, and its representative rank */
  int layers;      /* number of transformer layers that the stage runs, wholly or partly */
  /* number of elements of the model that the rank holds before ZeRO partitions them among replicas */
  double parameters;
  uint64_t arena_bytes[TWS_TIER_COUNT];
  uint64_t live_bytes;           /* bytes of live buffers on the device, as in tws_ledger_tier */
  tws_allocator_bytes allocator; /* of the device, as in tws_ledger_tier */
  uint64_t loss_bytes;           /* as in tws_ledger */
  tws_path_result path;
} tws_stage_estimate;
double tws_stage_bytes(const tws_stage_estimate *stage); /* returns the bytes of the arenas of all tiers together */
/* Sets all members from a plan except path and loss_bytes; live_bytes becomes the size of the device arena. */
tws_code tws_stage_read(const tws_plan *plan, tws_stage_estimate *stage, tws_error *err);
/* The balance of the stages. Imbalances are the largest value of a stage divided by the mean, of compute time and of
 * device memory; 1 means that all stages are equal. */
typedef struct tws_stage_balance {
  double bubble; /* mean over stages of the share of the step (0 to 1) in which a stage waits for others */
  double compute_imbalance, memory_imbalance;
  int largest; /* index of the (first) stage with the largest device arena */
} tws_stage_balance;
tws_stage_balance tws_stage_compare(const tws_stage_estimate *stages, int count);

/* The estimate of a step. It is computed from plans of as few micro-batches as determine the whole step (plan/fold.h),
 * and is exact for any number of micro-batches. It ignores request->rank, ->max_accumulation and ->use. */
typedef struct tws_estimate {
  tws_ledger ledger;         /* ledger of the pipeline stage with the largest device arena */
  int stage;                 /* index of the stage of `ledger` */
  tws_stage_balance balance; /* without a pipeline: bubble 0 and imbalances 1 */
  double step_s, tokens_per_s;
  /* seconds in which nodes load the step's samples, overlapped with the previous step; 0: the cluster file gives no
   * rate */
  double loading_s;
  double model_flops;   /* floating-point operations of the whole job's step, without recomputation */
  double mfu;           /* model FLOPs per second divided by the dense peak of all devices */
  tws_path_result path; /* account of the stage that waits least, extrapolated to the whole step */
  /* number of micro-batches of the plan from which the ledger was read; ledger.peak_op is an operation of this plan */
  int64_t built;
  int64_t timed; /* number of micro-batches of the longest plans from which times were read */
} tws_estimate;
/* Returns the tokens per second of the job, and writes its MFU, if the step takes `step_s` seconds, such as a simulated
 * time; both are 0 if the step of the estimate or `step_s` is 0. */
double tws_estimate_tokens_per_s(const tws_estimate *estimate, double step_s);
double tws_estimate_mfu(const tws_estimate *estimate, double step_s);
/* Computes a ledger from one plan of the estimate's stage, which may have fewer micro-batches than the `wanted`
 * micro-batches of the step: its bytes are those of the step, its peak operations are operations of this plan. */
tws_code tws_estimate_ledger(const tws_estimate *estimate, const tws_plan *plan, int64_t wanted, tws_ledger *out,
                             tws_error *err);
/* Returns the model FLOPs of the whole job's training step or evaluation: without recomputation, and without gradients
 * that are not needed. */
double tws_model_flops(const tws_plan_request *request);
/* Returns the dense peak of all devices of a job together, in FLOP/s, for the type of its activations; 0: the profile
 * does not contain it. */
double tws_peak_flops(const tws_plan_request *request, const tws_machine *machine);
/* Chooses the ranks whose plans an estimate reads. The caller frees the set, also when the function failed. */
tws_code tws_estimate_ranks(const tws_plan_request *request, const tws_machine *machine, tws_rank_set *out,
                            tws_error *err);
/* Computes the ledger of the rank that has the most bytes alive on its device at the same time. The plans have no
 * layout, so arenas have no fragmentation. */
tws_code tws_estimate_live(const tws_plan_request *request, const tws_machine *machine, tws_ledger *out,
                           tws_error *err);
tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err);
/* Estimates the step of a job as tws_estimate_step() does, and each of its stages. `stages` has room for the size of
 * the "pipe" axis (at least 1), or is NULL: then the ledger's `held` and `reserved` bytes of an allocator, which no
 * verdict needs, are 0. */
tws_code tws_estimate_job(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                          tws_stage_estimate *stages, tws_error *err);
/* Returns the seconds in which the cluster's nodes (samples_per_s each) load the samples of one step, overlapped with
 * the previous step; the step takes at least as long. Returns 0 if the cluster file gives no rate. */
double tws_loading_s(const tws_plan_request *request, const tws_machine *machine);
/* Adds waits_s seconds of waiting for samples to the step of an account; if waits_s <= 0 it changes nothing. */
void tws_path_load(double waits_s, tws_path_result *path);
/* Estimates the time and memory that programs between training steps add to each step. step_s and path are sums over
 * these programs, each multiplied by its number of runs per step; each tier of the ledger is that of the program that
 * needs most; all are zeros if there is no such program. tws_estimate_step() and tws_estimate_job() include the
 * result. */
tws_code tws_estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                              tws_error *err);

#endif
