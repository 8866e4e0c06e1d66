/* Measurements of one calibration run with one number of ranks: samples with their spread. `twinspeed calibrate`
 * starts such a run for each number of ranks and builds one hardware profile from all of them. File: JSON, "schema":
 * "twinspeed-measurements-1". */
#ifndef TWS_TRACES_MEASUREMENTS_H
#define TWS_TRACES_MEASUREMENTS_H

#include "base/json.h"
#include "base/memory.h"
#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "models/kernel.h"

typedef struct tws_kernel_sample {
  tws_work work;
  int threads, busy; /* busy: number of ranks that executed the work at the same time */
  double reread_bytes; /* bytes after which the weight was read again; 0: more than caches hold */
  double seconds;    /* seconds of one execution: the lower quartile of the repetitions, as other load only lengthens
                      * them */
  double spread;     /* interquartile range of the repetitions divided by their median */
} tws_kernel_sample;

typedef struct tws_collective_sample {
  tws_collective collective;
  int ranks;
  double bytes, seconds, spread;
} tws_collective_sample;

typedef struct tws_p2p_sample {
  double bytes, seconds;
} tws_p2p_sample;

/* A note for people, which is copied to the profile's details. */
typedef struct tws_measured_note {
  char key[64], text[320];
} tws_measured_note;

typedef struct tws_measurements {
  int world, cores;
  char device[96];     /* name of the GPU; "": the host was measured */
  double device_bytes; /* memory of the GPU, bytes */
  /* copies between GPUs and pinned memory, of all ranks together while all of them copy; 0: not measured */
  tws_copy_rates copies;
  int shared_device;   /* 1: ranks had to share a GPU, so times of collectives are meaningless */
  tws_pass_costs passes; /* of a host's lone rank; members are 0 if they were not measured */
  double elapsed_s;
  double overhead_bytes; /* resident memory of a rank before it allocates anything for the job, bytes */
  char description[256]; /* versions of libraries; for a GPU also driver and clocks */
  /* one matrix product, repeated throughout the run: shortest, median and longest seconds */
  double reference_min_s, reference_s, reference_max_s;
  /* sustained load of a GPU: the same product repeated without a pause, and the seconds of one run of it after
   * sustained_for_s seconds; 0: not measured */
  double reference_flops, sustained_reference_s, sustained_for_s;
  tws_kernel_sample *kernels;
  tws_collective_sample *collectives;
  tws_p2p_sample *messages;
  tws_measured_note *notes;
  size_t kernel_count, kernel_capacity, collective_count, collective_capacity, message_count, message_capacity,
      note_count, note_capacity;
} tws_measurements;

void tws_measurements_free(tws_measurements *m); /* frees the arrays, and zeroes the struct */
tws_code tws_measurements_add_kernel(tws_measurements *m, const tws_kernel_sample *sample, tws_error *err);
tws_code tws_measurements_add_collective(tws_measurements *m, const tws_collective_sample *sample, tws_error *err);
tws_code tws_measurements_add_message(tws_measurements *m, const tws_p2p_sample *sample, tws_error *err);

tws_code tws_measurements_add_note(tws_measurements *m, const char *key, const char *text, tws_error *err);

tws_code tws_measurements_write(const tws_measurements *m, const char *path, tws_error *err);
tws_code tws_measurements_read(const char *path, tws_measurements *m, tws_error *err); /* *m is overwritten */

/* Combines several runs of the same kind (same ranks, same kernels in the same order): takes the minimum of each
 * sample, and the maximum of each rate of copies. The caller frees *out. Fails with TWS_INVALID if the runs differ. */
tws_code tws_measurements_combine(const tws_measurements *const *runs, int count, tws_measurements *out,
                                  tws_error *err);

/* Return statistics of n > 0 values, which are sorted in place: the median; the lower quartile; the interquartile range
 * divided by the median. */
double tws_sample_median(double *values, size_t n);
double tws_sample_low(double *values, size_t n);    /* lower quartile */
double tws_sample_spread(double *values, size_t n); /* interquartile range / median */

#endif
