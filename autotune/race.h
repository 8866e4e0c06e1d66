/* Decides which of several configurations, each measured a few times, is measured again: a racing algorithm (Maron and
 * Moore, 1994; Birattari, 2002). A configuration that can no longer be the fastest is eliminated, and the remaining
 * runs are given to the others. The noise is assumed to be relative and the same for all: its standard deviation is
 * estimated from the logarithms of all runs by absolute deviations, so that an outlier has little weight, and
 * differences are judged by Student's t. */
#ifndef TWS_AUTOTUNE_RACE_H
#define TWS_AUTOTUNE_RACE_H

#include "base/status.h"

typedef struct tws_race_entry {
  const double *run_s; /* the typical step of each run in seconds, or another figure to minimize; above 0 */
  int runs;            /* number of runs; 0: the configuration is not in the race */
} tws_race_entry;

/* Sets *next to the index of the configuration with the fewest runs among the fastest one and those that may be, with
 * 95 % confidence, more than one percent faster. Each configuration is represented by the lower quartile of its runs,
 * because other load on a machine only adds time. *next is -1 if the race is over: no other configuration may be
 * faster, all of these have `most_runs` runs, or the noise is unknown because no configuration was run twice. Fails
 * only if memory is exhausted. */
tws_code tws_race_next(const tws_race_entry *racers, int count, int most_runs, int *next, tws_error *err);

#endif
