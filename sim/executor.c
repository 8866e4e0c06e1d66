#include "sim/executor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "estimators/memory_track.h"
#include "sim/adapter.h"

#define X(name, text) text,
static const char *const stream_names[] = {TWS_STREAMS(X)};
static const char *const phase_names[] = {TWS_PHASES(X)};
#undef X

void tws_sim_fail(tws_sim *sim, tws_code code, const char *format, ...) {
  char text[640];
  va_list arguments;
  if (sim->failed != TWS_OK) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  sim->failed = tws_fail(sim->err, code, NULL, "%s", text);
}

double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work) {
  double *cost = &sim->ranks[rank].cost[work];
  if (*cost >= 0) return *cost;
  const double seconds = tws_plan_launched_seconds(sim->ranks[rank].plan, work, &sim->request->machine, sim->slowdown,
                                                   &sim->ranks[rank].launches);
  if (!(seconds >= 0) || seconds > 1e9) {
    tws_sim_fail(sim, TWS_INTERNAL, "rank %d: work %u costs %g seconds", sim->ranks[rank].plan->rank, work, seconds);
    return 0;
  }
  return *cost = seconds;
}

void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag) {
  if (tws_engine_timer(date_s, tag) != 0) tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

void tws_sim_date(tws_sim *sim, double date_s, uint64_t tag) {
  if (sim->failed == TWS_OK) sim->failed = tws_solver_date(sim->platform.solver, date_s, tag, sim->err);
}

/* ---- advancing ---- */

/* Returns the name of the algorithm that NCCL would choose for a collective, if its choice is simulated; NULL: the
 * collective has the pattern of models/collectives.def. */
static const char *algorithm_of(const tws_sim *sim, const tws_plan *plan, uint32_t op) {
  const tws_machine *machine = &sim->request->machine;
  const tws_work *work = &plan->works[plan->ops[op].work];
  if (plan->ops[op].kind != TWS_OP_COLLECTIVE) return NULL;
  const tws_group *group = &plan->groups[work->group];
  return tws_collective_algorithm(machine->cluster, machine->profile, (tws_collective)work->code, group->size,
                                  tws_mapping_ranks_on_first_node(&sim->platform.mapping, group->ranks, group->size),
                                  (double)work->d[0]);
}

static void record_end(tws_sim *sim, uint32_t rank, uint32_t op, double end_s) {
  tws_sim_rank *r = &sim->ranks[rank];
  const tws_op *o = &r->plan->ops[op];
  char label[160], detail[TWS_OP_DETAIL];
  const uint32_t name = tws_timeline_name(
      sim->timeline, tws_op_detail(r->plan, op, algorithm_of(sim, r->plan, op), detail, sizeof detail));
  const tws_event event = {.detail = name == UINT32_MAX ? 0 : name + 1,
                           .meets = tws_op_meeting(r->plan, op),
                           .name = tws_timeline_name(sim->timeline, tws_op_label(r->plan, op, label, sizeof label)),
                           .rank = (uint16_t)r->plan->rank,
                           .stream = o->stream,
                           .phase = o->phase,
                           .op = op,
                           .micro_batch = o->micro_batch,
                           .start_s = sim->run->ranks[rank].times[op].ready_s,
                           .end_s = end_s};
  if (event.name == UINT32_MAX || tws_timeline_add(sim->timeline, &event) != 0)
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while recording a timeline");
}

double tws_sim_perturbed_s(const tws_sim *sim, const tws_run_member *members, uint32_t count, double start_s,
                           double seconds) {
  const tws_sim_effects *effects = sim->request->effects;
  return effects && effects->takes ? effects->takes(effects->user, members, count, start_s, seconds) : seconds;
}

/* Calls the effect (a callback of the request) of an operation that is no rendezvous; for rendezvous
 * tws_sim_end_transfer() does so. */
static void take_effect(tws_sim *sim, uint32_t rank, uint32_t op, double end_s) {
  const tws_sim_effects *effects = sim->request->effects;
  if (!effects || sim->run->ranks[rank].rendezvous[op] != TWS_NONE || sim->failed != TWS_OK) return;
  if (effects->ran) sim->failed = effects->ran(effects->user, rank, op, end_s, sim->err);
}

void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s) {
  tws_sim_rank *r = &sim->ranks[rank];
  const tws_op *o = &r->plan->ops[op];
  const double ready_s = sim->run->ranks[rank].times[op].ready_s;
  if (end_s < ready_s) end_s = ready_s; /* the engine's clock may be early by one rounding error */
  sim->finished++;
  if ((o->kind == TWS_OP_COMPUTE || o->kind == TWS_OP_COPY) && (o->stream == TWS_STREAM_COMPUTE || sim->serial))
    r->compute_s += end_s - ready_s;
  else
    r->other_s += end_s - ready_s;
  if (end_s > sim->end_s) sim->end_s = end_s;
  if (sim->timeline) record_end(sim, rank, op, end_s);
  if (sim->request->times) {
    sim->request->times[rank][2 * (size_t)op] = ready_s;
    sim->request->times[rank][2 * (size_t)op + 1] = end_s;
  }
  take_effect(sim, rank, op, end_s);
  tws_run_end(sim->run, rank, op, end_s);
}

static void begin_operation(tws_sim *sim, uint32_t rank, uint32_t op) {
  tws_sim_rank *r = &sim->ranks[rank];
  tws_op_times *times = &sim->run->ranks[rank].times[op];
  const tws_run_member member = {.rank = rank, .op = op};
  const double seconds =
      tws_sim_perturbed_s(sim, &member, 1, times->ready_s, tws_sim_cost(sim, rank, r->plan->ops[op].work));
  if (seconds <= 0) {
    tws_sim_finish(sim, rank, op, times->ready_s);
  } else if (tws_sim_is_shared(sim, rank, op)) {
    tws_sim_begin_shared(sim, rank, op, 0);
  } else if (sim->share_cores) {
    const double threads = r->plan->threads > 1 ? r->plan->threads : 1, part = threads / sim->cores;
    const double alone = part > 1 ? seconds * part : seconds, share = part < 1 ? part : 1;
    if (tws_engine_execute(tws_mapping_node(&sim->platform.mapping, r->plan->rank), alone, share,
                           tws_sim_tag(TWS_EVENT_EXECUTION, rank, op)) != 0)
      tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
  } else {
    times->end_s = times->ready_s + seconds;
    tws_sim_timer(sim, times->end_s, tws_sim_tag(TWS_EVENT_TIMER, rank, op));
  }
}

static void begin_ready(tws_sim *sim) {
  tws_run_start start;
  while (sim->failed == TWS_OK && tws_run_next(sim->run, &start)) {
    if (start.rendezvous != TWS_NONE)
      tws_sim_start_rendezvous(sim, start.rendezvous);
    else
      begin_operation(sim, start.rank, start.op);
  }
}

/* ---- links whose bandwidth changes ---- */

/* Scales the bandwidths of links by the shares that the effects return. A NIC of several ranks, which have successive
 * numbers, gets the least of their shares. */
static void scale_links(tws_sim *sim, double at_s) {
  const tws_sim_effects *effects = sim->request->effects;
  const tws_node_mapping *m = &sim->platform.mapping;
  const double least_s = 1e-9;
  double change_s = INFINITY, least = 1;
  if (!effects || !effects->share || sim->request->fidelity == TWS_FIDELITY_ANALYTIC) return;
  for (int rank = 0; rank < sim->world; rank++)
    for (int network = 0; network < 1 + (m->nodes > 1); network++) {
      double until_s = INFINITY, share = effects->share(effects->user, rank, network, at_s, &until_s);
      if (until_s < change_s) change_s = until_s;
      if (network) {
        const int same = rank > 0 && tws_mapping_nic(m, rank) == tws_mapping_nic(m, rank - 1);
        least = share = same && least < share ? least : share;
      }
      tws_platform_scale(&sim->platform, rank, network, share, at_s);
    }
  if (change_s < at_s + least_s) change_s = at_s + least_s; /* change_s is a sum and may be early by a rounding error */
  if (tws_engine_alarm(TWS_ALARM_LINKS, change_s, tws_sim_tag(TWS_EVENT_LINKS, 0, 0)) != 0)
    tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

/* ---- events ---- */

static void take_event(tws_sim *sim, double now_s, uint64_t tag) {
  const tws_sim_event event = (tws_sim_event)(tag >> 60);
  const uint32_t a = (uint32_t)(tag >> 32) & 0xfffffffu, b = (uint32_t)tag;
  if (now_s > sim->now_s) sim->now_s = now_s;
  sim->events++;
  if (sim->request->progress && sim->events % 1024 == 0)
    tws_progress_update(sim->request->progress, (double)sim->finished);
  if (event == TWS_EVENT_TIMER || event == TWS_EVENT_EXECUTION)
    tws_sim_finish(sim, a, b, now_s);
  else if (event >= TWS_EVENT_SHARED)
    tws_sim_begin_shared(sim, a, b, 1 + (int)(event - TWS_EVENT_SHARED));
  else
    tws_sim_transfer_event(sim, event, a, b);
  begin_ready(sim);
}

/* Sets the engine's alarm to the date of the network's next event. At the end of the simulation all alarms are
 * cancelled, since the engine would advance its clock to them, and its precision decreases with time. */
static void arm_network(tws_sim *sim) {
  const int ended = sim->failed != TWS_OK || sim->finished == sim->operations;
  const double next_s = ended || !sim->platform.solver ? INFINITY : tws_solver_next(sim->platform.solver);
  if (ended) tws_engine_alarm(TWS_ALARM_LINKS, INFINITY, 0);
  if (next_s == sim->armed_s) return;
  sim->armed_s = next_s;
  if (tws_engine_alarm(TWS_ALARM_NETWORK, next_s, tws_sim_tag(TWS_EVENT_NETWORK, 0, 0)) != 0)
    tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

static void wake_network(tws_sim *sim) {
  tws_solver *solver = sim->platform.solver;
  const double until_s = sim->armed_s;
  sim->armed_s = INFINITY;
  for (double next_s; sim->failed == TWS_OK && (next_s = tws_solver_next(solver)) <= until_s;)
    take_event(sim, next_s, tws_solver_pop(solver));
}

static void on_event(void *user, uint64_t tag) {
  tws_sim *sim = user;
  const tws_sim_event event = (tws_sim_event)(tag >> 60);
  const uint32_t a = (uint32_t)(tag >> 32) & 0xfffffffu, b = (uint32_t)tag;
  if (sim->failed != TWS_OK) return;
  if (event == TWS_EVENT_NETWORK) {
    wake_network(sim);
  } else if (event == TWS_EVENT_LINKS) {
    sim->events++;
    if (sim->finished < sim->operations) scale_links(sim, tws_engine_now());
  } else {
    take_event(sim,
               event == TWS_EVENT_TIMER        ? sim->run->ranks[a].times[b].end_s
               : event == TWS_EVENT_RENDEZVOUS ? sim->transfers[a].end_s
                                               : tws_engine_now(),
               tag);
  }
  arm_network(sim);
}

/* ---- setting up ---- */

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory while simulating");
}

static tws_code check_request(const tws_sim_request *request, tws_error *err) {
  if (request->plan_count < 1 || !request->plans || !request->machine.cluster || !request->machine.profile)
    return tws_fail(err, TWS_INVALID, NULL, "nothing to simulate");
  const int world = request->plans[0]->world;
  if (world < 1 || world > 65536)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "%d ranks are more than the simulator takes (65536)", world);
  if (request->fold && request->effects)
    return tws_fail(err, TWS_INVALID, NULL, "ranks with effects of their own cannot be folded");
  if (!request->fold && request->plan_count != world)
    return tws_fail(err, TWS_INVALID, "give the plans of all ranks, or fold equivalent ones",
                    "%d plans for a job of %d ranks", request->plan_count, world);
  return TWS_OK;
}

unsigned tws_sim_axes(const tws_topology *topology, const int *ranks, int count) {
  int first[TWS_MAX_AXES], here[TWS_MAX_AXES];
  unsigned axes = 0;
  tws_topology_coordinates(topology, ranks[0], first);
  for (int i = 1; i < count; i++) {
    tws_topology_coordinates(topology, ranks[i], here);
    for (int axis = 0; axis < topology->axes; axis++) axes |= (unsigned)(here[axis] != first[axis]) << axis;
  }
  return axes;
}

/* Determines the axes along which representative ranks differ. The ranks that each of them represents are known only if
 * the set has every combination of coordinates along these axes. */
static tws_code find_classes(tws_sim *sim, tws_error *err) {
  const tws_topology *topology = &sim->ranks[0].plan->topology;
  int *ranks = tws_arena_alloc(sim->arena, (size_t)sim->rank_count, sizeof *ranks), filled = 1;
  if (!ranks) return no_memory(err);
  for (int i = 0; i < sim->rank_count; i++) ranks[i] = sim->ranks[i].plan->rank;
  sim->classes = tws_sim_axes(topology, ranks, sim->rank_count);
  for (int axis = 0; axis < topology->axes; axis++)
    if (sim->classes >> axis & 1) filled *= topology->dim[axis];
  if (filled != sim->rank_count && sim->request->fidelity != TWS_FIDELITY_ANALYTIC)
    return tws_fail(err, TWS_UNSUPPORTED,
                    "give the plans of all ranks, or one of each pipeline stage, or use analytic collectives",
                    "flows of %d folded ranks would be those of unknown others", sim->rank_count);
  return TWS_OK;
}

static tws_code prepare_ranks(tws_sim *sim, tws_error *err) {
  const tws_sim_request *request = sim->request;
  const tws_run_request order = {.plans = request->plans,
                                 .count = request->plan_count,
                                 .mode = sim->serial ? TWS_RUN_SERIAL : TWS_RUN_STREAMS,
                                 .absent = request->fold ? TWS_ABSENT_COLLECTIVE : TWS_ABSENT_NONE,
                                 .every_rendezvous = 1};
  TWS_TRY(tws_run_create(&order, &sim->run, err));
  sim->rank_count = request->plan_count;
  sim->ranks = tws_arena_alloc(sim->arena, (size_t)sim->rank_count, sizeof *sim->ranks);
  sim->patterns = tws_arena_alloc(sim->arena, sim->run->communicator_count + 1, sizeof *sim->patterns);
  sim->transfers = tws_arena_alloc(sim->arena, sim->run->rendezvous_count + 1, sizeof *sim->transfers);
  if (!sim->ranks || !sim->patterns || !sim->transfers) return no_memory(err);
  for (int i = 0; i < sim->rank_count; i++) {
    tws_sim_rank *r = &sim->ranks[i];
    r->plan = request->plans[i];
    sim->operations += r->plan->op_count;
    r->cost = tws_arena_alloc(sim->arena, r->plan->work_count + 1u, sizeof *r->cost);
    if (!r->cost) return no_memory(err);
    r->launches = tws_plan_launches(r->plan, &request->machine);
    for (uint32_t w = 0; w < r->plan->work_count; w++) r->cost[w] = NAN;
  }
  return request->fold ? find_classes(sim, err) : TWS_OK;
}

static tws_code prepare_simulation(tws_sim *sim, tws_error *err) {
  const tws_sim_request *request = sim->request;
  const tws_machine *machine = &request->machine;
  TWS_TRY(check_request(request, err));
  sim->world = request->plans[0]->world;
  sim->serial = tws_profile_serial_streams(machine->profile);
  sim->cores = tws_profile_cores(machine->profile);
  /* hosts without devices: the number of cores that a node's ranks need is compared with the number that it has */
  if (sim->cores > 0) {
    const tws_node_mapping mapping = tws_machine_mapping(machine, sim->world);
    const int per_node = tws_mapping_most_on_node(&mapping);
    const int threads = request->plans[0]->threads > 0 ? request->plans[0]->threads : 1;
    const int crowded = (int64_t)per_node * threads > sim->cores;
    sim->share_cores = crowded && !request->fold;
    sim->slowdown = crowded && request->fold;
  }
  sim->host_flows = sim->cores == 0 && !request->fold && request->fidelity != TWS_FIDELITY_ANALYTIC;
  TWS_TRY(tws_platform_make(&sim->platform, machine, sim->world, request->fidelity != TWS_FIDELITY_ANALYTIC,
                            request->fidelity == TWS_FIDELITY_SIMGRID ? TWS_SOLVER_SIMGRID : TWS_SOLVER_OWN,
                            sim->share_cores, err));
  TWS_TRY(prepare_ranks(sim, err));
  if (request->fold && tws_fidelity_has_flows(request->fidelity)) tws_sim_fold_flows(sim);
  if (sim->failed != TWS_OK) return sim->failed;
  if (sim->timeline) {
    sim->timeline->stream_names = stream_names;
    sim->timeline->stream_count = TWS_STREAM_COUNT;
    sim->timeline->phase_names = phase_names;
    sim->timeline->phase_count = TWS_PHASE_COUNT;
  }
  return TWS_OK;
}

/* ---- running ---- */

static tws_code execute_simulation(tws_sim *sim, tws_error *err) {
  if (tws_engine_begin(on_event, sim) != 0) return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", tws_engine_error());
  if (sim->request->progress)
    tws_progress_begin(sim->request->progress, "simulating operations", (double)sim->operations);
  sim->armed_s = INFINITY;
  scale_links(sim, 0);
  begin_ready(sim);
  arm_network(sim);
  if (tws_engine_run() != 0) tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
  if (sim->request->progress) tws_progress_end(sim->request->progress);
  return sim->failed != TWS_OK ? sim->failed : tws_run_check(sim->run, err);
}

/* Adds the memory in use over time to the timeline. */
static tws_code record_memory(const tws_sim *sim, tws_error *err) {
  tws_code code = TWS_OK;
  for (int i = 0; i < sim->rank_count && code == TWS_OK; i++) {
    const tws_plan *plan = sim->ranks[i].plan;
    const tws_op_times *of_ops = sim->run->ranks[i].times;
    tws_memory_change *changes = NULL;
    size_t count = 0;
    double *times = tws_calloc((size_t)plan->op_count + 1, 2 * sizeof *times);
    if (!times) return no_memory(err);
    for (uint32_t op = 0; op < plan->op_count; op++) {
      times[2 * (size_t)op] = of_ops[op].ready_s;
      times[2 * (size_t)op + 1] = of_ops[op].end_s;
    }
    code = tws_memory_track(plan, times, &changes, &count, err);
    if (code == TWS_OK && tws_memory_track_add(sim->timeline, plan->rank, changes, count, 0) != 0)
      code = no_memory(err);
    tws_free(changes);
    tws_free(times);
  }
  return code;
}

static tws_code read_result(const tws_sim *sim, tws_sim_result *result, tws_error *err) {
  result->step_s = sim->end_s;
  result->rank_compute_s = sim->ranks[0].compute_s;
  result->rank_communication_s = sim->ranks[0].other_s;
  result->events = sim->events;
  for (int i = 0; i < sim->rank_count; i++) {
    tws_path_result other, *path = i == 0 ? &result->path : sim->request->paths ? &sim->request->paths[i] : &other;
    TWS_TRY(tws_path_read(sim->ranks[i].plan, sim->run->ranks[i].times, sim->serial, sim->end_s, path, err));
    if (sim->end_s > 0) result->bubble += path->bubble_s / sim->end_s / sim->rank_count;
  }
  result->exposed_s = result->path.exposed_s;
  if (sim->request->paths) {
    sim->request->paths[0] = result->path;
    sim->request->paths[0].bottleneck = sim->request->paths[0].text;
  }
  return TWS_OK;
}

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err) {
  tws_sim sim = {.request = request, .timeline = request->timeline, .err = err};
  memset(result, 0, sizeof *result);
  sim.arena = tws_arena_create();
  tws_code code = sim.arena ? prepare_simulation(&sim, err) : no_memory(err);
  if (code == TWS_OK) code = execute_simulation(&sim, err);
  if (code == TWS_OK) code = read_result(&sim, result, err);
  if (code == TWS_OK && sim.timeline) code = record_memory(&sim, err);
  for (size_t i = 0; sim.transfers && i < sim.run->rendezvous_count; i++) tws_free(sim.transfers[i].messages);
  tws_platform_drop(&sim.platform);
  tws_run_destroy(sim.run);
  tws_arena_destroy(sim.arena);
  return code;
}
