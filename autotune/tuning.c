#include "autotune/tuning.h"

#include <stdio.h>
#include <string.h>

#include "autotune/deepspeed_space.h"
#include "base/system.h"
#include "base/units.h"
#include "config/autotuning.h"
#include "job/features.h"
#include "job/measured.h"
#include "launch/launch.h"

/* ---- defaults ---- */

static int64_t first_of(int64_t given, int64_t key, int64_t otherwise) {
  return given > 0 ? given : key > 0 ? key : otherwise;
}

/* Sets values that no option has set from the configuration's section autotuning. */
static void take_section(tws_tuning *t) {
  const tws_config *config = t->search.job->config;
  const tws_autotuning a = tws_config_autotuning(config);
  tws_tune_space *space = &t->search.space;
  t->first_step = first_of(t->first_step, a.first_step, 3);
  t->last_step = first_of(t->last_step, a.last_step, t->first_step > 5 ? t->first_step + 2 : 5);
  t->trials = first_of(t->trials, a.trials, 0);
  t->early_stopping = first_of(t->early_stopping, a.early_stopping, 0);
  space->max_micro = first_of(space->max_micro, a.max_micro, 0);
  space->min_micro = a.min_micro;
  if (a.fast != 1) return;
  space->deepspeed = (tws_ds_tuning){.params = a.params,
                                     .activation_bytes = a.activation_bytes,
                                     .start = config->micro_batch_size,
                                     .min_micro = a.min_micro,
                                     .max_micro = space->max_micro,
                                     .max_train_batch = a.max_train_batch,
                                     .num = a.list_size > 0 ? (int)a.list_size : 3};
  if (!space->recompute_count) space->recompute[space->recompute_count++] = config->recompute;
  if (t->axes == TWS_TUNING_AXES_DEFAULT) t->axes = TWS_TUNING_AXES_OFF;
}

/* Sets the batch of the search space from the configuration: a global batch, or accumulation steps. */
static tws_code take_batch(tws_tuning *t, tws_error *err) {
  const tws_config *config = t->search.job->config;
  tws_tune_space *space = &t->search.space;
  const int global = space->global_batch > 0, accumulations = space->accumulation_count > 0;
  if (tws_config_is_elastic(config)) {
    if (!global && !accumulations) return TWS_OK;
    return tws_fail(err, TWS_USAGE, "leave it out, or --set elasticity.enabled=false",
                    "%s is given, and elasticity chooses the batch", global ? "--global-batch" : "--accumulations");
  }
  if (global && accumulations)
    return tws_fail(err, TWS_USAGE, "give one of them",
                    "--global-batch decides the accumulation: leave out --accumulations");
  if (global || accumulations) return TWS_OK;
  space->global_batch = config->train_batch_size;
  if (!space->global_batch && config->accumulation_steps > 0)
    space->accumulation[space->accumulation_count++] = config->accumulation_steps;
  return TWS_OK;
}

static void keep_margin(tws_tuning *t) {
  const double all = tws_job_limit_with_margin(t->search.job);
  const double high = tws_runtime_memory_interval(tws_profile_runtime(t->search.job->profile))->high;
  if (!t->keeps_margin || !(all > 0)) return;
  t->search.keeps_margin = 1;
  t->search.memory_bytes = t->memory > 0 ? t->memory / high : all;
}

/* Adds points without offload if the configuration offloads and no list of offload targets is given, since the job may
 * fit without offloading, and be faster. */
static void try_without_offload(tws_tune_request *search) {
  const tws_config *config = search->job->config;
  tws_tune_space *space = &search->space;
  if (space->offload_count || search->job->backend == TWS_BACKEND_HOST) return;
  if (!tws_config_offloads(config) || tws_config_updates_late(config) || tws_tune_has_deepspeed_points(search)) return;
  space->offload[space->offload_count++] = 0; /* the configuration's offload */
  space->offload[space->offload_count++] = 1; /* no offload */
  space->offload_is_default = 1;
}

tws_code tws_tuning_complete(tws_tuning *t, tws_error *err) {
  tws_tune_request *search = &t->search;
  tws_config *config = search->job->config;
  take_section(t);
  if (!t->spec->config && !search->space.global_batch) config->micro_batch_size = 0;
  TWS_TRY(take_batch(t, err));
  try_without_offload(search);
  /* a rank count that the user lists is used even if it oversubscribes cores */
  search->space.oversubscribe |= search->space.ranks_count > 0;
  search->tuner = t->validate ? TWS_TUNER_MODEL_BASED : t->tuner;
  search->trials = (int)t->trials;
  search->early_stopping = t->validate ? 0 : (int)t->early_stopping;
  search->seed = (uint64_t)config->seed;
  search->memory_bytes = t->memory > 0 ? t->memory : 0;
  keep_margin(t);
  if (search->goal == TWS_GOAL_COST && !(search->job->cluster.price_per_device_hour > 0))
    return tws_fail(err, TWS_INVALID, "--cluster FILE with \"base\": \"NAME\", \"price_per_device_hour\": 2.5",
                    "--objective cost: cluster %s has no price_per_device_hour", search->job->cluster.name);
  const int asks = t->axes == TWS_TUNING_AXES_AUTO || t->axes == TWS_TUNING_AXES_DEFAULT;
  const int given = tws_config_model_ranks(config) > 1;
  search->space.axes = t->axes == TWS_TUNING_AXES_ON || (asks && !given && tws_tune_needs_axes(search));
  return TWS_OK;
}

/* ---- checks ---- */

/* Refuses a memory limit below the memory of the CUDA context and libraries. */
static tws_code check_device(const tws_tuning *t, tws_error *err) {
  char given[32], taken[32], missing[32];
  const double overhead = tws_profile_overhead_bytes(t->search.job->profile);
  if (t->memory < 0 || t->memory > overhead) return TWS_OK;
  return tws_fail(err, TWS_NO, "for example --memory 40GiB",
                  "nothing fits: --memory is %s, context and libraries alone take %s (%s short)",
                  tws_format_bytes(t->memory, given, sizeof given), tws_format_bytes(overhead, taken, sizeof taken),
                  tws_format_bytes(overhead - t->memory, missing, sizeof missing));
}

/* Checks that this machine has the GPUs that trials use. */
static tws_code check_gpus(const tws_tuning *t, tws_error *err) {
  const tws_job *job = t->search.job;
  if (job->backend == TWS_BACKEND_HOST) return TWS_OK;
  TWS_TRY(tws_job_check_engine(job, t->spec->cluster != NULL, t->spec->profile != NULL, err));
  const int gpus = tws_system_gpus(NULL);
  const tws_tune_space *space = &t->search.space;
  int64_t most = space->ranks_count > 0 ? 0 : (int64_t)job->cluster.nodes * job->cluster.devices_per_node;
  for (int i = 0; i < space->ranks_count; i++)
    if (space->ranks[i] > most) most = space->ranks[i];
  if (most <= gpus) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED,
                  gpus > 0 ? "-n with what there is, or leave out --validate" : "leave out --validate",
                  "--validate trains on this machine, which has %d GPU%s, and the search includes up to %lld ranks",
                  gpus, gpus == 1 ? "" : "s", (long long)most);
}

static tws_code check_measurable(const tws_tuning *t, tws_error *err) {
  if (t->validate == 0) return TWS_OK;
  if (t->search.job->cluster.nodes > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --validate, or tune for this machine (--cluster host)",
                    "--validate trains on this machine, not on cluster %s", t->search.job->cluster.name);
  TWS_TRY(check_gpus(t, err));
  if (!t->data) return tws_fail(err, TWS_USAGE, "give --data FILE", "--validate: no data to train on");
  tws_job_spec started = *t->spec;
  started.config = NULL; /* each trial has a configuration file of its own */
  TWS_TRY(tws_job_spec_check_shared(&started, err));
  if (t->last_step < t->first_step)
    return tws_fail(err, TWS_USAGE, "--end-profile-step is the last step that is measured",
                    "--end-profile-step %lld comes before --start-profile-step %lld", (long long)t->last_step,
                    (long long)t->first_step);
  return TWS_OK;
}

tws_code tws_tuning_check(const tws_tuning *t, tws_error *err) {
  TWS_TRY(check_device(t, err));
  return check_measurable(t, err);
}

/* ---- the run ---- */

/* Copies the request, and adds the time budget and, if a launcher has started several processes, the number of this
 * process's part of the search. */
static tws_tune_request request_of(const tws_tuning *t) {
  tws_tune_request request = t->search;
  int part, parts;
  request.budget_s = t->validate > 0 ? 0 : t->budget_s; /* the budget limits the runs */
  request.resume = t->earlier == TWS_EARLIER_KEEP;
  if (tws_started_by_other_launcher(&part, &parts)) {
    request.part = part;
    request.parts = parts;
  }
  return request;
}

/* Chooses the folders. With --results other than DeepSpeed's default the experiments are stored within that folder, so
 * that searches do not overwrite each other. */
static tws_tune_folders folders_of(const tws_tuning *t, char *below, size_t size) {
  snprintf(below, size, "%s%s%s", t->results, *t->results ? "/" : "", TWS_TUNING_EXPERIMENTS);
  const char *experiments = strcmp(t->results, TWS_TUNING_RESULTS) == 0 ? TWS_TUNING_EXPERIMENTS : below;
  return (tws_tune_folders){.results = t->results,
                            .experiments = t->experiments ? t->experiments : experiments,
                            .earlier = t->earlier,
                            .spec = t->spec,
                            .data = t->data};
}

static tws_code measure(const tws_tuning *t, const tws_tune_request *request, const tws_tune_folders *folders,
                        tws_tune_result **result, tws_tune_trials *trials, tws_error *err) {
  const tws_tune_measuring how = {.setup = {.spec = t->spec,
                                            .data = t->data,
                                            .results = t->results,
                                            .first_step = t->first_step,
                                            .last_step = t->last_step,
                                            .limit_s = t->limit_s},
                                  .folders = folders,
                                  .rule = {.tuner = t->tuner,
                                           .seed = request->seed,
                                           .trials = (int)t->validate,
                                           .early_stopping = (int)t->early_stopping},
                                  .rounds = (int)t->rounds,
                                  .race = (int)t->race,
                                  .budget_s = t->budget_s,
                                  .log = t->search.log};
  return tws_tune_measure(request, &how, result, trials, err);
}

/* Sets *own to the variant of the user's configuration and returns 1; returns 0 if the configuration is not
 * complete. */
static int own_variant(const tws_job_spec *spec, tws_variant *own) {
  tws_job *job;
  if (!spec->config || tws_measured_load(spec, &job, NULL) != TWS_OK) return 0;
  *own = tws_job_variant(job);
  tws_job_destroy(job);
  return 1;
}

/* The state of one search: its report, its folders, and the callback that receives the report. */
typedef struct findings {
  const tws_tuning *of;
  const tws_tune_folders *folders;
  tws_tune_report report;
  tws_tuning_callback tell;
  void *user;
} findings;

static tws_code write_and_tell(findings *f, tws_error *err) {
  tws_tune_report *report = &f->report;
  tws_tune_analysis *analysis = NULL;
  tws_variant own;
  const tws_variant *best = tws_tune_best(report, NULL);
  const int has_own = own_variant(f->of->spec, &own);
  tws_code code = TWS_OK;
  if (best) code = tws_tune_analyse(report->request, report->result, best, has_own ? &own : NULL, &analysis, err);
  report->analysis = analysis;
  if (code == TWS_OK && !best && report->result->smallest >= 0)
    best = &report->result->candidates[report->result->smallest].variant;
  if (code == TWS_OK && best)
    report->advice_count = tws_advice_for_variant(f->of->spec, report->request->job, best, report->advice);
  if (code == TWS_OK) code = tws_tune_write(report, f->folders, err);
  if (code == TWS_OK) code = tws_tune_write_documents(report, f->folders, err);
  if (code == TWS_OK) code = f->tell(f->user, report, err);
  tws_tune_analysis_destroy(analysis);
  return code;
}

static tws_code explain_no_winner(const tws_tune_result *result, tws_error *err) {
  char need[32], have[32], missing[32];
  if (result->smallest < 0)
    return tws_fail(err, TWS_NO, NULL, "no configuration can be planned: %s",
                    result->rejection_count ? result->rejections[0].reason : "the space is empty");
  const tws_tune_candidate *c = &result->candidates[result->smallest];
  return tws_fail(err, TWS_NO, "use more or larger devices, a shorter sequence or bf16",
                  "nothing fits: the smallest, %s, needs %s per rank, %s available (%s short)", c->name,
                  tws_format_bytes(c->needed_bytes, need, sizeof need),
                  tws_format_bytes(c->available_bytes, have, sizeof have),
                  tws_format_bytes(c->needed_bytes - c->available_bytes, missing, sizeof missing));
}

tws_code tws_tuning_run(const tws_tuning *t, tws_tuning_callback tell, void *user, tws_error *err) {
  char below[4096], state[4096];
  tws_tune_request request = request_of(t);
  const tws_tune_folders folders = folders_of(t, below, sizeof below);
  tws_tune_trials trials = {.best = -1};
  tws_tune_result *result;
  TWS_TRY(tws_tuning_check(t, err));
  snprintf(state, sizeof state, "%s/search.state", *t->results ? t->results : ".");
  request.state = state;
  /* creates the folders before the work starts, so that an unwritable one is reported at once */
  TWS_TRY(tws_tune_folders_make(&folders, err));
  TWS_TRY(tws_tune(&request, &result, err));
  if (request.part > 0) { /* only the process of the first part merges and reports the results */
    tws_tune_result_destroy(result);
    return TWS_OK;
  }
  tws_code code = tws_tune_order(&request, result, err);
  const int measured = t->validate > 0 && result->fits > 0;
  if (code == TWS_OK) code = tws_tune_folders_open(&folders, err);
  if (code == TWS_OK && measured) code = measure(t, &request, &folders, &result, &trials, err);
  findings found = {
      t, &folders, {.request = &request, .result = result, .trials = measured ? &trials : NULL}, tell, user};
  if (code == TWS_OK) code = write_and_tell(&found, err);
  if (code == TWS_OK && result->fits == 0) code = explain_no_winner(result, err);
  if (code == TWS_OK && measured && trials.best < 0)
    code = tws_fail(err, TWS_NO, "the reasons are in summary.txt, the output of each run is in its stderr.log",
                    "none of the %d configurations that were run could be measured", trials.count);
  tws_tune_trials_free(&trials);
  tws_tune_result_destroy(result);
  return code;
}

tws_code tws_tuning_sweep(const tws_tuning *t, const tws_knee_sweep *range, tws_knee *out, tws_error *err) {
  const tws_tune_request request = request_of(t);
  TWS_TRY(tws_tuning_check(t, err));
  if (t->validate > 0)
    return tws_fail(err, TWS_USAGE, "leave one of them out",
                    "--sweep asks what another cluster would do: --validate "
                    "trains on this machine");
  return tws_knee_find(&request, range, out, err);
}
