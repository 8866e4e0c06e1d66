/* twinspeed validate: trains, simulates the same plan, and compares both. */
#include "cli/validate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/json.h"
#include "base/units.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/verdict.h"
#include "job/modules.h"
#include "traces/plot.h"
#include "validation/results.h"
#include "validation/validation.h"

typedef struct report {
  const tws_job *job;
  tws_validation of_job;
} report;

void tws_validate_figure_note(const tws_cli *cli, tws_code code, const char *path, const tws_error *err) {
  if (code == TWS_OK)
    tws_say(cli, "figure: %s", path);
  else
    tws_warn(cli, "no figure %s: %s%s%s", path, err->message, *err->hint ? "; " : "", err->hint);
}

/* ---- reports ---- */

static void add_row(tws_table *table, const char *what, const char *predicted, const char *measured, double error) {
  char percent[32];
  snprintf(percent, sizeof percent, "%+.1f %%", error * 100);
  tws_table_row(table, (const char *[]){what, predicted, measured, isfinite(error) ? tws_cell("%s", percent) : ""});
}

static tws_code print_text(const tws_cli *cli, const report *r, tws_error *err) {
  char a[32], b[32], c[32];
  tws_job_print(cli, r->job);
  tws_out("\n");
  tws_table table;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"", "predicted", "measured", "error"});
  add_row(&table, "step", tws_cell("%s", tws_format_seconds(r->of_job.predicted_s, a, sizeof a)),
          tws_cell("%s", tws_format_seconds(r->of_job.measured_s, b, sizeof b)), tws_validation_error(&r->of_job));
  add_row(&table, "tokens/s", tws_cell("%.0f", tws_job_tokens_per_s(r->job, r->of_job.predicted_s)),
          tws_cell("%.0f", tws_job_tokens_per_s(r->job, r->of_job.measured_s)),
          r->of_job.measured_s / r->of_job.predicted_s - 1);
  add_row(&table, "memory of all ranks", tws_cell("%s", tws_format_bytes(r->of_job.ledger_bytes, a, sizeof a)),
          tws_cell("%s", tws_format_bytes(r->of_job.trial.allocated_bytes, b, sizeof b)),
          (r->of_job.ledger_bytes - r->of_job.trial.allocated_bytes) / r->of_job.trial.allocated_bytes);
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out("\n");
  tws_bottleneck_print(cli, &r->of_job.path);
  tws_out_wrapped(2, "measured: median of %zu steps, quartiles %s and %s; resident memory of all ranks at its peak %s",
                  r->of_job.trial.count, tws_format_seconds(r->of_job.low_s, a, sizeof a),
                  tws_format_seconds(r->of_job.high_s, b, sizeof b),
                  tws_format_bytes(r->of_job.trial.peak_rss_bytes, c, sizeof c));
  tws_out_wrapped(2, "profile: %s", tws_profile_provenance(r->job->profile));
  tws_out("\nOne step, operation by operation (the measured one is the last, traced):\n");
  tws_text text = {0};
  TWS_TRY(tws_comparison_print(r->of_job.comparison, 0, &text, err));
  return tws_out_text(&text, err);
}

static tws_code print_json(const report *r, tws_error *err) {
  cJSON *json = tws_job_json(r->job);
  tws_text text = {0};
  tws_code code = json ? tws_comparison_print(r->of_job.comparison, 1, &text, err)
                       : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code != TWS_OK) {
    cJSON_Delete(json);
    return code;
  }
  cJSON_DeleteItemFromObjectCaseSensitive(json, "schema");
  cJSON_AddStringToObject(json, "schema", "twinspeed-validate-1");
  cJSON_AddNumberToObject(json, "predicted_step_s", r->of_job.predicted_s);
  cJSON_AddNumberToObject(json, "measured_step_s", r->of_job.measured_s);
  cJSON_AddNumberToObject(json, "measured_low_s", r->of_job.low_s);
  cJSON_AddNumberToObject(json, "measured_high_s", r->of_job.high_s);
  cJSON_AddNumberToObject(json, "error", tws_validation_error(&r->of_job));
  cJSON_AddNumberToObject(json, "predicted_tokens_per_s", tws_job_tokens_per_s(r->job, r->of_job.predicted_s));
  cJSON_AddNumberToObject(json, "measured_tokens_per_s", tws_job_tokens_per_s(r->job, r->of_job.measured_s));
  cJSON_AddNumberToObject(json, "ledger_bytes", r->of_job.ledger_bytes);
  cJSON_AddNumberToObject(json, "allocated_bytes", r->of_job.trial.allocated_bytes);
  cJSON_AddNumberToObject(json, "rank_ledger_bytes", r->of_job.trial.rank_predicted_bytes);
  cJSON_AddNumberToObject(json, "rank_allocated_bytes", r->of_job.trial.rank_allocated_bytes);
  cJSON_AddNumberToObject(json, "peak_rss_bytes", r->of_job.trial.peak_rss_bytes);
  tws_bottleneck_json(&r->of_job.path, json);
  cJSON_AddItemToObject(json, "comparison", cJSON_Parse(text.data));
  tws_text_free(&text);
  return tws_out_json(json, err);
}

static void draw_timeline(const tws_cli *cli, const tws_validate_options *o, const report *r, const char *scripts) {
  const tws_timeline *both[] = {r->of_job.simulated, r->of_job.measured};
  char path[4200], title[256], model[64];
  tws_error err = {0};
  tws_result_title(r->job->network->name, model, sizeof model);
  snprintf(title, sizeof title, "%s, ZeRO-%d, %d rank%s: one step, simulated and measured", model,
           r->job->config->zero.stage, r->job->ranks, r->job->ranks > 1 ? "s" : "");
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/timeline.%s", o->figures, i ? "svg" : "png");
    tws_validate_figure_note(cli, tws_plot_timelines(scripts, both, 2, 4, title, path, &err), path, &err);
  }
}

static void draw_memory(const tws_cli *cli, const tws_validate_options *o, const report *r, const char *scripts) {
  char path[4200], title[256], model[64];
  tws_error err = {0};
  tws_plan *plan;
  tws_text csv = {0};
  tws_result_title(r->job->network->name, model, sizeof model);
  snprintf(title, sizeof title, "%s, ZeRO-%d: memory of rank 0 of %d over one step", model, r->job->config->zero.stage,
           r->job->ranks);
  tws_code code = tws_job_plan(r->job, 0, &plan, &err);
  if (code == TWS_OK) code = tws_ledger_csv(plan, TWS_TIER_DEVICE, &csv, &err);
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/memory.%s", o->figures, i ? "svg" : "png");
    tws_code drawn = code == TWS_OK ? tws_plot_memory(scripts, csv.data, title, path, &err) : code;
    tws_validate_figure_note(cli, drawn, path, &err);
  }
  tws_text_free(&csv);
  if (code == TWS_OK) tws_plan_destroy(plan);
}

static tws_code write_files(const tws_cli *cli, const tws_validate_options *o, const report *r, tws_error *err) {
  const tws_timeline *both[] = {r->of_job.simulated, r->of_job.measured};
  if (o->trace) {
    TWS_TRY(tws_timeline_write_chrome(both, 2, o->trace, err));
    tws_say(cli, "trace of both: %s (open it in https://ui.perfetto.dev)", o->trace);
  }
  if (!o->figures) return TWS_OK;
  char scripts[4096];
  if (mkdir(o->figures, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", o->figures, strerror(errno));
  tws_plots_path(scripts, (int)sizeof scripts);
  draw_timeline(cli, o, r, scripts);
  draw_memory(cli, o, r, scripts);
  return TWS_OK;
}

/* ---- the subcommand ---- */

static tws_code validate_job(const tws_cli *cli, const tws_validate_options *o, report *r, tws_error *err) {
  const tws_job *job = r->job;
  tws_progress progress = tws_cli_progress(cli);
  tws_validation_request request = {
      .spec = &o->job, .data = o->data, .steps = o->steps, .log = &cli->log, .progress = &progress};
  TWS_TRY(tws_job_check_engine(job, 0, o->job.profile != NULL, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_data_remark(cli, o->data, job->network);
  if (!o->job.profile)
    tws_warn(cli, "predicting with the built-in profile %s: `twinspeed calibrate -o host.json` measures this machine",
             tws_profile_name(job->profile));
  TWS_TRY(tws_fidelity_parse(o->fidelity, &request.fidelity, err));
  TWS_TRY(tws_sim_load(&request.sim, err));
  TWS_TRY(tws_validate_job(job, &request, &r->of_job, err));
  TWS_TRY(cli->json ? print_json(r, err) : print_text(cli, r, err));
  TWS_TRY(write_files(cli, o, r, err));
  if (o->tolerance >= 0 && !(fabs(tws_validation_error(&r->of_job)) * 100 <= o->tolerance))
    return tws_fail(err, TWS_NO, "calibrate anew (was the machine busy?) or look at the phases above",
                    "the predicted step time is off by %+.1f %%, the tolerance is %.3g %%",
                    tws_validation_error(&r->of_job) * 100, o->tolerance);
  return TWS_OK;
}

static tws_code check_outputs(const tws_validate_options *o, tws_error *err) {
  static const char *const one[] = {
      "timeline.png", "timeline.svg", "timeline.dat", "memory.png", "memory.svg", "memory.dat", NULL};
  static const char *const sweep[] = {"accuracy.png", "accuracy.svg", "accuracy.dat", NULL};
  const tws_output outputs[] = {{"--trace", o->trace, NULL},
                                {"--save-profile", o->save_profile, NULL},
                                {"--figures", o->figures, o->sweep || o->cases ? sweep : one}};
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  tws_inputs_add(&inputs, o->data);
  tws_inputs_add(&inputs, o->cases);
  return tws_outputs_check(outputs, 3, &inputs, o->force, err);
}

static tws_code run_validate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  tws_validate_options *o = raw;
  (void)argc;
  (void)argv;
  TWS_TRY(check_outputs(o, err));
  if (o->measured && (!o->cases || o->simulate || o->figures))
    return tws_fail(err, TWS_USAGE, "give --cases FILE, and neither --simulate nor --figures",
                    "--measured is about the runs of a file");
  if (o->measured) return tws_validate_measured(cli, o, err);
  if (o->cases) return tws_validate_cases(cli, o, err);
  if (!o->data)
    return tws_fail(err, TWS_USAGE, "give --data FILE: a text (its bytes are the tokens), or llm.c tokens (.bin)",
                    "validate: no data to train on");
  TWS_TRY(tws_job_spec_check_shared(&o->job, err));
  if (o->sweep) return tws_validate_sweep(cli, o, err);
  if (o->ranks) { /* only the sweep accepts a list */
    double ranks;
    TWS_TRY(tws_parse_number(o->ranks, "-n", 1, 4096, &ranks, err));
    o->job.ranks = (int64_t)ranks;
  }
  tws_job *job;
  TWS_TRY(tws_job_load(&o->job, &job, err));
  job->assumed_runtime = 0; /* Twinspeed's own engine trains */
  report r = {.job = job};
  tws_code code = validate_job(cli, o, &r, err);
  tws_validation_free(&r.of_job);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("ranks", 'n', "N", tws_validate_options, ranks, "number of ranks; with --sweep a list (default 1,2,4)"),
    TWS_STRING("model", 'm', "MODEL", tws_validate_options, job.model,
               "Hugging Face config.json, ONNX file, or a built-in name"),
    TWS_STRING("config", 'c', "FILE", tws_validate_options, job.config, "ds_config.json"),
    TWS_STRING("profile", 0, "FILE", tws_validate_options, job.profile,
               "calibrated profile (--sweep calibrates if there is none)"),
    TWS_INTEGER("stage", 0, "0..3", tws_validate_options, job.stage, 0, 3, "ZeRO stage"),
    TWS_AXIS_OPTIONS(tws_validate_options, job),
    TWS_INTEGER("seq", 0, "TOKENS", tws_validate_options, job.sequence, 1, 16777216, "sequence length"),
    TWS_INTEGER("micro-batch", 0, "N", tws_validate_options, job.micro_batch, 1, 1048576, "micro batch of one rank"),
    TWS_INTEGER("accumulation", 0, "N", tws_validate_options, job.accumulation, 1, 1048576, "accumulation steps"),
    TWS_STRING("recompute", 0, "MODE", tws_validate_options, job.recompute, "none, selective or full"),
    TWS_STRING("dtype", 0, "TYPE", tws_validate_options, job.dtype, "fp32, bf16 or fp16"),
    TWS_LEARNING_OPTIONS(tws_validate_options, job),
    TWS_INTEGER("threads", 0, "N", tws_validate_options, job.threads, 1, 1024, "threads of one rank"),
    TWS_INTEGER("vocab-multiple", 0, "N", tws_validate_options, job.vocabulary_multiple, 1, 65536,
                "pad the vocabulary to this"),
    TWS_INTEGER("seed", 0, "N", tws_validate_options, job.seed, 0, 9007199254740992.0, "seed of weights and data"),
    TWS_LIST("set", 0, "KEY=VALUE", tws_validate_options, job.set, "set a configuration key"),
    TWS_STRICT_OPTION(tws_validate_options, job),
    TWS_STRING("data", 'd', "FILE", tws_validate_options, data, "text, or llm.c tokens (.bin)"),
    TWS_INTEGER("steps", 's', "N", tws_validate_options, steps, 3, 100000, "steps of a run (default 8)"),
    TWS_STRING("fidelity", 0, "LEVEL", tws_validate_options, fidelity, "analytic (default), flow, message or simgrid"),
    TWS_STRING("trace", 0, "FILE", tws_validate_options, trace, "Chrome trace of both steps"),
    TWS_STRING("figures", 0, "DIR", tws_validate_options, figures, "gnuplot figures, PNG and SVG"),
    TWS_NUMBER("tolerance", 0, "PERCENT", tws_validate_options, tolerance, 0, 1e6,
               "exit status 1 if the error (with --sweep: the median, with --cases: the mean) is larger"),
    TWS_STRING("cases", 0, "FILE", tws_validate_options, cases,
               "predict the measured runs of a file, of training or of inference, instead of measuring"),
    TWS_LIST("group", 0, "NAME", tws_validate_options, group, "with --cases: runs of this group"),
    TWS_INTEGER("worst", 0, "N", tws_validate_options, worst, 1, 100000, "with --cases: list the N largest errors"),
    TWS_FLAG("measured", 0, tws_validate_options, measured,
             "with --cases: each run in turn rescales the profile, and the others of its group are predicted"),
    TWS_FLAG("simulate", 0, tws_validate_options, simulate, "with --cases: simulate instead of estimating"),
    TWS_FLAG("sweep", 0, tws_validate_options, sweep, "the accuracy experiment: 14 configurations, interleaved"),
    TWS_INTEGER("rounds", 0, "N", tws_validate_options, rounds, 1, 100, "with --sweep: rounds over all (default 3)"),
    TWS_INTEGER("global-batch", 'b', "N", tws_validate_options, global_batch, 1, 1e6,
                "with --sweep: sequences a step (default: the configuration's, else 32)"),
    TWS_STRING("save-profile", 0, "FILE", tws_validate_options, save_profile,
               "with --sweep: save the calibrated profile"),
    TWS_FORCE_OPTION(tws_validate_options),
    TWS_OPTIONS_END};

static const tws_validate_options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .steps = 8, .rounds = 3, .tolerance = -1};

const tws_verb tws_verb_validate = {
    .name = "validate",
    .summary = "trains and simulates one plan: predicted against measured",
    .usage = "-m MODEL -c ds_config.json --profile host.json --data FILE [-n RANKS] [options]",
    .examples =
        "  twinspeed validate -m config.json -c ds_config.json --profile host.json --data book.txt -n 2\n"
        "  twinspeed validate -m gpt2 --seq 64 --micro-batch 4 --profile host.json --data book.txt --trace both.json\n"
        "  twinspeed validate -m gpt2 --seq 64 --tp 2 -n 2 --profile host.json --data book.txt\n"
        "  twinspeed validate --sweep -m config.json -c ds_config.json --data book.txt --figures figures\n"
        "  twinspeed validate --cases scenarios/published/measured_runs.json --worst 10\n",
    .notes =
        "One run: step time, phases, streams, operations and memory of both, in one table. --sweep: stages,\n"
        "micro batches and numbers of ranks (with the axes of --pp, --tp, --sp or the configuration),\n"
        "measured in interleaved rounds, with a calibration in every round unless --profile is given;\n"
        "prints medians, quartiles, the median error, and the tuner's pick against the best measured\n"
        "configuration.\n"
        "--cases: each run of the file is planned and predicted, without training; runs that cannot be predicted are\n"
        "listed with the reason.\n",
    .options = table,
    .options_bytes = sizeof(tws_validate_options),
    .defaults = &defaults,
    .run = run_validate};
