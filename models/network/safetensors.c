/* Parameter counts from safetensors headers: 8 bytes of little-endian length, then JSON
 * {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}, then the data. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "models/network/network.h"

enum { HEADER_LIMIT = 100 * 1000 * 1000 }; /* the format's own limit */

typedef struct tensor {
  int64_t begin, end;
  const cJSON *item;
} tensor;

static int bytes_of(const char *dtype) {
  static const struct {
    const char *name;
    int bytes;
  } types[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
               {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (strcmp(types[i].name, dtype) == 0) return types[i].bytes;
  }
  return 0;
}

/* A non-negative integer below 2^53, which a JSON number holds exactly. */
static tws_code read_count(const tws_json *json, const cJSON *item, int64_t *value, tws_error *err) {
  double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
  *value = number >= 0 && number < 9007199254740992.0 ? (int64_t)number : -1;
  if (*value >= 0 && (double)*value == number) return TWS_OK;
  return tws_json_fail(json, item, err, NULL, "expected a non-negative integer below 2^53");
}

static tws_code read_tensor(const tws_json *json, const cJSON *item, tensor *out, int64_t *elements, tws_error *err) {
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, NULL, "a tensor must be described by an object");
  const char *dtype = NULL;
  TWS_TRY(tws_json_string(json, item, "dtype", 1, NULL, &dtype, err));
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *size = NULL;
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
  if (!cJSON_IsArray(shape)) return tws_json_fail(json, item, err, NULL, "\"shape\" must be a list");
  if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2) {
    return tws_json_fail(json, item, err, NULL, "\"data_offsets\" must be [begin, end]");
  }
  *elements = 1;
  cJSON_ArrayForEach(size, shape) {
    int64_t extent = 0;
    TWS_TRY(read_count(json, size, &extent, err));
    if (__builtin_mul_overflow(*elements, extent, elements)) {
      return tws_json_fail(json, shape, err, NULL, "the tensor's shape overflows");
    }
  }
  out->item = item;
  TWS_TRY(read_count(json, offsets->child, &out->begin, err));
  TWS_TRY(read_count(json, offsets->child->next, &out->end, err));
  int bytes = bytes_of(dtype);
  int64_t expected = 0;
  if (bytes == 0) return tws_json_fail(json, item, err, NULL, "unknown dtype \"%.40s\"", dtype);
  if (out->end < out->begin || __builtin_mul_overflow(*elements, bytes, &expected) ||
      out->end - out->begin != expected) {
    return tws_json_fail(json, item, err, "the file is damaged", "data_offsets do not hold %lld elements of %s",
                         (long long)*elements, dtype);
  }
  return TWS_OK;
}

static int by_begin(const void *a, const void *b) {
  const tensor *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* Offsets must tile the data without holes; `data` is its size, or -1 when unknown. */
static tws_code check_tiling(const tws_json *json, tensor *tensors, size_t count, int64_t data, tws_error *err) {
  int64_t at = 0;
  qsort(tensors, count, sizeof *tensors, by_begin);
  for (size_t i = 0; i < count; i++) {
    if (tensors[i].begin != at) {
      return tws_json_fail(json, tensors[i].item, err, "the file is damaged",
                           "data begins at byte %lld, but the one before ends at %lld", (long long)tensors[i].begin,
                           (long long)at);
    }
    at = tensors[i].end;
  }
  if (data < 0 || data == at) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "the file is cut short or damaged",
                  "%s: its tensors fill %lld bytes, but it holds %lld", json->name, (long long)at, (long long)data);
}

static tws_code count_header(const tws_json *json, int64_t data, tws_safetensors_counts *counts, tws_error *err) {
  if (!cJSON_IsObject(json->root)) return tws_json_fail(json, json->root, err, NULL, "the header must be an object");
  size_t count = 0, capacity = (size_t)cJSON_GetArraySize(json->root);
  tensor *tensors = tws_calloc(capacity + 1, sizeof *tensors);
  if (tensors == NULL) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", json->name);
  tws_code code = TWS_OK;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, json->root) {
    if (strcmp(item->string, "__metadata__") == 0) continue;
    int64_t elements = 0;
    code = read_tensor(json, item, &tensors[count], &elements, err);
    if (code != TWS_OK) {
      code = tws_fail_in(err, code, "tensor %.120s", item->string);
      break;
    }
    int64_t bytes = tensors[count].end - tensors[count].begin;
    count++;
    counts->tensors++;
    if (__builtin_add_overflow(counts->parameters, elements, &counts->parameters) ||
        __builtin_add_overflow(counts->bytes, bytes, &counts->bytes)) {
      code = tws_json_fail(json, item, err, NULL, "the total size overflows");
      break;
    }
  }
  if (code == TWS_OK) code = check_tiling(json, tensors, count, data, err);
  tws_free(tensors);
  return code;
}

static tws_code read_header(FILE *file, const char *path, tws_safetensors_counts *counts, tws_error *err) {
  unsigned char size[8];
  struct stat status;
  if (fstat(fileno(file), &status) != 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return tws_fail(err, TWS_INVALID, NULL, "%s: not a file", path);
  if (fread(size, 1, 8, file) != 8) return tws_fail(err, TWS_INVALID, NULL, "%s: too short for a header", path);
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | size[i];
  if (length > HEADER_LIMIT || (int64_t)length + 8 > (int64_t)status.st_size) {
    return tws_fail(err, TWS_INVALID, "is this a safetensors file?", "%s: a header of %llu bytes cannot be", path,
                    (unsigned long long)length);
  }
  char *text = tws_calloc((size_t)length + 1, 1);
  if (text == NULL) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory for the header", path);
  tws_json *json = NULL;
  tws_code code = TWS_OK;
  if (fread(text, 1, (size_t)length, file) != (size_t)length) {
    code = tws_fail(err, TWS_IO, NULL, "%s: cannot read the header", path);
  }
  if (code == TWS_OK) code = tws_json_parse(text, (size_t)length, path, &json, err);
  if (code == TWS_OK) code = count_header(json, (int64_t)status.st_size - 8 - (int64_t)length, counts, err);
  tws_json_destroy(json);
  tws_free(text);
  return code;
}

static tws_code count_file(const char *path, tws_safetensors_counts *counts, tws_error *err) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  tws_code code = read_header(file, path, counts, err);
  fclose(file);
  return code;
}

/* Shards named by the index lie beside it; a name with a folder in it could lead anywhere and is refused. */
static tws_code count_shards(const char *path, const tws_json *json, const char **shards,
                             tws_safetensors_counts *counts, tws_error *err) {
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(json->root, "weight_map"), *item = NULL;
  if (!cJSON_IsObject(map)) return tws_json_fail(json, json->root, err, NULL, "the index has no \"weight_map\" object");
  const char *slash = strrchr(path, '/');
  int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
  size_t known = 0;
  int64_t named = 0;
  cJSON_ArrayForEach(item, map) {
    const char *shard = cJSON_IsString(item) ? item->valuestring : NULL;
    if (shard == NULL || shard[0] == 0 || strchr(shard, '/') != NULL || strcmp(shard, "..") == 0) {
      return tws_json_fail(json, item, err, NULL, "\"weight_map\" must name files beside the index");
    }
    named++;
    size_t i = 0;
    while (i < known && strcmp(shards[i], shard) != 0) i++;
    if (i < known) continue;
    if (known == 4096) return tws_json_fail(json, item, err, NULL, "more than 4096 shards");
    shards[known++] = shard;
    char file[4096];
    int length = snprintf(file, sizeof file, "%.*s%s", folder, path, shard);
    if (length < 0 || (size_t)length >= sizeof file) return tws_fail(err, TWS_INVALID, NULL, "%s: path too long", path);
    TWS_TRY(count_file(file, counts, err));
  }
  if (named == counts->tensors) return TWS_OK;
  return tws_json_fail(json, map, err, "a shard is damaged or from another model",
                       "the index names %lld tensors, its shards hold %lld", (long long)named,
                       (long long)counts->tensors);
}

static tws_code count_index(const char *path, tws_safetensors_counts *counts, tws_error *err) {
  tws_json *json = NULL;
  TWS_TRY(tws_json_read(path, &json, err));
  const char **shards = tws_calloc(4096, sizeof *shards);
  tws_code code = shards != NULL ? count_shards(path, json, shards, counts, err)
                                 : tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", path);
  tws_free(shards);
  tws_json_destroy(json);
  return code;
}

tws_code tws_safetensors_count(const char *path, tws_safetensors_counts *counts, tws_error *err) {
  *counts = (tws_safetensors_counts){0};
  char file[4096];
  struct stat status;
  if (stat(path, &status) != 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  if (S_ISDIR(status.st_mode)) {
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
      int length = snprintf(file, sizeof file, "%s/%s", path, names[i]);
      if (length < 0 || (size_t)length >= sizeof file) return tws_fail(err, TWS_INVALID, NULL, "the path is too long");
      if (access(file, F_OK) == 0) break;
    }
    path = file;
  }
  size_t length = strlen(path);
  if (length > 5 && strcmp(path + length - 5, ".json") == 0) return count_index(path, counts, err);
  return count_file(path, counts, err);
}
