/* The autotuning section of ds_config.json, as the verb tune reads it. */
#ifndef TWS_CONFIG_AUTOTUNING_H
#define TWS_CONFIG_AUTOTUNING_H

#include "config/ds_config.h"

/* Not given: 0, NULL; fast: -1. */
typedef struct tws_autotuning {
  int fast;                      /* stage and micro batch alone */
  const char *metric, *tuner;    /* live as long as the configuration */
  int64_t first_step, last_step; /* start_profile_step, end_profile_step */
  int64_t trials, early_stopping;
  int64_t min_micro, max_micro, max_train_batch;
  int64_t list_size;               /* num_tuning_micro_batch_sizes */
  double params, activation_bytes; /* of model_info, which measured them: of one sequence on one GPU */
} tws_autotuning;
tws_autotuning tws_config_autotuning(const tws_config *config);
/* Returns 1 if a line of tws_config_no_effect() is about one of these keys. */
int tws_autotuning_is_read(const char *line);

#endif
