/* Time of a job whose ranks differ: the longest path through several plans at once, along their messages and common
 * collectives. One plan stands for each pipeline stage; what the ranks beside it do is the same. */
#include <string.h>

#include "estimators/estimators.h"

typedef struct runner {
  const tws_plan *plan;
  double *cost, *end; /* per work, per operation */
  uint8_t *done;
  uint32_t *queue;                                              /* operations by queue, in issue order */
  uint32_t first[TWS_STREAM_COUNT + 1], next[TWS_STREAM_COUNT]; /* slices of queue */
  double free_at[TWS_STREAM_COUNT], computing;
} runner;

typedef struct job {
  runner *runners;
  int count, serial;
  const tws_machine *machine;
} job;

static int queue_of(const job *j, const tws_op *op) {
  return j->serial ? 0 : op->stream;
}

static uint32_t head(const runner *r, int queue) {
  if (r->first[queue] + r->next[queue] >= r->first[queue + 1]) return TWS_NONE;
  uint32_t op = r->queue[r->first[queue] + r->next[queue]];
  for (uint32_t i = 0; i < r->plan->ops[op].dep_count; i++) {
    if (!r->done[r->plan->deps[r->plan->ops[op].dep_first + i]]) return TWS_NONE;
  }
  return op;
}

static double ready_at(const runner *r, int queue, uint32_t op) {
  double at = r->free_at[queue];
  for (uint32_t i = 0; i < r->plan->ops[op].dep_count; i++) {
    double end = r->end[r->plan->deps[r->plan->ops[op].dep_first + i]];
    if (end > at) at = end;
  }
  return at;
}

static void finish(runner *r, int queue, uint32_t op, double end) {
  r->end[op] = r->free_at[queue] = end;
  r->done[op] = 1;
  r->next[queue]++;
}

static runner *runner_of(const job *j, int rank) {
  for (int i = 0; i < j->count; i++) {
    if (j->runners[i].plan->rank == rank) return &j->runners[i];
  }
  return NULL;
}

/* Start a message when both ends stand before it. */
static int try_message(job *j, runner *r, int queue, uint32_t op) {
  const tws_op *o = &r->plan->ops[op];
  runner *peer = runner_of(j, (int)o->peer);
  double at = ready_at(r, queue, op), seconds = tws_plan_message_seconds(r->plan, o->peer, o->work, j->machine);
  if (!peer) { /* nobody models the other end: it is there in time */
    finish(r, queue, op, at + seconds);
    return 1;
  }
  for (int q = 0; q < TWS_STREAM_COUNT; q++) {
    uint32_t other = head(peer, q);
    if (other == TWS_NONE) continue;
    const tws_op *theirs = &peer->plan->ops[other];
    if (theirs->kind == o->kind || (theirs->kind != TWS_OP_SEND && theirs->kind != TWS_OP_RECV) ||
        theirs->peer != (uint32_t)r->plan->rank) {
      continue;
    }
    double both = ready_at(peer, q, other);
    if (both < at) both = at;
    finish(r, queue, op, both + seconds);
    finish(peer, q, other, both + seconds);
    return 1;
  }
  return 0;
}

static int same_group(const tws_group *a, const tws_group *b) {
  return a->size == b->size && memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

/* The head of `other` that meets this collective; TWS_NONE while it is not there. */
static uint32_t partner(const runner *r, uint32_t op, const runner *other, int *queue) {
  const tws_group *group = &r->plan->groups[r->plan->works[r->plan->ops[op].work].group];
  for (int q = 0; q < TWS_STREAM_COUNT; q++) {
    uint32_t candidate = head(other, q);
    if (candidate == TWS_NONE || other->plan->ops[candidate].kind != TWS_OP_COLLECTIVE) continue;
    const tws_work *work = &other->plan->works[other->plan->ops[candidate].work];
    if (!same_group(&other->plan->groups[work->group], group)) continue;
    *queue = q;
    return candidate;
  }
  return TWS_NONE;
}

static int try_collective(job *j, runner *r, int queue, uint32_t op) {
  const tws_group *group = &r->plan->groups[r->plan->works[r->plan->ops[op].work].group];
  double at = ready_at(r, queue, op);
  int q;
  for (int i = 0; i < group->size; i++) {
    const runner *other = group->ranks[i] == r->plan->rank ? NULL : runner_of(j, group->ranks[i]);
    if (!other) continue;
    uint32_t met = partner(r, op, other, &q);
    if (met == TWS_NONE) return 0;
    if (ready_at(other, q, met) > at) at = ready_at(other, q, met);
  }
  double end = at + r->cost[r->plan->ops[op].work];
  for (int i = 0; i < group->size; i++) {
    runner *other = group->ranks[i] == r->plan->rank ? NULL : runner_of(j, group->ranks[i]);
    if (!other) continue;
    uint32_t met = partner(r, op, other, &q);
    finish(other, q, met, end);
  }
  finish(r, queue, op, end);
  return 1;
}

static int advance(job *j, runner *r) {
  int progress = 0;
  for (int queue = 0; queue < TWS_STREAM_COUNT; queue++) {
    for (uint32_t op = head(r, queue); op != TWS_NONE; op = head(r, queue)) {
      int kind = r->plan->ops[op].kind, moved = 1;
      if (kind == TWS_OP_SEND || kind == TWS_OP_RECV) {
        moved = try_message(j, r, queue, op);
      } else if (kind == TWS_OP_COLLECTIVE) {
        moved = try_collective(j, r, queue, op);
      } else {
        finish(r, queue, op, ready_at(r, queue, op) + r->cost[r->plan->ops[op].work]);
      }
      if (!moved) break;
      progress = 1;
    }
  }
  return progress;
}

static int prepare(job *j, runner *r, const tws_plan *plan, tws_arena *arena) {
  uint32_t count[TWS_STREAM_COUNT] = {0};
  r->plan = plan;
  r->cost = tws_arena_alloc(arena, plan->work_count + 1u, sizeof *r->cost);
  r->end = tws_arena_alloc(arena, plan->op_count + 1u, sizeof *r->end);
  r->done = tws_arena_alloc(arena, plan->op_count + 1u, 1);
  r->queue = tws_arena_alloc(arena, plan->op_count + 1u, sizeof *r->queue);
  if (!r->cost || !r->end || !r->done || !r->queue) return -1;
  for (uint32_t i = 0; i < plan->work_count; i++) r->cost[i] = tws_plan_work_seconds(plan, i, j->machine, 1);
  for (uint32_t op = 0; op < plan->op_count; op++) count[queue_of(j, &plan->ops[op])]++;
  for (int q = 0; q < TWS_STREAM_COUNT; q++) r->first[q + 1] = r->first[q] + count[q];
  memset(count, 0, sizeof count);
  for (uint32_t op = 0; op < plan->op_count; op++) {
    int q = queue_of(j, &plan->ops[op]);
    r->queue[r->first[q] + count[q]++] = op;
  }
  return 0;
}

static void collect(const job *j, runner *r, double step_s, tws_path_result *result) {
  memset(result, 0, sizeof *result);
  for (uint32_t op = 0; op < r->plan->op_count; op++) {
    const tws_op *o = &r->plan->ops[op];
    double seconds = r->cost[o->work];
    tws_path_account(r->plan, op, seconds, result);
    if ((o->kind == TWS_OP_COMPUTE || o->kind == TWS_OP_COPY) && (j->serial || o->stream == TWS_STREAM_COMPUTE)) {
      r->computing += seconds;
    }
  }
  result->step_s = step_s;
  result->exposed_s = step_s - r->computing;
  tws_path_judge(result);
}

tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  job j = {.count = count, .machine = machine, .serial = tws_profile_serial_streams(machine->profile)};
  j.runners = arena ? tws_arena_alloc(arena, (size_t)count, sizeof *j.runners) : NULL;
  int ok = j.runners != NULL;
  for (int i = 0; ok && i < count; i++) ok = prepare(&j, &j.runners[i], plans[i], arena) == 0;
  if (!ok) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
  }
  for (int progress = 1; progress;) {
    progress = 0;
    for (int i = 0; i < count; i++) progress |= advance(&j, &j.runners[i]);
  }
  tws_code code = TWS_OK;
  *step_s = 0;
  for (int i = 0; i < count; i++) {
    const runner *r = &j.runners[i];
    for (uint32_t op = 0; op < r->plan->op_count && code == TWS_OK; op++) {
      if (!r->done[op])
        code = tws_fail(err, TWS_INTERNAL, NULL, "rank %d: operation %u can never start", r->plan->rank, op);
      if (r->end[op] > *step_s) *step_s = r->end[op];
    }
  }
  for (int i = 0; code == TWS_OK && results && i < count; i++) collect(&j, &j.runners[i], *step_s, &results[i]);
  tws_arena_destroy(arena);
  return code;
}
