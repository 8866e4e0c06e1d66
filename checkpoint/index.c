#include "checkpoint/index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "base/checksum.h"
#include "base/number.h"
#include "checkpoint/folder.h"
#include "models/quantized.h"

enum { SHAPE_DIMS = sizeof((tws_param *)0)->shape / sizeof(int64_t) };

static const char seal[] = ",\n\"checksum\":\"";
static const char damaged[] = "the checkpoint is damaged: resume from another one";

uint64_t tws_saved_bytes(const tws_saved_index *index, const tws_piece *piece) {
  return piece->count * tws_dtype_bytes((tws_dtype)index->entries[piece->entry].dtype);
}

uint32_t tws_saved_blocks(uint64_t bytes) {
  return (uint32_t)((bytes + TWS_CHECKPOINT_BLOCK - 1) / TWS_CHECKPOINT_BLOCK);
}

/* ---- writing ---- */

static void add_string(tws_text *out, const char *text) {
  tws_text_add(out, "\"");
  for (const char *at = text; *at; at++) {
    if (*at == '"' || *at == '\\')
      tws_text_add(out, "\\%c", *at);
    else if ((unsigned char)*at < 0x20)
      tws_text_add(out, "\\u%04x", *at);
    else
      tws_text_add_bytes(out, at, 1);
  }
  tws_text_add(out, "\"");
}

static void add_member(tws_text *out, const char *key, const char *text) {
  tws_text_add(out, ",\n\"%s\":", key);
  add_string(out, text ? text : "");
}

static void add_counters(tws_text *out, const tws_saved_index *x) {
  const tws_counters *c = &x->counters;
  tws_text_add(out, ",\n\"counters\":{\"seed\":%" PRId64 ",\"steps\":%" PRId64 ",\"skipped\":%" PRId64, c->seed,
               c->steps, c->skipped);
  tws_text_add(out,
               ",\"loss_scale\":%.17g,\"hysteresis\":%" PRId64 ",\"stable\":%" PRId64 ",\"overflows\":%" PRId64 "}",
               c->loss_scale.scale, c->loss_scale.hysteresis, c->loss_scale.stable, c->loss_scale.overflows);
}

static void add_training(tws_text *out, const tws_saved_index *x) {
  add_counters(out, x);
  tws_text_add(out, ",\n\"data\":{\"file\":");
  add_string(out, x->data);
  tws_text_add(out, ",\"tokens\":%" PRId64 ",\"samples\":%" PRId64 "}", x->data_tokens, x->samples);
  tws_text_add(out, ",\n\"training\":{\"ranks\":%" PRId64 ",\"zero_stage\":%" PRId64 ",\"train_batch\":%" PRId64,
               x->ranks, x->zero_stage, x->train_batch);
  tws_text_add(out, ",\"sequence_length\":%" PRId64 ",\"dtype\":\"%s\"}", x->sequence_length, x->dtype);
  tws_text_add(out, ",\n\"vocabulary\":{\"rows\":%" PRId64 ",\"padded\":%" PRId64 "}", x->vocabulary,
               x->padded_vocabulary);
}

static void add_piece(tws_text *out, const tws_saved_index *x, const tws_saved_piece *saved) {
  const tws_piece *p = &saved->piece;
  const tws_param_slice *s = &p->slice;
  tws_text_add(out, "{\"file\":%d,\"entry\":%u,\"at\":%" PRIu64 ",\"count\":%" PRIu64, p->rank, p->entry, p->at,
               p->count);
  if (p->copy) tws_text_add(out, ",\"copy\":%d", p->copy);
  if (p->param != TWS_NONE) {
    tws_text_add(out, ",\"parameter\":%u,\"first\":%" PRIu64 ",\"rows\":[", p->param, p->first);
    for (int i = 0; i < 3 && s->rows[i] > 0; i++)
      tws_text_add(out, "%s[%" PRId64 ",%" PRId64 "]", i ? "," : "", s->first_row[i], s->rows[i]);
    if (s->repeats > 1) tws_text_add(out, "],\"repeats\":[%" PRId64 ",%" PRId64, s->repeats, s->step);
    tws_text_add(out, "],\"columns\":[%" PRId64 ",%" PRId64 ",%" PRId64 "]", s->first_column, s->columns,
                 s->whole_columns);
  }
  tws_text_add(out, ",\"checksums\":[");
  for (uint32_t i = 0; i < tws_saved_blocks(tws_saved_bytes(x, p)); i++)
    tws_text_add(out, "%s\"%016" PRIx64 "\"", i ? "," : "", saved->checksums[i]);
  tws_text_add(out, "]}");
}

/* Adds the members that describe frozen parameters; adds none if all parameters are trained. */
static void add_frozen(tws_text *out, const tws_saved_index *x) {
  if (x->base && *x->base) add_member(out, "base", x->base);
  if (x->lora_r > 0) tws_text_add(out, ",\n\"lora\":{\"r\":%" PRId64 ",\"scale\":%.17g}", x->lora_r, x->lora_scale);
  if (x->block > 0) tws_text_add(out, ",\n\"quantized_block\":%" PRId64, x->block);
  if (x->scale_block > 0) tws_text_add(out, ",\n\"quantized_scale_block\":%" PRId64, x->scale_block);
}

void tws_saved_write(const tws_saved_index *x, tws_text *out) {
  const size_t begin = out->length;
  tws_text_add(out, "{\"schema\":\"" TWS_CHECKPOINT_SCHEMA "\"");
  add_member(out, "model", x->model);
  add_member(out, "configuration", x->configuration);
  add_member(out, "plan", x->plan);
  add_member(out, "architecture", x->architecture);
  add_member(out, "class", x->class_name);
  add_frozen(out, x);
  if (x->client_state && *x->client_state) add_member(out, "client_state", x->client_state);
  add_training(out, x);
  tws_text_add(out, ",\n\"block_bytes\":%d,\n\"entries\":[", TWS_CHECKPOINT_BLOCK);
  for (uint32_t i = 0; i < x->entry_count; i++) {
    tws_text_add(out, "%s\n{\"name\":", i ? "," : "");
    add_string(out, x->entries[i].name);
    tws_text_add(out, ",\"dtype\":\"%s\",\"parameters\":%s}", tws_dtype_name((tws_dtype)x->entries[i].dtype),
                 x->entries[i].initial == TWS_INITIAL_PARAMETER ? "true" : "false");
  }
  tws_text_add(out, "],\n\"parameters\":[");
  for (uint32_t i = 0; i < x->param_count; i++) {
    const tws_param *p = &x->params[i];
    tws_text_add(out, "%s\n{\"name\":", i ? "," : "");
    add_string(out, p->name);
    tws_text_add(out, ",\"rows\":%" PRId64 ",\"columns\":%" PRId64, p->rows, p->columns);
    if (p->fused[0] + p->fused[1] + p->fused[2] > 0)
      tws_text_add(out, ",\"fused\":[%" PRId64 ",%" PRId64 ",%" PRId64 "]", p->fused[0], p->fused[1], p->fused[2]);
    if (p->groups) tws_text_add(out, ",\"groups\":%" PRId64, p->groups);
    for (int k = 0; k < SHAPE_DIMS && p->shape[k] > 0; k++)
      tws_text_add(out, "%s%" PRId64, k ? "," : ",\"shape\":[", p->shape[k]);
    if (p->shape[0] > 0) tws_text_add(out, "]");
    if (p->experts > 0) tws_text_add(out, ",\"experts\":%d", (int)p->experts);
    if (p->frozen) tws_text_add(out, ",\"frozen\":true");
    if (p->code_type) tws_text_add(out, ",\"bits\":%d", tws_code_bits(p->code_type));
    tws_text_add(out, "}");
  }
  tws_text_add(out, "],\n\"files\":[");
  for (uint32_t i = 0; i < x->file_count; i++) {
    tws_text_add(out, "%s\n{\"name\":", i ? "," : "");
    add_string(out, x->files[i].name);
    tws_text_add(out, ",\"bytes\":%" PRIu64 ",\"data\":%" PRIu64 ",\"header_checksum\":\"%016" PRIx64 "\"}",
                 x->files[i].bytes, x->files[i].data, x->files[i].header_checksum);
  }
  tws_text_add(out, "],\n\"pieces\":[");
  for (uint32_t i = 0; i < x->piece_count; i++) {
    tws_text_add(out, "%s\n", i ? "," : "");
    add_piece(out, x, &x->pieces[i]);
  }
  tws_text_add(out, "]");
  if (out->failed) return;
  tws_text_add(out, "%s%016" PRIx64 "\"}\n", seal, tws_checksum(0, out->data + begin, out->length - begin));
}

/* ---- reading ---- */

typedef struct reader {
  const tws_json *json;
  tws_saved_index *x;
  tws_error *err;
} reader;

static tws_code bad(const reader *r, const cJSON *item, const char *what) {
  return tws_json_fail(r->json, item, r->err, damaged, "%s", what);
}

static tws_code no_memory(const reader *r) {
  return tws_fail(r->err, TWS_MEMORY, NULL, "%s: no memory for the index", r->json->name);
}

static tws_code read_text(const reader *r, const cJSON *object, const char *key, const char **text) {
  const char *found = NULL;
  TWS_TRY(tws_json_string(r->json, object, key, 1, NULL, &found, r->err));
  *text = tws_arena_strdup(r->x->arena, found);
  return *text ? TWS_OK : no_memory(r);
}

/* Integers up to this are exact in JSON numbers (doubles), and their products with small numbers do not overflow. */
#define MOST_COUNT (INT64_C(1) << 52)

static tws_code read_count(const reader *r, const cJSON *object, const char *key, int64_t low, int64_t high,
                           int64_t *value) {
  return tws_json_int(r->json, object, key, 1, low, high, 0, value, r->err);
}

static tws_code read_hex(const reader *r, const cJSON *item, uint64_t *value) {
  if (!cJSON_IsString(item) || strlen(item->valuestring) != 16 || strspn(item->valuestring, "0123456789abcdef") != 16 ||
      !tws_text_hex(item->valuestring, NULL, value))
    return bad(r, item, "expected a checksum of 16 hexadecimal digits");
  return TWS_OK;
}

static tws_code read_object(const reader *r, const char *key, const cJSON **object) {
  *object = cJSON_GetObjectItemCaseSensitive(r->json->root, key);
  if (cJSON_IsObject(*object)) return TWS_OK;
  return tws_json_fail(r->json, *object ? *object : r->json->root, r->err, damaged, "expected an object \"%s\"", key);
}

/* Reads a list of objects, and allocates an array with `bytes` bytes for each. */
static tws_code read_list(const reader *r, const char *key, size_t bytes, const cJSON **list, void *things,
                          uint32_t *count) {
  const cJSON *item;
  *list = cJSON_GetObjectItemCaseSensitive(r->json->root, key);
  if (!cJSON_IsArray(*list))
    return tws_json_fail(r->json, *list ? *list : r->json->root, r->err, damaged, "expected a list \"%s\"", key);
  cJSON_ArrayForEach(item, *list) if (!cJSON_IsObject(item)) return bad(r, item, "expected an object");
  *count = (uint32_t)cJSON_GetArraySize(*list);
  void *memory = tws_arena_alloc(r->x->arena, *count + (size_t)1, bytes);
  memcpy(things, &memory, sizeof memory);
  return memory ? TWS_OK : no_memory(r);
}

static tws_code read_dtype(const reader *r, const cJSON *object, const char *text, uint8_t *dtype) {
  for (int i = 0; i < TWS_DTYPE_COUNT; i++)
    if (strcmp(text, tws_dtype_name((tws_dtype)i)) == 0) {
      *dtype = (uint8_t)i;
      return TWS_OK;
    }
  return bad(r, object, "unknown dtype");
}

static tws_code read_counters(const reader *r) {
  tws_counters *c = &r->x->counters;
  const cJSON *object;
  TWS_TRY(read_object(r, "counters", &object));
  TWS_TRY(read_count(r, object, "seed", INT64_MIN / 2, INT64_MAX / 2, &c->seed));
  TWS_TRY(read_count(r, object, "steps", 0, MOST_COUNT, &c->steps));
  TWS_TRY(read_count(r, object, "skipped", 0, c->steps, &c->skipped));
  TWS_TRY(tws_json_number(r->json, object, "loss_scale", 1, 1e-300, 1e300, 0, &c->loss_scale.scale, r->err));
  TWS_TRY(read_count(r, object, "hysteresis", -MOST_COUNT, MOST_COUNT, &c->loss_scale.hysteresis));
  TWS_TRY(read_count(r, object, "stable", -MOST_COUNT, MOST_COUNT, &c->loss_scale.stable));
  return read_count(r, object, "overflows", 0, MOST_COUNT, &c->loss_scale.overflows);
}

static tws_code read_training(const reader *r) {
  tws_saved_index *x = r->x;
  const cJSON *object;
  TWS_TRY(read_counters(r));
  TWS_TRY(read_object(r, "data", &object));
  TWS_TRY(read_text(r, object, "file", &x->data));
  TWS_TRY(read_count(r, object, "tokens", 0, MOST_COUNT, &x->data_tokens));
  TWS_TRY(read_count(r, object, "samples", 0, MOST_COUNT, &x->samples));
  TWS_TRY(read_object(r, "training", &object));
  TWS_TRY(read_text(r, object, "dtype", &x->dtype));
  TWS_TRY(read_count(r, object, "ranks", 1, INT32_MAX, &x->ranks));
  TWS_TRY(read_count(r, object, "zero_stage", 0, 3, &x->zero_stage));
  TWS_TRY(read_count(r, object, "train_batch", 1, MOST_COUNT, &x->train_batch));
  TWS_TRY(read_count(r, object, "sequence_length", 1, MOST_COUNT, &x->sequence_length));
  TWS_TRY(read_object(r, "vocabulary", &object));
  TWS_TRY(read_count(r, object, "rows", 0, MOST_COUNT, &x->vocabulary));
  return read_count(r, object, "padded", x->vocabulary, MOST_COUNT, &x->padded_vocabulary);
}

static tws_code read_entries(const reader *r) {
  const cJSON *list, *item;
  TWS_TRY(read_list(r, "entries", sizeof *r->x->entries, &list, &r->x->entries, &r->x->entry_count));
  tws_saved_entry *entry = r->x->entries;
  cJSON_ArrayForEach(item, list) {
    const char *dtype = NULL;
    int parameters = 0;
    TWS_TRY(read_text(r, item, "name", &entry->name));
    TWS_TRY(tws_json_string(r->json, item, "dtype", 1, NULL, &dtype, r->err));
    TWS_TRY(read_dtype(r, item, dtype, &entry->dtype));
    TWS_TRY(tws_json_bool(r->json, item, "parameters", 1, 0, &parameters, r->err));
    entry++->initial = parameters ? TWS_INITIAL_PARAMETER : TWS_INITIAL_ZERO;
  }
  return TWS_OK;
}

/* Reads the number of experts that the rows of a parameter are divided among. */
static tws_code read_experts(const reader *r, const cJSON *item, tws_param *param) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, "experts");
  int64_t experts = 0;
  if (!found) return TWS_OK;
  if (!tws_json_integer(r->json, found, &experts, NULL) || experts < 1 || experts > param->rows ||
      param->rows % experts != 0)
    return bad(r, found, "expected a number of experts that divides the rows");
  param->experts = (int32_t)experts;
  return TWS_OK;
}

/* Reads the row counts of the tensors that are joined in one parameter; their sum must be the parameter's rows, or
 * those of one expert. */
static tws_code read_fused(const reader *r, const cJSON *item, tws_param *param) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "fused"), *rows;
  int64_t sum = 0;
  int i = 0;
  if (!list) return TWS_OK;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 3) return bad(r, list, "expected three numbers of rows");
  cJSON_ArrayForEach(rows, list) {
    if (!tws_json_integer(r->json, rows, &param->fused[i], NULL) || param->fused[i] < 0 || param->fused[i] > MOST_COUNT)
      return bad(r, rows, "expected a number of rows");
    sum += param->fused[i++];
  }
  const int64_t all = param->experts > 0 ? param->rows / param->experts
                      : param->rows == 1 ? param->columns
                                         : param->rows;
  return sum == all ? TWS_OK : bad(r, list, "the rows do not add up");
}

/* Reads the number of groups of heads over which the rows of a fused tensor are distributed: each group has its
 * queries, keys and values next to each other. */
static tws_code read_groups(const reader *r, const cJSON *item, tws_param *param) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, "groups");
  if (!found) return TWS_OK;
  int whole = tws_json_integer(r->json, found, &param->groups, NULL) && param->groups > 0 && param->fused[0] > 0;
  for (int i = 0; i < 3 && whole; i++) whole = param->fused[i] % param->groups == 0;
  return whole ? TWS_OK : bad(r, found, "expected a number of groups that divides the joined rows");
}

/* Reads the dimensions of the parameter's tensor in files, if they are not its rows and columns. */
static tws_code read_shape(const reader *r, const cJSON *item, tws_param *param) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "shape"), *size;
  int64_t left = param->rows * param->columns;
  int i = 0;
  if (!list) return TWS_OK;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > SHAPE_DIMS)
    return bad(r, list, "expected up to four dimensions");
  cJSON_ArrayForEach(size, list) {
    if (!tws_json_integer(r->json, size, &param->shape[i], NULL) || param->shape[i] < 1 || left % param->shape[i] != 0)
      return bad(r, size, "expected a dimension that divides the elements");
    left /= param->shape[i++];
  }
  return left == 1 ? TWS_OK : bad(r, list, "the dimensions do not make its elements");
}

static tws_code read_params(const reader *r) {
  const cJSON *list, *item;
  TWS_TRY(read_list(r, "parameters", sizeof *r->x->params, &list, &r->x->params, &r->x->param_count));
  tws_param *param = r->x->params;
  cJSON_ArrayForEach(item, list) {
    TWS_TRY(read_text(r, item, "name", &param->name));
    TWS_TRY(read_count(r, item, "rows", 1, MOST_COUNT, &param->rows));
    TWS_TRY(read_count(r, item, "columns", 1, MOST_COUNT / param->rows, &param->columns));
    TWS_TRY(read_experts(r, item, param));
    TWS_TRY(read_fused(r, item, param));
    TWS_TRY(read_groups(r, item, param));
    TWS_TRY(read_shape(r, item, param));
    int64_t bits = 0;
    if (cJSON_HasObjectItem(item, "bits")) TWS_TRY(read_count(r, item, "bits", 4, 8, &bits));
    param->code_type = (uint8_t)bits;
    param->frozen = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "frozen")) != 0;
    param++;
  }
  return TWS_OK;
}

static tws_code read_files(const reader *r) {
  const cJSON *list, *item;
  TWS_TRY(read_list(r, "files", sizeof *r->x->files, &list, &r->x->files, &r->x->file_count));
  tws_saved_file *file = r->x->files;
  cJSON_ArrayForEach(item, list) {
    int64_t bytes = 0, data = 0;
    TWS_TRY(read_text(r, item, "name", &file->name));
    if (!*file->name || *file->name == '.' || strchr(file->name, '/') || strlen(file->name) > 200)
      return bad(r, item, "\"name\" must be a file of this folder: at most 200 characters, no slash or leading period");
    TWS_TRY(read_count(r, item, "bytes", 8, MOST_COUNT, &bytes));
    TWS_TRY(read_count(r, item, "data", 8, bytes, &data));
    file->bytes = (uint64_t)bytes;
    file->data = (uint64_t)data;
    TWS_TRY(read_hex(r, cJSON_GetObjectItemCaseSensitive(item, "header_checksum"), &file->header_checksum));
    file++;
  }
  return TWS_OK;
}

static tws_code read_slice(const reader *r, const cJSON *item, const tws_param *param, tws_param_slice *slice) {
  const cJSON *rows = cJSON_GetObjectItemCaseSensitive(item, "rows"), *row;
  const cJSON *columns = cJSON_GetObjectItemCaseSensitive(item, "columns");
  int64_t pair[2], triple[3], end = 0;
  int block = 0;
  const int vector = param->rows == 1;
  const int64_t all = vector ? param->columns : param->rows, wide = vector ? 1 : param->columns;
  if (!cJSON_IsArray(rows) || cJSON_GetArraySize(rows) < 1 || cJSON_GetArraySize(rows) > 3)
    return bad(r, rows ? rows : item, "expected one to three blocks of rows");
  cJSON_ArrayForEach(row, rows) {
    if (!cJSON_IsArray(row) || cJSON_GetArraySize(row) != 2 || !tws_json_integer(r->json, row->child, &pair[0], NULL) ||
        !tws_json_integer(r->json, row->child->next, &pair[1], NULL) || pair[0] < end || pair[0] > all || pair[1] < 1 ||
        pair[1] > all - pair[0])
      return bad(r, row, "not rows of the parameter");
    end = pair[0] + pair[1];
    slice->first_row[block] = pair[0];
    slice->rows[block++] = pair[1];
  }
  const cJSON *repeats = cJSON_GetObjectItemCaseSensitive(item, "repeats");
  if (repeats) { /* the blocks must be within one period of rows, and all periods within the parameter */
    if (!cJSON_IsArray(repeats) || cJSON_GetArraySize(repeats) != 2 ||
        !tws_json_integer(r->json, repeats->child, &pair[0], NULL) ||
        !tws_json_integer(r->json, repeats->child->next, &pair[1], NULL) || pair[0] < 2 || pair[1] < 1 ||
        slice->first_row[0] / pair[1] != (end - 1) / pair[1] || pair[0] - 1 > (all - end) / pair[1])
      return bad(r, repeats, "not rows of the parameter");
    slice->repeats = pair[0];
    slice->step = pair[1];
  }
  if (!cJSON_IsArray(columns) || cJSON_GetArraySize(columns) != 3)
    return bad(r, columns ? columns : item, "no columns");
  const cJSON *at = columns->child;
  for (int i = 0; i < 3; i++, at = at->next)
    if (!tws_json_integer(r->json, at, &triple[i], NULL)) return bad(r, at, "expected a number");
  if (triple[2] != wide || triple[0] < 0 || triple[1] < 1 || triple[0] > wide || triple[1] > wide - triple[0])
    return bad(r, columns, "not columns of the parameter");
  slice->first_column = triple[0];
  slice->columns = triple[1];
  slice->whole_columns = triple[2];
  return TWS_OK;
}

static tws_code read_checksums(const reader *r, const cJSON *item, tws_saved_piece *saved) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "checksums"), *one;
  const uint32_t blocks = tws_saved_blocks(tws_saved_bytes(r->x, &saved->piece));
  if (!cJSON_IsArray(list) || (uint32_t)cJSON_GetArraySize(list) != blocks)
    return bad(r, list ? list : item, "expected a checksum for every block");
  uint64_t *checksums = tws_arena_alloc(r->x->arena, blocks + (size_t)1, sizeof *checksums), *at = checksums;
  if (!checksums) return no_memory(r);
  cJSON_ArrayForEach(one, list) TWS_TRY(read_hex(r, one, at++));
  saved->checksums = checksums;
  return TWS_OK;
}

static tws_code read_piece(const reader *r, const cJSON *item, tws_saved_piece *saved) {
  const tws_saved_index *x = r->x;
  tws_piece *p = &saved->piece;
  int64_t file, entry, param = -1, at, count, first = 0, copy = 0;
  TWS_TRY(read_count(r, item, "file", 0, (int64_t)x->file_count - 1, &file));
  TWS_TRY(read_count(r, item, "entry", 0, (int64_t)x->entry_count - 1, &entry));
  TWS_TRY(read_count(r, item, "at", 0, MOST_COUNT, &at));
  TWS_TRY(read_count(r, item, "count", 1, MOST_COUNT, &count));
  TWS_TRY(tws_json_int(r->json, item, "copy", 0, 0, INT32_MAX, 0, &copy, r->err));
  p->rank = (int32_t)file;
  p->entry = (uint32_t)entry;
  p->at = (uint64_t)at;
  p->count = (uint64_t)count;
  p->copy = (int32_t)copy;
  p->param = TWS_NONE;
  if (cJSON_GetObjectItemCaseSensitive(item, "parameter")) {
    TWS_TRY(read_count(r, item, "parameter", 0, (int64_t)x->param_count - 1, &param));
    TWS_TRY(read_count(r, item, "first", 0, MOST_COUNT, &first));
    p->param = (uint32_t)param;
    p->first = (uint64_t)first;
    TWS_TRY(read_slice(r, item, &x->params[param], &p->slice));
    const uint64_t all = tws_slice_count(&p->slice);
    if (p->first > all || p->count > all - p->first) return bad(r, item, "more elements than the part has");
  }
  const tws_saved_file *in = &x->files[file];
  const uint64_t bytes = tws_saved_bytes(x, p), room = in->bytes - in->data;
  if (p->at > room || bytes > room - p->at) return bad(r, item, "the piece does not lie inside its file");
  return read_checksums(r, item, saved);
}

static tws_code read_pieces(const reader *r) {
  const cJSON *list, *item;
  uint32_t i = 0;
  TWS_TRY(read_list(r, "pieces", sizeof *r->x->pieces, &list, &r->x->pieces, &r->x->piece_count));
  cJSON_ArrayForEach(item, list) {
    TWS_TRY(read_piece(r, item, &r->x->pieces[i]));
    const tws_piece *a = i ? &r->x->pieces[i - 1].piece : NULL, *b = &r->x->pieces[i].piece;
    if (a && (a->entry > b->entry || (a->entry == b->entry && a->param > b->param) ||
              (a->entry == b->entry && a->param == b->param && a->copy > b->copy)))
      return bad(r, item, "pieces are not in order");
    i++;
  }
  return TWS_OK;
}

static tws_code read_frozen(const reader *r) {
  const cJSON *lora = cJSON_GetObjectItemCaseSensitive(r->json->root, "lora");
  r->x->base = "";
  if (cJSON_HasObjectItem(r->json->root, "base")) TWS_TRY(read_text(r, r->json->root, "base", &r->x->base));
  if (cJSON_HasObjectItem(r->json->root, "quantized_block"))
    TWS_TRY(read_count(r, r->json->root, "quantized_block", 2, MOST_COUNT, &r->x->block));
  if (cJSON_HasObjectItem(r->json->root, "quantized_scale_block"))
    TWS_TRY(read_count(r, r->json->root, "quantized_scale_block", 1, MOST_COUNT, &r->x->scale_block));
  if (!lora) return TWS_OK;
  if (!cJSON_IsObject(lora)) return bad(r, lora, "expected an object");
  TWS_TRY(read_count(r, lora, "r", 1, MOST_COUNT, &r->x->lora_r));
  return tws_json_number(r->json, lora, "scale", 1, 1e-18, 1e18, 1, &r->x->lora_scale, r->err);
}

static tws_code read_index(const reader *r) {
  const tws_json *json = r->json;
  tws_saved_index *x = r->x;
  const char *schema = NULL;
  int64_t block = 0;
  if (!cJSON_IsObject(json->root)) return bad(r, json->root, "expected an object");
  TWS_TRY(tws_json_string(json, json->root, "schema", 1, NULL, &schema, r->err));
  if (strcmp(schema, TWS_CHECKPOINT_SCHEMA) != 0)
    return tws_json_fail(json, json->root, r->err, "was it written by another version?",
                         "schema \"%.60s\"; " TWS_CHECKPOINT_SCHEMA " is known", schema);
  TWS_TRY(read_count(r, json->root, "block_bytes", TWS_CHECKPOINT_BLOCK, TWS_CHECKPOINT_BLOCK, &block));
  TWS_TRY(read_text(r, json->root, "model", &x->model));
  TWS_TRY(read_text(r, json->root, "configuration", &x->configuration));
  TWS_TRY(read_text(r, json->root, "plan", &x->plan));
  TWS_TRY(read_text(r, json->root, "architecture", &x->architecture));
  TWS_TRY(read_text(r, json->root, "class", &x->class_name));
  TWS_TRY(read_frozen(r));
  x->client_state = "";
  if (cJSON_HasObjectItem(json->root, "client_state"))
    TWS_TRY(read_text(r, json->root, "client_state", &x->client_state));
  TWS_TRY(read_training(r));
  TWS_TRY(read_entries(r));
  TWS_TRY(read_params(r));
  TWS_TRY(read_files(r));
  return read_pieces(r);
}

/* Checks the text's own checksum. It is the last member, and covers every byte before it. */
static tws_code check_seal(const char *text, size_t length, const char *name, tws_error *err) {
  char expected[sizeof seal + 32];
  /* bytes of the text's end: `seal`, the 16 digits of the checksum, and 3 closing characters */
  const size_t tail = sizeof seal - 1 + 16 + 3;
  const int there = length > tail && memcmp(text + length - tail, seal, sizeof seal - 1) == 0;
  if (!there) return tws_fail(err, TWS_INVALID, damaged, "%s: it is cut short, or no index", name);
  snprintf(expected, sizeof expected, "%s%016" PRIx64 "\"}\n", seal, tws_checksum(0, text, length - tail));
  if (memcmp(text + length - tail, expected, tail) == 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, damaged, "%s: it is damaged, its checksum is wrong", name);
}

tws_code tws_saved_parse(const char *text, size_t length, const char *path, tws_saved_index **out, tws_error *err) {
  char name[4096];
  tws_json *json = NULL;
  *out = NULL;
  snprintf(name, sizeof name, "%s/%s", path, TWS_CHECKPOINT_INDEX);
  TWS_TRY(check_seal(text, length, name, err));
  tws_code code = tws_json_parse(text, length, name, &json, err);
  if (code != TWS_OK) return code;
  tws_arena *arena = tws_arena_create();
  tws_saved_index *x = arena ? tws_arena_alloc(arena, 1, sizeof *x) : NULL;
  const reader r = {.json = json, .x = x, .err = err};
  if (x) {
    x->arena = arena;
    x->path = tws_arena_strdup(arena, path);
    code = x->path ? read_index(&r) : no_memory(&r);
  } else {
    code = no_memory(&r);
  }
  tws_json_destroy(json);
  if (code == TWS_OK)
    *out = x;
  else
    tws_arena_destroy(arena);
  return code;
}

void tws_saved_close(tws_saved_index *index) {
  if (index) tws_arena_destroy(index->arena);
}

uint32_t tws_saved_entry_of(const tws_saved_index *index, const char *name) {
  for (uint32_t i = 0; i < index->entry_count; i++)
    if (strcmp(index->entries[i].name, name) == 0) return i;
  return TWS_NONE;
}

uint32_t tws_saved_param_of(const tws_saved_index *index, const char *name) {
  for (uint32_t i = 0; i < index->param_count; i++)
    if (strcmp(index->params[i].name, name) == 0) return i;
  return TWS_NONE;
}

/* ---- files ---- */

static tws_code not_there(const tws_saved_index *x, const tws_saved_file *file, uint64_t bytes, int there,
                          tws_error *err) {
  char others[160], hint[256];
  tws_folder_other_tags(x->path, others, sizeof others);
  snprintf(hint, sizeof hint, *others ? "resume from another one: --tag, of %s" : damaged, others);
  if (!there) return tws_fail(err, TWS_INVALID, hint, "%s/%s: the file is missing", x->path, file->name);
  return tws_fail(err, TWS_INVALID, hint, "%s/%s: it has %" PRIu64 " bytes, and %" PRIu64 " were saved", x->path,
                  file->name, bytes, file->bytes);
}

tws_code tws_saved_read_index(const char *folder, char **text, size_t *length, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  snprintf(path, sizeof path, "%.3800s/%s", folder, TWS_CHECKPOINT_INDEX);
  return tws_read_regular(path, (size_t)64 << 20, text, length, err);
}

tws_code tws_saved_explain_missing(const char *path, tws_code code, tws_error *err) {
  char newer[TWS_TAG_SIZE], hint[TWS_TAG_SIZE + 64] = "";
  if (code == TWS_OK || !tws_folder_is_removed(path, newer, sizeof newer)) return code;
  if (*newer) snprintf(hint, sizeof hint, "a newer one is there: leave out --tag, or give --tag %.200s", newer);
  return tws_fail(err, TWS_IO, hint,
                  "%.400s: the checkpoint was removed meanwhile, by the job that saves there (--keep)", path);
}

tws_code tws_saved_open(const char *folder, tws_saved_index **out, tws_error *err) {
  char path[TWS_FOLDER_SIZE], others[160], *text = NULL;
  size_t length = 0;
  struct stat info;
  *out = NULL;
  TWS_TRY(tws_saved_explain_missing(folder, tws_saved_read_index(folder, &text, &length, err), err));
  tws_code code = tws_saved_parse(text, length, folder, out, err);
  tws_free(text);
  if (code != TWS_OK && err && strcmp(err->hint, damaged) == 0 && *tws_folder_other_tags(folder, others, sizeof others))
    snprintf(err->hint, sizeof err->hint, "resume from another one: --tag, of %s", others);
  for (uint32_t i = 0; code == TWS_OK && i < (*out)->file_count; i++) {
    const tws_saved_file *file = &(*out)->files[i];
    snprintf(path, sizeof path, "%.3800s/%s", folder, file->name);
    const int there = stat(path, &info) == 0;
    if (!there || (uint64_t)info.st_size != file->bytes)
      code =
          tws_saved_explain_missing(folder, not_there(*out, file, there ? (uint64_t)info.st_size : 0, there, err), err);
  }
  if (code == TWS_OK) return TWS_OK;
  tws_saved_close(*out);
  *out = NULL;
  return code;
}
