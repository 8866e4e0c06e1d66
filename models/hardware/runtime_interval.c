#include "models/hardware/runtime_interval.h"

static const tws_memory_interval intervals[] = {
#define INTERVAL(line, low_, high_, runs_, groups_, of_) \
  [TWS_MEASURED_##line] = {.low = low_, .high = high_, .runs = runs_, .groups = groups_, .of = of_},
#include "models/hardware/runtime_intervals.def"
#undef INTERVAL
};

const tws_memory_interval *tws_runtime_memory_interval(const tws_runtime *runtime) {
  return &intervals[runtime->measured];
}
