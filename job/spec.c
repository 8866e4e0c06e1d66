/* Converts a specification to a configuration, and to the arguments of another process. */
#include "job/spec.h"

#include <stdio.h>
#include <string.h>

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

/* Sets a key of the configuration from a flag. Fails with TWS_USAGE, naming the flag, if the key refuses the value. */
static tws_code set_flag(tws_config *config, const char *flag, const char *key, const char *value, tws_error *err) {
  static const char place[] = "command line: ";
  tws_error why = {0};
  tws_code code = set_word(config, key, value, &why);
  if (code == TWS_OK) return TWS_OK;
  const char *message = why.message;
  if (strncmp(message, place, sizeof place - 1) == 0) message += sizeof place - 1;
  return tws_fail(err, code == TWS_INVALID ? TWS_USAGE : code, why.hint[0] ? why.hint : NULL, "%s: %s", flag, message);
}

/* Sets the keys of parallelism from flags. --tp overrides both keys that state tensor ranks, so the other one is
 * cleared. */
static tws_code set_axes(tws_config *config, const tws_job_spec *o, tws_error *err) {
  if (o->pipeline_stages) TWS_TRY(set_integer(config, "pipeline.stages", o->pipeline_stages, err));
  if (o->tensor_ranks) {
    TWS_TRY(tws_config_set(config, "tensor_parallel.tensor_parallel.tp_size", "null", err));
    TWS_TRY(set_integer(config, "tensor_parallel.autotp_size", o->tensor_ranks, err));
  }
  if (o->sequence_ranks) TWS_TRY(set_integer(config, "sequence_parallel_size", o->sequence_ranks, err));
  if (o->sequence_algorithm)
    TWS_TRY(set_flag(config, "--sequence-algorithm", "twinspeed.sequence_algorithm", o->sequence_algorithm, err));
  if (o->expert_ranks) TWS_TRY(set_integer(config, "twinspeed.expert_parallel_size", o->expert_ranks, err));
  if (o->schedule) TWS_TRY(set_flag(config, "--schedule", "twinspeed.pipeline_schedule", o->schedule, err));
  if (o->virtual_stages) TWS_TRY(set_integer(config, "twinspeed.virtual_stages", o->virtual_stages, err));
  if (o->axis_order) TWS_TRY(set_flag(config, "--axis-order", "twinspeed.axis_order", o->axis_order, err));
  if (o->sequence_parallel) TWS_TRY(tws_config_set(config, "twinspeed.tensor_sequence_parallel", "true", err));
  return TWS_OK;
}

static const char *schedule_name(const tws_config *config) {
  static const char *const names[] = {[TWS_SCHEDULER_NONE] = "none",
                                      [TWS_SCHEDULER_LR_RANGE_TEST] = "LRRangeTest",
                                      [TWS_SCHEDULER_ONE_CYCLE] = "OneCycle",
                                      [TWS_SCHEDULER_WARMUP] = "WarmupLR",
                                      [TWS_SCHEDULER_WARMUP_DECAY] = "WarmupDecayLR",
                                      [TWS_SCHEDULER_WARMUP_COSINE] = "WarmupCosineLR"};
  return names[config->scheduler];
}

/* Sets the learning rate of the optimizer and of the end of the warm-up, as Hugging Face's Trainer does. */
static tws_code set_learning_rate(tws_config *config, double rate, tws_error *err) {
  char text[40];
  const int cycle = config->scheduler == TWS_SCHEDULER_ONE_CYCLE;
  if (cycle || config->scheduler == TWS_SCHEDULER_LR_RANGE_TEST)
    return tws_fail(err, TWS_INVALID,
                    cycle ? "--set scheduler.params.cycle_min_lr=... --set scheduler.params.cycle_max_lr=..."
                          : "--set scheduler.params.lr_range_test_min_lr=...",
                    "--learning-rate: the schedule %s sets the learning rate itself", schedule_name(config));
  snprintf(text, sizeof text, "%.17g", rate);
  TWS_TRY(tws_config_set(config, "optimizer.params.lr", text, err));
  if (config->scheduler != TWS_SCHEDULER_WARMUP && config->scheduler != TWS_SCHEDULER_WARMUP_DECAY) return TWS_OK;
  return tws_config_set(config, "scheduler.params.warmup_max_lr", text, err);
}

static tws_code set_warmup(tws_config *config, int64_t steps, tws_error *err) {
  if (config->scheduler < TWS_SCHEDULER_WARMUP)
    return tws_fail(err, TWS_INVALID, "--set scheduler.type=WarmupLR, or WarmupDecayLR, WarmupCosineLR",
                    "--warmup-steps: the schedule (%s) has no warm-up", schedule_name(config));
  return set_integer(config, "scheduler.params.warmup_num_steps", steps, err);
}

static tws_code set_flags(tws_config *config, const tws_job_spec *o, tws_error *err) {
  if (o->stage >= 0) TWS_TRY(set_integer(config, "zero_optimization.stage", o->stage, err));
  if (o->micro_batch) TWS_TRY(set_integer(config, "train_micro_batch_size_per_gpu", o->micro_batch, err));
  if (o->accumulation) TWS_TRY(set_integer(config, "gradient_accumulation_steps", o->accumulation, err));
  if (o->dtype) TWS_TRY(set_dtype(config, o->dtype, err));
  if (o->learning_rate > 0) TWS_TRY(set_learning_rate(config, o->learning_rate, err));
  if (o->warmup_steps) TWS_TRY(set_warmup(config, o->warmup_steps, err));
  if (o->recompute) TWS_TRY(set_flag(config, "--recompute", "twinspeed.recompute", o->recompute, err));
  if (o->sequence) TWS_TRY(set_integer(config, "twinspeed.sequence_length", o->sequence, err));
  if (o->threads) TWS_TRY(set_integer(config, "twinspeed.threads", o->threads, err));
  if (o->seed >= 0) TWS_TRY(set_integer(config, "twinspeed.seed", o->seed, err));
  if (o->vocabulary_multiple)
    TWS_TRY(set_integer(config, "twinspeed.vocabulary_multiple", o->vocabulary_multiple, err));
  return set_axes(config, o, err);
}

/* Fails with TWS_INVALID if the configuration has keys without effect. */
static tws_code refuse_idle_keys(const tws_config *config, tws_error *err) {
  tws_text text = {0};
  int count = 0;
  TWS_TRY(tws_config_no_effect(config, &text, &count, err));
  tws_code code = TWS_OK;
  if (count > 0) {
    while (text.length && text.data[text.length - 1] == '\n') text.data[--text.length] = '\0';
    code = tws_fail(err, TWS_INVALID, "without --strict these are warnings", "%s", text.data);
  }
  tws_text_free(&text);
  return code;
}

tws_code tws_job_spec_input(const tws_job_spec *spec, const char **flag, tws_error *err) {
  const struct {
    const char *flag, *path;
  } files[] = {{"-m", spec->model}, {"-c", spec->config}, {"--cluster", spec->cluster}, {"--profile", spec->profile}};
  *flag = NULL;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (!files[i].path || strcmp(files[i].path, "-") != 0) continue;
    if (*flag)
      return tws_fail(err, TWS_USAGE, "save one of them to a file and give its path",
                      "%s - and %s -: standard input is one file", *flag, files[i].flag);
    *flag = files[i].flag;
  }
  return TWS_OK;
}

tws_code tws_job_spec_check_shared(const tws_job_spec *spec, tws_error *err) {
  const char *flag;
  TWS_TRY(tws_job_spec_input(spec, &flag, err));
  return flag ? tws_fail(err, TWS_USAGE, "save it to a file first and give its path",
                         "%s -: standard input is read by one process, and others are to be started", flag)
              : TWS_OK;
}

tws_code tws_job_spec_config(const tws_job_spec *spec, tws_config **out, tws_error *err) {
  tws_config *config = NULL;
  const char *input;
  *out = NULL;
  TWS_TRY(tws_job_spec_input(spec, &input, err));
  tws_code code = spec->config ? tws_config_load(spec->config, &config, err) : tws_config_default(&config, err);
  if (code == TWS_OK) code = set_overrides(config, &spec->set, err);
  if (code == TWS_OK) code = set_flags(config, spec, err);
  /* Without a configuration file no batch size was given: one sample per rank, unless elasticity chooses. A file
   * without a batch size is an error. */
  if (code == TWS_OK && !spec->config && !config->train_batch_size && !config->micro_batch_size &&
      !tws_config_is_elastic(config))
    code = set_integer(config, "train_micro_batch_size_per_gpu", 1, err);
  if (code == TWS_OK && spec->strict) code = refuse_idle_keys(config, err);
  if (code != TWS_OK) {
    tws_config_destroy(config);
    return code;
  }
  *out = config;
  return TWS_OK;
}

/* ---- arguments ---- */

typedef struct argument_list {
  tws_arena *arena;
  const char **argv;
  int capacity, count, failed;
} argument_list;

static void add_flag(argument_list *list, const char *argument) {
  if (!argument || list->count >= list->capacity)
    list->failed = 1;
  else
    list->argv[list->count++] = argument;
}

static void add_text(argument_list *list, const char *name, const char *value) {
  if (value) add_flag(list, tws_arena_printf(list->arena, "%s=%s", name, value));
}

static void add_integer(argument_list *list, const char *name, int64_t value, int given) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  if (given) add_text(list, name, text);
}

tws_code tws_job_spec_arguments(const tws_job_spec *spec, tws_arena *arena, const char **argv, int capacity, int *argc,
                                tws_error *err) {
  argument_list list = {arena, argv, capacity, *argc, 0};
  add_text(&list, "--model", spec->model);
  add_text(&list, "--config", spec->config);
  add_text(&list, "--cluster", spec->cluster);
  add_text(&list, "--profile", spec->profile);
  add_text(&list, "--runtime", spec->runtime);
  add_text(&list, "--collectives", spec->collectives);
  add_text(&list, "--allocator", spec->allocator);
  add_text(&list, "--recompute", spec->recompute);
  add_text(&list, "--dtype", spec->dtype);
  add_text(&list, "--sequence-algorithm", spec->sequence_algorithm);
  add_text(&list, "--schedule", spec->schedule);
  add_text(&list, "--axis-order", spec->axis_order);
  char rate[40];
  snprintf(rate, sizeof rate, "%.17g", spec->learning_rate);
  if (spec->learning_rate > 0) add_text(&list, "--learning-rate", rate);
  add_integer(&list, "--warmup-steps", spec->warmup_steps, spec->warmup_steps > 0);
  add_integer(&list, "--ranks", spec->ranks, spec->ranks > 0);
  add_integer(&list, "--stage", spec->stage, spec->stage >= 0);
  add_integer(&list, "--pp", spec->pipeline_stages, spec->pipeline_stages > 0);
  add_integer(&list, "--tp", spec->tensor_ranks, spec->tensor_ranks > 0);
  add_integer(&list, "--sp", spec->sequence_ranks, spec->sequence_ranks > 0);
  add_integer(&list, "--ep", spec->expert_ranks, spec->expert_ranks > 0);
  add_integer(&list, "--virtual-stages", spec->virtual_stages, spec->virtual_stages > 0);
  if (spec->sequence_parallel) add_flag(&list, "--sequence-parallel");
  add_integer(&list, "--seq", spec->sequence, spec->sequence > 0);
  add_integer(&list, "--micro-batch", spec->micro_batch, spec->micro_batch > 0);
  add_integer(&list, "--accumulation", spec->accumulation, spec->accumulation > 0);
  add_integer(&list, "--threads", spec->threads, spec->threads > 0);
  add_integer(&list, "--vocab-multiple", spec->vocabulary_multiple, spec->vocabulary_multiple > 0);
  add_integer(&list, "--seed", spec->seed, spec->seed >= 0);
  for (int i = 0; i < spec->set.count; i++) add_text(&list, "--set", spec->set.item[i]);
  for (int i = 0; i < spec->measured.count; i++) add_text(&list, "--measured", spec->measured.item[i]);
  *argc = list.count;
  return list.failed ? tws_fail(err, TWS_MEMORY, NULL, "too many arguments for the ranks' command line") : TWS_OK;
}

void tws_job_spec_infer(tws_job_spec *spec) {
  static const char *const settings[] = {"train_batch_size=auto", "twinspeed.loss_tiles=1", "elasticity.enabled=false"};
  if (spec->micro_batch < 1) spec->micro_batch = 1;
  if (spec->accumulation < 1) spec->accumulation = 1;
  for (int i = 0; i < 3 && spec->set.count < TWS_MAX_STRINGS; i++) spec->set.item[spec->set.count++] = settings[i];
}

void tws_job_spec_generate(tws_job_spec *spec) {
  const int64_t stages = spec->pipeline_stages > 0 ? spec->pipeline_stages : 1;
  const int64_t experts = spec->expert_ranks > 0 ? spec->expert_ranks : 1;
  const int partitions = spec->stage == 3; /* ZeRO-Inference: replicas divide the weights */
  /* ranks that no option divides otherwise are tensor ranks */
  if (spec->tensor_ranks < 1)
    spec->tensor_ranks = experts == 1 && !partitions && spec->ranks > stages ? spec->ranks / stages : 1;
  if (spec->ranks < 1) spec->ranks = stages * spec->tensor_ranks * experts;
  if (spec->vocabulary_multiple < 1 && spec->tensor_ranks > 1) spec->vocabulary_multiple = spec->tensor_ranks;
  spec->micro_batch = spec->accumulation = 1;
  spec->pipeline_stages = stages;
  spec->virtual_stages = spec->sequence_ranks = 1;
  spec->expert_ranks = experts;
  if (!partitions) spec->stage = 0;
  tws_job_spec_infer(spec);
}
