#include "validation/result_checks.h"

#include <math.h>
#include <string.h>

typedef enum value_kind { TEXT, WHOLE, NUMBER, NUMBERS } value_kind;

#define COUNT 1e12  /* limit of numbers of tokens, samples and ranks */
#define SECONDS 1e9 /* limit of seconds: thirty years */
#define BYTES 1e18
static const struct {
  const char *key;
  value_kind kind;
  double low, high;
} rows[] = {{"model", TEXT, 0, 0},
            {"dtype", TEXT, 0, 0},
            {"recompute", TEXT, 0, 0},
            {"pipeline_schedule", TEXT, 0, 0},
            {"zero_stage", WHOLE, 0, 3},
            {"micro_batch", WHOLE, 1, COUNT},
            {"accumulation", WHOLE, 1, COUNT},
            {"accumulation_steps", WHOLE, 1, COUNT},
            {"train_batch", WHOLE, 1, COUNT},
            {"sequence_length", WHOLE, 1, COUNT},
            {"ranks", WHOLE, 1, COUNT},
            {"threads", WHOLE, 0, COUNT},
            {"steps", WHOLE, 0, COUNT},
            {"virtual_stages", WHOLE, 1, COUNT},
            {"step_s", NUMBERS, 0, SECONDS}, /* a list in the results of train */
            {"longest_path_s", NUMBER, 0, SECONDS},
            {"median_step_s", NUMBER, 0, SECONDS},
            {"predicted_step_s", NUMBER, 0, SECONDS},
            {"simulated_step_s", NUMBER, 0, SECONDS},
            {"measured_step_s", NUMBER, 0, SECONDS},
            {"measured_spread_s", NUMBER, 0, SECONDS},
            {"measured_low_s", NUMBER, 0, SECONDS},
            {"measured_high_s", NUMBER, 0, SECONDS},
            {"simulated_s", NUMBER, 0, SECONDS},
            {"measured_s", NUMBER, 0, SECONDS},
            {"arena_bytes", NUMBER, 0, BYTES},
            {"predicted_bytes", NUMBER, 0, BYTES},
            {"allocated_bytes", NUMBER, 0, BYTES},
            {"rank_bytes", NUMBER, 0, BYTES},
            {"rank_ledger_bytes", NUMBER, 0, BYTES},
            {"rank_allocated_bytes", NUMBER, 0, BYTES},
            {"losses", NUMBERS, -1e6, 1e6}};

/* Returns 1 if a number is in the range of its row. A loss or a time that was not finite is written as null, which is
 * in range. */
static int in_range(const cJSON *item, size_t row) {
  if (cJSON_IsNull(item)) return 1;
  if (rows[row].kind == TEXT) return cJSON_IsString(item) && strlen(item->valuestring) < 4096;
  if (!cJSON_IsNumber(item)) return 0;
  double value = item->valuedouble;
  return value >= rows[row].low && value <= rows[row].high && (rows[row].kind != WHOLE || value == floor(value));
}

static tws_code refuse_number(const tws_json *json, const cJSON *item, size_t row, tws_error *err) {
  static const char hint[] = "give the file as the program wrote it";
  char got[96];
  tws_json_describe(item, got, sizeof got);
  if (rows[row].kind == TEXT)
    return tws_json_fail(json, item, err, hint, "\"%s\" must be a string, not %s", rows[row].key, got);
  return tws_json_fail(json, item, err, hint, "\"%s\" must be %s from %g to %g, not %s", rows[row].key,
                       rows[row].kind == WHOLE ? "an integer" : "a number", rows[row].low, rows[row].high, got);
}

/* Checks the numbers of ranks along the axes; one axis is called "model", as is another member. */
static tws_code check_axes(const tws_json *json, const cJSON *axes, tws_error *err) {
  const cJSON *one;
  cJSON_ArrayForEach(
      one, axes) if (!cJSON_IsNumber(one) ||
                     !(one->valuedouble >= 1 &&
                       one->valuedouble <= COUNT)) return tws_json_fail(json, one, err,
                                                                        "give the file as the program wrote it",
                                                                        "an axis must have ranks");
  return TWS_OK;
}

/* Returns 1 for the sections that the report reads; elsewhere their members' names have other meanings. */
static int is_read(const cJSON *item) {
  static const char *const names[] = {"configuration", "configurations", "candidates", "time", "memory", "device"};
  if (!item->string) return 1; /* the document, or an element of a list */
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], item->string) == 0) return 1;
  return 0;
}

static tws_code check_item(const tws_json *json, const cJSON *item, tws_error *err) {
  size_t count = sizeof rows / sizeof *rows, row = 0;
  if (item->string && strcmp(item->string, "axes") == 0) return check_axes(json, item, err);
  while (item->string && row < count && strcmp(rows[row].key, item->string) != 0) row++;
  if (item->string && row < count) {
    const cJSON *one;
    if (rows[row].kind == NUMBERS && cJSON_IsArray(item)) {
      cJSON_ArrayForEach(one, item) if (!in_range(one, row)) return refuse_number(json, one, row, err);
      return TWS_OK;
    }
    return in_range(item, row) ? TWS_OK : refuse_number(json, item, row, err);
  }
  if (!is_read(item)) return TWS_OK;
  for (const cJSON *child = item->child; child; child = child->next) TWS_TRY(check_item(json, child, err));
  return TWS_OK;
}

tws_code tws_result_check(const tws_json *json, tws_error *err) {
  return check_item(json, json->root, err); /* the reader of JSON bounds the depth */
}
