/* The flops profiler: FLOPs and time of every module of a network, from the operations of the plans. Times are
 * predicted, or those of a trace of a training run. */
#ifndef TWS_ESTIMATORS_FLOPS_PROFILE_H
#define TWS_ESTIMATORS_FLOPS_PROFILE_H

#include "estimators/estimators.h"
#include "estimators/module_tree.h"
#include "traces/timeline.h"

/* One traced step of all ranks. Do not copy: the timeline points into it. */
typedef struct tws_measured_step {
  tws_timeline *timeline;
  double seconds; /* from the start of its first operation to the end of its last */
  const char *streams[TWS_STREAM_COUNT], *phases[TWS_PHASE_COUNT];
} tws_measured_step;
/* Reads a traced step. TWS_INVALID unless the trace belongs to this job: number of ranks, model and plan. Free *out in
 * any case. */
tws_code tws_measured_step_read(const char *path, const tws_plan_request *request, tws_measured_step *out,
                                tws_error *err);
void tws_measured_step_free(tws_measured_step *step);

/* FLOPs and seconds of one rank of a pipeline stage for one micro-batch; step_s: seconds of its optimizer phase. */
typedef struct tws_stage_flops {
  int stage, rank;
  double params;                           /* elements that this rank holds of the model, before ZeRO partitions them */
  double flops, macs;                      /* forward */
  double backward_flops, recomputed_flops; /* as the kernels count them */
  double forward_s, backward_s, step_s;
} tws_stage_flops;

typedef struct tws_flops_profile {
  tws_stage_flops *stages;
  int stage_count, slowest;
  double iteration_s;   /* the whole step, communication and waiting included */
  double replica_flops; /* forward, of all ranks of a replica */
  /* Utilization of the dense peak of a GPU (host: of a rank's threads), mean over the stages: mfu counts the model's
   * forward and backward passes, hfu recomputation too (Chowdhery et al., PaLM, 2022). */
  double mfu, hfu;
  int unknown;           /* operations that are not in the trace */
  tws_module_tree *tree; /* summed */
} tws_flops_profile;
/* Figures of one GPU of the slowest stage: floating-point operations, and operations per second; step_per_s: over a
 * whole step of `micro_batches` micro-batches, including its waits. */
typedef struct tws_flops_rates {
  double backward_flops; /* with what is computed again */
  double forward_per_s, backward_per_s, both_per_s, step_per_s;
} tws_flops_rates;
tws_flops_rates tws_flops_rates_of(const tws_flops_profile *profile, int64_t micro_batches);
/* measured: NULL for predicted times. Free *out in any case after the call. */
tws_code tws_flops_profile_read(const tws_plan_request *request, const tws_machine *machine,
                                const tws_measured_step *measured, tws_flops_profile *out, tws_error *err);
void tws_flops_profile_free(tws_flops_profile *profile);

#endif
