/* Parallel axes of a search space: the divisions of a job's ranks that are tried. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SPACE_AXES_H
#define TWS_AUTOTUNE_SPACE_AXES_H

#include "autotune/autotune.h"

/* The lists of values of the parallel axes, with their defaults filled in. */
typedef struct tws_axes_space {
  const tws_network *network;
  int64_t sequence_length;
  int devices;     /* number of devices of a node */
  int thorough;    /* the value of tws_tune_space.axes */
  int every_stage; /* 1: the user listed ZeRO stages, so that stages that partition nothing are kept */
  int every_batch; /* 1: the user listed accumulation steps, so that pipelines may have fewer micro-batches than
                    * stages */
  int tensor_named, schedules_named;
  int pipeline[TWS_TUNE_LIST], pipeline_count;
  int tensor[TWS_TUNE_LIST], tensor_count;
  int sequence[TWS_TUNE_LIST], sequence_count;
  tws_variant_schedule schedules[TWS_TUNE_SCHEDULES];
  int schedule_count;
  int sequence_parallel[2], sequence_parallel_count;
  int expert[TWS_TUNE_LIST], expert_count;
  double capacity[TWS_TUNE_LIST]; /* values of the capacity factor; 0: the configuration's */
  int capacity_count;
  /* values of tws_variant.exchange */
  int exchange[TWS_EXCHANGE_COUNT][TWS_TUNE_LIST], exchange_count[TWS_EXCHANGE_COUNT];
  int exchange_named[TWS_EXCHANGE_COUNT];
} tws_axes_space;

void tws_axes_fill(const tws_tune_request *request, tws_axes_space *axes);
/* Fails with TWS_UNSUPPORTED or TWS_INVALID if the user listed values that concern experts, and the job's model has no
 * experts, or no layer that supports the values. */
tws_code tws_axes_check_experts(const tws_tune_request *request, tws_error *err);
/* Returns 1 if the model, the batch and the schedule are divisible by the point's degrees of parallelism, and the
 * defaults do not exclude the point. */
int tws_axes_division_legal(const tws_axes_space *axes, const tws_variant *point);
/* Returns 1 if the point's ZeRO stage and exchanges are legal for its division. */
int tws_axes_knobs_legal(const tws_axes_space *axes, const tws_variant *point);
/* If no number of ranks of the list can be divided by any combination of these axes, writes the reason and returns 1;
 * otherwise returns 0. */
int tws_axes_explain(const tws_axes_space *axes, const int *ranks, int count, char *text, size_t size);
#endif
