/* Reads and writes safetensors headers: 8 bytes of little-endian length, then JSON {"name": {"dtype": "BF16", "shape":
 * [..], "data_offsets": [begin, end]}, "__metadata__": {..}}, then the data. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "models/network/safetensors.h"
#include "models/network/torch_file.h"

enum { HEADER_LIMIT = 100 * 1000 * 1000 /* the format's own limit */, MOST_FILES = 4096 };

typedef struct tensor {
  tws_safetensor found; /* the tensor; begin and end are counted from the first byte of the data, not of the file */
  const cJSON *item;
} tensor;

int tws_safetensors_bytes(const char *dtype) {
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

/* Reads a non-negative integer below 2^53, which a JSON number represents exactly. */
static tws_code read_count(const tws_json *json, const cJSON *item, int64_t *value, tws_error *err) {
  double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
  *value = number >= 0 && number < 9007199254740992.0 ? (int64_t)number : -1;
  if (*value >= 0 && (double)*value == number) return TWS_OK;
  return tws_json_fail(json, item, err, NULL, "expected a non-negative integer below 2^53");
}

static tws_code read_shape(const tws_json *json, const cJSON *shape, tws_safetensor *out, tws_error *err) {
  const cJSON *size = NULL;
  out->elements = 1;
  cJSON_ArrayForEach(size, shape) {
    int64_t extent = 0;
    TWS_TRY(read_count(json, size, &extent, err));
    if (__builtin_mul_overflow(out->elements, extent, &out->elements)) {
      return tws_json_fail(json, shape, err, NULL, "the tensor's shape overflows");
    }
    if (out->dims < TWS_SAFETENSOR_DIMS) out->shape[out->dims] = extent;
    out->dims++;
  }
  return TWS_OK;
}

static tws_code read_tensor(const tws_json *json, const cJSON *item, tensor *to, tws_error *err) {
  tws_safetensor *out = &to->found;
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, NULL, "a tensor must be described by an object");
  const char *dtype = NULL;
  TWS_TRY(tws_json_string(json, item, "dtype", 1, NULL, &dtype, err));
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
  if (!cJSON_IsArray(shape)) return tws_json_fail(json, item, err, NULL, "\"shape\" must be a list");
  if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2) {
    return tws_json_fail(json, item, err, NULL, "\"data_offsets\" must be [begin, end]");
  }
  TWS_TRY(read_shape(json, shape, out, err));
  to->item = item;
  out->dtype = dtype;
  TWS_TRY(read_count(json, offsets->child, &out->begin, err));
  TWS_TRY(read_count(json, offsets->child->next, &out->end, err));
  int bytes = tws_safetensors_bytes(dtype);
  int64_t expected = 0;
  if (bytes == 0) return tws_json_fail(json, item, err, NULL, "unknown dtype \"%.40s\"", dtype);
  if (out->end < out->begin || __builtin_mul_overflow(out->elements, bytes, &expected) ||
      out->end - out->begin != expected) {
    return tws_json_fail(json, item, err, "the file is damaged", "data_offsets do not hold %lld elements of %s",
                         (long long)out->elements, dtype);
  }
  return TWS_OK;
}

static int by_begin(const void *a, const void *b) {
  const tws_safetensor *x = &((const tensor *)a)->found, *y = &((const tensor *)b)->found;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* Checks that the tensors' ranges cover the data without holes or overlaps; `data`: bytes of the data, or -1 if
 * unknown. */
static tws_code check_tiling(const tws_json *json, tensor *tensors, size_t count, int64_t data, tws_error *err) {
  int64_t at = 0;
  qsort(tensors, count, sizeof *tensors, by_begin);
  for (size_t i = 0; i < count; i++) {
    if (tensors[i].found.begin != at) {
      return tws_json_fail(json, tensors[i].item, err, "the file is damaged",
                           "data begins at byte %lld, but the one before ends at %lld",
                           (long long)tensors[i].found.begin, (long long)at);
    }
    at = tensors[i].found.end;
  }
  if (data < 0 || data == at) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "the file is cut short or damaged",
                  "%s: its tensors fill %lld bytes, but it holds %lld", json->name, (long long)at, (long long)data);
}

static tws_code no_memory(const char *name, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", name);
}

/* Appends checked tensors to the list; `first` is the offset of the data in the file. */
static tws_code add_tensors(tws_safetensors *list, const tws_json *json, const tensor *tensors, size_t count,
                            int64_t first, tws_error *err) {
  if (tws_reserve(&list->tensors, &list->capacity, list->count + count + 1, sizeof *list->tensors)) {
    return no_memory(json->name, err);
  }
  for (size_t i = 0; i < count; i++) {
    tws_safetensor *to = &list->tensors[list->count++];
    *to = tensors[i].found;
    to->file = list->file_count - 1;
    to->begin += first;
    to->end += first;
    to->name = tws_arena_strdup(list->arena, tensors[i].item->string);
    to->dtype = tws_arena_strdup(list->arena, to->dtype);
    if (to->name == NULL || to->dtype == NULL) return no_memory(json->name, err);
  }
  return TWS_OK;
}

static tws_code read_tensors(tws_safetensors *list, const tws_json *json, int64_t first, int64_t data, tws_error *err) {
  if (!cJSON_IsObject(json->root)) return tws_json_fail(json, json->root, err, NULL, "the header must be an object");
  size_t count = 0, capacity = (size_t)cJSON_GetArraySize(json->root);
  tensor *tensors = tws_calloc(capacity + 1, sizeof *tensors);
  if (tensors == NULL) return no_memory(json->name, err);
  tws_code code = TWS_OK;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, json->root) {
    if (strcmp(item->string, "__metadata__") == 0) continue;
    code = read_tensor(json, item, &tensors[count], err);
    if (code != TWS_OK) {
      code = tws_fail_in(err, code, "tensor %.120s", item->string);
      break;
    }
    count++;
  }
  if (code == TWS_OK) code = check_tiling(json, tensors, count, data, err);
  if (code == TWS_OK) code = add_tensors(list, json, tensors, count, first, err);
  tws_free(tensors);
  return code;
}

static uint64_t header_length(const unsigned char size[8]) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | size[i];
  return length;
}

static tws_code check_length(const char *name, uint64_t length, int64_t size, tws_error *err) {
  if (length <= HEADER_LIMIT && (int64_t)length + 8 <= size) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "is this a safetensors file?", "%s: a header of %llu bytes cannot be", name,
                  (unsigned long long)length);
}

static tws_code read_text(tws_safetensors *list, const char *name, const char *text, uint64_t length, int64_t size,
                          tws_error *err) {
  tws_json *json = NULL;
  tws_code code = tws_json_parse(text, (size_t)length, name, &json, err);
  if (code == TWS_OK) code = read_tensors(list, json, 8 + (int64_t)length, size - 8 - (int64_t)length, err);
  tws_json_destroy(json);
  return code;
}

static tws_code add_file(tws_safetensors *list, const char *path, tws_error *err) {
  list->files[list->file_count] = tws_arena_strdup(list->arena, path);
  return list->files[list->file_count++] ? TWS_OK : no_memory(path, err);
}

static tws_code read_header(tws_safetensors *list, FILE *file, const char *path, tws_error *err) {
  unsigned char size[8];
  struct stat status;
  if (fstat(fileno(file), &status) != 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return tws_fail(err, TWS_INVALID, NULL, "%s: not a file", path);
  if (fread(size, 1, 8, file) != 8)
    return tws_fail(err, TWS_INVALID, "is this a safetensors file?", "%s: too short for a header", path);
  const uint64_t length = header_length(size);
  TWS_TRY(check_length(path, length, (int64_t)status.st_size, err));
  char *text = tws_calloc((size_t)length + 1, 1);
  if (text == NULL) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory for the header", path);
  tws_code code = fread(text, 1, (size_t)length, file) == (size_t)length
                      ? read_text(list, path, text, length, (int64_t)status.st_size, err)
                      : tws_fail(err, TWS_IO, NULL, "%s: cannot read the header", path);
  tws_free(text);
  return code;
}

/* ---- files of torch.save ---- */

static int has_tensors(const tws_pickle_value *dict) {
  for (uint32_t i = 1; dict && dict->kind == TWS_PICKLE_DICT && i < dict->count; i += 2)
    if (dict->items[i]->kind == TWS_PICKLE_TENSOR && dict->items[i - 1]->kind == TWS_PICKLE_TEXT) return 1;
  return 0;
}

static const tws_pickle_value *find_state(const tws_pickle_value *root) {
  static const char *const inside[] = {"module", "state_dict", "model_state_dict"};
  if (has_tensors(root)) return root;
  for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
    if (has_tensors(tws_pickle_get(root, inside[i]))) return tws_pickle_get(root, inside[i]);
  return NULL;
}

static tws_code add_torch_tensor(tws_safetensors *list, const tws_torch_file *file, const char *name,
                                 const tws_pickle_value *from, tws_error *err) {
  const char *path = list->files[list->file_count - 1];
  if (tws_reserve(&list->tensors, &list->capacity, list->count + 1, sizeof *list->tensors)) return no_memory(path, err);
  tws_safetensor *to = &list->tensors[list->count];
  *to = (tws_safetensor){.name = tws_arena_strdup(list->arena, name),
                         .dtype = tws_arena_strdup(list->arena, from->storage->dtype),
                         .dims = (int)from->count,
                         .file = list->file_count - 1,
                         .elements = (int64_t)from->elements};
  if (!to->name || !to->dtype) return no_memory(path, err);
  for (int i = 0; i < to->dims && i < TWS_SAFETENSOR_DIMS; i++) to->shape[i] = from->shape[i];
  TWS_TRY(tws_torch_place(file, from, name, &to->begin, err));
  to->end = to->begin + to->elements * tws_safetensors_bytes(to->dtype);
  list->count++;
  return TWS_OK;
}

static tws_code read_torch_file(tws_safetensors *list, const char *path, tws_error *err) {
  tws_torch_file *file = NULL;
  TWS_TRY(tws_torch_open(path, &file, err));
  const tws_pickle_value *state = find_state(file->pickle.root);
  tws_code code =
      state ? TWS_OK
            : tws_fail(err, TWS_INVALID, "save a model's state_dict()", "%s: it has no dictionary of tensors", path);
  for (uint32_t i = 1; code == TWS_OK && i < state->count; i += 2)
    if (state->items[i]->kind == TWS_PICKLE_TENSOR && state->items[i - 1]->kind == TWS_PICKLE_TEXT)
      code = add_torch_tensor(list, file, state->items[i - 1]->text, state->items[i], err);
  tws_torch_close(file);
  return code;
}

static tws_code read_file(tws_safetensors *list, const char *path, tws_error *err) {
  if (tws_torch_is(path)) {
    TWS_TRY(add_file(list, path, err));
    return read_torch_file(list, path, err);
  }
  int fd;
  TWS_TRY(tws_open_regular(path, &fd, err));
  FILE *file = fdopen(fd, "rb");
  if (file == NULL) {
    close(fd);
    return tws_fail(err, TWS_MEMORY, NULL, "%s: %s", path, strerror(errno));
  }
  tws_code code = add_file(list, path, err);
  if (code == TWS_OK) code = read_header(list, file, path, err);
  fclose(file);
  return code;
}

/* Reads the shards that an index names, which are in the index's folder. A name with a slash is refused, because it
 * could name any file. */
static tws_code read_shards(tws_safetensors *list, const char *path, const tws_json *json, const char **shards,
                            tws_error *err) {
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(json->root, "weight_map"), *item = NULL;
  if (!cJSON_IsObject(map)) return tws_json_fail(json, json->root, err, NULL, "the index has no \"weight_map\" object");
  const char *slash = strrchr(path, '/');
  int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
  size_t known = 0;
  int64_t named = 0;
  cJSON_ArrayForEach(item, map) {
    const char *shard = cJSON_IsString(item) ? item->valuestring : NULL;
    if (shard == NULL || shard[0] == 0 || strchr(shard, '/') != NULL || strcmp(shard, "..") == 0) {
      return tws_json_fail(json, item, err, NULL, "\"weight_map\" must name files in the folder of the index");
    }
    named++;
    size_t i = 0;
    while (i < known && strcmp(shards[i], shard) != 0) i++;
    if (i < known) continue;
    if (known == MOST_FILES) return tws_json_fail(json, item, err, NULL, "more than %d shards", MOST_FILES);
    shards[known++] = shard;
    char file[4096];
    int length = snprintf(file, sizeof file, "%.*s%s", folder, path, shard);
    if (length < 0 || (size_t)length >= sizeof file) return tws_fail(err, TWS_INVALID, NULL, "%s: path too long", path);
    TWS_TRY(read_file(list, file, err));
  }
  if (named == list->count) return TWS_OK;
  return tws_json_fail(json, map, err, "a shard is damaged or from another model",
                       "the index names %lld tensors, its shards hold %lld", (long long)named, (long long)list->count);
}

static tws_code read_index(tws_safetensors *list, const char *path, tws_error *err) {
  tws_json *json = NULL;
  TWS_TRY(tws_json_read_regular(path, &json, err));
  const char **shards = tws_calloc(MOST_FILES, sizeof *shards);
  tws_code code = shards != NULL ? read_shards(list, path, json, shards, err) : no_memory(path, err);
  tws_free(shards);
  tws_json_destroy(json);
  return code;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const tws_safetensor *)a)->name, ((const tws_safetensor *)b)->name);
}

static tws_code sort_by_name(tws_safetensors *list, const char *path, tws_error *err) {
  if (list->count > 0) qsort(list->tensors, list->count, sizeof *list->tensors, by_name);
  for (uint32_t i = 1; i < list->count; i++) {
    if (by_name(&list->tensors[i - 1], &list->tensors[i]) == 0) {
      return tws_fail(err, TWS_INVALID, "a shard is damaged or from another model", "%s: tensor %.200s is there twice",
                      path, list->tensors[i].name);
    }
  }
  return TWS_OK;
}

static tws_safetensors *make_list(void) {
  tws_arena *arena = tws_arena_create();
  tws_safetensors *list = arena ? tws_arena_alloc(arena, 1, sizeof *list) : NULL;
  if (list) list->files = tws_arena_alloc(arena, MOST_FILES, sizeof *list->files);
  if (!list || !list->files) {
    tws_arena_destroy(arena);
    return NULL;
  }
  list->arena = arena;
  return list;
}

static tws_code finish(tws_safetensors *list, const char *path, tws_code code, tws_safetensors **out, tws_error *err) {
  if (code == TWS_OK) code = sort_by_name(list, path, err);
  *out = code == TWS_OK ? list : NULL;
  if (code != TWS_OK) tws_safetensors_close(list);
  return code;
}

tws_code tws_safetensors_parse(const char *name, const void *bytes, size_t count, int64_t size, tws_safetensors **out,
                               tws_error *err) {
  *out = NULL;
  if (count < 8) return tws_fail(err, TWS_INVALID, "is this a safetensors file?", "%s: too short for a header", name);
  const uint64_t length = header_length(bytes);
  TWS_TRY(check_length(name, length, size, err));
  if (length > count - 8) return tws_fail(err, TWS_INVALID, NULL, "%s: the header is cut short", name);
  tws_safetensors *list = make_list();
  if (!list) return no_memory(name, err);
  tws_code code = add_file(list, name, err);
  if (code == TWS_OK) code = read_text(list, name, (const char *)bytes + 8, length, size, err);
  return finish(list, name, code, out, err);
}

tws_code tws_safetensors_open(const char *path, tws_safetensors **out, tws_error *err) {
  char file[4096];
  struct stat status;
  *out = NULL;
  if (stat(path, &status) != 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  if (S_ISDIR(status.st_mode)) {
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                        "pytorch_model.bin.index.json", "pytorch_model.bin",
                                        "model.safetensors" /* used in the message */};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      int length = snprintf(file, sizeof file, "%s/%s", path, names[i]);
      if (length < 0 || (size_t)length >= sizeof file) return tws_fail(err, TWS_INVALID, NULL, "the path is too long");
      if (access(file, F_OK) == 0) break;
    }
    path = file;
  }
  tws_safetensors *list = make_list();
  if (!list) return no_memory(path, err);
  const size_t length = strlen(path);
  const int is_index = length > 5 && strcmp(path + length - 5, ".json") == 0;
  return finish(list, path, is_index ? read_index(list, path, err) : read_file(list, path, err), out, err);
}

void tws_safetensors_close(tws_safetensors *list) {
  if (!list) return;
  tws_free(list->tensors);
  tws_arena_destroy(list->arena);
}

const tws_safetensor *tws_safetensors_find(const tws_safetensors *list, const char *name) {
  const tws_safetensor key = {.name = name};
  return list->count > 0 ? bsearch(&key, list->tensors, list->count, sizeof key, by_name) : NULL;
}

static const char *const dtype_names[TWS_DTYPE_COUNT] = {
    [TWS_F32] = "F32", [TWS_BF16] = "BF16",    [TWS_F16] = "F16",      [TWS_F64] = "F64",  [TWS_I32] = "I32",
    [TWS_U8] = "U8",   [TWS_E4M3] = "F8_E4M3", [TWS_E5M2] = "F8_E5M2", [TWS_LOW16] = "U16"};

int tws_safetensors_dtype(const char *dtype) {
  static const tws_dtype floating[] = {TWS_F32, TWS_BF16, TWS_F16, TWS_F64};
  for (size_t i = 0; i < sizeof floating / sizeof *floating; i++)
    if (strcmp(dtype_names[floating[i]], dtype) == 0) return (int)floating[i];
  return -1;
}

const char *tws_safetensors_dtype_name(tws_dtype dtype) {
  return dtype_names[dtype];
}

/* ---- writing ---- */

void tws_safetensors_begin(tws_safetensors_header *h, const char *format) {
  *h = (tws_safetensors_header){.data = 0};
  tws_text_add_bytes(&h->text, "\0\0\0\0\0\0\0\0", 8);
  tws_text_add(&h->text, "{\"__metadata__\":{\"format\":\"%s\"}", format);
}

static void add_name(tws_text *out, const char *name) {
  tws_text_add(out, ",\"");
  for (const char *at = name; *at; at++) {
    const unsigned char byte = (unsigned char)*at;
    if (byte == '"' || byte == '\\' || byte < 32)
      tws_text_add(out, "\\u%04x", byte);
    else
      tws_text_add_bytes(out, at, 1);
  }
  tws_text_add(out, "\"");
}

void tws_safetensors_add(tws_safetensors_header *h, const char *name, const char *dtype, const int64_t *shape,
                         int dims) {
  const uint64_t begin = h->data;
  uint64_t elements = 1;
  add_name(&h->text, name);
  tws_text_add(&h->text, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
  for (int i = 0; i < dims; i++) {
    tws_text_add(&h->text, "%s%lld", i ? "," : "", (long long)shape[i]);
    elements *= (uint64_t)shape[i];
  }
  h->data += elements * (uint64_t)tws_safetensors_bytes(dtype);
  tws_text_add(&h->text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin, (unsigned long long)h->data);
}

void tws_safetensors_end(tws_safetensors_header *h) {
  tws_text *out = &h->text;
  tws_text_add(out, "}");
  while (out->length % 8 && !out->failed) tws_text_add(out, " ");
  for (size_t i = 0; i < 8 && !out->failed; i++) out->data[i] = (char)((out->length - 8) >> 8 * i & 255);
}

/* ---- counts ---- */

/* Returns 1 if tensor i has the same data in the file as an earlier tensor of the list: torch.save stores tied weights
 * once, under several names. */
static int is_alias(const tws_safetensors *list, uint32_t i) {
  const tws_safetensor *one = &list->tensors[i];
  for (uint32_t k = 0; k < i && one->elements > 0; k++)
    if (list->tensors[k].begin == one->begin && list->tensors[k].file == one->file) return 1;
  return 0;
}

tws_code tws_safetensors_count(const char *path, tws_safetensors_counts *counts, tws_error *err) {
  tws_safetensors *list = NULL;
  *counts = (tws_safetensors_counts){0};
  TWS_TRY(tws_safetensors_open(path, &list, err));
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < list->count && code == TWS_OK; i++) {
    const tws_safetensor *one = &list->tensors[i];
    counts->tensors++;
    if (is_alias(list, i)) continue;
    if (__builtin_add_overflow(counts->parameters, one->elements, &counts->parameters) ||
        __builtin_add_overflow(counts->bytes, one->end - one->begin, &counts->bytes)) {
      code = tws_fail(err, TWS_INVALID, NULL, "%s: the total size overflows", path);
    }
  }
  tws_safetensors_close(list);
  return code;
}
