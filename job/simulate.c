#include "job/simulate.h"

#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "plan/fold.h"

static const char *const fidelity_names[] = {TWS_FIDELITIES};
enum { FIDELITIES = sizeof fidelity_names / sizeof *fidelity_names };

const char *tws_fidelity_name(tws_fidelity fidelity) {
  return (unsigned)fidelity < FIDELITIES ? fidelity_names[fidelity] : "?";
}

tws_code tws_fidelity_parse(const char *name, tws_fidelity *fidelity, tws_error *err) {
  *fidelity = TWS_FIDELITY_ANALYTIC;
  if (!name) return TWS_OK;
  for (int i = 0; i < FIDELITIES; i++) {
    *fidelity = (tws_fidelity)i;
    if (strcmp(name, fidelity_names[i]) == 0) return TWS_OK;
  }
  return tws_fail(err, TWS_USAGE, "use analytic, flow, message or simgrid", "--fidelity: unknown level \"%.40s\"",
                  name);
}

int tws_job_simulates_every(const tws_job *job) {
  return job->backend == TWS_BACKEND_HOST ? TWS_SIMULATED_HOST_RANKS : 0;
}

/* ---- a step ---- */

typedef struct folding {
  const tws_job *job;
  const tws_simulation_request *request;
  tws_rank_set set;
  tws_simulation *out;
  tws_path_result *paths; /* [slot][rank] time accounts, for TWS_FOLD_SAMPLES slots */
  tws_sim_result results[TWS_FOLD_SAMPLES];
} folding;

static void free_plans(tws_simulation *s) {
  for (int i = 0; s->plans && i < s->plan_count; i++) {
    tws_plan_destroy(s->plans[i]);
    s->plans[i] = NULL;
  }
}

static tws_code choose_ranks(folding *f, tws_error *err) {
  const tws_simulation_request *request = f->request;
  TWS_TRY(tws_job_representatives(f->job, request->effects ? f->job->ranks : request->every_up_to, &f->set, err));
  const int count = f->set.count;
  if (request->most_plans > 0 && count > request->most_plans)
    return tws_fail(err, TWS_UNSUPPORTED,
                    "use fewer ranks, or without --all-ranks a division whose groups lie alike on all nodes",
                    "%d ranks are more than are simulated one by one (%d)", count, request->most_plans);
  f->out->plan_count = count;
  f->out->plans = tws_calloc((size_t)count, sizeof *f->out->plans);
  f->paths = tws_calloc(TWS_FOLD_SAMPLES * (size_t)count, sizeof *f->paths);
  if (!f->out->plans || !f->paths) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %d plans", count);
  return TWS_OK;
}

static tws_code sample_plan(const folding *f, int rank, int64_t micro_batches, tws_plan **out, tws_error *err) {
  tws_plan_request request = tws_job_request(f->job, rank);
  const tws_pipeline_shape shape =
      tws_pipeline_shape_of(request.config, tws_job_stages(f->job), request.config->accumulation_steps);
  request.max_accumulation = micro_batches;
  request.use = tws_fold_use(&shape, micro_batches);
  return tws_plan_build(&request, out, err);
}

/* Replaces the simulated plans by plans that need as much memory as the plans of all micro-batches. */
static tws_code plan_memory(folding *f, tws_error *err) {
  for (int i = 0; i < f->set.count; i++) {
    const tws_plan_request request = tws_job_request(f->job, f->set.ranks[i]);
    tws_plan **plan = &f->out->plans[i];
    if (tws_fold_determines_memory(*plan, request.config->accumulation_steps)) continue;
    tws_plan_destroy(*plan);
    *plan = NULL;
    TWS_TRY(tws_fold_plan(&request, plan, err));
  }
  return TWS_OK;
}

/* The times of all simulated ranks, from which the communication log is made. */
typedef struct recorded_times {
  tws_arena *arena;
  double **of_rank; /* NULL: no log is requested */
} recorded_times;

static tws_code make_times(const folding *f, recorded_times *times, tws_error *err) {
  const tws_simulation *s = f->out;
  *times = (recorded_times){0};
  if (!f->request->communication) return TWS_OK;
  times->arena = tws_arena_create();
  if (times->arena) times->of_rank = tws_arena_alloc(times->arena, (size_t)s->plan_count, sizeof *times->of_rank);
  for (int i = 0; times->of_rank && i < s->plan_count; i++) {
    times->of_rank[i] = tws_arena_alloc(times->arena, 2 * ((size_t)s->plans[i]->op_count + 1), sizeof(double));
    if (!times->of_rank[i]) times->of_rank = NULL;
  }
  return times->of_rank ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
}

/* Makes the communication log of the step from the times of the simulated ranks. */
static tws_code log_communication(const folding *f, const recorded_times *times, tws_error *err) {
  tws_simulation *s = f->out;
  const double weight = (double)f->job->ranks / s->plan_count;
  if (!times->of_rank) return TWS_OK;
  tws_comm_recorder **recorders = tws_arena_alloc(times->arena, (size_t)s->plan_count, sizeof *recorders);
  const tws_comm_record **records = tws_arena_alloc(times->arena, (size_t)s->plan_count, sizeof *records);
  tws_code code = recorders && records ? tws_comm_log_create(s->plan_count, f->job->ranks, &s->communication, err)
                                       : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
  for (int i = 0; i < s->plan_count && code == TWS_OK; i++) {
    code = tws_comm_recorder_create(s->plans[i], f->request->communication, weight, 1, &recorders[i], err);
    if (code != TWS_OK) break;
    tws_comm_recorder_add(recorders[i], times->of_rank[i]);
    records[i] = &recorders[i]->record;
  }
  if (code == TWS_OK) code = tws_comm_log_merge(s->communication, records, err);
  if (code == TWS_OK) code = tws_comm_log_finish(s->communication, err);
  for (int i = 0; recorders && i < s->plan_count; i++) tws_comm_recorder_destroy(recorders[i]);
  return code;
}

static tws_code simulate_some(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample, tws_error *err) {
  folding *f = user;
  tws_simulation *s = f->out;
  uint64_t operations = 0;
  free_plans(s);
  tws_path_result *paths = f->paths + (size_t)slot * (size_t)s->plan_count;
  *sample = (tws_fold_sample){.numbers = &paths->step_s,
                              .count = offsetof(tws_path_result, bottleneck) / sizeof(double),
                              .stride = sizeof *paths / sizeof(double),
                              .first_time = offsetof(tws_path_result, passed_s) / sizeof(double),
                              .times = TWS_STREAM_COUNT,
                              .ranks = s->plan_count};
  if (f->request->progress) tws_progress_begin(f->request->progress, "planning ranks", f->set.count);
  for (int i = 0; i < f->set.count; i++) {
    if (f->request->progress) tws_progress_update(f->request->progress, i);
    TWS_TRY(sample_plan(f, f->set.ranks[i], micro_batches, &s->plans[i], err));
    TWS_TRY(tws_plans_check_length(operations += s->plans[i]->op_count, err));
    if (s->plans[i]->settled > sample->settled) sample->settled = s->plans[i]->settled;
  }
  recorded_times times;
  tws_code code = make_times(f, &times, err);
  const tws_sim_request of_plans = {.plans = (const tws_plan *const *)s->plans,
                                    .plan_count = s->plan_count,
                                    .fold = s->plan_count < f->job->ranks,
                                    .machine = f->job->machine,
                                    .fidelity = f->request->fidelity,
                                    .timeline = f->request->timeline,
                                    .effects = f->request->effects,
                                    .progress = f->request->progress,
                                    .paths = paths,
                                    .times = times.of_rank};
  if (code == TWS_OK) code = f->request->sim->simulate(&of_plans, &f->results[slot], err);
  sample->step_s = f->results[slot].step_s;
  if (code == TWS_OK) code = log_communication(f, &times, err);
  tws_arena_destroy(times.arena);
  return code;
}

/* Adds the time of the rounds of micro-batches that were not simulated. */
static void extrapolate_rounds(folding *f, const tws_folded *folded) {
  tws_simulation *s = f->out;
  const tws_sim_result *fewer = &f->results[folded->before];
  const double more = folded->more;
  s->result = f->results[folded->slot];
  s->paths = f->paths + (size_t)folded->slot * (size_t)s->plan_count;
  if (!(more > 0)) return;
  s->result.step_s += more * (s->result.step_s - fewer->step_s);
  s->result.rank_compute_s += more * (s->result.rank_compute_s - fewer->rank_compute_s);
  s->result.rank_communication_s += more * (s->result.rank_communication_s - fewer->rank_communication_s);
  s->result.exposed_s += more * (s->result.exposed_s - fewer->exposed_s);
  s->result.events += (uint64_t)(more * (double)(s->result.events - fewer->events));
  s->result.bubble = 0;
  for (int i = 0; i < s->plan_count; i++) {
    tws_path_extrapolate(&s->paths[i], &f->paths[(size_t)folded->before * (size_t)s->plan_count + (size_t)i], more);
    s->result.bubble += s->paths[i].bubble_s / s->result.step_s / s->plan_count;
  }
  s->result.path = s->paths[0];
}

static tws_code simulate_folded(folding *f, tws_error *err) {
  const int64_t wanted = f->job->config->accumulation_steps;
  const tws_pipeline_shape shape = tws_pipeline_shape_of(f->job->config, tws_job_stages(f->job), wanted);
  tws_folded folded = {.built = wanted};
  tws_fold_sample all;
  TWS_TRY(choose_ranks(f, err));
  if (tws_job_stages(f->job) > 1) TWS_TRY(tws_pipeline_check(&shape, err));
  /* a timeline, the communication log and effects need every operation of the step */
  TWS_TRY(f->request->timeline || f->request->communication || f->request->effects
              ? simulate_some(f, wanted, 0, &all, err)
              : tws_fold_find(&shape, wanted, simulate_some, f, &folded, err));
  TWS_TRY(plan_memory(f, err));
  extrapolate_rounds(f, &folded);
  return TWS_OK;
}

static tws_code simulate_program(const tws_job *job, const tws_simulation_request *request, tws_simulation *out,
                                 tws_error *err) {
  folding f = {.job = job, .request = request, .out = out};
  memset(out, 0, sizeof *out);
  if (request->timeline) {
    tws_fingerprint fingerprint;
    TWS_TRY(tws_job_fingerprint(job, &fingerprint, err));
    tws_timeline_identify(request->timeline, fingerprint.model, fingerprint.plan);
  }
  const double start = tws_clock_s();
  const tws_code code = simulate_folded(&f, err);
  out->wall_s = tws_clock_s() - start;
  out->all_paths = f.paths;
  tws_rank_set_free(&f.set);
  return code;
}

/* Scales the times of the simulated step by the share of steps that run the training program; other programs run in
 * place of the remaining steps. */
static void keep_share(double share, tws_simulation *out) {
  out->result.step_s *= share;
  out->result.rank_compute_s *= share;
  out->result.rank_communication_s *= share;
  out->result.exposed_s *= share;
  for (int i = 0; i < out->plan_count && share < 1; i++) {
    const tws_path_result own = out->paths[i];
    tws_path_add(&out->paths[i], &own, share - 1);
  }
}

/* Adds the time of a program that runs between training steps, or in place of some, divided by the number of steps from
 * one run to the next. */
static tws_code add_program(const tws_job *job, tws_program program, const tws_simulation_request *request,
                            tws_simulation *out, tws_error *err) {
  const double share = tws_program_share(job->config, program);
  tws_job other = *job;
  tws_simulation_request quiet = *request;
  tws_simulation more;
  if (share == 0) return TWS_OK;
  other.program = program;
  quiet.timeline = NULL;
  quiet.communication = NULL;
  quiet.progress = NULL;
  const tws_code code = simulate_program(&other, &quiet, &more, err);
  if (code == TWS_OK) {
    out->result.step_s += share * more.result.step_s;
    out->result.rank_compute_s += share * more.result.rank_compute_s;
    out->result.rank_communication_s += share * more.result.rank_communication_s;
    out->result.exposed_s += share * more.result.exposed_s;
    out->result.events += more.result.events;
    for (int i = 0; i < out->plan_count; i++) tws_path_add(&out->paths[i], &more.paths[i], share);
    out->result.path = out->paths[0];
    out->wall_s += more.wall_s;
  }
  tws_simulation_free(&more);
  return code;
}

tws_code tws_job_simulate(const tws_job *job, const tws_simulation_request *request, tws_simulation *out,
                          tws_error *err) {
  TWS_TRY(simulate_program(job, request, out, err));
  const int between = job->config->zenflow.on && job->program == TWS_PROGRAM_TRAIN;
  if (between) keep_share(tws_program_share(job->config, TWS_PROGRAM_TRAIN), out);
  for (int p = TWS_PROGRAM_APPLY; p < TWS_PROGRAM_COUNT && between; p++)
    TWS_TRY(add_program(job, (tws_program)p, request, out, err));
  const tws_plan_request plan = tws_job_request(job, 0);
  const double waits_s = tws_loading_s(&plan, &job->machine) - out->result.step_s;
  for (int i = 0; i < out->plan_count; i++) tws_path_load(waits_s, &out->paths[i]);
  if (waits_s > 0) {
    out->result.bubble *= out->result.step_s / (out->result.step_s + waits_s);
    out->result.step_s += waits_s;
  }
  if (out->plan_count > 0) out->result.path = out->paths[0];
  return TWS_OK;
}

void tws_simulation_free(tws_simulation *simulation) {
  free_plans(simulation);
  tws_free(simulation->plans);
  tws_free(simulation->all_paths);
  tws_comm_log_destroy(simulation->communication);
  memset(simulation, 0, sizeof *simulation);
}

tws_code tws_job_simulated_step(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity, double *step_s,
                                tws_error *err) {
  const tws_simulation_request request = {
      .sim = sim, .fidelity = fidelity, .every_up_to = tws_job_simulates_every(job)};
  tws_simulation simulation;
  tws_code code = tws_job_simulate(job, &request, &simulation, err);
  *step_s = simulation.result.step_s;
  tws_simulation_free(&simulation);
  return code;
}

tws_code tws_simulation_stages(const tws_job *job, const tws_simulation *simulation, tws_stage_estimate *stages,
                               tws_stage_balance *balance, tws_error *err) {
  for (int i = 0; i < simulation->plan_count; i++) {
    tws_stage_estimate one, *stage = &stages[simulation->plans[i]->stage];
    TWS_TRY(tws_stage_read(simulation->plans[i], &one, err));
    one.arena_bytes[TWS_TIER_DEVICE] += tws_arena_growth(simulation->plans[i], job->config->accumulation_steps);
    if (stage->path.step_s > 0 && stage->arena_bytes[TWS_TIER_DEVICE] >= one.arena_bytes[TWS_TIER_DEVICE]) continue;
    *stage = one;
    stage->path = simulation->paths[i];
  }
  *balance = tws_stage_compare(stages, tws_job_stages(job));
  balance->bubble = simulation->result.bubble; /* the bubble is the mean over all simulated ranks */
  return TWS_OK;
}
