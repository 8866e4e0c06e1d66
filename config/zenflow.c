/* Computes ZenFlow's intervals. With update_interval "auto" the host updates when the accumulated gradients of
 * unselected columns have become as large as those of selected columns. A training measures that
 * (real/late_updates.c); predictions have no gradients, so they assume a usual interval. */
#include "config/ds_config.h"

enum { UPDATES = 4 }; /* "auto": assumed steps per host update */

int64_t tws_zenflow_update_interval(const tws_config *config) {
  return config->zenflow.update_interval > 0 ? config->zenflow.update_interval : UPDATES;
}

int tws_zenflow_measures(const tws_config *config) {
  const tws_zenflow *z = &config->zenflow;
  return z->on && z->update_interval == 0 && z->topk_ratio > 0 && z->topk_ratio < 1;
}

int64_t tws_zenflow_select_steps(const tws_config *config) {
  const tws_zenflow *z = &config->zenflow;
  const int epochs = z->strategy == TWS_ZENFLOW_EPOCH || (z->strategy == TWS_ZENFLOW_AUTO && z->steps_per_epoch > 0);
  int64_t steps = z->select_interval;
  if (!epochs) return steps;
  return __builtin_mul_overflow(steps > 0 ? steps : 1, z->steps_per_epoch, &steps) ? INT64_MAX : steps;
}

int64_t tws_zenflow_select_interval(const tws_config *config) {
  const int64_t updates = tws_zenflow_update_interval(config), steps = tws_zenflow_select_steps(config);
  if (steps == 0) return updates * TWS_ZENFLOW_SELECT_UPDATES;
  if (steps > INT64_MAX - updates) return INT64_MAX / updates * updates;
  /* rounds up to a multiple of the update interval, since an epoch ends with an update of the host */
  return (steps + updates - 1) / updates * updates;
}

int64_t tws_zenflow_warm_up(const tws_config *config) {
  return config->zenflow.warm_up > 1 ? config->zenflow.warm_up : 1;
}
