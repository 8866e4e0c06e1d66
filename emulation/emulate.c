#include <inttypes.h>
#include <math.h>

#include "base/host_memory.h"
#include "base/memory.h"
#include "base/units.h"
#include "emulation/interleave.h"
#include "emulation/state.h"
#include "estimators/monitored.h"

static const char *const span_names[] = {
#define X(name, text) text,
    TWS_SPANS(X)
#undef X
};

const char *tws_span_name(tws_span_kind kind) {
  return span_names[kind];
}

void tws_emulator_span(tws_emulator *e, tws_span_kind kind, double from_s, double to_s) {
  tws_emulation *out = e->out;
  if (!(to_s > from_s)) return;
  if (out->span_count == out->span_capacity) {
    const int capacity = out->span_capacity ? 2 * out->span_capacity : 64;
    tws_span *more = tws_realloc(out->spans, (size_t)capacity, sizeof *more);
    if (!more) return; /* without memory the span is missing from the report */
    out->spans = more;
    out->span_capacity = capacity;
  }
  out->spans[out->span_count++] = (tws_span){.kind = kind, .from_s = from_s, .to_s = to_s, .step = e->step};
}

tws_code tws_emulator_wait(tws_emulator *e, double until_s, tws_span_kind kind, tws_error *err) {
  const double from_s = e->now_s;
  e->last_s = until_s; /* writing to a disk counts as progress for the watchdog */
  const tws_code code = tws_emulator_advance(e, until_s, NULL, 0, err);
  e->now_s = code == TWS_OK ? until_s : e->failed_s;
  tws_emulator_span(e, kind, from_s, e->now_s);
  return code;
}

/* ---- the effects of operations that end ---- */

/* Records the time at which an operation of rank 0's step began or ended, if times of passes are reported. */
static void note_time(tws_emulator *e, uint32_t op, int is_end, double at_s) {
  if (!e->phases[e->program]) return;
  double *times = e->times + 2 * (size_t)op;
  times[is_end] = at_s;
  if (is_end && times[0] > at_s) times[0] = at_s; /* a collective of a single rank takes no time */
}

static double operations_take(void *user, const tws_run_member *members, uint32_t count, double start_s,
                              double seconds) {
  tws_emulator *e = user;
  const double at = e->now_s + start_s;
  for (uint32_t i = 0; i < count; i++) {
    if (members[i].rank == 0) note_time(e, members[i].op, 0, start_s);
    e->doing[members[i].rank] = members[i].op;
    e->together[i] = e->place[members[i].rank];
  }
  /* the flow model applies the events to each link itself */
  if (count > 1 && e->request->fidelity != TWS_FIDELITY_ANALYTIC) return seconds;
  if (count > 1) return tws_faults_transfer(&e->faults, e->together, (int)count, at, seconds);
  const uint64_t number = (uint64_t)e->step << 32 | members[0].op;
  return tws_faults_compute(&e->faults, e->together[0], number, at, seconds);
}

static double link_share(void *user, int rank, int network, double at_s, double *until_s) {
  tws_emulator *e = user;
  const double share = tws_faults_share(&e->faults, e->place[rank], network, e->now_s + at_s, until_s);
  *until_s -= e->now_s;
  return share;
}

static tws_code operation_ran(void *user, uint32_t rank, uint32_t op, double end_s, tws_error *err) {
  tws_emulator *e = user;
  const tws_run_member member = {.rank = rank, .op = op};
  if (rank == 0) note_time(e, op, 1, end_s);
  TWS_TRY(tws_emulator_advance(e, e->now_s + end_s, &member, 1, err));
  const double start = tws_clock_s();
  const tws_code code = e->api->run(e->ranks, e->program, rank, op, err);
  e->out->effects_s += tws_clock_s() - start;
  return code;
}

static tws_code operations_met(void *user, const tws_run_member *members, uint32_t count, double end_s,
                               tws_error *err) {
  tws_emulator *e = user;
  for (uint32_t i = 0; i < count; i++)
    if (members[i].rank == 0) note_time(e, members[i].op, 1, end_s);
  TWS_TRY(tws_emulator_advance(e, e->now_s + end_s, members, count, err));
  const double start = tws_clock_s();
  const tws_code code = e->api->meet(e->ranks, e->program, members, count, err);
  e->out->effects_s += tws_clock_s() - start;
  tws_emulator_flip_received(e, e->now_s + end_s, members, count);
  return code;
}

/* ---- programs ---- */

/* Runs every operation of a program, in the order of the simulated times or in one drawn from a seed; *seconds receives
 * the virtual duration. */
static tws_code run_program(tws_emulator *e, tws_program program, tws_timeline *timeline, double *seconds,
                            tws_error *err) {
  const tws_emulation_request *r = e->request;
  const tws_sim_effects effects = {
      .ran = operation_ran, .met = operations_met, .takes = operations_take, .share = link_share, .user = e};
  tws_sim_request sim = {.plans = e->plans[program],
                         .plan_count = e->count,
                         .machine = e->job->machine,
                         .fidelity = r->fidelity,
                         .timeline = timeline,
                         .effects = &effects,
                         .times = program == TWS_PROGRAM_TRAIN ? e->times_of_rank : NULL};
  tws_sim_result result;
  e->program = program;
  e->last_s = e->now_s;
  for (int rank = 0; rank < e->count; rank++) e->doing[rank] = 0;
  /* the times stay those of the simulation; only the order in which operations are executed differs */
  if (r->order_seed >= 0) {
    const double start = tws_clock_s();
    const tws_interleaving order = {.plans = e->plans[program],
                                    .count = e->count,
                                    .api = e->api,
                                    .ranks = e->ranks,
                                    .program = program,
                                    .seed = (uint64_t)r->order_seed + ((uint64_t)e->step << 32)};
    TWS_TRY(tws_interleave(&order, err));
    e->out->effects_s += tws_clock_s() - start;
    sim.effects = NULL;
  }
  TWS_TRY(r->sim->simulate(&sim, &result, err));
  e->out->events += result.events;
  *seconds = result.step_s;
  return TWS_OK;
}

static tws_code evaluate(tws_emulator *e, tws_step_report *report, tws_error *err) {
  const double from_s = e->now_s;
  const int64_t batches = e->api->evaluation_batches(e->ranks);
  for (int64_t batch = 0; batch < batches; batch++) {
    double seconds;
    TWS_TRY(e->api->evaluation_begin(e->ranks, batch, err));
    TWS_TRY(run_program(e, TWS_PROGRAM_EVALUATE, NULL, &seconds, err));
    TWS_TRY(e->api->evaluation_end(e->ranks, err));
    e->now_s += seconds;
  }
  TWS_TRY(e->api->evaluation_loss(e->ranks, &report->eval_loss, err));
  report->evaluated = 1;
  report->eval_seconds = e->now_s - from_s;
  e->out->last_eval_loss = report->eval_loss;
  e->out->evaluate_s += e->now_s - from_s;
  tws_emulator_span(e, TWS_SPAN_EVALUATE, from_s, e->now_s);
  return TWS_OK;
}

static int evaluation_is_due(const tws_emulator *e) {
  const tws_emulation_request *r = e->request;
  return e->plans[TWS_PROGRAM_EVALUATE] && (e->step == r->steps || (r->eval_every > 0 && e->step % r->eval_every == 0));
}

/* ---- steps ---- */

/* Sets in the report the virtual time at which the step ended, and the virtual seconds for which it waited; inputs are
 * available at once. If the order of the operations is drawn, the times of operations are unknown. */
static void tell_virtually(tws_emulator *e, tws_program program, tws_step_report *report) {
  report->at_s = e->began_s + e->now_s;
  report->save_wait_s = e->out->save_s - e->save_waited_s;
  e->save_waited_s = e->out->save_s;
  tws_phase_clock *clock = e->phases[program];
  report->is_timed = clock && e->request->order_seed < 0;
  if (report->is_timed) report->phase = tws_phase_clock_read(clock, e->times);
}

/* The sizes of the timeline before a step was added. */
typedef struct traced_part {
  size_t events, counts;
} traced_part;

/* Returns the timeline if the step is traced, else NULL. */
static tws_timeline *begin_trace(tws_emulator *e, traced_part *part) {
  const tws_emulation_request *r = e->request;
  tws_timeline *timeline = r->timeline;
  const int scheduled = r->trace_schedule.active > 0;
  if (!timeline) return NULL;
  if (scheduled ? tws_trace_schedule_at(&r->trace_schedule, e->step - 1 - e->first_step) != TWS_TRACE_ACTIVE
                : e->step != r->steps)
    return NULL;
  *part = (traced_part){timeline->event_count, timeline->count_count};
  if (part->events == 0) e->out->traced_s = e->now_s;
  return timeline;
}

/* Shifts the step that was added to the time since the first traced step began, or removes it if it failed. */
static void end_trace(tws_emulator *e, const traced_part *part, int succeeded) {
  tws_timeline *timeline = e->request->timeline;
  const double at_s = e->now_s - e->out->traced_s;
  for (size_t i = part->events; i < timeline->event_count; i++) {
    timeline->events[i].start_s += at_s;
    timeline->events[i].end_s += at_s;
    timeline->events[i].step = (uint32_t)e->step;
  }
  for (size_t i = part->counts; i < timeline->count_count; i++) timeline->counts[i].at_s += at_s;
  if (succeeded) return;
  timeline->event_count = part->events;
  timeline->count_count = part->counts;
}

static tws_code emulate_step(tws_emulator *e, tws_error *err) {
  const tws_emulation_request *r = e->request;
  tws_step_report report;
  tws_program behind;
  double seconds;
  const double from_s = e->now_s;
  tws_faults_pass(&e->faults, e->now_s);
  TWS_TRY(e->api->begin(e->ranks, e->step, err));
  const tws_program program = e->api->program(e->ranks);
  const uint32_t ops = e->phases[program] ? e->plans[program][0]->op_count : 0;
  for (uint32_t i = 0; i < ops; i++) e->times[2 * (size_t)i] = INFINITY;
  traced_part part;
  tws_timeline *timeline = begin_trace(e, &part);
  tws_code code = run_program(e, program, timeline, &seconds, err);
  if (timeline) end_trace(e, &part, code == TWS_OK);
  if (code == TWS_OK) {
    e->now_s += seconds;
    code = e->api->end(e->ranks, seconds, &report, err);
  }
  if (code != TWS_OK) {
    tws_emulator_record_failure(e, 0);
    tws_emulator_span(e, TWS_SPAN_LOST, from_s, e->failed_s);
    return code;
  }
  if (e->api->applies(e->ranks, e->step, &behind)) {
    double more;
    TWS_TRY(e->api->apply_begin(e->ranks, behind, err));
    TWS_TRY(run_program(e, behind, NULL, &more, err));
    e->api->apply_end(e->ranks, more, &report);
    e->now_s += more;
    seconds += more;
  }
  const uint64_t saved = e->api->saved(e->ranks);
  if (saved > e->out->shared_bytes) e->out->shared_bytes = saved;
  tws_emulator_span(e, TWS_SPAN_STEP, from_s, e->now_s);
  TWS_TRY(tws_emulator_log_step(e, err));
  e->step_s[e->step - 1] = seconds;
  e->out->steps = e->step;
  e->out->skipped += report.skipped;
  if (!report.skipped && isnan(e->out->first_loss)) e->out->first_loss = report.loss;
  if (!report.skipped) e->out->last_loss = report.loss;
  tell_virtually(e, program, &report);
  if (evaluation_is_due(e)) TWS_TRY(evaluate(e, &report, err));
  if (r->on_step) r->on_step(r->user, &report, e->now_s);
  return tws_monitor_step(e->monitor, &report, err);
}

static tws_code step_and_save(tws_emulator *e, tws_error *err) {
  TWS_TRY(emulate_step(e, err));
  TWS_TRY(tws_emulator_poll_save(e, err));
  TWS_TRY(tws_emulator_flip_saved(e, err));
  return tws_emulator_save_is_due(e) ? tws_emulator_save(e, err) : TWS_OK;
}

static void count_bytes(tws_emulator *e) {
  e->out->predicted_bytes = e->out->allocated_bytes = 0;
  for (int r = 0; r < e->count; r++) {
    const tws_plan *programs[TWS_PROGRAM_COUNT];
    int count = 0;
    tws_ledger ledger;
    for (int p = 0; p < TWS_PROGRAM_COUNT; p++)
      if (e->plans[p]) programs[count++] = e->plans[p][r];
    if (tws_ledger_of_programs(programs, count, &ledger, NULL) != TWS_OK) continue;
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
      e->out->predicted_bytes += ledger.tier[tier].arena_bytes;
      e->out->allocated_bytes += e->api->allocated(e->ranks, r, (tws_tier)tier);
    }
  }
}

static tws_code make_room(tws_emulator *e, tws_error *err) {
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) e->plans[p] = e->api->plans(e->ranks, (tws_program)p, &e->count);
  e->together = tws_arena_alloc(e->arena, (size_t)e->count + 1, sizeof *e->together);
  e->doing = tws_arena_alloc(e->arena, (size_t)e->count + 1, sizeof *e->doing);
  return e->together && e->doing ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* Creates the phase clocks of this attempt and, in the first attempt, the monitors, which all attempts share. */
static tws_code start_telling(tws_emulator *e, const tws_train_options *options, tws_error *err) {
  const tws_config *config = e->job->config;
  uint32_t most = 0;
  for (int p = 0; p < TWS_PROGRAM_COUNT && config->wall_clock_breakdown; p++) {
    if (!e->plans[p] || !tws_program_is_step((tws_program)p) || tws_program_overlaps((tws_program)p)) continue;
    const tws_plan *plan = e->plans[p][0];
    if (plan->op_count > most) most = plan->op_count;
    TWS_TRY(tws_phase_clock_create(plan, &e->phases[p], err));
  }
  if (most > 0) e->times = tws_arena_alloc(e->arena, (size_t)most + 1, 2 * sizeof *e->times);
  if (most > 0 && !e->times) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (e->began_s > 0) return TWS_OK;
  e->first_step = e->api->first_step(e->ranks);
  const tws_monitor_run run = {.lines_path = options->watching.lines_path,
                               .prometheus_path = options->watching.prometheus_path,
                               .continues = options->resume != NULL,
                               .samples = e->api->first_step(e->ranks) * config->train_batch_size};
  e->began_s = tws_wall_s();
  return tws_monitored_open(config, &run, e->plans[TWS_PROGRAM_TRAIN][0], options->watching.plots, &e->monitor, err);
}

static tws_code run_attempt(tws_emulator *e, const tws_train_options *options, tws_error *err) {
  tws_code code = e->api->open(options, &e->ranks, err);
  if (code == TWS_OK) code = make_room(e, err);
  if (code == TWS_OK) code = start_telling(e, options, err);
  if (code == TWS_OK) code = tws_emulator_log_open(e, err);
  if (code != TWS_OK) return code;
  count_bytes(e);
  e->saved_step = e->step = e->api->first_step(e->ranks);
  for (int i = 0; i < e->out->span_count; i++) /* the spans of steps that are repeated become LOST */
    if (e->out->spans[i].kind == TWS_SPAN_STEP && e->out->spans[i].step > e->step)
      e->out->spans[i].kind = TWS_SPAN_LOST;
  tws_emulator_schedule_faults(e);
  if (e->out->restarts > 0 && options->resume) code = tws_emulator_load(e, err);
  while (code == TWS_OK && e->step < options->steps) {
    e->step++;
    code = step_and_save(e, err);
    if (code == TWS_OK) continue;
    if (e->failed_rank < 0) tws_emulator_record_failure(e, 0);
    if (code == TWS_HANG) return code; /* the message of a hang names the step already */
    return tws_fail_in(err, code, "step %" PRId64 ", after %.6g virtual seconds", e->step, e->failed_s);
  }
  if (code == TWS_OK) code = tws_emulator_log_end(e, err);
  if (code == TWS_OK) e->out->digest = e->api->digest(e->ranks);
  return code;
}

tws_code tws_emulator_attempt(tws_emulator *e, const tws_train_options *options, tws_error *err) {
  e->failed_rank = -1;
  const tws_code code = run_attempt(e, options, err);
  tws_emulator_drop_save(e);
  e->api->close(e->ranks);
  e->ranks = NULL;
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
    tws_phase_clock_destroy(e->phases[p]);
    e->phases[p] = NULL;
  }
  tws_emulator_log_close(e);
  if (code == TWS_OK || e->failed_rank < 0 || e->job->ranks == 1 || code == TWS_HANG) return code;
  if (err) err->code = TWS_RANK; /* an error in a step is an error of the rank, and ends the job */
  return TWS_RANK;
}
