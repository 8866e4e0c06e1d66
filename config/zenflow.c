/* Computes ZenFlow's intervals. DeepSpeed determines some of them during training: with "auto" the host updates when
 * the accumulated gradients of unselected columns have become as large as those of selected columns, and DeepSpeed's
 * data loader counts epochs. A static plan needs fixed intervals. */
#include "config/ds_config.h"

enum { UPDATES = 4, SELECTS = 4 }; /* "auto": steps per host update, updates per selection */

int64_t tws_zenflow_update_interval(const tws_config *config) {
  return config->zenflow.update_interval > 0 ? config->zenflow.update_interval : UPDATES;
}

int64_t tws_zenflow_select_interval(const tws_config *config) {
  const tws_zenflow *z = &config->zenflow;
  const int64_t updates = tws_zenflow_update_interval(config);
  const int epochs = z->strategy == TWS_ZENFLOW_EPOCH || (z->strategy == TWS_ZENFLOW_AUTO && z->steps_per_epoch > 0);
  int64_t steps = z->select_interval;
  if (!epochs) return steps > 0 ? steps : updates * SELECTS;
  if (__builtin_mul_overflow(steps > 0 ? steps : 1, z->steps_per_epoch, &steps) || steps > INT64_MAX - updates)
    return INT64_MAX / updates * updates;
  /* rounds up to a multiple of the update interval, since an epoch ends with an update of the host */
  return (steps + updates - 1) / updates * updates;
}

int64_t tws_zenflow_warm_up(const tws_config *config) {
  return config->zenflow.warm_up > 1 ? config->zenflow.warm_up : 1;
}
