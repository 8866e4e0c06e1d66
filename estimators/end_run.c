#include "estimators/end_run.h"

#include <string.h>

#include "estimators/tail_order.h"

/* Before the end's own operations, each the first of its stream; on that of exchanges the gradients of each reduction
 * are complete. */
enum { COMPUTED, MESSAGES, REDUCED, COPIED, BROUGHT, HOSTED, COMPLETE };
static const uint8_t stream_of[COMPLETE] = {TWS_STREAM_COMPUTE,  TWS_STREAM_P2P,     TWS_STREAM_REDUCE,
                                            TWS_STREAM_COPY_OUT, TWS_STREAM_COPY_IN, TWS_STREAM_HOST};

/* How many. */
static uint32_t before_of(const tws_end_rank *r) {
  return COMPLETE + r->reductions;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the end of a step");
}

/* ---- one rank's ---- */

enum { NOTHING, FOR_MESSAGES, FOR_REDUCED, FOR_COMPUTED, FOR_COPIED }; /* what an operation waits for before the end */

static int reduces(const tws_op *o) {
  return o->stream == TWS_STREAM_REDUCE && o->kind == TWS_OP_COLLECTIVE;
}

/* Whether reductions before this operation, which all have ended by then, are of all gradients that another reads. */
static int has_reduced(const tws_plan *plan, uint32_t before, const tws_operand *read) {
  const uint64_t end = read->offset + read->count;
  uint64_t at = read->offset;
  for (int found = 1; at < end && found;) {
    found = 0;
    for (uint32_t op = 0; op < before; op++) {
      const tws_op *o = &plan->ops[op];
      for (int k = 0; k < o->operand_count && reduces(o); k++) {
        const tws_operand *r = &plan->operands[o->operand_first + (uint32_t)k];
        if (r->buffer != plan->gradients || r->offset > at || r->offset + r->count <= at) continue;
        at = r->offset + r->count;
        found = 1;
      }
    }
  }
  return at >= end;
}

/* Whether nothing that an operation uses of the device's is another than gradients that have been reduced. */
static int is_reduced(const tws_plan *plan, uint32_t before, const tws_op *o) {
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
    if (plan->buffers[operand->buffer].tier != TWS_TIER_DEVICE) continue;
    if (operand->buffer != plan->gradients || !has_reduced(plan, before, operand)) return 0;
  }
  return 1;
}

typedef struct waits_finder {
  const tws_plan *plan;
  uint8_t *waits, *computed; /* per operation: what it waits for; that it is behind some on the stream that computes */
  uint32_t *reduced;         /* likewise: reductions before this operation have ended */
} waits_finder;

/* Behind the stream that computes all is complete, and behind a reduction what it reduces; 0: something else is taken
 * from the device. */
static int find_wait(const waits_finder *f, uint32_t op, uint32_t last, tws_end_rank *out) {
  const tws_plan *plan = f->plan;
  const tws_op *o = &plan->ops[op];
  f->computed[op] = o->stream == TWS_STREAM_COMPUTE || (last != TWS_NONE && f->computed[last]);
  f->reduced[op] = reduces(o) ? op + 1 : last != TWS_NONE ? f->reduced[last] : 0;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = plan->deps[o->dep_first + i];
    if (dep < out->first) continue;
    f->computed[op] |= f->computed[dep];
    if (f->reduced[dep] > f->reduced[op]) f->reduced[op] = f->reduced[dep];
  }
  if (o->kind == TWS_OP_COLLECTIVE && plan->groups[plan->works[o->work].group].axes == TWS_AXES_PIPE)
    f->waits[op] = FOR_MESSAGES; /* they share a channel */
  if (reduces(o)) f->waits[op] = FOR_REDUCED;
  out->reductions += (uint32_t)reduces(o);
  /* see plan/finish.c */
  if (!f->computed[op] && tws_op_ends_passes(plan, o)) {
    f->waits[op] = FOR_COMPUTED;
    f->computed[op] = 1;
  }
  if (plan->in_step && !f->computed[op]) f->waits[op] = FOR_COPIED;
  return f->waits[op] || f->computed[op] || is_reduced(plan, f->reduced[op], o);
}

/* waits: per operation, zeros; 0: they are not known. */
static int find_waits(const tws_plan *plan, uint8_t *waits, tws_arena *scratch, tws_end_rank *out) {
  uint32_t last[TWS_STREAM_COUNT];
  waits_finder f = {.plan = plan,
                    .waits = waits,
                    .computed = tws_arena_alloc(scratch, plan->op_count + 1u, 1),
                    .reduced = tws_arena_alloc(scratch, plan->op_count + 1u, sizeof *f.reduced)};
  memset(last, 0xff, sizeof last); /* TWS_NONE */
  if (!f.computed || !f.reduced) return 0;
  for (uint32_t op = out->first; op < out->updated; op++)
    if (plan->ops[op].stream != TWS_STREAM_HOST) return 0;
  for (uint32_t op = out->updated; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const int taken = o->stream == TWS_STREAM_P2P || o->stream == TWS_STREAM_EXCHANGE;
    if (taken || o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV) return 0;
    if (!find_wait(&f, op, last[o->stream], out)) return 0;
    last[o->stream] = op;
  }
  return plan->in_step || tws_tail_has_own_layout(plan);
}

static void put_operation(tws_op *ops, tws_work *works, uint32_t number, uint8_t stream) {
  works[number].kind = TWS_OP_COMPUTE;
  ops[number] = (tws_op){.kind = TWS_OP_COMPUTE,
                         .stream = stream,
                         .phase = TWS_PHASE_BACKWARD,
                         .channel = TWS_CHANNEL_NONE,
                         .place = number == HOSTED ? TWS_PLACE_HOST : TWS_PLACE_DEVICE, /* for the account */
                         .awaited = 1,
                         .work = number,
                         .module = TWS_NONE};
}

/* How many collectives of its group are left out before the end's own. */
static uint32_t left_out(const tws_end_rank *of, const tws_op *o) {
  const tws_plan *plan = of->plan;
  uint32_t count = 0;
  for (uint32_t op = 0; op < of->first; op++)
    count +=
        plan->ops[op].kind == TWS_OP_COLLECTIVE && plan->works[plan->ops[op].work].group == plan->works[o->work].group;
  return count;
}

/* The plan's own operations and dependencies are numbered anew. */
static void renumber(const tws_end_rank *of, const uint8_t *waits, tws_op *ops, uint32_t *dep) {
  tws_plan *plan = of->plan;
  const uint32_t before = before_of(of);
  uint32_t deps = 0, reduction = COMPLETE, hosts = 0;
  for (uint32_t op = of->first; op < plan->op_count; op++) {
    const tws_op *own = &plan->ops[op];
    tws_op *o = &ops[op - of->first + before];
    *o = *own;
    o->work += before;
    o->dep_first = deps;
    if (o->kind == TWS_OP_COLLECTIVE) o->match -= left_out(of, own);
    for (uint32_t i = 0; i < own->dep_count; i++)
      if (plan->deps[own->dep_first + i] >= of->first)
        dep[deps++] = plan->deps[own->dep_first + i] - of->first + before;
    if (waits[op] == FOR_MESSAGES) dep[deps++] = MESSAGES;
    if (waits[op] == FOR_REDUCED) dep[deps++] = reduction++;
    if (waits[op] == FOR_COMPUTED) dep[deps++] = COMPUTED;
    if (op >= of->updated && o->stream == TWS_STREAM_HOST && !hosts++ && of->updated > of->first) dep[deps++] = HOSTED;
    for (uint32_t i = REDUCED; i <= BROUGHT && waits[op] == FOR_COPIED; i++) dep[deps++] = i;
    o->dep_count = (uint16_t)(deps - o->dep_first);
  }
  plan->dep_count = deps;
}

/* 0: no memory. */
static int put_before(const tws_end_rank *of, const uint8_t *waits) {
  tws_plan *plan = of->plan;
  const uint32_t before = before_of(of), count = plan->op_count - of->first + before;
  tws_op *ops = tws_calloc(count, sizeof *ops);
  uint32_t *dep = tws_calloc(plan->dep_count + (BROUGHT - REDUCED + 2) * (size_t)count, sizeof *dep);
  tws_work *works = tws_calloc(plan->work_count + (size_t)before, sizeof *works);
  if (!ops || !dep || !works) {
    tws_free(ops);
    tws_free(dep);
    tws_free(works);
    return 0;
  }
  memcpy(works + before, plan->works, plan->work_count * sizeof *works);
  for (uint32_t i = 0; i < before; i++) put_operation(ops, works, i, i < COMPLETE ? stream_of[i] : TWS_STREAM_EXCHANGE);
  if (of->updated > of->first) ops[HOSTED].stream = TWS_STREAM_P2P; /* the update is before it on its own */
  renumber(of, waits, ops, dep);
  tws_free(plan->ops);
  tws_free(plan->deps);
  tws_free(plan->works);
  plan->ops = ops;
  plan->deps = dep;
  plan->works = works;
  plan->op_count = count;
  plan->work_count += before;
  return 1;
}

static int find_times(const tws_costs *costs, tws_end_rank *out) {
  const tws_plan *plan = out->plan;
  out->times = tws_calloc(plan->work_count, sizeof *out->times);
  for (uint32_t w = before_of(out); w < plan->work_count && out->times; w++)
    out->times[w] = tws_time_of_work(&plan->works[w], costs->work(costs->user, plan, w));
  for (uint32_t op = out->first; op < out->updated && out->times; op++)
    out->updating_s += out->times[plan->ops[op - out->first + before_of(out)].work].other;
  return out->times != NULL;
}

static tws_code take(tws_plan_sample *sample, const tws_costs *costs, tws_arena *scratch, tws_end_rank *out,
                     tws_error *err) {
  tws_plan *plan = sample->plan;
  uint8_t *waits = scratch ? tws_arena_alloc(scratch, plan->op_count + 1u, 1) : NULL;
  if (!waits) return no_memory(err);
  out->first = sample->begun;
  out->updated = sample->updated;
  if (!find_waits(plan, waits, scratch, out)) {
    *out = (tws_end_rank){.plan = NULL};
    return TWS_OK;
  }
  out->plan = plan;
  sample->plan = NULL;
  if (put_before(out, waits) && find_times(costs, out)) return TWS_OK;
  tws_end_rank_free(out);
  return no_memory(err);
}

tws_code tws_end_rank_take(tws_plan_sample *sample, const tws_costs *costs, tws_end_rank *out, tws_error *err) {
  tws_arena *scratch = tws_arena_create();
  tws_end_rank_free(out);
  const tws_code code = take(sample, costs, scratch, out, err);
  tws_arena_destroy(scratch);
  return code;
}

void tws_end_rank_free(tws_end_rank *rank) {
  tws_plan_destroy(rank->plan);
  tws_free(rank->times);
  *rank = (tws_end_rank){.plan = NULL};
}

int tws_end_copies(const tws_plan_sample *sample, const tws_costs *costs, uint32_t count, double *seconds) {
  const tws_plan *plan = sample->plan;
  uint32_t reduction = 0;
  for (uint32_t op = sample->updated; op < plan->op_count && plan->ops[op].phase != TWS_PHASE_STEP; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->stream == TWS_STREAM_COMPUTE) continue;
    if (reduces(o)) {
      reduction++;
      continue;
    }
    if (!reduction || reduction > count || !is_reduced(plan, op, o)) return 0;
    seconds[reduction - 1] += costs->work(costs->user, plan, o->work);
  }
  return reduction == count;
}

/* ---- all of them ---- */

/* What no run looks at. */
static void forget_operands(tws_plan *plan) {
  tws_free(plan->operands);
  tws_free(plan->buffers);
  tws_free(plan->arguments);
  plan->operands = NULL;
  plan->buffers = NULL;
  plan->arguments = NULL;
}

static tws_code make_run(tws_end_run *r, tws_error *err) {
  const tws_plan **plans = tws_calloc((size_t)r->count, sizeof *plans);
  const tws_run_request request = {
      .plans = plans, .count = r->count, .mode = TWS_RUN_STREAMS, .absent = TWS_ABSENT_ANY};
  r->seconds = tws_calloc((size_t)r->count, sizeof *r->seconds);
  tws_code code = plans && r->seconds ? TWS_OK : no_memory(err);
  for (int i = 0; i < r->count && code == TWS_OK; i++) {
    const tws_plan *plan = plans[i] = r->ranks[i].plan;
    r->seconds[i] = tws_calloc(plan->work_count, sizeof **r->seconds);
    if (!r->seconds[i]) code = no_memory(err);
    r->bytes += plan->op_count * (sizeof *plan->ops + sizeof(tws_op_times) + 2 * sizeof(uint32_t)) +
                plan->work_count * (sizeof *plan->works + sizeof(tws_piece_time) + sizeof(double)) +
                plan->dep_count * sizeof *plan->deps;
  }
  if (code == TWS_OK) code = tws_run_create(&request, &r->run, err);
  for (int i = 0; i < r->count; i++) forget_operands(r->ranks[i].plan);
  tws_free(plans);
  return code;
}

tws_code tws_end_run_create(tws_end_rank *ranks, int count, tws_end_run **out, tws_error *err) {
  tws_end_run *r = *out = tws_calloc(1, sizeof *r);
  int known = 1;
  if (!r) {
    for (int i = 0; i < count; i++) tws_end_rank_free(&ranks[i]);
    tws_free(ranks);
    return no_memory(err);
  }
  *r = (tws_end_run){.ranks = ranks, .count = count};
  for (int i = 0; i < count; i++) known &= ranks[i].plan != NULL;
  const tws_code code = known ? make_run(r, err) : TWS_OK;
  if (code == TWS_OK) return TWS_OK;
  tws_end_run_destroy(r);
  *out = NULL;
  return code;
}

void tws_end_run_destroy(tws_end_run *r) {
  if (!r) return;
  tws_run_destroy(r->run);
  for (int i = 0; i < r->count; i++) {
    if (r->seconds) tws_free(r->seconds[i]);
    tws_end_rank_free(&r->ranks[i]);
  }
  tws_free(r->seconds);
  tws_free(r->ranks);
  tws_free(r);
}

/* What stands before a rank's end. */
static void put_start(const tws_end_rank *rank, const tws_end_start *s, double *seconds) {
  double complete_s = 0;
  seconds[COMPUTED] = s->computed_s;
  seconds[MESSAGES] = s->messages_s;
  seconds[REDUCED] = s->reduced_s;
  seconds[COPIED] = s->copied_s;
  seconds[BROUGHT] = s->brought_s;
  seconds[HOSTED] = s->hosted_s;
  for (uint32_t i = 0; i < rank->reductions; i++) { /* each behind the one before */
    const double until_s = s->complete_s[i];
    seconds[COMPLETE + i] = until_s > complete_s ? until_s - complete_s : 0;
    complete_s += seconds[COMPLETE + i];
  }
}

void tws_end_run_go(tws_end_run *r, const tws_end_start *starts, double *ended_s) {
  for (int i = 0; i < r->count; i++) {
    const tws_end_rank *rank = &r->ranks[i];
    put_start(rank, &starts[i], r->seconds[i]);
    for (uint32_t w = before_of(rank); w < rank->plan->work_count; w++)
      r->seconds[i][w] = tws_stretched_seconds(rank->times[w], starts[i].stretch);
  }
  tws_run_reset(r->run, TWS_RUN_STREAMS);
  tws_run_through(r->run, &(tws_run_durations){.seconds = (const double *const *)r->seconds});
  for (int i = 0; i < r->count; i++) {
    ended_s[i] = starts[i].computed_s;
    for (int q = 0; q < TWS_STREAM_COUNT; q++)
      if (q != TWS_STREAM_P2P && r->run->ranks[i].free_at[q] > ended_s[i]) ended_s[i] = r->run->ranks[i].free_at[q];
  }
}

static uint32_t cause(const tws_run_rank *of, uint32_t op) {
  uint32_t before = op;
  while (before > 0 && of->plan->ops[before - 1].stream != of->plan->ops[op].stream) before--;
  return tws_path_cause(of->plan, of->times, before > 0 ? before - 1 : TWS_NONE, op);
}

int tws_end_run_waits_for_host(const tws_end_run *r, int rank) {
  const tws_run_rank *of = &r->run->ranks[rank];
  const uint32_t before = before_of(&r->ranks[rank]), count = of->plan->op_count;
  uint32_t op = before, last = COMPUTED;
  while (op < count && of->plan->ops[op].stream != TWS_STREAM_COMPUTE) op++;
  for (uint32_t i = before; i < count; i++)
    if (of->times[i].end_s > of->times[last].end_s) last = i;
  if (op < count && !(of->times[op].ready_s > of->times[COMPUTED].end_s)) return 0;
  op = op < count ? cause(of, op) : last;
  while (op != TWS_NONE && op >= before) op = cause(of, op);
  return op == HOSTED;
}

/* The messages' operation is none of a pipeline for the account: what waited for it is taken off there, and goes to the
 * stage that knows why they came late. */
static double take_off_messages(const tws_end_run *r, int rank, tws_rhythm_stage *stage) {
  const tws_run_rank *of = &r->run->ranks[rank];
  const double messages_s = r->seconds[rank][MESSAGES];
  double computed_s = 0, waited_s = 0;
  for (uint32_t op = 0; op < of->plan->op_count; op++) {
    const tws_op *o = &of->plan->ops[op];
    const tws_op_times *t = &of->times[op];
    if (o->stream != TWS_STREAM_COMPUTE) continue;
    if (t->ready_s > computed_s && !(t->ready_s > messages_s) && !(t->ready_s < messages_s)) {
      tws_rhythm_gap(stage, computed_s, messages_s);
      waited_s += messages_s - computed_s;
    }
    computed_s = t->end_s;
  }
  return waited_s;
}

tws_code tws_end_run_account(const tws_end_run *r, int rank, tws_rhythm_stage *stage, tws_composed_account *account,
                             tws_error *err) {
  const tws_run_rank *of = &r->run->ranks[rank];
  tws_path_result path;
  double own_s = 0;
  for (uint32_t op = 0; op < of->plan->op_count; op++)
    if (of->times[op].end_s > own_s) own_s = of->times[op].end_s;
  TWS_TRY(tws_path_read(of->plan, of->times, 0, own_s, &path, err));
  path.axis_exposed_s[TWS_REPORT_OTHER] -= take_off_messages(r, rank, stage);
  account->bubble_s += path.bubble_s;
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) account->axis_exposed_s[axis] += path.axis_exposed_s[axis];
  return TWS_OK;
}
