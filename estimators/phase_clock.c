#include "estimators/phase_clock.h"

#include "base/memory.h"
#include "models/collective.h"

/* Phases as a bit mask: an operation contributes to the time of each phase whose bit is set for it. */
enum { IS_FORWARD = 1, IS_BACKWARD = 2, IS_REDUCTION = 4, IS_STEP = 8 };

struct tws_phase_clock {
  uint32_t *op;    /* indices of all operations, stream by stream in issue order */
  uint8_t *counts; /* per operation: bit mask of its phases */
  uint32_t first[TWS_STREAM_COUNT + 1];
};

static int is_reduction(const tws_plan *plan, const tws_op *op) {
  return op->kind == TWS_OP_COLLECTIVE && op->channel == TWS_CHANNEL_REPLICAS &&
         tws_collective_of((tws_collective)plan->works[op->work].code)->reduces;
}

static uint8_t counts_for(const tws_plan *plan, const tws_op *op) {
  switch ((tws_phase)op->phase) {
    case TWS_PHASE_FORWARD:
      return IS_FORWARD;
    case TWS_PHASE_BACKWARD:
    case TWS_PHASE_RECOMPUTE:
      return is_reduction(plan, op) ? IS_REDUCTION : IS_BACKWARD;
    case TWS_PHASE_STEP:
      return IS_STEP;
    case TWS_PHASE_COUNT:
      break;
  }
  return 0;
}

tws_code tws_phase_clock_create(const tws_plan *plan, tws_phase_clock **out, tws_error *err) {
  tws_phase_clock *c = tws_calloc(1, sizeof *c);
  *out = c;
  if (c) c->op = tws_calloc((size_t)plan->op_count + 1, sizeof *c->op);
  if (c) c->counts = tws_calloc((size_t)plan->op_count + 1, sizeof *c->counts);
  if (!c || !c->op || !c->counts) {
    tws_phase_clock_destroy(c);
    *out = NULL;
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  uint32_t placed = 0;
  for (int stream = 0; stream < TWS_STREAM_COUNT; stream++) {
    c->first[stream] = placed;
    for (uint32_t i = 0; i < plan->op_count; i++)
      if (plan->ops[i].stream == stream) c->op[placed++] = i;
  }
  c->first[TWS_STREAM_COUNT] = placed;
  for (uint32_t i = 0; i < plan->op_count; i++) c->counts[i] = counts_for(plan, &plan->ops[i]);
  return TWS_OK;
}

void tws_phase_clock_destroy(tws_phase_clock *c) {
  if (!c) return;
  tws_free(c->op);
  tws_free(c->counts);
  tws_free(c);
}

/* The seconds that a list of intervals covers; intervals are added in the order of their starts. */
typedef struct covered {
  double seconds, until;
} covered;

static void cover(covered *c, double start, double end) {
  const double from = start > c->until ? start : c->until;
  if (!(end > from)) return;
  c->seconds += end - from;
  c->until = end;
}

tws_phase_seconds tws_phase_clock_read(tws_phase_clock *c, const double *times) {
  covered forward = {0, -1e300}, inner = forward, reduction = forward, backward = forward, step = forward;
  uint32_t next[TWS_STREAM_COUNT];
  for (int s = 0; s < TWS_STREAM_COUNT; s++) next[s] = c->first[s];
  for (uint32_t done = 0; done < c->first[TWS_STREAM_COUNT]; done++) {
    int earliest = -1;
    for (int s = 0; s < TWS_STREAM_COUNT; s++)
      if (next[s] < c->first[s + 1] &&
          (earliest < 0 || times[2 * (size_t)c->op[next[s]]] < times[2 * (size_t)c->op[next[earliest]]]))
        earliest = s;
    const uint32_t op = c->op[next[earliest]++];
    const double start = times[2 * (size_t)op], end = times[2 * (size_t)op + 1];
    const uint8_t counts = c->counts[op];
    if (counts & IS_FORWARD) cover(&forward, start, end);
    if (counts & IS_BACKWARD) cover(&inner, start, end);
    if (counts & IS_REDUCTION) cover(&reduction, start, end);
    if (counts & (IS_BACKWARD | IS_REDUCTION)) cover(&backward, start, end);
    if (counts & IS_STEP) cover(&step, start, end);
  }
  return (tws_phase_seconds){.forward = forward.seconds,
                             .backward = backward.seconds,
                             .backward_inner = inner.seconds,
                             .reduction = reduction.seconds,
                             .step = step.seconds};
}
