#include "job/inference.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/json.h"
#include "models/quantized.h"

/* Keys without effect, and why. A key of a section is explained with its section. */
static const struct {
  const char *key, *reason;
} explained[] = {
    {"kernel_inject", "the engine has kernels of its own for every model, so that none are injected"},
    {"replace_with_kernel_inject", "the engine has kernels of its own for every model, so that none are injected"},
    {"replace_method", "layers are divided by the model's graph, and none are replaced"},
    {"injection_policy", "tensor parallelism follows from the model's graph, so that no layer has to be named"},
    {"injection_policy_tuple", "tensor parallelism follows from the model's graph, so that no layer has to be named"},
    {"enable_cuda_graph",
     "on a GPU the pass over one token of each text is always recorded; a prediction's --software says whether its "
     "passes are"},
    {"use_triton", "the engine has kernels of its own, without Triton"},
    {"triton_autotune", "the engine has kernels of its own, without Triton"},
    {"triangular_masking", "the model's architecture says whether tokens see later ones"},
    {"moe_experts", "the model's file says how many experts a layer has"},
    {"moe_type", "the model's file says what its experts are"},
    {"ep_group", "process groups follow from the numbers of ranks"},
    {"ep_mp_group", "process groups follow from the numbers of ranks"},
    {"mpu", "process groups follow from the numbers of ranks"},
    {"checkpoint", "weights are those of --init-from FILE or --resume DIR"},
    {"checkpoint_config", "weights are those of --init-from FILE or --resume DIR"},
    {"base_dir", "weights are those of --init-from FILE or --resume DIR"},
    {"checkpoints", "weights are those of --init-from FILE or --resume DIR"},
    {"type", "it belongs to a list of checkpoints, and files of weights name their tensors themselves"},
    {"version", "it belongs to a list of checkpoints, and files of weights name their tensors themselves"},
    {"save_mp_checkpoint_path", "checkpoints are read by any number of ranks, so that none is saved for some"},
    {"set_empty_params", "weights are never made before they are read"},
    {"training_mp_size", "checkpoints say themselves how they are divided"},
    {"zero",
     "--stage 3 divides the weights, and --set zero_optimization.offload_param.device=cpu keeps them on the host"},
    {"min_out_tokens", "a text is as long as --tokens says, unless a stop text ends it"},
    {"min_tokens", "a text is as long as --tokens says, unless a stop text ends it"},
    {"return_tuple", "there is no module that returns anything"},
    {"transposed_mode", "the model's architecture says how its weights are stored"},
    {"config", "it is a path to this same configuration"},
    {"keep_module_on_host", "weights lie where the plan has them"},
};
static const char *const effective[] = {"dtype",          "tensor_parallel", "tp",  "mp_size", "quant",
                                        "max_out_tokens", "max_tokens",      "moe", "ep_size", NULL};

static const char *reason_of(const char *key) {
  for (size_t i = 0; i < sizeof explained / sizeof *explained; i++)
    if (strcmp(explained[i].key, key) == 0) return explained[i].reason;
  return NULL;
}

static int is_effective(const char *key) {
  int i = 0;
  while (effective[i] && strcmp(effective[i], key) != 0) i++;
  return effective[i] != NULL;
}

/* Returns 1 if the file configures DeepSpeed's inference engine: it has one of the keys that only such files have, and
 * no section of a training configuration. Such keys are also tensor_parallel.tp_size, as a training has autotp_size,
 * and the "checkpoints" of a list of checkpoints. */
static int is_inference(const cJSON *root) {
  static const char *const own[] = {"kernel_inject",
                                    "replace_with_kernel_inject",
                                    "replace_method",
                                    "mp_size",
                                    "injection_policy",
                                    "enable_cuda_graph",
                                    "dtype",
                                    "max_out_tokens",
                                    "min_out_tokens",
                                    "save_mp_checkpoint_path",
                                    "tp",
                                    "max_tokens",
                                    "training_mp_size",
                                    "quant",
                                    "set_empty_params",
                                    "checkpoints"};
  static const char *const training[] = {
      "zero_optimization", "optimizer", "fp16", "bf16", "train_batch_size", "train_micro_batch_size_per_gpu",
      "twinspeed",         "scheduler"};
  int found = cJSON_HasObjectItem(cJSON_GetObjectItemCaseSensitive(root, "tensor_parallel"), "tp_size");
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) found |= cJSON_HasObjectItem(root, own[i]);
  for (size_t i = 0; i < sizeof training / sizeof *training; i++) found &= !cJSON_HasObjectItem(root, training[i]);
  return found;
}

static tws_code read_type(const tws_json *json, const cJSON *item, tws_job_spec *spec, tws_inference *out,
                          tws_error *err) {
  static const struct {
    const char *theirs, *ours;
  } types[] = {{"fp16", "fp16"}, {"half", "fp16"},  {"float16", "fp16"}, {"bf16", "bf16"}, {"bfloat16", "bf16"},
               {"fp32", "fp32"}, {"float", "fp32"}, {"float32", "fp32"}, {"int8", "int8"}};
  const char *name = cJSON_IsString(item) ? item->valuestring : "";
  if (strncmp(name, "torch.", 6) == 0) name += 6;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (strcasecmp(name, types[i].theirs) != 0) continue;
    if (strcmp(types[i].ours, "int8") == 0)
      out->weight_codes = TWS_CODES_INT8;
    else if (!spec->dtype)
      spec->dtype = types[i].ours;
    return TWS_OK;
  }
  return tws_json_fail(json, item, err, "fp16, bf16, fp32 or int8", "\"dtype\": no such type");
}

static tws_code read_ranks(const tws_json *json, const cJSON *root, tws_job_spec *spec, tws_error *err) {
  static const char *const known[] = {"enabled", "tp_size", "mpu", "tp_group", "tp_grain_size", NULL};
  int64_t ranks = 0, given = 1;
  int enabled = 1;
  for (int i = 0; i < 2; i++) {
    const cJSON *section = cJSON_GetObjectItemCaseSensitive(root, i ? "tp" : "tensor_parallel");
    if (!section || cJSON_IsNull(section)) continue;
    if (!cJSON_IsObject(section))
      return tws_json_fail(json, section, err, "{\"tp_size\": 2}", "a section is an object");
    TWS_TRY(tws_json_only(json, section, known, err));
    TWS_TRY(tws_json_bool(json, section, "enabled", 0, 1, &enabled, err));
    TWS_TRY(tws_json_int(json, section, "tp_size", 0, 1, 65536, 1, &given, err));
    ranks = enabled ? given : 1;
  }
  TWS_TRY(tws_json_int(json, root, "mp_size", 0, 1, 65536, ranks, &ranks, err));
  if (ranks > 0 && spec->tensor_ranks < 1 && spec->ranks < 1) spec->tensor_ranks = ranks;
  return TWS_OK;
}

/* Reads "ep_size", which DeepSpeed also takes in the section "moe". */
static tws_code read_experts(const tws_json *json, const cJSON *root, tws_job_spec *spec, tws_error *err) {
  static const char *const known[] = {"enabled", "ep_size", "moe_experts", "type", "ep_mp_group", "ep_group", NULL};
  const cJSON *moe = cJSON_GetObjectItemCaseSensitive(root, "moe");
  int64_t ranks = 0;
  int enabled = 1;
  if (cJSON_IsObject(moe)) {
    TWS_TRY(tws_json_only(json, moe, known, err));
    TWS_TRY(tws_json_bool(json, moe, "enabled", 0, 1, &enabled, err));
    TWS_TRY(tws_json_int(json, moe, "ep_size", 0, 1, 65536, 0, &ranks, err));
  } else if (moe && !cJSON_IsNull(moe) && !cJSON_IsBool(moe)) {
    return tws_json_fail(json, moe, err, "{\"ep_size\": 2}", "\"moe\" is an object or a boolean");
  }
  TWS_TRY(tws_json_int(json, root, "ep_size", 0, 1, 65536, ranks, &ranks, err));
  if (enabled && ranks > 1 && spec->expert_ranks < 1 && spec->ranks < 1) spec->expert_ranks = ranks;
  return TWS_OK;
}

/* Reads quant.weight; activations are not quantized. */
static tws_code read_quantization(const tws_json *json, const cJSON *quant, tws_inference *out, tws_error *err) {
  int enabled = 1, symmetric = 1;
  int64_t bits = 8;
  const char *type = "symmetric";
  if (!quant || cJSON_IsNull(quant)) return TWS_OK;
  if (!cJSON_IsObject(quant)) return tws_json_fail(json, quant, err, "{\"enabled\": true}", "a section is an object");
  TWS_TRY(tws_json_bool(json, quant, "enabled", 0, 1, &enabled, err));
  const cJSON *weight = cJSON_GetObjectItemCaseSensitive(quant, "weight");
  if (cJSON_IsObject(weight)) {
    int each = 1;
    TWS_TRY(tws_json_bool(json, weight, "enabled", 0, 1, &each, err));
    TWS_TRY(tws_json_int(json, weight, "num_bits", 0, 1, 32, 8, &bits, err));
    TWS_TRY(tws_json_string(json, weight, "q_type", 0, "symmetric", &type, err));
    symmetric = strcmp(type, "asymmetric") != 0;
    if (symmetric && strcmp(type, "symmetric") != 0)
      return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(weight, "q_type"), err, "symmetric or asymmetric",
                           "\"quant.weight.q_type\" is \"%.40s\"", type);
    enabled &= each;
  }
  if (!enabled) return TWS_OK;
  if (bits != 4 && bits != 8)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(weight, "num_bits"), err, "weights have 4 or 8 bits",
                         "\"quant.weight.num_bits\" is %lld", (long long)bits);
  if (bits == 8) out->weight_codes = symmetric ? TWS_CODES_INT8 : TWS_CODES_INT8_ASYMMETRIC;
  if (bits == 4) out->weight_codes = symmetric ? TWS_CODES_INT4 : TWS_CODES_INT4_ASYMMETRIC;
  tws_text_add(&out->notes,
               "quant: weights of linear layers are %s with a scale for 64 of a row; activations and queries are not "
               "quantized\n",
               tws_code_type_name(out->weight_codes));
  return TWS_OK;
}

static tws_code read_keys(const tws_json *json, tws_job_spec *spec, tws_inference *out, tws_error *err) {
  const cJSON *root = json->root, *item;
  cJSON_ArrayForEach(item, root) {
    const char *reason = reason_of(item->string);
    if (is_effective(item->string)) continue;
    if (!reason)
      return tws_json_fail(json, item, err, "docs/inference.md lists the keys",
                           "unknown key \"%.60s\" of an inference configuration", item->string);
    tws_text_add(&out->notes, "%s has no effect: %s\n", item->string, reason);
  }
  item = cJSON_GetObjectItemCaseSensitive(root, "dtype");
  if (item && !cJSON_IsNull(item)) TWS_TRY(read_type(json, item, spec, out, err));
  TWS_TRY(read_ranks(json, root, spec, err));
  TWS_TRY(read_experts(json, root, spec, err));
  TWS_TRY(tws_json_int(json, root, "max_tokens", 0, 1, 16777216, 0, &out->most_tokens, err));
  TWS_TRY(tws_json_int(json, root, "max_out_tokens", 0, 1, 16777216, out->most_tokens, &out->most_tokens, err));
  TWS_TRY(read_quantization(json, cJSON_GetObjectItemCaseSensitive(root, "quant"), out, err));
  return out->notes.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

tws_code tws_inference_read(tws_job_spec *spec, tws_inference *out, tws_error *err) {
  struct stat status;
  tws_json *json = NULL;
  *out = (tws_inference){.given = 0};
  if (!spec->config || stat(spec->config, &status) != 0 || !S_ISREG(status.st_mode)) return TWS_OK;
  /* a file that is not JSON is reported by the reader of training configurations */
  if (tws_json_read_hjson(spec->config, &json, NULL) != TWS_OK) return TWS_OK;
  tws_code code = TWS_OK;
  if (cJSON_IsObject(json->root) && is_inference(json->root)) {
    out->given = 1;
    code = read_keys(json, spec, out, err);
    spec->config = NULL;
  }
  tws_json_destroy(json);
  return code;
}
