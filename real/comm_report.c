/* Keeps the communication log of a training: each rank records its latencies, and rank 0 merges the records of all
 * ranks every RECORDED_STEPS steps and at the end. */
#include "base/memory.h"
#include "real/train_internal.h"

enum { RECORDED_STEPS = 128 };

tws_code tws_comm_report_open(tws_training *t, tws_error *err) {
  tws_comm_filter filter;
  const int64_t steps = t->options->steps - t->first_step;
  if (!t->options->logs_communication && !t->config->comms_logger.enabled) return TWS_OK;
  TWS_TRY(tws_comm_filter_read(t->config, &filter, err));
  TWS_TRY(tws_training_keep_times(t, err));
  if (t->rank == 0) TWS_TRY(tws_comm_log_create(t->world, t->world, &t->communication, err));
  return tws_comm_recorder_create(t->plan, &filter, 1, (uint32_t)(steps < RECORDED_STEPS ? steps : RECORDED_STEPS),
                                  &t->calls, err);
}

/* Merges the records of all ranks, which rank 0 has received as bytes. */
static tws_code merge(tws_training *t, const unsigned char *all, const uint64_t *offset, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_comm_record *records = arena ? tws_arena_alloc(arena, (size_t)t->world, sizeof *records) : NULL;
  const tws_comm_record **list = records ? tws_arena_alloc(arena, (size_t)t->world, sizeof *list) : NULL;
  tws_code code = list ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
  for (int r = 0; r < t->world && code == TWS_OK; r++) {
    code = tws_comm_record_unpack(all + offset[r], offset[r + 1] - offset[r], arena, &records[r], err);
    list[r] = &records[r];
  }
  if (code == TWS_OK) code = tws_comm_log_merge(t->communication, list, err);
  tws_arena_destroy(arena);
  return code;
}

static tws_code send_records(tws_training *t, tws_error *err) {
  tws_text packed = {0};
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  tws_training_at(t, t->counters->steps, "gathering the communication log", TWS_PHASE_MEETS);
  tws_comm_record_pack(&t->calls->record, &packed);
  tws_code code = packed.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log") : TWS_OK;
  if (code == TWS_OK) code = tws_comm_gather(t->comm, packed.data, packed.length, &all, &offset, err);
  if (code == TWS_OK && t->rank == 0) code = merge(t, all, offset, err);
  tws_comm_recorder_clear(t->calls);
  tws_text_free(&packed);
  tws_free(all);
  tws_free(offset);
  return code;
}

tws_code tws_comm_report_step(tws_training *t, const double *times, tws_error *err) {
  /* only the program TRAIN is logged, not the programs of an optimizer's later phases */
  if (!t->calls || t->kind.program != TWS_PROGRAM_TRAIN) return TWS_OK;
  tws_comm_recorder_add(t->calls, times);
  if (t->rank == 0 && t->config->comms_logger.verbose && t->options->on_calls)
    t->options->on_calls(t->options->user, &t->calls->record);
  return tws_comm_recorder_is_full(t->calls) ? send_records(t, err) : TWS_OK;
}

tws_code tws_comm_report_end(tws_training *t, tws_error *err) {
  if (!t->calls) return TWS_OK;
  if (t->calls->record.steps > 0) TWS_TRY(send_records(t, err));
  if (t->rank != 0) return TWS_OK;
  TWS_TRY(tws_comm_log_finish(t->communication, err));
  if (t->options->on_communication) t->options->on_communication(t->options->user, t->communication);
  return TWS_OK;
}

void tws_comm_report_close(tws_training *t) {
  tws_comm_recorder_destroy(t->calls);
  tws_comm_log_destroy(t->communication);
}
