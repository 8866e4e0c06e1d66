/* How ranks are shared among pipeline stages, replicas, sequence and tensor parallelism. */
#include <stdio.h>
#include <string.h>

#include "config/store.h"

const char *const tws_axis_orders[TWS_AXIS_ORDERS] = {
    "pipe,data,sequence,model", "pipe,data,model,sequence", "pipe,sequence,data,model", "pipe,sequence,model,data",
    "pipe,model,data,sequence", "pipe,model,sequence,data", "data,pipe,sequence,model", "data,pipe,model,sequence",
    "data,sequence,pipe,model", "data,sequence,model,pipe", "data,model,pipe,sequence", "data,model,sequence,pipe",
    "sequence,pipe,data,model", "sequence,pipe,model,data", "sequence,data,pipe,model", "sequence,data,model,pipe",
    "sequence,model,pipe,data", "sequence,model,data,pipe", "model,pipe,data,sequence", "model,pipe,sequence,data",
    "model,data,pipe,sequence", "model,data,sequence,pipe", "model,sequence,pipe,data", "model,sequence,data,pipe"};

const char *tws_axis_order(const char *text) {
  for (int i = 0; text && i < TWS_AXIS_ORDERS; i++)
    if (strcmp(tws_axis_orders[i], text) == 0) return tws_axis_orders[i];
  return NULL;
}

static int64_t at_least_one(int64_t ranks) {
  return ranks > 1 ? ranks : 1;
}

int64_t tws_config_model_ranks(const tws_config *config) {
  return at_least_one(config->pipeline_stages) * at_least_one(config->tensor_ranks) *
         at_least_one(config->sequence_ranks);
}

int64_t tws_config_vocabulary_multiple(const tws_config *config) {
  int64_t pad = at_least_one(config->vocabulary_multiple), ranks = at_least_one(config->tensor_ranks);
  int64_t a = pad, b = ranks;
  while (b) { /* Euclid */
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return pad / a * ranks;
}

/* The one of the two keys that the number of tensor ranks is from. */
static const char *tensor_path(const struct tws_config_store *store) {
  static const char *const paths[] = {"tensor_parallel.autotp_size", "tensor_parallel.tensor_parallel.tp_size"};
  return paths[!tws_store_at(store, paths[0]).item && tws_store_at(store, paths[1]).item];
}

tws_code tws_config_replicas(const tws_config *config, int64_t ranks, int64_t *replicas, tws_error *err) {
  const struct {
    const char *path;
    int64_t ranks;
  } axes[] = {{"pipeline.stages", config->pipeline_stages},
              {tensor_path(config->store), config->tensor_ranks},
              {"sequence_parallel_size", config->sequence_ranks}};
  int64_t model = tws_config_model_ranks(config);
  *replicas = ranks / model;
  if (ranks > 0 && ranks % model == 0) return TWS_OK;
  tws_given place = {NULL, config->store->origin};
  char product[160] = "", hint[96];
  int used = 0, factors = 0;
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
    if (axes[i].ranks < 2) continue;
    if (!place.item) place = tws_store_at(config->store, axes[i].path);
    used += snprintf(product + used, sizeof product - (size_t)used, "%s%s %lld", factors ? " x " : "", axes[i].path,
                     (long long)axes[i].ranks);
    factors++;
  }
  if (factors > 1) snprintf(product + used, sizeof product - (size_t)used, " = %lld", (long long)model);
  if (ranks < 1)
    return tws_store_fail(config->store, place, TWS_INVALID, err, NULL, "%lld ranks: at least one is needed",
                          (long long)ranks);
  if (ranks < model)
    snprintf(hint, sizeof hint, "use %lld ranks, or a multiple of them", (long long)model);
  else
    snprintf(hint, sizeof hint, "use %lld or %lld ranks, or another multiple of %lld",
             (long long)(ranks - ranks % model), (long long)(ranks - ranks % model + model), (long long)model);
  return tws_store_fail(config->store, place, TWS_INVALID, err, hint, "%s %s not divide %lld rank%s", product,
                        factors > 1 ? "do" : "does", (long long)ranks, ranks == 1 ? "" : "s");
}
