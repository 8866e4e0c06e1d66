/* Estimates one program of a job. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_PROGRAM_H
#define TWS_ESTIMATORS_PROGRAM_H

#include "estimators/estimators.h"
#include "plan/pipeline_schedule.h"

/* A job as the functions of its estimate read it: a request and a machine, with the sizes of axes and the nodes of
 * ranks, which are derived once. */
typedef struct tws_estimated_job {
  const tws_plan_request *request; /* the request; its rank, max_accumulation and use are ignored */
  const tws_machine *machine;
  int ranks;    /* number of ranks of the whole job */
  int stages;   /* number of pipeline stages */
  int replicas; /* number of ranks along the data axes: ranks along the other axes process the same samples */
  tws_replays replays; /* TWS_REPLAY_NEEDED unless it is set */
  tws_node_mapping mapping;
  tws_pipeline_shape shape;
} tws_estimated_job;
tws_estimated_job tws_estimated_job_of(const tws_plan_request *request, const tws_machine *machine);

/* Estimates step_s, path, ledger and stages of the program that the request names; the totals (tokens_per_s, MFU) stay
 * 0. `stages` has room for job->stages elements, or is NULL. */
tws_code tws_estimate_program(const tws_estimated_job *job, tws_estimate *out, tws_stage_estimate *stages,
                              tws_error *err);

/* Chooses ranks as tws_estimate_ranks() does, for a job whose mapping to nodes may differ from that of its machine. */
tws_code tws_estimate_job_ranks(const tws_estimated_job *job, tws_rank_set *out, tws_error *err);

#endif
