/* twinspeed report: results that other verbs left, side by side: predicted against measured. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/json.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "job/modules.h"
#include "cli/outputs.h"
#include "cli/report_checks.h"
#include "traces/measurements.h"
#include "traces/plot.h"

typedef struct options {
  const char *plot;
  double tolerance; /* percent; -1: not asked */
  int force;
} options;

/* One configuration: what was predicted for it, by which means, and what was measured. Times 0: not known. */
typedef struct entry {
  char model[64], recompute[16], dtype[8]; /* dtype "": not said */
  char axes[64]; /* "pipe 2, model 4, 1f1b, sequence parallel": what ranks are shared among besides replicas; "":
                    nothing */
  int64_t stage, micro, accumulation, ranks, threads;
  int64_t sequence, tokens; /* tokens of a sample, of a step; 0: not known */
  double estimated_s, simulated_s, measured_s, low_s, high_s;
  double predicted_bytes, allocated_bytes; /* of the fullest rank */
  double first_loss, last_loss;
  int64_t steps;
  tws_fingerprint fingerprint; /* "": not said */
  const char *file;            /* that said it */
} entry;

typedef struct report {
  entry *entries;
  size_t count, capacity;
  const char *file; /* that is being read, and its fingerprint */
  tws_fingerprint fingerprint;
  const entry *clash; /* of another model or plan, though it looks the same */
} report;

static int64_t integer(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) && fabs(item->valuedouble) < 9e15 ? (int64_t)item->valuedouble : 0;
}

static double number(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* What a result does not say stays as another result said it. */
static void learn(double *value, const cJSON *object, const char *key) {
  double said = number(object, key);
  if (said > 0) *value = said;
}

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

/* The same path may be written in two ways: the last two parts of a model's name decide. */
static const char *short_name(const char *model) {
  const char *at = model + strlen(model);
  for (int slashes = 0; at > model; at--)
    if (at[-1] == '/' && ++slashes == 2) break;
  return at;
}

static int differ(const char *a, const char *b) {
  return *a && *b && strcmp(a, b) != 0;
}

/* Results of one row are of one thing. What the file that is being read does not say, another may have. */
static entry *join(report *r, entry *e) {
  if (differ(e->fingerprint.model, r->fingerprint.model) || differ(e->fingerprint.plan, r->fingerprint.plan)) {
    r->clash = e;
    return NULL;
  }
  if (!*e->fingerprint.plan && *r->fingerprint.model) {
    e->fingerprint = r->fingerprint;
    e->file = r->file;
  }
  return e;
}

/* The entry of this configuration, added when it is new. NULL without memory, or when they cannot be one. */
static entry *find(report *r, const entry *key) {
  for (size_t i = 0; i < r->count; i++) {
    entry *e = &r->entries[i];
    if (strcmp(e->model, key->model) == 0 && strcmp(e->recompute, key->recompute) == 0 &&
        strcmp(e->dtype, key->dtype) == 0 && strcmp(e->axes, key->axes) == 0 && e->sequence == key->sequence &&
        e->stage == key->stage && e->micro == key->micro && e->accumulation == key->accumulation &&
        e->ranks == key->ranks && e->threads == key->threads)
      return join(r, e);
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
    int64_t ranks = axis == TWS_AXIS_DATA ? 1 : integer(axes, name);
    if (ranks > 1 && used < size)
      used += (size_t)snprintf(text + used, size - used, "%s%s %lld", used ? ", " : "", name, (long long)ranks);
  }
  int64_t chunks = integer(job, "virtual_stages");
  if (*schedule && used < size) used += (size_t)snprintf(text + used, size - used, ", %s", schedule);
  if (chunks > 1 && used < size) used += (size_t)snprintf(text + used, size - used, " x %lld", (long long)chunks);
  if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(job, "sequence_parallel")) && used < size)
    snprintf(text + used, size - used, ", sequence parallel");
}

/* `all` is what says the model, type and sequence of the job: itself, or the list it is in. */
static entry *find_job(report *r, const cJSON *job, const cJSON *all, int64_t ranks) {
  entry key = {.stage = integer(job, "zero_stage"), .micro = integer(job, "micro_batch"), .ranks = ranks};
  key.threads = integer(job, "threads");
  key.accumulation = integer(job, "accumulation_steps");
  if (!key.accumulation) key.accumulation = integer(job, "accumulation");
  key.sequence = integer(all, "sequence_length");
  snprintf(key.model, sizeof key.model, "%.63s", short_name(text_of(all, "model")));
  snprintf(key.dtype, sizeof key.dtype, "%.7s", text_of(all, "dtype"));
  snprintf(key.recompute, sizeof key.recompute, "%.15s", text_of(job, "recompute"));
  read_axes(job, key.axes, sizeof key.axes);
  entry *e = find(r, &key);
  int64_t tokens = integer(job, "train_batch") * key.sequence;
  if (e && tokens > 0) e->tokens = tokens;
  return e;
}

static int read_train(report *r, const cJSON *root) {
  const cJSON *job = cJSON_GetObjectItemCaseSensitive(root, "configuration"), *one;
  entry *e = find_job(r, job, job, integer(root, "ranks"));
  if (!e) return -1;
  e->measured_s = number(root, "median_step_s");
  e->steps = integer(root, "steps");
  const cJSON *losses = cJSON_GetObjectItemCaseSensitive(root, "losses");
  int count = cJSON_GetArraySize(losses);
  if (count > 0) {
    e->first_loss = cJSON_GetArrayItem(losses, 0)->valuedouble;
    e->last_loss = cJSON_GetArrayItem(losses, count - 1)->valuedouble;
  }
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "memory")) {
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(one, "device");
    e->predicted_bytes = fmax(e->predicted_bytes, number(device, "predicted_bytes"));
    e->allocated_bytes = fmax(e->allocated_bytes, number(device, "allocated_bytes"));
  }
  const cJSON *times = cJSON_GetObjectItemCaseSensitive(root, "step_s");
  size_t n = (size_t)cJSON_GetArraySize(times), kept = 0;
  double *sorted = n ? tws_calloc(n, sizeof *sorted) : NULL;
  cJSON_ArrayForEach(one, times) if (sorted && cJSON_IsNumber(one)) sorted[kept++] = one->valuedouble;
  if (kept > 3) {
    tws_sample_median(sorted, kept); /* sorts */
    e->low_s = sorted[kept / 4];
    e->high_s = sorted[kept - 1 - kept / 4];
  }
  tws_free(sorted);
  return 0;
}

static int read_estimate(report *r, const cJSON *root) {
  entry *e = find_job(r, root, root, integer(root, "ranks"));
  if (!e) return -1;
  const cJSON *memory = cJSON_GetObjectItemCaseSensitive(root, "memory");
  learn(&e->estimated_s, cJSON_GetObjectItemCaseSensitive(root, "time"), "step_s");
  learn(&e->predicted_bytes, cJSON_GetObjectItemCaseSensitive(memory, "device"), "arena_bytes");
  return 0;
}

static int read_simulation(report *r, const cJSON *root) {
  entry *e = find_job(r, root, root, integer(root, "ranks"));
  if (!e) return -1;
  learn(&e->simulated_s, root, "step_s");
  learn(&e->estimated_s, root, "longest_path_s");
  return 0;
}

/* What validate and its sweep say of one configuration. */
static void add_measurement(entry *e, const cJSON *one, const char *predicted_key, const char *measured_key) {
  learn(&e->simulated_s, one, predicted_key);
  learn(&e->measured_s, one, measured_key);
  learn(&e->low_s, one, "measured_low_s");
  learn(&e->high_s, one, "measured_high_s");
  learn(&e->predicted_bytes, one, "rank_ledger_bytes");
  learn(&e->allocated_bytes, one, "rank_allocated_bytes");
}

static int read_validation(report *r, const cJSON *root) {
  entry *e = find_job(r, root, root, integer(root, "ranks"));
  if (!e) return -1;
  add_measurement(e, root, "predicted_step_s", "measured_step_s");
  return 0;
}

static int read_accuracy(report *r, const cJSON *root) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "configurations")) {
    entry *e = find_job(r, one, root, integer(one, "ranks"));
    if (!e) return -1;
    add_measurement(e, one, "simulated_s", "measured_s");
  }
  return 0;
}

static int read_tune(report *r, const cJSON *root) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, "candidates")) {
    entry *e = find_job(r, one, root, integer(one, "ranks"));
    if (!e) return -1;
    learn(&e->estimated_s, one, "predicted_step_s");
    learn(&e->simulated_s, one, "simulated_step_s");
    learn(&e->predicted_bytes, one, "rank_bytes");
    double measured = number(one, "measured_step_s"), spread = number(one, "measured_spread_s");
    if (measured <= 0) continue;
    e->measured_s = measured;
    e->low_s = measured - spread / 2;
    e->high_s = measured + spread / 2;
  }
  return 0;
}

static tws_code unreadable(const report *r, tws_error *err) {
  const entry *e = r->clash;
  if (!e) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int model = differ(e->fingerprint.model, r->fingerprint.model);
  return tws_fail(err, TWS_INVALID, "report them one by one, or write both with the same model and options",
                  "%s and %s do not belong together: two %s that the table could not tell apart", e->file, r->file,
                  model ? "models" : "plans of one model");
}

/* A file that says nothing about times or memory has nothing to put into the table. */
static tws_code check_content(const report *r, const tws_json *json, size_t before, tws_error *err) {
  for (size_t i = before; i < r->count; i++) {
    const entry *e = &r->entries[i];
    if (e->estimated_s <= 0 && e->simulated_s <= 0 && e->measured_s <= 0)
      return tws_json_fail(json, json->root, err, "give the file as the program wrote it",
                           "a result without the time of a step");
  }
  return TWS_OK;
}

static tws_code read_file(report *r, const char *path, tws_error *err) {
  static const struct {
    const char *schema;
    int (*read)(report *r, const cJSON *root);
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
    code = tws_report_check(json, err);
  if (code == TWS_OK) code = readers[i].read(r, json->root) == 0 ? TWS_OK : unreadable(r, err);
  if (code == TWS_OK) code = check_content(r, json, before, err);
  tws_json_destroy(json);
  return code;
}

static double predicted(const entry *e) {
  return e->simulated_s > 0 ? e->simulated_s : e->estimated_s;
}
static double relative(double a, double b) {
  return b > 0 && a > 0 ? (a - b) / b : NAN;
}

static const char *seconds_cell(double seconds) {
  char text[32];
  return seconds > 0 ? tws_cell("%s", tws_format_seconds(seconds, text, sizeof text)) : "-";
}

static const char *bytes_cell(double bytes) {
  char text[32];
  return bytes > 0 ? tws_cell("%s", tws_format_bytes(bytes, text, sizeof text)) : "-";
}

/* Median of |error| over entries that have both sides; -1 without any. */
static double median_error(const report *r, int *pairs) {
  double *errors = tws_calloc(r->count + 1, sizeof *errors), median = -1;
  *pairs = 0;
  for (size_t i = 0; errors && i < r->count; i++) {
    double error = relative(predicted(&r->entries[i]), r->entries[i].measured_s);
    if (!isnan(error)) errors[(*pairs)++] = fabs(error);
  }
  if (*pairs) median = tws_sample_median(errors, (size_t)*pairs);
  tws_free(errors);
  return median;
}

static tws_code print_text(const tws_cli *cli, const report *r, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 14);
  const char *heading[] = {
      "model", "type",      "sequence",  "ranks",    "axes",  "stage",    "micro",
      "accum", "recompute", "predicted", "measured", "error", "tokens/s", "memory predicted / allocated"};
  tws_table_row(&table, heading);
  for (size_t i = 0; i < r->count; i++) {
    const entry *e = &r->entries[i];
    double error = relative(predicted(e), e->measured_s), step = e->measured_s > 0 ? e->measured_s : predicted(e);
    const char *row[] = {e->model,
                         e->dtype[0] ? e->dtype : "-",
                         e->sequence ? tws_cell("%lld", (long long)e->sequence) : "-",
                         tws_cell("%lld", (long long)e->ranks),
                         e->axes[0] ? e->axes : "data",
                         tws_cell("%lld", (long long)e->stage),
                         tws_cell("%lld", (long long)e->micro),
                         tws_cell("%lld", (long long)e->accumulation),
                         e->recompute,
                         seconds_cell(predicted(e)),
                         seconds_cell(e->measured_s),
                         isnan(error) ? "-" : tws_cell("%+.1f %%", 100 * error),
                         e->tokens && step > 0 ? tws_thousands((int64_t)((double)e->tokens / step + 0.5)) : "-",
                         tws_cell("%s / %s", bytes_cell(e->predicted_bytes), bytes_cell(e->allocated_bytes))};
    tws_table_row(&table, row);
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  for (size_t i = 0; i < r->count; i++)
    if (r->entries[i].steps > 0)
      tws_out("loss over %lld steps: %.4f -> %.4f\n", (long long)r->entries[i].steps, r->entries[i].first_loss,
              r->entries[i].last_loss);
  int pairs;
  double median = median_error(r, &pairs);
  if (pairs > 1) tws_out("median error of the step time: %.1f %% over %d configurations\n", 100 * median, pairs);
  return TWS_OK;
}

static void add_known(cJSON *one, const char *key, double value) {
  if (value > 0) cJSON_AddNumberToObject(one, key, value);
}

static tws_code print_json(const report *r, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-report-1");
  cJSON *list = cJSON_AddArrayToObject(root, "configurations");
  for (size_t i = 0; i < r->count; i++) {
    const entry *e = &r->entries[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "model", e->model);
    if (e->dtype[0]) cJSON_AddStringToObject(one, "dtype", e->dtype);
    add_known(one, "sequence_length", (double)e->sequence);
    cJSON_AddNumberToObject(one, "ranks", (double)e->ranks);
    if (e->axes[0]) cJSON_AddStringToObject(one, "axes", e->axes);
    cJSON_AddNumberToObject(one, "zero_stage", (double)e->stage);
    cJSON_AddNumberToObject(one, "micro_batch", (double)e->micro);
    cJSON_AddNumberToObject(one, "accumulation_steps", (double)e->accumulation);
    cJSON_AddStringToObject(one, "recompute", e->recompute);
    add_known(one, "estimated_step_s", e->estimated_s);
    add_known(one, "simulated_step_s", e->simulated_s);
    add_known(one, "measured_step_s", e->measured_s);
    add_known(one, "predicted_bytes", e->predicted_bytes);
    add_known(one, "allocated_bytes", e->allocated_bytes);
    double error = relative(predicted(e), e->measured_s);
    if (!isnan(error)) cJSON_AddNumberToObject(one, "step_error", error);
    cJSON_AddItemToArray(list, one);
  }
  int pairs;
  double median = median_error(r, &pairs);
  cJSON_AddNumberToObject(root, "compared", pairs);
  if (pairs) cJSON_AddNumberToObject(root, "median_error", median);
  return tws_out_json(root, err);
}

static tws_code plot(const tws_cli *cli, const report *r, const char *folder, tws_error *err) {
  char scripts[4096], path[4096];
  if (!*tws_data_path("plots", scripts, (int)sizeof scripts))
    return tws_fail(err, TWS_ENVIRONMENT, "install the program with make install", "the figure scripts are not there");
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, "choose another folder", "%s: %s", folder, strerror(errno));
  tws_plot_point *points = tws_calloc(r->count + 1, sizeof *points);
  if (!points) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_arena *arena = tws_arena_create();
  int count = 0;
  for (size_t i = 0; arena && i < r->count; i++) {
    const entry *e = &r->entries[i];
    if (e->measured_s <= 0 || predicted(e) <= 0) continue;
    points[count++] = (tws_plot_point){
        .name = tws_arena_printf(arena, "z%lld n%lld b%lldx%lld %s", (long long)e->stage, (long long)e->ranks,
                                 (long long)e->micro, (long long)e->accumulation, e->dtype),
        .measured_s = e->measured_s,
        .low_s = e->low_s > 0 ? e->low_s : e->measured_s,
        .high_s = e->high_s > 0 ? e->high_s : e->measured_s,
        .predicted_s = predicted(e)};
  }
  tws_code code = TWS_OK;
  snprintf(path, sizeof path, "%s/accuracy.png", folder);
  if (!arena)
    code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  else if (count == 0)
    tws_warn(cli, "no configuration has both a prediction and a measurement: no figure");
  else
    code = tws_plot_accuracy(scripts, points, count, "step time: predicted against measured", path, err);
  if (code == TWS_OK && count) tws_say(cli, "wrote %s", path);
  tws_arena_destroy(arena);
  tws_free(points);
  return code;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  if (argc == 0)
    return tws_fail(err, TWS_USAGE, "twinspeed report train.json simulate.json", "report: no result files");
  static const char *const figures[] = {"accuracy.png", NULL};
  const tws_output output = {"--plot", o->plot, figures};
  TWS_TRY(tws_outputs_check(&output, 1, NULL, o->force, err));
  report r = {0};
  tws_code code = TWS_OK;
  for (int i = 0; i < argc && code == TWS_OK; i++) code = read_file(&r, argv[i], err);
  if (code == TWS_OK) code = cli->json ? print_json(&r, err) : print_text(cli, &r, err);
  if (code == TWS_OK && o->plot) code = plot(cli, &r, o->plot, err);
  int pairs;
  double median = code == TWS_OK ? median_error(&r, &pairs) : 0;
  if (code == TWS_OK && o->tolerance >= 0 && median < 0)
    code = tws_fail(err, TWS_INVALID, "give a prediction and a measurement of the same configuration",
                    "nothing to compare");
  else if (code == TWS_OK && o->tolerance >= 0 && 100 * median > o->tolerance)
    code = tws_fail(err, TWS_NO, "calibrate this machine anew, or look at the phases with validate",
                    "median error %.1f %% exceeds the tolerance of %.3g %%", 100 * median, o->tolerance);
  tws_free(r.entries);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("plot", 0, "DIR", options, plot, "write the figure accuracy.png into this folder"),
    TWS_NUMBER("tolerance", 0, "PERCENT", options, tolerance, 0, 1000, "exit 1 when the median error exceeds this"),
    TWS_FORCE_OPTION(options), TWS_OPTIONS_END};

static const options defaults = {.tolerance = -1};

const tws_verb tws_verb_report = {
    .name = "report",
    .summary = "results side by side: predicted against measured",
    .usage = "FILE... [options]",
    .examples =
        "  twinspeed report simulate.json train.json\n"
        "  twinspeed report tune.json train-*.json --plot figures --tolerance 10\n",
    .notes =
        "Files are JSON results of train, estimate, simulate, tune and validate. Results of one configuration (model,\n"
        "type, sequence, ranks and their axes, threads, ZeRO stage, micro batch, accumulation, recomputation) share a\n"
        "row; a simulated time counts before an estimated one.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .arguments_max = -1,
    .run = run,
};
