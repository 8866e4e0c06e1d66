/* The accuracy experiment: many variants of a job, measured in interleaved rounds and predicted from a calibration of
 * the same minutes. */
#ifndef TWS_VALIDATION_SWEEP_H
#define TWS_VALIDATION_SWEEP_H

#include "base/log.h"
#include "calibration/calibration.h"
#include "job/simulate.h"
#include "validation/trial.h"

enum { TWS_SWEEP_POINTS = 64, TWS_SWEEP_ROUNDS = 100, TWS_SWEEP_RANKS = 8 };

typedef struct tws_sweep_request {
  const tws_job_spec *spec; /* the job was opened with it, and the ranks are started with it */
  const char *data;
  int64_t ranks[TWS_SWEEP_RANKS]; /* to train with */
  int ranks_count;
  int64_t steps, rounds, global_batch; /* global_batch 0: the configuration's, else 32 */
  const char *save_profile;            /* file for the calibrated profile, or NULL */
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  const tws_log *log;     /* may be NULL */
  tws_progress *progress; /* may be NULL */
} tws_sweep_request;

typedef struct tws_sweep_point {
  tws_variant variant;
  char name[TWS_VARIANT_NAME];
  tws_trial trial;
  double measured_s, low_s, high_s, simulated_s, estimated_s;
} tws_sweep_point;

typedef struct tws_sweep {
  const tws_sweep_request *request;
  tws_job *job; /* open; without spec->profile it gets the profile that was calibrated */
  tws_sweep_point points[TWS_SWEEP_POINTS];
  int count;
  int64_t runs[TWS_CALIBRATION_RUNS]; /* numbers of ranks to calibrate with */
  int run_count;
  tws_measurements (*rounds)[TWS_CALIBRATION_RUNS]; /* [round][run] */
  double calibration_spread;
  /* relative errors and spread over all points */
  double median_error, worst_error, median_spread;
  const tws_sweep_point *pick, *best; /* fastest predicted, fastest measured */
  double pick_share;                  /* pick's measured throughput over the best's */
} tws_sweep;

/* Chooses the points: every ZeRO stage, a small and a large micro-batch, some recomputation; fourteen points for three
 * rank counts. TWS_INVALID when no point has a plan. *out must not be copied; free it in any case after the call. */
tws_code tws_sweep_open(const tws_sweep_request *request, tws_job *job, tws_sweep *out, tws_error *err);
tws_code tws_sweep_run(tws_sweep *sweep, tws_error *err);
void tws_sweep_free(tws_sweep *sweep);
double tws_sweep_error(const tws_sweep_point *point); /* relative, of the step's time */

#endif
