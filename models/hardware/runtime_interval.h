/* Returns, for each runtime, the interval that contains nine of ten measured peaks of device memory, relative to the
 * predicted peaks (runtime_intervals.def). */
#ifndef TWS_MODELS_RUNTIME_INTERVAL_H
#define TWS_MODELS_RUNTIME_INTERVAL_H

#include "models/hardware/runtime.h"

typedef struct tws_memory_interval {
  /* nine of ten measured peaks lie between low and high times the predicted peak; both 1: no run was compared */
  double low, high;
  /* numbers of measured runs, and of groups that published them, from which the interval was computed */
  int runs, groups;
  const char *of; /* the software that these runs used */
} tws_memory_interval;

const tws_memory_interval *tws_runtime_memory_interval(const tws_runtime *runtime); /* never NULL */

#endif
