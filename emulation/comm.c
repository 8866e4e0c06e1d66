/* Keeps the communication log of an emulated training: the latencies of all ranks, in virtual time. */
#include "base/memory.h"
#include "emulation/state.h"

enum { RECORDED_STEPS = 16 };

tws_code tws_emulator_log_open(tws_emulator *e, tws_error *err) {
  const tws_plan *const *plans = e->plans[TWS_PROGRAM_TRAIN];
  tws_comm_filter filter;
  if (!e->request->logs_communication && !e->job->config->comms_logger.enabled) return TWS_OK;
  TWS_TRY(tws_comm_filter_read(e->job->config, &filter, err));
  tws_comm_log_destroy(e->out->communication); /* the log of an earlier attempt, which may have had other ranks */
  TWS_TRY(tws_comm_log_create(e->count, e->count, &e->out->communication, err));
  e->recorders = tws_arena_alloc(e->arena, (size_t)e->count, sizeof *e->recorders);
  e->times_of_rank = tws_arena_alloc(e->arena, (size_t)e->count, sizeof *e->times_of_rank);
  if (!e->recorders || !e->times_of_rank) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int r = 0; r < e->count; r++) {
    TWS_TRY(tws_comm_recorder_create(plans[r], &filter, 1, RECORDED_STEPS, &e->recorders[r], err));
    e->times_of_rank[r] = tws_arena_alloc(e->arena, 2 * ((size_t)plans[r]->op_count + 1), sizeof(double));
    if (!e->times_of_rank[r]) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  return TWS_OK;
}

static tws_code merge(tws_emulator *e, tws_error *err) {
  const tws_comm_record **records = tws_calloc((size_t)e->count, sizeof *records);
  if (!records) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
  for (int r = 0; r < e->count; r++) records[r] = &e->recorders[r]->record;
  const tws_code code = tws_comm_log_merge(e->out->communication, records, err);
  for (int r = 0; r < e->count; r++) tws_comm_recorder_clear(e->recorders[r]);
  tws_free(records);
  return code;
}

tws_code tws_emulator_log_step(tws_emulator *e, tws_error *err) {
  const tws_emulation_request *request = e->request;
  /* only the program TRAIN is logged, not the programs of an optimizer's later phases */
  if (!e->recorders || e->api->program(e->ranks) != TWS_PROGRAM_TRAIN) return TWS_OK;
  for (int r = 0; r < e->count; r++) tws_comm_recorder_add(e->recorders[r], e->times_of_rank[r]);
  if (e->job->config->comms_logger.verbose && request->on_calls)
    request->on_calls(request->user, &e->recorders[0]->record);
  return tws_comm_recorder_is_full(e->recorders[0]) ? merge(e, err) : TWS_OK;
}

tws_code tws_emulator_log_end(tws_emulator *e, tws_error *err) {
  if (!e->recorders) return TWS_OK;
  if (e->recorders[0]->record.steps > 0) TWS_TRY(merge(e, err));
  return tws_comm_log_finish(e->out->communication, err);
}

void tws_emulator_log_close(tws_emulator *e) {
  for (int r = 0; e->recorders && r < e->count; r++) tws_comm_recorder_destroy(e->recorders[r]);
  e->recorders = NULL;
  e->times_of_rank = NULL;
}
