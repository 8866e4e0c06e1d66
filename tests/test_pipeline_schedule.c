/* Pipeline schedules: instruction streams compared with golden vectors; the orders and programs of every schedule, run
 * by simple executors. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bubble.h"
#include "tests/deepspeed_instructions.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_program.h"
#include "plan/pipeline_schedule.h"
#include "tests/failing_allocator.h"
#include "tests/draw.h"
#include "tests/members.h"
#include "tests/suite.h"

/* Aborts the test with the message unless the condition holds; for inner loops: Check's own assertions write a mark at
 * every call, which would take most of the time. */
static inline void require(int holds, const char *what) {
  if (!holds) ck_abort_msg("%s", what);
}

/* ---- DeepSpeed's instruction streams ---- */

static void compare_steps(const tws_instruction_schedule *schedule, const cJSON *steps) {
  tws_error err = {0};
  ck_assert_msg(tws_instruction_check(schedule, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_instruction_steps(schedule), cJSON_GetArraySize(steps));
  int64_t t = 0;
  const cJSON *step, *expected;
  cJSON_ArrayForEach(step, steps) {
    tws_instruction actual[TWS_STEP_INSTRUCTIONS];
    int count = tws_instruction_step(schedule, t, actual), i = 0;
    ck_assert_int_eq(count, cJSON_GetArraySize(step));
    cJSON_ArrayForEach(expected, step) {
      char text[64];
      if (actual[i].buffer < 0) {
        snprintf(text, sizeof text, "%s", tws_instruction_name(actual[i].kind));
      } else {
        snprintf(text, sizeof text, "%s(%d)", tws_instruction_name(actual[i].kind), actual[i].buffer);
      }
      ck_assert_msg(strcmp(text, expected->valuestring) == 0, "stage %d of %d, %d micro-batches, step %d: %s, not %s",
                    schedule->stage, schedule->stages, schedule->micro_batches, (int)t, text, expected->valuestring);
      i++;
    }
    t++;
  }
}

START_TEST(instructions_golden) {
  tws_json *json = golden_file("pipeline_schedules.json");
  static const char *const lists[] = {"train", "inference", "dataparallel"};
  for (int kind = 0; kind < 3; kind++) {
    int cases = 0;
    const cJSON *c, *pair;
    cJSON_ArrayForEach(c, member(json->root, lists[kind])) {
      tws_instruction_schedule schedule = {.kind = (tws_instruction_schedule_kind)kind, .stages = 1};
      schedule.micro_batches = integer(c, "micro_batches");
      if (kind != TWS_SCHEDULE_DATA_PARALLEL) {
        schedule.stages = integer(c, "stages");
        schedule.stage = integer(c, "stage_id");
      }
      ck_assert_int_eq(tws_instruction_buffers(&schedule), integer(c, "num_pipe_buffers"));
      compare_steps(&schedule, member(c, "steps"));
      int64_t t = 0;
      if (kind == TWS_SCHEDULE_TRAIN) cJSON_ArrayForEach(pair, member(c, "step_to_mb")) {
          int forward;
          int64_t micro = tws_instruction_micro_batch(&schedule, t++, &forward);
          ck_assert_int_eq(micro, (int64_t)cJSON_GetArrayItem(pair, 0)->valuedouble);
          ck_assert_int_eq(forward, cJSON_IsTrue(cJSON_GetArrayItem(pair, 1)));
        }
      cases++;
    }
    ck_assert_int_eq(cases, ((int[]){153, 115, 3})[kind]);
  }
  tws_json_destroy(json);
}
END_TEST

/* The order 1F1B equals the compute order of DeepSpeed's training schedule. */
START_TEST(instructions_compute_in_1f1b_order) {
  for (uint64_t seed = 0; seed < 300; seed++) {
    int p = draw(seed, 0, 1, 12), m = draw(seed, 1, 1, 40), s = draw(seed, 2, 0, p - 1);
    tws_pipeline_shape shape = {.kind = TWS_PIPELINE_1F1B, .stages = p, .virtual_stages = 1, .micro_batches = m};
    tws_instruction_schedule schedule = {.kind = TWS_SCHEDULE_TRAIN, .stages = p, .stage = s, .micro_batches = m};
    uint32_t count = tws_pipeline_order_length(&shape), n = 0;
    tws_pipeline_action *order = calloc(count, sizeof *order);
    tws_pipeline_order(&shape, s, order);
    for (int64_t t = 0; t < tws_instruction_steps(&schedule); t++) {
      tws_instruction list[TWS_STEP_INSTRUCTIONS];
      int forward, listed = tws_instruction_step(&schedule, t, list);
      int64_t micro = tws_instruction_micro_batch(&schedule, t, &forward);
      for (int i = 0; i < listed; i++) {
        if (list[i].kind != TWS_INSTRUCTION_FORWARD_PASS && list[i].kind != TWS_INSTRUCTION_BACKWARD_PASS) continue;
        ck_assert_uint_lt(n, count);
        ck_assert_int_eq(order[n].kind, forward ? TWS_ACTION_FORWARD : TWS_ACTION_BACKWARD);
        ck_assert_int_eq(order[n].micro_batch, micro);
        n++;
      }
    }
    ck_assert_uint_eq(n, count);
    free(order);
  }
}
END_TEST

/* ---- orders ---- */

/* Executes the orders of all stages, each action as soon as the stage is free and its input is there. */
typedef struct execution {
  const tws_pipeline_shape *shape;
  int seconds[TWS_ACTION_KIND_COUNT];
  uint32_t length, passes;    /* number of actions per stage; number of (block, micro-batch) pairs */
  tws_pipeline_action *order; /* [stage][length] */
  int64_t *end;               /* [kind][block][micro-batch]: time at which the action ended; 0: it has not */
  int64_t makespan;
} execution;

static int64_t *end_of(execution *e, int kind, int block, uint32_t micro) {
  return &e->end[(size_t)kind * e->passes + (size_t)block * (size_t)e->shape->micro_batches + micro];
}

/* Returns the time at which the input of an action is ready, or -1 while it is not. */
static int64_t ready_at(execution *e, const tws_pipeline_action *a, int stage) {
  int block = tws_pipeline_block(e->shape, stage, a->chunk);
  int last = e->shape->stages * e->shape->virtual_stages - 1;
  int64_t own = *end_of(e, TWS_ACTION_FORWARD, block, a->micro_batch), input;
  if (a->kind == TWS_ACTION_FORWARD) {
    if (block == 0) return 0;
    input = *end_of(e, TWS_ACTION_FORWARD, block - 1, a->micro_batch);
  } else if (a->kind == TWS_ACTION_BACKWARD_WEIGHT) {
    input = *end_of(e, TWS_ACTION_BACKWARD_INPUT, block, a->micro_batch);
  } else {
    input = block == last ? own : *end_of(e, a->kind, block + 1, a->micro_batch);
    if (own == 0) return -1;
  }
  return input == 0 ? -1 : input;
}

static void execute(execution *e, const tws_pipeline_shape *shape, int forward, int input, int weight) {
  int split = shape->kind == TWS_PIPELINE_ZB_H1, p = shape->stages, busy = 1;
  uint32_t *next = calloc((size_t)p, sizeof *next), done = 0;
  int64_t *clock = calloc((size_t)p, sizeof *clock);
  *e = (execution){.shape = shape, .seconds = {forward, split ? 0 : input + weight, input, weight}};
  e->length = tws_pipeline_order_length(shape);
  e->passes = (uint32_t)(p * shape->virtual_stages * shape->micro_batches);
  e->order = calloc((size_t)p * e->length, sizeof *e->order);
  e->end = calloc((size_t)TWS_ACTION_KIND_COUNT * e->passes, sizeof *e->end);
  for (int s = 0; s < p; s++) tws_pipeline_order(shape, s, e->order + (size_t)s * e->length);
  while (busy) {
    busy = 0;
    for (int s = 0; s < p; s++) {
      while (next[s] < e->length) {
        const tws_pipeline_action *a = &e->order[(size_t)s * e->length + next[s]];
        require(a->chunk < shape->virtual_stages && a->micro_batch < (uint32_t)shape->micro_batches,
                "an action of nothing");
        int64_t ready = ready_at(e, a, s);
        if (ready < 0) break;
        int64_t *end = end_of(e, a->kind, tws_pipeline_block(shape, s, a->chunk), a->micro_batch);
        require(*end == 0, "the same pass twice");
        clock[s] = (ready > clock[s] ? ready : clock[s]) + e->seconds[a->kind];
        *end = clock[s];
        if (clock[s] > e->makespan) e->makespan = clock[s];
        next[s]++;
        done++;
        busy = 1;
      }
    }
  }
  ck_assert_msg(done == (uint32_t)p * e->length,
                "%s, %d stages x %d, %d micro-batches: deadlock after %u of %u actions",
                tws_pipeline_kind_name(shape->kind), p, shape->virtual_stages, shape->micro_batches, done,
                (uint32_t)p * e->length);
  /* Asserts that each kind of action that occurs was executed for every (block, micro-batch): because none ran twice,
   * exactly once. */
  for (uint32_t i = 0; i < e->passes; i++) {
    int did[TWS_ACTION_KIND_COUNT];
    for (uint32_t kind = 0; kind < TWS_ACTION_KIND_COUNT; kind++) did[kind] = e->end[kind * e->passes + i] > 0;
    require(did[0] && did[1] == !split && did[2] == split && did[3] == split, "a pass is missing");
  }
  free(next);
  free(clock);
}

static void finish(execution *e) {
  free(e->order);
  free(e->end);
}

static uint32_t most_in_flight(const execution *e, int stage) {
  uint32_t now = 0, most = 0;
  for (uint32_t i = 0; i < e->length; i++) {
    int kind = e->order[(size_t)stage * e->length + i].kind;
    if (kind == TWS_ACTION_FORWARD && ++now > most) most = now;
    if (kind == TWS_ACTION_BACKWARD || kind == TWS_ACTION_BACKWARD_WEIGHT) now--;
  }
  ck_assert_uint_eq(now, 0);
  return most;
}

/* Requires that gradients of a chunk are summed in ascending order of micro-batches. */
static void check_ascending(const execution *e, int stage) {
  for (int chunk = 0; chunk < e->shape->virtual_stages; chunk++) {
    uint32_t next[TWS_ACTION_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < e->length; i++) {
      const tws_pipeline_action *a = &e->order[(size_t)stage * e->length + i];
      if (a->chunk == chunk) require(a->micro_batch == next[a->kind]++, "micro-batches out of order");
    }
  }
}

/* Returns the next message from `stage` to `peer` (sent 0: to `stage` from `peer`) in the order of the stage's actions,
 * as one number of receiving block, direction and micro-batch; -1: there is none. */
static int64_t next_message(const execution *e, int stage, int peer, int sent, uint32_t *at) {
  int blocks = e->shape->stages * e->shape->virtual_stages;
  while (*at < e->length) {
    const tws_pipeline_action *a = &e->order[(size_t)stage * e->length + (*at)++];
    int backward = a->kind != TWS_ACTION_FORWARD, step = backward ? -1 : 1;
    int block = tws_pipeline_block(e->shape, stage, a->chunk), other = sent ? block + step : block - step;
    if (a->kind == TWS_ACTION_BACKWARD_WEIGHT || other < 0 || other >= blocks) continue;
    int home = tws_pipeline_block_stage(e->shape, other), part = tws_pipeline_block_chunk(e->shape, other);
    require(tws_pipeline_block(e->shape, home, part) == other, "a block is not where its number says");
    if (home != peer) continue;
    return ((int64_t)(sent ? other : block) * 2 + backward) * 1000000 + a->micro_batch;
  }
  return -1;
}

/* Asserts that a stage uses activations and gradients from another stage in the order in which that stage sends
 * them. */
static void check_messages(const execution *e, int from, int to) {
  uint32_t i = 0, j = 0;
  int64_t sent, used;
  do {
    sent = next_message(e, from, to, 1, &i);
    used = next_message(e, to, from, 0, &j);
    require(sent == used, "messages are used in another order than they are made in");
  } while (sent >= 0);
}

static tws_pipeline_shape random_shape(uint64_t seed) {
  tws_pipeline_shape shape = {.kind = (tws_pipeline_kind)(seed % TWS_PIPELINE_KIND_COUNT), .virtual_stages = 1};
  shape.stages = draw(seed, 0, 1, 9);
  shape.micro_batches = draw(seed, 1, 1, 36);
  if (shape.kind == TWS_PIPELINE_INTERLEAVED && shape.stages > 1) {
    shape.virtual_stages = draw(seed, 2, 1, 5);
    if (shape.virtual_stages > 1) shape.micro_batches = shape.stages * draw(seed, 3, 1, 5);
  }
  return shape;
}

START_TEST(orders_are_complete_and_ideal) {
  tws_error err = {0};
  for (uint64_t seed = 0; seed < 2000; seed++) {
    tws_pipeline_shape shape = random_shape(seed);
    ck_assert_msg(tws_pipeline_check(&shape, &err) == TWS_OK, "%s", err.message);
    int p = shape.stages, v = shape.virtual_stages, m = shape.micro_batches;
    /* seconds of a chunk; the weight's part is never the largest */
    int w = draw(seed, 4, 1, 4), f = w + draw(seed, 5, 0, 3), b = w + draw(seed, 6, 0, 3);
    execution e;
    execute(&e, &shape, f, b, w);
    int64_t bubble = e.makespan - (int64_t)m * v * (f + b + w);
    double ideal = ideal_bubble(&shape, v * f, v * b, v * w);
    ck_assert_msg((double)bubble == ideal, "%s, %d stages x %d, %d micro-batches, %d:%d:%d: bubble %d, not %g",
                  tws_pipeline_kind_name(shape.kind), p, v, m, f, b, w, (int)bubble, ideal);
    for (int s = 0; s < p; s++) {
      uint32_t most = most_in_flight(&e, s), first = (uint32_t)(m < p ? m : p);
      ck_assert_uint_eq(most, tws_pipeline_in_flight(&shape, s));
      if (shape.kind == TWS_PIPELINE_GPIPE) ck_assert_uint_eq(most, (uint32_t)m);
      if (shape.kind == TWS_PIPELINE_1F1B) ck_assert_uint_eq(most, (uint32_t)(m < p - s ? m : p - s));
      if (shape.kind == TWS_PIPELINE_ZB_H1) ck_assert_uint_le(most, first); /* as stage 0 of 1F1B */
      check_ascending(&e, s);
      for (int to = 0; to < p; to++) {
        if (to != s) check_messages(&e, s, to);
      }
    }
    finish(&e);
  }
}
END_TEST

/* The executor reproduces the published bubbles of each schedule. */
START_TEST(bubbles_of_the_papers) {
  for (int p = 2; p <= 8; p++) {
    for (int rounds = 1; rounds <= 4; rounds++) {
      int m = p * rounds;
      int64_t spans[TWS_PIPELINE_KIND_COUNT];
      for (int kind = 0; kind < TWS_PIPELINE_KIND_COUNT; kind++) {
        tws_pipeline_shape shape = {.kind = (tws_pipeline_kind)kind, .stages = p, .micro_batches = m};
        shape.virtual_stages = kind == TWS_PIPELINE_INTERLEAVED ? 3 : 1;
        execution e;
        /* forward : backward = 1 : 2 in units of a third of a stage, so that a chunk of three takes whole units */
        int unit = shape.virtual_stages == 3 ? 1 : 3;
        execute(&e, &shape, unit, unit, unit);
        spans[kind] = e.makespan;
        finish(&e);
      }
      double share = (double)(p - 1) / (m + p - 1), work = 9.0 * m;
      for (int kind = TWS_PIPELINE_GPIPE; kind <= TWS_PIPELINE_1F1B; kind++) {
        ck_assert_double_eq_tol(1 - work / (double)spans[kind], share, 1e-12);
      }
      double bubble = (double)spans[TWS_PIPELINE_1F1B] - work;
      ck_assert_double_eq_tol((double)spans[TWS_PIPELINE_INTERLEAVED] - work, bubble / 3, 1e-9);
      ck_assert_double_eq_tol((double)spans[TWS_PIPELINE_ZB_H1] - work, bubble / 3, 1e-9);
    }
  }
}
END_TEST

/* ---- programs: messages are rendezvous, one after another on one stream per stage ---- */

typedef struct stage_run {
  const tws_pipeline_program *program;
  uint32_t action, message; /* index of the next event on the compute stream, and on the message stream */
  int64_t compute_clock, message_clock;
  int64_t *end; /* per event */
} stage_run;

static void skip_to(const stage_run *r, uint32_t *at, int messages) {
  while (*at < r->program->count && (r->program->events[*at].kind != TWS_EVENT_ACTION) != messages) (*at)++;
}

static int same_action(const tws_pipeline_action *a, const tws_pipeline_action *b) {
  return a->kind == b->kind && a->chunk == b->chunk && a->micro_batch == b->micro_batch;
}

/* Returns the end of the event before `event` that it needs: for a send the action that computes the data, for an
 * action its receive. NULL: the list has none. */
static const int64_t *before(const stage_run *r, uint32_t event) {
  const tws_pipeline_event *of = &r->program->events[event];
  tws_pipeline_event_kind kind = of->kind == TWS_EVENT_SEND ? TWS_EVENT_ACTION : TWS_EVENT_RECV;
  for (uint32_t i = event; i-- > 0;) {
    const tws_pipeline_event *e = &r->program->events[i];
    if (e->kind == kind && same_action(&e->action, &of->action)) return &r->end[i];
  }
  return NULL;
}

static int run_action(stage_run *r, const int *seconds) {
  skip_to(r, &r->action, 0);
  if (r->action >= r->program->count) return 0;
  const tws_pipeline_event *e = &r->program->events[r->action];
  const int64_t *input = e->action.kind == TWS_ACTION_BACKWARD_WEIGHT ? NULL : before(r, r->action);
  if (input && *input < 0) return 0;
  if (input && *input > r->compute_clock) r->compute_clock = *input;
  r->compute_clock += seconds[e->action.kind];
  r->end[r->action++] = r->compute_clock;
  return 1;
}

/* Runs a message if a send is the next event on its stage's message stream and the matching receive is the next one on
 * the peer's. Returns 1 if it ran. */
static int run_message(const tws_pipeline_shape *shape, stage_run *runners, int stage) {
  stage_run *from = &runners[stage];
  skip_to(from, &from->message, 1);
  if (from->message >= from->program->count) return 0;
  const tws_pipeline_event *send = &from->program->events[from->message];
  if (send->kind != TWS_EVENT_SEND) return 0;
  const int64_t *made = before(from, from->message);
  require(made != NULL, "a send before the action that makes what is sent");
  stage_run *to = &runners[send->peer];
  skip_to(to, &to->message, 1);
  if (*made < 0 || to->message >= to->program->count) return 0;
  const tws_pipeline_event *receive = &to->program->events[to->message];
  if (receive->kind != TWS_EVENT_RECV || receive->peer != stage) return 0;
  int step = send->action.kind == TWS_ACTION_FORWARD ? 1 : -1;
  int sent = tws_pipeline_block(shape, stage, send->action.chunk) + step;
  require(receive->action.kind == send->action.kind && receive->action.micro_batch == send->action.micro_batch &&
              tws_pipeline_block(shape, send->peer, receive->action.chunk) == sent,
          "a message meets the receive of another");
  int64_t clock = *made > from->message_clock ? *made : from->message_clock;
  if (to->message_clock > clock) clock = to->message_clock;
  from->end[from->message++] = to->end[to->message++] = from->message_clock = to->message_clock = clock;
  return 1;
}

/* Runs the programs of all stages and returns the makespan. seconds: per kind of action; spread: the largest factor
 * between the speeds of stages. */
static int64_t run_programs(const tws_pipeline_shape *shape, const int *seconds, int spread, uint64_t seed) {
  int p = shape->stages, busy = 1;
  tws_arena *arena = tws_arena_create();
  tws_pipeline_program *programs = calloc((size_t)p, sizeof *programs);
  stage_run *runners = calloc((size_t)p, sizeof *runners);
  tws_error err = {0};
  int64_t makespan = 0;
  for (int s = 0; s < p; s++) {
    ck_assert_msg(tws_pipeline_program_make(shape, s, arena, &programs[s], &err) == TWS_OK, "%s", err.message);
    runners[s] = (stage_run){.program = &programs[s], .end = calloc(programs[s].count, sizeof(int64_t))};
    for (uint32_t i = 0; i < programs[s].count; i++) runners[s].end[i] = -1;
  }
  while (busy) {
    busy = 0;
    for (int s = 0; s < p; s++) {
      int factor = spread > 1 ? draw(seed, 100 + (uint64_t)s, 1, spread) : 1, own[TWS_ACTION_KIND_COUNT];
      for (int kind = 0; kind < TWS_ACTION_KIND_COUNT; kind++) own[kind] = seconds[kind] * factor;
      while (run_action(&runners[s], own) || run_message(shape, runners, s)) busy = 1;
    }
  }
  for (int s = 0; s < p; s++) {
    skip_to(&runners[s], &runners[s].action, 0);
    skip_to(&runners[s], &runners[s].message, 1);
    ck_assert_msg(runners[s].action == programs[s].count && runners[s].message == programs[s].count,
                  "%s, %d stages x %d, %d micro-batches: stage %d stands still at event %u of %u",
                  tws_pipeline_kind_name(shape->kind), p, shape->virtual_stages, shape->micro_batches, s,
                  runners[s].message, programs[s].count);
    if (runners[s].compute_clock > makespan) makespan = runners[s].compute_clock;
    free(runners[s].end);
  }
  free(runners);
  free(programs);
  tws_arena_destroy(arena);
  return makespan;
}

START_TEST(programs_run_with_rendezvous) {
  for (uint64_t seed = 0; seed < 400; seed++) {
    tws_pipeline_shape shape = random_shape(seed);
    int64_t work = (int64_t)shape.micro_batches * shape.virtual_stages * 3;
    /* with the proportions that the programs were made for, messages cost nothing in an ideal pipeline */
    int64_t span = run_programs(&shape, (int[]){1, 2, 1, 1}, 1, seed);
    double v = shape.virtual_stages;
    ck_assert_double_eq_tol((double)(span - work), ideal_bubble(&shape, v, v, v), 1e-9);
    /* with any other proportions the programs still run to their ends */
    int seconds[] = {draw(seed, 7, 1, 9), draw(seed, 8, 1, 9), draw(seed, 9, 1, 9), draw(seed, 10, 1, 9)};
    run_programs(&shape, seconds, 5, seed);
  }
}
END_TEST

START_TEST(programs_hold_the_order) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    tws_pipeline_shape shape = random_shape(seed);
    uint32_t count = tws_pipeline_order_length(&shape);
    tws_pipeline_action *order = calloc(count, sizeof *order);
    tws_arena *arena = tws_arena_create();
    for (int s = 0; s < shape.stages; s++) {
      tws_pipeline_program program;
      uint32_t n = 0, messages = 0;
      ck_assert(tws_pipeline_program_make(&shape, s, arena, &program, NULL) == TWS_OK);
      tws_pipeline_order(&shape, s, order);
      for (uint32_t i = 0; i < program.count; i++) {
        const tws_pipeline_event *e = &program.events[i];
        if (e->kind == TWS_EVENT_ACTION) ck_assert(n < count && same_action(&e->action, &order[n++]));
        messages += e->kind != TWS_EVENT_ACTION;
      }
      ck_assert_uint_eq(n, count);
      /* each block receives and sends in both directions; the first and the last block lack one neighbour */
      int sides = shape.stages == 1 ? 0 : 4 * shape.virtual_stages - 2 * (s == 0) - 2 * (s == shape.stages - 1);
      ck_assert_uint_eq(messages, (uint32_t)(sides * shape.micro_batches));
    }
    tws_arena_destroy(arena);
    free(order);
  }
}
END_TEST

static void expect_refusal(tws_pipeline_shape shape, const char *says, const char *remedy) {
  tws_error err = {0};
  ck_assert_int_ne(tws_pipeline_check(&shape, &err), TWS_OK);
  ck_assert_msg(strstr(err.message, says) && strstr(err.hint, remedy), "%s (%s)", err.message, err.hint);
}

START_TEST(illegal_shapes_are_refused) {
  tws_error err = {0};
  tws_pipeline_kind kind;
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 2, 6, 0, 0}, "multiples of the 4 stages",
                 "4 or 8 micro");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 2, 3, 0, 0}, "multiples of the 4 stages",
                 "use 4 micro");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_1F1B, 4, 2, 8, 0, 0}, "1f1b", "interleaved");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 1, 2, 8, 0, 0}, "one stage", "one virtual stage");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 0, 1, 8, 0, 0}, "0 stages", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 4, 1, 0, 0, 0}, "0 micro-batches", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 0, 8, 0, 0}, "0 virtual", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 4, 1, INT32_MAX, 0, 0}, "micro-batches", "2^28");
  ck_assert_int_eq(tws_pipeline_kind_parse("zb-h1", &kind, &err), TWS_OK);
  ck_assert_int_eq(kind, TWS_PIPELINE_ZB_H1);
  ck_assert_int_eq(tws_pipeline_kind_parse("interleave", &kind, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "\"interleaved\"") != NULL, "%s", err.message);
  tws_instruction_schedule outside = {.kind = TWS_SCHEDULE_TRAIN, .stages = 4, .stage = 4, .micro_batches = 8};
  ck_assert_int_eq(tws_instruction_check(&outside, &err), TWS_INVALID);
}
END_TEST

static tws_code allocate(void *user) {
  int bounds[5];
  tws_pipeline_layer layers[8] = {{"Block", 3}, {"Block", 1}};
  tws_pipeline_shape shape = {TWS_PIPELINE_INTERLEAVED, 4, 2, 8, 0, 0};
  tws_pipeline_program program;
  tws_error err = {0};
  (void)user;
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? tws_pipeline_program_make(&shape, 1, arena, &program, &err) : TWS_MEMORY;
  if (code == TWS_OK) code = tws_pipeline_partition("parameters", layers, 8, 4, bounds, &err);
  tws_arena_destroy(arena);
  return code;
}

START_TEST(survives_exhausted_memory) {
  long bad, tried = fail_every_allocation(allocate, NULL, &bad);
  ck_assert_int_ge(tried, 5);
  ck_assert_int_eq(bad, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pipeline_schedule");
  TCase *c = tcase_create("pipeline_schedule");
  tcase_set_timeout(c, 120);
  tcase_add_test(c, instructions_golden);
  tcase_add_test(c, instructions_compute_in_1f1b_order);
  tcase_add_test(c, orders_are_complete_and_ideal);
  tcase_add_test(c, bubbles_of_the_papers);
  tcase_add_test(c, programs_run_with_rendezvous);
  tcase_add_test(c, programs_hold_the_order);
  tcase_add_test(c, illegal_shapes_are_refused);
  tcase_add_test(c, survives_exhausted_memory);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
