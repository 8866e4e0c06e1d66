/* From options to a job: configuration file, then --set, then flags; then cluster, profile, ranks, resolution. */
#include "cli/common.h"
#include <string.h>
#include "plan/pipeline_grid.h"
#include "plan/pipeline_schedule.h"

static tws_code set_integer(tws_config *config, const char *key, int64_t value, tws_error *err) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  return tws_config_set(config, key, text, err);
}

static tws_code set_word(tws_config *config, const char *key, const char *value, tws_error *err) {
  char text[96];
  if (strlen(value) > 80 || strpbrk(value, "\"\\"))
    return tws_fail(err, TWS_USAGE, NULL, "%s: bad value \"%.80s\"", key, value);
  snprintf(text, sizeof text, "\"%s\"", value);
  return tws_config_set(config, key, text, err);
}

static tws_code set_overrides(tws_config *config, const tws_strings *set, tws_error *err) {
  for (int i = 0; i < set->count; i++) {
    const char *equals = strchr(set->item[i], '=');
    char key[256];
    size_t length = equals ? (size_t)(equals - set->item[i]) : 0;
    if (!equals || length == 0 || length >= sizeof key)
      return tws_fail(err, TWS_USAGE, "for example --set zero_optimization.stage=3", "--set %.80s is not KEY=VALUE",
                      set->item[i]);
    memcpy(key, set->item[i], length);
    key[length] = '\0';
    TWS_TRY(tws_config_set(config, key, equals + 1, err));
  }
  return TWS_OK;
}

static tws_code set_dtype(tws_config *config, const char *name, tws_error *err) {
  static const char *const names[] = {"fp32", "bf16", "fp16"};
  int index = -1;
  for (int i = 0; i < 3; i++)
    if (strcmp(names[i], name) == 0) index = i;
  if (index < 0) return tws_fail(err, TWS_USAGE, "use fp32, bf16 or fp16", "--dtype: unknown type \"%.40s\"", name);
  TWS_TRY(tws_config_set(config, "bf16.enabled", index == 1 ? "true" : "false", err));
  return tws_config_set(config, "fp16.enabled", index == 2 ? "true" : "false", err);
}

/* A word that the key does not take is wrong usage of the flag. */
static tws_code set_flag(tws_config *config, const char *flag, const char *key, const char *value, tws_error *err) {
  static const char place[] = "command line: ";
  tws_error why = {0};
  tws_code code = set_word(config, key, value, &why);
  if (code == TWS_OK) return TWS_OK;
  const char *message = why.message;
  if (strncmp(message, place, sizeof place - 1) == 0) message += sizeof place - 1;
  return tws_fail(err, code == TWS_INVALID ? TWS_USAGE : code, why.hint[0] ? why.hint : NULL, "%s: %s", flag, message);
}

/* Flags of parallelism. --tp is the last word on the tensor ranks, so the key's other place is cleared. */
static tws_code set_axes(tws_config *config, const tws_job_options *o, tws_error *err) {
  if (o->pipeline_stages) TWS_TRY(set_integer(config, "pipeline.stages", o->pipeline_stages, err));
  if (o->tensor_ranks) {
    TWS_TRY(tws_config_set(config, "tensor_parallel.tensor_parallel.tp_size", "null", err));
    TWS_TRY(set_integer(config, "tensor_parallel.autotp_size", o->tensor_ranks, err));
  }
  if (o->sequence_ranks) TWS_TRY(set_integer(config, "sequence_parallel_size", o->sequence_ranks, err));
  if (o->schedule) TWS_TRY(set_flag(config, "--schedule", "twinspeed.pipeline_schedule", o->schedule, err));
  if (o->virtual_stages) TWS_TRY(set_integer(config, "twinspeed.virtual_stages", o->virtual_stages, err));
  if (o->axis_order) TWS_TRY(set_flag(config, "--axis-order", "twinspeed.axis_order", o->axis_order, err));
  if (o->sequence_parallel) TWS_TRY(tws_config_set(config, "twinspeed.tensor_sequence_parallel", "true", err));
  return TWS_OK;
}

static tws_code set_flags(tws_config *config, const tws_job_options *o, tws_error *err) {
  if (o->stage >= 0) TWS_TRY(set_integer(config, "zero_optimization.stage", o->stage, err));
  if (o->micro_batch) TWS_TRY(set_integer(config, "train_micro_batch_size_per_gpu", o->micro_batch, err));
  if (o->accumulation) TWS_TRY(set_integer(config, "gradient_accumulation_steps", o->accumulation, err));
  if (o->dtype) TWS_TRY(set_dtype(config, o->dtype, err));
  if (o->recompute) TWS_TRY(set_flag(config, "--recompute", "twinspeed.recompute", o->recompute, err));
  if (o->sequence) TWS_TRY(set_integer(config, "twinspeed.sequence_length", o->sequence, err));
  if (o->threads) TWS_TRY(set_integer(config, "twinspeed.threads", o->threads, err));
  if (o->seed >= 0) TWS_TRY(set_integer(config, "twinspeed.seed", o->seed, err));
  if (o->vocabulary_multiple)
    TWS_TRY(set_integer(config, "twinspeed.vocabulary_multiple", o->vocabulary_multiple, err));
  return set_axes(config, o, err);
}

tws_code tws_job_config(const tws_job_options *options, tws_config **out, tws_error *err) {
  tws_config *config = NULL;
  *out = NULL;
  tws_code code = options->config ? tws_config_load(options->config, &config, err) : tws_config_default(&config, err);
  if (code == TWS_OK) code = set_overrides(config, &options->set, err);
  if (code == TWS_OK) code = set_flags(config, options, err);
  /* Without a file nobody has said a batch size: one sample a rank. With a file, its silence is an error of its own. */
  if (code == TWS_OK && !options->config && !config->train_batch_size && !config->micro_batch_size)
    code = set_integer(config, "train_micro_batch_size_per_gpu", 1, err);
  if (code == TWS_OK && options->strict) code = tws_config_strict(config, err);
  if (code != TWS_OK) {
    tws_config_destroy(config);
    return code;
  }
  *out = config;
  return TWS_OK;
}

static tws_code choose_ranks(const tws_job_options *options, tws_job *job, tws_error *err) {
  int64_t devices = (int64_t)job->cluster.nodes * job->cluster.devices_per_node;
  int host = job->backend == TWS_BACKEND_HOST;
  int64_t ranks = options->ranks ? options->ranks : job->config->ranks;
  if (!ranks) ranks = host ? job->cluster.nodes : devices;
  if (!host && ranks > devices)
    return tws_fail(err, TWS_INVALID, "use fewer ranks, or more nodes: --cluster NAME:NODES",
                    "%lld ranks were asked for and cluster %s has %lld devices", (long long)ranks, job->cluster.name,
                    (long long)devices);
  job->ranks = (int)ranks;
  int cores = job->cluster.cores_per_node > 0 ? job->cluster.cores_per_node : 1;
  const tws_node_mapping mapping = tws_machine_mapping(&job->machine, job->ranks);
  const int per_node = tws_mapping_most_on_node(&mapping);
  job->threads = 1;
  if (host) {
    job->threads = job->config->threads ? (int)job->config->threads : cores / per_node;
    if (job->threads < 1) job->threads = 1;
  }
  return TWS_OK;
}

static tws_code load_parts(const tws_job_options *options, tws_job *job, tws_error *err) {
  if (!options->model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  TWS_TRY(tws_job_config(options, &job->config, err));
  TWS_TRY(tws_network_load(options->model, tws_config_vocabulary_multiple(job->config), &job->network, err));
  TWS_TRY(tws_job_assume_dtype(job->config, job->network, &job->assumed_dtype, err));
  TWS_TRY(tws_cluster_load(options->cluster ? options->cluster : "host", &job->cluster, err));
  TWS_TRY(tws_profile_load(options->profile ? options->profile : job->cluster.profile, &job->profile, err));
  job->backend = tws_profile_backend(job->profile);
  job->machine = (tws_machine){&job->cluster, job->profile};
  TWS_TRY(choose_ranks(options, job, err));
  if (job->config->ignored_token >= job->network->vocabulary)
    return tws_fail(err, TWS_INVALID, "its ids start at 0; -1 ignores none",
                    "twinspeed.ignored_token is %lld, and %s has a vocabulary of %lld",
                    (long long)job->config->ignored_token, job->network->name, (long long)job->network->vocabulary);
  tws_auto_context context = {.hidden_size = job->network->hidden};
  if (!job->config->sequence_length) job->config->sequence_length = job->network->positions;
  TWS_TRY(tws_config_resolve(job->config, job->ranks, &context, err));
  return tws_plan_topology(job->config, job->ranks, &job->topology, err);
}

tws_code tws_job_load(const tws_job_options *options, tws_job *job, tws_error *err) {
  memset(job, 0, sizeof *job);
  tws_code code = load_parts(options, job, err);
  if (code != TWS_OK) tws_job_release(job);
  return code;
}

void tws_job_release(tws_job *job) {
  tws_profile_destroy(job->profile);
  tws_config_destroy(job->config);
  tws_network_destroy(job->network);
  memset(job, 0, sizeof *job);
}

tws_plan_request tws_job_request(const tws_job *job, int rank) {
  return (tws_plan_request){.network = job->network,
                            .config = job->config,
                            .topology = job->topology,
                            .rank = rank,
                            .program = job->program,
                            .backend = job->backend,
                            .threads = job->threads};
}

int tws_job_ranks_along(const tws_job *job, tws_axis axis) {
  return tws_topology_size(&job->topology, 1u << axis);
}

int tws_job_stages(const tws_job *job) {
  return tws_job_ranks_along(job, TWS_AXIS_PIPE);
}

int tws_job_stage_rank(const tws_job *job, int stage) {
  return tws_pipeline_grid_stage(&job->topology, 0, stage);
}

tws_code tws_job_plan(const tws_job *job, int rank, tws_plan **out, tws_error *err) {
  return tws_job_program(job, rank, job->program, NULL, out, err);
}

tws_code tws_job_program(const tws_job *job, int rank, tws_program program, tws_state *state, tws_plan **out,
                         tws_error *err) {
  tws_plan_request request = tws_job_request(job, rank);
  request.program = program;
  request.state = state;
  return tws_plan_build(&request, out, err);
}

tws_code tws_job_choose_program(tws_job *job, const char *name, tws_error *err) {
  for (int i = 0; name && i < TWS_PROGRAM_COUNT; i++) {
    if (strcmp(name, tws_program_name((tws_program)i)) != 0) continue;
    job->program = (tws_program)i;
    return TWS_OK;
  }
  return name ? tws_fail(err, TWS_USAGE, "--program train, or --program evaluate", "--program: no program \"%.80s\"",
                         name)
              : TWS_OK;
}

typedef struct argument_list {
  tws_arena *arena;
  const char **argv;
  int capacity, count, failed;
} argument_list;

static void add_flag(argument_list *w, const char *word) {
  if (!word || w->count >= w->capacity)
    w->failed = 1;
  else
    w->argv[w->count++] = word;
}

static void add_argument(argument_list *w, const char *name, const char *value) {
  if (value) add_flag(w, tws_arena_printf(w->arena, "%s=%s", name, value));
}

static void add_integer(argument_list *w, const char *name, int64_t value, int given) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  if (given) add_argument(w, name, text);
}

tws_code tws_job_arguments(const tws_job_options *o, tws_arena *arena, const char **argv, int capacity, int *argc,
                           tws_error *err) {
  argument_list w = {arena, argv, capacity, *argc, 0};
  add_argument(&w, "--model", o->model);
  add_argument(&w, "--config", o->config);
  add_argument(&w, "--cluster", o->cluster);
  add_argument(&w, "--profile", o->profile);
  add_argument(&w, "--recompute", o->recompute);
  add_argument(&w, "--dtype", o->dtype);
  add_argument(&w, "--schedule", o->schedule);
  add_argument(&w, "--axis-order", o->axis_order);
  add_integer(&w, "--ranks", o->ranks, o->ranks > 0);
  add_integer(&w, "--stage", o->stage, o->stage >= 0);
  add_integer(&w, "--pp", o->pipeline_stages, o->pipeline_stages > 0);
  add_integer(&w, "--tp", o->tensor_ranks, o->tensor_ranks > 0);
  add_integer(&w, "--sp", o->sequence_ranks, o->sequence_ranks > 0);
  add_integer(&w, "--virtual-stages", o->virtual_stages, o->virtual_stages > 0);
  if (o->sequence_parallel) add_flag(&w, "--sequence-parallel");
  add_integer(&w, "--seq", o->sequence, o->sequence > 0);
  add_integer(&w, "--micro-batch", o->micro_batch, o->micro_batch > 0);
  add_integer(&w, "--accumulation", o->accumulation, o->accumulation > 0);
  add_integer(&w, "--threads", o->threads, o->threads > 0);
  add_integer(&w, "--vocab-multiple", o->vocabulary_multiple, o->vocabulary_multiple > 0);
  add_integer(&w, "--seed", o->seed, o->seed >= 0);
  for (int i = 0; i < o->set.count; i++) add_argument(&w, "--set", o->set.item[i]);
  *argc = w.count;
  return w.failed ? tws_fail(err, TWS_MEMORY, NULL, "too many arguments for the ranks' command line") : TWS_OK;
}

/* How the ranks are divided, as in the results of training. */
static void add_axes(const tws_job *job, cJSON *json) {
  char order[TWS_AXIS_ORDER_TEXT];
  const tws_config *c = job->config;
  cJSON *axes = cJSON_AddObjectToObject(json, "axes");
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_axis_is_ordered((tws_axis)axis))
      cJSON_AddNumberToObject(axes, tws_axis_name((tws_axis)axis), tws_job_ranks_along(job, (tws_axis)axis));
  if (job->topology.axes > 1)
    cJSON_AddStringToObject(json, "axis_order", tws_axis_order_text(&c->axis_order, order));
  if (tws_job_stages(job) > 1) {
    const char *schedule = tws_pipeline_kind_name((tws_pipeline_kind)c->pipeline_schedule);
    cJSON_AddStringToObject(json, "pipeline_schedule", schedule);
    cJSON_AddNumberToObject(json, "virtual_stages", tws_config_division(c).virtual_stages);
  }
  if (c->tensor_ranks > 1) {
    cJSON_AddBoolToObject(json, "sequence_parallel", c->tensor_sequence_parallel);
    cJSON_AddNumberToObject(json, "overlap_chunks", c->tensor_overlap ? (double)c->tensor_chunks : 1);
  }
  if (c->loss_tiles > 1) cJSON_AddNumberToObject(json, "loss_tiles", (double)c->loss_tiles);
  if (c->mlp_tiles > 1) cJSON_AddNumberToObject(json, "mlp_tiles", (double)c->mlp_tiles);
  if (c->ignored_token >= 0) cJSON_AddNumberToObject(json, "ignored_token", (double)c->ignored_token);
}

tws_code tws_job_fingerprint(const tws_job *job, tws_fingerprint *out, tws_error *err) {
  const tws_plan_request request = tws_job_request(job, 0);
  return tws_fingerprint_read(&request, out, err);
}

cJSON *tws_job_json(const tws_job *job) {
  cJSON *json = cJSON_CreateObject();
  if (!json) return NULL;
  cJSON_AddStringToObject(json, "model", job->network->name);
  cJSON_AddNumberToObject(json, "parameters", (double)tws_network_params(job->network, 0));
  cJSON_AddStringToObject(json, "cluster", job->cluster.name);
  cJSON_AddStringToObject(json, "profile", tws_profile_name(job->profile));
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(job->profile));
  cJSON_AddNumberToObject(json, "ranks", job->ranks);
  cJSON_AddNumberToObject(json, "threads", job->threads);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(job->config->dtype));
  cJSON_AddNumberToObject(json, "zero_stage", job->config->zero.stage);
  cJSON_AddNumberToObject(json, "micro_batch", (double)job->config->micro_batch_size);
  cJSON_AddNumberToObject(json, "accumulation_steps", (double)job->config->accumulation_steps);
  cJSON_AddNumberToObject(json, "train_batch", (double)job->config->train_batch_size);
  cJSON_AddNumberToObject(json, "sequence_length", (double)job->config->sequence_length);
  cJSON_AddStringToObject(json, "recompute", tws_recompute_name(job->config->recompute));
  add_axes(job, json);
  tws_fingerprint fingerprint;
  if (tws_job_fingerprint(job, &fingerprint, NULL) == TWS_OK) tws_fingerprint_json(&fingerprint, json);
  return json;
}
