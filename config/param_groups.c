/* Parameter groups are sets of parameters with separate arguments of the optimizer and the schedule, like PyTorch's
 * optimizer.param_groups. Group 0 has the parameters whose names match no pattern of optimizer.param_groups. */
#include <stdio.h>
#include <string.h>

#include "config/store.h"

static const char list_path[] = "optimizer.param_groups";

/* ---- optimizer.params as a list ---- */

/* Removes the entry without "params" from the list and sets *found to it; NULL: all entries have "params". Fails with
 * TWS_INVALID if several have none. */
static tws_code take_defaults(const tws_json *json, cJSON *list, cJSON **found, tws_error *err) {
  *found = NULL;
  for (cJSON *item = list->child; item; item = item->next) {
    if (!cJSON_IsObject(item))
      return tws_json_fail(json, item, err, "each is an object with \"params\", the names of its parameters",
                           "objects are expected in optimizer.params, which is a list of groups");
    if (cJSON_GetObjectItemCaseSensitive(item, "params")) continue;
    if (*found)
      return tws_json_fail(json, item, err,
                           "give \"params\" in all entries but one, which has the values of all other parameters",
                           "two entries of optimizer.params have no \"params\"");
    *found = item;
  }
  if (*found) cJSON_DetachItemViaPointer(list, *found);
  return TWS_OK;
}

tws_code tws_config_split_params(const tws_json *json, cJSON *optimizer, tws_error *err) {
  cJSON *list = cJSON_GetObjectItemCaseSensitive(optimizer, "params"), *defaults;
  if (!cJSON_IsArray(list)) return TWS_OK;
  if (cJSON_GetObjectItemCaseSensitive(optimizer, "param_groups"))
    return tws_json_fail(json, list, err, "move its entries into one of them",
                         "optimizer.params is a list of groups, and %s is given as well", list_path);
  TWS_TRY(take_defaults(json, list, &defaults, err));
  cJSON_DetachItemViaPointer(optimizer, list);
  int added = 1;
  if (list->child)
    added = cJSON_AddItemToObject(optimizer, "param_groups", list);
  else
    cJSON_Delete(list);
  if (defaults) added &= cJSON_AddItemToObject(optimizer, "params", defaults);
  return added ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
}

/* ---- the groups ---- */

/* Returns the number of groups for each set of parameters: 2 with Muon (its matrices, and other parameters), else 1. */
static int kinds(const tws_config *config) {
  return tws_optimizer_of(config->optimizer)->matrices ? 2 : 1;
}

static int most_entries(const tws_config *config) {
  return TWS_PARAM_GROUPS / kinds(config) - 1;
}

static int listed(const tws_config *config) {
  return config->param_groups ? cJSON_GetArraySize(config->param_groups) : 0;
}

int tws_config_param_groups(const tws_config *config) {
  const int entries = listed(config), most = most_entries(config);
  return kinds(config) * (1 + (entries < most ? entries : most));
}

int tws_config_param_group_entry(const tws_config *config, int group) {
  return group / kinds(config);
}

static const cJSON *member(const tws_config *config, int group, const char *name) {
  const int entry = tws_config_param_group_entry(config, group);
  const cJSON *item = entry > 0 ? cJSON_GetArrayItem(config->param_groups, entry - 1) : NULL;
  return cJSON_GetObjectItemCaseSensitive(item, name);
}

const struct cJSON *tws_config_param_group_names(const tws_config *config, int group) {
  return member(config, group, "params");
}

static void take_number(const tws_config *config, int group, const char *name, double *field) {
  const cJSON *item = member(config, group, name);
  if (cJSON_IsNumber(item)) *field = item->valuedouble;
}

/* Sets each argument of the schedule that is a list to the group's element of the list. */
static void take_schedule(const tws_config *config, int group, tws_config *own) {
  static const struct {
    const char *path;
    size_t offset;
  } lists[] = {{"scheduler.params.lr_range_test_min_lr", offsetof(tws_config, schedule.min_lr)},
               {"scheduler.params.warmup_min_lr", offsetof(tws_config, schedule.min_lr)},
               {"scheduler.params.warmup_max_lr", offsetof(tws_config, schedule.max_lr)},
               {"scheduler.params.cycle_min_lr", offsetof(tws_config, schedule.cycle_min_lr)},
               {"scheduler.params.cycle_max_lr", offsetof(tws_config, schedule.cycle_max_lr)}};
  for (size_t i = 0; i < sizeof lists / sizeof *lists && config->store; i++) {
    const tws_given given = tws_store_at(config->store, lists[i].path);
    const cJSON *item = cJSON_IsArray(given.item) ? cJSON_GetArrayItem(given.item, group) : NULL;
    if (cJSON_IsNumber(item)) memcpy((char *)own + lists[i].offset, &item->valuedouble, sizeof item->valuedouble);
  }
}

/* Sets the learning rate of a group of Muon: of matrices, or of the parameters that Adam updates. */
static void take_muon_rate(const tws_config *config, int group, tws_config *own) {
  const int muon = tws_config_is_muon_group(config, group);
  const double given = muon ? config->muon_lr : config->adam_lr;
  if (given >= 0)
    own->lr = given;
  else if (!tws_store_has(config->store, "optimizer.params.lr"))
    own->lr = muon ? 0.02 : 3e-4;
}

void tws_config_of_param_group(const tws_config *config, int group, tws_config *own) {
  *own = *config;
  if (tws_config_param_groups(config) == 1) return;
  if (kinds(config) > 1) take_muon_rate(config, group, own);
  take_number(config, group, "lr", &own->lr);
  take_number(config, group, "weight_decay", &own->weight_decay);
  take_number(config, group, "eps", &own->epsilon);
  take_number(config, group, "momentum", &own->momentum);
  const cJSON *bits = member(config, group, "optim_bits");
  if (cJSON_IsNumber(bits)) own->optim_bits = bits->valueint;
  const cJSON *betas = member(config, group, "betas");
  if (cJSON_IsArray(betas) && cJSON_GetArraySize(betas) == 2) {
    own->beta1 = betas->child->valuedouble;
    own->beta2 = betas->child->next->valuedouble;
  }
  take_schedule(config, group, own);
}

/* Checks one entry of the list: it must have patterns of names, and may have values only for arguments that the
 * optimizer takes. */
static tws_code check_entry(const tws_config *config, int entry, tws_given list, tws_error *err) {
  const tws_optimizer_row *row = tws_optimizer_of(config->optimizer);
  const cJSON *item = cJSON_GetArrayItem(config->param_groups, entry - 1);
  const cJSON *names = cJSON_GetObjectItemCaseSensitive(item, "params");
  tws_config own;
  if (!cJSON_IsString(names) && cJSON_GetArraySize(names) == 0)
    return tws_store_fail(config->store, list, TWS_INVALID, err,
                          "\"params\" has patterns of parameter names, such as \"*.bias\", or the words vectors and "
                          "embeddings",
                          "%s: entry %d has no \"params\"", list_path, entry);
  for (const cJSON *value = item->child; value; value = value->next)
    if (strcmp(value->string, "params") != 0 && !tws_optimizer_has_argument(row, value->string))
      return tws_store_fail(config->store, list, TWS_INVALID, err, NULL, "%s: entry %d: %s takes no \"%.40s\"",
                            list_path, entry, row->type, value->string);
  tws_config_of_param_group(config, entry * kinds(config), &own);
  if (own.beta1 >= 1 || own.beta2 >= 1)
    return tws_store_fail(config->store, list, TWS_INVALID, err, NULL, "%s: entry %d: betas must be below 1", list_path,
                          entry);
  if (row->eight_bits && own.optim_bits != 8 && own.optim_bits != 32)
    return tws_store_fail(config->store, list, TWS_INVALID, err, "8, or 32 for states in float32",
                          "%s: entry %d: optim_bits is %d", list_path, entry, own.optim_bits);
  return TWS_OK;
}

/* Checks that a list in the schedule has a value for each group. */
static tws_code check_values(const tws_config *config, const tws_key *key, tws_error *err) {
  const tws_given given = tws_store_get(config->store, key);
  const int values = cJSON_GetArraySize(given.item), groups = tws_config_param_groups(config);
  if (key->type != TWS_KEY_NUMBER_OR_LIST || !cJSON_IsArray(given.item) || values == groups) return TWS_OK;
  return tws_store_fail(config->store, given, TWS_INVALID, err,
                        "give one value for all groups, or one for each: first that of parameters which no entry of "
                        "optimizer.param_groups names, then those of its entries",
                        "%s has %d values for %d parameter group%s", key->path, values, groups, groups == 1 ? "" : "s");
}

tws_code tws_config_check_factored(const tws_config *config, tws_error *err) {
  const tws_given epsilon = tws_store_at(config->store, "optimizer.params.eps");
  const tws_optimizer_row *row = tws_optimizer_of(config->optimizer);
  const struct {
    int met;
    const char *other, *hint;
  } with[] = {
      {config->tensor_ranks > 1, "tensor parallelism, which splits matrices", "set tensor_parallel.autotp_size to 1"},
      {config->pipeline_stages > 1, "pipeline stages, each of which has moments of its own",
       "set pipeline.stages to 1, and divide the model by zero_optimization.stage 3"},
      {config->expert_ranks > 1, "expert parallelism, whose ranks have different parameters",
       "set twinspeed.expert_parallel_size to 1"},
      {tws_config_offloads(config), "offloading", "set the devices of offload_optimizer and offload_param to none"},
      {tws_config_bf16_masters(config), "bfloat16 parameters without a float32 copy",
       "set bf16.bf16_master_weights_and_grads to false"},
      {config->linear_tile_size > 0, "weights in tiles", "set twinspeed.linear_tile_size to 0"}};
  if (cJSON_IsArray(epsilon.item) != row->factored && epsilon.item && !tws_given_auto(epsilon) &&
      tws_optimizer_has_argument(row, "eps"))
    return tws_store_fail(config->store, epsilon, TWS_INVALID, err,
                          row->factored ? "as torch.optim.Adafactor has it: [null, 0.001]" : "such as 1e-8",
                          "eps of %s is %s", row->type, row->factored ? "a list of two numbers" : "one number");
  for (size_t i = 0; i < sizeof with / sizeof *with && row->factored; i++)
    if (with[i].met)
      return tws_store_fail(config->store, tws_store_at(config->store, "optimizer.type"), TWS_UNSUPPORTED, err,
                            with[i].hint, "%s does not go with %s", row->type, with[i].other);
  return TWS_OK;
}

tws_code tws_config_check_eight_bits(const tws_config *config, tws_error *err) {
  const tws_optimizer_row *row = tws_optimizer_of(config->optimizer);
  const struct {
    int met;
    const char *other, *hint;
  } with[] = {
      {config->tensor_ranks > 1, "tensor parallelism, which splits matrices across blocks of states",
       "set tensor_parallel.autotp_size to 1"},
      {config->expert_ranks > 1, "expert parallelism, whose ranks have different parameters",
       "set twinspeed.expert_parallel_size to 1"},
      {tws_config_offloads(config), "offloading", "set the devices of offload_optimizer and offload_param to none"},
      {tws_config_bf16_moments(config), "states in bfloat16", "set bf16.bf16_optimizer_states to false"},
      {config->linear_tile_size > 0, "weights in tiles", "set twinspeed.linear_tile_size to 0"}};
  if (!row->eight_bits) return TWS_OK;
  if (config->optim_bits != 8 && config->optim_bits != 32)
    return tws_store_fail(config->store, tws_store_at(config->store, "optimizer.params.optim_bits"), TWS_INVALID, err,
                          "8, or 32 for states in float32", "optimizer.params.optim_bits is %d", config->optim_bits);
  for (size_t i = 0; i < sizeof with / sizeof *with; i++)
    if (with[i].met)
      return tws_store_fail(config->store, tws_store_at(config->store, "optimizer.type"), TWS_UNSUPPORTED, err,
                            with[i].hint, "%s does not go with %s", row->type, with[i].other);
  return TWS_OK;
}

tws_code tws_config_check_muon(const tws_config *config, tws_error *err) {
  const struct {
    int met;
    const char *other, *hint;
  } with[] = {
      {config->tensor_ranks > 1, "tensor parallelism, which splits matrices", "set tensor_parallel.autotp_size to 1"},
      {tws_config_offloads(config), "offloading", "set the devices of offload_optimizer and offload_param to none"},
      {tws_config_bf16_masters(config), "bfloat16 parameters without a float32 copy",
       "set bf16.bf16_master_weights_and_grads to false"},
      {config->linear_tile_size > 0, "weights in tiles", "set twinspeed.linear_tile_size to 0"}};
  if (kinds(config) < 2) return TWS_OK;
  for (size_t i = 0; i < sizeof with / sizeof *with; i++)
    if (with[i].met)
      return tws_store_fail(config->store, tws_store_at(config->store, "optimizer.type"), TWS_UNSUPPORTED, err,
                            with[i].hint, "Muon does not go with %s", with[i].other);
  return TWS_OK;
}

tws_code tws_config_check_split_masters(const tws_config *config, tws_error *err) {
  const tws_optimizer_row *row = tws_optimizer_of(config->optimizer);
  const tws_given key = tws_store_at(config->store, "twinspeed.split_master_weights");
  const int other =
      row->by_tensor || row->factored || row->eight_bits || row->matrices || row->phases != TWS_PHASES_ONE;
  if (!tws_config_split_masters(config)) return TWS_OK;
  if (other)
    return tws_store_fail(config->store, key, TWS_UNSUPPORTED, err,
                          "set it to false, or use Adam, AdamW, Lion, Adagrad or SGD",
                          "twinspeed.split_master_weights does not go with %s, which does not update all elements in "
                          "one pass",
                          row->type);
  if (!tws_config_offloads(config)) return TWS_OK;
  return tws_store_fail(config->store, key, TWS_UNSUPPORTED, err, "set it to false",
                        "twinspeed.split_master_weights does not go with offloading, which keeps masters elsewhere");
}

tws_code tws_config_check_param_groups(const tws_config *config, tws_error *err) {
  const tws_given list = tws_store_at(config->store, list_path);
  const int entries = listed(config);
  if (entries > most_entries(config))
    return tws_store_fail(config->store, list, TWS_UNSUPPORTED, err, "use patterns that fit more parameters",
                          "%s has more than %d entries", list_path, most_entries(config));
  if (entries > 0 && config->zenflow.on)
    return tws_store_fail(config->store, list, TWS_UNSUPPORTED, err, "leave one of them out",
                          "%s does not go with ZenFlow, which updates columns of all parameters at once", list_path);
  for (int entry = 1; entry <= entries; entry++) TWS_TRY(check_entry(config, entry, list, err));
  for (size_t i = 0; i < tws_key_count; i++) TWS_TRY(check_values(config, &tws_keys[i], err));
  return TWS_OK;
}
