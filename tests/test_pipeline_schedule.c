/* Pipeline arithmetic against golden vectors (instruction streams, partitions, grids, Ulysses), and orders of every
 * schedule against an executor that knows only their meaning. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_program.h"
#include "plan/pipeline_schedule.h"
#include "plan/sequence_rules.h"
#include "tests/failing_allocator.h"

static tws_json *golden(const char *name) {
  char path[512];
  tws_error err = {0};
  tws_json *json = NULL;
  snprintf(path, sizeof path, "%s/golden/%s", TWS_TEST_DIR, name);
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  return json;
}

/* An assertion for inner loops: Check's own write a mark at every pass, which would take most of the time. */
static inline void require(int holds, const char *what) {
  if (!holds) ck_abort_msg("%s", what);
}

static const cJSON *member(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  ck_assert_msg(item != NULL, "golden file lacks %s", key);
  return item;
}

static int number(const cJSON *object, const char *key) {
  const cJSON *item = member(object, key);
  ck_assert_msg(cJSON_IsNumber(item), "%s", key);
  return (int)item->valuedouble;
}

static int same(const cJSON *list, const int *actual, int count) {
  if (cJSON_GetArraySize(list) != count) return 0;
  int i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, list) if ((int)item->valuedouble != actual[i++]) return 0;
  return 1;
}

static int draw(uint64_t seed, uint64_t index, int low, int high) {
  uint32_t bits[4];
  tws_philox(seed, 77, index, bits);
  return low + (int)(bits[0] % (uint32_t)(high - low + 1));
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
  tws_json *json = golden("pipeline_schedules.json");
  static const char *const lists[] = {"train", "inference", "dataparallel"};
  for (int kind = 0; kind < 3; kind++) {
    int cases = 0;
    const cJSON *c, *pair;
    cJSON_ArrayForEach(c, member(json->root, lists[kind])) {
      tws_instruction_schedule schedule = {.kind = (tws_instruction_schedule_kind)kind, .stages = 1};
      schedule.micro_batches = number(c, "micro_batches");
      if (kind != TWS_SCHEDULE_DATA_PARALLEL) {
        schedule.stages = number(c, "stages");
        schedule.stage = number(c, "stage_id");
      }
      ck_assert_int_eq(tws_instruction_buffers(&schedule), number(c, "num_pipe_buffers"));
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

/* Our 1F1B is the compute order of DeepSpeed's training schedule. */
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
  uint32_t length, passes;    /* actions of a stage; (block, micro-batch) pairs of all stages */
  tws_pipeline_action *order; /* [stage][length] */
  int64_t *end;               /* [kind][block][micro-batch]: when it ended; 0: not yet */
  int64_t makespan;
} execution;

static int64_t *end_of(execution *e, int kind, int block, uint32_t micro) {
  return &e->end[(size_t)kind * e->passes + (size_t)block * (size_t)e->shape->micro_batches + micro];
}

/* When the input of an action was ready, or -1. */
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
  /* Each kind that occurs did every (block, micro-batch): with "never twice" and the total, exactly once. */
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

/* Gradients of a chunk are summed in ascending order of micro-batches. */
static void check_ascending(const execution *e, int stage) {
  for (int chunk = 0; chunk < e->shape->virtual_stages; chunk++) {
    uint32_t next[TWS_ACTION_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < e->length; i++) {
      const tws_pipeline_action *a = &e->order[(size_t)stage * e->length + i];
      if (a->chunk == chunk) require(a->micro_batch == next[a->kind]++, "micro-batches out of order");
    }
  }
}

/* The next message of `stage` to (or from) `peer` in the order of its actions: receiving block, direction and
 * micro-batch as one number, or -1. */
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

/* What one stage makes for another, activations and gradients together, is used there in the same order. */
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
    /* seconds of a chunk; the weight part is nowhere the largest */
    int w = draw(seed, 4, 1, 4), f = w + draw(seed, 5, 0, 3), b = w + draw(seed, 6, 0, 3);
    execution e;
    execute(&e, &shape, f, b, w);
    int64_t bubble = e.makespan - (int64_t)m * v * (f + b + w);
    double ideal = tws_pipeline_bubble(&shape, v * f, v * b, v * w);
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

/* The published bubbles, from the executor alone. */
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
  uint32_t action, message; /* next events of the compute and of the message stream */
  int64_t compute_clock, message_clock;
  int64_t *end; /* per event */
} stage_run;

static void skip_to(const stage_run *r, uint32_t *at, int messages) {
  while (*at < r->program->count && (r->program->events[*at].kind != TWS_EVENT_ACTION) != messages) (*at)++;
}

static int same_action(const tws_pipeline_action *a, const tws_pipeline_action *b) {
  return a->kind == b->kind && a->chunk == b->chunk && a->micro_batch == b->micro_batch;
}

/* The action that made what is sent, or the receive that an action waits for; the list has it earlier. */
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

/* A send at the head of its stage's stream whose receive is at the head of the other's. */
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

/* seconds by action kind; spread: stages differ in speed by up to this factor. Returns the makespan. */
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
    /* the proportions that the program was made for: messages cost the ideal pipeline nothing */
    int64_t span = run_programs(&shape, (int[]){1, 2, 1, 1}, 1, seed);
    double v = shape.virtual_stages;
    ck_assert_double_eq_tol((double)(span - work), tws_pipeline_bubble(&shape, v, v, v), 1e-9);
    /* any others: it still runs to its end */
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
      /* both directions, in and out, for each block; the first and the last lack one side */
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
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 2, 6}, "multiples of the 4 stages", "4 or 8 micro");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 2, 3}, "multiples of the 4 stages", "use 4 micro");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_1F1B, 4, 2, 8}, "1f1b", "interleaved");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 1, 2, 8}, "one stage", "one virtual stage");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 0, 1, 8}, "0 stages", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 4, 1, 0}, "0 micro-batches", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_INTERLEAVED, 4, 0, 8}, "0 virtual", "");
  expect_refusal((tws_pipeline_shape){TWS_PIPELINE_GPIPE, 4, 1, INT32_MAX}, "micro-batches", "2^28");
  ck_assert_int_eq(tws_pipeline_kind_parse("zb-h1", &kind, &err), TWS_OK);
  ck_assert_int_eq(kind, TWS_PIPELINE_ZB_H1);
  ck_assert_int_eq(tws_pipeline_kind_parse("interleave", &kind, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "\"interleaved\"") != NULL, "%s", err.message);
  tws_instruction_schedule outside = {.kind = TWS_SCHEDULE_TRAIN, .stages = 4, .stage = 4, .micro_batches = 8};
  ck_assert_int_eq(tws_instruction_check(&outside, &err), TWS_INVALID);
}
END_TEST

/* ---- partitions ---- */

START_TEST(partitions_golden) {
  tws_json *json = golden("partition.json");
  tws_error err = {0};
  const cJSON *c, *weight;
  int bounds[512], balanced = 0, uniform = 0;
  cJSON_ArrayForEach(c, member(json->root, "balanced")) {
    int64_t weights[512];
    int count = 0, parts = number(c, "num_parts");
    cJSON_ArrayForEach(weight, member(c, "weights")) weights[count++] = (int64_t)weight->valuedouble;
    ck_assert(tws_partition_balanced(weights, count, parts, bounds, &err) == TWS_OK);
    ck_assert_msg(same(member(c, "parts"), bounds, parts + 1), "balanced case %d", balanced);
    balanced++;
  }
  cJSON_ArrayForEach(c, member(json->root, "uniform")) {
    int count = number(c, "num_items"), parts = number(c, "num_parts");
    for (int i = 0; i <= parts; i++) bounds[i] = (int)tws_partition_uniform(count, parts, i);
    ck_assert_msg(same(member(c, "parts"), bounds, parts + 1), "uniform case %d", uniform);
    uniform++;
  }
  ck_assert_int_eq(balanced, 112);
  ck_assert_int_eq(uniform, 200);
  tws_json_destroy(json);
}
END_TEST

static void expect_bounds(const char *method, const tws_pipeline_layer *layers, int count, int parts,
                          const int *expected) {
  tws_error err = {0};
  int bounds[32];
  ck_assert_msg(tws_pipeline_partition(method, layers, count, parts, bounds, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i <= parts; i++) {
    ck_assert_msg(bounds[i] == expected[i], "%s: bound %d is %d, not %d", method ? method : "(default)", i, bounds[i],
                  expected[i]);
  }
}

static void expect_no_partition(const char *method, tws_code code, const char *says) {
  tws_error err = {0};
  int bounds[8];
  tws_pipeline_layer layers[3] = {{"Embedding", 10}, {"Block", 20}, {NULL, 0}};
  ck_assert_int_eq(tws_pipeline_partition(method, layers, 3, 2, bounds, &err), code);
  ck_assert_msg(strstr(err.message, says) != NULL, "%s", err.message);
}

START_TEST(partition_methods) {
  /* embedding, 12 blocks, norm, head of GPT-2; the bounds by parameters are the reference's */
  tws_pipeline_layer layers[15] = {{"EmbeddingPipe", 38597376}, [13] = {"LayerNorm", 1536}, [14] = {"Head", 38597376}};
  for (int i = 1; i <= 12; i++) layers[i] = (tws_pipeline_layer){"ParallelTransformerLayerPipe", 7087872};
  expect_bounds(NULL, layers, 15, 4, (int[]){0, 1, 7, 13, 15});
  expect_bounds("Parameters", layers, 15, 3, (int[]){0, 3, 11, 15});
  expect_bounds("UNIFORM", layers, 15, 4, (int[]){0, 4, 8, 12, 15});
  /* three blocks each; the search is for a part of the name, in any case, up to the second colon */
  int blocks[5];
  tws_error err = {0};
  static const char *const methods[] = {"type:transformer", "Type:^PARALLEL.*Pipe$", "type:(layer)pipe:ignored"};
  for (int i = 0; i < 3; i++) {
    ck_assert(tws_pipeline_partition(methods[i], layers, 15, 4, blocks, &err) == TWS_OK);
    for (int part = 0; part < 4; part++) {
      int matches = 0;
      for (int layer = blocks[part]; layer < blocks[part + 1]; layer++) matches += layer >= 1 && layer <= 12;
      ck_assert_int_eq(matches, 3);
    }
  }
  expect_bounds("type:head", layers, 15, 15, (int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  expect_no_partition("type:attention", TWS_INVALID, "attention");
  expect_no_partition("type:(", TWS_INVALID, "type:(");
  expect_no_partition("profile", TWS_UNSUPPORTED, "profile");
  expect_no_partition("balanced", TWS_INVALID, "balanced");
  int bounds[3];
  ck_assert(tws_partition_balanced((int64_t[]){1, -1, 1}, 3, 2, bounds, &err) == TWS_INVALID);
  ck_assert(tws_partition_balanced((int64_t[]){INT64_MAX, 1, 1}, 3, 2, bounds, &err) == TWS_INVALID);
}
END_TEST

START_TEST(balanced_parts_are_sound) {
  for (uint64_t seed = 0; seed < 500; seed++) {
    int count = draw(seed, 0, 0, 40), parts = draw(seed, 1, 1, 12), bounds[16];
    int64_t weights[40];
    for (int i = 0; i < count; i++) weights[i] = draw(seed, 2 + (uint64_t)i, 0, 1000) * (int64_t)1e12;
    ck_assert(tws_partition_balanced(weights, count, parts, bounds, NULL) == TWS_OK);
    ck_assert_int_eq(bounds[0], 0);
    ck_assert_int_eq(bounds[parts], count);
    for (int i = 0; i < parts; i++)
      ck_assert(bounds[i] < bounds[i + 1] || (bounds[i] == bounds[i + 1] && count < parts));
  }
}
END_TEST

/* ---- grid ---- */

static void check_rank(const tws_topology *topology, const cJSON *c) {
  static const char *const keys[TWS_GRID_GROUP_COUNT] = {"ds_model_group", "dp_group", "pp_group", "slice_group"};
  int ranks[64], rank = number(c, "rank"), stages = tws_topology_dim(topology, "pipe");
  int coordinates[TWS_MAX_AXES];
  for (int kind = 0; kind < TWS_GRID_GROUP_COUNT; kind++) {
    int count = tws_pipeline_grid_group(topology, (tws_grid_group)kind, rank, ranks);
    ck_assert_msg(same(member(c, keys[kind]), ranks, count), "rank %d: %s", rank, keys[kind]);
    if (kind != TWS_GRID_REPLICA) continue;
    ck_assert_int_eq(count, number(c, "model_parallel_world"));
    ck_assert_int_eq(ranks[number(c, "model_parallel_rank")], rank);
  }
  tws_topology_coordinates(topology, rank, coordinates);
  int stage = coordinates[tws_topology_axis(topology, "pipe")];
  ck_assert_int_eq(stage, number(c, "stage_id"));
  ck_assert_int_eq(coordinates[tws_topology_axis(topology, "data")], number(c, "data_parallel_id"));
  ck_assert_int_eq(cJSON_IsTrue(member(c, "is_first")), stage == 0);
  ck_assert_int_eq(cJSON_IsTrue(member(c, "is_last")), stage == stages - 1);
  for (int s = 0; s < stages; s++) ranks[s] = tws_pipeline_grid_stage(topology, rank, s);
  ck_assert(same(member(c, "stage_to_global"), ranks, stages));
}

START_TEST(grid_golden) {
  tws_json *json = golden("topology.json");
  tws_error err = {0};
  int cases = 0, ranks[64];
  const cJSON *c, *item;
  cJSON_ArrayForEach(c, member(json->root, "grid")) {
    tws_topology topology;
    const char *names[TWS_MAX_AXES];
    int dims[TWS_MAX_AXES], axes = 0, world = number(c, "world");
    cJSON_ArrayForEach(item, member(c, "axes")) names[axes++] = item->valuestring;
    for (int i = 0; i < axes; i++) dims[i] = (int)cJSON_GetArrayItem(member(c, "dims"), i)->valuedouble;
    if (cJSON_IsTrue(member(c, "explicit_topology"))) {
      ck_assert(tws_topology_make(&topology, axes, names, dims, &err) == TWS_OK);
    } else {
      ck_assert(tws_pipeline_grid_default(world, &topology, &err) == TWS_OK);
      for (int i = 0; i < axes; i++) ck_assert_str_eq(topology.name[i], names[i]);
      ck_assert(same(member(c, "dims"), topology.dim, topology.axes));
    }
    ck_assert(tws_pipeline_grid_check(&topology, world, &err) == TWS_OK);
    ck_assert(tws_pipeline_grid_check(&topology, world + 1, &err) == TWS_INVALID);
    const cJSON *group = member(c, "new_group_call_order")->child;
    for (int kind = 0; kind < TWS_GRID_GROUP_COUNT; kind++) {
      int count;
      for (int i = 0; (count = tws_pipeline_grid_nth(&topology, (tws_grid_group)kind, i, ranks)); i++) {
        ck_assert_msg(group && same(group, ranks, count), "case %d: group %d of kind %d", cases, i, kind);
        group = group->next;
      }
    }
    ck_assert_ptr_null(group);
    int rank = 0;
    cJSON_ArrayForEach(item, member(c, "p2p_groups")) {
      int stage = rank / (world / tws_topology_dim(&topology, "pipe"));
      ranks[0] = rank;
      ranks[1] = tws_pipeline_grid_stage(&topology, rank++, stage + 1);
      ck_assert(same(item, ranks, 2));
    }
    ck_assert_int_eq(rank, world);
    cJSON_ArrayForEach(item, member(c, "ranks")) check_rank(&topology, item);
    cases++;
  }
  ck_assert_int_eq(cases, 6);
  cJSON_ArrayForEach(item, member(json->root, "prime_factors")) {
    int factors[31], count = tws_prime_factors(atoi(item->string), factors);
    ck_assert_msg(same(item, factors, count), "factors of %s", item->string);
  }
  tws_json_destroy(json);
}
END_TEST

/* ---- Ulysses ---- */

START_TEST(ulysses_golden) {
  tws_json *json = golden("ulysses.json");
  const cJSON *c;
  int cases = 0;
  cJSON_ArrayForEach(c, member(json->root, "cases")) {
    const cJSON *shape = member(c, "shape"), *input = member(c, "local_in"), *output = member(c, "after_scatter_heads");
    int64_t dims[4];
    for (int i = 0; i < 4; i++) dims[i] = (int64_t)cJSON_GetArrayItem(shape, i)->valuedouble;
    int later = number(c, "batch_dim_idx") == 1;
    tws_ulysses_tensor tensor = {.ranks = number(c, "P"),
                                 .sequence_first = later,
                                 .batch = dims[later],
                                 .sequence = dims[!later],
                                 .heads = dims[2],
                                 .width = dims[3]};
    for (int rank = 0; rank < tensor.ranks; rank++) {
      const cJSON *expected = cJSON_GetArrayItem(output, rank);
      ck_assert_int_eq(tws_ulysses_elements(&tensor), cJSON_GetArraySize(expected));
      for (int i = 0; i < cJSON_GetArraySize(expected); i++) {
        int from;
        int64_t index;
        tws_ulysses_into(&tensor, rank, i, &from, &index);
        double value = cJSON_GetArrayItem(cJSON_GetArrayItem(input, from), (int)index)->valuedouble;
        ck_assert_msg(value == cJSON_GetArrayItem(expected, i)->valuedouble, "case %d, rank %d, element %d", cases,
                      rank, i);
      }
    }
    cases++;
  }
  ck_assert_int_eq(cases, 4);
  tws_json_destroy(json);
}
END_TEST

START_TEST(ulysses_returns_every_element) {
  for (uint64_t seed = 0; seed < 100; seed++) {
    int ranks = draw(seed, 0, 1, 5);
    tws_ulysses_tensor tensor = {.ranks = ranks,
                                 .sequence_first = (int)(seed % 2),
                                 .batch = draw(seed, 1, 1, 3),
                                 .sequence = ranks * draw(seed, 2, 1, 4),
                                 .heads = ranks * draw(seed, 3, 1, 3),
                                 .width = draw(seed, 4, 1, 3)};
    int64_t elements = tws_ulysses_elements(&tensor), away = 0;
    for (int rank = 0; rank < ranks; rank++) {
      for (int64_t i = 0; i < elements; i++) {
        int there, home;
        int64_t at, back;
        tws_ulysses_back(&tensor, rank, i, &there, &at);
        ck_assert(there >= 0 && there < ranks && at >= 0 && at < elements);
        tws_ulysses_into(&tensor, there, at, &home, &back);
        ck_assert(home == rank && back == i);
        away += there != rank;
      }
    }
    ck_assert_int_eq(away, tws_ulysses_sent(&tensor) * ranks);
  }
}
END_TEST

START_TEST(ulysses_heads) {
  tws_error err = {0};
  tws_ulysses_part part;
  int legal = 0;
  for (uint64_t seed = 0; seed < 500; seed++) {
    int group = draw(seed, 0, 1, 4), kv = draw(seed, 1, 1, 8), ranks = draw(seed, 2, 1, 8), tokens = 840;
    int heads = kv * group, held[32] = {0};
    for (int rank = 0; rank < ranks; rank++) {
      if (tws_ulysses_part_of(heads, kv, tokens, ranks, rank, &part, &err) != TWS_OK) {
        ck_assert(heads % ranks != 0 || (kv % ranks != 0 && ranks % kv != 0));
        int degree = 0; /* the degree that the hint names is legal */
        ck_assert_int_eq(sscanf(err.hint, "the nearest smaller degree that is legal is %d", &degree), 1);
        ck_assert(tws_ulysses_part_of(heads, kv, tokens, degree, 0, &part, &err) == TWS_OK);
        break;
      }
      legal += rank == 0;
      ck_assert_int_eq(part.head_first, part.head_count * rank);
      ck_assert_int_eq(part.token_first, part.token_count * rank);
      /* every query head finds its key and value head on its own rank */
      for (int64_t head = part.head_first; head < part.head_first + part.head_count; head++) {
        ck_assert(head / group >= part.kv_first && head / group < part.kv_first + part.kv_count);
      }
      for (int64_t head = part.kv_first; head < part.kv_first + part.kv_count; head++) held[head]++;
      if (rank == ranks - 1) {
        for (int head = 0; head < kv; head++) ck_assert_int_eq(held[head], part.kv_copies);
      }
    }
  }
  ck_assert_int_gt(legal, 100);
  ck_assert_int_eq(tws_ulysses_part_of(32, 8, 100, 8, 0, &part, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "tokens") && strstr(err.hint, "is 4"), "%s (%s)", err.message, err.hint);
}
END_TEST

static tws_code allocate(void *user) {
  int bounds[5];
  tws_pipeline_layer layers[8] = {{"Block", 3}, {"Block", 1}};
  tws_pipeline_shape shape = {TWS_PIPELINE_INTERLEAVED, 4, 2, 8};
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
  tcase_add_test(c, partitions_golden);
  tcase_add_test(c, partition_methods);
  tcase_add_test(c, balanced_parts_are_sound);
  tcase_add_test(c, grid_golden);
  tcase_add_test(c, ulysses_golden);
  tcase_add_test(c, ulysses_returns_every_element);
  tcase_add_test(c, ulysses_heads);
  tcase_add_test(c, survives_exhausted_memory);
  suite_add_tcase(suite, c);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
