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

static int at_least_one(int64_t count) {
  return count > 1 ? (int)count : 1;
}

tws_division tws_config_division(const tws_config *config) {
  return (tws_division){.pipeline = at_least_one(config->pipeline_stages),
                        .tensor = at_least_one(config->tensor_ranks),
                        .sequence = at_least_one(config->sequence_ranks),
                        .virtual_stages = at_least_one(config->virtual_stages)};
}

int64_t tws_config_model_ranks(const tws_config *config) {
  tws_division d = tws_config_division(config);
  return (int64_t)d.pipeline * d.tensor * d.sequence;
}

int64_t tws_config_vocabulary_multiple(const tws_config *config) {
  int64_t pad = at_least_one(config->vocabulary_multiple), ranks = tws_config_division(config).tensor;
  int64_t a = pad, b = ranks;
  while (b) { /* Euclid */
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return pad / a * ranks;
}

typedef struct axis {
  const char *path;
  int64_t ranks;
} axis;

/* The one of the two keys that the number of tensor ranks is from. */
static const char *tensor_path(const struct tws_config_store *store) {
  static const char *const paths[] = {"tensor_parallel.autotp_size", "tensor_parallel.tensor_parallel.tp_size"};
  return paths[store && !tws_store_at(store, paths[0]).item && tws_store_at(store, paths[1]).item];
}

/* What would divide: numbers of ranks, and sizes of the axis when it is the only one (NULL: it is not). */
static void nearest(int64_t model, int64_t ranks, const axis *only, char *hint, size_t size) {
  int64_t below = ranks - ranks % model, smaller = model < ranks ? model : ranks, larger = model + 1;
  int used = below ? snprintf(hint, size, "use %lld or %lld ranks", (long long)below, (long long)(below + model))
                   : snprintf(hint, size, "use %lld ranks", (long long)model);
  if (!only) {
    snprintf(hint + used, size - (size_t)used, ", or another multiple of %lld", (long long)model);
    return;
  }
  while (ranks % smaller) smaller--;
  while (larger <= ranks && ranks % larger) larger++;
  used += snprintf(hint + used, size - (size_t)used, ", or %s %lld", only->path, (long long)smaller);
  if (larger <= ranks) snprintf(hint + used, size - (size_t)used, " or %lld", (long long)larger);
}

/* A configuration made by hand has no place to name. */
static tws_code refuse(const tws_config *config, tws_given place, tws_error *err, const char *hint,
                       const char *message) {
  if (!config->store) return tws_fail(err, TWS_INVALID, hint, "%s", message);
  return tws_store_fail(config->store, place, TWS_INVALID, err, hint, "%s", message);
}

tws_code tws_config_replicas(const tws_config *config, int64_t ranks, int64_t *replicas, tws_error *err) {
  const struct tws_config_store *store = config->store;
  const axis axes[] = {{"pipeline.stages", config->pipeline_stages},
                       {tensor_path(store), config->tensor_ranks},
                       {"sequence_parallel_size", config->sequence_ranks}};
  int64_t model = tws_config_model_ranks(config);
  *replicas = ranks / model;
  if (ranks > 0 && ranks % model == 0) return TWS_OK;
  tws_given place = {NULL, store ? store->origin : NULL};
  char text[256] = "", hint[192];
  size_t used = 0;
  int factors = 0;
  const axis *last = NULL;
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
    if (axes[i].ranks < 2) continue;
    if (!place.item && store) place = tws_store_at(store, axes[i].path);
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %lld", factors++ ? " x " : "", axes[i].path,
                             (long long)axes[i].ranks);
    last = &axes[i];
  }
  if (ranks < 1) {
    snprintf(text, sizeof text, "%lld ranks: at least one is needed", (long long)ranks);
    return refuse(config, place, err, NULL, text);
  }
  if (factors > 1) used += (size_t)snprintf(text + used, sizeof text - used, " = %lld", (long long)model);
  snprintf(text + used, sizeof text - used, " %s not divide %lld rank%s", factors > 1 ? "do" : "does", (long long)ranks,
           ranks == 1 ? "" : "s");
  nearest(model, ranks, factors > 1 ? NULL : last, hint, sizeof hint);
  return refuse(config, place, err, hint, text);
}
