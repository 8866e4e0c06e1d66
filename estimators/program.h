/* The estimate of one program of a job: private to this folder. */
#ifndef TWS_ESTIMATORS_PROGRAM_H
#define TWS_ESTIMATORS_PROGRAM_H

#include "estimators/estimators.h"
#include "plan/pipeline_schedule.h"

/* A job as every part of its estimate reads it: sizes of axes and the nodes of ranks are derived once, here. */
typedef struct tws_estimated_job {
  const tws_plan_request *request; /* rank, max_accumulation and use are ignored */
  const tws_machine *machine;
  int ranks;    /* of the whole job */
  int stages;   /* ranks along the pipeline axis */
  int replicas; /* ranks along the data axes: ranks along the others process the same samples */
  tws_node_mapping mapping;
  tws_pipeline_shape shape;
} tws_estimated_job;
tws_estimated_job tws_estimated_job_of(const tws_plan_request *request, const tws_machine *machine);

/* Estimates step_s, path, ledger and stages of the program that the request names; totals (tokens_per_s, MFU) are left
 * zero. stages has room for job->stages, or is NULL. */
tws_code tws_estimate_program(const tws_estimated_job *job, tws_estimate *out, tws_stage_estimate *stages,
                              tws_error *err);

/* tws_estimate_ranks(), of a job whose mapping to nodes may be another than its machine's. */
tws_code tws_estimate_job_ranks(const tws_estimated_job *job, tws_rank_set *out, tws_error *err);

#endif
