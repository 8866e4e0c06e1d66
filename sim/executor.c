#include "sim/executor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

const char *tws_sim_describe(const tws_sim *sim, uint32_t rank, uint32_t op, char *buffer, int size) {
  const tws_plan *plan = sim->ranks[rank].plan;
  char label[160];
  snprintf(buffer, (size_t)size, "rank %d, operation %u (%s)", plan->rank, op,
           tws_op_label(plan, op, label, sizeof label));
  return buffer;
}

double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work) {
  double *cost = &sim->ranks[rank].cost[work];
  if (*cost >= 0) return *cost;
  const double seconds = tws_plan_work_seconds(sim->ranks[rank].plan, work, &sim->request->machine, sim->stretch);
  if (!(seconds >= 0) || seconds > 1e9) {
    tws_sim_fail(sim, TWS_INTERNAL, "rank %d: work %u costs %g seconds", sim->ranks[rank].plan->rank, work, seconds);
    return 0;
  }
  return *cost = seconds;
}

void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag) {
  if (tws_engine_timer(date_s, tag) != 0) tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

/* ---- advancing ---- */

static void make_ready(tws_sim *sim, uint32_t rank, uint32_t op, double when_s) {
  tws_sim_op *state = &sim->ranks[rank].ops[op];
  if (when_s > state->ready_s) state->ready_s = when_s;
  if (--state->missing > 0) return;
  if (tws_reserve(&sim->queue, &sim->queue_capacity, sim->queue_count + 1, sizeof *sim->queue) != 0) {
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
    return;
  }
  sim->queue[sim->queue_count++] = (uint64_t)rank << 32 | op;
}

static void record(tws_sim *sim, uint32_t rank, uint32_t op, double end_s) {
  tws_sim_rank *r = &sim->ranks[rank];
  const tws_op *o = &r->plan->ops[op];
  char label[160];
  const tws_event event = {.name = tws_timeline_name(sim->timeline, tws_op_label(r->plan, op, label, sizeof label)),
                           .rank = (uint16_t)r->plan->rank,
                           .stream = o->stream,
                           .phase = o->phase,
                           .op = op,
                           .micro_batch = o->micro_batch,
                           .start_s = r->ops[op].ready_s,
                           .end_s = end_s};
  if (event.name == UINT32_MAX || tws_timeline_add(sim->timeline, &event) != 0)
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while recording a timeline");
}

void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s) {
  tws_sim_rank *r = &sim->ranks[rank];
  tws_sim_op *state = &r->ops[op];
  const tws_op *o = &r->plan->ops[op];
  if (end_s < state->ready_s) end_s = state->ready_s; /* the engine's clock may be one rounding behind */
  if ((o->kind == TWS_OP_COMPUTE || o->kind == TWS_OP_COPY) && (o->stream == TWS_STREAM_COMPUTE || sim->serial))
    r->compute_s += end_s - state->ready_s;
  else
    r->other_s += end_s - state->ready_s;
  if (end_s > sim->end_s) sim->end_s = end_s;
  if (sim->timeline) record(sim, rank, op, end_s);
  state->end_s = end_s;
  state->missing = TWS_SIM_DONE;
  r->left--;
  if (state->next != TWS_NONE) make_ready(sim, rank, state->next, end_s);
  for (uint32_t i = state->child_first; i < state[1].child_first; i++) make_ready(sim, rank, r->children[i], end_s);
}

static void begin(tws_sim *sim, uint32_t rank, uint32_t op) {
  tws_sim_rank *r = &sim->ranks[rank];
  tws_sim_op *state = &r->ops[op];
  if (state->meeting != TWS_NONE) {
    tws_sim_arrive(sim, rank, op);
    return;
  }
  const double seconds = tws_sim_cost(sim, rank, r->plan->ops[op].work);
  if (seconds <= 0) {
    tws_sim_finish(sim, rank, op, state->ready_s);
  } else if (sim->share_cores) {
    const double threads = r->plan->threads > 1 ? r->plan->threads : 1, part = threads / sim->cores;
    const double alone = part > 1 ? seconds * part : seconds, share = part < 1 ? part : 1;
    if (tws_engine_execute(tws_platform_node(&sim->platform, r->plan->rank), alone, share,
                           tws_sim_tag(TWS_EVENT_EXECUTION, rank, op)) != 0)
      tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
  } else {
    state->end_s = state->ready_s + seconds;
    tws_sim_timer(sim, state->end_s, tws_sim_tag(TWS_EVENT_TIMER, rank, op));
  }
}

static void begin_ready(tws_sim *sim) {
  while (sim->queue_head < sim->queue_count && sim->failed == TWS_OK) {
    const uint64_t next = sim->queue[sim->queue_head++];
    begin(sim, (uint32_t)(next >> 32), (uint32_t)next);
  }
  sim->queue_head = sim->queue_count = 0;
}

static void on_event(void *user, uint64_t tag) {
  tws_sim *sim = user;
  const tws_sim_event event = (tws_sim_event)(tag >> 60);
  const uint32_t a = (uint32_t)(tag >> 32) & 0xfffffffu, b = (uint32_t)tag;
  sim->events++;
  if (sim->failed != TWS_OK) return;
  if (event == TWS_EVENT_TIMER)
    tws_sim_finish(sim, a, b, sim->ranks[a].ops[b].end_s);
  else if (event == TWS_EVENT_EXECUTION)
    tws_sim_finish(sim, a, b, tws_engine_now());
  else
    tws_sim_meeting_event(sim, event, a, b);
  begin_ready(sim);
}

/* ---- setting up ---- */

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory while simulating");
}

static tws_code check_plan(const tws_plan *plan, tws_error *err) {
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    int good = op->stream < TWS_STREAM_COUNT && op->kind < TWS_OP_KIND_COUNT && op->phase < TWS_PHASE_COUNT &&
               op->work < plan->work_count && op->dep_first + (uint64_t)op->dep_count <= plan->dep_count;
    for (uint32_t k = 0; k < op->dep_count && good; k++) good = plan->deps[op->dep_first + k] < i;
    if (!good) return tws_fail(err, TWS_INTERNAL, NULL, "rank %d: operation %u is malformed", plan->rank, i);
  }
  return TWS_OK;
}

static tws_code prepare_rank(tws_sim *sim, tws_sim_rank *r, const tws_plan *plan, tws_error *err) {
  uint32_t last[TWS_STREAM_COUNT];
  TWS_TRY(check_plan(plan, err));
  r->plan = plan;
  r->left = plan->op_count;
  r->ops = tws_arena_alloc(sim->arena, plan->op_count + 1u, sizeof *r->ops);
  r->children = tws_arena_alloc(sim->arena, plan->dep_count + 1u, sizeof *r->children);
  r->cost = tws_arena_alloc(sim->arena, plan->work_count + 1u, sizeof *r->cost);
  if (!r->ops || !r->children || !r->cost) return no_memory(err);
  for (uint32_t i = 0; i < plan->work_count; i++) r->cost[i] = NAN;
  for (int i = 0; i < TWS_STREAM_COUNT; i++) last[i] = TWS_NONE;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    uint32_t *before = &last[sim->serial ? 0 : op->stream];
    r->ops[i].next = TWS_NONE;
    r->ops[i].missing = op->dep_count + (*before != TWS_NONE ? 1u : 0u);
    if (*before != TWS_NONE) r->ops[*before].next = i;
    *before = i;
    for (uint32_t k = 0; k < op->dep_count; k++) r->ops[plan->deps[op->dep_first + k]].child_first++;
  }
  /* counts become ends, then, filled from the back, starts */
  for (uint32_t i = 1; i <= plan->op_count; i++) r->ops[i].child_first += r->ops[i - 1].child_first;
  for (uint32_t i = plan->op_count; i-- > 0;) {
    const tws_op *op = &plan->ops[i];
    for (uint32_t k = 0; k < op->dep_count; k++) r->children[--r->ops[plan->deps[op->dep_first + k]].child_first] = i;
  }
  return TWS_OK;
}

static tws_code check_request(const tws_sim_request *request, tws_error *err) {
  if (request->plan_count < 1 || !request->plans || !request->machine.cluster || !request->machine.profile)
    return tws_fail(err, TWS_INVALID, NULL, "nothing to simulate");
  const int world = request->plans[0]->world;
  if (world < 1 || world > 65536)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "%d ranks are more than the simulator takes (65536)", world);
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

/* Whose flows folded ranks stand for is known when they fill the axes on which they differ. */
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
  sim->rank_count = request->plan_count;
  sim->ranks = tws_arena_alloc(sim->arena, (size_t)sim->rank_count, sizeof *sim->ranks);
  sim->rank_of = tws_arena_alloc(sim->arena, (size_t)sim->world, sizeof *sim->rank_of);
  if (!sim->ranks || !sim->rank_of) return no_memory(err);
  for (int i = 0; i < sim->world; i++) sim->rank_of[i] = -1;
  for (int i = 0; i < sim->rank_count; i++) {
    const tws_plan *plan = request->plans[i];
    if (plan->world != sim->world || plan->rank < 0 || plan->rank >= sim->world || sim->rank_of[plan->rank] >= 0)
      return tws_fail(err, TWS_INVALID, NULL, "plan %d is of rank %d of %d, which does not fit the others", i,
                      plan->rank, plan->world);
    sim->rank_of[plan->rank] = i;
    TWS_TRY(prepare_rank(sim, &sim->ranks[i], plan, err));
  }
  return request->fold ? find_classes(sim, err) : TWS_OK;
}

static tws_code prepare(tws_sim *sim, tws_error *err) {
  const tws_sim_request *request = sim->request;
  const tws_machine *machine = &request->machine;
  TWS_TRY(check_request(request, err));
  sim->world = request->plans[0]->world;
  sim->serial = tws_profile_serial_streams(machine->profile);
  sim->cores = tws_profile_cores(machine->profile);
  if (sim->cores > 0) { /* a host: do its ranks want more cores than it has? */
    const int nodes = machine->cluster->nodes > 0 ? machine->cluster->nodes : 1;
    const int per_node = (sim->world + nodes - 1) / nodes;
    const int threads = request->plans[0]->threads > 0 ? request->plans[0]->threads : 1;
    const int crowded = (int64_t)per_node * threads > sim->cores;
    sim->share_cores = crowded && !request->fold;
    sim->stretch = crowded && request->fold;
  }
  TWS_TRY(tws_platform_make(&sim->platform, machine, sim->world, request->fidelity != TWS_FIDELITY_ANALYTIC,
                            sim->share_cores, err));
  TWS_TRY(prepare_ranks(sim, err));
  TWS_TRY(tws_sim_meetings(sim, err));
  if (sim->timeline) {
    sim->timeline->stream_names = stream_names;
    sim->timeline->stream_count = TWS_STREAM_COUNT;
    sim->timeline->phase_names = phase_names;
    sim->timeline->phase_count = TWS_PHASE_COUNT;
  }
  return TWS_OK;
}

/* ---- running ---- */

/* The simulation ended with operations left: name the first that waits, and for whom. */
static tws_code report_stuck(const tws_sim *sim, tws_error *err) {
  char here[256], there[256];
  for (int rank = 0; rank < sim->rank_count; rank++) {
    const tws_sim_rank *r = &sim->ranks[rank];
    for (uint32_t op = 0; op < r->plan->op_count; op++) {
      if (r->ops[op].missing != 0 || r->ops[op].meeting == TWS_NONE) continue;
      const tws_sim_meeting *meeting = &sim->meetings[r->ops[op].meeting];
      for (uint32_t i = 0; i < meeting->needed; i++) {
        const tws_sim_member *member = &sim->members[meeting->member_first + i];
        const tws_sim_rank *late = &sim->ranks[member->rank];
        if (late->ops[member->op].missing == 0) continue;
        uint32_t at = 0;
        while (at < late->plan->op_count && late->ops[at].missing == TWS_SIM_DONE) at++;
        return tws_fail(err, TWS_INTERNAL, "the plans of these ranks wait for each other", "deadlock: %s waits for %s",
                        tws_sim_describe(sim, (uint32_t)rank, op, here, sizeof here),
                        tws_sim_describe(sim, member->rank, at, there, sizeof there));
      }
    }
  }
  return tws_fail(err, TWS_INTERNAL, NULL,
                  "the simulation ended with operations left, and none waits for another rank");
}

static tws_code execute(tws_sim *sim, tws_error *err) {
  if (tws_engine_begin(on_event, sim) != 0) return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", tws_engine_error());
  for (int rank = 0; rank < sim->rank_count; rank++) { /* all first operations wait for one more, which is this */
    const tws_sim_rank *r = &sim->ranks[rank];
    for (uint32_t op = 0; op < r->plan->op_count; op++) {
      if (r->ops[op].missing > 0) continue;
      r->ops[op].missing = 1;
      make_ready(sim, (uint32_t)rank, op, 0);
    }
  }
  begin_ready(sim);
  if (tws_engine_run() != 0) tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
  if (sim->failed != TWS_OK) return sim->failed;
  uint64_t left = 0;
  for (int rank = 0; rank < sim->rank_count; rank++) left += sim->ranks[rank].left;
  return left ? report_stuck(sim, err) : TWS_OK;
}

static tws_code read_rank(const tws_sim *sim, const tws_sim_rank *r, tws_op_times *times, tws_path_result *path,
                          tws_error *err) {
  for (uint32_t op = 0; op < r->plan->op_count; op++) {
    const tws_sim_op *state = &r->ops[op];
    const double met_s = state->meeting == TWS_NONE ? state->ready_s : sim->meetings[state->meeting].start_s;
    times[op] = (tws_op_times){state->ready_s, met_s, state->end_s};
  }
  return tws_path_read(r->plan, times, sim->serial, sim->end_s, path, err);
}

static tws_code read_result(const tws_sim *sim, tws_sim_result *result, tws_error *err) {
  uint32_t most = 0;
  tws_code code = TWS_OK;
  for (int i = 0; i < sim->rank_count; i++)
    if (sim->ranks[i].plan->op_count > most) most = sim->ranks[i].plan->op_count;
  tws_op_times *times = tws_calloc(most + 1u, sizeof *times);
  if (!times) return no_memory(err);
  result->step_s = sim->end_s;
  result->rank_compute_s = sim->ranks[0].compute_s;
  result->rank_communication_s = sim->ranks[0].other_s;
  result->events = sim->events;
  for (int i = 0; i < sim->rank_count && code == TWS_OK; i++) {
    tws_path_result other, *path = i == 0 ? &result->path : sim->request->paths ? &sim->request->paths[i] : &other;
    code = read_rank(sim, &sim->ranks[i], times, path, err);
    if (code == TWS_OK && sim->end_s > 0) result->bubble += path->bubble_s / sim->end_s / sim->rank_count;
  }
  result->exposed_s = result->path.exposed_s;
  if (code == TWS_OK && sim->request->paths) {
    sim->request->paths[0] = result->path;
    sim->request->paths[0].bottleneck = sim->request->paths[0].text;
  }
  tws_free(times);
  return code;
}

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err) {
  tws_sim sim = {.request = request, .timeline = request->timeline, .err = err};
  memset(result, 0, sizeof *result);
  sim.arena = tws_arena_create();
  tws_code code = sim.arena ? prepare(&sim, err) : no_memory(err);
  if (code == TWS_OK) code = execute(&sim, err);
  if (code == TWS_OK) code = read_result(&sim, result, err);
  for (size_t i = 0; i < sim.party_count; i++) tws_free(sim.parties[i].meetings);
  for (size_t i = 0; i < sim.meeting_count; i++) tws_free(sim.meetings[i].messages);
  tws_free(sim.parties);
  tws_free(sim.meetings);
  tws_free(sim.members);
  tws_free(sim.queue);
  tws_arena_destroy(sim.arena);
  return code;
}
