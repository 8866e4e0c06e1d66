/* Traces of a training: each rank keeps the times and the memory of the steps that are traced, and rank 0 writes them
 * as one Chrome trace. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/host_memory.h"
#include "base/memory.h"
#include "estimators/memory_track.h"
#include "real/train_internal.h"

/* ---- the traced steps ---- */

/* The most events of a rank, which take about 200 bytes each until they are written. */
enum { MOST_EVENTS = 1 << 22 };

tws_code tws_trace_open(tws_training *t, tws_error *err) {
  const tws_trace_schedule *schedule = &t->options->trace_schedule;
  const int64_t steps = tws_trace_schedule_recorded(schedule, t->options->steps - t->first_step);
  if (!t->options->trace_path) return TWS_OK;
  if (schedule->active > 0 && steps == 0)
    return tws_fail(err, TWS_USAGE, "train more steps, or trace earlier ones",
                    "--trace-schedule: none of the %lld steps of this run is traced",
                    (long long)(t->options->steps - t->first_step));
  const uint32_t operations = tws_training_most_ops(t);
  if (steps * operations > MOST_EVENTS)
    return tws_fail(err, TWS_USAGE, "trace fewer steps",
                    "--trace-schedule: %lld steps of %u operations are more than a trace holds (%d)", (long long)steps,
                    operations, (int)MOST_EVENTS);
  t->times = tws_calloc(operations, 2 * sizeof *t->times);
  return t->times ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

tws_trace_phase tws_trace_phase_of(const tws_training *t, int64_t step) {
  const tws_train_options *o = t->options;
  const int64_t wanted = o->trace_step > 0 ? o->trace_step : o->steps;
  if (!o->trace_path) return TWS_TRACE_NONE;
  if (o->trace_schedule.active > 0) return tws_trace_schedule_at(&o->trace_schedule, step - 1 - t->first_step);
  return step == wanted ? TWS_TRACE_ACTIVE : TWS_TRACE_NONE;
}

/* One operation in a message to rank 0. After all records come the labels and the details, zero-terminated, in the same
 * order. */
typedef struct record {
  double start_s, end_s;
  uint64_t meets;
  uint32_t op, micro_batch;
  uint8_t stream, phase, pad[6];
} record;

/* The beginning of the message of one step. */
typedef struct step_header {
  int64_t step;
  uint64_t records, changes;
} step_header;

/* Returns the name of the transport of a rank's communication, for the trace. */
static const char *algorithm_of(const tws_training *t) {
  if (t->cuda) return "nccl";
  return tws_comm_is_shared(t->comm) ? "shared memory" : "messages";
}

tws_code tws_trace_keep(tws_training *t, int64_t step, tws_error *err) {
  const tws_plan *plan = t->programs[t->kind.program];
  tws_memory_change *changes;
  step_header header = {.step = step, .records = plan->op_count};
  size_t count;
  char detail[TWS_OP_DETAIL];
  TWS_TRY(tws_memory_track(plan, t->times, &changes, &count, err));
  header.changes = count;
  tws_text_add_bytes(&t->trace, (const char *)&header, sizeof header);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const record r = {.start_s = t->times[2 * (size_t)i],
                      .end_s = t->times[2 * (size_t)i + 1],
                      .meets = tws_op_meeting(plan, i),
                      .op = i,
                      .micro_batch = op->micro_batch,
                      .stream = op->stream,
                      .phase = op->phase};
    const char *label = tws_executor_label(t->executor, (int)t->kind.program, i);
    tws_op_detail(plan, i, algorithm_of(t), detail, sizeof detail);
    tws_text_add_bytes(&t->trace, (const char *)&r, sizeof r);
    tws_text_add_bytes(&t->trace, label, strlen(label) + 1);
    tws_text_add_bytes(&t->trace, detail, strlen(detail) + 1);
  }
  tws_text_add_bytes(&t->trace, (const char *)changes, count * sizeof *changes);
  tws_free(changes);
  return t->trace.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for the trace") : TWS_OK;
}

/* ---- the file ---- */

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the trace");
}

static tws_code unpack_record(const unsigned char **at, int rank, int64_t step, double origin_s, tws_timeline *timeline,
                              tws_error *err) {
  record r;
  memcpy(&r, *at, sizeof r);
  const char *label = (const char *)*at + sizeof r, *detail = label + strlen(label) + 1;
  *at = (const unsigned char *)detail + strlen(detail) + 1;
  const uint32_t index = tws_timeline_name(timeline, detail);
  const tws_event event = {.name = tws_timeline_name(timeline, label),
                           .detail = index == UINT32_MAX ? 0 : index + 1,
                           .meets = r.meets,
                           .rank = (uint16_t)rank,
                           .stream = r.stream,
                           .phase = r.phase,
                           .op = r.op,
                           .step = (uint32_t)step,
                           .micro_batch = r.micro_batch,
                           .start_s = r.start_s - origin_s,
                           .end_s = r.end_s - origin_s};
  return event.name == UINT32_MAX || tws_timeline_add(timeline, &event) != 0 ? no_memory(err) : TWS_OK;
}

/* Adds the steps of one rank: its origin, then for each step a header, records and changes of memory. */
static tws_code unpack_rank(int rank, const unsigned char *at, const unsigned char *end, tws_timeline *timeline,
                            tws_error *err) {
  double origin_s;
  memcpy(&origin_s, at, sizeof origin_s);
  at += sizeof origin_s;
  while (at < end) {
    step_header header;
    memcpy(&header, at, sizeof header);
    at += sizeof header;
    for (uint64_t i = 0; i < header.records; i++)
      TWS_TRY(unpack_record(&at, rank, header.step, origin_s, timeline, err));
    for (uint64_t i = 0; i < header.changes; i++) {
      tws_memory_change change;
      memcpy(&change, at, sizeof change);
      at += sizeof change;
      if (tws_memory_track_add(timeline, rank, &change, 1, origin_s) != 0) return no_memory(err);
    }
  }
  return TWS_OK;
}

/* Adds counters of the routers, summed over all ranks, for the duration of the step: the share of routes that was
 * dropped, the auxiliary loss, the load of the most loaded expert divided by the mean, and the routes to each expert of
 * each layer. */
static int count_at(const tws_training *t, double at_s, tws_timeline *timeline) {
  const tws_network *network = t->options->plan.network;
  const tws_step_report *report = &t->history[t->traced_step - 1 - t->first_step];
  const double *routed = t->traced_routed;
  char name[160], series[16];
  int failed = tws_timeline_count(timeline, "dropped share", "share", at_s, report->dropped_share) |
               tws_timeline_count(timeline, "auxiliary loss", "loss", at_s, report->auxiliary_loss) |
               tws_timeline_count(timeline, "hottest expert", "even shares", at_s, report->hottest_share);
  for (uint32_t m = 0; m < network->module_count && !failed; m++) {
    if (network->modules[m].type != TWS_MODULE_ROUTER) continue;
    snprintf(name, sizeof name, "routes %s", network->modules[m].name);
    for (int32_t e = 0; e < network->modules[m].routing->experts; e++) {
      snprintf(series, sizeof series, "%d", e);
      failed |= tws_timeline_count(timeline, name, series, at_s, *routed++);
    }
  }
  return failed;
}

static tws_code count_routes(const tws_training *t, tws_timeline *timeline, tws_error *err) {
  double start_s = INFINITY, end_s = 0;
  if (!t->traced_routed) return TWS_OK;
  for (size_t i = 0; i < timeline->event_count; i++) {
    if (timeline->events[i].step != t->traced_step) continue;
    start_s = fmin(start_s, timeline->events[i].start_s);
    end_s = fmax(end_s, timeline->events[i].end_s);
  }
  return !count_at(t, start_s, timeline) && !count_at(t, end_s, timeline) ? TWS_OK : no_memory(err);
}

static tws_code write_trace(const tws_training *t, const unsigned char *all, const uint64_t *offset, tws_error *err) {
  const char *streams[TWS_STREAM_COUNT], *phases[TWS_PHASE_COUNT];
  for (int i = 0; i < TWS_STREAM_COUNT; i++) streams[i] = tws_stream_name((tws_stream)i);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) phases[i] = tws_phase_name((tws_phase)i);
  tws_timeline *timeline = tws_timeline_create("measured");
  if (!timeline) return no_memory(err);
  timeline->stream_names = streams;
  timeline->stream_count = TWS_STREAM_COUNT;
  timeline->phase_names = phases;
  timeline->phase_count = TWS_PHASE_COUNT;
  if (t->options->fingerprint)
    tws_timeline_identify(timeline, t->options->fingerprint->model, t->options->fingerprint->plan);
  tws_code code = TWS_OK;
  for (int r = 0; code == TWS_OK && r < t->world; r++)
    code = unpack_rank(r, all + offset[r], all + offset[r + 1], timeline, err);
  if (code == TWS_OK) code = count_routes(t, timeline, err);
  const tws_timeline *list = timeline;
  if (code == TWS_OK) code = tws_timeline_write_chrome(&list, 1, t->options->trace_path, err);
  tws_timeline_destroy(timeline);
  return code;
}

/* Times are relative to the end of the barrier before the first traced step: ranks of one node read one clock, and the
 * time at which the last rank leaves the barrier is the start for all. */
tws_code tws_report_trace(tws_training *t, tws_error *err) {
  double origin = t->trace_start_s;
  if (tws_comm_is_shared(t->comm)) {
    double negative = -origin;
    TWS_TRY(tws_comm_max(t->comm, &negative, err));
    origin = -negative;
  }
  tws_text packed = {0};
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  tws_text_add_bytes(&packed, (const char *)&origin, sizeof origin);
  tws_text_add_bytes(&packed, t->trace.data ? t->trace.data : "", t->trace.length);
  tws_text_free(&t->trace);
  tws_code code = packed.failed ? no_memory(err) : TWS_OK;
  if (code == TWS_OK) code = tws_comm_gather(t->comm, packed.data, packed.length, &all, &offset, err);
  if (code == TWS_OK && t->rank == 0) code = write_trace(t, all, offset, err);
  tws_text_free(&packed);
  tws_free(all);
  tws_free(offset);
  return code;
}
