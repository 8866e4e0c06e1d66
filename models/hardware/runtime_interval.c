#include "models/hardware/runtime_interval.h"

#include <string.h>

static const tws_memory_interval intervals[] = {
#define INTERVAL(runtime_, low_, high_, runs_, groups_, of_) \
  {.runtime = runtime_, .low = low_, .high = high_, .runs = runs_, .groups = groups_, .of = of_},
#include "models/hardware/runtime_intervals.def"
#undef INTERVAL
};

const tws_memory_interval *tws_runtime_memory_interval(const tws_runtime *runtime) {
  size_t i = 0;
  while (intervals[i].runtime[0] && strcmp(intervals[i].runtime, runtime->name) != 0) i++;
  return &intervals[i];
}
