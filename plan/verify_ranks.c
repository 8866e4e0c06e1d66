/* All ranks of a job together: run the plans as if every operation took no time. A collective starts when all members
 * of its group stand before it, a message when both ends do. What cannot start at all is a deadlock. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

typedef struct rank_state {
  const tws_plan *plan;
  uint8_t *done;
  uint32_t *stream_ops[TWS_STREAM_COUNT], length[TWS_STREAM_COUNT], next[TWS_STREAM_COUNT];
  uint32_t left;
} rank_state;

typedef struct job {
  rank_state *ranks;
  int count;
  int part;           /* ranks without a plan stand aside */
  int blame;          /* members that enter something else are an error, not late */
  const int *plan_of; /* rank -> index in ranks, or -1 */
  tws_error *err;
} job;

static tws_code complain(const job *j, int index, uint32_t op, const char *what) {
  char label[160];
  const tws_plan *plan = j->ranks[index].plan;
  return tws_fail(j->err, TWS_INTERNAL, "this is a defect of the plan, not of the input: please report it",
                  "rank %d, operation %u (%s): %s", plan->rank, op, tws_op_label(plan, op, label, sizeof label), what);
}

/* The operation at the head of a stream, when nothing on its own rank holds it back; TWS_NONE otherwise. */
static uint32_t ready(const rank_state *r, int stream) {
  if (r->next[stream] >= r->length[stream]) return TWS_NONE;
  uint32_t op = r->stream_ops[stream][r->next[stream]];
  const tws_op *o = &r->plan->ops[op];
  for (uint32_t i = 0; i < o->dep_count; i++) {
    if (!r->done[r->plan->deps[o->dep_first + i]]) return TWS_NONE;
  }
  return op;
}

static void finish(rank_state *r, uint32_t op) {
  r->done[op] = 1;
  r->next[r->plan->ops[op].stream]++;
  r->left--;
}

int tws_group_same(const tws_group *a, const tws_group *b) {
  return a->size == b->size && memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

static int same_collective(const tws_work *a, const tws_work *b) {
  return a->code == b->code && a->dtype == b->dtype && a->d[0] == b->d[0] && a->segments == b->segments;
}

/* The last member of the group that has a plan: it alone looks for the others, so that a group that is not complete is
 * not gone through again whenever one more member arrives. */
static int is_last(const job *j, int index, const tws_group *group) {
  int last = -1;
  for (int i = group->size - 1; i >= 0 && last < 0; i--) last = j->plan_of[group->ranks[i]];
  return last == index || last < 0;
}

/* Whether the ready collective `op` of rank `index` is met by all other members; heads[] receives their operations. */
static tws_code meet(const job *j, int index, uint32_t op, uint32_t *heads, int *met) {
  const tws_plan *plan = j->ranks[index].plan;
  const tws_work *work = &plan->works[plan->ops[op].work];
  const tws_group *group = &plan->groups[work->group];
  *met = 1;
  for (int i = 0; i < group->size; i++) {
    int other = j->plan_of[group->ranks[i]];
    if (other < 0 && j->part) continue;
    if (other < 0) return complain(j, index, op, "a member of the group has no plan");
    const rank_state *r = &j->ranks[other];
    uint32_t head = TWS_NONE;
    for (int s = 0; s < TWS_STREAM_COUNT && head == TWS_NONE; s++) {
      uint32_t candidate = ready(r, s);
      if (candidate == TWS_NONE || r->plan->ops[candidate].kind != TWS_OP_COLLECTIVE) continue;
      const tws_work *w = &r->plan->works[r->plan->ops[candidate].work];
      if (!tws_group_same(&r->plan->groups[w->group], group) || s != plan->ops[op].stream) continue;
      int same = same_collective(w, work) && r->plan->ops[candidate].peer == plan->ops[op].peer;
      if (!same && !j->blame) continue;
      if (!same) {
        char label[160];
        tws_op_label(r->plan, candidate, label, sizeof label);
        char text[300];
        snprintf(text, sizeof text, "rank %d enters '%s' instead", r->plan->rank, label);
        return complain(j, index, op, text);
      }
      head = candidate;
    }
    heads[i] = head;
    if (head == TWS_NONE) *met = 0;
  }
  return TWS_OK;
}

static tws_code try_collective(job *j, int index, uint32_t op, uint32_t *heads, int *progress) {
  const tws_plan *plan = j->ranks[index].plan;
  const tws_group *group = &plan->groups[plan->works[plan->ops[op].work].group];
  int met = 0;
  if (!is_last(j, index, group)) return TWS_OK;
  TWS_TRY(meet(j, index, op, heads, &met));
  if (!met) return TWS_OK;
  for (int i = 0; i < group->size; i++) {
    int member = j->plan_of[group->ranks[i]];
    if (member >= 0) finish(&j->ranks[member], heads[i]);
  }
  *progress = 1;
  return TWS_OK;
}

static tws_code try_message(job *j, int index, uint32_t op, int *progress) {
  rank_state *mine = &j->ranks[index];
  const tws_op *o = &mine->plan->ops[op];
  int other = (int)o->peer < mine->plan->world ? j->plan_of[o->peer] : -1;
  if (other < 0) return complain(j, index, op, "its peer has no plan");
  rank_state *theirs = &j->ranks[other];
  int want = o->kind == TWS_OP_SEND ? TWS_OP_RECV : TWS_OP_SEND;
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    uint32_t head = ready(theirs, s);
    if (head == TWS_NONE || theirs->plan->ops[head].kind != want ||
        theirs->plan->ops[head].peer != (uint32_t)mine->plan->rank) {
      continue;
    }
    if (theirs->plan->works[theirs->plan->ops[head].work].d[0] != mine->plan->works[o->work].d[0]) {
      return complain(j, index, op, "its peer expects a message of another size");
    }
    finish(mine, op);
    finish(theirs, head);
    *progress = 1;
    return TWS_OK;
  }
  return TWS_OK;
}

static tws_code advance(job *j, int index, uint32_t *heads, int *progress) {
  rank_state *r = &j->ranks[index];
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    for (uint32_t op = ready(r, s); op != TWS_NONE; op = ready(r, s)) {
      uint32_t before = r->left;
      int kind = r->plan->ops[op].kind;
      if (kind == TWS_OP_COLLECTIVE) {
        TWS_TRY(try_collective(j, index, op, heads, progress));
      } else if (kind == TWS_OP_SEND || kind == TWS_OP_RECV) {
        TWS_TRY(try_message(j, index, op, progress));
      } else {
        finish(r, op);
        *progress = 1;
      }
      if (r->left == before) break;
    }
  }
  return TWS_OK;
}

static tws_code prepare(rank_state *r, const tws_plan *plan, tws_arena *arena) {
  r->plan = plan;
  r->left = plan->op_count;
  r->done = tws_arena_alloc(arena, plan->op_count + 1u, 1);
  if (!r->done) return TWS_MEMORY;
  for (uint32_t op = 0; op < plan->op_count; op++) r->length[plan->ops[op].stream]++;
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    r->stream_ops[s] = tws_arena_alloc(arena, r->length[s] + 1u, sizeof *r->stream_ops[s]);
    if (!r->stream_ops[s]) return TWS_MEMORY;
    r->length[s] = 0;
  }
  for (uint32_t op = 0; op < plan->op_count; op++) {
    int s = plan->ops[op].stream;
    r->stream_ops[s][r->length[s]++] = op;
  }
  return TWS_OK;
}

/* When nothing moves any more: a rank that waits in a collective while another member enters a different one says more
 * than that both wait. */
static tws_code disagreement(const job *j, int index, uint32_t *heads) {
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    const rank_state *r = &j->ranks[index];
    uint32_t op = ready(r, s);
    int met;
    if (op != TWS_NONE && r->plan->ops[op].kind == TWS_OP_COLLECTIVE) TWS_TRY(meet(j, index, op, heads, &met));
  }
  return TWS_OK;
}

static tws_code run(job *j, uint32_t *heads) {
  for (int progress = 1; progress;) {
    progress = 0;
    for (int i = 0; i < j->count; i++) TWS_TRY(advance(j, i, heads, &progress));
  }
  j->blame = 1;
  for (int i = 0; i < j->count; i++) TWS_TRY(disagreement(j, i, heads));
  for (int i = 0; i < j->count; i++) {
    for (int s = 0; s < TWS_STREAM_COUNT; s++) {
      if (j->ranks[i].next[s] < j->ranks[i].length[s]) {
        return complain(j, i, j->ranks[i].stream_ops[s][j->ranks[i].next[s]], "can never start: the ranks deadlock");
      }
    }
  }
  return TWS_OK;
}

static tws_code verify(const tws_plan *const *plans, int count, int part, tws_error *err) {
  if (count < 1) return TWS_OK;
  int world = plans[0]->world;
  tws_arena *arena = tws_arena_create();
  rank_state *ranks = arena ? tws_arena_alloc(arena, (size_t)count, sizeof *ranks) : NULL;
  int *plan_of = arena ? tws_arena_alloc(arena, (size_t)world, sizeof *plan_of) : NULL;
  uint32_t *heads = arena ? tws_arena_alloc(arena, (size_t)world, sizeof *heads) : NULL;
  tws_code code = ranks && plan_of && heads ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to verify plans");
  for (int i = 0; code == TWS_OK && i < world; i++) plan_of[i] = -1;
  for (int i = 0; code == TWS_OK && i < count; i++) {
    if (plans[i]->world != world || plans[i]->rank >= world || plan_of[plans[i]->rank] >= 0) {
      code = tws_fail(err, TWS_INTERNAL, NULL, "the plans are not those of the ranks of one job");
      break;
    }
    plan_of[plans[i]->rank] = i;
    if (prepare(&ranks[i], plans[i], arena) != TWS_OK)
      code = tws_fail(err, TWS_MEMORY, NULL, "no memory to verify plans");
  }
  job j = {.ranks = ranks, .count = count, .part = part, .plan_of = plan_of, .err = err};
  if (code == TWS_OK) code = run(&j, heads);
  tws_arena_destroy(arena);
  return code;
}

tws_code tws_plans_verify(const tws_plan *const *plans, int count, tws_error *err) {
  return verify(plans, count, 0, err);
}

tws_code tws_plans_verify_part(const tws_plan *const *plans, int count, tws_error *err) {
  return verify(plans, count, 1, err);
}
