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
  int64_t runs[TWS_CALIBRATION_RUNS]; /* number of ranks of each run */
  int run_count, cores, quick;
  /* a model, its micro-batch sizes ("1,2,4") and compute type: the shapes of its kernels are measured in addition;
   * NULL: none */
  const char *model, *micro_batches, *dtype;
  int64_t sequence, threads; /* tokens of a sequence, 0: the model's; threads of a rank, 0: one for each core */
  double seconds;            /* seconds that all runs together may take; 0: `quick` determines them */
  const char *device;        /* "host" (or NULL) or "cuda" */
  double largest;            /* largest size of a kernel's operands, bytes; 0: the device's memory determines them */
  const char *out;           /* path of the profile that is written while a GPU is measured; NULL: none */
  int quiet;                 /* 1: ranks show no progress */
  double deadline_s;         /* seconds within which at least one rank has to make progress; 0: no limit */
  char *activity;            /* in a rank process: the buffer tws_calibrate_options.activity */
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
/* Measures up to `most` times, until a measurement has a drift of at most TWS_PROFILE_QUIET_DRIFT. Writes the fastest
 * time of each sample to *out, with the drift of the quietest measurement. The caller frees *out, also after an
 * error. */
typedef tws_code (*tws_measure)(void *user, tws_measurements *out, tws_error *err);
tws_code tws_calibration_repeat(tws_measure measure, void *user, int most, const tws_log *log, tws_measurements *out,
                                tws_error *err);
enum { TWS_CALIBRATION_REPEATS = 3 };

/* Starts the ranks of each run, one run after another. A run is repeated, at most TWS_CALIBRATION_REPEATS times, until
 * the machine was undisturbed during it; it is not repeated if request->seconds limits the time. results: the
 * measurements of each run; the caller frees them, also after an error. On a GPU the file request->out is a profile of
 * the measurements so far from the first seconds on, so that an interrupted calibration leaves a usable profile. */
tws_code tws_calibration_run(const tws_calibration_request *request, tws_measurements *results, tws_error *err);
/* Measures in a process that tws_calibration_run() has started. Rank 0 writes the measurements to `path`, on a GPU
 * repeatedly while it measures. `program` is the path of the ranks' executable. */
tws_code tws_calibration_rank(const tws_calibration_request *request, const tws_real_api *real, const char *program,
                              const char *path, tws_progress *progress, tws_error *err);

/* Builds a profile from the measurements, with a description of their origin. If a GPU ran a product more slowly under
 * sustained load than in short bursts, the times of compute-bound kernels of 16-bit types are scaled by the same
 * factor; the description states both rates. *spread (may be NULL): the median over the samples of their relative
 * spread. */
tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err);

#endif
