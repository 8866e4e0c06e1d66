#include "config/autotuning.h"

#include <string.h>

#include "config/store.h"

static int64_t integer(const tws_config *config, const char *path) {
  const tws_given given = tws_store_at(config->store, path);
  int64_t value = 0;
  if (given.item) tws_json_integer(given.source->json, given.item, &value, NULL);
  return value;
}

tws_autotuning tws_config_autotuning(const tws_config *config) {
  const tws_given fast = tws_store_at(config->store, "autotuning.fast");
  return (tws_autotuning){.fast = fast.item ? tws_given_true(fast) : -1,
                          .metric = tws_given_text(tws_store_at(config->store, "autotuning.metric")),
                          .tuner = tws_given_text(tws_store_at(config->store, "autotuning.tuner_type")),
                          .first_step = integer(config, "autotuning.start_profile_step"),
                          .last_step = integer(config, "autotuning.end_profile_step"),
                          .trials = integer(config, "autotuning.tuner_num_trials"),
                          .early_stopping = integer(config, "autotuning.tuner_early_stopping"),
                          .min_micro = integer(config, "autotuning.min_train_micro_batch_size_per_gpu"),
                          .max_micro = integer(config, "autotuning.max_train_micro_batch_size_per_gpu"),
                          .max_train_batch = integer(config, "autotuning.max_train_batch_size"),
                          .list_size = integer(config, "autotuning.num_tuning_micro_batch_sizes"),
                          .params = (double)integer(config, "autotuning.model_info.num_params"),
                          .activation_bytes = (double)integer(config, "autotuning.model_info.activation_mem_per_gpu")};
}

int tws_autotuning_is_read(const char *line) {
  static const char *const paths[] = {"autotuning.fast", "autotuning.enabled"};
  const size_t length = strlen(line);
  for (int i = 0; i < 2; i++) {
    const char *reason = tws_key_at(paths[i])->reason;
    const size_t end = strlen(reason);
    if (length > end && strcmp(line + length - end, reason) == 0) return 1;
  }
  return 0;
}
