/* Computes the numbers of ranks along the axes: pipeline stages, replicas, sequence and tensor parallelism. */
#include <stdio.h>
#include <string.h>

#include "config/store.h"

#define NO_FIELD SIZE_MAX

static int at_least_one(int64_t count) {
  return count > 1 ? (int)count : 1;
}

tws_division tws_config_division(const tws_config *config) {
  return (tws_division){.pipeline = at_least_one(config->pipeline_stages),
                        .tensor = at_least_one(config->tensor_ranks),
                        .sequence = at_least_one(config->sequence_ranks),
                        .virtual_stages = at_least_one(config->virtual_stages)};
}

/* For each axis, the field of tws_config with the axis's number of ranks, and the key of the field. */
static const struct {
  size_t field; /* offset in tws_config; NO_FIELD: not given by a key */
  const char *key;
} sources[TWS_AXIS_COUNT] = {
#define FIELD(name) offsetof(tws_config, name)
#define REST NO_FIELD
#define NONE NO_FIELD
#define AXIS(id, name, parent, divides, channel, report, ordered, ranks, key) [TWS_AXIS_##id] = {ranks, key},
#include "config/axes.def"
#undef AXIS
#undef NONE
#undef REST
#undef FIELD
};

int tws_config_axis_ranks(const tws_config *config, tws_axis axis) {
  if (sources[axis].field == NO_FIELD) return 1;
  int64_t ranks;
  memcpy(&ranks, (const char *)config + sources[axis].field, sizeof ranks);
  return at_least_one(ranks);
}

int tws_config_two_steps(const tws_config *config) {
  return config->expert_node_ranks > 1 && config->expert_node_ranks < config->expert_ranks;
}

int64_t tws_config_secondary_ranks(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.secondary_ranks > 1 ? config->zero.secondary_ranks : 0;
}

int64_t tws_config_node_ranks(const tws_config *config) {
  const int64_t near = tws_config_secondary_ranks(config);
  if (near > 0 || !tws_config_quantizes_gradients(config)) return near;
  return config->zero.node_ranks > 1 ? config->zero.node_ranks : 0;
}

int tws_config_node_replicas(const tws_config *config, int64_t replicas) {
  const int64_t sequence = at_least_one(config->sequence_ranks), near = tws_config_node_ranks(config);
  return near > sequence && near % sequence == 0 && near / sequence < replicas && replicas % (near / sequence) == 0
             ? (int)(near / sequence)
             : 0;
}

int tws_config_freezes(const tws_config *config) {
  return config->lora.r > 0 || (config->frozen_parameters && cJSON_GetArraySize(config->frozen_parameters) > 0);
}

int64_t tws_config_print_interval(const tws_config *config, int64_t asked, int64_t steps) {
  enum { LINES = 20, EACH = 2 * LINES };
  if (asked > 0) return asked;
  if (config->steps_per_print > 0) return config->steps_per_print;
  return steps > EACH ? (steps + LINES - 1) / LINES : 1;
}

int64_t tws_config_shard_ranks(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.shard_ranks > 1 ? config->zero.shard_ranks : 0;
}

int64_t tws_config_gather_ranks(const tws_config *config) {
  const int64_t group = tws_config_shard_ranks(config), node = config->zero.node_ranks;
  return config->zero.hierarchical_gather && node > 1 && node < group ? node : 0;
}

int tws_config_group_replicas(const tws_config *config, int64_t replicas) {
  const int64_t sequence = at_least_one(config->sequence_ranks), group = tws_config_shard_ranks(config);
  return group > 0 && group % sequence == 0 && group / sequence < replicas && replicas % (group / sequence) == 0
             ? (int)(group / sequence)
             : 0;
}

int tws_config_group_node_replicas(const tws_config *config) {
  return (int)(tws_config_gather_ranks(config) / at_least_one(config->sequence_ranks));
}

int64_t tws_config_model_ranks(const tws_config *config) {
  int64_t ranks = 1;
  /* sub-axes are skipped, since they only divide the ranks of their parent axis, such as "data" */
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_axis_parent((tws_axis)axis) == TWS_AXIS_NONE) ranks *= tws_config_axis_ranks(config, (tws_axis)axis);
  return ranks;
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

/* Returns the path of the key that gives the ranks along an axis; tensor parallelism has two keys; the one that is
 * given is returned. */
static const char *path_of(const struct tws_config_store *store, tws_axis axis) {
  static const char inner[] = "tensor_parallel.tensor_parallel.tp_size";
  const char *path = sources[axis].key;
  if (axis != TWS_AXIS_MODEL || !store || tws_store_at(store, path).item) return path;
  return tws_store_at(store, inner).item ? inner : path;
}

/* Writes a hint that names the nearest numbers of ranks that are multiples of a replica's ranks and, if only one axis
 * has a key (`only`), the sizes of that axis that would fit. */
static void hint_nearest_ranks(int64_t model, int64_t ranks, const char *only, char *hint, size_t size) {
  int64_t below = ranks - ranks % model, smaller = model < ranks ? model : ranks, larger = model + 1;
  int used = below ? snprintf(hint, size, "use %lld or %lld ranks", (long long)below, (long long)(below + model))
                   : snprintf(hint, size, "use %lld ranks", (long long)model);
  if (!only) {
    snprintf(hint + used, size - (size_t)used, ", or another multiple of %lld", (long long)model);
    return;
  }
  while (ranks % smaller) smaller--;
  while (larger <= ranks && ranks % larger) larger++;
  used += snprintf(hint + used, size - (size_t)used, ", or %s %lld", only, (long long)smaller);
  if (larger <= ranks) snprintf(hint + used, size - (size_t)used, " or %lld", (long long)larger);
}

/* Fails with TWS_INVALID. The message names the position of `place`, unless the program built the configuration itself,
 * without a file. */
static tws_code refuse_degree(const tws_config *config, tws_given place, tws_error *err, const char *hint,
                              const char *message) {
  if (!config->store) return tws_fail(err, TWS_INVALID, hint, "%s", message);
  return tws_store_fail(config->store, place, TWS_INVALID, err, hint, "%s", message);
}

/* Checks that the groups of a two-level all-to-all of experts have equal sizes. */
static tws_code check_steps(const tws_config *config, tws_error *err) {
  static const char path[] = "twinspeed.expert_node_ranks";
  const struct tws_config_store *store = config->store;
  const int64_t ranks = config->expert_ranks, part = config->expert_node_ranks;
  char text[160], hint[96];
  if (!tws_config_two_steps(config)) return TWS_OK;
  if (config->expert_dispatch_fp8) {
    snprintf(hint, sizeof hint, "leave out %s: all exchange with all at once", path);
    return refuse_degree(config, store ? tws_store_at(store, path) : (tws_given){NULL, NULL}, err, hint,
                         "exchanges in two steps go in the model's type: not with twinspeed.expert_dispatch_fp8");
  }
  if (ranks % part == 0) return TWS_OK;
  int64_t below = part, above = part;
  while (ranks % below) below--;
  while (ranks % above) above++;
  snprintf(hint, sizeof hint, "the nearest that do are %lld and %lld", (long long)below, (long long)above);
  snprintf(text, sizeof text, "%s %lld does not divide the %lld ranks that share experts", path, (long long)part,
           (long long)ranks);
  return refuse_degree(config, store ? tws_store_at(store, path) : (tws_given){NULL, NULL}, err, hint, text);
}

/* Checks the size `part` of groups of adjacent ranks: it must divide the `ranks` ranks (`what` describes these in
 * messages), and each group must contain all ranks of its sequences. */
static tws_code check_parts(const tws_config *config, const char *path, int64_t part, int64_t ranks, const char *what,
                            tws_error *err) {
  const struct tws_config_store *store = config->store;
  const int64_t sequence = at_least_one(config->sequence_ranks), units = ranks / sequence;
  char text[224], hint[96];
  if (part < 2 || part >= ranks || (part % sequence == 0 && ranks % part == 0)) return TWS_OK;
  int64_t below = part / sequence, above = below + 1;
  while (below > 1 && units % below) below--;
  while (above < units && units % above) above++;
  if (below < 1) below = 1;
  snprintf(hint, sizeof hint, above > units ? "the nearest that does is %lld" : "the nearest that do are %lld and %lld",
           (long long)(below * sequence), (long long)(above * sequence));
  snprintf(text, sizeof text, "%s %lld does not divide the %lld ranks %s%s", path, (long long)part, (long long)ranks,
           what, sequence > 1 ? " into whole groups of those that share a sequence" : "");
  return refuse_degree(config, store ? tws_store_at(store, path) : (tws_given){NULL, NULL}, err, hint, text);
}

/* Checks the numbers of ranks that ZeRO treats as one node or as one group (MiCS). */
static tws_code check_nodes(const tws_config *config, int64_t replicas, tws_error *err) {
  static const char all[] = "that share parameters", nodes[] = "twinspeed.zero_node_ranks";
  const int64_t ranks = replicas * at_least_one(config->sequence_ranks), group = tws_config_shard_ranks(config);
  const char *path = tws_config_secondary_ranks(config) > 0 ? "zero_optimization.zero_hpz_partition_size" : nodes;
  TWS_TRY(check_parts(config, path, tws_config_node_ranks(config), ranks, all, err));
  TWS_TRY(check_parts(config, "zero_optimization.mics_shard_size", group, ranks, all, err));
  return group < ranks ? check_parts(config, nodes, tws_config_gather_ranks(config), group,
                                     "of zero_optimization.mics_shard_size", err)
                       : TWS_OK;
}

/* Checks that the number of replicas is a multiple of the expert-parallel size. */
static tws_code check_experts(const tws_config *config, int64_t replicas, tws_error *err) {
  const struct tws_config_store *store = config->store;
  const int64_t ranks = tws_config_axis_ranks(config, TWS_AXIS_EXPERT);
  const char *path = sources[TWS_AXIS_EXPERT].key;
  char text[160], hint[96];
  TWS_TRY(check_nodes(config, replicas, err));
  if (replicas % ranks == 0) return check_steps(config, err);
  int64_t below = ranks < replicas ? ranks : replicas;
  while (replicas % below) below--;
  snprintf(hint, sizeof hint, "use %s %lld, or a multiple of %lld replicas", path, (long long)below, (long long)ranks);
  snprintf(text, sizeof text, "%s %lld does not divide %lld replica%s", path, (long long)ranks, (long long)replicas,
           replicas == 1 ? "" : "s");
  return refuse_degree(config, store ? tws_store_at(store, path) : (tws_given){NULL, NULL}, err, hint, text);
}

tws_code tws_config_replicas(const tws_config *config, int64_t ranks, int64_t *replicas, tws_error *err) {
  const struct tws_config_store *store = config->store;
  int64_t model = tws_config_model_ranks(config);
  *replicas = ranks / model;
  if (ranks > 0 && ranks % model == 0) return check_experts(config, *replicas, err);
  tws_given place = {NULL, store ? store->origin : NULL};
  char text[256] = "", hint[192];
  size_t used = 0;
  int factors = 0;
  const char *last = NULL;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    const int along = tws_config_axis_ranks(config, (tws_axis)axis);
    if (along < 2 || tws_axis_parent((tws_axis)axis) != TWS_AXIS_NONE) continue;
    last = path_of(store, (tws_axis)axis);
    if (!place.item && store) place = tws_store_at(store, last);
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %d", factors++ ? " x " : "", last, along);
  }
  if (ranks < 1) {
    snprintf(text, sizeof text, "%lld ranks: at least one is needed", (long long)ranks);
    return refuse_degree(config, place, err, NULL, text);
  }
  if (factors > 1) used += (size_t)snprintf(text + used, sizeof text - used, " = %lld", (long long)model);
  snprintf(text + used, sizeof text - used, " %s not divide %lld rank%s", factors > 1 ? "do" : "does", (long long)ranks,
           ranks == 1 ? "" : "s");
  hint_nearest_ranks(model, ranks, factors > 1 ? NULL : last, hint, sizeof hint);
  return refuse_degree(config, place, err, hint, text);
}
