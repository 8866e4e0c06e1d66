#include "validation/results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "traces/measurements.h"
#include "validation/result_checks.h"

static int64_t integer_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) && fabs(item->valuedouble) < 9e15 ? (int64_t)item->valuedouble : 0;
}

static double number_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* Sets *value if the object has the key; otherwise the value of an earlier result stays. */
static void learn_number(double *value, const cJSON *object, const char *key) {
  double said = number_of(object, key);
  if (said > 0) *value = said;
}

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

const char *tws_result_model(const char *model) {
  const char *at = model + strlen(model);
  for (int slashes = 0; at > model; at--)
    if (at[-1] == '/' && ++slashes == 2) break;
  return at;
}

static const char *last_part(const char *text, size_t length) {
  size_t at = length;
  while (at > 0 && text[at - 1] != '/') at--;
  return text + at;
}

void tws_result_title(const char *model, char *title, size_t size) {
  static const char config[] = "config.json", suffix[] = ".json";
  size_t length = strlen(model);
  while (length > 1 && model[length - 1] == '/') length--;
  const char *name = last_part(model, length);
  if (name > model + 1 && strncmp(name, config, sizeof config) == 0) { /* a file config.json is named by its folder */
    length = (size_t)(name - model) - 1;
    name = last_part(model, length);
  }
  size_t kept = length - (size_t)(name - model);
  if (kept > sizeof suffix - 1 && strncmp(name + kept - (sizeof suffix - 1), suffix, sizeof suffix - 1) == 0)
    kept -= sizeof suffix - 1;
  snprintf(title, size, "%.*s", (int)kept, name);
}

static int texts_differ(const char *a, const char *b) {
  return *a && *b && strcmp(a, b) != 0;
}

/* Checks that results of one entry have the same fingerprint, and takes the fingerprint of the file that is being read
 * if the entry has none. */
static tws_result_entry *join_entry(tws_results *r, tws_result_entry *e) {
  if (texts_differ(e->fingerprint.model, r->fingerprint.model) ||
      texts_differ(e->fingerprint.plan, r->fingerprint.plan)) {
    r->clash = e;
    return NULL;
  }
  if (!*e->fingerprint.plan && *r->fingerprint.model) {
    e->fingerprint = r->fingerprint;
    e->file = r->file;
  }
  return e;
}

/* Returns the entry of this configuration, which is added if it is new. NULL: no memory, or the fingerprints of both
 * results differ. */
static tws_result_entry *find_entry(tws_results *r, const tws_result_entry *key) {
  for (size_t i = 0; i < r->count; i++) {
    tws_result_entry *e = &r->entries[i];
    if (strcmp(e->model, key->model) == 0 && strcmp(e->recompute, key->recompute) == 0 &&
        strcmp(e->dtype, key->dtype) == 0 && strcmp(e->runtime, key->runtime) == 0 && strcmp(e->axes, key->axes) == 0 &&
        e->sequence == key->sequence && e->stage == key->stage && e->micro == key->micro &&
        e->accumulation == key->accumulation && e->ranks == key->ranks && e->threads == key->threads)
      return join_entry(r, e);
  }
  if (tws_reserve(&r->entries, &r->capacity, r->count + 1, sizeof *r->entries) != 0) return NULL;
  r->entries[r->count] = *key;
  r->entries[r->count].fingerprint = r->fingerprint;
  r->entries[r->count].file = r->file;
  return &r->entries[r->count++];
}

static void read_axes(const cJSON *job, char *text, size_t size) {
  const cJSON *axes = cJSON_GetObjectItemCaseSensitive(job, "axes");
  const char *schedule = text_of(job, "pipeline_schedule");
  size_t used = 0;
  text[0] = '\0';
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    const char *name = tws_axis_name((tws_axis)axis);
    int64_t ranks = axis == TWS_AXIS_DATA ? 1 : integer_of(axes, name);
    if (ranks > 1 && used < size)
      used += (size_t)snprintf(text + used, size - used, "%s%s %lld", used ? ", " : "", name, (long long)ranks);
  }
  int64_t chunks = integer_of(job, "virtual_stages");
  if (*schedule && used < size) used += (size_t)snprintf(text + used, size - used, ", %s", schedule);
  if (chunks > 1 && used < size) used += (size_t)snprintf(text + used, size - used, " x %lld", (long long)chunks);
  if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(job, "sequence_parallel")) && used < size)
    snprintf(text + used, size - used, ", sequence parallel");
}

/* Returns the entry of a job's result. `all` is the object that has model, type and sequence: the job itself, or the
 * list that contains it. */
static tws_result_entry *find_job(tws_results *r, const cJSON *job, const cJSON *all, int64_t ranks) {
  tws_result_entry key = {
      .stage = integer_of(job, "zero_stage"), .micro = integer_of(job, "micro_batch"), .ranks = ranks};
  key.threads = integer_of(job, "threads");
  key.accumulation = integer_of(job, "accumulation_steps");
  if (!key.accumulation) key.accumulation = integer_of(job, "accumulation");
  key.sequence = integer_of(all, "sequence_length");
  snprintf(key.model, sizeof key.model, "%.63s", tws_result_model(text_of(all, "model")));
  snprintf(key.dtype, sizeof key.dtype, "%.7s", text_of(all, "dtype"));
  const char *runtime = text_of(all, "runtime");
  snprintf(key.runtime, sizeof key.runtime, "%.23s", *runtime ? runtime : "twinspeed");
  snprintf(key.recompute, sizeof key.recompute, "%.15s", text_of(job, "recompute"));
  read_axes(job, key.axes, sizeof key.axes);
  tws_result_entry *e = find_entry(r, &key);
  int64_t tokens = integer_of(job, "train_batch") * key.sequence;
  if (e && tokens > 0) e->tokens = tokens;
  return e;
}

static int read_train(tws_results *r, const cJSON *root) {
  const cJSON *job = cJSON_GetObjectItemCaseSensitive(root, "configuration"), *one;
  tws_result_entry *e = find_job(r, job, job, integer_of(root, "ranks"));
  if (!e) return -1;
  e->measured_s = number_of(root, "median_step_s");
  e->steps = integer_of(root, "steps");
  const cJSON *losses = cJSON_GetObjectItemCaseSensitive(root, "losses");
  int count = cJSON_GetArraySize(losses);
  if (count > 0) {
    e->first_loss = cJSON_GetArrayItem(losses, 0)->valuedouble;
    e->last_loss = cJSON_GetArrayItem(losses, count - 1)->valuedouble;
  }
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "memory")) {
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(one, "device");
    e->predicted_bytes = fmax(e->predicted_bytes, number_of(device, "predicted_bytes"));
    e->allocated_bytes = fmax(e->allocated_bytes, number_of(device, "allocated_bytes"));
  }
  const cJSON *times = cJSON_GetObjectItemCaseSensitive(root, "step_s");
  size_t n = (size_t)cJSON_GetArraySize(times), kept = 0;
  double *sorted = n ? tws_calloc(n, sizeof *sorted) : NULL;
  cJSON_ArrayForEach(one, times) if (sorted && cJSON_IsNumber(one)) sorted[kept++] = one->valuedouble;
  if (kept > 3) {
    tws_sample_median(sorted, kept); /* tws_sample_median() sorts the values */
    e->low_s = sorted[kept / 4];
    e->high_s = sorted[kept - 1 - kept / 4];
  }
  tws_free(sorted);
  return 0;
}

static int read_estimate(tws_results *r, const cJSON *root) {
  tws_result_entry *e = find_job(r, root, root, integer_of(root, "ranks"));
  if (!e) return -1;
  const cJSON *memory = cJSON_GetObjectItemCaseSensitive(root, "memory");
  learn_number(&e->estimated_s, cJSON_GetObjectItemCaseSensitive(root, "time"), "step_s");
  learn_number(&e->predicted_bytes, cJSON_GetObjectItemCaseSensitive(memory, "device"), "arena_bytes");
  return 0;
}

static int read_simulation(tws_results *r, const cJSON *root) {
  tws_result_entry *e = find_job(r, root, root, integer_of(root, "ranks"));
  if (!e) return -1;
  learn_number(&e->simulated_s, root, "step_s");
  learn_number(&e->estimated_s, root, "longest_path_s");
  return 0;
}

/* Adds the measured and predicted times that validate and its sweep write for one configuration. */
static void add_measurement(tws_result_entry *e, const cJSON *one, const char *predicted_key,
                            const char *measured_key) {
  learn_number(&e->simulated_s, one, predicted_key);
  learn_number(&e->measured_s, one, measured_key);
  learn_number(&e->low_s, one, "measured_low_s");
  learn_number(&e->high_s, one, "measured_high_s");
  learn_number(&e->predicted_bytes, one, "rank_ledger_bytes");
  learn_number(&e->allocated_bytes, one, "rank_allocated_bytes");
}

static int read_validation(tws_results *r, const cJSON *root) {
  tws_result_entry *e = find_job(r, root, root, integer_of(root, "ranks"));
  if (!e) return -1;
  add_measurement(e, root, "predicted_step_s", "measured_step_s");
  return 0;
}

static int read_accuracy(tws_results *r, const cJSON *root) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "configurations")) {
    tws_result_entry *e = find_job(r, one, root, integer_of(one, "ranks"));
    if (!e) return -1;
    add_measurement(e, one, "simulated_s", "measured_s");
  }
  return 0;
}

static int read_tune(tws_results *r, const cJSON *root) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "candidates")) {
    tws_result_entry *e = find_job(r, one, root, integer_of(one, "ranks"));
    if (!e) return -1;
    learn_number(&e->estimated_s, one, "predicted_step_s");
    learn_number(&e->simulated_s, one, "simulated_step_s");
    learn_number(&e->predicted_bytes, one, "rank_bytes");
    double measured = number_of(one, "measured_step_s"), spread = number_of(one, "measured_spread_s");
    if (measured <= 0) continue;
    e->measured_s = measured;
    e->low_s = fmax(0, measured - spread / 2);
    e->high_s = measured + spread / 2;
  }
  return 0;
}

static tws_code unreadable(const tws_results *r, tws_error *err) {
  const tws_result_entry *e = r->clash;
  if (!e) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int model = texts_differ(e->fingerprint.model, r->fingerprint.model);
  return tws_fail(err, TWS_INVALID, "report them one by one, or write both with the same model and options",
                  "%s and %s do not belong together: two %s that the table could not tell apart", e->file, r->file,
                  model ? "models" : "plans of one model");
}

/* Refuses a file without any time of a step, and an entry without ranks. */
static tws_code check_content(const tws_results *r, const tws_json *json, size_t before, tws_error *err) {
  for (size_t i = before; i < r->count; i++) {
    const tws_result_entry *e = &r->entries[i];
    if (e->estimated_s <= 0 && e->simulated_s <= 0 && e->measured_s <= 0)
      return tws_json_fail(json, json->root, err, "give the file as the program wrote it",
                           "a result without the time of a step");
    if (e->ranks < 1 || e->micro < 1)
      return tws_json_fail(json, json->root, err, "give the file as the program wrote it",
                           "a result without the ranks or the micro batch of its job");
  }
  return TWS_OK;
}

tws_code tws_results_read(tws_results *r, const char *path, tws_error *err) {
  static const struct {
    const char *schema;
    int (*read)(tws_results *r, const cJSON *root);
  } readers[] = {{"twinspeed-train-1", read_train},           {"twinspeed-estimate-1", read_estimate},
                 {"twinspeed-simulation-1", read_simulation}, {"twinspeed-validate-1", read_validation},
                 {"twinspeed-accuracy-1", read_accuracy},     {"twinspeed-tune-1", read_tune}};
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  const char *schema = text_of(json->root, "schema");
  const cJSON *fingerprint = cJSON_GetObjectItemCaseSensitive(json->root, "fingerprint");
  tws_code code = TWS_OK;
  size_t i = 0, before = r->count;
  r->file = path;
  snprintf(r->fingerprint.model, sizeof r->fingerprint.model, "%s", text_of(fingerprint, "model"));
  snprintf(r->fingerprint.plan, sizeof r->fingerprint.plan, "%s", text_of(fingerprint, "plan"));
  while (i < sizeof readers / sizeof readers[0] && strcmp(readers[i].schema, schema) != 0) i++;
  if (i == sizeof readers / sizeof readers[0])
    code = tws_json_fail(json, json->root, err,
                         "give files that train, estimate, simulate, tune or validate wrote with --json",
                         "not a result that can be compared: schema \"%.60s\"", schema);
  else
    code = tws_result_check(json, err);
  if (code == TWS_OK) code = readers[i].read(r, json->root) == 0 ? TWS_OK : unreadable(r, err);
  if (code == TWS_OK) code = check_content(r, json, before, err);
  if (code != TWS_OK) r->count = before; /* a refused file adds no entry */
  tws_json_destroy(json);
  return code;
}

double tws_result_predicted(const tws_result_entry *e) {
  return e->simulated_s > 0 ? e->simulated_s : e->estimated_s;
}

double tws_result_error(const tws_result_entry *entry) {
  const double predicted = tws_result_predicted(entry);
  return entry->measured_s > 0 && predicted > 0 ? (predicted - entry->measured_s) / entry->measured_s : NAN;
}

double tws_results_median_error(const tws_results *results, int *pairs) {
  double *errors = tws_calloc(results->count + 1, sizeof *errors), median = -1;
  *pairs = 0;
  for (size_t i = 0; errors && i < results->count; i++) {
    const double error = tws_result_error(&results->entries[i]);
    if (!isnan(error)) errors[(*pairs)++] = fabs(error);
  }
  if (*pairs) median = tws_sample_median(errors, (size_t)*pairs);
  tws_free(errors);
  return median;
}

void tws_results_free(tws_results *results) {
  tws_free(results->entries);
  *results = (tws_results){0};
}

double tws_result_tokens_per_s(const tws_result_entry *e) {
  const double step = e->measured_s > 0 ? e->measured_s : tws_result_predicted(e);
  return e->tokens && step > 0 ? (double)e->tokens / step : 0;
}
