/* twinspeed tune: searches for the fastest configuration in simulation, and optionally measures the winners. */
#include <math.h>
#include <string.h>
#include "autotune/tuning.h"
#include "base/units.h"
#include "cli/tune_serve.h"
#include "cli/export_view.h"
#include "cli/faults_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "base/number.h"
#include "cli/knee_view.h"
#include "cli/optimizers_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/trials_view.h"
#include "cli/tune_csv.h"
#include "cli/tune_view.h"
#include "cli/verdict.h"
#include "config/autotuning.h"
#include "job/measured.h"
#include "job/modules.h"

typedef struct options {
  tws_job_spec job;
  const char *stages, *micro_batches, *accumulations, *recomputes, *ranks, *threads, *tuner, *fidelity, *results, *data;
  const char *export_as, *exported;
  const char *experiments, *objective, *sweep, *csv, *figure;
  int64_t optimizers; /* --optimizers: number of steps; 0: not given */
  const char *overlaps, *offloads, *buckets, *prefetch, *persistence, *live;
  const char *axes, *pipeline, *tensor, *sequence, *schedules, *sequence_parallel, *experts, *capacities;
  const char *exchange[TWS_EXCHANGE_COUNT];
  int64_t global_batch, max_micro_batch, trials, early_stopping, validate, rows;
  int64_t first_step, last_step, rounds, race;
  double memory, limit_s, budget_s, faults_s;
  int64_t workers;
  tws_tune_serve_options serving;
  int exhaustive, oversubscribe, force, resume, no_simulation, no_tight;
} options;

typedef struct session {
  const options *o;
  tws_job *job;
  tws_progress progress;
  tws_tuning tuning;
  const tws_cli *cli;
} session;

/* ---- the search space ---- */

static tws_code list_of_int(const char *text, const char *what, int64_t low, int64_t high, int *values, int capacity,
                            int *count, tws_error *err) {
  int64_t wide[TWS_TUNE_LIST];
  if (!text) return TWS_OK;
  TWS_TRY(tws_parse_list(text, what, low, high, wide, capacity, count, err));
  for (int i = 0; i < *count; i++) values[i] = (int)wide[i];
  return TWS_OK;
}

static tws_code list_of_recompute(const char *text, tws_tune_space *space, tws_error *err) {
  for (const char *at = text; at && *at;) {
    size_t length = strcspn(at, ",");
    int found = -1;
    for (int i = 0; i < TWS_RECOMPUTE_COUNT; i++) {
      const char *name = tws_recompute_name((tws_recompute)i);
      if (strlen(name) == length && memcmp(name, at, length) == 0) found = i;
    }
    if (found < 0 || space->recompute_count == 3)
      return tws_fail(err, TWS_USAGE, "a list of up to three of none, selective, full and operations",
                      "--recomputes: bad list \"%.60s\"", text);
    space->recompute[space->recompute_count++] = (tws_recompute)found;
    at += length + (at[length] == ',');
  }
  return TWS_OK;
}

/* Reads schedules such as "1f1b,interleaved:4,zb-h1": a number of chunks follows a colon. */
static tws_code list_of_schedules(const char *text, tws_tune_space *space, tws_error *err) {
  for (const char *at = text; at && *at;) {
    size_t length = strcspn(at, ","), name = strcspn(at, ",:");
    char word[32];
    int64_t chunks = 1;
    int count = 0;
    snprintf(word, sizeof word, "%.*s", (int)(name < sizeof word ? name : sizeof word - 1), at);
    if (space->schedule_count == (int)(sizeof space->schedules / sizeof *space->schedules))
      return tws_fail(err, TWS_USAGE, NULL, "--schedules: more than %d", space->schedule_count);
    tws_variant_schedule *schedule = &space->schedules[space->schedule_count++];
    if (tws_pipeline_kind_parse(word, &schedule->kind, err) != TWS_OK) return TWS_USAGE;
    if (schedule->kind == TWS_PIPELINE_INTERLEAVED) chunks = 2;
    if (name < length) {
      char number[16];
      snprintf(number, sizeof number, "%.*s", (int)(length - name - 1 < 15 ? length - name - 1 : 15), at + name + 1);
      TWS_TRY(tws_parse_list(number, "--schedules", 1, 1024, &chunks, 1, &count, err));
    }
    if (chunks > 1 && schedule->kind != TWS_PIPELINE_INTERLEAVED)
      return tws_fail(err, TWS_USAGE, "interleaved:N has N chunks", "--schedules: %s has one chunk for each stage",
                      word);
    schedule->virtual_stages = (int)chunks;
    at += length + (at[length] == ',');
  }
  return TWS_OK;
}

static tws_code list_of_numbers(const char *text, const char *what, double low, double high, double *values, int *count,
                                tws_error *err) {
  for (const char *at = text; at && *at;) {
    const size_t length = strcspn(at, ",");
    char word[32];
    if (*count == TWS_TUNE_LIST) return tws_fail(err, TWS_USAGE, NULL, "%s: more than %d", what, *count);
    snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), at);
    TWS_TRY(tws_parse_number(word, what, low, high, &values[(*count)++], err));
    at += length + (at[length] == ',');
  }
  return TWS_OK;
}

static tws_code read_axes(const options *o, tws_tune_space *space, tws_error *err) {
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    TWS_TRY(list_of_int(o->exchange[i], tws_exchange_flag((tws_exchange_key)i), 0,
                        tws_exchange_most((tws_exchange_key)i), space->exchange[i], TWS_TUNE_LIST,
                        &space->exchange_count[i], err));
  TWS_TRY(list_of_int(o->experts, "--ep", 1, 65536, space->expert, TWS_TUNE_LIST, &space->expert_count, err));
  TWS_TRY(list_of_numbers(o->capacities, "--capacities", 0.01, 1e6, space->capacity, &space->capacity_count, err));
  TWS_TRY(list_of_int(o->pipeline, "--pp", 1, 4096, space->pipeline, TWS_TUNE_LIST, &space->pipeline_count, err));
  TWS_TRY(list_of_int(o->tensor, "--tp", 1, 65536, space->tensor, TWS_TUNE_LIST, &space->tensor_count, err));
  TWS_TRY(list_of_int(o->sequence, "--sp", 1, 65536, space->sequence, TWS_TUNE_LIST, &space->sequence_count, err));
  TWS_TRY(list_of_int(o->sequence_parallel, "--sequence-parallel", 0, 1, space->sequence_parallel, 2,
                      &space->sequence_parallel_count, err));
  return list_of_schedules(o->schedules, space, err);
}

static tws_code list_of_words(const char *text, const char *what, const char *const *words, int most, int *values,
                              int *count, tws_error *err) {
  for (const char *at = text; at && *at;) {
    const size_t length = strcspn(at, ",");
    int found = 0;
    for (int i = 0; i < most; i++)
      if (strlen(words[i]) == length && memcmp(words[i], at, length) == 0) found = i + 1;
    if (!found || *count == most) {
      char known[160] = "";
      for (int i = 0; i < most; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                 i == 0          ? ""
                 : i + 1 == most ? " and "
                                 : ", ",
                 words[i]);
      return tws_fail(err, TWS_USAGE, NULL, "%s: \"%.60s\" is no list of %s", what, text, known);
    }
    values[(*count)++] = found;
    at += length + (at[length] == ',');
  }
  return TWS_OK;
}

static tws_code read_limits(const options *o, tws_tune_space *space, tws_error *err) {
  static const char *const flags[TWS_ZERO3_LIMIT_COUNT] = {
#define X(key, field, word, flag) flag,
      TWS_ZERO3_LIMITS(X)
#undef X
  };
  const char *const given[TWS_ZERO3_LIMIT_COUNT] = {o->prefetch, o->persistence, o->live};
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) {
    if (!given[i]) continue;
    TWS_TRY(
        tws_parse_list(given[i], flags[i], 0, 1LL << 48, space->zero3[i], TWS_TUNE_LIST, &space->zero3_count[i], err));
    /* the space stores 1 + the value, since 0 stands for a value that is not given */
    for (int k = 0; k < space->zero3_count[i]; k++) space->zero3[i][k]++;
  }
  return TWS_OK;
}

/* Reads the lists of ZeRO knobs. */
static tws_code read_knobs(const options *o, tws_tune_space *space, tws_error *err) {
  static const char *const switches[2] = {"off", "on"};
  TWS_TRY(read_limits(o, space, err));
  TWS_TRY(list_of_words(o->overlaps, "--overlaps", switches, 2, space->overlap, &space->overlap_count, err));
  TWS_TRY(list_of_words(o->offloads, "--offloads", tws_offload_words, TWS_OFFLOAD_WORDS, space->offload,
                        &space->offload_count, err));
  if (!o->buckets) return TWS_OK;
  return tws_parse_list(o->buckets, "--buckets", 1, 1LL << 40, space->reduce_bucket, TWS_TUNE_LIST,
                        &space->reduce_bucket_count, err);
}

static tws_code read_space(const options *o, tws_tune_space *space, tws_error *err) {
  TWS_TRY(list_of_int(o->stages, "--stages", 0, 3, space->stages, 4, &space->stage_count, err));
  TWS_TRY(list_of_int(o->ranks, "-n", 1, 65536, space->ranks, TWS_TUNE_LIST, &space->ranks_count, err));
  TWS_TRY(list_of_int(o->threads, "--threads", 1, 1024, space->threads, TWS_TUNE_LIST, &space->threads_count, err));
  TWS_TRY(list_of_recompute(o->recomputes, space, err));
  TWS_TRY(read_axes(o, space, err));
  TWS_TRY(read_knobs(o, space, err));
  if (o->micro_batches)
    TWS_TRY(tws_parse_list(o->micro_batches, "--micro-batches", 1, 1 << 20, space->micro, TWS_TUNE_LIST,
                           &space->micro_count, err));
  if (o->accumulations)
    TWS_TRY(tws_parse_list(o->accumulations, "--accumulations", 1, 1 << 20, space->accumulation, TWS_TUNE_LIST,
                           &space->accumulation_count, err));
  space->max_micro = o->max_micro_batch;
  space->oversubscribe = o->oversubscribe;
  space->global_batch = o->global_batch;
  return TWS_OK;
}

static tws_code read_word(const char *text, const char *what, const char *const *words, int count, int *index,
                          tws_error *err) {
  *index = 0;
  if (!text) return TWS_OK;
  for (int i = 0; i < count; i++)
    if (strcmp(words[i], text) == 0) {
      *index = i;
      return TWS_OK;
    }
  const char *close = tws_closest(text, words, (size_t)count);
  return tws_fail(err, TWS_USAGE, close, "%s: unknown word \"%.40s\"", what, text);
}

/* Takes unset keywords from the section autotuning. */
static tws_code read_words(options *o, const tws_config *config, tws_error *err) {
  static const char *const metrics[] = {"throughput", "latency", "flops"};
  const tws_autotuning a = tws_config_autotuning(config);
  if (!o->tuner) o->tuner = a.tuner;
  for (size_t i = 0; a.metric && !o->objective && i < sizeof metrics / sizeof *metrics; i++)
    if (strcmp(a.metric, metrics[i]) == 0) o->objective = metrics[i];
  if (a.metric && !o->objective)
    return tws_fail(err, TWS_UNSUPPORTED, "use throughput, latency or flops, or give --objective",
                    "autotuning.metric: \"%s\" is a part of a step, and whole steps are compared", a.metric);
  return TWS_OK;
}

static tws_code open_session(const tws_cli *cli, options *o, session *s, tws_error *err) {
  static const char *const tuners[] = {"model_based", "gridsearch", "random"};
  static const char *const fidelities[] = {TWS_FIDELITIES};
  static const char *const answers[] = {"auto", "on", "off"};
  static const char *const objectives[] = {"throughput", "latency", "flops", "memory", "cost"};
  int tuner, fidelity, axes, objective;
  *s = (session){.o = o, .cli = cli, .progress = tws_cli_progress(cli)};
  if (!o->job.model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  o->job.planned = o->validate == 0; /* Twinspeed's own engine runs the trials */
  TWS_TRY(tws_measured_open(&o->job, &s->job, err));
  TWS_TRY(read_words(o, s->job->config, err));
  TWS_TRY(read_word(o->tuner, "--tuner", tuners, 3, &tuner, err));
  TWS_TRY(
      read_word(o->fidelity, "--fidelity", fidelities, (int)(sizeof fidelities / sizeof *fidelities), &fidelity, err));
  TWS_TRY(read_word(o->axes, "--axes", answers, 3, &axes, err));
  TWS_TRY(read_word(o->objective, "--objective", objectives, TWS_GOALS, &objective, err));
  s->tuning = (tws_tuning){.spec = &o->job,
                           .search = {.job = s->job,
                                      .fidelity = (tws_fidelity)fidelity,
                                      .goal = (tws_goal)objective,
                                      .workers = (int)o->workers,
                                      .progress = &s->progress,
                                      .log = &cli->log},
                           .tuner = (tws_tuner)tuner,
                           .axes = o->axes ? (tws_tuning_axes)axes : TWS_TUNING_AXES_DEFAULT,
                           .trials = o->trials,
                           .early_stopping = o->early_stopping,
                           .memory = o->memory,
                           .keeps_margin = o->no_tight,
                           .budget_s = o->budget_s,
                           .results = o->results,
                           .experiments = o->experiments,
                           .earlier = o->resume  ? TWS_EARLIER_KEEP
                                      : o->force ? TWS_EARLIER_REPLACE
                                                 : TWS_EARLIER_REFUSE,
                           .validate = o->validate,
                           .data = o->data,
                           .first_step = o->first_step,
                           .last_step = o->last_step,
                           .rounds = o->rounds,
                           .race = o->race,
                           .limit_s = o->limit_s};
  TWS_TRY(read_space(o, &s->tuning.search.space, err));
  TWS_TRY(tws_tuning_complete(&s->tuning, err));
  tws_tune_remarks(cli, o->job.model, s->job);
  if (o->validate > 0) tws_data_remark(cli, o->data, s->job->network);
  return o->no_simulation ? TWS_OK : tws_sim_load(&s->tuning.search.sim, err);
}

/* ---- results ---- */

static void print_gain(const tws_tune_analysis *a) {
  if (!a || !a->has_own || !(a->own.step_s > 0)) return;
  if (a->own.fits)
    tws_out("%.3g times as fast as your configuration, predicted alike\n", a->winner.throughput / a->own.throughput);
  else
    tws_out("your configuration does not fit\n");
}

static tws_code print_result(void *user, const tws_tune_report *report, tws_error *err) {
  const session *s = user;
  const tws_cli *cli = s->cli;
  const tws_tune_result *result = report->result;
  const int faults = s->o->faults_s > 0 && report->analysis;
  tws_goodput goodput;
  tws_text text = {0};
  if (faults) TWS_TRY(tws_goodput_find(report, s->o->faults_s, &goodput, err));
  if (cli->json) {
    TWS_TRY(tws_tune_json(report, &text, err));
    if (faults) TWS_TRY(tws_faults_add_json(&goodput, &text, err));
    return tws_out_text(&text, err);
  }
  char params[32];
  tws_assumption assumed[TWS_ASSUMPTIONS];
  tws_runtime_print(cli, s->job);
  tws_out("%s, %s parameters, on %s (%s)\n", s->job->network->name,
          tws_format_count((double)tws_network_params(s->job->network, 0), params, sizeof params), s->job->cluster.name,
          tws_profile_name(s->job->profile));
  tws_out("%s, sequences of %s tokens\n", tws_dtype_name(s->job->config->dtype),
          tws_thousands(tws_job_sequence(s->job)));
  tws_lacks_print(cli, s->job, tws_job_unsupported_everywhere(s->job), "any of these jobs");
  tws_assumptions_print(cli, assumed, tws_tune_assumed(report->request, assumed));
  tws_out("\n");
  TWS_TRY(tws_tune_print(cli, result, report->request, (int)s->o->rows, err));
  if (report->trials) TWS_TRY(tws_trials_print(cli, report->trials, report->request, err));
  char estimate[32], simulate[32];
  tws_out("\nestimated in %s", tws_format_seconds(result->estimate_s, estimate, sizeof estimate));
  if (result->simulated > 0)
    tws_out(", simulated in %s", tws_format_seconds(result->simulate_s, simulate, sizeof simulate));
  tws_out("\n");
  tws_advice_print(cli, report->advice, report->advice_count);
  if (result->fits == 0) return TWS_OK;
  char label[TWS_VARIANT_NAME];
  tws_variant_label(tws_tune_best(report, NULL), label, sizeof label);
  tws_out_wrapped(2, "best: %s -> %s/ds_config_optimal.json, report.html", label, s->o->results);
  if (report->trials && report->trials->corrected > 0)
    tws_out_wrapped(2, "corrected profile: %s/" TWS_TUNE_PROFILE "; what follows predicts with --profile of it",
                    s->o->results);
  print_gain(report->analysis);
  return faults ? tws_faults_print(cli, &goodput, err) : TWS_OK;
}

static tws_code sweep(const session *s, tws_error *err) {
  tws_knee_sweep range;
  tws_knee knee;
  TWS_TRY(tws_tuning_check(&s->tuning, err));
  TWS_TRY(tws_knee_parse(s->o->sweep, &range, err));
  TWS_TRY(tws_tuning_sweep(&s->tuning, &range, &knee, err));
  return tws_knee_print(s->cli, &knee, &range, &s->tuning.search, err);
}

/* Writes the CSV and prints the result, unless the CSV goes to standard output. */
static tws_code tell(void *user, const tws_tune_report *report, tws_error *err) {
  const session *s = user;
  const char *csv = s->o->csv;
  if (csv) TWS_TRY(tws_tune_csv_write(csv, report->result, report->request, err));
  if (!csv || strcmp(csv, "-") != 0) TWS_TRY(print_result(user, report, err));
  const tws_variant *best = s->o->exported ? tws_tune_best(report, NULL) : NULL;
  tws_job *winner;
  if (!best) return TWS_OK;
  TWS_TRY(tws_job_derive(s->job, best, &winner, err));
  const tws_code code = tws_export_write(s->cli, winner, s->o->export_as, s->o->exported, err);
  tws_job_destroy(winner);
  return code;
}

/* Loads the job of a comparison: -n and --micro-batches are single numbers there. */
static tws_code compare_optimizers(const tws_cli *cli, const options *o, tws_error *err) {
  tws_job_spec spec = o->job;
  tws_knee_sweep range;
  tws_job *job;
  if (!spec.model) return tws_fail(err, TWS_USAGE, "give -m MODEL", "no model was given");
  if (o->ranks && !tws_text_integer(o->ranks, NULL, 1, 1048576, &spec.ranks))
    return tws_fail(err, TWS_USAGE, "for example -n 64", "--optimizers compares one number of ranks, not \"%.40s\"",
                    o->ranks);
  if (o->micro_batches && !tws_text_integer(o->micro_batches, NULL, 1, 1000000, &spec.micro_batch))
    return tws_fail(err, TWS_USAGE, "for example --micro-batches 4",
                    "--optimizers compares one micro batch, not \"%.40s\"", o->micro_batches);
  if (!spec.config && spec.micro_batch == 0) spec.micro_batch = 1;
  spec.stage = 0;
  TWS_TRY(tws_knee_parse(o->sweep ? o->sweep : "net.bandwidth=1..400G:9", &range, err));
  TWS_TRY(tws_measured_load(&spec, &job, err));
  const tws_code code = tws_optimizers_run(cli, job, &range, o->optimizers, o->figure, err);
  tws_job_destroy(job);
  return code;
}

/* Runs tune --serve, without the options of the search of a training. */
static tws_code run_serve(tws_cli *cli, const options *o, tws_error *err) {
  static const char *const allowed[] = {TWS_SERVE_OPTION_NAMES, "token-within", "first-token-within", NULL};
  TWS_TRY(tws_args_only(&tws_verb_tune, o, allowed,
                        "the devices are those of --cluster NAME:NODESxDEVICES, the lengths --prompt-tokens and "
                        "--output-tokens, and all divisions are tried",
                        "concerns the search of a training, not --serve", err));
  return tws_tune_serve(cli, &o->job, &o->serving, err);
}

static tws_code run_tune(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  static const char *const none[] = {NULL}; /* the tuner itself checks for results of an earlier search */
  options *o = raw;
  const tws_tune_serve_options *serving = &o->serving;
  if (serving->texts.serve) return run_serve(cli, o, err);
  if (serving->first_token_s > 0 || serving->token_s > 0)
    return tws_fail(err, TWS_USAGE, "add --serve", "--first-token-within and --token-within concern inference");
  TWS_TRY(tws_serve_options_refuse(&serving->texts, err));
  TWS_TRY(tws_export_file(o->export_as, argc, argv, o->force, &o->exported, err));
  TWS_TRY(tws_outputs_check_name("--experiments", o->experiments, err));
  const int prints = o->csv && strcmp(o->csv, "-") == 0;
  const tws_output outputs[] = {{"--results", o->results, none}, {"--csv", prints ? NULL : o->csv, NULL}};
  const tws_inputs inputs = tws_inputs_of_job(&o->job);
  if (o->figure && o->optimizers == 0)
    return tws_fail(err, TWS_USAGE, "give --optimizers STEPS too", "tune: --figure without --optimizers");
  if (o->optimizers > 0 && (o->csv || o->validate > 0 || o->exported))
    return tws_fail(err, TWS_USAGE, "leave out --csv, --validate and --export",
                    "--optimizers compares estimates and searches nothing");
  if (o->optimizers > 0) {
    const tws_output figure[] = {{"--figure", o->figure, NULL}};
    TWS_TRY(tws_outputs_check(figure, 1, &inputs, o->force, err));
    return compare_optimizers(cli, o, err);
  }
  if (o->sweep && o->csv)
    return tws_fail(err, TWS_USAGE, "leave one of them out",
                    "--csv has the points of one search, and --sweep makes several searches");
  if (prints && cli->json)
    return tws_fail(err, TWS_USAGE, "give one of them a file", "--json and --csv - both go to standard output");
  if (!o->sweep) TWS_TRY(tws_outputs_check(outputs, 1, NULL, o->force || o->resume, err));
  if (!o->sweep) TWS_TRY(tws_outputs_check(outputs + 1, 1, &inputs, o->force || o->resume, err));
  session s;
  tws_code code = open_session(cli, raw, &s, err);
  if (code == TWS_OK) code = o->sweep ? sweep(&s, err) : tws_tuning_run(&s.tuning, tell, &s, err);
  tws_job_destroy(s.job);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("model", 'm', "MODEL", options, job.model,
               "Hugging Face config.json, ONNX file, or a built-in model's name"),
    TWS_STRING("config", 'c', "FILE", options, job.config, "ds_config.json; its batch keys and stage are searched"),
    TWS_STRING("cluster", 0, "NAME[:NODES[xDEVICES]]", options, job.cluster,
               "cluster file or built-in name (default: host)"),
    TWS_STRING("profile", 0, "NAME", options, job.profile, "hardware profile: built-in name or a calibrated file"),
    TWS_RUNTIME_OPTION(options, job),
    TWS_MEASURED_OPTION(options, job),
    TWS_INTEGER("seq", 0, "TOKENS", options, job.sequence, 1, 16777216, "sequence length (default: the model's)"),
    TWS_STRING("dtype", 0, "TYPE", options, job.dtype, "fp32, bf16 or fp16"),
    TWS_LEARNING_OPTIONS(options, job),
    TWS_INTEGER("seed", 0, "N", options, job.seed, 0, 9007199254740992.0, "seed of the random tuner and of training"),
    TWS_LIST("set", 0, "KEY=VALUE", options, job.set, "set a configuration key"),
    TWS_STRICT_OPTION(options, job),
    TWS_INTEGER("global-batch", 'b', "N", options, global_batch, 1, 1e9,
                "sequences a step, kept by every candidate (default: the configuration's train_batch_size)"),
    TWS_STRING("stages", 0, "LIST", options, stages, "ZeRO stages (default 0,1,2,3)"),
    TWS_STRING("micro-batches", 0, "LIST", options, micro_batches,
               "micro batches (default: divisors, or powers of two)"),
    TWS_INTEGER("max-micro-batch", 0, "N", options, max_micro_batch, 1, 1e6, "largest micro batch"),
    TWS_STRING("accumulations", 0, "LIST", options, accumulations, "accumulation steps when the global batch is free"),
    TWS_STRING("recomputes", 0, "LIST", options, recomputes, "default none,selective,full"),
    TWS_STRING("ranks", 'n', "LIST", options, ranks, "numbers of ranks (default: those that fill devices or nodes)"),
    TWS_STRING("threads", 0, "LIST", options, threads, "threads of a host rank"),
    TWS_STRING("axes", 0, "WHEN", options, axes,
               "try pipelines, tensor and sequence ranks: on, off, auto (default: when a device is too small for the "
               "states)"),
    TWS_STRING("pp", 0, "LIST", options, pipeline, "pipeline stages (default: the configuration's; --axes: all)"),
    TWS_STRING("tp", 0, "LIST", options, tensor, "tensor ranks (--axes: divisors of a node's devices)"),
    TWS_STRING("sp", 0, "LIST", options, sequence, "sequence ranks (--axes: for 8192 tokens or more)"),
    TWS_STRING("ep", 0, "LIST", options, experts,
               "replicas that share experts (--axes: divisors of the experts, within a node)"),
    TWS_STRING("capacities", 0, "LIST", options, capacities,
               "twinspeed.expert_capacity_factor: slots of an expert in even shares (default: the configuration's)"),
    TWS_STRING("hpz", 0, "LIST", options, exchange[TWS_EXCHANGE_HPZ],
               "zero_hpz_partition_size at stage 3, 0: none (--axes: none, and a node's ranks)"),
    TWS_STRING("mics", 0, "LIST", options, exchange[TWS_EXCHANGE_MICS],
               "mics_shard_size at stage 3, 0: none (--axes: none, and a node's ranks)"),
    TWS_STRING("expert-nodes", 0, "LIST", options, exchange[TWS_EXCHANGE_EXPERT_NODES],
               "twinspeed.expert_node_ranks, 0: all exchange at once (--axes: this, and a node's ranks)"),
    TWS_STRING("quantized-weights", 0, "LIST", options, exchange[TWS_EXCHANGE_WEIGHTS],
               "zero_quantized_weights at stage 3: 0, 1 or 0,1; changes the training's results"),
    TWS_STRING("quantized-gradients", 0, "LIST", options, exchange[TWS_EXCHANGE_GRADIENTS],
               "zero_quantized_gradients at stage 3: 0, 1 or 0,1; changes the training's results"),
    TWS_STRING("schedules", 0, "LIST", options, schedules,
               "of pipelines: gpipe, 1f1b, interleaved[:CHUNKS], zb-h1 (--axes: all but gpipe)"),
    TWS_STRING("sequence-parallel", 0, "LIST", options, sequence_parallel,
               "with tensor ranks: 0, 1 or 0,1 (--axes: 0,1)"),
    TWS_FLAG("exhaustive", 0, options, exhaustive,
             "accepted and without effect: every search considers every point of the lists' product"),
    TWS_STRING("overlaps", 0, "LIST", options, overlaps, "zero_optimization.overlap_comm: off, on or off,on"),
    TWS_STRING("offloads", 0, "LIST", options, offloads,
               "of: none, cpu, nvme (the optimizer), cpu+parameters, nvme+parameters"),
    TWS_STRING("buckets", 0, "LIST", options, buckets, "zero_optimization.reduce_bucket_size, elements"),
    TWS_STRING("prefetch-buckets", 0, "LIST", options, prefetch,
               "zero_optimization.stage3_prefetch_bucket_size, elements"),
    TWS_STRING("persistence-thresholds", 0, "LIST", options, persistence,
               "zero_optimization.stage3_param_persistence_threshold, elements"),
    TWS_STRING("max-live", 0, "LIST", options, live, "zero_optimization.stage3_max_live_parameters, elements"),
    TWS_INTEGER("workers", 0, "N", options, workers, 1, 64, "processes that search (default: one for each core)"),
    TWS_FLAG("oversubscribe", 0, options, oversubscribe, "hosts: also more ranks than cores"),
    TWS_BYTES("memory", 0, "BYTES", options, memory, "memory of one device, instead of the profile's"),
    TWS_FLAG("no-tight", 0, options, no_tight, "what fits only tightly does not count as fitting"),
    TWS_STRING("tuner", 0, "NAME", options, tuner,
               "model_based (default), gridsearch or random: order of simulations, with --validate of runs"),
    TWS_STRING("objective", 0, "NAME", options, objective,
               "throughput (default), latency, flops (of a device), memory or cost (of a token)"),
    TWS_INTEGER("trials", 'k', "N", options, trials, 1, 100000, "simulations (default 12)"),
    TWS_INTEGER("early-stopping", 0, "N", options, early_stopping, 1, 100000,
                "stop after N trials without an improvement"),
    TWS_STRING("fidelity", 0, "LEVEL", options, fidelity, "analytic (default), flow, message or simgrid"),
    TWS_FLAG("no-simulation", 0, options, no_simulation, "rank candidates by the longest path alone"),
    TWS_STRING("results", 'o', "DIR", options, results, "where experiments are written (default autotuning_results)"),
    TWS_EXPORT_OPTION(options),
    TWS_FLAG("force", 0, options, force, "overwrite the results of an earlier search"),
    TWS_STRING("csv", 0, "FILE", options, csv, "all points that were planned, best first, as CSV (\"-\": on stdout)"),
    TWS_INTEGER("rows", 0, "N", options, rows, 1, 100000, "rows of the table (default 10)"),
    TWS_STRING("sweep", 0, "KEY=LOW..HIGH", options, sweep,
               "repeat the search while net.bandwidth (bit/s), net.latency, link.bandwidth (B/s), link.latency, "
               "device.memory or data.rate (samples/s of a node's loaders) of the cluster varies: 100..800G"),
    TWS_INTEGER("optimizers", 0, "STEPS", options, optimizers, 2, 1e12,
                "compare trainings of this many steps with AdamW, OneBitAdam, ZeroOneAdam and OneBitLamb over --sweep "
                "net.bandwidth (default 1..400G), at stage 0"),
    TWS_STRING("figure", 0, "FILE", options, figure, "with --optimizers: a figure of it, as .svg or .png (gnuplot)"),
    TWS_STRING("experiments", 0, "DIR", options, experiments,
               "where experiments are described (default autotuning_exps, or in --results DIR)"),
    TWS_INTEGER("validate", 0, "K", options, validate, 1, 100000,
                "train at most K configurations, correct the profile by them and search again"),
    TWS_STRING("data", 'd', "FILE", options, data, "with --validate: text, or llm.c tokens (.bin)"),
    TWS_INTEGER("start-profile-step", 0, "N", options, first_step, 1, 100000,
                "with --validate: first measured step (default 3)"),
    TWS_INTEGER("end-profile-step", 0, "N", options, last_step, 1, 100000,
                "with --validate: last measured step (default 5)"),
    TWS_INTEGER("rounds", 0, "N", options, rounds, 1, 1000, "with --validate: runs of each, interleaved (default 2)"),
    TWS_INTEGER("race", 0, "N", options, race, 0, 1000,
                "with --validate: further runs of each that may be fastest (default 6)"),
    TWS_NUMBER(
        "faults", 0, "SECONDS", options, faults_s, 1, 1e12,
        "mean time between failures of the whole job: print the best interval between checkpoints and the goodput"),
    TWS_NUMBER("limit", 0, "SECONDS", options, limit_s, 0.1, 1e9,
               "with --validate: time limit of a run, which counts as hung after it (default 1800)"),
    TWS_NUMBER(
        "budget", 0, "SECONDS", options, budget_s, 0.001, 1e9,
        "stop the search after this time and print how much better the rest could be; with --validate: start no run "
        "after this time (default: no limit)"),
    TWS_FLAG("resume", 0, options, resume,
             "continue from the folder's records: runs, bounds and plans in them are not repeated"),
    TWS_TUNE_SERVE_OPTIONS(options, serving),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_PLANNED,
                                 .serving = TWS_TUNE_SERVE_DEFAULTS,
                                 .results = TWS_TUNING_RESULTS,
                                 .memory = -1,
                                 .rounds = 2,
                                 .race = 6,
                                 .limit_s = 1800,
                                 .rows = 10};

const tws_verb tws_verb_tune = {
    .name = "tune",
    .summary = "finds the fastest configuration, in simulation",
    .usage = "-m MODEL [-c ds_config.json] [--cluster NAME[:NODES[xDEVICES]]] [options]",
    .examples =
        "  twinspeed tune -m gpt2-xl -c ds_config.json --cluster dgx-a100:2\n"
        "  twinspeed tune -m config.json -c ds_config.json --profile host.json -n 1,2 --validate 3 --data book.txt\n"
        "  twinspeed tune -m llama-3-70b -b 256 --cluster dgx-h100:8 --set bf16.enabled=true --tp 4,8 --pp 1,2,4\n"
        "  twinspeed tune --serve -m llama-3-70b --cluster dgx-h100 --software vllm --token-within 0.03\n"
        "  twinspeed tune -m gpt2 -b 64 --cluster dgx1-v100 --stages 2,3 --recomputes none,full\n"
        "  twinspeed tune -m bert-large --cluster dgx1-v100:8 -n 64 --micro-batches 16 --seq 128 --optimizers 100000\n",
    .notes =
        "Every point of the lists' product is considered: lower bounds of its memory and of its step exclude points "
        "that\n"
        "do not fit or cannot be among the best; the others are planned, the best plans are simulated, and with\n"
        "--validate the best of these are trained: one that crashes, hangs or runs out of memory is a row with a\n"
        "reason. Under mpirun or srun each process searches a part of a large space. The folder of results has "
        "exp.json, ds_config.json, cmd.txt and metrics.json of each experiment,\n"
        "summary.txt, results.json, ds_config_optimal.json and cmd_optimal.txt. Status 1: nothing fits, or nothing "
        "that\n"
        "was trained could be measured.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .arguments_max = 1, /* the file of --export FORMAT FILE */
    .run = run_tune};
