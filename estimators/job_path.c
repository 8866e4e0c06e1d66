/* Time of a job whose ranks differ: the longest path through several plans at once, along their messages and common
 * collectives. One plan stands for each pipeline stage; what the ranks beside it do is the same. */
#include <string.h>

#include "estimators/estimators.h"

typedef struct runner {
  const tws_plan *plan;
  double *cost; /* per work */
  tws_op_times *times;
  uint8_t *done;
  uint32_t *queue;                                              /* operations by queue, in issue order */
  uint32_t first[TWS_STREAM_COUNT + 1], next[TWS_STREAM_COUNT]; /* slices of queue */
  double free_at[TWS_STREAM_COUNT];
  int **partners; /* per group: its other members that have a plan, as indices of runners, then -1 */
} runner;

typedef struct job {
  runner *runners;
  int *runner_of; /* per rank of the job, -1: nobody models it */
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
    double end = r->times[r->plan->deps[r->plan->ops[op].dep_first + i]].end_s;
    if (end > at) at = end;
  }
  return at;
}

/* met: when the last rank was there; the operation takes `seconds` from then on. */
static void finish(runner *r, int queue, uint32_t op, double met, double seconds) {
  r->times[op] = (tws_op_times){ready_at(r, queue, op), met, met + seconds};
  r->free_at[queue] = met + seconds;
  r->done[op] = 1;
  r->next[queue]++;
}

/* Start a message when both ends stand before it. */
static int try_message(job *j, runner *r, int queue, uint32_t op) {
  const tws_op *o = &r->plan->ops[op];
  int index = j->runner_of[o->peer];
  double at = ready_at(r, queue, op);
  if (index < 0) { /* nobody models the other end: it is there in time */
    finish(r, queue, op, at, tws_plan_message_seconds(r->plan, o->peer, o->work, j->machine));
    return 1;
  }
  runner *peer = &j->runners[index];
  for (int q = 0; q < TWS_STREAM_COUNT; q++) {
    uint32_t other = head(peer, q);
    if (other == TWS_NONE) continue;
    const tws_op *theirs = &peer->plan->ops[other];
    if (theirs->kind == o->kind || (theirs->kind != TWS_OP_SEND && theirs->kind != TWS_OP_RECV) ||
        theirs->peer != (uint32_t)r->plan->rank) {
      continue;
    }
    double both = ready_at(peer, q, other), seconds = tws_plan_message_seconds(r->plan, o->peer, o->work, j->machine);
    if (both < at) both = at;
    finish(r, queue, op, both, seconds);
    finish(peer, q, other, both, seconds);
    return 1;
  }
  return 0;
}

/* The head of `other` that meets this collective; TWS_NONE while it is not there. */
static uint32_t partner(const runner *r, uint32_t op, const runner *other, int *queue) {
  const tws_group *group = &r->plan->groups[r->plan->works[r->plan->ops[op].work].group];
  for (int q = 0; q < TWS_STREAM_COUNT; q++) {
    uint32_t candidate = head(other, q);
    if (candidate == TWS_NONE || other->plan->ops[candidate].kind != TWS_OP_COLLECTIVE) continue;
    const tws_work *work = &other->plan->works[other->plan->ops[candidate].work];
    if (!tws_group_same(&other->plan->groups[work->group], group)) continue;
    *queue = q;
    return candidate;
  }
  return TWS_NONE;
}

static int try_collective(job *j, runner *r, int queue, uint32_t op) {
  const tws_op *o = &r->plan->ops[op];
  const int *partners = r->partners[r->plan->works[o->work].group];
  double at = ready_at(r, queue, op), seconds = r->cost[o->work];
  int q;
  for (int i = 0; partners[i] >= 0; i++) {
    const runner *other = &j->runners[partners[i]];
    uint32_t met = partner(r, op, other, &q);
    if (met == TWS_NONE) return 0;
    double ready = ready_at(other, q, met), theirs = other->cost[other->plan->ops[met].work];
    if (ready > at) at = ready;
    if (theirs > seconds) seconds = theirs; /* placements may differ in their first node */
  }
  for (int i = 0; partners[i] >= 0; i++) {
    runner *other = &j->runners[partners[i]];
    uint32_t met = partner(r, op, other, &q);
    finish(other, q, met, at, seconds);
  }
  finish(r, queue, op, at, seconds);
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
        finish(r, queue, op, ready_at(r, queue, op), r->cost[r->plan->ops[op].work]);
      }
      if (!moved) break;
      progress = 1;
    }
  }
  return progress;
}

/* ---- setting up ---- */

static int find_partners(const job *j, runner *r, tws_arena *arena) {
  r->partners = tws_arena_alloc(arena, r->plan->group_count + 1u, sizeof *r->partners);
  for (uint32_t g = 0; r->partners && g < r->plan->group_count; g++) {
    const tws_group *group = &r->plan->groups[g];
    int most = group->size < j->count ? group->size : j->count, found = 0;
    int *list = r->partners[g] = tws_arena_alloc(arena, (size_t)most + 1, sizeof *list);
    if (!list) return -1;
    for (int i = 0; i < group->size; i++) {
      if (i != group->index && j->runner_of[group->ranks[i]] >= 0) list[found++] = j->runner_of[group->ranks[i]];
    }
    list[found] = -1;
  }
  return r->partners ? 0 : -1;
}

static int prepare(job *j, runner *r, tws_arena *arena) {
  const tws_plan *plan = r->plan;
  uint32_t count[TWS_STREAM_COUNT] = {0};
  r->cost = tws_arena_alloc(arena, plan->work_count + 1u, sizeof *r->cost);
  r->times = tws_arena_alloc(arena, plan->op_count + 1u, sizeof *r->times);
  r->done = tws_arena_alloc(arena, plan->op_count + 1u, 1);
  r->queue = tws_arena_alloc(arena, plan->op_count + 1u, sizeof *r->queue);
  if (!r->cost || !r->times || !r->done || !r->queue || find_partners(j, r, arena) != 0) return -1;
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

static tws_code set_up(job *j, const tws_plan *const *plans, tws_arena *arena, tws_error *err) {
  int world = plans[0]->world, ok = 1;
  j->runners = tws_arena_alloc(arena, (size_t)j->count, sizeof *j->runners);
  j->runner_of = tws_arena_alloc(arena, (size_t)world, sizeof *j->runner_of);
  ok = j->runners && j->runner_of;
  if (ok) memset(j->runner_of, 0xff, (size_t)world * sizeof *j->runner_of); /* -1 */
  for (int i = 0; ok && i < j->count; i++) {
    if (plans[i]->world != world || plans[i]->rank >= world)
      return tws_fail(err, TWS_INVALID, NULL, "plans of different jobs: rank %d of %d, and %d ranks", plans[i]->rank,
                      plans[i]->world, world);
    j->runners[i].plan = plans[i];
    j->runner_of[plans[i]->rank] = i;
  }
  for (int i = 0; ok && i < j->count; i++) ok = prepare(j, &j->runners[i], arena) == 0;
  return ok ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
}

static tws_code find_step(const job *j, double *step_s, tws_error *err) {
  *step_s = 0;
  for (int i = 0; i < j->count; i++) {
    const runner *r = &j->runners[i];
    for (uint32_t op = 0; op < r->plan->op_count; op++) {
      if (!r->done[op])
        return tws_fail(err, TWS_INTERNAL, NULL, "rank %d: operation %u can never start", r->plan->rank, op);
      if (r->times[op].end_s > *step_s) *step_s = r->times[op].end_s;
    }
  }
  return TWS_OK;
}

tws_code tws_job_path(const tws_plan *const *plans, int count, const tws_machine *machine, tws_path_result *results,
                      double *step_s, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  job j = {.count = count, .machine = machine, .serial = tws_profile_serial_streams(machine->profile)};
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
  tws_code code = set_up(&j, plans, arena, err);
  for (int progress = code == TWS_OK; progress;) {
    progress = 0;
    for (int i = 0; i < count; i++) progress |= advance(&j, &j.runners[i]);
  }
  if (code == TWS_OK) code = find_step(&j, step_s, err);
  for (int i = 0; code == TWS_OK && results && i < count; i++)
    code = tws_path_read(plans[i], j.runners[i].times, j.serial, *step_s, &results[i], err);
  tws_arena_destroy(arena);
  return code;
}
