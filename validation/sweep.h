/* The accuracy experiment: measures many variants of a job in interleaved rounds, and predicts them from a calibration
 * that was measured in the same minutes. */
#ifndef TWS_VALIDATION_SWEEP_H
#define TWS_VALIDATION_SWEEP_H

#include "base/log.h"
#include "calibration/calibration.h"
#include "job/simulate.h"
#include "validation/trial.h"

enum { TWS_SWEEP_POINTS = 64, TWS_SWEEP_ROUNDS = 100, TWS_SWEEP_RANKS = 8 };

typedef struct tws_sweep_request {
  const tws_job_spec *spec; /* specification with which the job was opened and the ranks are started */
  const char *data;
  int64_t ranks[TWS_SWEEP_RANKS]; /* numbers of ranks with which the variants are trained */
  int ranks_count;
  /* steps of a run; rounds of runs; sequences per step, 0: the configuration's value, else 32 */
  int64_t steps, rounds, global_batch;
  const char *save_profile; /* file for the calibrated profile, or NULL */
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
  tws_job *job; /* open; the profile that was calibrated is set in it if spec->profile is NULL */
  tws_sweep_point points[TWS_SWEEP_POINTS];
  int count;
  int64_t runs[TWS_CALIBRATION_RUNS]; /* numbers of ranks to calibrate with */
  int run_count;
  tws_measurements (*rounds)[TWS_CALIBRATION_RUNS]; /* [round][run] */
  double calibration_spread;
  /* relative errors of the predicted steps, and relative spread of the measured ones, over all points */
  double median_error, worst_error, median_spread;
  const tws_sweep_point *pick, *best; /* the point that is predicted to be the fastest, and the fastest measured one */
  double pick_share;                  /* measured throughput of `pick` divided by that of `best` */
} tws_sweep;

/* Chooses the points: every ZeRO stage, a small and a large micro-batch, and some recomputation, which are fourteen
 * points for three numbers of ranks. Fails with TWS_INVALID if no point has a plan. *out must not be copied; the caller
 * frees it with tws_sweep_free(), after an error too. */
tws_code tws_sweep_open(const tws_sweep_request *request, tws_job *job, tws_sweep *out, tws_error *err);
tws_code tws_sweep_run(tws_sweep *sweep, tws_error *err);
void tws_sweep_free(tws_sweep *sweep);
double tws_sweep_error(const tws_sweep_point *point); /* returns the relative error of the simulated step */

#endif
