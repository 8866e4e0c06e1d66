/* Times of jobs with several axes of ranks: random plans of pipelines with tensor, sequence and data parallel groups,
 * made from the pipeline schedules. Three step times agree: the longest path over one plan of each stage, the
 * simulation of these plans, and that of all ranks; the bubble and the exposed communication of the axes add up to the
 * exposed time. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/hand_plan.h"
#include "base/random.h"
#include "plan/builder.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_program.h"
#include "sim/sim.h"
#include "tests/sim_module.h"
#include "tests/suite.h"

enum { MOST = 128, STAGES = 8 };

static const tws_sim_api *sim;
static tws_profile *profile;
static tws_cluster cluster;
static tws_machine machine;
static tws_error err;

static void load(void) {
  static const char text[] =
      "{\"schema\": \"twinspeed-profile-1\", \"name\": \"test\", \"provenance\": \"made up\", \"backend\": \"cuda\", "
      "\"memory_bytes\": 1e12, \"bandwidth\": 4e9, \"peak_flops\": {\"fp32\": 1e12}, \"matmul\": {\"efficiency\": 1}, "
      "\"attention\": {\"efficiency\": 1}}"; /* a kernel fills one float per nanosecond */
  tws_json *json;
  ck_assert_msg(tws_json_parse(text, sizeof text - 1, "profile", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_profile_from_json(json, &profile, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  machine = (tws_machine){&cluster, profile};
  sim = load_simulator();
}

static void unload(void) {
  tws_profile_destroy(profile);
}

static void same(double value, double expected, double tolerance) {
  ck_assert_msg(fabs(value - expected) <= tolerance * fabs(expected) + 1e-15, "%.15g is not %.15g", value, expected);
}

/* ---- random jobs ---- */

static int draw(uint64_t seed, uint64_t index, int count) {
  return (int)(tws_random_uniform(seed, 7, index) * count);
}

typedef struct job {
  tws_topology topology;
  uint64_t seed;
  tws_pipeline_shape shape;
  int world, exchanges; /* exchanges 1: tensor parallel collectives are on a stream of their own */
} job;

static const tws_axis all_axes[] = {TWS_AXIS_PIPE, TWS_AXIS_DATA, TWS_AXIS_SEQUENCE, TWS_AXIS_MODEL};

/* Draws a job. Dimensions, devices of a node and NICs are powers of two, so that ranks which differ only in their
 * position behave alike. */
static void make_job(job *j, uint64_t seed) {
  tws_axis names[4];
  int dims[4], axes = 0, order[4] = {0, 1, 2, 3};
  for (int i = 3; i > 0; i--) {
    int k = draw(seed, (uint64_t)i, i + 1), kept = order[i];
    order[i] = order[k];
    order[k] = kept;
  }
  j->world = 1;
  for (int i = 0; i < 4; i++) {
    static const int most[] = {4, 2, 2, 3};
    int dim = 1 << draw(seed, 10 + (uint64_t)i, most[order[i]]);
    if (dim == 1 && order[i] != 1) continue;
    names[axes] = all_axes[order[i]];
    dims[axes++] = dim;
    j->world *= dim;
  }
  j->seed = seed;
  ck_assert(tws_topology_make(&j->topology, axes, names, dims, &err) == TWS_OK);
  const int stages = tws_topology_size(&j->topology, TWS_AXES_PIPE);
  j->shape = (tws_pipeline_shape){
      .kind = (tws_pipeline_kind)draw(seed, 20, TWS_PIPELINE_KIND_COUNT), .stages = stages, .virtual_stages = 1};
  j->shape.micro_batches = j->shape.stages * (1 + draw(seed, 21, 3));
  if (j->shape.stages == 1) j->shape.kind = TWS_PIPELINE_1F1B;
  if (j->shape.kind == TWS_PIPELINE_INTERLEAVED) j->shape.virtual_stages = 1 + draw(seed, 22, 2);
  j->exchanges = draw(seed, 23, 2);
  int devices = 1 << draw(seed, 24, 4);
  if (devices > j->world) devices = j->world;
  cluster = (tws_cluster){.name = "test",
                          .nodes = j->world / devices,
                          .devices_per_node = devices,
                          .intra = {100e9, 2e-6},
                          .inter = {20e9, 5e-6},
                          .nics_per_node = 1 << draw(seed, 25, 3)};
  if (cluster.nics_per_node > devices) cluster.nics_per_node = devices;
}

typedef struct writer {
  tws_builder b;
  const job *j;
  int stage;
  uint64_t index; /* number of the next draw; all ranks of a stage draw the same */
  uint32_t a, c, d, gradients, group[4];
} writer;

enum { ELEMENTS = 1 << 20 };

static uint64_t size_of(writer *w) {
  return 64 * (uint64_t)(1 + draw(w->j->seed * 64 + (uint64_t)w->stage, 100 + w->index++, 8000));
}

static void compute(writer *w, const tws_operand *operands, int count) {
  tws_work work;
  memset(&work, 0, sizeof work);
  work.kind = TWS_OP_COMPUTE;
  work.code = TWS_KERNEL_FILL;
  work.d[0] = (int64_t)size_of(w);
  tws_builder_compute(&w->b, TWS_STREAM_COMPUTE, &work, operands, count);
}

static void communicate(writer *w, tws_stream stream, tws_collective collective, int axis, uint32_t from, uint32_t to) {
  if (w->group[axis] == TWS_NONE) return;
  uint64_t count = size_of(w);
  tws_operand operands[] = {tws_read(from, 0, count), tws_write(to, 0, count)};
  if (from == to) operands[0] = tws_update(from, 0, count);
  tws_builder_collective(&w->b, stream, collective, w->group[axis], TWS_F32, count * 4, 1, 0, operands,
                         from == to ? 1 : 2);
}

static void act(writer *w, uint32_t in, uint32_t out) {
  tws_operand first[] = {tws_all(&w->b, w->a, TWS_WRITE), {0}};
  if (in) first[1] = tws_all(&w->b, in - 1, TWS_READ);
  compute(w, first, in ? 2 : 1);
  communicate(w, w->j->exchanges ? TWS_STREAM_EXCHANGE : TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, 3, w->a, w->a);
  tws_operand beside[] = {tws_all(&w->b, w->c, TWS_READ_WRITE)};
  compute(w, beside, 1);
  communicate(w, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, 2, w->c, w->d);
  tws_operand last[] = {tws_all(&w->b, w->a, TWS_READ), tws_all(&w->b, w->gradients, TWS_READ_WRITE), {0}};
  if (out) last[2] = tws_all(&w->b, out - 1, TWS_WRITE);
  compute(w, last, out ? 3 : 2);
}

static void make_group(writer *w, int axis) {
  tws_plan *plan = w->b.plan;
  const tws_axes set = 1u << all_axes[axis];
  const int size = tws_topology_size(&plan->topology, set);
  w->group[axis] = TWS_NONE;
  if (size < 2) return;
  int *ranks = tws_arena_alloc(plan->arena, (size_t)size, sizeof *ranks);
  tws_topology_group(&plan->topology, plan->rank, set, ranks);
  w->group[axis] = plan->group_count;
  plan->groups[plan->group_count++] =
      (tws_group){set, size, tws_topology_index(&plan->topology, plan->rank, set), ranks};
}

static void run_program(writer *w) {
  const tws_pipeline_shape *shape = &w->j->shape;
  tws_plan *plan = w->b.plan;
  tws_pipeline_program program;
  ck_assert_msg(tws_pipeline_program_make(shape, w->stage, plan->arena, &program, &err) == TWS_OK, "%s", err.message);
  uint32_t *buffers = calloc((size_t)shape->micro_batches * (size_t)shape->virtual_stages * 4 + 1, sizeof *buffers);
  for (uint32_t i = 0; i < program.count; i++) {
    const tws_pipeline_event *e = &program.events[i];
    int forward = e->action.kind == TWS_ACTION_FORWARD;
    size_t at = ((size_t)e->action.chunk * (size_t)shape->micro_batches + e->action.micro_batch) * 4;
    uint32_t *in = &buffers[at + (forward ? 0 : 2)], *out = in + 1; /* buffer + 1 */
    w->b.micro_batch = e->action.micro_batch;
    w->b.phase = forward ? TWS_PHASE_FORWARD : TWS_PHASE_BACKWARD;
    if (e->kind == TWS_EVENT_ACTION) {
      int weight = e->action.kind == TWS_ACTION_BACKWARD_WEIGHT;
      if (!weight) *out = 1 + tws_builder_buffer(&w->b, "out", TWS_CATEGORY_ACTIVATION, TWS_F32, 40000, 0);
      act(w, weight ? 0 : *in, weight ? 0 : *out);
      continue;
    }
    if (e->kind == TWS_EVENT_RECV)
      *in = 1 + tws_builder_buffer(&w->b, "in", TWS_CATEGORY_ACTIVATION, TWS_F32, 40000, 0);
    int peer = tws_pipeline_grid_stage(&plan->topology, plan->rank, e->peer), send = e->kind == TWS_EVENT_SEND;
    tws_builder_message(&w->b, send ? TWS_OP_SEND : TWS_OP_RECV, (uint32_t)peer,
                        tws_all(&w->b, (send ? *out : *in) - 1, send ? TWS_READ : TWS_WRITE));
  }
  free(buffers);
}

static tws_plan *make_plan(const job *j, int rank) {
  tws_plan *plan = tws_calloc(1, sizeof *plan);
  plan->arena = tws_arena_create();
  plan->topology = j->topology;
  plan->rank = rank;
  plan->world = j->world;
  plan->threads = 1;
  plan->groups = tws_arena_alloc(plan->arena, 4, sizeof *plan->groups);
  writer w = {.b = {.plan = plan, .err = &err, .module = TWS_NONE},
              .j = j,
              .stage = tws_topology_index(&j->topology, rank, TWS_AXES_PIPE)};
  plan->stage = w.stage;
  for (int axis = 0; axis < 4; axis++) make_group(&w, axis);
  w.a = tws_builder_buffer(&w.b, "a", TWS_CATEGORY_ACTIVATION, TWS_F32, ELEMENTS, 1);
  w.c = tws_builder_buffer(&w.b, "c", TWS_CATEGORY_ACTIVATION, TWS_F32, ELEMENTS, 1);
  w.d = tws_builder_buffer(&w.b, "d", TWS_CATEGORY_ACTIVATION, TWS_F32, ELEMENTS, 1);
  w.gradients = tws_builder_buffer(&w.b, "gradients", TWS_CATEGORY_GRADIENT, TWS_F32, ELEMENTS, 1);
  run_program(&w);
  w.b.phase = TWS_PHASE_STEP;
  communicate(&w, TWS_STREAM_REDUCE, TWS_COLLECTIVE_ALL_REDUCE, 1, w.gradients, w.gradients);
  act(&w, 0, 0);
  w.stage = 0; /* one size for all stages */
  w.index = 1 << 20;
  communicate(&w, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, 0, w.gradients, w.gradients);
  w.stage = plan->stage;
  communicate(&w, TWS_STREAM_GATHER, TWS_COLLECTIVE_ALL_REDUCE, 1, w.a, w.a);
  ck_assert_msg(tws_builder_finish(&w.b) == TWS_OK, "%s", err.message);
  tws_builder_free(&w.b);
  return plan;
}

/* Checks that a rank's waits add up to all of the time in which it does not compute, and that collectives on the
 * compute stream are fully exposed. */
static void check_account(const job *j, const tws_path_result *path) {
  double sum = path->bubble_s;
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) {
    ck_assert_double_ge(path->axis_exposed_s[axis], -1e-12);
    ck_assert_double_le(path->axis_exposed_s[axis], path->axis_busy_s[axis] * (1 + 1e-9) + 1e-15);
    sum += path->axis_exposed_s[axis];
  }
  same(sum, path->exposed_s, 1e-9);
  same(path->axis_exposed_s[TWS_AXIS_SEQUENCE], path->axis_busy_s[TWS_AXIS_SEQUENCE], 1e-9);
  if (!j->exchanges) same(path->axis_exposed_s[TWS_AXIS_MODEL], path->axis_busy_s[TWS_AXIS_MODEL], 1e-9);
  for (int i = 0; i < 4; i++)
    if (tws_topology_size(&j->topology, 1u << all_axes[i]) == 1)
      ck_assert_double_eq(path->axis_busy_s[tws_report_of_group(&(tws_group){.axes = 1u << all_axes[i]})], 0);
}

static void check_same_account(const tws_path_result *a, const tws_path_result *b) {
  same(a->step_s, b->step_s, 1e-12);
  same(a->bubble_s, b->bubble_s, 1e-9);
  same(a->exposed_s, b->exposed_s, 1e-9);
  for (int i = 0; i < TWS_REPORT_COUNT; i++) {
    same(a->axis_exposed_s[i], b->axis_exposed_s[i], 1e-9);
    same(a->axis_busy_s[i], b->axis_busy_s[i], 1e-9);
  }
  for (int i = 0; i < TWS_STREAM_COUNT; i++) same(a->stream_busy_s[i], b->stream_busy_s[i], 1e-9);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) same(a->phase_s[i], b->phase_s[i], 1e-9);
}

static double simulate(const tws_plan *const *plans, int count, int world, tws_fidelity fidelity,
                       tws_path_result *paths, double *bubble) {
  const tws_sim_request request = {.plans = plans,
                                   .plan_count = count,
                                   .fold = count < world,
                                   .machine = machine,
                                   .fidelity = fidelity,
                                   .paths = paths};
  tws_sim_result result;
  ck_assert_msg(sim->simulate(&request, &result, &err) == TWS_OK, "%s", err.message);
  if (bubble) *bubble = result.bubble;
  return result.step_s;
}

static void check_job(uint64_t seed) {
  static tws_path_result paths[STAGES], simulated[MOST];
  const tws_plan *all[MOST], *stages[STAGES];
  double step_s, bubble, folded_bubble;
  job j;
  make_job(&j, seed);
  for (int rank = 0; rank < j.world; rank++) all[rank] = make_plan(&j, rank);
  ck_assert_msg(tws_plans_verify(all, j.world, &err) == TWS_OK, "job %d: %s", (int)seed, err.message);
  int count = j.shape.stages;
  for (int s = 0; s < count; s++) stages[s] = all[tws_pipeline_grid_stage(&j.topology, 0, s)];
  ck_assert_msg(tws_job_path(stages, count, &machine, paths, &step_s, &err) == TWS_OK, "%s", err.message);
  for (int s = 0; s < count; s++) check_account(&j, &paths[s]);
  if (count == 1) {
    tws_path_result alone;
    ck_assert(tws_longest_path(stages[0], &machine, &alone, &err) == TWS_OK);
    check_same_account(&alone, &paths[0]);
    ck_assert_double_eq(alone.bubble_s, 0);
  }
  if (sim) {
    same(simulate(stages, count, j.world, TWS_FIDELITY_ANALYTIC, simulated, &folded_bubble), step_s, 1e-12);
    for (int s = 0; s < count; s++) check_same_account(&simulated[s], &paths[s]);
    same(simulate(all, j.world, j.world, TWS_FIDELITY_ANALYTIC, simulated, &bubble), step_s, 1e-12);
    ck_assert_double_eq_tol(bubble, folded_bubble, 1e-9);
    double flow = simulate(stages, count, j.world, TWS_FIDELITY_FLOW, simulated, NULL);
    for (int s = 0; s < count; s++) check_account(&j, &simulated[s]);
    same(simulate(all, j.world, j.world, TWS_FIDELITY_FLOW, NULL, NULL), flow, 1e-9);
    if (cluster.nodes == 1) ck_assert_double_ge(flow, step_s * (1 - 1e-6)); /* sharing links never helps */
  }
  for (int rank = 0; rank < j.world; rank++) tws_plan_destroy((tws_plan *)all[rank]);
}

START_TEST(folded_ranks_paths_and_all_ranks_agree) {
  for (uint64_t seed = 1; seed <= 150; seed++) check_job(seed);
}
END_TEST

/* ---- plans by hand: what a rank waits for ---- */

enum { OPS = 8 };

typedef struct hand {
  tws_plan plan;
  tws_op ops[OPS];
  uint32_t deps[OPS];
  tws_work works[OPS];
  tws_group groups[3];
  int ranks[3][MOST];
} hand;

static void begin(hand *h, int rank, int axes, const tws_axis *names, const int *dims) {
  memset(h, 0, sizeof *h);
  h->plan = (tws_plan){.ops = h->ops, .deps = h->deps, .works = h->works, .groups = h->groups, .rank = rank};
  h->plan.threads = 1;
  ck_assert(tws_topology_make(&h->plan.topology, axes, names, dims, &err) == TWS_OK);
  h->plan.world = tws_topology_world(&h->plan.topology);
  for (int i = 0; i < axes; i++) {
    const tws_axes set = 1u << names[i];
    h->groups[i] = (tws_group){set, dims[i], tws_topology_index(&h->plan.topology, rank, set), h->ranks[i]};
    tws_topology_group(&h->plan.topology, rank, set, h->ranks[i]);
  }
  h->plan.group_count = (uint32_t)axes;
}

/* Adds an operation and returns its number. after: an operation that it depends on, or -1. */
static int add(hand *h, tws_op_kind kind, tws_stream stream, tws_work work, int peer, int after) {
  tws_op *op = &h->ops[h->plan.op_count];
  work.kind = (uint8_t)kind;
  h->works[h->plan.work_count] = work;
  *op = (tws_op){.kind = (uint8_t)kind, .stream = (uint8_t)stream, .work = h->plan.work_count++, .module = TWS_NONE};
  op->dep_first = h->plan.dep_count;
  op->peer = (uint32_t)peer;
  h->plan.op_count++;
  number_last_op(&h->plan);
  if (after >= 0) last_op_waits(&h->plan, (uint32_t)after);
  return (int)h->plan.op_count - 1;
}

static int computing(hand *h, double seconds, int after) {
  tws_work work = {.code = TWS_KERNEL_FILL, .d = {llround(seconds * 1e9)}};
  return add(h, TWS_OP_COMPUTE, TWS_STREAM_COMPUTE, work, 0, after);
}

static int reducing(hand *h, tws_stream stream, uint32_t group, double bytes, int after, double *seconds) {
  tws_work work = {.code = TWS_COLLECTIVE_ALL_REDUCE, .group = (uint16_t)group, .segments = 1, .d = {(int64_t)bytes}};
  int op = add(h, TWS_OP_COLLECTIVE, stream, work, 0, after);
  *seconds = tws_plan_work_seconds(&h->plan, h->ops[op].work, &machine, 0);
  return op;
}

static int message(hand *h, tws_op_kind kind, int peer, double bytes, int after) {
  return add(h, kind, TWS_STREAM_P2P, (tws_work){.d = {(int64_t)bytes}}, peer, after);
}

static void set_cluster(int nodes, int devices, int nics) {
  cluster = (tws_cluster){.name = "test",
                          .nodes = nodes,
                          .devices_per_node = devices,
                          .intra = {100e9, 2e-6},
                          .inter = {10e9, 5e-6},
                          .nics_per_node = nics};
}

/* Computes the account by the longest path and checks that the simulator's is the same. */
static void account(const hand *hands, int count, int world, tws_path_result *paths) {
  static tws_path_result simulated[MOST];
  const tws_plan *plans[MOST];
  double step_s;
  for (int i = 0; i < count; i++) plans[i] = &hands[i].plan;
  ck_assert_msg(tws_job_path(plans, count, &machine, paths, &step_s, &err) == TWS_OK, "%s", err.message);
  if (sim) {
    same(simulate(plans, count, world, TWS_FIDELITY_ANALYTIC, simulated, NULL), step_s, 1e-12);
    for (int i = 0; i < count; i++) check_same_account(&simulated[i], &paths[i]);
  }
}

START_TEST(waits_are_cut_along_the_chain) {
  const tws_axis names[] = {TWS_AXIS_DATA, TWS_AXIS_SEQUENCE, TWS_AXIS_MODEL};
  hand h;
  tws_path_result path;
  double gather, exchange, reduce;
  set_cluster(1, 8, 8);
  begin(&h, 0, 3, names, (const int[]){2, 2, 2});
  int first = computing(&h, 10e-6, -1);
  int gathered = reducing(&h, TWS_STREAM_GATHER, 0, 4e6, -1, &gather);            /* from the start on */
  int exchanged = reducing(&h, TWS_STREAM_EXCHANGE, 2, 2e6, gathered, &exchange); /* then this */
  int second = computing(&h, 20e-6, exchanged);
  reducing(&h, TWS_STREAM_REDUCE, 0, 8e6, second, &reduce); /* hidden while the compute stream is busy */
  double issued;
  reducing(&h, TWS_STREAM_COMPUTE, 1, 1e6, first, &issued); /* on the compute stream: exposed */
  computing(&h, 5e-6, -1);
  account(&h, 1, 8, &path);
  ck_assert_double_gt(gather, 20e-6);
  ck_assert_double_gt(reduce, issued + 10e-6);
  same(path.axis_exposed_s[TWS_AXIS_MODEL], exchange, 1e-9);
  same(path.axis_exposed_s[TWS_AXIS_SEQUENCE], issued, 1e-9);
  same(path.axis_exposed_s[TWS_AXIS_DATA], gather - 10e-6 + reduce - issued - 5e-6, 1e-9);
  same(path.axis_busy_s[TWS_AXIS_DATA], gather + reduce, 1e-9);
  same(path.step_s, gather + exchange + 20e-6 + reduce, 1e-9);
  ck_assert_double_eq(path.bubble_s, 0);
}
END_TEST

START_TEST(waiting_for_a_stage_is_bubble) {
  const tws_axis names[] = {TWS_AXIS_PIPE};
  hand h[2];
  tws_path_result paths[2];
  set_cluster(1, 2, 2);
  for (int s = 0; s < 2; s++) begin(&h[s], s, 1, names, (const int[]){2});
  message(&h[0], TWS_OP_SEND, 1, 1e6, computing(&h[0], 10e-6, -1));
  int back = message(&h[0], TWS_OP_RECV, 1, 1e6, -1);
  computing(&h[0], 1e-6, back);
  int in = message(&h[1], TWS_OP_RECV, 0, 1e6, -1);
  message(&h[1], TWS_OP_SEND, 0, 1e6, computing(&h[1], 5e-6, in));
  const double sent = 2e-6 + 1e6 / 100e9;
  account(h, 2, 2, paths);
  same(paths[0].step_s, 16e-6 + 2 * sent, 1e-9);
  same(paths[0].bubble_s, 5e-6, 1e-9);
  same(paths[0].axis_exposed_s[TWS_AXIS_PIPE], 2 * sent, 1e-9);
  same(paths[1].bubble_s, 11e-6, 1e-9);
  same(paths[1].axis_exposed_s[TWS_AXIS_PIPE], 2 * sent, 1e-9);
  same(paths[1].axis_busy_s[TWS_AXIS_PIPE], 2 * sent, 1e-9);
}
END_TEST

/* A stage's tensor ranks send at the same time: where they share a NIC, their messages are serialized. */
START_TEST(messages_share_nics) {
  const tws_axis names[] = {TWS_AXIS_PIPE, TWS_AXIS_MODEL};
  const int dims[] = {2, 4};
  static hand all[8];
  for (int nics = 1; nics <= 4; nics *= 2) {
    tws_path_result paths[2];
    set_cluster(2, 4, nics);
    for (int rank = 0; rank < 8; rank++) {
      begin(&all[rank], rank, 2, names, dims);
      message(&all[rank], rank < 4 ? TWS_OP_SEND : TWS_OP_RECV, (rank + 4) % 8, 1e6, -1);
    }
    hand stages[2] = {all[0], all[4]};
    for (int s = 0; s < 2; s++) { /* the copied plans point to the copies' operations */
      stages[s].plan.ops = stages[s].ops;
      stages[s].plan.works = stages[s].works;
    }
    account(stages, 2, 8, paths);
    same(paths[0].step_s, 5e-6 + 1e6 * 4 / nics / 10e9, 1e-9);
    if (!sim) continue;
    const tws_plan *plans[8], *two[] = {&stages[0].plan, &stages[1].plan};
    for (int rank = 0; rank < 8; rank++) plans[rank] = &all[rank].plan;
    for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_MESSAGE; fidelity++) {
      same(simulate(plans, 8, 8, (tws_fidelity)fidelity, NULL, NULL), paths[0].step_s, 1e-9);
      same(simulate(two, 2, 8, (tws_fidelity)fidelity, NULL, NULL), paths[0].step_s, 1e-9);
    }
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("axes");
  TCase *c = tcase_create("axes");
  tcase_add_unchecked_fixture(c, load, unload);
  tcase_set_timeout(c, 240);
  tcase_add_test(c, folded_ranks_paths_and_all_ranks_agree);
  tcase_add_test(c, waits_are_cut_along_the_chain);
  tcase_add_test(c, waiting_for_a_stage_is_bubble);
  tcase_add_test(c, messages_share_nics);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
