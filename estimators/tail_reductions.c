/* Overlapped stage 0: the end of a step reduces on a stream of its own, one after another from when all gradients of
 * the passes are complete, and what computes waits for these where it first needs them. */
#include "estimators/tail_reductions.h"

#include "estimators/overlap.h"
#include "estimators/tail_order.h"

static int reduces(const tws_op *o) {
  return o->stream == TWS_STREAM_REDUCE && o->kind == TWS_OP_COLLECTIVE;
}

/* Whether nothing else is beside what computes, and reductions wait for each other alone. */
static int is_known(const tws_plan *plan, uint32_t *count) {
  if (!tws_tail_has_own_layout(plan)) return 0;
  *count = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->stream == TWS_STREAM_COMPUTE) continue;
    if (!reduces(o)) return 0;
    for (uint32_t i = 0; i < o->dep_count; i++)
      if (!reduces(&plan->ops[plan->deps[o->dep_first + i]])) return 0;
    ++*count;
  }
  return *count > 0;
}

/* So many reductions an operation waits for. */
static uint32_t needed_by(const tws_plan *plan, const tws_op *o, const uint32_t *number) {
  uint32_t needed = 0;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = plan->deps[o->dep_first + i];
    if (reduces(&plan->ops[dep]) && number[dep] + 1 > needed) needed = number[dep] + 1;
  }
  return needed;
}

/* All reductions take the same one thing, which is all gradients. */
static tws_overlapped *list_reductions(const tws_plan *plan, const tws_piece_time *times, uint32_t count,
                                       tws_arena *arena, uint32_t *number) {
  tws_overlapped *o = tws_arena_alloc(arena, 1, sizeof *o);
  double *takes = tws_arena_alloc(arena, count, sizeof *takes);
  uint8_t *axis = tws_arena_alloc(arena, count, sizeof *axis);
  tws_axes *meets = tws_arena_alloc(arena, count, sizeof *meets);
  uint32_t *first = tws_arena_alloc(arena, count + 1u, sizeof *first);
  uint32_t *of = tws_arena_alloc(arena, count, sizeof *of);
  if (!o || !takes || !axis || !meets || !first || !of) return NULL;
  *o = (tws_overlapped){.of_all = 1, .seconds = takes, .axis = axis, .meets = meets, .first = first, .of = of};
  for (uint32_t op = 0; op < plan->op_count; op++) {
    if (!reduces(&plan->ops[op])) continue;
    number[op] = o->count;
    takes[o->count] = times[op].other;
    axis[o->count] = (uint8_t)tws_piece_axis(tws_report_of_op(plan, &plan->ops[op]));
    meets[o->count] = plan->groups[plan->works[plan->ops[op].work].group].axes;
    o->count++;
    first[o->count] = o->count;
  }
  return o;
}

/* Who waits for them, and for how much of the end then is left. */
static int list_waits(const tws_plan *plan, const tws_piece_time *times, const uint32_t *number, tws_arena *arena,
                      tws_tail_pieces *out, tws_overlapped *o) {
  tws_piece_time total = {0, 0};
  uint32_t waited = 0;
  tws_tail_wait *waits = tws_arena_alloc(arena, o->count + 1u, sizeof *waits);
  uint32_t *needed = tws_arena_alloc(arena, o->count + 1u, sizeof *needed);
  if (!waits || !needed) return 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    if (reduces(&plan->ops[op])) continue;
    const uint32_t own = needed_by(plan, &plan->ops[op], number);
    if (own > waited) {
      waits[out->wait_count].to_the_end = total;
      needed[out->wait_count++] = waited = own;
    }
    total = tws_sum_of_times(total, times[op]);
  }
  if (waited < o->count) { /* the step ends when all have */
    waits[out->wait_count].to_the_end = total;
    needed[out->wait_count++] = o->count;
  }
  for (int i = 0; i < out->wait_count; i++) {
    waits[i].to_the_end.kernel = total.kernel - waits[i].to_the_end.kernel;
    waits[i].to_the_end.other = total.other - waits[i].to_the_end.other;
  }
  out->step_time = total;
  out->waits = waits;
  o->needed = needed;
  return 1;
}

tws_code tws_tail_reductions_find(const tws_plan *plan, const tws_piece_time *times, tws_arena *arena,
                                  tws_tail_pieces *out, tws_error *err) {
  uint32_t count;
  if (!is_known(plan, &count)) return TWS_OK;
  uint32_t *number = tws_calloc(plan->op_count, sizeof *number);
  tws_overlapped *o = number ? list_reductions(plan, times, count, arena, number) : NULL;
  const int listed = o && list_waits(plan, times, number, arena, out, o);
  tws_free(number);
  if (!listed) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the end of a step");
  out->overlapped = o;
  out->overlaps = 1;
  return TWS_OK;
}
