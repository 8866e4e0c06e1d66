/* twinspeed tune: finds the fastest configuration in simulation, and measures the winners when asked. */
#include <math.h>
#include <string.h>
#include "autotune/results.h"
#include "base/system.h"
#include "base/units.h"
#include "cli/faults_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/knee_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/trials_view.h"
#include "cli/tune_view.h"
#include "config/autotuning.h"
#include "job/fit.h"
#include "job/modules.h"
#include "launch/launch.h"

#define DEFAULT_RESULTS "autotuning_results"
#define DEFAULT_EXPERIMENTS "autotuning_exps"

typedef struct options {
  tws_job_spec job;
  const char *stages, *micro_batches, *accumulations, *recomputes, *ranks, *threads, *tuner, *fidelity, *results, *data;
  const char *experiments, *objective, *sweep;
  const char *overlaps, *offloads, *buckets, *prefetch, *persistence, *live;
  const char *axes, *pipeline, *tensor, *sequence, *schedules, *sequence_parallel, *experts, *capacities;
  const char *exchange[TWS_EXCHANGE_COUNT];
  int64_t global_batch, max_micro_batch, trials, early_stopping, validate, rows;
  int64_t first_step, last_step, rounds, race;
  double memory, limit_s, budget_s, faults_s;
  int64_t workers;
  int exhaustive, oversubscribe, force, resume, no_simulation;
} options;

typedef struct session {
  const options *o;
  tws_job *job;
  tws_progress progress;
  tws_tune_request request;
  tws_tuner tuner;  /* of the runs; without them of the simulations */
  char state[4096]; /* what the search has found out */
} session;

/* ---- what to search ---- */

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

/* 1f1b,interleaved:4,zb-h1: a number of chunks behind a colon. */
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
    for (int k = 0; k < space->zero3_count[i]; k++) space->zero3[i][k]++; /* 0: not said */
  }
  return TWS_OK;
}

/* Of ZeRO. */
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

static tws_code read_space(const options *o, const tws_config *config, tws_tune_space *space, tws_error *err) {
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
  space->oversubscribe = o->oversubscribe || o->ranks; /* ranks that were named are meant */
  if (tws_config_is_elastic(config)) {
    if (!o->global_batch && !o->accumulations) return TWS_OK;
    return tws_fail(err, TWS_USAGE, "leave it out, or --set elasticity.enabled=false",
                    "%s is given, and elasticity chooses the batch",
                    o->global_batch ? "--global-batch" : "--accumulations");
  }
  space->global_batch = o->global_batch;
  if (!space->global_batch && !o->accumulations) space->global_batch = config->train_batch_size;
  if (!space->global_batch && !o->accumulations && config->accumulation_steps > 0)
    space->accumulation[space->accumulation_count++] = config->accumulation_steps;
  if (o->global_batch && o->accumulations)
    return tws_fail(err, TWS_USAGE, "give one of them",
                    "--global-batch decides the accumulation: leave out --accumulations");
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

static int64_t first_of(int64_t flag, int64_t key, int64_t otherwise) {
  return flag > 0 ? flag : key > 0 ? key : otherwise;
}

/* What the section autotuning of the configuration says, where no flag does. */
static tws_code read_section(options *o, const tws_config *config, tws_tune_space *space, tws_error *err) {
  static const char *const metrics[] = {"throughput", "latency", "flops"};
  const tws_autotuning a = tws_config_autotuning(config);
  o->first_step = first_of(o->first_step, a.first_step, 3);
  o->last_step = first_of(o->last_step, a.last_step, o->first_step > 5 ? o->first_step + 2 : 5);
  o->trials = first_of(o->trials, a.trials, 0);
  o->early_stopping = first_of(o->early_stopping, a.early_stopping, 0);
  o->max_micro_batch = first_of(o->max_micro_batch, a.max_micro, 0);
  if (!o->tuner) o->tuner = a.tuner;
  space->min_micro = a.min_micro;
  for (size_t i = 0; a.metric && !o->objective && i < sizeof metrics / sizeof *metrics; i++)
    if (strcmp(a.metric, metrics[i]) == 0) o->objective = metrics[i];
  if (a.metric && !o->objective)
    return tws_fail(err, TWS_UNSUPPORTED, "use throughput, latency or flops, or give --objective",
                    "autotuning.metric: \"%s\" is a part of a step, and whole steps are compared", a.metric);
  if (a.fast != 1) return TWS_OK;
  space->deepspeed = (tws_ds_tuning){.params = a.params,
                                     .activation_bytes = a.activation_bytes,
                                     .start = config->micro_batch_size,
                                     .min_micro = a.min_micro,
                                     .max_micro = o->max_micro_batch,
                                     .max_train_batch = a.max_train_batch,
                                     .num = a.list_size > 0 ? (int)a.list_size : 3};
  if (!o->recomputes) space->recompute[space->recompute_count++] = config->recompute;
  if (!o->axes) o->axes = "off";
  return TWS_OK;
}

/* A search keeps what it finds out beside its results, and goes on from there; processes that something else has
 * started share it. */
static void keep_state(const options *o, session *s) {
  int part, parts;
  s->request.budget_s = o->validate > 0 ? 0 : o->budget_s; /* of the runs */
  s->request.resume = o->resume;
  if (tws_started_elsewhere(&part, &parts)) {
    s->request.part = part;
    s->request.parts = parts;
  }
  if (o->sweep) return;
  snprintf(s->state, sizeof s->state, "%s/search.state", *o->results ? o->results : ".");
  s->request.state = s->state;
}

static tws_code open_session(const tws_cli *cli, options *o, session *s, tws_error *err) {
  static const char *const tuners[] = {"model_based", "gridsearch", "random"};
  static const char *const fidelities[] = {"analytic", "flow", "message"};
  static const char *const answers[] = {"auto", "on", "off"};
  static const char *const objectives[] = {"throughput", "latency", "flops", "memory", "cost"};
  int tuner, fidelity, axes, objective;
  tws_tune_space space = {.axes = 0};
  memset(s, 0, sizeof *s);
  s->o = o;
  if (!o->job.model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  TWS_TRY(tws_job_open(&o->job, &s->job, err));
  TWS_TRY(read_section(o, s->job->config, &space, err));
  TWS_TRY(read_word(o->tuner, "--tuner", tuners, 3, &tuner, err));
  TWS_TRY(read_word(o->fidelity, "--fidelity", fidelities, 3, &fidelity, err));
  TWS_TRY(read_word(o->axes, "--axes", answers, 3, &axes, err));
  TWS_TRY(read_word(o->objective, "--objective", objectives, TWS_GOALS, &objective, err));
  tws_config *config = s->job->config;
  if (!o->job.config && !o->global_batch) config->micro_batch_size = 0;
  s->tuner = (tws_tuner)tuner;
  s->progress = tws_cli_progress(cli);
  s->request = (tws_tune_request){.job = s->job,
                                  .fidelity = (tws_fidelity)fidelity,
                                  .tuner = o->validate ? TWS_TUNER_MODEL_BASED : (tws_tuner)tuner,
                                  .goal = (tws_goal)objective,
                                  .trials = (int)o->trials,
                                  .early_stopping = o->validate ? 0 : (int)o->early_stopping,
                                  .workers = (int)o->workers,
                                  .seed = (uint64_t)config->seed,
                                  .memory_bytes = o->memory > 0 ? o->memory : 0,
                                  .progress = &s->progress,
                                  .log = &cli->log,
                                  .space = space};
  TWS_TRY(read_space(o, config, &s->request.space, err));
  if (s->request.goal == TWS_GOAL_COST && !(s->job->cluster.price_per_device_hour > 0))
    return tws_fail(err, TWS_INVALID, "--cluster FILE with \"base\": \"NAME\", \"price_per_device_hour\": 2.5",
                    "--objective cost: cluster %s has no price_per_device_hour", s->job->cluster.name);
  keep_state(o, s);
  tws_tune_remarks(cli, o->job.model, s->job);
  if (o->validate > 0) tws_data_remark(cli, o->data, s->job->network);
  int given = tws_config_model_ranks(config) > 1;
  s->request.space.axes = axes == 1 || (axes == 0 && !given && tws_tune_needs_axes(&s->request));
  return o->no_simulation ? TWS_OK : tws_sim_load(&s->request.sim, err);
}

/* ---- measuring the winners ---- */

/* Trials on GPUs take those of this machine. */
static tws_code check_gpus(const session *s, tws_error *err) {
  if (s->job->backend == TWS_BACKEND_HOST) return TWS_OK;
  TWS_TRY(tws_job_check_engine(s->job, s->o->job.cluster != NULL, s->o->job.profile != NULL, err));
  const int gpus = tws_system_gpus(NULL);
  const tws_tune_space *space = &s->request.space;
  int64_t most = space->ranks_count > 0 ? 0 : (int64_t)s->job->cluster.nodes * s->job->cluster.devices_per_node;
  for (int i = 0; i < space->ranks_count; i++)
    if (space->ranks[i] > most) most = space->ranks[i];
  if (most <= gpus) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED,
                  gpus > 0 ? "-n with what there is, or leave out --validate" : "leave out --validate",
                  "--validate trains on this machine, which has %d GPU%s, and up to %lld ranks are looked at", gpus,
                  gpus == 1 ? "" : "s", (long long)most);
}

static tws_code check_measurable(const session *s, tws_error *err) {
  if (s->o->validate == 0) return TWS_OK;
  if (s->job->cluster.nodes > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --validate, or tune for this machine (--cluster host)",
                    "--validate trains on this machine, and cluster %s is another", s->job->cluster.name);
  TWS_TRY(check_gpus(s, err));
  if (!s->o->data) return tws_fail(err, TWS_USAGE, "give --data FILE", "--validate: no data to train on");
  tws_job_spec started = s->o->job;
  started.config = NULL; /* trials are given files of the search's */
  TWS_TRY(tws_job_spec_check_shared(&started, err));
  if (s->o->last_step < s->o->first_step)
    return tws_fail(err, TWS_USAGE, "--end-profile-step is the last step that is measured",
                    "--end-profile-step %lld comes before --start-profile-step %lld", (long long)s->o->last_step,
                    (long long)s->o->first_step);
  return TWS_OK;
}

/* ---- what was found ---- */

static tws_code explain_no_winner(const tws_tune_result *result, tws_error *err) {
  char need[32], have[32], missing[32];
  if (result->smallest < 0)
    return tws_fail(err, TWS_NO, NULL, "no configuration can be planned: %s",
                    result->rejection_count ? result->rejections[0].reason : "the space is empty");
  const tws_tune_candidate *c = &result->candidates[result->smallest];
  return tws_fail(err, TWS_NO, "use more or larger devices, a shorter sequence or bf16",
                  "nothing fits: the smallest, %s, needs %s a rank of %s, %s are missing", c->name,
                  tws_format_bytes(c->needed_bytes, need, sizeof need),
                  tws_format_bytes(c->available_bytes, have, sizeof have),
                  tws_format_bytes(c->needed_bytes - c->available_bytes, missing, sizeof missing));
}

static void print_gain(const tws_tune_analysis *a) {
  if (!a || !a->has_own || !(a->own.step_s > 0)) return;
  if (a->own.fits)
    tws_out("%.3g times as fast as your configuration, predicted alike\n", a->winner.throughput / a->own.throughput);
  else
    tws_out("your configuration does not fit\n");
}

static tws_code print_result(const tws_cli *cli, const session *s, const tws_tune_report *report, tws_error *err) {
  const tws_tune_result *result = report->result;
  tws_text text = {0};
  if (cli->json) {
    TWS_TRY(tws_tune_json(report, &text, err));
    if (s->o->faults_s > 0 && report->analysis) TWS_TRY(tws_faults_add_json(report, s->o->faults_s, &text, err));
    return tws_out_text(&text, err);
  }
  char params[32];
  tws_assumption assumed[TWS_ASSUMPTIONS];
  tws_out("%s, %s parameters, on %s (%s)\n", s->job->network->name,
          tws_format_count((double)tws_network_params(s->job->network, 0), params, sizeof params), s->job->cluster.name,
          tws_profile_name(s->job->profile));
  tws_out("runtime %s, %s, sequences of %s tokens\n", tws_profile_runtime(s->job->profile)->name,
          tws_dtype_name(s->job->config->dtype), tws_thousands(tws_job_sequence(s->job)));
  tws_assumptions_print(cli, assumed, tws_tune_assumed(&s->request, assumed));
  tws_out("\n");
  TWS_TRY(tws_tune_print(cli, result, &s->request, (int)s->o->rows, err));
  if (report->trials) TWS_TRY(tws_trials_print(cli, report->trials, &s->request, err));
  char estimate[32], simulate[32];
  tws_out("\nestimated in %s, simulated in %s\n", tws_format_seconds(result->estimate_s, estimate, sizeof estimate),
          tws_format_seconds(result->simulate_s, simulate, sizeof simulate));
  if (result->fits == 0) return TWS_OK;
  char label[TWS_VARIANT_NAME];
  tws_variant_label(tws_tune_best(report, NULL), label, sizeof label);
  tws_out_wrapped(2, "best: %s -> %s/ds_config_optimal.json, report.html", label, s->o->results);
  if (report->trials && report->trials->corrected > 0)
    tws_out_wrapped(2, "corrected profile: %s/" TWS_TUNE_PROFILE "; what follows predicts with --profile of it",
                    s->o->results);
  print_gain(report->analysis);
  return s->o->faults_s > 0 && report->analysis ? tws_faults_print(cli, report, s->o->faults_s, err) : TWS_OK;
}

/* What --memory leaves beside context and libraries. */
static tws_code check_device(const session *s, tws_error *err) {
  char given[32], taken[32], missing[32];
  double overhead = tws_profile_overhead_bytes(s->job->profile);
  if (s->o->memory < 0 || s->o->memory > overhead) return TWS_OK;
  return tws_fail(err, TWS_NO, "for example --memory 40GiB",
                  "nothing fits: --memory is %s, context and libraries alone take %s: %s are missing",
                  tws_format_bytes(s->o->memory, given, sizeof given), tws_format_bytes(overhead, taken, sizeof taken),
                  tws_format_bytes(overhead - s->o->memory, missing, sizeof missing));
}

/* DeepSpeed's names for where things go; another search's are never mixed up with these. */
static tws_tune_folders folders_of(const options *o, char *below, size_t size) {
  snprintf(below, size, "%s%s%s", o->results, *o->results ? "/" : "", DEFAULT_EXPERIMENTS);
  const char *experiments = strcmp(o->results, DEFAULT_RESULTS) == 0 ? DEFAULT_EXPERIMENTS : below;
  return (tws_tune_folders){.results = o->results,
                            .experiments = o->experiments ? o->experiments : experiments,
                            .earlier = o->resume  ? TWS_EARLIER_KEEP
                                       : o->force ? TWS_EARLIER_REPLACE
                                                  : TWS_EARLIER_REFUSE,
                            .spec = &o->job,
                            .data = o->data};
}

static tws_code measure(const tws_cli *cli, const session *s, const tws_tune_folders *folders, tws_tune_result **result,
                        tws_tune_trials *trials, tws_error *err) {
  const options *o = s->o;
  const tws_tune_measuring how = {.setup = {.spec = &o->job,
                                            .data = o->data,
                                            .results = o->results,
                                            .first_step = o->first_step,
                                            .last_step = o->last_step,
                                            .limit_s = o->limit_s},
                                  .folders = folders,
                                  .rule = {.tuner = s->tuner,
                                           .seed = s->request.seed,
                                           .trials = (int)o->validate,
                                           .early_stopping = (int)o->early_stopping},
                                  .rounds = (int)o->rounds,
                                  .race = (int)o->race,
                                  .budget_s = o->budget_s,
                                  .log = &cli->log};
  return tws_tune_measure(&s->request, &how, result, trials, err);
}

/* The user's configuration, where it says a whole job. */
static int own_variant(const options *o, tws_variant *own) {
  tws_job *job;
  if (!o->job.config || tws_job_load(&o->job, &job, NULL) != TWS_OK) return 0;
  *own = tws_variant_given(job->config);
  own->stage = job->config->zero.stage;
  own->recompute = job->config->recompute;
  own->ranks = job->ranks;
  own->threads = job->backend == TWS_BACKEND_HOST ? job->threads : 0;
  own->micro = job->config->micro_batch_size;
  own->accumulation = job->config->accumulation_steps;
  tws_job_destroy(job);
  return 1;
}

/* What is written and printed of a search. */
static tws_code tell(const tws_cli *cli, const session *s, const tws_tune_result *result, const tws_tune_trials *trials,
                     const tws_tune_folders *folders, tws_error *err) {
  tws_tune_report report = {.request = &s->request, .result = result, .trials = trials};
  tws_tune_analysis *analysis = NULL;
  tws_variant own;
  const tws_variant *best = tws_tune_best(&report, NULL);
  const int has_own = own_variant(s->o, &own);
  tws_code code = TWS_OK;
  if (best) code = tws_tune_analyse(&s->request, result, best, has_own ? &own : NULL, &analysis, err);
  report.analysis = analysis;
  if (code == TWS_OK) code = tws_tune_write(&report, folders, err);
  if (code == TWS_OK) code = tws_tune_write_documents(&report, folders, err);
  if (code == TWS_OK) code = print_result(cli, s, &report, err);
  tws_tune_analysis_destroy(analysis);
  return code;
}

/* Searches, whose results are not kept. */
static tws_code sweep(const tws_cli *cli, const session *s, tws_error *err) {
  tws_knee_sweep range;
  tws_knee knee;
  TWS_TRY(tws_knee_parse(s->o->sweep, &range, err));
  if (s->o->validate > 0)
    return tws_fail(err, TWS_USAGE, "leave one of them out",
                    "--sweep asks what another cluster would do: --validate "
                    "trains on this machine");
  TWS_TRY(tws_knee_find(&s->request, &range, &knee, err));
  return tws_knee_print(cli, &knee, &range, &s->request, err);
}

static tws_code tune_job(tws_cli *cli, session *s, tws_error *err) {
  char below[4096];
  const tws_tune_folders folders = folders_of(s->o, below, sizeof below);
  tws_tune_trials trials = {.best = -1};
  tws_tune_result *result;
  TWS_TRY(check_device(s, err));
  TWS_TRY(check_measurable(s, err));
  if (s->o->sweep) return sweep(cli, s, err);
  /* before the work, not after it */
  TWS_TRY(s->request.state ? tws_tune_folders_make(&folders, err) : tws_tune_folders_check(&folders, err));
  TWS_TRY(tws_tune(&s->request, &result, err));
  if (s->request.part > 0) { /* the first part gathers, and tells */
    tws_tune_result_destroy(result);
    return TWS_OK;
  }
  tws_code code = tws_tune_order(&s->request, result, err);
  const int measured = s->o->validate > 0 && result->fits > 0;
  if (code == TWS_OK) code = tws_tune_folders_open(&folders, err);
  if (code == TWS_OK && measured) code = measure(cli, s, &folders, &result, &trials, err);
  if (code == TWS_OK) code = tell(cli, s, result, measured ? &trials : NULL, &folders, err);
  if (code == TWS_OK && result->fits == 0) code = explain_no_winner(result, err);
  if (code == TWS_OK && measured && trials.best < 0)
    code = tws_fail(err, TWS_NO, "the reasons are in summary.txt, what the runs said is in stderr.log of each",
                    "none of the %d configurations that were run could be measured", trials.count);
  tws_tune_trials_free(&trials);
  tws_tune_result_destroy(result);
  return code;
}

static tws_code run_tune(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  static const char *const none[] = {NULL}; /* the tuner knows the results of an earlier search */
  const options *o = raw;
  (void)argc;
  (void)argv;
  const tws_output output = {"--results", o->results, none};
  if (!o->sweep) TWS_TRY(tws_outputs_check(&output, 1, NULL, o->force || o->resume, err));
  session s;
  tws_code code = open_session(cli, raw, &s, err);
  if (code == TWS_OK) code = tune_job(cli, &s, err);
  tws_job_destroy(s.job);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("model", 'm', "MODEL", options, job.model, "Hugging Face config.json, or a built-in model's name"),
    TWS_STRING("config", 'c', "FILE", options, job.config, "ds_config.json; its batch keys and stage are searched"),
    TWS_STRING("cluster", 0, "NAME[:NODES[xDEVICES]]", options, job.cluster,
               "cluster file or built-in name (default: host)"),
    TWS_STRING("profile", 0, "NAME", options, job.profile, "hardware profile: built-in name or a calibrated file"),
    TWS_RUNTIME_OPTION(options, job),
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
               "replicas that share experts (--axes: what divides experts, within a node)"),
    TWS_STRING("capacities", 0, "LIST", options, capacities,
               "twinspeed.expert_capacity_factor: slots of an expert in even shares (default: the configuration's)"),
    TWS_STRING("hpz", 0, "LIST", options, exchange[TWS_EXCHANGE_HPZ],
               "zero_hpz_partition_size at stage 3, 0: none (--axes: none, and a node's ranks)"),
    TWS_STRING("mics", 0, "LIST", options, exchange[TWS_EXCHANGE_MICS],
               "mics_shard_size at stage 3, 0: none (--axes: none, and a node's ranks)"),
    TWS_STRING("expert-nodes", 0, "LIST", options, exchange[TWS_EXCHANGE_EXPERT_NODES],
               "twinspeed.expert_node_ranks, 0: all exchange at once (--axes: this, and a node's ranks)"),
    TWS_STRING("quantized-weights", 0, "LIST", options, exchange[TWS_EXCHANGE_WEIGHTS],
               "zero_quantized_weights at stage 3: 0, 1 or 0,1; changes what is trained"),
    TWS_STRING("quantized-gradients", 0, "LIST", options, exchange[TWS_EXCHANGE_GRADIENTS],
               "zero_quantized_gradients at stage 3: 0, 1 or 0,1; changes what is trained"),
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
    TWS_STRING("tuner", 0, "NAME", options, tuner,
               "model_based (default), gridsearch or random: what is simulated next, with --validate what is trained"),
    TWS_STRING("objective", 0, "NAME", options, objective,
               "throughput (default), latency, flops (of a device), memory or cost (of a token)"),
    TWS_INTEGER("trials", 'k', "N", options, trials, 1, 100000, "simulations (default 12)"),
    TWS_INTEGER("early-stopping", 0, "N", options, early_stopping, 1, 100000,
                "stop after N trials without a better one"),
    TWS_STRING("fidelity", 0, "LEVEL", options, fidelity, "analytic (default), flow or message"),
    TWS_FLAG("no-simulation", 0, options, no_simulation, "let the longest path decide alone"),
    TWS_STRING("results", 'o', "DIR", options, results, "where experiments are written (default autotuning_results)"),
    TWS_FLAG("force", 0, options, force, "overwrite the results of an earlier search"),
    TWS_INTEGER("rows", 0, "N", options, rows, 1, 100000, "rows of the table (default 10)"),
    TWS_STRING("sweep", 0, "KEY=LOW..HIGH", options, sweep,
               "search again and again while net.bandwidth (bit/s), net.latency, link.bandwidth (B/s), link.latency, "
               "device.memory or data.rate (samples/s of a node's loaders) of the cluster varies: 100..800G"),
    TWS_STRING("experiments", 0, "DIR", options, experiments,
               "where experiments are described (default autotuning_exps, or below --results DIR)"),
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
    TWS_NUMBER("faults", 0, "SECONDS", options, faults_s, 1, 1e12,
               "mean time between failures of the whole job: how often to save, and what is left of the speed"),
    TWS_NUMBER("limit", 0, "SECONDS", options, limit_s, 0.1, 1e9,
               "with --validate: a run that takes longer is ended, as one that hangs (default 1800)"),
    TWS_NUMBER(
        "budget", 0, "SECONDS", options, budget_s, 0.001, 1e9,
        "look no further after so long, and say how much better the rest could be; with --validate: begin no run "
        "after so long (default: no limit)"),
    TWS_FLAG("resume", 0, options, resume,
             "continue from the folder's records: what was run, bounded or planned is not again"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS,
                                 .results = DEFAULT_RESULTS,
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
        "  twinspeed tune -m gpt2 -b 64 --cluster dgx1-v100 --stages 2,3 --recomputes none,full\n",
    .notes =
        "Every point of the lists' product is considered: lower bounds of its memory and of its step rule out what "
        "does\n"
        "not fit or cannot be among the best; those that may are planned, the best plans are simulated, and with\n"
        "--validate the best of those are trained: one that crashes, hangs or runs out of memory is a row with a\n"
        "reason. Under mpirun or srun each process looks at a part of a large space. The folder of results has "
        "exp.json, ds_config.json, cmd.txt and metrics.json of each experiment,\n"
        "summary.txt, results.json, ds_config_optimal.json and cmd_optimal.txt. Status 1: nothing fits, or nothing "
        "that\n"
        "was trained could be measured.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_tune};
