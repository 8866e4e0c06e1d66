/* Calibration: what to measure, runs of ranks that measure it, and a profile of what they measured. */
#ifndef TWS_CALIBRATION_CALIBRATION_H
#define TWS_CALIBRATION_CALIBRATION_H

#include "base/log.h"
#include "models/hardware/profile_build.h"
#include "real/real.h"
#include "traces/measurements.h"

enum { TWS_CALIBRATION_RUNS = 16 };

typedef struct tws_calibration_request {
  int64_t runs[TWS_CALIBRATION_RUNS]; /* numbers of ranks */
  int run_count, cores, quick;
  const char *model, *micro_batches, *dtype; /* further shapes: NULL for none; micro_batches: "1,2,4" */
  int64_t sequence, threads;                 /* 0: the model's; all cores */
  double seconds;                            /* of all runs together; 0: by `quick` */
  const char *device;                        /* "host" (NULL, too) or "cuda" */
  double largest;                            /* bytes of a kernel's operands; 0: by the device */
  const char *out;                           /* profile that is written as a GPU is measured; NULL: none */
  int quiet;                                 /* ranks show no progress */
  double deadline_s;                         /* of ranks of which none measures anything; 0: none */
  char *activity;                            /* inside a rank: see tws_calibrate_options */
  size_t activity_bytes;
  const tws_log *log; /* may be NULL */
} tws_calibration_request;

int tws_calibration_on_gpu(const tws_calibration_request *request);
/* Chooses the numbers of ranks to measure if the caller gave none: on a host 1 to twice the cores, otherwise up to all
 * GPUs. */
void tws_calibration_default_runs(tws_calibration_request *request);

/* Returns the drift: by how much the times of the product that is repeated between all others varied, relative to their
 * median. */
double tws_calibration_drift(const tws_measurements *measured);
/* Measures again, `most` times at most, until the machine was quiet (TWS_PROFILE_QUIET_DRIFT), and keeps of each sample
 * the least disturbed measurement. *out has the drift of the quietest run. Free it in any case after the call. */
typedef tws_code (*tws_measure)(void *user, tws_measurements *out, tws_error *err);
tws_code tws_calibration_until_quiet(tws_measure measure, void *user, int most, const tws_log *log,
                                     tws_measurements *out, tws_error *err);
enum { TWS_CALIBRATION_REPEATS = 3 };

/* Starts ranks for each run, one after another, until each was quiet or, with request->seconds, once. results: one for
 * each run; free them in any case. On a GPU the profile request->out has, at any time from some seconds on, what was
 * measured until then: a run that is ended leaves it. */
tws_code tws_calibration_run(const tws_calibration_request *request, tws_measurements *results, tws_error *err);
/* Inside such a rank: measures, and rank 0 writes what was measured to `path`, on a GPU also so far. `program` is that
 * of the ranks. */
tws_code tws_calibration_rank(const tws_calibration_request *request, const tws_real_api *real, const char *program,
                              const char *path, tws_progress *progress, tws_error *err);

/* A profile of what was measured, with its provenance. Where a GPU did a product more slowly without a rest than in
 * short measurements, kernels of 16-bit types that arithmetic bounds at these rates take as much longer; the provenance
 * has both rates. *spread (may be NULL): the median spread of a sample. */
tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err);

#endif
