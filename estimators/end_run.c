#include "estimators/end_run.h"

#include <string.h>

#include "estimators/tail_order.h"

/* Before the end's own operations, on streams where these have none, but for what computes. */
enum { COMPUTED, MESSAGES, GRADIENTS, BEFORE };
static const uint8_t stream_before[BEFORE] = {TWS_STREAM_COMPUTE, TWS_STREAM_P2P, TWS_STREAM_EXCHANGE};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the end of a step");
}

/* ---- one rank's ---- */

static int touches_device(const tws_plan *plan, const tws_op *o) {
  for (int k = 0; k < o->operand_count; k++)
    if (plan->buffers[plan->operands[o->operand_first + (uint32_t)k].buffer].tier == TWS_TIER_DEVICE) return 1;
  return 0;
}

/* All of them, and nothing else that is on the device. */
static int reads_gradients(const tws_plan *plan, const tws_op *o) {
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
    const tws_buffer *b = &plan->buffers[operand->buffer];
    if (b->tier == TWS_TIER_DEVICE && (operand->buffer != plan->gradients || operand->count != b->elements)) return 0;
  }
  return 1;
}

/* What each operation waits for that stands before the end: behind the stream that computes all of that does; else what
 * is on the device has to be all gradients. waits: per operation; 0: it is not known. */
static int find_waits(const tws_plan *plan, uint8_t *waits, uint8_t *behind, tws_end_rank *out) {
  uint32_t last[TWS_STREAM_COUNT];
  memset(last, 0xff, sizeof last); /* TWS_NONE */
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const int taken = o->stream == TWS_STREAM_P2P || o->stream == TWS_STREAM_EXCHANGE;
    const int meets_stages =
        o->kind == TWS_OP_COLLECTIVE && plan->groups[plan->works[o->work].group].axes == TWS_AXES_PIPE;
    behind[op] = o->stream == TWS_STREAM_COMPUTE || (last[o->stream] != TWS_NONE && behind[last[o->stream]]);
    for (uint32_t i = 0; i < o->dep_count; i++) behind[op] |= behind[plan->deps[o->dep_first + i]];
    last[o->stream] = op;
    if (taken || o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV) return 0;
    waits[op] = meets_stages ? 1u << MESSAGES : 0; /* they share a channel */
    if (behind[op] || !touches_device(plan, o)) continue;
    if (!reads_gradients(plan, o)) return 0;
    waits[op] |= 1u << GRADIENTS;
    out->of_gradients = 1;
  }
  return tws_tail_has_own_layout(plan);
}

/* The plan's own operations and dependencies are numbered anew; 0: no memory. */
static int put_before(tws_plan *plan, const uint8_t *waits) {
  const uint32_t count = plan->op_count + BEFORE;
  uint32_t deps = 0;
  tws_op *ops = tws_calloc(count, sizeof *ops);
  uint32_t *dep = tws_calloc(plan->dep_count + (size_t)BEFORE * count, sizeof *dep);
  tws_work *works = tws_calloc(plan->work_count + (size_t)BEFORE, sizeof *works);
  if (!ops || !dep || !works) {
    tws_free(ops);
    tws_free(dep);
    tws_free(works);
    return 0;
  }
  memcpy(works + BEFORE, plan->works, plan->work_count * sizeof *works);
  for (uint32_t i = 0; i < BEFORE; i++) {
    works[i].kind = TWS_OP_COMPUTE;
    ops[i] = (tws_op){.kind = TWS_OP_COMPUTE,
                      .stream = stream_before[i],
                      .phase = TWS_PHASE_BACKWARD,
                      .channel = TWS_CHANNEL_NONE,
                      .awaited = 1,
                      .work = i,
                      .module = TWS_NONE};
  }
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *own = &plan->ops[op];
    tws_op *o = &ops[op + BEFORE];
    *o = *own;
    o->work += BEFORE;
    o->dep_first = deps;
    for (uint32_t i = 0; i < own->dep_count; i++) dep[deps++] = plan->deps[own->dep_first + i] + BEFORE;
    for (uint32_t i = 0; i < BEFORE; i++)
      if (waits[op] >> i & 1) dep[deps++] = i;
    o->dep_count = (uint16_t)(deps - o->dep_first);
  }
  tws_free(plan->ops);
  tws_free(plan->deps);
  tws_free(plan->works);
  plan->ops = ops;
  plan->deps = dep;
  plan->works = works;
  plan->op_count = count;
  plan->dep_count = deps;
  plan->work_count += BEFORE;
  return 1;
}

static int find_times(const tws_costs *costs, tws_end_rank *out) {
  const tws_plan *plan = out->plan;
  out->times = tws_calloc(plan->work_count, sizeof *out->times);
  for (uint32_t w = BEFORE; w < plan->work_count && out->times; w++)
    *(tws_is_launched(&plan->works[w]) ? &out->times[w].kernel : &out->times[w].other) =
        costs->work(costs->user, plan, w);
  return out->times != NULL;
}

tws_code tws_end_rank_take(tws_plan_sample *sample, const tws_costs *costs, tws_end_rank *out, tws_error *err) {
  tws_plan *plan = sample->plan;
  tws_end_rank_free(out);
  uint8_t *waits = tws_calloc(2 * (size_t)plan->op_count + 1, 1);
  if (!waits) return no_memory(err);
  const int known = find_waits(plan, waits, waits + plan->op_count, out);
  if (known) {
    out->plan = plan;
    sample->plan = NULL;
  }
  const int made = !known || (put_before(plan, waits) && find_times(costs, out));
  tws_free(waits);
  if (made) return TWS_OK;
  tws_end_rank_free(out);
  return no_memory(err);
}

void tws_end_rank_free(tws_end_rank *rank) {
  tws_plan_destroy(rank->plan);
  tws_free(rank->times);
  *rank = (tws_end_rank){.plan = NULL};
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

void tws_end_run_go(tws_end_run *r, const tws_end_start *starts, double *ended_s) {
  for (int i = 0; i < r->count; i++) {
    const tws_end_start *s = &starts[i];
    const tws_end_rank *rank = &r->ranks[i];
    double *seconds = r->seconds[i];
    seconds[COMPUTED] = s->computed_s;
    seconds[MESSAGES] = s->messages_s;
    seconds[GRADIENTS] = s->gradients_s;
    for (uint32_t w = BEFORE; w < rank->plan->work_count; w++)
      seconds[w] = tws_stretched_seconds(rank->times[w], s->stretch);
  }
  tws_run_reset(r->run, TWS_RUN_STREAMS);
  tws_run_through(r->run, &(tws_run_durations){.seconds = (const double *const *)r->seconds});
  for (int i = 0; i < r->count; i++) {
    ended_s[i] = starts[i].computed_s;
    for (int q = 0; q < TWS_STREAM_COUNT; q++)
      if (q != TWS_STREAM_P2P && r->run->ranks[i].free_at[q] > ended_s[i]) ended_s[i] = r->run->ranks[i].free_at[q];
  }
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
