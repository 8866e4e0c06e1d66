/* The autotuning section of ds_config.json, which the verb `tune` reads. */
#ifndef TWS_CONFIG_AUTOTUNING_H
#define TWS_CONFIG_AUTOTUNING_H

#include "config/ds_config.h"

/* Values of the section. A member is 0 or NULL if its key is not given, except `fast`, which is then -1. */
typedef struct tws_autotuning {
  int fast;                      /* 1: only the ZeRO stage and the micro batch are tuned */
  const char *metric, *tuner;    /* strings that live as long as the configuration */
  int64_t first_step, last_step; /* the keys start_profile_step and end_profile_step */
  int64_t trials, early_stopping;
  int64_t min_micro, max_micro, max_train_batch;
  int64_t list_size;               /* the key num_tuning_micro_batch_sizes */
  double params, activation_bytes; /* model_info: number of parameters; bytes of one sequence on one GPU */
} tws_autotuning;
tws_autotuning tws_config_autotuning(const tws_config *config);
/* Returns 1 if a line that tws_config_no_effect() wrote is about a key of the autotuning section that `tune` reads. */
int tws_autotuning_is_read(const char *line);

#endif
