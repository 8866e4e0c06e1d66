/* Simulation of a job's step from the plans of its ranks. */
#ifndef TWS_JOB_SIMULATE_H
#define TWS_JOB_SIMULATE_H

#include "communication/comm_log.h"
#include "job/job.h"
#include "sim/sim.h"

typedef struct tws_simulation_request {
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  /* All ranks are simulated if there are at most every_up_to of them, as for hosts, whose ranks share cores. Otherwise
   * only representative ranks are, since their devices run the same operations at the same time. */
  int every_up_to;
  int most_plans;         /* largest number of plans to simulate; more fail with TWS_UNSUPPORTED; 0: no limit */
  tws_timeline *timeline; /* filled with events and the job's names if not NULL */
  tws_progress *progress; /* receives the progress of the simulation; NULL: progress is not reported */
  const tws_comm_filter *communication; /* operations of the communication log; NULL: there is no log */
  /* perturbations of the simulation; NULL: none; otherwise all ranks and all micro-batches are simulated */
  const tws_sim_effects *effects;
} tws_simulation_request;
enum { TWS_SIMULATED_HOST_RANKS = 64 };
/* Returns 1 for jobs on a host with at most TWS_SIMULATED_HOST_RANKS ranks. */
int tws_job_simulates_every(const tws_job *job);

typedef struct tws_simulation {
  tws_sim_result result;
  tws_plan **plans; /* plans of the simulated ranks; those of a long step have only a few micro-batches (plan/fold.h) */
  int plan_count;
  tws_path_result *paths;      /* time accounts of the simulated ranks for the whole step */
  tws_path_result *all_paths;  /* the allocation that contains `paths`, which is freed with the simulation */
  double wall_s;               /* wall time of the simulation */
  tws_comm_log *communication; /* communication log of the whole step; NULL: it was not requested */
} tws_simulation;
/* Simulates a step. Of a step with many micro-batches only few are simulated, and the rest is extrapolated
 * (plan/fold.h), unless a timeline, a communication log or the effect of each resource on the step is requested. The
 * caller frees *out, also after an error. */
tws_code tws_job_simulate(const tws_job *job, const tws_simulation_request *request, tws_simulation *out,
                          tws_error *err);
void tws_simulation_free(tws_simulation *simulation);
/* Simulates a step and returns only its seconds. */
tws_code tws_job_simulated_step(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity, double *step_s,
                                tws_error *err);
/* Reads, for each stage, the simulated rank that needs the most memory; stages has room for tws_job_stages(). */
tws_code tws_simulation_stages(const tws_job *job, const tws_simulation *simulation, tws_stage_estimate *stages,
                               tws_stage_balance *balance, tws_error *err);

const char *tws_fidelity_name(tws_fidelity fidelity);
/* Sets *fidelity to the one of that name; NULL: analytic. Fails with TWS_USAGE for an unknown name. */
tws_code tws_fidelity_parse(const char *name, tws_fidelity *fidelity, tws_error *err);

#endif
