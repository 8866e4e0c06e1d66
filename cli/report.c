/* twinspeed report: compares the saved results of other subcommands, predicted and measured. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/json.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "cli/outputs.h"
#include "cli/trace_view.h"
#include "job/modules.h"
#include "traces/plot.h"
#include "validation/results.h"

typedef struct options {
  const char *plot;
  double tolerance; /* limit of the error in percent; -1: not given */
  int force, key_averages, by_shape;
} options;

static const char *seconds_cell(double seconds) {
  char text[32];
  return seconds > 0 ? tws_cell("%s", tws_format_seconds(seconds, text, sizeof text)) : "-";
}

static const char *bytes_cell(double bytes) {
  char text[32];
  return bytes > 0 ? tws_cell("%s", tws_format_bytes(bytes, text, sizeof text)) : "-";
}

/* Returns the predicted and the allocated bytes as text; one figure if they are equal, as they should be. */
static const char *memory_cell(const tws_result_entry *e) {
  if (!(e->predicted_bytes > 0) || !(e->allocated_bytes > 0) || e->predicted_bytes == e->allocated_bytes)
    return bytes_cell(e->predicted_bytes > 0 ? e->predicted_bytes : e->allocated_bytes);
  return tws_cell("%s / %s", bytes_cell(e->predicted_bytes), bytes_cell(e->allocated_bytes));
}

static tws_code print_text(const tws_cli *cli, const tws_results *r, tws_error *err) {
  enum { CONFIGURATION = 1, FIGURES = 5 };
  tws_table table;
  tws_text same = {0};
  tws_table_init(&table, 14);
  tws_table_row(&table,
                (const char *[]){"model", "runtime", "type", "sequence", "ranks", "axes", "ZeRO", "batch", "recompute",
                                 "predicted", "measured", "error", "tokens/s", "memory of a rank"});
  for (size_t i = 0; i < r->count; i++) {
    const tws_result_entry *e = &r->entries[i];
    const double error = tws_result_error(e), rate = tws_result_tokens_per_s(e);
    const char *row[] = {e->model,
                         e->runtime,
                         e->dtype[0] ? e->dtype : "-",
                         e->sequence ? tws_cell("%lld", (long long)e->sequence) : "-",
                         tws_cell("%lld", (long long)e->ranks),
                         e->axes[0] ? e->axes : "data",
                         tws_cell("%lld", (long long)e->stage),
                         tws_cell("%lld x %lld", (long long)e->micro, (long long)e->accumulation),
                         e->recompute,
                         seconds_cell(tws_result_predicted(e)),
                         seconds_cell(e->measured_s),
                         isnan(error) ? "-" : tws_cell("%+.1f %%", 100 * error),
                         rate > 0 ? tws_thousands((int64_t)(rate + 0.5)) : "-",
                         memory_cell(e)};
    tws_table_row(&table, row);
  }
  tws_table_compact(&table, CONFIGURATION, FIGURES, &same);
  TWS_TRY(tws_table_print(cli, &table, err));
  if (same.length) tws_out_wrapped(5, "with %s (batch: micro batch x accumulation)", same.data);
  tws_text_free(&same);
  for (size_t i = 0; i < r->count; i++)
    if (r->entries[i].steps > 0)
      tws_out("loss over %lld steps: %.4f -> %.4f\n", (long long)r->entries[i].steps, r->entries[i].first_loss,
              r->entries[i].last_loss);
  int pairs;
  double median = tws_results_median_error(r, &pairs);
  if (pairs > 1) tws_out("median error of the step time: %.1f %% over %d configurations\n", 100 * median, pairs);
  return TWS_OK;
}

static void add_known(cJSON *one, const char *key, double value) {
  if (value > 0) cJSON_AddNumberToObject(one, key, value);
}

static tws_code print_json(const tws_results *r, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-report-1");
  cJSON *list = cJSON_AddArrayToObject(root, "configurations");
  for (size_t i = 0; i < r->count; i++) {
    const tws_result_entry *e = &r->entries[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "model", e->model);
    cJSON_AddStringToObject(one, "runtime", e->runtime);
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
    double error = tws_result_error(e);
    if (!isnan(error)) cJSON_AddNumberToObject(one, "step_error", error);
    cJSON_AddItemToArray(list, one);
  }
  int pairs;
  double median = tws_results_median_error(r, &pairs);
  cJSON_AddNumberToObject(root, "compared", pairs);
  if (pairs) cJSON_AddNumberToObject(root, "median_error", median);
  return tws_out_json(root, err);
}

static tws_code plot_results(const tws_cli *cli, const tws_results *r, const char *folder, tws_error *err) {
  char scripts[4096], path[4096];
  if (!*tws_plots_path(scripts, (int)sizeof scripts))
    return tws_fail(err, TWS_ENVIRONMENT, "install the program with make install", "the figure scripts are not there");
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, "choose another folder", "%s: %s", folder, strerror(errno));
  tws_plot_point *points = tws_calloc(r->count + 1, sizeof *points);
  if (!points) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_arena *arena = tws_arena_create();
  int count = 0;
  for (size_t i = 0; arena && i < r->count; i++) {
    const tws_result_entry *e = &r->entries[i];
    if (e->measured_s <= 0 || tws_result_predicted(e) <= 0) continue;
    points[count++] = (tws_plot_point){
        .name = tws_arena_printf(arena, "z%lld n%lld b%lldx%lld %s", (long long)e->stage, (long long)e->ranks,
                                 (long long)e->micro, (long long)e->accumulation, e->dtype),
        .measured_s = e->measured_s,
        .low_s = e->low_s > 0 ? e->low_s : e->measured_s,
        .high_s = e->high_s > 0 ? e->high_s : e->measured_s,
        .predicted_s = tws_result_predicted(e)};
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

static tws_code report_trace(const tws_cli *cli, const options *o, int argc, char **argv, tws_error *err) {
  if (argc > 1 || o->plot || o->tolerance >= 0)
    return tws_fail(err, TWS_USAGE, "twinspeed report --key-averages step.json",
                    "report: --key-averages takes one trace, and no --plot or --tolerance");
  return tws_key_averages_print(cli, argv[0], o->by_shape, err);
}

static tws_code run_report(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  if (argc == 0)
    return tws_fail(err, TWS_USAGE, "twinspeed report train.json simulate.json", "report: no result files");
  if (o->by_shape && !o->key_averages)
    return tws_fail(err, TWS_USAGE, "give --key-averages too", "report: --by-shape without --key-averages");
  if (o->key_averages) return report_trace(cli, o, argc, argv, err);
  static const char *const figures[] = {"accuracy.png", "accuracy.dat", NULL};
  const tws_output output = {"--plot", o->plot, figures};
  TWS_TRY(tws_outputs_check(&output, 1, NULL, o->force, err));
  tws_results r = {0};
  tws_code code = TWS_OK;
  for (int i = 0; i < argc && code == TWS_OK; i++) code = tws_results_read(&r, argv[i], err);
  if (code == TWS_OK) code = cli->json ? print_json(&r, err) : print_text(cli, &r, err);
  if (code == TWS_OK && o->plot) code = plot_results(cli, &r, o->plot, err);
  int pairs;
  double median = code == TWS_OK ? tws_results_median_error(&r, &pairs) : 0;
  if (code == TWS_OK && o->tolerance >= 0 && median < 0)
    code = tws_fail(err, TWS_INVALID, "give a prediction and a measurement of the same configuration",
                    "nothing to compare");
  else if (code == TWS_OK && o->tolerance >= 0 && 100 * median > o->tolerance)
    code = tws_fail(err, TWS_NO, "calibrate this machine anew, or look at the phases with validate",
                    "median error %.1f %% exceeds the tolerance of %.3g %%", 100 * median, o->tolerance);
  tws_results_free(&r);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("plot", 0, "DIR", options, plot, "write the figure accuracy.png into this folder"),
    TWS_NUMBER("tolerance", 0, "PERCENT", options, tolerance, 0, 1000, "exit 1 when the median error exceeds this"),
    TWS_FLAG("key-averages", 0, options, key_averages,
             "of a trace (--trace of simulate, emulate, train): calls, times and rates by kind of operation"),
    TWS_FLAG("by-shape", 0, options, by_shape, "with --key-averages: divide operations by shape"),
    TWS_FORCE_OPTION(options),
    TWS_OPTIONS_END};

static const options defaults = {.tolerance = -1};

const tws_verb tws_verb_report = {
    .name = "report",
    .summary = "compares saved results: predicted against measured; sums up traces",
    .usage = "FILE... [options]",
    .examples =
        "  twinspeed report simulate.json train.json\n"
        "  twinspeed report tune.json train-*.json --plot figures --tolerance 10\n"
        "  twinspeed report --key-averages step.json.gz\n",
    .notes =
        "Files are JSON results of train, estimate, simulate, tune and validate. Results of one\n"
        "configuration (model, runtime, dtype, sequence, ranks and their axes, threads, ZeRO stage, micro\n"
        "batch, accumulation, recomputation) share a row; a simulated time takes precedence over an\n"
        "estimated one.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .arguments_max = -1,
    .run = run_report,
};
