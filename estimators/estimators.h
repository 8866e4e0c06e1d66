/* Estimators: readers of a plan that answer without running it. */
#ifndef TWS_ESTIMATORS_H
#define TWS_ESTIMATORS_H

#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "plan/plan.h"

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
} tws_ledger;
tws_code tws_ledger_read(const tws_plan *plan, tws_ledger *ledger, tws_error *err);
/* Live bytes by category after each operation, as CSV: op,phase,micro_batch,name,<category columns>,total */
tws_code tws_ledger_csv(const tws_plan *plan, tws_tier tier, tws_text *out, tws_error *err);

/* ---- time: longest path over the plan ---- */
typedef struct tws_path_result {
  double step_s;
  double stream_busy_s[TWS_STREAM_COUNT];
  double phase_s[TWS_PHASE_COUNT]; /* busy time of the compute stream by phase */
  double exposed_s;                /* step time in which the compute stream waits for another stream */
  double collective_s[TWS_COLLECTIVE_COUNT];
  double kernel_s[TWS_KERNEL_COUNT];
  double flops;           /* executed by this rank */
  const char *bottleneck; /* one sentence, static or in the caller's buffer below */
  char text[256];
} tws_path_result;
typedef struct tws_machine { /* what a plan is costed on */
  const tws_cluster *cluster;
  const tws_profile *profile;
} tws_machine;
/* Seconds of one interned work of a plan on a machine: the one place where plan costs come from (also for sim). For a
 * host whose ranks outnumber cores, computing time is stretched by ranks x threads / cores when stretch != 0. */
double tws_plan_work_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch);
/* One operation of a plan that took `seconds`, added to what a result counts (all but step_s and exposed_s), and the
 * sentence on the bottleneck once all is in: shared with the simulator, so that both report alike. */
void tws_path_account(const tws_plan *plan, uint32_t op, double seconds, tws_path_result *result);
void tws_path_judge(tws_path_result *result);
/* Seconds of a message to or from `peer`, alone on its links. */
double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine);
tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err);

/* The same for ranks that differ: plans[i] stands for one pipeline stage each (any set of ranks of a job whose other
 * ranks do the same as one of them). Seconds of the whole step, and of each plan's rank in results (may be NULL); the
 * time a rank waits for others is in exposed_s. */
tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err);

/* Composed estimate for sweeps: real plans of at most three micro-batches, extrapolated over the accumulation steps;
 * of a pipeline, the plans of all stages. */
typedef struct tws_estimate {
  tws_ledger ledger; /* of the pipeline stage whose device arena is largest */
  int stage;         /* that stage */
  double bubble;     /* pipelines: share of the step in which the average stage does not compute */
  double step_s, tokens_per_s;
  double model_flops;   /* of the whole job's step, without recomputation */
  double mfu;           /* against the dense peak of all devices */
  tws_path_result path; /* of the step, extrapolated */
} tws_estimate;
tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err);

/* ---- DeepSpeed-compatible formulas (specification 02 section 1) ---- */
typedef struct tws_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} tws_zero_memory;
tws_zero_memory tws_zero2_memory(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor);
tws_zero_memory tws_zero3_memory(double total_params, double largest_layer_params, int gpus_per_node, int nodes,
                                 int cpu_offload, int cpu_offload_params, int zero_init, double factor);
/* The printed tables, to the letter. */
void tws_zero2_print(double total_params, int gpus_per_node, int nodes, double factor, tws_text *out);
void tws_zero3_print(double total_params, double largest_layer_params, int gpus_per_node, int nodes, double factor,
                     tws_text *out);

#endif
