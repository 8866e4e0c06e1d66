/* Runs attempts one after another, as `train --restarts` does, and reports the result. */
#include <math.h>
#include <string.h>

#include "base/failure.h"
#include "base/host_memory.h"
#include "base/memory.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "emulation/state.h"
#include "estimators/checkpoint_interval.h"
#include "job/fit.h"
#include "job/recovery.h"
#include "traces/measurements.h"

/* ---- does it fit? ---- */

/* Returns a request for a plan that can run on this machine: with the host's kernels, whatever the cluster's
 * devices. */
static tws_plan_request request_of_host(const tws_job *job, int rank) {
  tws_plan_request request = tws_job_request(job, rank);
  request.backend = TWS_BACKEND_HOST;
  return request;
}

static tws_code refuse_here(double need, double have, tws_error *err) {
  char needed[32], left[32];
  return tws_fail(err, TWS_NO, "use fewer ranks, a smaller model or micro batch; --ignore-memory tries all the same",
                  "the ranks' memory is %s together, and this machine has %s left",
                  tws_format_bytes(need, needed, sizeof needed), tws_format_bytes(have, left, sizeof left));
}

/* Returns the number of ranks that hold equal copies of a state entry: 1 if the replicas partition it among them. */
static int is_replicated(const tws_job *job, const tws_state_entry *entry) {
  const int stage = job->config->zero.stage;
  if (entry->role == TWS_ELEMENTS_STORED) return stage < 3;
  return (entry->role == TWS_ELEMENTS_OWNED || entry->role == TWS_ELEMENTS_BLOCKS) && stage < 1;
}

/* Bytes of a rank on this machine, without and with shared storage; shared memory is counted in equal shares for the
 * ranks that share it. */
typedef struct storage {
  double own, shared;
} storage;

static storage storage_of(const tws_job *job, const tws_plan *plan) {
  storage s = {0, 0};
  /* ranks whose state is equal if ZeRO does not partition it; state of experts is not examined */
  const int experts = job->config->expert_ranks > 1;
  const double replicas = experts ? 1 : tws_topology_size(&plan->topology, TWS_AXES_DATA | TWS_AXES_SEQUENCE);
  double saved = 0;
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) s.own += (double)tws_plan_bytes(plan, (tws_tier)tier);
  for (uint32_t i = 0; i < plan->state->count; i++)
    if (is_replicated(job, &plan->state->entries[i]))
      saved += (double)plan->state->entries[i].bytes * (1 - 1 / replicas);
  s.shared = s.own - saved;
  return s;
}

/* Checks that one rank fits its virtual device. */
static tws_code check_rank(const tws_job *job, int rank, storage *here, tws_error *err) {
  tws_plan *plan = NULL;
  tws_ledger ledger;
  TWS_TRY(tws_job_plan(job, rank, &plan, err));
  tws_code code = tws_ledger_read(plan, &ledger, err);
  if (code == TWS_OK) {
    const tws_fit fit = tws_job_fit(job, &ledger);
    if (!fit.fits)
      code = tws_fit_refuse(&fit, "`twinspeed estimate` shows what fills it; --ignore-memory tries all the same", err);
  }
  if (code == TWS_OK && job->backend != TWS_BACKEND_HOST) {
    const tws_plan_request of_host = request_of_host(job, rank);
    tws_plan_destroy(plan);
    plan = NULL;
    code = tws_plan_build(&of_host, &plan, err);
  }
  if (code == TWS_OK) *here = storage_of(job, plan);
  tws_plan_destroy(plan);
  return code;
}

/* Checks that each rank fits its virtual device, and all ranks this machine. *share: 1 if ranks share storage. */
static tws_code check_memory(const tws_job *job, tws_sharing sharing, int *share, tws_error *err) {
  tws_rank_set set = {0};
  storage largest = {0, 0};
  tws_code code = tws_job_representatives(job, 0, &set, err);
  for (int i = 0; i < set.count && code == TWS_OK; i++) {
    storage here;
    code = check_rank(job, set.ranks[i], &here, err);
    if (code == TWS_OK && here.own > largest.own) largest = here;
  }
  tws_rank_set_free(&set);
  const double have = (double)tws_host_memory_read().available_bytes;
  *share = sharing == TWS_SHARE_ON || (sharing == TWS_SHARE_AUTO && have > 0 && largest.own * job->ranks > have / 2);
  const double need = (*share ? largest.shared : largest.own) * job->ranks;
  if (code == TWS_OK && have > 0 && need > have) return refuse_here(need, have, err);
  return code;
}

tws_code tws_sharing_parse(const char *name, tws_sharing *sharing, tws_error *err) {
  static const char *const names[] = {"auto", "on", "off"};
  for (int i = 0; i < 3; i++) {
    if (name && strcmp(name, names[i]) != 0) continue;
    *sharing = (tws_sharing)i;
    return TWS_OK;
  }
  return tws_fail(err, TWS_USAGE, "auto, on or off", "--share: unknown choice \"%s\"", name);
}

/* ---- where ranks are ---- */

/* Assigns ranks to the places of the available nodes, in order. */
static tws_code place_ranks(tws_emulator *e, const tws_job *job, tws_error *err) {
  e->count = job->ranks;
  e->place = tws_arena_alloc(e->arena, (size_t)job->ranks + 1, sizeof *e->place);
  if (!e->place) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int r = 0, at = 0; r < job->ranks; r++, at++) {
    if (!e->by_node) {
      while (at < e->slots && e->down_until[at] > e->now_s) at++;
      e->place[r] = (tws_rank_slot){.slot = at, .node = 0};
      continue;
    }
    const int number = tws_mapping_node(&job->mapping, r);
    int node = -1;
    for (int seen = -1; seen < number; seen += e->down_until[node] <= e->now_s) node++;
    e->place[r] = (tws_rank_slot){.slot = node * e->slots + r % job->mapping.slots, .node = node};
  }
  return TWS_OK;
}

static tws_code prepare(tws_emulator *e, const tws_job *job, tws_error *err) {
  const int64_t steps = e->request->steps;
  e->by_node = job->cluster.nodes > 1;
  e->nodes = job->cluster.nodes;
  e->slots = job->mapping.slots;
  e->arena = tws_arena_create();
  if (e->arena) e->down_until = tws_arena_alloc(e->arena, (size_t)e->nodes * (size_t)e->slots + 1, sizeof(double));
  if (e->arena) e->step_s = tws_arena_alloc(e->arena, (size_t)steps + 1, sizeof *e->step_s);
  if (!e->arena || !e->down_until || !e->step_s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  TWS_TRY(tws_faults_open(e->request->scenario, e->nodes, e->slots, e->arena, &e->faults, err));
  return place_ranks(e, job, err);
}

/* ---- restart after a failure ---- */

/* Returns the job that continues after a failure has been detected, or NULL if the job does not continue. */
static tws_job *job_left(tws_emulator *e, const tws_job *first, tws_code code, int64_t left, tws_error *err) {
  const tws_emulation_request *r = e->request;
  tws_job *job = NULL;
  int64_t ranks;
  if (!tws_recovery_continues(code, left, e->job->ranks, r->save) || !r->spec) return NULL;
  tws_job_spec spec = *r->spec;
  const int places = tws_emulator_places_alive(e, &spec.nodes);
  spec.threads = first->backend == TWS_BACKEND_HOST ? first->threads : spec.threads;
  if (spec.nodes < 1) return NULL;
  if (tws_recovery_reshard(&spec, places < first->ranks ? places : first->ranks, &ranks, &job, err) != TWS_OK)
    return NULL;
  return job;
}

/* Chooses the state that the next attempt starts from: the newest complete checkpoint of this job, or else the state
 * that the first attempt started from. */
static tws_code choose_point(const tws_emulator *e, int64_t since, tws_recovery_point *point,
                             tws_train_options *options, tws_error *err) {
  const tws_emulation_request *r = e->request;
  const int same = r->resume && tws_folder_same(r->save, r->resume);
  TWS_TRY(tws_recovery_find(r->save, since, same ? r->tag : NULL, point, err));
  if (*point->damage.message) tws_log_write(r->log, TWS_LOG_WARNING, "%s", point->damage.message);
  if (!*point->tag)
    tws_log_write(r->log, TWS_LOG_WARNING, "from %s: no checkpoint was saved yet",
                  r->resume ? "where it began" : "the beginning");
  options->resume = *point->tag ? r->save : r->resume;
  options->tag = *point->tag ? point->tag : r->tag;
  options->init_from = *point->tag && !point->has_base ? NULL : r->init_from;
  return TWS_OK;
}

/* Advances the clock from a detected failure until the ranks have restarted. After a further death in the meantime, the
 * restart begins again. */
static tws_code start_again(tws_emulator *e, tws_error *err) {
  const double start_s = e->request->start_s;
  if (!(start_s > 0)) return TWS_OK;
  const double from_s = e->now_s;
  const tws_code code = tws_emulator_wait(e, e->now_s + start_s, TWS_SPAN_RESTART, err);
  e->out->restart_s += e->now_s - from_s;
  return code;
}

static void fail_known(tws_emulator *e) {
  e->out->detect_s += e->known_s - e->failed_s;
  tws_emulator_span(e, TWS_SPAN_DETECT, e->failed_s, e->known_s);
  e->now_s = e->known_s;
  tws_emulator_process_deaths(e, e->now_s);
}

static tws_code run_attempts(tws_emulator *e, const tws_job *first, tws_error *err) {
  const tws_emulation_request *r = e->request;
  tws_train_options options = {.plan = request_of_host(first, 0),
                               .share = e->share,
                               .data = r->data,
                               .steps = r->steps,
                               .eval_data = r->eval_data,
                               .eval_every = r->eval_every,
                               .eval_steps = r->eval_steps,
                               .save = r->save,
                               .keep = r->keep,
                               .resume = r->resume,
                               .tag = r->tag,
                               .init_from = r->init_from,
                               .watching = r->watching,
                               .log = r->log};
  tws_job *own = NULL;
  tws_recovery_point point;
  const int64_t since = r->save ? tws_folder_stamp(r->save, "latest") : 0;
  e->job = first;
  tws_code code = tws_emulator_attempt(e, &options, err);
  for (int64_t left = r->restarts; code != TWS_OK && e->failed_rank >= 0; left--) {
    tws_error why = {0};
    fail_known(e);
    tws_job *job = job_left(e, first, code, left, &why);
    if (!job) break;
    tws_job_destroy(own);
    e->job = own = job;
    e->out->ranks = job->ranks;
    if (err) e->out->last_failure = *err;
    if (r->on_failure && err) r->on_failure(r->user, e->failed_s, err, job->ranks);
    if (err) *err = (tws_error){0};
    e->out->restarts++;
    e->failed_rank = -1;
    code = place_ranks(e, job, err);
    if (code == TWS_OK) code = start_again(e, err);
    if (code == TWS_OK) code = choose_point(e, since, &point, &options, err);
    if (code != TWS_OK) continue;
    options.plan = request_of_host(job, 0);
    code = tws_emulator_attempt(e, &options, err);
  }
  tws_job_destroy(own);
  return code;
}

static void report(tws_emulator *e) {
  tws_emulation *out = e->out;
  out->virtual_s = e->now_s;
  out->save_every = e->save_every;
  out->one_save_s = out->saves > 0 ? out->save_s / (double)out->saves : 0;
  for (int64_t i = 0; i < out->steps; i++) out->useful_s += e->step_s[i];
  out->lost_s = e->now_s - out->useful_s - out->save_s - out->evaluate_s - out->detect_s - out->restart_s;
  if (!(out->lost_s > 1e-9 * e->now_s)) out->lost_s = 0; /* removes the rounding error of a sum */
  out->between_failures_s = e->faults.downtime_mean_s;
  if (isinf(out->between_failures_s) && out->restarts > 0)
    out->between_failures_s = out->virtual_s / (double)out->restarts;
  int64_t count = 0; /* leaves out steps before the resumed checkpoint, which took no time of this run */
  for (int64_t i = 0; i < out->steps; i++)
    if (e->step_s[i] > 0) e->step_s[count++] = e->step_s[i];
  if (count > 0) out->median_step_s = tws_sample_median(e->step_s, (size_t)count);
}

tws_code tws_emulate(const tws_job *job, const tws_emulation_request *request, tws_emulation *out, tws_error *err) {
  tws_emulator e = {.request = request,
                    .api = request->real->virtual_ranks,
                    .out = out,
                    .failed_rank = -1,
                    .save_every = request->save_every};
  *out = (tws_emulation){.first_loss = NAN, .last_loss = NAN, .last_eval_loss = NAN, .ranks = job->ranks};
  e.share = request->sharing == TWS_SHARE_ON;
  if (!request->ignore_memory) TWS_TRY(check_memory(job, request->sharing, &e.share, err));
  if (request->timeline) {
    tws_fingerprint fingerprint;
    TWS_TRY(tws_job_fingerprint(job, &fingerprint, err));
    tws_timeline_identify(request->timeline, fingerprint.model, fingerprint.plan);
  }
  const double start = tws_clock_s();
  tws_code code = prepare(&e, job, err);
  if (code == TWS_OK) code = run_attempts(&e, job, err);
  if (e.step_s) report(&e);
  if (e.step_s) out->mark_count = tws_faults_marks(&e.faults, e.now_s, &out->marks);
  tws_arena_destroy(e.arena);
  const tws_code closed = tws_monitor_close(e.monitor, code, code == TWS_OK ? err : NULL);
  if (code == TWS_OK) code = closed;
  out->wall_s = tws_clock_s() - start;
  return code;
}

void tws_emulation_free(tws_emulation *emulation) {
  tws_free(emulation->spans);
  tws_free(emulation->marks);
  tws_comm_log_destroy(emulation->communication);
  emulation->communication = NULL;
  emulation->marks = NULL;
  emulation->mark_count = 0;
  emulation->spans = NULL;
  emulation->span_count = emulation->span_capacity = 0;
}

double tws_emulation_goodput(const tws_emulation *r) {
  return r->virtual_s > 0 ? r->useful_s / r->virtual_s : 0;
}

tws_emulation_theory tws_emulation_expected(const tws_emulation *r) {
  tws_emulation_theory theory = {NAN, NAN, NAN, NAN, NAN};
  const double m = r->between_failures_s, save_s = r->one_save_s;
  if (r->save_every < 1 || !(m > 0) || isinf(m)) return theory;
  const double each = r->restarts > 0 ? (r->detect_s + r->restart_s) / (double)r->restarts : 0;
  theory.interval_s = (double)r->save_every * r->median_step_s;
  theory.goodput = tws_interval_goodput(theory.interval_s, save_s, each, m);
  theory.young_s = tws_interval_young(save_s, m);
  theory.daly_s = tws_interval_daly(save_s, m);
  theory.daly_goodput = tws_interval_goodput(theory.daly_s, save_s, each, m);
  return theory;
}
