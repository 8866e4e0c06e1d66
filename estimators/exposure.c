/* Computes the time account of a rank's step: busy times, and the operations for which the idle compute stream waited.
 *
 * A gap of the compute stream ends when some operation of another stream ends. The gap is attributed backwards along
 * the chain of operations each of which made the next one ready: first to the transfer of the last operation, then to
 * its wait for other ranks, then to the transfer and wait of the operation that made it ready, until the beginning of
 * the gap is reached. No operation is in the chains of two gaps. */
#include <stdio.h>
#include <string.h>

#include "estimators/estimators.h"
#include "models/operator.h"

const char *tws_report_name(int axis) {
  return axis == TWS_REPORT_OTHER ? "other" : tws_axis_name((tws_axis)axis);
}

int tws_report_of_group(const tws_group *group) {
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (group->axes >> axis & 1) return (int)tws_axis_reported((tws_axis)axis);
  return TWS_REPORT_OTHER;
}

typedef struct reader {
  const tws_plan *plan;
  const tws_op_times *times;
  int serial;
  uint32_t *before; /* per operation: its predecessor on its queue, or TWS_NONE */
  tws_path_result *result;
} reader;

static int is_message(const tws_op *o) {
  return o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV;
}

static int report_of_op(const tws_plan *plan, const tws_op *o) {
  if (is_message(o)) return TWS_AXIS_PIPE;
  if (o->kind != TWS_OP_COLLECTIVE) return TWS_REPORT_OTHER;
  return tws_report_of_group(&plan->groups[plan->works[o->work].group]);
}

static int op_computes(const tws_op *o) {
  return o->kind == TWS_OP_COMPUTE || o->kind == TWS_OP_COPY;
}

static void account_for(reader *r, uint32_t op) {
  const tws_op *o = &r->plan->ops[op];
  const tws_work *work = &r->plan->works[o->work];
  const tws_op_times *t = &r->times[op];
  double seconds = t->end_s - t->ready_s;
  tws_path_result *result = r->result;
  result->stream_busy_s[o->stream] += seconds;
  if (o->stream == TWS_STREAM_COMPUTE && o->kind != TWS_OP_COLLECTIVE) result->phase_s[o->phase] += seconds;
  if (o->kind == TWS_OP_COMPUTE) {
    if (o->place == TWS_PLACE_DEVICE || r->serial) result->kernel_s[work->code] += seconds;
    result->flops += tws_work_flops(work);
  } else {
    if (o->kind == TWS_OP_COLLECTIVE) result->collective_s[work->code] += seconds;
    if (!op_computes(o)) result->axis_busy_s[report_of_op(r->plan, o)] += t->end_s - t->met_s;
  }
}

/* Returns 1 if `op` ended after `other`. If both ended at the same time, within rounding, messages count as earlier
 * than other operations; otherwise the order of issue decides. */
static int is_behind(const tws_plan *plan, const tws_op_times *times, uint32_t op, uint32_t other) {
  const double end = times[op].end_s, before = times[other].end_s, near = 1e-12 * end;
  const int message = is_message(&plan->ops[op]);
  if (end > before + near || end < before - near) return end > before;
  return message != is_message(&plan->ops[other]) ? !message : op > other;
}

/* Returns the predecessor that determined when an operation became ready: the last to end of its dependencies and the
 * operation before it on its queue (or TWS_NONE). Among several that end at the same time, within rounding, one that is
 * not a message is preferred, then the one issued last. */
static uint32_t path_cause(const tws_plan *plan, const tws_op_times *times, uint32_t before, uint32_t op) {
  const tws_op *o = &plan->ops[op];
  uint32_t latest = before;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = plan->deps[o->dep_first + i];
    if (latest == TWS_NONE || is_behind(plan, times, dep, latest)) latest = dep;
  }
  return latest;
}

static uint32_t cause(const reader *r, uint32_t op) {
  return path_cause(r->plan, r->times, r->before[op], op);
}

/* Returns the sum of exposed time of offloading to which an operation is added, or NULL if it is no operation of
 * offloading. */
static double *offloading(tws_path_result *result, const tws_op *o) {
  if (o->place == TWS_PLACE_DISK) return &result->disk_exposed_s;
  if (o->kind == TWS_OP_COMPUTE && o->place == TWS_PLACE_HOST) return &result->host_exposed_s;
  /* 1: a copy inside the device's memory */
  const int inside = o->place == TWS_PLACE_DEVICE && o->channel == TWS_CHANNEL_NONE;
  return o->kind == TWS_OP_COPY && o->stream != TWS_STREAM_COMPUTE && !inside ? &result->copies_exposed_s : NULL;
}

/* Attributes a gap of the compute stream, idle from `from` until `op` ended at `to`. */
static void attribute_gap(reader *r, uint32_t op, double from, double to) {
  for (; op != TWS_NONE && to > from; op = cause(r, op)) {
    const tws_op_times *t = &r->times[op];
    double met = t->met_s > from ? t->met_s : from, ready = t->ready_s > from ? t->ready_s : from;
    if (met > to) met = to; /* met > to only by rounding, which occurs if links or cores are shared */
    if (ready > met) ready = met;
    double *part = offloading(r->result, &r->plan->ops[op]);
    *(part ? part : &r->result->axis_exposed_s[report_of_op(r->plan, &r->plan->ops[op])]) += to - met;
    r->result->bubble_s += met - ready;
    to = ready;
  }
}

static void read_gaps(reader *r, double step_s) {
  double free_at = 0, last_end = 0, computing = 0;
  uint32_t last = TWS_NONE;
  for (uint32_t op = 0; op < r->plan->op_count; op++) {
    const tws_op *o = &r->plan->ops[op];
    const tws_op_times *t = &r->times[op];
    if (r->serial || o->stream == TWS_STREAM_COMPUTE) {
      if (t->ready_s > free_at) attribute_gap(r, cause(r, op), free_at, t->ready_s);
      if (op_computes(o)) {
        computing += t->end_s - t->ready_s;
      } else {
        r->result->bubble_s += t->met_s - t->ready_s;
        r->result->axis_exposed_s[report_of_op(r->plan, o)] += t->end_s - t->met_s;
      }
      free_at = t->end_s;
    }
    if (t->end_s > last_end) {
      last_end = t->end_s;
      last = op;
    }
  }
  if (last_end > free_at) attribute_gap(r, last, free_at, last_end);
  if (step_s > last_end) r->result->bubble_s += step_s - last_end;
  r->result->exposed_s = step_s - computing;
}

static void read_passed(const tws_plan *plan, const tws_op_times *times, tws_path_result *result) {
  uint32_t end = plan->op_count;
  while (end > 0 && (plan->ops[end - 1].phase != TWS_PHASE_FORWARD || plan->ops[end - 1].stream != TWS_STREAM_COMPUTE))
    end--;
  for (uint32_t op = 0; op < end; op++) result->passed_s[plan->ops[op].stream] = times[op].end_s;
}

tws_code tws_path_read(const tws_plan *plan, const tws_op_times *times, int serial, double step_s,
                       tws_path_result *result, tws_error *err) {
  reader r = {.plan = plan, .times = times, .serial = serial, .result = result};
  uint32_t last[TWS_STREAM_COUNT];
  memset(result, 0, sizeof *result);
  r.before = tws_calloc(plan->op_count + 1u, sizeof *r.before);
  if (!r.before) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the account of a step");
  for (int i = 0; i < TWS_STREAM_COUNT; i++) last[i] = TWS_NONE;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    uint32_t *queue = &last[serial ? 0 : plan->ops[op].stream];
    r.before[op] = *queue;
    *queue = op;
    account_for(&r, op);
  }
  result->step_s = step_s;
  read_passed(plan, times, result);
  read_gaps(&r, step_s);
  tws_free(r.before);
  tws_path_judge(result);
  return TWS_OK;
}
