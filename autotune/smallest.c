#include "autotune/smallest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/worker_pool.h"
#include "autotune/evaluate.h"
#include "base/number.h"
#include "base/process.h"
#include "base/units.h"
#include "job/cluster_name.h"
#include "job/measured.h"

enum { MOST_COUNTS = 1024, ARGUMENTS = 96, LARGEST_MICRO = 16 };

/* The numbers of devices into which the job can be divided, in ascending order. */
typedef struct counts {
  int item[MOST_COUNTS], count;
} counts;

typedef struct kind_search {
  const tws_smallest_request *request;
  tws_job *job; /* open, on this kind of cluster */
  counts counts;
  tws_smallest_answer *answer;
  int workers;     /* processes of each search of the tuner */
  double least;    /* lower bound of the number of devices, from the states */
  double at_least; /* lower bound of the number of devices, from a step that was too slow */
} kind_search;

/* ---- the tuner's request ---- */

static void fill_given(const tws_job_spec *spec, const tws_config *config, tws_tune_space *space) {
  if (spec->stage >= 0) space->stages[space->stage_count++] = (int)spec->stage;
  if (spec->recompute) space->recompute[space->recompute_count++] = config->recompute;
  if (spec->micro_batch > 0) space->micro[space->micro_count++] = spec->micro_batch;
  space->max_micro = LARGEST_MICRO;
  space->global_batch = config->train_batch_size;
  if (!space->global_batch && spec->accumulation > 0)
    space->accumulation[space->accumulation_count++] = spec->accumulation;
  if (space->micro_count && space->micro[0] > space->max_micro) space->max_micro = space->micro[0];
}

/* Copies the axes that were given by a flag or with more than one rank in the configuration; the degree of sequence
 * parallelism is always that of the configuration. */
static void keep_axes(const tws_job_spec *spec, const tws_config *config, tws_tune_space *space) {
  const tws_variant given = tws_variant_given(config);
  space->sequence[space->sequence_count++] = given.sequence;
  if (spec->pipeline_stages || given.pipeline > 1) space->pipeline[space->pipeline_count++] = given.pipeline;
  if (spec->tensor_ranks || given.tensor > 1) {
    space->tensor[space->tensor_count++] = given.tensor;
    space->sequence_parallel[space->sequence_parallel_count++] = given.sequence_parallel;
  }
  if (spec->expert_ranks || given.expert > 1) space->expert[space->expert_count++] = given.expert;
  space->schedules[space->schedule_count++] =
      given.pipeline > 1 || spec->schedule ? given.schedule : (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
}

/* Builds the tuner's request. If the job states no axes and the states exceed a device, numbers of pipeline stages and
 * of tensor ranks are searched, with the default schedule; sequence parallelism is not searched. (The subcommand tune
 * searches more for a given machine.) */
static tws_tune_request ask_tuner(const kind_search *s, int devices) {
  tws_tune_request ask = {.job = s->job, .seed = 1, .workers = s->workers};
  tws_tune_space *space = &ask.space;
  fill_given(s->request->spec, s->job->config, space);
  space->ranks[0] = devices;
  space->ranks_count = 1;
  space->axes = s->least > 1;
  if (space->axes) keep_axes(s->request->spec, s->job->config, space);
  ask.memory_bytes = tws_job_limit_with_margin(s->job);
  return ask;
}

/* Restricts the space to the settings with the least memory. */
static void narrow_to_least(const tws_config *config, tws_tune_space *space) {
  if (!space->recompute_count) space->recompute[space->recompute_count++] = TWS_RECOMPUTE_FULL;
  if (!space->micro_count && !tws_config_is_elastic(config)) space->micro[space->micro_count++] = 1;
}

/* Sets the cluster to the number of whole nodes that contain `devices`, which may fill a fraction of one node. */
static void use_devices(kind_search *s, int devices) {
  tws_cluster *cluster = &s->job->cluster;
  cluster->nodes = (devices + cluster->devices_per_node - 1) / cluster->devices_per_node;
}

static int fast_enough(const kind_search *s, const tws_tune_candidate *c) {
  const double tokens = c->samples * (double)tws_job_sequence(s->job) / c->estimate.step_s;
  if (s->request->within_s > 0 && c->estimate.step_s > s->request->within_s) return 0;
  return !(s->request->tokens_per_s > 0) || tokens >= s->request->tokens_per_s;
}

static int is_timed(const kind_search *s) {
  return s->request->within_s > 0 || s->request->tokens_per_s > 0;
}

/* Records why this number of devices fails. A step that is too slow gives a lower bound of the number of devices, since
 * no device computes faster than its peak. */
static void note_failure(kind_search *s, const tws_tune_result *result, int devices) {
  tws_smallest_answer *a = s->answer;
  const tws_tune_candidate *best = &result->candidates[0];
  const double tokens = best->samples * (double)tws_job_sequence(s->job) / best->estimate.step_s;
  if (!result->fits) {
    snprintf(a->reason, sizeof a->reason, "%s",
             result->rejection_count ? result->rejections[0].reason : "nothing can be planned");
    return;
  }
  char step[32];
  snprintf(a->reason, sizeof a->reason, "%d fit, and are too slow: %s a step, %.0f tokens/s", devices,
           tws_format_seconds(best->estimate.step_s, step, sizeof step), tokens);
  double times = s->request->within_s > 0 ? best->estimate.step_s / s->request->within_s : 0;
  if (s->request->tokens_per_s > 0) times = fmax(times, s->request->tokens_per_s / tokens);
  s->at_least = fmax(s->at_least, devices * times * best->estimate.mfu);
}

/* Sets *may_fit to 0 if the model states of the first stage alone, which a plan of one micro-batch lists, exceed the
 * memory. If there are too few devices, this rejects most settings quickly. */
static tws_code states_fit(const tws_tune_request *ask, tws_tune_candidate *c, int *may_fit, tws_error *err) {
  tws_bound_bytes state;
  tws_job *job;
  int refused;
  *may_fit = 0;
  TWS_TRY(tws_tune_derive(ask, c, &job, &refused, err));
  if (refused) return TWS_OK;
  const tws_plan_request plan = tws_job_request(job, 0);
  *may_fit = tws_bound_state(&plan, &state, NULL) != TWS_OK || /* on failure 1: the whole job's plan gives the error */
             tws_job_fit_within(job, &state.end, ask->memory_bytes).fits;
  tws_job_destroy(job);
  return TWS_OK;
}

/* Sets *does to 1 if any setting fits. Plans one setting after another until one fits. */
static tws_code find_fit(const tws_tune_request *ask, int *does, tws_error *err) {
  tws_variant *points = NULL;
  int count = 0;
  TWS_TRY(tws_tune_enumerate(ask, &points, &count, err));
  tws_code code = TWS_OK;
  for (int i = 0; i < count && code == TWS_OK && !*does; i++) {
    tws_tune_candidate c = {.variant = points[i]};
    tws_variant_name(&c.variant, c.name, sizeof c.name);
    int may_fit;
    code = states_fit(ask, &c, &may_fit, err);
    if (code != TWS_OK || !may_fit) continue;
    code = tws_tune_estimate(ask, &c, err);
    *does = code == TWS_OK && c.verdict == TWS_TUNE_FITS;
  }
  tws_free(points);
  return code;
}

/* Searches with this number of devices, and sets *does to 1 if they suffice (the job fits, fast enough), else to 0.
 * With `settle` all settings are searched and the best is kept; else, without a time limit, only the settings with the
 * least memory. */
static tws_code try_devices(kind_search *s, int devices, int settle, int *does, tws_error *err) {
  tws_tune_result *result;
  use_devices(s, devices);
  tws_tune_request ask = ask_tuner(s, devices);
  if (!settle && !is_timed(s)) narrow_to_least(s->job->config, &ask.space);
  *does = 0;
  s->answer->tried++;
  if (devices > s->answer->most) s->answer->most = devices;
  if (!settle && !is_timed(s)) return find_fit(&ask, does, err);
  ask.list_up_to = -1; /* only the fastest setting is needed, unless a step has a time limit */
  ask.trials = is_timed(s) ? 0 : 1;
  TWS_TRY(tws_tune(&ask, &result, err));
  /* all candidates are examined, not only the first, which has the highest throughput: if the batch is free, one with
   * less throughput may have a shorter step */
  for (int i = 0; i < result->fits && !*does; i++) {
    *does = fast_enough(s, &result->candidates[i]);
    if (*does) s->answer->best = result->candidates[i];
  }
  if (!*does) note_failure(s, result, devices);
  tws_tune_result_destroy(result);
  return TWS_OK;
}

/* ---- one kind of cluster ---- */

static int can_be_divided(kind_search *s, int devices) {
  use_devices(s, devices);
  tws_tune_request ask = ask_tuner(s, devices);
  narrow_to_least(s->job->config, &ask.space);
  return tws_tune_has_points(&ask);
}

/* Returns 1 for a number of nodes that is tried first (a rung): all up to 16, then eight per doubling, since batches
 * and layers are often divisible by such numbers. */
static int is_rung(int nodes) {
  while (nodes >= 16 && nodes % 2 == 0) nodes /= 2;
  return nodes < 16;
}

/* Lists fractions of a node that divide it, then rungs of whole nodes, beginning with the lower bound that the model
 * states give. */
static void list_counts(kind_search *s, int most_nodes) {
  tws_cluster *cluster = &s->job->cluster;
  const int own = cluster->devices_per_node;
  s->counts.count = 0;
  for (int n = 1, step; n <= most_nodes * own && s->counts.count < MOST_COUNTS; n += step) {
    step = n < own ? 1 : own;
    if (n < own ? own % n : !is_rung(n / own)) continue;
    if (n >= s->least && can_be_divided(s, n)) s->counts.item[s->counts.count++] = n;
  }
}

/* Sets *devices to the first number of the list that suffices, or to 0. A number that fails only because its step is
 * too slow raises the lower bound. */
static tws_code first_that_does(kind_search *s, const counts *list, int *devices, tws_error *err) {
  int does = 0;
  *devices = 0;
  for (int i = 0; i < list->count && !does; i++) {
    if (list->item[i] < s->at_least) continue;
    TWS_TRY(try_devices(s, list->item[i], 0, &does, err));
    if (does) *devices = list->item[i];
  }
  return TWS_OK;
}

/* Sets *devices to the smallest number of devices that suffices, or to 0: tries the rungs first, then all numbers
 * between the first rung that suffices and the rung before it. */
static tws_code smallest_count(kind_search *s, int most_nodes, int *devices, tws_error *err) {
  const int own = s->job->cluster.devices_per_node;
  counts *between = tws_calloc(1, sizeof *between);
  if (!between) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  list_counts(s, most_nodes);
  tws_code code = first_that_does(s, &s->counts, devices, err);
  const int found = *devices;
  /* Only numbers of whole nodes are refined, since all fractions of a node have been tried first. */
  int below = found > own ? found / own : 1;
  while (--below > 0 && !is_rung(below)) {
  }
  for (int nodes = below + 1; code == TWS_OK && nodes * own < found; nodes++)
    if (can_be_divided(s, nodes * own)) between->item[between->count++] = nodes * own;
  if (code == TWS_OK && between->count) code = first_that_does(s, between, devices, err);
  if (!*devices) *devices = found;
  tws_free(between);
  return code;
}

static void cluster_word(const kind_search *s, char *word, size_t size) {
  const size_t length = strlen(s->answer->cluster);
  const int file = strchr(s->answer->cluster, '/') || (length > 5 && !strcmp(s->answer->cluster + length - 5, ".json"));
  if (file || s->answer->nodes == 1)
    snprintf(word, size, "%s", s->answer->cluster);
  else
    snprintf(word, size, "%s:%d", s->answer->cluster, s->answer->nodes);
}

/* Writes to the answer the command-line arguments with which another subcommand works on the same job. */
static tws_code write_arguments(kind_search *s, tws_error *err) {
  const char *argv[ARGUMENTS];
  char cluster[300];
  int argc = 0;
  tws_text line = {0};
  tws_variant_text text;
  cluster_word(s, cluster, sizeof cluster);
  tws_job_spec spec = tws_variant_spec(s->request->spec, &s->answer->best.variant, &text);
  spec.cluster = cluster;
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? tws_job_spec_arguments(&spec, arena, argv, ARGUMENTS, &argc, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; code == TWS_OK && i < argc; i++) {
    if (i) tws_text_add(&line, " ");
    tws_process_quote(&line, argv[i]);
  }
  if (line.failed && code == TWS_OK) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && line.length < sizeof s->answer->arguments)
    snprintf(s->answer->arguments, sizeof s->answer->arguments, "%s", line.data ? line.data : "");
  tws_text_free(&line);
  tws_arena_destroy(arena);
  return code;
}

static tws_code settle_answer(kind_search *s, int devices, tws_error *err) {
  tws_smallest_answer *a = s->answer;
  int does;
  TWS_TRY(try_devices(s, devices, 1, &does, err));
  if (!does) return TWS_OK;
  a->found = 1;
  a->nodes = s->job->cluster.nodes;
  a->evidence = tws_evidence_of_variant(s->job, &a->best.variant, a->best.estimate.step_s);
  a->reason[0] = '\0';
  a->tokens_per_s = a->best.samples * (double)tws_job_sequence(s->job) / a->best.estimate.step_s;
  return write_arguments(s, err);
}

static tws_code search_kind(kind_search *s, int most_nodes, tws_error *err) {
  tws_smallest_answer *a = s->answer;
  int devices = 0;
  use_devices(s, 1);
  s->least = tws_tune_least_devices(&(tws_tune_request){.job = s->job});
  snprintf(a->device, sizeof a->device, "%.63s", tws_profile_name(s->job->profile));
  TWS_TRY(smallest_count(s, most_nodes, &devices, err));
  if (!s->counts.count)
    snprintf(a->reason, sizeof a->reason, "no number of devices up to %d holds its states and divides its batch",
             most_nodes * s->job->cluster.devices_per_node);
  /* searches with the largest number of devices, to record why it fails */
  if (!devices && s->counts.count && !is_timed(s)) {
    int does;
    return try_devices(s, s->counts.item[s->counts.count - 1], 1, &does, err);
  }
  return devices ? settle_answer(s, devices, err) : TWS_OK;
}

/* ---- all kinds of clusters ---- */

/* Removes the suffix ":N" from the name of a cluster and returns N, the maximum number of nodes; 0: the name has
 * none. */
static int nodes_given(char *name) {
  char *colon = strchr(name, ':');
  if (!colon || strchr(name, '/')) return 0;
  int nodes = 0; /* text after the number is ignored */
  const char *rest;
  *colon = '\0';
  tws_text_int(colon + 1, &rest, 0, INT32_MAX, &nodes);
  return nodes;
}

static tws_code search_named(const tws_smallest_request *request, const char *name, int workers,
                             tws_smallest_answer *answer, tws_error *err) {
  tws_job_spec spec = *request->spec;
  kind_search *s = tws_calloc(1, sizeof *s);
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  *s = (kind_search){.request = request, .answer = answer, .workers = workers};
  *answer = (tws_smallest_answer){0};
  snprintf(answer->cluster, sizeof answer->cluster, "%.255s", name);
  spec.cluster = name;
  tws_code code = tws_measured_open(&spec, &s->job, err);
  if (code == TWS_OK) {
    const int named = nodes_given(answer->cluster), own = s->job->cluster.devices_per_node;
    const int file = !named && s->job->cluster.nodes > 1;
    /* 1: the size is fixed; lone_device: the profile states no links between devices */
    const int fixed = named || file || s->job->cluster.lone_device;
    const int most = fixed ? s->job->cluster.nodes : TWS_SMALLEST_MAX_DEVICES / own;
    if (s->job->backend == TWS_BACKEND_HOST)
      code = tws_fail(err, TWS_USAGE, "name clusters of GPUs, or none for all that are built in",
                      "--fit counts GPUs, and %s has none", name);
    else
      code = search_kind(s, most, err);
  }
  tws_job_destroy(s->job);
  tws_free(s);
  return code;
}

static int by_devices(const void *left, const void *right) {
  const tws_smallest_answer *a = left, *b = right;
  if (a->found != b->found) return b->found - a->found;
  if (a->found && a->best.variant.ranks != b->best.variant.ranks)
    return a->best.variant.ranks < b->best.variant.ranks ? -1 : 1;
  if (a->found && a->tokens_per_s != b->tokens_per_s) return a->tokens_per_s > b->tokens_per_s ? -1 : 1;
  return strcmp(a->cluster, b->cluster);
}

/* Selects clusters with several GPUs per node, since single GPUs are fractions of these. Instances and boxes must be
 * named. Among clusters with equally many equal GPUs per node the first is taken: clouds rent the same hardware. */
static int list_builtin(char names[][256]) {
  tws_cluster listed[TWS_SMALLEST_KINDS];
  int count = 0;
  for (const char *const *name = tws_cluster_builtin_names(); *name && count < TWS_SMALLEST_KINDS; name++) {
    tws_cluster cluster;
    if (strcmp(*name, "host") == 0 || tws_cluster_named(*name, &cluster, NULL) != TWS_OK) continue;
    int known = cluster.box || cluster.devices_per_node < 2;
    for (int i = 0; i < count; i++)
      known |=
          listed[i].devices_per_node == cluster.devices_per_node && strcmp(listed[i].profile, cluster.profile) == 0;
    if (known) continue;
    listed[count] = cluster;
    snprintf(names[count++], 256, "%s", *name);
  }
  return count;
}

static tws_code list_names(const char *text, char names[][256], int *count, tws_error *err) {
  *count = text ? 0 : list_builtin(names);
  for (const char *at = text; at && *at; at += strspn(at, ",")) {
    const size_t length = strcspn(at, ",");
    if (*count == TWS_SMALLEST_KINDS || length > 255)
      return tws_fail(err, TWS_USAGE, NULL, "--cluster: more than %d names, or one too long", TWS_SMALLEST_KINDS);
    snprintf(names[(*count)++], 256, "%.*s", (int)length, at);
    at += length;
  }
  return *count ? TWS_OK : tws_fail(err, TWS_USAGE, NULL, "--cluster: no name");
}

static tws_code check_request(const tws_smallest_request *request, tws_error *err) {
  const tws_job_spec *spec = request->spec;
  tws_config *config;
  if (spec->ranks > 0)
    return tws_fail(err, TWS_USAGE, "leave out -n; --cluster NAME:NODES is a limit", "--fit finds the number of ranks");
  TWS_TRY(tws_job_spec_config(spec, &config, err));
  const int batch = config->train_batch_size > 0;
  tws_config_destroy(config);
  if (request->within_s > 0 && !batch)
    return tws_fail(err, TWS_USAGE, "--set train_batch_size=512, or a configuration that has it",
                    "--within: the configuration has no batch to which the limit applies");
  return TWS_OK;
}

/* The kinds of one request. Each kind is searched by one worker process from its first number of devices to its last:
 * starting new workers for every few points of a search would copy memory pages again and again, and the workers would
 * compute each other's bounds again. */
typedef struct all_kinds {
  const tws_smallest_request *request;
  char names[TWS_SMALLEST_KINDS][256];
  int count;
  int workers; /* processes of each search of the tuner; more than one if there are more cores than kinds of devices */
  tws_smallest_answer *answers;
} all_kinds;

static tws_code search_item(void *user, int item, void *answer, tws_error *err) {
  const all_kinds *all = user;
  return search_named(all->request, all->names[item], all->workers, answer, err);
}

static tws_code keep_answer(void *user, int item, const void *answer, int *stop, tws_error *err) {
  const all_kinds *all = user;
  (void)stop;
  (void)err;
  memcpy(&all->answers[item], answer, sizeof all->answers[item]);
  if (all->request->progress) tws_progress_update(all->request->progress, item + 1);
  return TWS_OK;
}

tws_code tws_smallest_find(const tws_smallest_request *request, tws_smallest_answer *answers, int *count,
                           tws_error *err) {
  all_kinds all = {.request = request, .answers = answers};
  *count = 0;
  TWS_TRY(check_request(request, err));
  TWS_TRY(list_names(request->spec->cluster, all.names, &all.count, err));
  const int cores = tws_worker_pool_size(0);
  all.workers = cores > all.count ? cores / all.count : 1;
  if (request->progress) tws_progress_begin(request->progress, "trying kinds of machines", all.count);
  const tws_worker_pool_list list = {all.count, sizeof *answers, search_item, keep_answer, &all, 0};
  double cpu_s = 0;
  const tws_code code = tws_worker_pool_process(&list, cores, &cpu_s, err);
  if (request->progress) tws_progress_end(request->progress);
  TWS_TRY(code);
  *count = all.count;
  qsort(answers, (size_t)all.count, sizeof *answers, by_devices);
  for (int i = 0; i < all.count; i++) /* the pointer was set by another process, or before the answers were sorted */
    answers[i].best.estimate.path.bottleneck = answers[i].best.estimate.path.text;
  return TWS_OK;
}

int tws_smallest_assumed(const tws_smallest_request *request, tws_assumption list[TWS_ASSUMPTIONS]) {
  tws_job_spec spec = *request->spec;
  tws_job *job;
  int kept = 0;
  spec.cluster = "dgx-a100"; /* the assumptions do not depend on the cluster, and the given name may be a list */
  if (tws_measured_open(&spec, &job, NULL) != TWS_OK) return 0;
  const int count = tws_job_assumed(job, list);
  for (int i = 0; i < count; i++)
    if (strcmp(list[i].what, "memory margin") != 0 && strcmp(list[i].what, "NICs") != 0) list[kept++] = list[i];
  tws_job_destroy(job);
  return kept;
}
