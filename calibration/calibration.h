/* Calibration: chooses which kernels, collectives and copies to measure, starts ranks that measure them, and builds a
 * hardware profile from the measurements. */
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
  double deadline_s;                         /* limit in which some rank has to measure something; 0: none */
  char *activity;                            /* in a rank process: as tws_calibrate_options has it */
  size_t activity_bytes;
  const tws_log *log; /* may be NULL */
} tws_calibration_request;

int tws_calibration_on_gpu(const tws_calibration_request *request);
/* Chooses the numbers of ranks to measure if the caller gave none: on a host 1 to twice the cores, otherwise up to all
 * GPUs. */
void tws_calibration_default_runs(tws_calibration_request *request);

/* Returns the drift of the machine: the spread of the times of one matrix product that is repeated between all other
 * measurements, relative to their median. */
double tws_calibration_drift(const tws_measurements *measured);
/* Measures up to `most` times, until the drift is below TWS_PROFILE_QUIET_DRIFT, and keeps the least disturbed
 * measurement of each sample. *out has the drift of the quietest run. Free it in any case after the call. */
typedef tws_code (*tws_measure)(void *user, tws_measurements *out, tws_error *err);
tws_code tws_calibration_until_quiet(tws_measure measure, void *user, int most, const tws_log *log,
                                     tws_measurements *out, tws_error *err);
enum { TWS_CALIBRATION_REPEATS = 3 };

/* Starts the ranks of each run, one run after another. A run is repeated until the machine was quiet during it, but not
 * with request->seconds. results: one for each run; free them in any case. On a GPU the file request->out is a profile
 * of the measurements so far from the first seconds on, so that an interrupted calibration leaves a usable profile. */
tws_code tws_calibration_run(const tws_calibration_request *request, tws_measurements *results, tws_error *err);
/* Measures in a rank process of such a run. Rank 0 writes the measurements to `path`, on a GPU also while it measures.
 * `program` is the path of the ranks' executable. */
tws_code tws_calibration_rank(const tws_calibration_request *request, const tws_real_api *real, const char *program,
                              const char *path, tws_progress *progress, tws_error *err);

/* Builds a profile from the measurements, with its provenance. If a GPU ran a product more slowly under sustained load
 * than in short bursts, the times of compute-bound kernels of 16-bit types are scaled by the same factor; the
 * provenance states both rates. *spread (may be NULL): the median spread of a sample. */
tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err);

#endif
