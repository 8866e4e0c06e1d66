#include "plan/run_order.h"

#include <stdio.h>
#include <string.h>

#include "plan/rendezvous.h"

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the order of operations");
}

const char *tws_run_describe(const tws_run *run, uint32_t rank, uint32_t op, char *buffer, int size) {
  const tws_plan *plan = run->ranks[rank].plan;
  char label[160];
  snprintf(buffer, (size_t)size, "rank %d, operation %u (%s)", plan->rank, op,
           tws_op_label(plan, op, label, sizeof label));
  return buffer;
}

/* ---- setting up ---- */

static tws_code check_plan(const tws_plan *plan, tws_error *err) {
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    int good = op->stream < TWS_STREAM_COUNT && op->kind < TWS_OP_KIND_COUNT && op->phase < TWS_PHASE_COUNT &&
               op->work < plan->work_count && op->dep_first + (uint64_t)op->dep_count <= plan->dep_count;
    for (uint32_t k = 0; k < op->dep_count && good; k++) {
      const uint32_t dep = plan->deps[op->dep_first + k];
      good = dep < i && plan->ops[dep].awaited;
    }
    if (!good) return tws_fail(err, TWS_INTERNAL, NULL, "rank %d: operation %u is malformed", plan->rank, i);
  }
  return TWS_OK;
}

static int queue_of(const tws_run *run, const tws_op *op) {
  return run->mode == TWS_RUN_SERIAL ? 0 : op->stream;
}

static int communicates(const tws_plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const int kind = plan->works[i].kind;
    if (kind == TWS_OP_COLLECTIVE || kind == TWS_OP_SEND || kind == TWS_OP_RECV) return 1;
  }
  return 0;
}

static tws_code prepare_rank(tws_run *run, tws_run_rank *r, const tws_plan *plan, tws_error *err) {
  TWS_TRY(check_plan(plan, err));
  r->plan = plan;
  r->times = tws_arena_alloc(run->arena, plan->op_count + 1u, sizeof *r->times);
  r->state = tws_arena_alloc(run->arena, plan->op_count + 1u, 1);
  r->next = tws_arena_alloc(run->arena, plan->op_count + 1u, sizeof *r->next);
  if (!r->times || !r->state || !r->next) return no_memory(err);
  if (run->rank_count == 1 && !run->every_rendezvous && (run->absent == TWS_ABSENT_ANY || !communicates(plan)))
    return TWS_OK;
  r->rendezvous = tws_arena_alloc(run->arena, plan->op_count + 1u, sizeof *r->rendezvous);
  return r->rendezvous ? TWS_OK : no_memory(err);
}

static tws_code prepare_ranks(tws_run *run, const tws_run_request *request, tws_error *err) {
  if (request->count < 1 || !request->plans) return tws_fail(err, TWS_INVALID, NULL, "there are no plans to run");
  run->world = request->plans[0]->world;
  run->rank_count = request->count;
  run->queue_size = (uint32_t)request->count * TWS_STREAM_COUNT; /* at most one ready operation per queue: its head */
  if (run->world < 1) return tws_fail(err, TWS_INVALID, NULL, "a job of %d ranks", run->world);
  run->ranks = tws_arena_alloc(run->arena, (size_t)run->rank_count, sizeof *run->ranks);
  run->rank_of = tws_arena_alloc(run->arena, (size_t)run->world, sizeof *run->rank_of);
  run->queue = tws_arena_alloc(run->arena, run->queue_size, sizeof *run->queue);
  if (!run->ranks || !run->rank_of || !run->queue) return no_memory(err);
  memset(run->rank_of, 0xff, (size_t)run->world * sizeof *run->rank_of); /* -1 */
  for (int i = 0; i < run->rank_count; i++) {
    const tws_plan *plan = request->plans[i];
    if (plan->world != run->world || plan->rank < 0 || plan->rank >= run->world || run->rank_of[plan->rank] >= 0)
      return tws_fail(err, TWS_INVALID, NULL, "plan %d is of rank %d of %d, which does not fit the others", i,
                      plan->rank, plan->world);
    run->rank_of[plan->rank] = i;
    TWS_TRY(prepare_rank(run, &run->ranks[i], plan, err));
  }
  return run->ranks[0].rendezvous ? tws_rendezvous_make(run, err) : TWS_OK;
}

tws_code tws_run_create(const tws_run_request *request, tws_run **out, tws_error *err) {
  *out = NULL;
  tws_run *run = tws_calloc(1, sizeof *run);
  if (!run) return no_memory(err);
  run->absent = request->absent;
  run->every_rendezvous = request->every_rendezvous;
  run->arena = tws_arena_create();
  const tws_code code = run->arena ? prepare_ranks(run, request, err) : no_memory(err);
  if (code != TWS_OK) {
    tws_run_destroy(run);
    return code;
  }
  tws_run_reset(run, request->mode);
  *out = run;
  return TWS_OK;
}

void tws_run_destroy(tws_run *run) {
  if (!run) return;
  for (size_t i = 0; i < run->communicator_count; i++) tws_free(run->communicators[i].rendezvous);
  tws_free(run->communicators);
  tws_free(run->rendezvous);
  tws_free(run->members);
  tws_arena_destroy(run->arena);
  tws_free(run);
}

/* ---- running ---- */

static void push_start(tws_run *run, tws_run_start start) {
  uint32_t at = run->queue_head + run->queue_count++;
  run->queue[at < run->queue_size ? at : at - run->queue_size] = start;
}

/* Called when an operation becomes the head of a queue: if its dependencies have ended, it is ready. Returns 1 if it
 * may start alone; if it completes a rendezvous, the rendezvous is put into the queue of ready operations. */
static int may_start_alone(tws_run *run, uint32_t rank, int queue) {
  tws_run_rank *r = &run->ranks[rank];
  const uint32_t op = r->head[queue];
  if (op == TWS_NONE || r->state[op] != TWS_RUN_WAITS) return 0;
  const tws_op *o = &r->plan->ops[op];
  double ready = r->free_at[queue];
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = r->plan->deps[o->dep_first + i];
    if (r->state[dep] != TWS_RUN_ENDED) return 0;
    if (r->times[dep].end_s > ready) ready = r->times[dep].end_s;
  }
  r->state[op] = TWS_RUN_READY;
  r->times[op].ready_s = r->times[op].met_s = ready;
  const uint32_t id = r->rendezvous ? r->rendezvous[op] : TWS_NONE;
  if (id == TWS_NONE) return 1;
  tws_rendezvous *met = &run->rendezvous[id];
  if (met->arrived == 0 || ready > met->met_s) met->met_s = ready;
  if (++met->arrived == met->needed) push_start(run, (tws_run_start){.rendezvous = id, .rank = rank, .op = op});
  return 0;
}

static void look_at(tws_run *run, uint32_t rank, int queue) {
  if (may_start_alone(run, rank, queue))
    push_start(run, (tws_run_start){.rendezvous = TWS_NONE, .rank = rank, .op = run->ranks[rank].head[queue]});
}

void tws_run_reset(tws_run *run, tws_run_mode mode) {
  run->mode = mode;
  run->queue_head = run->queue_count = 0;
  for (size_t i = 0; i < run->rendezvous_count; i++) run->rendezvous[i].arrived = 0;
  for (int rank = 0; rank < run->rank_count; rank++) {
    tws_run_rank *r = &run->ranks[rank];
    uint32_t last[TWS_STREAM_COUNT];
    memset(last, 0xff, sizeof last);       /* TWS_NONE */
    memset(r->head, 0xff, sizeof r->head); /* TWS_NONE */
    memset(r->free_at, 0, sizeof r->free_at);
    memset(r->state, 0, r->plan->op_count);
    r->left = r->plan->op_count;
    for (uint32_t op = 0; op < r->plan->op_count; op++) {
      const int queue = queue_of(run, &r->plan->ops[op]);
      r->next[op] = TWS_NONE;
      *(last[queue] == TWS_NONE ? &r->head[queue] : &r->next[last[queue]]) = op;
      last[queue] = op;
    }
  }
  for (int rank = 0; rank < run->rank_count; rank++)
    for (int queue = 0; queue < TWS_STREAM_COUNT; queue++) look_at(run, (uint32_t)rank, queue);
}

int tws_run_next(tws_run *run, tws_run_start *start) {
  if (!run->queue_count) return 0;
  *start = run->queue[run->queue_head++];
  run->queue_count--;
  if (run->queue_head == run->queue_size) run->queue_head = 0;
  return 1;
}

/* Records the end of an operation, and examines the heads of other queues, which may have waited for it. Returns the
 * index of the operation's own queue. */
static int end_op(tws_run *run, uint32_t rank, uint32_t op, double end_s) {
  tws_run_rank *r = &run->ranks[rank];
  const tws_op *o = &r->plan->ops[op];
  const int queue = queue_of(run, o);
  const uint32_t id = r->rendezvous ? r->rendezvous[op] : TWS_NONE;
  tws_op_times *t = &r->times[op];
  if (id != TWS_NONE) t->met_s = run->rendezvous[id].met_s;
  t->end_s = end_s;
  r->state[op] = TWS_RUN_ENDED;
  r->free_at[queue] = end_s;
  r->head[queue] = r->next[op];
  r->left--;
  for (int other = 0; o->awaited && other < TWS_STREAM_COUNT; other++)
    if (other != queue) look_at(run, rank, other);
  return queue;
}

void tws_run_end(tws_run *run, uint32_t rank, uint32_t op, double end_s) {
  look_at(run, rank, end_op(run, rank, op, end_s));
}

/* ---- known durations ---- */

static double seconds_of(const tws_run *run, const tws_run_durations *d, uint32_t rank, uint32_t op) {
  const tws_op *o = &run->ranks[rank].plan->ops[op];
  if (d->message && (o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV)) return d->message(d->user, rank, op);
  return d->seconds ? d->seconds[rank][o->work] : 0;
}

static void meet_others(tws_run *run, const tws_run_durations *d, uint32_t id) {
  const tws_rendezvous met = run->rendezvous[id];
  /* members may have different costs, since their groups may have different numbers of ranks on the first node */
  double longest = 0;
  for (uint32_t i = 0; i < met.needed; i++) {
    const tws_run_member *member = &run->members[met.member_first + i];
    const double seconds = seconds_of(run, d, member->rank, member->op);
    if (seconds > longest) longest = seconds;
  }
  for (uint32_t i = 0; i < met.needed; i++) {
    const tws_run_member *member = &run->members[met.member_first + i];
    tws_run_end(run, member->rank, member->op, met.met_s + longest);
  }
}

/* Runs an operation, and the operations after it on its queue that become ready. */
static void run_alone(tws_run *run, const tws_run_durations *d, uint32_t rank, uint32_t op) {
  const tws_run_rank *r = &run->ranks[rank];
  for (;;) {
    const int queue = end_op(run, rank, op, r->times[op].ready_s + seconds_of(run, d, rank, op));
    if (!may_start_alone(run, rank, queue)) return;
    op = r->head[queue];
  }
}

/* Runs a single rank without rendezvous in issue order, which satisfies all dependencies. */
static void walk_streams(tws_run *run, const tws_run_durations *d) {
  tws_run_rank *r = &run->ranks[0];
  const tws_plan *plan = r->plan;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const int queue = queue_of(run, o);
    double ready = r->free_at[queue];
    for (uint32_t i = 0; i < o->dep_count; i++) {
      const double end = r->times[plan->deps[o->dep_first + i]].end_s;
      if (end > ready) ready = end;
    }
    r->free_at[queue] = ready + seconds_of(run, d, 0, op);
    r->times[op] = (tws_op_times){ready, ready, r->free_at[queue]};
  }
  memset(r->state, TWS_RUN_ENDED, plan->op_count);
  memset(r->head, 0xff, sizeof r->head); /* TWS_NONE */
  run->queue_count = r->left = 0;
}

void tws_run_all(tws_run *run, const tws_run_durations *d) {
  tws_run_start start;
  if (run->rank_count == 1 && !run->ranks[0].rendezvous && run->ranks[0].left == run->ranks[0].plan->op_count) {
    walk_streams(run, d);
    return;
  }
  while (tws_run_next(run, &start)) {
    if (start.rendezvous != TWS_NONE)
      meet_others(run, d, start.rendezvous);
    else
      run_alone(run, d, start.rank, start.op);
  }
}

/* ---- the end ---- */

/* Returns the first operation of an unfinished rank that has not ended. */
static uint32_t first_left(const tws_run_rank *r) {
  uint32_t op = 0;
  while (r->state[op] == TWS_RUN_ENDED) op++;
  return op;
}

tws_code tws_run_check(const tws_run *run, tws_error *err) {
  char here[256], there[256];
  int left = -1;
  for (int rank = 0; rank < run->rank_count; rank++) {
    const tws_run_rank *r = &run->ranks[rank];
    if (!r->left) continue;
    if (left < 0) left = rank;
    for (uint32_t op = first_left(r); r->rendezvous && op < r->plan->op_count; op++) {
      if (r->state[op] != TWS_RUN_READY || r->rendezvous[op] == TWS_NONE) continue;
      const tws_rendezvous *met = &run->rendezvous[r->rendezvous[op]];
      for (uint32_t i = 0; i < met->needed; i++) {
        const tws_run_member *member = &run->members[met->member_first + i];
        const tws_run_rank *late = &run->ranks[member->rank];
        if (late->state[member->op] == TWS_RUN_READY) continue;
        return tws_fail(err, TWS_INTERNAL, "the plans of these ranks wait for each other: please report it",
                        "deadlock: %s waits for %s", tws_run_describe(run, (uint32_t)rank, op, here, sizeof here),
                        tws_run_describe(run, member->rank, first_left(late), there, sizeof there));
      }
    }
  }
  if (left < 0) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, NULL, "%s can never start",
                  tws_run_describe(run, (uint32_t)left, first_left(&run->ranks[left]), here, sizeof here));
}
