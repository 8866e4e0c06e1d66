/* Which of several configurations, each measured a few times, is worth measuring again: a race (Maron and Moore, 1994;
 * Birattari, 2002). What cannot be the fastest any more drops out, and the runs that are left go to those that can.
 * Noise is taken to be relative and alike for all: its deviation is that of the logarithms of all runs, taken from
 * absolute deviations so that a disturbed run does not count for many, and differences are judged by Student's t. */
#ifndef TWS_AUTOTUNE_RACE_H
#define TWS_AUTOTUNE_RACE_H

#include "base/status.h"

typedef struct tws_racer {
  const double *run_s; /* of each run: its typical step, or whatever else is to be small; above 0 */
  int runs;            /* 0: takes no part */
} tws_racer;

/* *next: of those that may, with 95 % confidence, be more than one percent faster than the fastest, and that one
 * itself, the one with the fewest runs. Each counts as its lower quartile, because other work on a machine only ever
 * adds. -1 when the race is over: none of the others may, or all of them have `most_runs`, or no noise is known because
 * none was run twice. Fails for want of memory alone. */
tws_code tws_race_next(const tws_racer *racers, int count, int most_runs, int *next, tws_error *err);

#endif
