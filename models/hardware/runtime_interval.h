/* Intervals of measured over predicted peak memory of a device, by runtime (runtime_intervals.def). */
#ifndef TWS_MODELS_RUNTIME_INTERVAL_H
#define TWS_MODELS_RUNTIME_INTERVAL_H

#include "models/hardware/runtime.h"

typedef struct tws_memory_interval {
  const char *runtime;
  double low, high; /* nine of ten measured peaks lie between these times the predicted one; both 1: none was seen */
  int runs, groups; /* it comes from */
  const char *of;   /* what software these runs are of */
} tws_memory_interval;

const tws_memory_interval *tws_runtime_memory_interval(const tws_runtime *runtime); /* never NULL */

#endif
