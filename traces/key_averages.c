#include "traces/key_averages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "traces/gzip.h"
#include "traces/timeline.h"

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

static double number_of(const cJSON *object, const char *key, double missing) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : missing;
}

/* Returns the row of this name and shape, which is added if it is new; NULL without memory. */
static tws_key_average *row_of(tws_key_averages *all, const char *name, const char *shape) {
  for (size_t i = 0; i < all->count; i++)
    if (strcmp(all->rows[i].name, name) == 0 && strcmp(all->rows[i].shape, shape) == 0) return &all->rows[i];
  if (tws_reserve(&all->rows, &all->capacity, all->count + 1, sizeof *all->rows) != 0) return NULL;
  tws_key_average *row = &all->rows[all->count];
  *row = (tws_key_average){
      .name = tws_arena_strdup(all->arena, name), .shape = tws_arena_strdup(all->arena, shape), .least_s = INFINITY};
  if (!row->name || !row->shape) return NULL;
  all->count++;
  return row;
}

static tws_code add_event(tws_key_averages *all, const tws_json *json, const cJSON *event, int by_shape,
                          tws_error *err) {
  const double duration_s = 1e-6 * number_of(event, "dur", -1);
  const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
  if (!(duration_s >= 0))
    return tws_json_fail(json, event, err, "give a trace that --trace wrote", "an event without a duration");
  tws_key_average *row = row_of(all, tws_label_kind(text_of(event, "name")), by_shape ? text_of(args, "shape") : "");
  if (!row) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the averages of a trace");
  row->calls++;
  row->total_s += duration_s;
  row->bytes += number_of(args, "bytes", 0);
  row->flops += number_of(args, "flops", 0);
  if (duration_s < row->least_s) row->least_s = duration_s;
  if (duration_s > row->most_s) row->most_s = duration_s;
  all->total_s += duration_s;
  return TWS_OK;
}

static int longest_first(const void *a, const void *b) {
  const tws_key_average *x = a, *y = b;
  if (x->total_s != y->total_s) return x->total_s < y->total_s ? 1 : -1;
  const int names = strcmp(x->name, y->name);
  return names ? names : strcmp(x->shape, y->shape);
}

static tws_code read_events(const tws_json *json, int by_shape, tws_key_averages *out, tws_error *err) {
  const cJSON *events =
                  cJSON_IsArray(json->root) ? json->root : cJSON_GetObjectItemCaseSensitive(json->root, "traceEvents"),
              *event;
  if (!cJSON_IsArray(events)) return tws_json_fail(json, json->root, err, NULL, "not a Chrome trace: no traceEvents");
  cJSON_ArrayForEach(event, events) {
    if (strcmp(text_of(event, "ph"), "X") == 0) TWS_TRY(add_event(out, json, event, by_shape, err));
  }
  if (out->count == 0) return tws_json_fail(json, json->root, err, NULL, "the trace has no events with a duration");
  qsort(out->rows, out->count, sizeof *out->rows, longest_first);
  return TWS_OK;
}

tws_code tws_key_averages_read(const char *path, int by_shape, tws_key_averages *out, tws_error *err) {
  tws_json *json = NULL;
  char *text = NULL;
  size_t length;
  *out = (tws_key_averages){.arena = tws_arena_create()};
  if (!out->arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the averages of a trace");
  TWS_TRY(tws_read_file(path, 0, &text, &length, err));
  tws_code code = tws_gzip_expand(path, &text, &length, err);
  if (code == TWS_OK) code = tws_json_parse(text, length, path, &json, err);
  tws_free(text);
  if (code == TWS_OK) code = read_events(json, by_shape, out, err);
  tws_json_destroy(json);
  return code;
}

void tws_key_averages_free(tws_key_averages *averages) {
  tws_arena_destroy(averages->arena);
  tws_free(averages->rows);
  *averages = (tws_key_averages){0};
}
