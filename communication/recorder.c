/* Records one rank's latencies for the communication log, and converts the record to bytes and back. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/fingerprint.h"
#include "base/memory.h"
#include "communication/comm_log.h"

static int is_communication(const tws_plan *plan, const tws_op *op) {
  if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) return 1;
  return op->kind == TWS_OP_COLLECTIVE && plan->groups[plan->works[op->work].group].size > 1;
}

static int operation_of(const tws_plan *plan, const tws_op *op) {
  return op->kind == TWS_OP_SEND   ? TWS_COMM_SEND
         : op->kind == TWS_OP_RECV ? TWS_COMM_RECEIVE
                                   : plan->works[op->work].code;
}

static int is_wanted(const tws_plan *plan, const tws_comm_filter *filter, const tws_op *op) {
  return is_communication(plan, op) && (filter->operations >> operation_of(plan, op) & 1);
}

/* Writes the label of the operation without its last word, the kind of operation: "backward h.0.mlp.c_fc". */
static void name_caller(const tws_plan *plan, uint32_t op, char caller[TWS_COMM_CALLER]) {
  char label[160];
  tws_op_label(plan, op, label, (int)sizeof label);
  char *last = strrchr(label, ' ');
  if (last) *last = '\0';
  snprintf(caller, TWS_COMM_CALLER, "%.*s", TWS_COMM_CALLER - 1, label);
}

static void describe_call(const tws_plan *plan, const tws_comm_filter *filter, uint32_t index, tws_comm_call *call) {
  const tws_op *op = &plan->ops[index];
  const tws_work *work = &plan->works[op->work];
  call->key = (tws_comm_key){.operation = (uint8_t)operation_of(plan, op),
                             .dtype = work->dtype,
                             .bytes = tws_op_bytes(plan, index),
                             .ranks = 2};
  if (op->kind == TWS_OP_COLLECTIVE) {
    call->key.axes = plan->groups[work->group].axes;
    call->key.ranks = (uint32_t)plan->groups[work->group].size;
  }
  call->id = tws_op_meeting(plan, index);
  if (filter->by_caller) name_caller(plan, index, call->key.caller);
}

static uint64_t hash_work(const tws_work *work) {
  uint64_t hash = tws_fingerprint_integer(TWS_FINGERPRINT_START, work->kind);
  const int64_t parts[] = {work->code, work->dtype, work->dtype2, work->flags, work->place};
  hash = tws_fingerprint_bytes(hash, parts, sizeof parts);
  hash = tws_fingerprint_bytes(hash, work->d, sizeof work->d);
  return tws_fingerprint_bytes(hash, work->f, sizeof work->f);
}

/* Returns 1 for work whose times are compared among ranks: kernels on the device and on the host. */
static int is_computation(const tws_work *work) {
  return work->kind == TWS_OP_COMPUTE || work->kind == TWS_OP_HOST;
}

static tws_code make_room(tws_comm_recorder *r, tws_error *err) {
  tws_comm_record *record = &r->record;
  record->calls = tws_calloc((size_t)record->call_count + 1, sizeof *record->calls);
  record->latency_s = tws_calloc((size_t)record->call_count * r->capacity + 1, sizeof *record->latency_s);
  record->works = tws_calloc((size_t)record->work_count + 1, sizeof *record->works);
  r->op_of_call = tws_calloc((size_t)record->call_count + 1, sizeof *r->op_of_call);
  r->work_of = tws_calloc((size_t)r->plan->work_count + 1, sizeof *r->work_of);
  return record->calls && record->latency_s && record->works && r->op_of_call && r->work_of
             ? TWS_OK
             : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
}

tws_code tws_comm_recorder_create(const tws_plan *plan, const tws_comm_filter *filter, double weight, uint32_t steps,
                                  tws_comm_recorder **out, tws_error *err) {
  tws_comm_recorder *r = *out = tws_calloc(1, sizeof *r);
  if (!r) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
  r->plan = plan;
  r->capacity = steps;
  r->record.rank = plan->rank;
  r->record.weight = weight;
  for (uint32_t i = 0; i < plan->op_count; i++)
    r->record.call_count += (uint32_t)is_wanted(plan, filter, &plan->ops[i]);
  for (uint32_t w = 0; w < plan->work_count; w++) r->record.work_count += (uint32_t)is_computation(&plan->works[w]);
  const tws_code code = make_room(r, err);
  if (code != TWS_OK) {
    tws_comm_recorder_destroy(r);
    *out = NULL;
    return code;
  }
  for (uint32_t i = 0, call = 0; i < plan->op_count; i++) {
    if (!is_wanted(plan, filter, &plan->ops[i])) continue;
    r->op_of_call[call] = i;
    describe_call(plan, filter, i, &r->record.calls[call++]);
  }
  for (uint32_t w = 0, work = 0; w < plan->work_count; w++) {
    r->work_of[w] = is_computation(&plan->works[w]) ? work : TWS_NONE;
    if (r->work_of[w] != TWS_NONE) r->record.works[work++].work = hash_work(&plan->works[w]);
  }
  return TWS_OK;
}

void tws_comm_recorder_destroy(tws_comm_recorder *r) {
  if (!r) return;
  tws_free(r->record.calls);
  tws_free(r->record.latency_s);
  tws_free(r->record.works);
  tws_free(r->op_of_call);
  tws_free(r->work_of);
  tws_free(r);
}

void tws_comm_recorder_add(tws_comm_recorder *r, const double *times) {
  tws_comm_record *record = &r->record;
  float *latency = record->latency_s + (size_t)record->steps * record->call_count;
  for (uint32_t call = 0; call < record->call_count; call++) {
    const double *of_op = times + 2 * (size_t)r->op_of_call[call];
    latency[call] = of_op[1] > of_op[0] ? (float)(of_op[1] - of_op[0]) : 0.0f;
  }
  /* The times of the first step, which include page faults and cold caches, are discarded when a second step is
   * recorded. */
  for (uint32_t w = 0; r->added == 1 && w < record->work_count; w++)
    record->works[w].seconds = record->works[w].count = 0;
  for (uint32_t i = 0; i < r->plan->op_count; i++) {
    const uint32_t work = r->work_of[r->plan->ops[i].work];
    if (work == TWS_NONE) continue;
    record->works[work].seconds += times[2 * (size_t)i + 1] - times[2 * (size_t)i];
    record->works[work].count++;
  }
  record->steps++;
  r->added++;
}

void tws_comm_recorder_clear(tws_comm_recorder *r) {
  r->record.steps = 0;
}

/* ---- as bytes ---- */

void tws_comm_record_pack(const tws_comm_record *record, tws_text *out) {
  const size_t latencies = (size_t)record->steps * record->call_count;
  tws_text_add_bytes(out, (const char *)record, sizeof *record);
  tws_text_add_bytes(out, (const char *)record->calls, record->call_count * sizeof *record->calls);
  tws_text_add_bytes(out, (const char *)record->works, record->work_count * sizeof *record->works);
  tws_text_add_bytes(out, (const char *)record->latency_s, latencies * sizeof *record->latency_s);
}

static const unsigned char *copy_part(const unsigned char *from, size_t bytes, tws_arena *arena, void *to) {
  void *copy = tws_arena_alloc_unset(arena, bytes + 1, 1);
  if (copy) memcpy(copy, from, bytes);
  memcpy(to, &copy, sizeof copy);
  return from + bytes;
}

tws_code tws_comm_record_unpack(const unsigned char *bytes, uint64_t count, tws_arena *arena, tws_comm_record *out,
                                tws_error *err) {
  if (count < sizeof *out) return tws_fail(err, TWS_INTERNAL, NULL, "a record of the communication log is too short");
  memcpy(out, bytes, sizeof *out);
  const size_t latencies = (size_t)out->steps * out->call_count;
  if (count != sizeof *out + out->call_count * sizeof *out->calls + out->work_count * sizeof *out->works +
                   latencies * sizeof *out->latency_s)
    return tws_fail(err, TWS_INTERNAL, NULL, "a record of the communication log has %" PRIu64 " bytes", count);
  const unsigned char *at = bytes + sizeof *out;
  at = copy_part(at, out->call_count * sizeof *out->calls, arena, &out->calls);
  at = copy_part(at, out->work_count * sizeof *out->works, arena, &out->works);
  copy_part(at, latencies * sizeof *out->latency_s, arena, &out->latency_s);
  return out->calls && out->works && out->latency_s
             ? TWS_OK
             : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
}
