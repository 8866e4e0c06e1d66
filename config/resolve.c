/* Resolves values that depend on the number of ranks and on the model ("auto", the batch keys), and refuses
 * combinations of keys that are not legal or not supported. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/elasticity.h"
#include "config/store.h"

/* ---- the batch triple ---- */

static tws_code require_positive(int64_t value, const char *key, tws_error *err) {
  if (value > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "train_batch_size must be micro batch x accumulation steps x ranks",
                  "%s is %lld and has to be greater than 0", key, (long long)value);
}

/* Writes a hint with the nearest train batch size that is a multiple of `world` ranks x `other`, the other batch key
 * that is given (1: none). */
static void nearest_batch(int64_t train, int64_t other, int64_t world, char *hint, size_t size) {
  int64_t unit;
  snprintf(hint, size, "leave out one of the three keys, or change the number of ranks");
  if (__builtin_mul_overflow(other, world, &unit) || unit > INT64_MAX / 4) return;
  const int64_t below = train - train % unit;
  if (below > 0)
    snprintf(hint, size, "use a train_batch_size of %lld or %lld", (long long)below, (long long)(below + unit));
  else
    snprintf(hint, size, "use a train_batch_size of %lld or a multiple of it", (long long)unit);
}

/* Resolves the three batch keys, of which any one or two may be missing (0), for `world` replicas, as DeepSpeed
 * does. */
static tws_code batch_resolve(int64_t *train, int64_t *micro, int64_t *accumulation, int64_t world, tws_error *err) {
  int64_t t = *train, m = *micro, g = *accumulation, product = 0;
  if (world < 1)
    return tws_fail(err, TWS_INVALID, NULL, "%lld data-parallel ranks: at least one is needed", (long long)world);
  if (!t && !m)
    return tws_fail(err, TWS_INVALID,
                    "give one of the two: --micro-batch 1, or \"train_micro_batch_size_per_gpu\": 1 in the file",
                    "either train_batch_size or train_micro_batch_size_per_gpu is needed");
  if (t) TWS_TRY(require_positive(t, "train_batch_size", err));
  if (m) TWS_TRY(require_positive(m, "train_micro_batch_size_per_gpu", err));
  if (g) TWS_TRY(require_positive(g, "gradient_accumulation_steps", err));
  const int all = t && m && g;
  const int64_t other = m ? m : g ? g : 1;
  if (t && m && !g)
    g = t / m / world;
  else if (t && !m)
    m = t / world / (g ? g : 1);
  if (!g && !(t && *micro)) g = 1;
  int overflow = __builtin_mul_overflow(m, g, &product) || __builtin_mul_overflow(product, world, &product);
  if (!t) t = product;
  *train = t;
  *micro = m;
  *accumulation = g;
  if (overflow) return tws_fail(err, TWS_INVALID, NULL, "the batch does not fit 64 bits");
  char hint[160];
  if (all)
    snprintf(hint, sizeof hint, "leave out one of the three keys, or use train_batch_size %lld", (long long)product);
  else
    nearest_batch(t, other, world, hint, sizeof hint);
  if (m < 1 || g < 1)
    return tws_fail(err, TWS_INVALID, hint,
                    "train_batch_size %lld is too small for %lld data-parallel rank%s: %s would be 0", (long long)t,
                    (long long)world, world == 1 ? "" : "s",
                    m < 1 ? "train_micro_batch_size_per_gpu" : "gradient_accumulation_steps");
  if (t == product) return TWS_OK;
  return tws_fail(err, TWS_INVALID, hint,
                  "train_batch_size %lld is not micro batch x accumulation steps x ranks = %lld x %lld x %lld = %lld",
                  (long long)t, (long long)m, (long long)g, (long long)world, (long long)product);
}

static tws_code resolve_batch(tws_config *config, int64_t ranks, tws_error *err) {
  struct tws_config_store *store = config->store;
  int64_t *field[3] = {&config->train_batch_size, &config->micro_batch_size, &config->accumulation_steps};
  int given[3];
  for (int i = 0; i < 3; i++) { /* values that an earlier call derived are reset, and derived again */
    if (store->derived[i] && *field[i] == store->derived[i]) *field[i] = 0;
    given[i] = *field[i] != 0;
  }
  tws_code code = batch_resolve(field[0], field[1], field[2], ranks, err);
  for (int i = 0; i < 3; i++) {
    if (code != TWS_OK && !given[i]) *field[i] = 0;
    store->derived[i] = given[i] ? 0 : *field[i];
  }
  if (code == TWS_OK) return code;
  static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps"};
  tws_given at = {NULL, store->origin};
  for (int i = 0; i < 3 && !at.item; i++) at = tws_store_at(store, keys[i]); /* the first key that is given */
  if (!at.item) at.source = store->origin;
  tws_error why = *err;
  if (tws_given_auto(at) && !config->train_batch_size && !config->micro_batch_size)
    return tws_store_fail(store, at, code, err, "--micro-batch N says what \"auto\" leaves to Hugging Face's Trainer",
                          "the batch keys are \"auto\", and nothing says what that is here");
  return tws_store_fail(store, at, code, err, why.hint, "%s", why.message);
}

/* ---- elasticity: a batch for many numbers of ranks ---- */

static int64_t whole_at(const struct tws_config_store *store, const char *path, int64_t otherwise) {
  const tws_given given = tws_store_at(store, path);
  int64_t value;
  return given.item && tws_json_integer(given.source->json, given.item, &value, NULL) ? value : otherwise;
}

static tws_elastic read_elastic(const struct tws_config_store *store) {
  const tws_given version = tws_store_at(store, "elasticity.version"),
                  micro = tws_store_at(store, "elasticity.micro_batch_sizes"),
                  larger = tws_store_at(store, "elasticity.prefer_larger_batch");
  tws_elastic e = {.version = cJSON_IsNumber(version.item) ? version.item->valuedouble : 0.2,
                   .max_batch = whole_at(store, "elasticity.max_train_batch_size", 0),
                   .min_gpus = whole_at(store, "elasticity.min_gpus", 1),
                   .max_gpus = whole_at(store, "elasticity.max_gpus", 10000),
                   .gpus_per_node = whole_at(store, "elasticity.num_gpus_per_node", 1),
                   .model_parallel = whole_at(store, "elasticity.model_parallel_size", 1),
                   .prefer_smaller = larger.item && !tws_given_true(larger)};
  const cJSON *one;
  cJSON_ArrayForEach(one, micro.item) {
    int64_t samples;
    if (e.micro_count < TWS_ELASTIC_MICROS && tws_json_integer(micro.source->json, one, &samples, NULL))
      e.micro[e.micro_count++] = samples;
  }
  return e;
}

tws_code tws_config_elastic(const tws_config *config, tws_elastic *out, tws_error *err) {
  const struct tws_config_store *store = config->store;
  const tws_given enabled = tws_store_at(store, "elasticity.enabled");
  *out = read_elastic(store);
  if (tws_given_true(enabled)) return TWS_OK;
  return tws_store_fail(store, enabled, TWS_INVALID, err, "\"elasticity\": {\"enabled\": true, ...}",
                        enabled.item ? "elasticity is switched off" : "there is no elasticity that is enabled");
}

/* Sets the three batch values to those that elasticity chooses for this number of ranks. */
static tws_code resolve_elastic(tws_config *config, int64_t ranks, int64_t replicas, tws_error *err) {
  struct tws_config_store *store = config->store;
  const tws_elastic elastic = read_elastic(store);
  const int64_t world = elastic.version < 0.2 ? replicas : ranks;
  tws_elastic_choice choice;
  tws_error why = {0};
  tws_code code = tws_elastic_choose(&elastic, world, &choice, &why);
  if (code == TWS_OK && elastic.version >= 0.2 && elastic.model_parallel * replicas != ranks)
    code = tws_fail(&why, TWS_INVALID, "let them agree",
                    "elasticity.model_parallel_size is %lld, and %lld ranks are %lld replicas",
                    (long long)elastic.model_parallel, (long long)ranks, (long long)replicas);
  if (code == TWS_OK && (choice.micro < 1 || choice.batch % (choice.micro * replicas) != 0))
    code = tws_fail(&why, TWS_INVALID, "add micro batches, or use another number of ranks",
                    "elasticity: no micro batch divides its batch of %lld among %lld ranks", (long long)choice.batch,
                    (long long)replicas);
  tws_free(choice.gpus);
  if (code != TWS_OK)
    return tws_store_fail(store, tws_store_at(store, "elasticity.enabled"), code, err, why.hint[0] ? why.hint : NULL,
                          "%s", why.message);
  config->train_batch_size = store->derived[0] = choice.batch;
  config->micro_batch_size = store->derived[1] = choice.micro;
  config->accumulation_steps = store->derived[2] = choice.batch / (choice.micro * replicas);
  return TWS_OK;
}

int tws_config_is_elastic(const tws_config *config) {
  return tws_given_true(tws_store_at(config->store, "elasticity.enabled"));
}

tws_code tws_config_elastic_batch(const tws_config *config, int64_t ranks, int64_t replicas, int64_t *micro,
                                  int64_t *accumulation, tws_error *err) {
  tws_config *copy;
  TWS_TRY(tws_config_clone(config, &copy, err));
  tws_code code = resolve_elastic(copy, ranks, replicas, err);
  *micro = copy->micro_batch_size;
  *accumulation = copy->accumulation_steps;
  tws_config_destroy(copy);
  return code;
}

/* ---- "auto" ---- */

static tws_code resolve_auto(tws_config *config, const tws_auto_context *context, tws_error *err) {
  const struct tws_config_store *store = config->store;
  int64_t hidden = context ? context->hidden_size : 0, square = 0;
  int overflow = __builtin_mul_overflow(hidden, hidden, &square) || square > INT64_MAX / 10;
  const struct {
    const char *path;
    int64_t *field, value;
  } sizes[] = {
      {"zero_optimization.reduce_bucket_size", &config->zero.reduce_bucket_size, square},
      {"zero_optimization.stage3_prefetch_bucket_size", &config->zero.prefetch_bucket_size,
       overflow ? 0 : (int64_t)(0.9 * (double)square)},
      {"zero_optimization.stage3_param_persistence_threshold", &config->zero.param_persistence_threshold, 10 * hidden},
  };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    tws_given given = tws_store_at(store, sizes[i].path);
    if (!tws_given_auto(given)) continue;
    if (hidden < 1 || overflow)
      return tws_store_fail(store, given, TWS_INVALID, err, "give a number",
                            "\"%s\" is \"auto\", which needs the hidden size of a model", sizes[i].path);
    *sizes[i].field = sizes[i].value;
  }
  return TWS_OK;
}

/* ---- combinations of keys that are refused ---- */

typedef struct rules {
  const tws_config *config;
  const struct tws_config_store *store;
  tws_error *err;
} rules;

static tws_given given_at(const rules *r, const char *path) {
  return tws_store_at(r->store, path);
}
static int is_on(const rules *r, const char *path) {
  return tws_given_true(given_at(r, path));
}

#define REFUSE(r, path, code, hint, ...) \
  tws_store_fail((r)->store, given_at(r, path), code, (r)->err, hint, __VA_ARGS__)

static tws_code check_loss_scale(const rules *r) {
  const tws_config *c = r->config;
  if (c->dtype != TWS_F16) return TWS_OK;
  if (c->fp16_masters && !(c->zero.stage > 0 && c->zero.offload_optimizer))
    return REFUSE(
        r, "fp16.fp16_master_weights_and_grads", TWS_INVALID, "set zero_optimization.offload_optimizer.device to cpu",
        "fp16_master_weights_and_grads needs offload_optimizer: as in DeepSpeed, the host updates such weights");
  if (c->fp16_masters && c->accumulation_dtype != TWS_F16)
    return REFUSE(
        r, "data_types.grad_accum_dtype", TWS_INVALID, "leave it out, or use fp16",
        "\"fp16.fp16_master_weights_and_grads\" keeps gradients in fp16, and data_types.grad_accum_dtype is %s",
        tws_dtype_name(c->accumulation_dtype));
  if (c->accumulation_dtype == TWS_BF16)
    return REFUSE(r, "data_types.grad_accum_dtype", TWS_UNSUPPORTED, "use fp16 or fp32",
                  "gradients of fp16 training do not add up in bf16");
  if (c->fp16.loss_scale > 0 && c->fp16.loss_scale < 0x1p-100)
    return REFUSE(r, "fp16.loss_scale", TWS_INVALID, "use 0 for a scale that adapts itself",
                  "fp16.loss_scale %g is too small", c->fp16.loss_scale);
  if (c->fp16.loss_scale > 0 || (double)c->fp16.minimum <= ldexp(1, (int)c->fp16.initial_power)) return TWS_OK;
  return REFUSE(r, "fp16.min_loss_scale", TWS_INVALID, "raise the power, or lower the minimum",
                "fp16.min_loss_scale %lld is above the first scale, 2^%lld", (long long)c->fp16.minimum,
                (long long)c->fp16.initial_power);
}

static int given_integer(tws_given given, int64_t *value) {
  return given.item && tws_json_integer(given.source->json, given.item, value, NULL);
}

static tws_code check_precision(const rules *r) {
  int stage = r->config->zero.stage;
  static const char *const names[] = {"fp32", "bf16", "fp16"};
  const char *model = names[r->config->dtype == TWS_BF16 ? 1 : r->config->dtype == TWS_F16 ? 2 : 0];
  if (is_on(r, "fp16.enabled") && is_on(r, "bf16.enabled"))
    return REFUSE(r, "bf16.enabled", TWS_INVALID, "enable one of them", "fp16 and bf16 are both enabled");
  const char *param = tws_given_text(given_at(r, "data_types.param_dtype"));
  if (param && strcmp(param, "auto") != 0 && strcmp(param, model) != 0)
    return REFUSE(r, "data_types.param_dtype", TWS_INVALID, "leave it out: it follows from fp16 and bf16",
                  "data_types.param_dtype is %s, but fp16 and bf16 make it %s", param, model);
  static const char *const masters[] = {"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads",
                                        "bf16.bf16_optimizer_states"};
  for (int i = 0; i < 3; i++)
    if (is_on(r, masters[i]) && stage < 1)
      return REFUSE(r, masters[i], TWS_INVALID, "set zero_optimization.stage to 1", "\"%s\" needs ZeRO stage 1, 2 or 3",
                    masters[i]);
  if (is_on(r, masters[2]) && !is_on(r, masters[1]))
    return REFUSE(r, masters[2], TWS_INVALID, "set both, or leave it out", "\"%s\" needs \"%s\"", masters[2],
                  masters[1]);
  if (tws_config_bf16_masters(r->config) && r->config->accumulation_dtype != TWS_BF16)
    return REFUSE(r, "data_types.grad_accum_dtype", TWS_INVALID, "leave it out, or use bf16",
                  "\"%s\" keeps gradients in bf16, and data_types.grad_accum_dtype is %s", masters[1],
                  tws_dtype_name(r->config->accumulation_dtype));
  if (stage == 0 && r->config->accumulation_dtype != r->config->dtype)
    return REFUSE(r, "data_types.grad_accum_dtype", TWS_INVALID, "use ZeRO stage 1, or leave it out",
                  "gradients in another type than the model's need ZeRO");
  if (r->config->accumulation_dtype == TWS_F16 && r->config->dtype != TWS_F16)
    return REFUSE(r, "data_types.grad_accum_dtype", TWS_UNSUPPORTED, "use fp32, or enable fp16",
                  "gradients add up in fp16 only where fp16 is enabled: nothing else scales the loss");
  TWS_TRY(check_loss_scale(r));
  if (!tws_store_has(r->store, "amp")) return TWS_OK;
  if (!given_at(r, "amp.enabled").item)
    return REFUSE(r, "amp.enabled", TWS_INVALID, NULL, "section \"amp\" needs the key \"enabled\"");
  if (is_on(r, "amp.enabled"))
    return REFUSE(r, "amp.enabled", stage > 0 ? TWS_INVALID : TWS_UNSUPPORTED, "use fp16 or bf16",
                  stage > 0 ? "amp does not go with ZeRO" : "Apex mixed precision (amp) is not supported");
  return TWS_OK;
}

static tws_code check_reduction(const rules *r) {
  int stage = r->config->zero.stage;
  const char *op = tws_given_text(given_at(r, "gradient_allreduce_op"));
  int sum = op && tws_key_word("sum", op, 1) == 0;
  if (sum && stage == 3)
    return REFUSE(r, "gradient_allreduce_op", TWS_INVALID, NULL, "gradient_allreduce_op sum does not go with stage 3");
  if (sum && r->config->zenflow.on)
    return REFUSE(r, "gradient_allreduce_op", TWS_INVALID, "set it to mean",
                  "gradient_allreduce_op sum does not go with zero_optimization.zenflow");
  if (sum)
    return REFUSE(r, "gradient_allreduce_op", TWS_UNSUPPORTED, "scale the learning rate instead",
                  "gradient_allreduce_op sum is not supported");
  if (is_on(r, "sparse_gradients") && stage > 0)
    return REFUSE(r, "sparse_gradients", TWS_INVALID, NULL, "sparse_gradients needs ZeRO stage 0");
  if (r->config->zero.reduce_scatter && stage >= 2) {
    tws_given factor = given_at(r, "gradient_predivide_factor");
    if (is_on(r, "prescale_gradients"))
      return REFUSE(r, "prescale_gradients", TWS_INVALID, "set one of them to false",
                    "prescale_gradients does not go with reduce_scatter at stage %d", stage);
    if (cJSON_IsNumber(factor.item) && factor.item->valuedouble != 1)
      return REFUSE(r, "gradient_predivide_factor", TWS_INVALID,
                    "leave it out, or set zero_optimization.reduce_scatter to false",
                    "gradient_predivide_factor must be 1 with reduce_scatter at stage %d", stage);
  }
  int64_t size;
  static const char gathers[] = "zero_optimization.allgather_bucket_size";
  if (stage >= 1 && stage <= 2 && tws_given_integer(tws_key_at(gathers), given_at(r, gathers), &size) && size % 2)
    return REFUSE(r, gathers, TWS_INVALID, NULL, "%s must be even at stage %d, not %lld", gathers, stage,
                  (long long)size);
  return TWS_OK;
}

/* Checks the section "aio", only if it is used, as DeepSpeed does. */
static tws_code check_aio(const rules *r) {
  static const struct {
    const char *path;
    int64_t least, most;
  } rows[] = {{"aio.block_size", 4096, 1 << 30}, {"aio.queue_depth", 1, 1024}, {"aio.intra_op_parallelism", 1, 64}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int64_t value;
    const tws_given given = given_at(r, rows[i].path);
    if (!given.item) continue;
    if (!given_integer(given, &value) || value < rows[i].least || value > rows[i].most)
      return REFUSE(r, rows[i].path, TWS_INVALID, NULL, "%s must be an integer from %lld to %lld", rows[i].path,
                    (long long)rows[i].least, (long long)rows[i].most);
  }
  return TWS_OK;
}

static tws_code check_offload(const rules *r) {
  const tws_zero_config *z = &r->config->zero;
  tws_given ratio = given_at(r, "zero_optimization.offload_optimizer.ratio");
  if (is_on(r, "zero_optimization.legacy_stage1"))
    return REFUSE(r, "zero_optimization.legacy_stage1", TWS_INVALID, "leave it out",
                  "zero_optimization.legacy_stage1 no longer exists");
  if (cJSON_IsNumber(ratio.item) && ratio.item->valuedouble < 1 && z->stage != 3)
    return REFUSE(r, "zero_optimization.offload_optimizer.ratio", TWS_INVALID, NULL,
                  "zero_optimization.offload_optimizer.ratio below 1 needs stage 3");
  /* at ZeRO stages that do not support offloading, these sections have no effect, as in DeepSpeed; a warning reports
   * this */
  const int optimizer = z->stage > 0 ? z->offload_optimizer : 0, parameters = z->stage == 3 ? z->offload_param : 0;
  if (optimizer > 1 || parameters > 1) TWS_TRY(check_aio(r));
  const char *const folder = r->config->optimizer_path, *const other = r->config->param_path;
  if (optimizer > 1 && parameters > 1 && folder && other && strcmp(folder, other) != 0)
    return REFUSE(r, "zero_optimization.offload_param.nvme_path", TWS_UNSUPPORTED, "give the same folder for both",
                  "a rank has one swap file, and offload_param and offload_optimizer give two folders");
  return TWS_OK;
}

/* Checks the delayed update, with which the host runs the complete optimizer from host memory while the device
 * computes. */
static tws_code check_delayed(const rules *r) {
  static const char key[] = "twinspeed.delayed_update";
  const tws_config *c = r->config;
  if (!c->delayed_update) return TWS_OK;
  if (c->zero.stage < 1 || c->zero.offload_optimizer != 1)
    return REFUSE(r, key, TWS_INVALID, "set zero_optimization.offload_optimizer.device to cpu, at stage 1, 2 or 3",
                  "%s is the host's: its optimizer works from the host's memory", key);
  if (c->zero.offload_param == 2 && c->zero.stage == 3)
    return REFUSE(r, key, TWS_UNSUPPORTED, "set zero_optimization.offload_param.device to cpu",
                  "%s and parameters on a disk do not go together: they are written back while they are read", key);
  if (c->zero.offload_optimizer_ratio < 1)
    return REFUSE(r, key, TWS_UNSUPPORTED, "set zero_optimization.offload_optimizer.ratio to 1",
                  "%s makes all of the optimizer late, and a part of it would stay on the device", key);
  if (c->pipeline_stages > 1)
    return REFUSE(r, key, TWS_UNSUPPORTED, "set pipeline.stages to 1",
                  "%s does not go with a pipeline, whose bubbles the host's work does not fill", key);
  return TWS_OK;
}

/* Refuses unknown words given for ZenFlow's intervals, and intervals that are not multiples of each other. */
static tws_code check_zenflow_intervals(const rules *r) {
  static const char select[] = "zero_optimization.zenflow.select_interval";
  static const char *const keys[] = {select, "zero_optimization.zenflow.update_interval"};
  const tws_zenflow *zen = &r->config->zenflow;
  for (int i = 0; i < 2; i++) {
    const tws_given given = given_at(r, keys[i]);
    if (tws_given_text(given) && !tws_given_auto(given))
      return REFUSE(r, keys[i], TWS_INVALID, "give a number of steps, or \"auto\"", "%s is \"%.40s\"", keys[i],
                    tws_given_text(given));
  }
  if (zen->strategy == TWS_ZENFLOW_EPOCH && zen->steps_per_epoch == 0)
    return REFUSE(r, "zero_optimization.zenflow.select_strategy", TWS_INVALID,
                  "give zero_optimization.zenflow.steps_per_epoch, or set select_strategy to step",
                  "zero_optimization.zenflow.select_strategy epoch needs the steps of an epoch");
  const int64_t updates = tws_zenflow_update_interval(r->config), chosen = zen->select_interval;
  const int in_steps =
      zen->strategy == TWS_ZENFLOW_STEP || (zen->strategy == TWS_ZENFLOW_AUTO && !zen->steps_per_epoch);
  if (!in_steps || tws_zenflow_measures(r->config) || chosen % updates == 0) return TWS_OK;
  char hint[96];
  snprintf(hint, sizeof hint, "use %lld, or another multiple of update_interval",
           (long long)((chosen + updates - 1) / updates * updates));
  return REFUSE(r, select, TWS_UNSUPPORTED, hint,
                "%s of %lld is no multiple of the update_interval of %lld: columns are reselected after an update",
                select, (long long)chosen, (long long)updates);
}

/* Checks ZenFlow, with which the device updates selected columns from optimizer states that the host stores for all
 * columns. */
static tws_code check_zenflow(const rules *r) {
  static const char key[] = "zero_optimization.zenflow";
  const tws_config *c = r->config;
  if (!c->zenflow.on) return TWS_OK;
  if (c->zero.stage < 1 || c->zero.offload_optimizer != 1)
    return REFUSE(r, key, TWS_INVALID, "set zero_optimization.offload_optimizer.device to cpu, at stage 1, 2 or 3",
                  "%s needs offload_optimizer on the cpu", key);
  if (c->zenflow.offload && !c->zero.overlap_comm)
    return REFUSE(r, "zero_optimization.zenflow.offload", TWS_INVALID, "set overlap_comm to true",
                  "%s.offload needs overlap_comm", key);
  if (c->zenflow.offload)
    return REFUSE(r, "zero_optimization.zenflow.offload", TWS_UNSUPPORTED,
                  "set it to false, and topk_ratio lower where the device has no room",
                  "%s.offload: states of chosen columns stay on the device, which updates them in every step", key);
  if (c->delayed_update)
    return REFUSE(r, "twinspeed.delayed_update", TWS_UNSUPPORTED, "leave out one of the two",
                  "twinspeed.delayed_update and %s do not go together: each says when the host updates", key);
  if (c->zero.offload_optimizer_ratio < 1)
    return REFUSE(r, "zero_optimization.offload_optimizer.ratio", TWS_UNSUPPORTED,
                  "set zero_optimization.offload_optimizer.ratio to 1",
                  "%s says what the device updates, and so does offload_optimizer.ratio", key);
  if (c->zero.offload_param && c->zero.stage == 3)
    return REFUSE(r, "zero_optimization.offload_param.device", TWS_UNSUPPORTED,
                  "set zero_optimization.offload_param.device to none",
                  "%s updates weights on the device, and offload_param keeps them elsewhere", key);
  if (tws_config_half_masters(c))
    return REFUSE(r, c->dtype == TWS_F16 ? "fp16.fp16_master_weights_and_grads" : "bf16.bf16_master_weights_and_grads",
                  TWS_UNSUPPORTED, "set it to false",
                  "%s adds up gradients for several steps, in float32, for masters in float32", key);
  if (c->pipeline_stages > 1)
    return REFUSE(r, key, TWS_UNSUPPORTED, "set pipeline.stages to 1",
                  "%s does not go with a pipeline, whose stages have different matrices", key);
  return check_zenflow_intervals(r);
}

/* Refuses sizes of tensor and sequence parallelism that are wrong for every number of ranks. */
static tws_code check_sizes(const rules *r) {
  const tws_config *c = r->config;
  int64_t outer, inner, tokens = c->sequence_length, ranks = c->sequence_ranks;
  if (given_integer(given_at(r, "tensor_parallel.autotp_size"), &outer) &&
      given_integer(given_at(r, "tensor_parallel.tensor_parallel.tp_size"), &inner) && (outer > 1 ? outer : 1) != inner)
    return REFUSE(r, "tensor_parallel.tensor_parallel.tp_size", TWS_INVALID, "keep one of them",
                  "tensor_parallel.autotp_size is %lld and tensor_parallel.tensor_parallel.tp_size is %lld",
                  (long long)outer, (long long)inner);
  if (ranks > 1 && tokens % ranks) {
    char hint[96];
    int64_t below = tokens - tokens % ranks;
    if (below)
      snprintf(hint, sizeof hint, "use a sequence of %lld or %lld tokens", (long long)below,
               (long long)(below + ranks));
    else
      snprintf(hint, sizeof hint, "use a sequence of %lld tokens", (long long)ranks);
    return REFUSE(r, "sequence_parallel_size", TWS_INVALID, hint,
                  "sequence_parallel_size %lld does not divide a sequence of %lld tokens", (long long)ranks,
                  (long long)tokens);
  }
  return TWS_OK;
}

static tws_code check_parallelism(const rules *r) {
  int64_t count;
  if (given_integer(given_at(r, "pipeline.stages"), &count) && count > 1) {
    if (r->config->zero.stage >= 2)
      return REFUSE(r, "pipeline.stages", TWS_INVALID, "use stage 0 or 1",
                    "ZeRO stage %d does not go with pipeline parallelism", r->config->zero.stage);
  }
  TWS_TRY(check_sizes(r));
  if (!is_on(r, "elasticity.enabled")) return TWS_OK;
  if (!is_on(r, "elasticity.ignore_non_elastic_batch_info")) {
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    for (int i = 0; i < 3; i++)
      if (given_at(r, keys[i]).item)
        return REFUSE(r, keys[i], TWS_INVALID, "leave it out, or set elasticity.ignore_non_elastic_batch_info",
                      "\"%s\" is given, and elasticity chooses it", keys[i]);
  }
  return TWS_OK;
}

static tws_code refuse_argument(const rules *r, const tws_key *key, const char *type, const char *owners) {
  char hint[192];
  snprintf(hint, sizeof hint, "it belongs to %s", owners);
  return tws_store_fail(r->store, tws_store_get(r->store, key), TWS_INVALID, r->err, hint, "%s takes no \"%s\"", type,
                        strrchr(key->path, '.') + 1);
}

/* Refuses arguments that the chosen optimizer does not take. */
static tws_code check_optimizer_arguments(const rules *r, const tws_optimizer_row *row) {
  for (size_t i = 0; i < tws_key_count; i++) {
    const char *argument = tws_key_optimizer_argument(tws_keys[i].path);
    char takers[160];
    if (!argument || tws_optimizer_has_argument(row, argument) || !tws_store_get(r->store, &tws_keys[i]).item) continue;
    tws_optimizer_types_with_argument(argument, takers, sizeof takers);
    return refuse_argument(r, &tws_keys[i], row->type, takers);
  }
  return TWS_OK;
}

/* Refuses arguments that the chosen schedule does not take. */
static tws_code check_arguments(const rules *r, const char *section, const char *type) {
  size_t length = strlen(section);
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (!key->owners || strncmp(key->path, section, length) != 0) continue;
    if (!tws_store_get(r->store, key).item || tws_key_word(key->owners, type, 1) >= 0) continue;
    return refuse_argument(r, key, type, key->owners);
  }
  return TWS_OK;
}

/* Refuses settings that cannot be combined with an optimizer whose ranks communicate signs (plan/compressed.c). */
static tws_code check_compression(const rules *r, const tws_optimizer_row *row) {
  const tws_config *c = r->config;
  if (row->phases == TWS_PHASES_ONE) return TWS_OK;
  if (tws_config_bf16_masters(c))
    return REFUSE(r, "bf16.bf16_master_weights_and_grads", TWS_UNSUPPORTED, "leave it out",
                  "%s keeps float32 master weights and moments", row->type);
  if (c->expert_ranks > 1)
    return REFUSE(r, "twinspeed.expert_parallel_size", TWS_UNSUPPORTED, "use 1",
                  "%s compresses momenta that all replicas have, and experts are divided among them", row->type);
  if (row->phases == TWS_PHASES_INTERVALS && c->sequence_ranks > 1)
    return REFUSE(r, "sequence_parallel_size", TWS_UNSUPPORTED, "use 1",
                  "with %s ranks update their weights alone in between, and the ranks of a sequence need equal ones",
                  row->type);
  return TWS_OK;
}

static tws_code check_optimizer(const rules *r) {
  const char *type = tws_given_text(given_at(r, "optimizer.type"));
  const tws_optimizer_row *row = type ? tws_optimizer_find(type) : tws_optimizer_of(TWS_OPTIMIZER_ADAMW);
  if (row && row->without_zero && r->config->zero.stage > 0)
    return REFUSE(r, "optimizer.type", TWS_INVALID, "use stage 0",
                  row->phases != TWS_PHASES_ONE
                      ? "optimizer %.40s does not go with ZeRO: each rank compresses whole momenta"
                      : "optimizer %.40s does not go with ZeRO",
                  row->type);
  if (!row || row->optimizer < 0) {
    char known[256], hint[288];
    tws_optimizer_list(known, sizeof known);
    snprintf(hint, sizeof hint, "use %s", known);
    return REFUSE(r, "optimizer.type", TWS_UNSUPPORTED, hint, "optimizer \"%.60s\" is not supported",
                  row ? row->type : type);
  }
  TWS_TRY(check_optimizer_arguments(r, row));
  static const char *const absent[] = {"optimizer.params.eps_inside_sqrt", "optimizer.params.amsgrad"};
  for (int i = 0; i < 2; i++)
    if (is_on(r, absent[i]))
      return REFUSE(r, absent[i], TWS_UNSUPPORTED, "leave it out", "%s with %s is not supported", row->type,
                    tws_key_optimizer_argument(absent[i]));
  if (row->adapted_scale && r->config->dtype == TWS_F16 && r->config->fp16.loss_scale > 0)
    return REFUSE(r, "fp16.loss_scale", TWS_INVALID, "use 0 for a scale that adapts itself",
                  "%s needs a loss scale that adapts itself", row->type);
  TWS_TRY(check_compression(r, row));
  if (row->by_tensor && tws_config_offloads(r->config))
    return REFUSE(r, "optimizer.type", TWS_UNSUPPORTED,
                  "set the devices of offload_optimizer and offload_param to none",
                  "%s does not go with offloading: norms of parameters are computed on the device", row->type);
  if (r->config->min_coeff > r->config->max_coeff)
    return REFUSE(r, "optimizer.params.min_coeff", TWS_INVALID, NULL, "min_coeff %g is above max_coeff %g",
                  r->config->min_coeff, r->config->max_coeff);
  if (r->config->factor_min > r->config->factor_max)
    return REFUSE(r, "optimizer.params.factor_min", TWS_INVALID, NULL, "factor_min %g is above factor_max %g",
                  r->config->factor_min, r->config->factor_max);
  if (r->config->nesterov && (r->config->momentum == 0 || r->config->dampening != 0))
    return REFUSE(r, "optimizer.params.nesterov", TWS_INVALID, "give a momentum above 0, and leave dampening out",
                  "nesterov needs a momentum, and no dampening");
  if (r->config->beta1 >= 1 || r->config->beta2 >= 1)
    return REFUSE(r, "optimizer.params.betas", TWS_INVALID, NULL, "betas must be below 1");
  return TWS_OK;
}

static tws_code check_param_groups(const rules *r) {
  TWS_TRY(tws_config_check_muon(r->config, r->err));
  TWS_TRY(tws_config_check_split_masters(r->config, r->err));
  TWS_TRY(tws_config_check_factored(r->config, r->err));
  TWS_TRY(tws_config_check_eight_bits(r->config, r->err));
  return tws_config_check_param_groups(r->config, r->err);
}

static tws_code check_scheduler(const rules *r) {
  const char *type = tws_given_text(given_at(r, "scheduler.type"));
  if (!type) return TWS_OK;
  if (r->config->scheduler == TWS_SCHEDULER_NONE) {
    static const char *const known[] = {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    const char *close = tws_closest(type, known, 5);
    char hint[192];
    snprintf(hint, sizeof hint,
             close ? "did you mean \"%s\"?"
                   : "use LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR or "
                     "WarmupCosineLR%s",
             close ? close : "");
    return REFUSE(r, "scheduler.type", TWS_UNSUPPORTED, hint, "learning rate schedule \"%.60s\" is not supported",
                  type);
  }
  TWS_TRY(check_arguments(r, "scheduler.params.", type));
  static const struct {
    const char *key, *types;
  } required[] = {{"scheduler.params.cycle_min_lr", "OneCycle"},
                  {"scheduler.params.cycle_max_lr", "OneCycle"},
                  {"scheduler.params.total_num_steps", "WarmupDecayLR|WarmupCosineLR"}};
  for (size_t i = 0; i < sizeof required / sizeof *required; i++)
    if (tws_key_word(required[i].types, type, 0) >= 0 && !given_at(r, required[i].key).item)
      return REFUSE(r, "scheduler.type", TWS_INVALID, NULL, "%s needs \"%s\"", type, required[i].key);
  return TWS_OK;
}

#define RECOMPUTED "norm|activation|sum|product|attention|mlp" /* in the order of tws_recomputed */
static tws_code check_recomputation(const rules *r) {
  const char *names = r->config->recompute_operations;
  if (tws_recompute_list(names) >= 0) return TWS_OK;
  return REFUSE(r, "twinspeed.recompute_operations", TWS_INVALID,
                "a list of norm, activation, sum, product, attention, mlp",
                "\"%.60s\" are no operations that can be recomputed", names);
}

static tws_code check_linear_tiles(const rules *r) {
  const tws_config *c = r->config;
  if (!c->linear_tile_size || !c->zero.by_block || c->zero.stage != 3) return TWS_OK;
  return REFUSE(
      r, "twinspeed.linear_tile_size", TWS_INVALID, "set twinspeed.shard_by_block to false",
      "twinspeed.linear_tile_size gathers weights in parts, and twinspeed.shard_by_block whole layers at once");
}

static tws_code check_quantization(const rules *r) {
  static const char key[] = "twinspeed.frozen_quantization.scale_block_size";
  const int64_t most = 1 << 20, block = r->config->quantization.block, group = r->config->quantization.scale_block;
  char hint[80];
  if (group == 0 || group <= most / block) return TWS_OK;
  snprintf(hint, sizeof hint, "use at most %lld", (long long)(most / block));
  return REFUSE(r, key, TWS_INVALID, hint, "%s: %lld blocks of %lld elements are more than 2^20 elements", key,
                (long long)group, (long long)block);
}

/* Refuses techniques that cannot be combined with the features that ZeRO++ adds to stage 3. */
static tws_code check_zeropp(const rules *r) {
  static const char hpz[] = "zero_optimization.zero_hpz_partition_size";
  static const char frozen[] = "zero_optimization.zero_quantized_nontrainable_weights";
  static const char qgz[] = "zero_optimization.zero_quantized_gradients", nodes[] = "twinspeed.zero_node_ranks";
  const tws_config *c = r->config;
  if (c->zero.quantized_frozen && c->quantization.type == TWS_QUANTIZATION_NF4)
    return REFUSE(r, frozen, TWS_INVALID, "leave out one of the two",
                  "%s is of 8 bits, and twinspeed.frozen_quantization.type is nf4", frozen);
  if (tws_config_quantizes_gradients(c) && !c->zero.reduce_scatter)
    return REFUSE(r, qgz, TWS_INVALID, "set zero_optimization.reduce_scatter to true",
                  "%s sends each gradient to its owner, and reduce_scatter is false", qgz);
  if (tws_config_quantizes_gradients(c) && c->expert_ranks > 1)
    return REFUSE(r, qgz, TWS_UNSUPPORTED, "leave it out, or set twinspeed.expert_parallel_size to 1",
                  "%s does not go with expert parallelism: experts are not reduced over all ranks", qgz);
  if (c->zero.node_ranks > 1 && !tws_config_quantizes_gradients(c) && !c->zero.hierarchical_gather)
    return REFUSE(r, nodes, TWS_INVALID,
                  "set zero_optimization.zero_quantized_gradients at stage 3, or "
                  "zero_optimization.mics_hierarchical_params_gather with mics_shard_size, or leave it out",
                  "%s is for quantized gradients of ZeRO stage 3, and gathers in two steps", nodes);
  if (tws_config_secondary_ranks(c) < 2) return TWS_OK;
  if (c->zero.node_ranks > 1 && c->zero.node_ranks != c->zero.secondary_ranks)
    return REFUSE(r, nodes, TWS_INVALID, "leave it out: it is that of zero_hpz_partition_size",
                  "%s is %lld and zero_hpz_partition_size %lld: ZeRO knows nodes of one size", nodes,
                  (long long)c->zero.node_ranks, (long long)c->zero.secondary_ranks);
  if (c->zero.offload_param)
    return REFUSE(r, hpz, TWS_UNSUPPORTED,
                  "leave out one of the two: set zero_optimization.offload_param.device to none",
                  "%s keeps gathered parameters on the device, and offload_param keeps them off it", hpz);
  if (c->expert_ranks > 1)
    return REFUSE(r, hpz, TWS_UNSUPPORTED, "leave it out, or set twinspeed.expert_parallel_size to 1",
                  "%s does not go with expert parallelism: experts are not gathered from all ranks", hpz);
  return TWS_OK;
}

/* Checks the groups of ranks that each hold all partitions (MiCS). */
static tws_code check_groups(const rules *r) {
  static const char mics[] = "zero_optimization.mics_shard_size";
  const tws_config *c = r->config;
  const tws_zero_config *z = &c->zero;
  const struct {
    int met;
    const char *other, *reason, *hint;
  } with[] = {
      {tws_config_secondary_ranks(c) > 0, "zero_hpz_partition_size", "parameters are in groups of nearby ranks already",
       "leave out one of the two: zero_hpz_partition_size for memory, mics_shard_size for speed"},
      {tws_config_quantizes_gradients(c), "zero_quantized_gradients", "groups add up partitions that are not codes",
       "set zero_optimization.zero_quantized_gradients to false"},
      {z->offload_optimizer > 0, "offload_optimizer", "groups add up gradients on the device",
       "set zero_optimization.offload_optimizer.device to none"},
      {z->offload_param > 0, "offload_param", "it is for models that fit the devices of a group",
       "set zero_optimization.offload_param.device to none"},
      {c->expert_ranks > 1, "expert parallelism", "experts are not in every group",
       "leave it out, or set twinspeed.expert_parallel_size to 1"},
  };
  if (z->stage == 3 && z->shard_ranks == 1)
    return REFUSE(r, mics, TWS_INVALID, "set zero_optimization.stage to 0, or a group of 2 ranks or more",
                  "%s 1 leaves nothing to divide: every rank has all of it", mics);
  if (tws_config_shard_ranks(c) == 0) return TWS_OK;
  for (size_t i = 0; i < sizeof with / sizeof *with; i++)
    if (with[i].met)
      return REFUSE(r, mics, TWS_UNSUPPORTED, with[i].hint, "%s does not go with %s: %s", mics, with[i].other,
                    with[i].reason);
  return TWS_OK;
}

static tws_code check_rules(tws_config *config, tws_error *err) {
  static tws_code (*const checks[])(const rules *) = {
      check_precision,   check_reduction,    check_offload,   check_delayed,       check_zenflow,
      check_parallelism, check_optimizer,    check_scheduler, check_recomputation, check_linear_tiles,
      check_zeropp,      check_quantization, check_groups,    check_param_groups};
  tws_refusals refusals = {0};
  tws_error unheard;
  const rules r = {config, config->store, err ? err : &unheard};
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    tws_code code = checks[i](&r);
    if (code != TWS_OK) code = tws_refusals_keep(&refusals, code, r.err);
    if (code == TWS_OK) continue;
    tws_refusals_join(&refusals, NULL);
    return code;
  }
  return tws_refusals_join(&refusals, err);
}

tws_code tws_config_check(const tws_config *config, tws_error *err) {
  tws_error unused;
  tws_config *copy;
  if (!err) err = &unused;
  TWS_TRY(tws_config_clone(config, &copy, err));
  tws_code code = check_rules(copy, err);
  int64_t replicas;
  if (code == TWS_OK && copy->ranks > 0) code = tws_config_replicas(copy, copy->ranks, &replicas, err);
  int64_t train = copy->train_batch_size, micro = copy->micro_batch_size, steps = copy->accumulation_steps;
  if (code == TWS_OK && train > 0 && micro > 0 && steps > 0 && (train % micro || train / micro % steps)) {
    const rules r = {copy, copy->store, err};
    code = REFUSE(&r, "train_batch_size", TWS_INVALID, "it is micro batch x accumulation steps x data-parallel ranks",
                  "no number of ranks makes a train_batch_size of %lld from %lld x %lld", (long long)train,
                  (long long)micro, (long long)steps);
  }
  tws_config_destroy(copy);
  return code;
}

tws_code tws_config_resolve(tws_config *config, int64_t ranks, const tws_auto_context *context, tws_error *err) {
  struct tws_config_store *store = config->store;
  tws_error unused;
  if (!err) err = &unused;
  tws_zero_config *zero = &config->zero;
  if (store->overlap_derived >= 0 && zero->overlap_comm == store->overlap_derived) zero->overlap_comm = -1;
  store->overlap_derived = zero->overlap_comm < 0 ? zero->stage == 3 : -1;
  if (zero->overlap_comm < 0) zero->overlap_comm = store->overlap_derived;
  TWS_TRY(resolve_auto(config, context, err));
  if (zero->allgather_sequential) zero->prefetch_bucket_size = 1; /* as in DeepSpeed: one parameter at a time */
  TWS_TRY(check_rules(config, err));
  int64_t replicas;
  TWS_TRY(tws_config_replicas(config, ranks, &replicas, err));
  if (tws_config_is_elastic(config)) return resolve_elastic(config, ranks, replicas, err);
  return resolve_batch(config, replicas, err);
}

const char *tws_matmul_dtype_name(tws_matmul_dtype dtype) {
  static const char *const names[TWS_MATMUL_COUNT] = {"auto", "fp8", "fp8-rowwise", "mxfp8", "nvfp4"};
  return (unsigned)dtype < TWS_MATMUL_COUNT ? names[dtype] : "?";
}

const char *tws_recompute_name(tws_recompute recompute) {
  static const char *const names[TWS_RECOMPUTE_COUNT] = {"none", "selective", "full", "operations"};
  return (unsigned)recompute < TWS_RECOMPUTE_COUNT ? names[recompute] : "?";
}

int tws_recompute_list(const char *names) {
  int list = 0;
  if (!names) return (1 << TWS_RECOMPUTED_ATTENTION) - 1;
  while (*names) {
    char name[16];
    const size_t length = strcspn(names, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    const int at = length < sizeof name ? tws_key_word(RECOMPUTED, name, 0) : -1;
    if (at < 0) return -1;
    list |= 1 << at;
    names += length + (names[length] == ',');
  }
  return list;
}

int tws_config_recomputes_blocks(const tws_config *config) {
  return config->recompute == TWS_RECOMPUTE_FULL ||
         (config->recompute == TWS_RECOMPUTE_OPERATIONS &&
          tws_recompute_list(config->recompute_operations) >> TWS_RECOMPUTED_MLP & 1);
}
