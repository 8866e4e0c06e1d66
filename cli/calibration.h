/* Calibration as other verbs use it: which runs, and a profile of what they measured. */
#ifndef TWS_CLI_CALIBRATION_H
#define TWS_CLI_CALIBRATION_H

#include "cli/cli.h"
#include "traces/measurements.h"

enum { TWS_CALIBRATION_RUNS = 16 };

typedef struct tws_calibration_plan {
  int64_t runs[TWS_CALIBRATION_RUNS]; /* numbers of ranks */
  int run_count, cores, quick;
  const char *model, *micro_batches, *dtype; /* further shapes: NULL for none */
  int64_t sequence, threads;                 /* 0: the model's; all cores */
  double seconds;                            /* of all runs together; 0: by `quick` */
  const char *device;                        /* "host" (NULL, too) or "cuda" */
  double largest;                            /* bytes of a kernel's operands; 0: by the device */
} tws_calibration_plan;

/* results: one for each run; free them in any case. */
tws_code tws_calibration_run(const tws_cli *cli, const tws_calibration_plan *plan, tws_measurements *results,
                             tws_error *err);
tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err);

/* "1,2,4": integers between low and high, without repetition. TWS_USAGE names `what`. */
tws_code tws_parse_list(const char *text, const char *what, int64_t low, int64_t high, int64_t *values, int capacity,
                        int *count, tws_error *err);

#endif
