#include "checkpoint/merge.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/export.h"
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "checkpoint/weights.h"
#include "models/network/huggingface.h"
#include "models/network/safetensors.h"
#include "models/quantized.h"

/* ---- PEFT's description ---- */

typedef struct description {
  double scale;
  int transposed; /* 1: weights are stored as [in, out] */
} description;

static tws_code read_description(const char *path, description *out, tws_error *err) {
  tws_json *json = NULL;
  int64_t r = 0;
  double alpha = 8;
  int rslora = 0, dora = 0;
  const char *kind = "LORA";
  TWS_TRY(tws_json_read_regular(path, &json, err));
  tws_code code = tws_json_string(json, json->root, "peft_type", 0, kind, &kind, err);
  if (code == TWS_OK) code = tws_json_int(json, json->root, "r", 1, 1, 65536, 0, &r, err);
  if (code == TWS_OK) code = tws_json_number(json, json->root, "lora_alpha", 0, 1e-9, 1e9, alpha, &alpha, err);
  if (code == TWS_OK) code = tws_json_bool(json, json->root, "use_rslora", 0, 0, &rslora, err);
  if (code == TWS_OK) code = tws_json_bool(json, json->root, "use_dora", 0, 0, &dora, err);
  if (code == TWS_OK) code = tws_json_bool(json, json->root, "fan_in_fan_out", 0, 0, &out->transposed, err);
  static const char *const patterns[] = {"rank_pattern", "alpha_pattern"};
  int other = code == TWS_OK && (dora || strcmp(kind, "LORA") != 0);
  for (int i = 0; i < 2 && code == TWS_OK; i++) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->root, patterns[i]);
    other |= item && item->child;
  }
  if (other)
    code = tws_fail(err, TWS_UNSUPPORTED, "merge it with PEFT", "%s: it is not LoRA of one rank and one alpha", path);
  if (code == TWS_OK) out->scale = alpha / (rslora ? sqrt((double)r) : (double)r);
  tws_json_destroy(json);
  return code;
}

/* ---- rounding of base weights that the training used in quantized form ---- */

/* Describes how the training quantized the base weights. Merging rounds these weights in the same way before it adds
 * the adapter's product to them. */
typedef struct rounding {
  tws_json *json; /* NULL: the base weights were not quantized */
  const cJSON *weights;
  int64_t bits, block, scale_block;
} rounding;

static tws_code read_rounding(const char *path, rounding *out, tws_error *err) {
  struct stat info;
  if (stat(path, &info) != 0) return TWS_OK;
  TWS_TRY(tws_json_read_regular(path, &out->json, err));
  const cJSON *root = out->json->root;
  TWS_TRY(tws_json_int(out->json, root, "bits", 1, 4, 8, 0, &out->bits, err));
  TWS_TRY(tws_json_int(out->json, root, "block_size", 1, 2, INT32_MAX, 0, &out->block, err));
  TWS_TRY(tws_json_int(out->json, root, "scale_block_size", 0, 0, INT32_MAX, 0, &out->scale_block, err));
  out->weights = cJSON_GetObjectItemCaseSensitive(root, "weights");
  if ((out->bits == 4 || out->bits == 8) && out->block % 2 == 0 && cJSON_IsArray(out->weights)) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "convert the checkpoint again", "%s: bits, block_size or weights make no sense",
                  path);
}

static int is_rounded(const rounding *r, const char *name) {
  const cJSON *item;
  cJSON_ArrayForEach(item, r->weights) {
    const char *dot = cJSON_IsString(item) ? strchr(item->valuestring, '.') : NULL;
    if (dot && (strcmp(item->valuestring, name) == 0 || strcmp(dot + 1, name) == 0)) return 1;
  }
  return 0;
}

/* Transposes a matrix: to[columns][rows] = from[rows][columns]. */
static void turn(const float *from, float *to, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < columns; k++) to[k * rows + i] = from[i * columns + k];
}

/* Rounds the weights to values that the quantized format represents. A block of values does not extend over several
 * rows; a group of scales does. */
static void round_rows(const rounding *r, float *weight, uint64_t count, uint8_t *codes, float *scales,
                       float (*means)[2]) {
  const uint64_t blocks = count / (uint64_t)r->block;
  tws_quantize(weight, count, r->block, (int)r->bits, codes, scales);
  if (r->scale_block > 0) { /* quantized scales are stored after the quantized weights */
    tws_quantize_scales(scales, blocks, r->scale_block, codes + count, means);
    tws_dequantize_scales(codes + count, (const float(*)[2])means, blocks, r->scale_block, scales);
  }
  tws_dequantize(codes, scales, count, r->block, (int)r->bits, weight);
}

/* Rounds a weight in the same way as the training did, if that quantized it. transposed: the file stores the weight as
 * [in, out]. */
static tws_code round_weight(const rounding *r, const tws_safetensor *tensor, int transposed, float *weight,
                             tws_error *err) {
  if (!r->json || !is_rounded(r, tensor->name)) return TWS_OK;
  const int64_t rows = tensor->shape[transposed], columns = tensor->shape[!transposed], count = rows * columns;
  const int64_t unit = r->block * (r->scale_block > 0 ? r->scale_block : 1);
  if (tensor->dims != 2 || columns % r->block != 0 || count % unit != 0)
    return tws_fail(err, TWS_INVALID, "is the adapter of this base?",
                    "%s: it does not consist of blocks of %lld elements", tensor->name,
                    (long long)(columns % r->block != 0 ? r->block : unit));
  const size_t blocks = (size_t)(count / r->block);
  float *turned = tws_calloc(transposed ? (size_t)count : 1, sizeof *turned);
  float *scales = tws_calloc(blocks + 1, sizeof *scales), (*means)[2] = tws_calloc(blocks + 1, sizeof *means);
  uint8_t *codes = tws_calloc((size_t)count + blocks + 1, 1);
  const int failed = !turned || !scales || !means || !codes;
  if (!failed && transposed) turn(weight, turned, columns, rows);
  if (!failed) round_rows(r, transposed ? turned : weight, (uint64_t)count, codes, scales, means);
  if (!failed && transposed) turn(turned, weight, rows, columns);
  tws_free(turned);
  tws_free(scales);
  tws_free(means);
  tws_free(codes);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory to round tensor %s", tensor->name) : TWS_OK;
}

/* ---- tensors ---- */

typedef struct merger {
  tws_safetensors *base, *adapter;
  description how;
  rounding rounded;
  float *weight, *a, *b;
  size_t used; /* number of the adapter's tensors that were merged */
} merger;

static tws_code read_tensor(const tws_safetensors *list, const tws_safetensor *tensor, float **to, tws_error *err) {
  const char *path = list->files[tensor->file];
  const int type = tws_safetensors_dtype(tensor->dtype);
  const size_t bytes = (size_t)(tensor->end - tensor->begin);
  tws_free(*to);
  *to = NULL;
  if (type < 0)
    return tws_fail(err, TWS_UNSUPPORTED, "convert it to F32, BF16 or F16 first", "%s: tensor %s is of type %s", path,
                    tensor->name, tensor->dtype);
  void *raw = tws_calloc(bytes + 1, 1);
  *to = tws_calloc((size_t)tensor->elements + 1, sizeof **to);
  int fd = -1;
  tws_code code = raw && *to ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to read tensor %s", tensor->name);
  if (code == TWS_OK) code = tws_open_regular(path, &fd, err);
  for (size_t done = 0; code == TWS_OK && done < bytes;) {
    const ssize_t n = pread(fd, (char *)raw + done, bytes - done, (off_t)tensor->begin + (off_t)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      code = tws_fail(err, TWS_IO, NULL, "%s: %s", path, n < 0 ? strerror(errno) : "it ends too early");
    else
      done += (size_t)n;
  }
  if (fd >= 0) close(fd);
  if (code == TWS_OK) tws_convert_elements((tws_dtype)type, raw, TWS_F32, *to, (uint64_t)tensor->elements);
  tws_free(raw);
  return code;
}

/* Finds the adapter's tensor "lora_A" or "lora_B" for a weight of the base. The base of a model without head omits the
 * first word of the adapter's names; such names match too. Returns NULL if there is none. */
static const tws_safetensor *find_factor(const merger *m, const char *weight, const char *factor) {
  static const char ends[] = ".weight", prefix[] = "base_model.model.";
  const size_t length = strlen(weight), end = sizeof ends - 1;
  char name[512];
  if (length <= end || strcmp(weight + length - end, ends) != 0) return NULL;
  snprintf(name, sizeof name, "%s%.*s.%s.weight", prefix, (int)(length - end), weight, factor);
  const tws_safetensor *found = tws_safetensors_find(m->adapter, name);
  for (uint32_t i = 0; i < m->adapter->count && !found; i++) {
    const char *whole = m->adapter->tensors[i].name;
    const char *word = strncmp(whole, prefix, sizeof prefix - 1) == 0 ? strchr(whole + sizeof prefix - 1, '.') : NULL;
    if (word && strcmp(word + 1, name + sizeof prefix - 1) == 0) found = &m->adapter->tensors[i];
  }
  return found;
}

static void add_product(const merger *m, int64_t out, int64_t in, int64_t r) {
  for (int64_t i = 0; i < out; i++)
    for (int64_t k = 0; k < r; k++) {
      const float factor = (float)(m->how.scale * m->b[i * r + k]);
      if (m->how.transposed)
        for (int64_t j = 0; j < in; j++) m->weight[j * out + i] += factor * m->a[k * in + j];
      else
        for (int64_t j = 0; j < in; j++) m->weight[i * in + j] += factor * m->a[k * in + j];
    }
}

static tws_code merge_tensor(merger *m, const tws_safetensor *tensor, tws_error *err) {
  const tws_safetensor *a = find_factor(m, tensor->name, "lora_A"), *b = find_factor(m, tensor->name, "lora_B");
  TWS_TRY(read_tensor(m->base, tensor, &m->weight, err));
  TWS_TRY(round_weight(&m->rounded, tensor, m->how.transposed, m->weight, err));
  if (!a && !b) return TWS_OK;
  if (!a || !b || tensor->dims != 2 || a->dims != 2 || b->dims != 2 || a->shape[0] != b->shape[1] ||
      tensor->shape[m->how.transposed] != b->shape[0] || tensor->shape[!m->how.transposed] != a->shape[1])
    return tws_fail(err, TWS_INVALID, "is the adapter of this base?", "%s: the adapter of %s does not fit it",
                    m->adapter->files[0], tensor->name);
  TWS_TRY(read_tensor(m->adapter, a, &m->a, err));
  TWS_TRY(read_tensor(m->adapter, b, &m->b, err));
  add_product(m, b->shape[0], a->shape[1], a->shape[0]);
  m->used += 2;
  return TWS_OK;
}

static tws_code write_tensor(void *user, uint32_t weight, tws_output *to, tws_error *err) {
  merger *m = user;
  const tws_safetensor *tensor = &m->base->tensors[weight];
  TWS_TRY(merge_tensor(m, tensor, err));
  TWS_TRY(tws_output_write(to, m->weight, (size_t)tensor->elements * sizeof *m->weight, err));
  if (weight + 1 < m->base->count || m->used == m->adapter->count) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "is the adapter of this base?", "%s: %zu of its %u tensors belong to no weight",
                  m->adapter->files[0], (size_t)m->adapter->count - m->used, m->adapter->count);
}

static tws_code write_merged(merger *m, const char *path, tws_export_result *result, tws_error *err) {
  tws_weight *weights = tws_calloc(m->base->count + (size_t)1, sizeof *weights);
  tws_code code = weights ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
  for (uint32_t i = 0; i < m->base->count && code == TWS_OK; i++) {
    const tws_safetensor *tensor = &m->base->tensors[i];
    weights[i] = (tws_weight){.name = tensor->name, .dtype = "F32", .dims = tensor->dims};
    if (tensor->dims > TWS_SAFETENSOR_DIMS)
      code = tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: tensor %s has too many dimensions", path, tensor->name);
    for (int k = 0; k < tensor->dims && code == TWS_OK; k++) weights[i].shape[k] = tensor->shape[k];
  }
  const tws_weights_request request = {.weights = weights, .count = m->base->count, .write = write_tensor, .user = m};
  if (code == TWS_OK) code = tws_weights_write(&request, path, result, err);
  tws_free(weights);
  return code;
}

/* Writes the paths of an adapter's weights, configuration and rounding file, derived from the path of its folder or of
 * its weights file. */
static void name_files(const char *adapter, char *weights, char *config, char *rounded, size_t size) {
  struct stat info;
  const char *slash = strrchr(adapter, '/');
  if (stat(adapter, &info) == 0 && S_ISDIR(info.st_mode)) {
    snprintf(weights, size, "%.3900s/adapter_model.safetensors", adapter);
    snprintf(config, size, "%.3900s/adapter_config.json", adapter);
    snprintf(rounded, size, "%.3900s/" TWS_ROUNDING_FILE, adapter);
    return;
  }
  snprintf(weights, size, "%.3900s", adapter);
  const int folder = slash ? (int)(slash + 1 - adapter) : 0;
  snprintf(config, size, "%.*sadapter_config.json", folder, adapter);
  snprintf(rounded, size, "%.*s" TWS_ROUNDING_FILE, folder, adapter);
}

tws_code tws_adapter_merge(const char *base, const char *adapter, const char *path, tws_export_result *result,
                           tws_error *err) {
  char weights[TWS_FOLDER_SIZE], config[TWS_FOLDER_SIZE], rounded[TWS_FOLDER_SIZE];
  merger m = {.used = 0};
  *result = (tws_export_result){0};
  name_files(adapter, weights, config, rounded, sizeof weights);
  TWS_TRY(read_description(config, &m.how, err));
  tws_code code = read_rounding(rounded, &m.rounded, err);
  if (code == TWS_OK) code = tws_safetensors_open(base, &m.base, err);
  if (code == TWS_OK) code = tws_safetensors_open(weights, &m.adapter, err);
  if (code == TWS_OK) code = write_merged(&m, path, result, err);
  tws_safetensors_close(m.base);
  tws_safetensors_close(m.adapter);
  tws_free(m.weight);
  tws_free(m.a);
  tws_free(m.b);
  tws_json_destroy(m.rounded.json);
  return code;
}

/* ---- files that PEFT needs next to the adapter's weights ---- */

/* Adds the last word of each adapted module's name (such as "q_proj") to the list, without duplicates. */
static void add_targets(const tws_saved_index *x, tws_arena *arena, tws_text *out) {
  tws_hf_tensor *tensors = NULL;
  uint32_t count = 0;
  const char *seen[64];
  int known = 0;
  if (tws_saved_names(x, arena, &tensors, &count, NULL) != TWS_OK) out->failed = 1;
  for (uint32_t i = 0; i < count && !out->failed; i++) {
    const char *end = strstr(tensors[i].name, ".lora_A.weight"), *word = end;
    if (!end) continue;
    while (word > tensors[i].name && word[-1] != '.') word--;
    const char *copy = tws_arena_printf(arena, "%.*s", (int)(end - word), word);
    int at = 0;
    while (copy && at < known && strcmp(seen[at], copy) != 0) at++;
    if (!copy || at < known || known == 64) continue;
    tws_text_add(out, "%s\"%s\"", known ? ", " : "", copy);
    seen[known++] = copy;
  }
}

void tws_adapter_config(const tws_saved_index *index, tws_text *out) {
  tws_arena *arena = tws_arena_create();
  if (!arena) {
    out->failed = 1;
    return;
  }
  tws_text_add(out,
               "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"base_model_name_or_path\": null,\n"
               "  \"r\": %lld,\n  \"lora_alpha\": %.17g,\n  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n"
               "  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n  \"target_modules\": [",
               (long long)index->lora_r, index->lora_scale * (double)index->lora_r,
               strcmp(index->architecture, "gpt2") == 0 ? "true" : "false");
  add_targets(index, arena, out);
  tws_text_add(out, "]\n}\n");
  tws_arena_destroy(arena);
}

void tws_adapter_rounding(const tws_saved_index *index, tws_text *out) {
  tws_arena *arena = tws_arena_create();
  tws_hf_tensor *tensors = NULL;
  uint32_t count = 0;
  int bits = 0;
  if (!arena || tws_saved_names(index, arena, &tensors, &count, NULL) != TWS_OK) out->failed = 1;
  tws_text_add(out, "{\n  \"weights\": [");
  for (uint32_t i = 0; i < count && !out->failed; i++) {
    const int of = index->params[tensors[i].param].code_type;
    if (of == 0) continue;
    tws_text_add(out, "%s\n    \"%s\"", bits ? "," : "", tensors[i].name);
    bits = of;
  }
  tws_text_add(out, "],\n  \"bits\": %d,\n  \"block_size\": %lld,\n  \"scale_block_size\": %lld\n}\n", bits,
               (long long)index->block, (long long)index->scale_block);
  tws_arena_destroy(arena);
}
