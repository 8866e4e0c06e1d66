/* Saving: every rank writes a file with its assigned segments of the state; rank 0 writes the index and gives the
 * folder its name when all ranks have reported. A failure on any rank ends the job, and an unfinished folder has only
 * its temporary name.
 *
 * Where more steps follow and memory suffices, a thread copies the rank's segments while the next step computes
 * gradients, and writes the copy while training continues. After every step all ranks exchange whether their files
 * are written; rank 0 then leaves the rest to its thread. There is one save at a time: the next waits for the
 * previous one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/memory.h"
#include "base/units.h"
#include "checkpoint/saving.h"
#include "checkpoint/shard.h"
#include "models/network/adapt.h"
#include "real/background.h"
#include "real/remote_files.h"
#include "real/split_masters.h"
#include "real/train_internal.h"

typedef enum phase { IDLE, WRITING, PUBLISHING } phase;

typedef struct tws_checkpoint {
  tws_arena *arena;
  int lock;
  tws_piece *all; /* segments of all ranks, in the order of tws_pieces_share() */
  uint32_t all_count;
  tws_piece *own;
  uint32_t own_count;
  uint64_t job_bytes; /* on rank 0: approximate bytes of a checkpoint of the whole job */
  uint32_t *buffer;   /* [state entry] index of its buffer in the training program */
  tws_state_entry *entries; /* the state's entries with the types in which they are saved */
  int64_t saved_step; /* last step after which a save was begun */
  tws_snapshot snapshot;
  /* members of the save in progress */
  phase phase;
  tws_task task;
  tws_arena *work;
  tws_counters counters; /* counters of the training when the save was begun */
  char tag[TWS_TAG_SIZE];
  tws_shard_written written;
  unsigned char *reports; /* on rank 0: the reports of all ranks */
  uint64_t *offset;
  double start;
  int64_t hold;             /* fault injection: no file is written before this step has completed */
  atomic_int_fast64_t step; /* last completed step; the largest number while training waits for the save */
  tws_save_times times;
  /* on rank 0: `remarks` are lines of checkpoint/saving.h that the training thread still has to log; `said` are all
   * lines so far */
  tws_text remarks, said;
} tws_checkpoint;

/* Header of every rank's message to rank 0; the offsets of its segments and then their checksums follow. */
typedef struct shard_report {
  uint64_t bytes, data, header_checksum, pieces, checksums;
} shard_report;

/* Logs each remark only once in a training, even if many saves report it. */
static void tell_remarks(tws_training *t) {
  tws_checkpoint *c = t->checkpoint;
  for (char *line = c->remarks.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
    *end = '\0';
    if (c->said.data && strstr(c->said.data, line)) continue;
    tws_text_add(&c->said, "%s\n", line);
    tws_log_write(t->options->log, TWS_LOG_WARNING, "%s", line);
  }
  tws_text_free(&c->remarks);
}

/* Locks and examines the folder before the first step, to detect conditions that would make a later save fail or remain
 * incomplete. */
static tws_code lock_and_look(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  TWS_TRY(tws_folder_lock(t->options->save, &c->lock, err));
  const tws_code code = tws_folder_look(t->options->save, t->options->keep, &c->remarks, err);
  tell_remarks(t);
  return code;
}

tws_code tws_checkpoint_lock(tws_training *t, tws_error *err) {
  if (!t->options->save) return TWS_OK;
  t->checkpoint = tws_calloc(1, sizeof *t->checkpoint);
  tws_checkpoint *c = t->checkpoint;
  if (c) c->arena = tws_arena_create();
  if (!c || !c->arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  c->lock = -1;
  c->saved_step = -1;
  return t->rank == 0 ? lock_and_look(t, err) : TWS_OK;
}

static void end_save(tws_checkpoint *c) {
  tws_free(c->reports);
  tws_free(c->offset);
  tws_arena_destroy(c->work);
  c->reports = NULL;
  c->offset = NULL;
  c->work = NULL;
  c->phase = IDLE;
}

void tws_checkpoint_close(tws_training *t) {
  if (!t->checkpoint) return;
  tws_checkpoint *c = t->checkpoint;
  atomic_store(&c->step, INT64_MAX);
  (void)tws_task_wait(&c->task, NULL); /* an error is reported already, or the save has been completed */
  if (c->arena) tws_folder_unlock(c->lock);
  tws_snapshot_close(&c->snapshot);
  end_save(c);
  tws_text_free(&c->remarks);
  tws_text_free(&c->said);
  tws_arena_destroy(c->arena);
  tws_free(c);
}

/* ---- assignment of segments to ranks ---- */

/* Removes frozen parameters from the list, which are not saved, as they can be loaded from their source; returns the
 * number of the others. */
static uint32_t leave_out_frozen(const tws_network *network, tws_piece *held, uint32_t count) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; i++)
    if (held[i].param == TWS_NONE || !network->params[held[i].param].frozen) held[kept++] = held[i];
  return kept;
}

/* On rank 0: assigns each segment that several ranks hold to one of them. */
static tws_code divide_pieces(tws_training *t, tws_piece *held, uint64_t count, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const tws_state *state = t->plan->state;
  uint8_t *sizes = tws_arena_alloc(c->arena, state->count + (size_t)1, 1);
  if (!sizes) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < state->count; i++) sizes[i] = (uint8_t)tws_dtype_bytes((tws_dtype)c->entries[i].dtype);
  return tws_pieces_share(held, (uint32_t)count, sizes, t->far_writers, t->world, c->arena, &c->all, &c->all_count,
                          err);
}

static tws_code take_pieces(tws_training *t, const tws_piece *all, uint32_t all_count, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  c->own = tws_arena_alloc(c->arena, all_count + (size_t)1, sizeof *c->own);
  if (!c->own) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < all_count; i++)
    if (all[i].rank == t->rank) c->own[c->own_count++] = all[i];
  return TWS_OK;
}

static tws_code share_pieces(tws_training *t, const tws_piece *held, uint32_t count, tws_error *err) {
  const tws_checkpoint *c = t->checkpoint;
  unsigned char *gathered = NULL;
  uint64_t *offset = NULL, bytes = 0;
  void *data = NULL;
  TWS_TRY(tws_comm_gather(t->comm, held, count * sizeof *held, &gathered, &offset, err));
  tws_code code = TWS_OK;
  if (t->rank == 0) {
    code = divide_pieces(t, (tws_piece *)(void *)gathered, offset[t->world] / sizeof *held, err);
    data = c->all;
    bytes = c->all_count * sizeof *c->all;
  }
  tws_free(gathered);
  tws_free(offset);
  TWS_TRY(code);
  code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  if (code == TWS_OK) code = take_pieces(t, data, (uint32_t)(bytes / sizeof(tws_piece)), err);
  if (t->rank != 0) tws_free(data);
  return code;
}

static tws_code get_piece(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err) {
  const tws_training *t = user;
  tws_watchdog_count_progress(t->watchdog);
  return tws_whole_get(t->executor, t->plan, t->checkpoint->buffer[piece->held], piece->at + first, count, to, err);
}

static tws_code get_copied(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                           tws_error *err) {
  tws_training *t = user;
  tws_watchdog_count_progress(t->watchdog);
  return tws_snapshot_get(&t->checkpoint->snapshot, piece, first, count, to, err);
}

static tws_shard_request shard_of(tws_training *t) {
  return (tws_shard_request){.entries = t->checkpoint->entries,
                             .params = t->plan->network->params,
                             .pieces = t->checkpoint->own,
                             .count = t->checkpoint->own_count,
                             .source = get_piece,
                             .user = t};
}

/* Returns the bytes of host memory that a rank may use for its copy: its share of the memory that is free when all
 * ranks' arenas are in use. */
static uint64_t room_for_copy(const tws_training *t) {
  uint64_t arenas =
      tws_executor_allocated(t->executor, TWS_TIER_HOST) + tws_executor_allocated(t->executor, TWS_TIER_PINNED);
  if (!t->cuda) arenas += tws_executor_allocated(t->executor, TWS_TIER_DEVICE);
  const uint64_t share = tws_host_memory_read().available_bytes / (uint64_t)t->world;
  return share > arenas ? share - arenas : 0;
}

static tws_code prepare_copy(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const int64_t every = t->options->save_every;
  if (t->far_writers) return TWS_OK; /* only the training thread may send messages */
  if (every < 1 || t->first_step - t->first_step % every + every >= t->options->steps) return TWS_OK;
  c->snapshot.plan = t->plan;
  c->snapshot.executor = t->executor;
  c->snapshot.buffer = c->buffer;
  c->snapshot.pieces = c->own;
  c->snapshot.count = c->own_count;
  double alone = 0;
  TWS_TRY(tws_snapshot_open(&c->snapshot, room_for_copy(t), err));
  alone = c->snapshot.bytes == NULL;
  TWS_TRY(tws_comm_max(t->comm, &alone, err));
  if (!(alone > 0)) return TWS_OK;
  tws_free(c->snapshot.bytes);
  c->snapshot.bytes = NULL;
  if (t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "memory has no room for a copy of what is saved: training waits for every checkpoint");
  return TWS_OK;
}

static tws_code find_types(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const tws_state *state = t->plan->state;
  c->entries = tws_arena_alloc(c->arena, state->count + (size_t)1, sizeof *c->entries);
  if (!c->entries) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < state->count; i++) {
    c->entries[i] = state->entries[i];
    c->entries[i].dtype = (uint8_t)tws_whole_dtype(&state->entries[i]);
  }
  return TWS_OK;
}

/* Finds the buffer of each entry of the state, and the bytes of the whole checkpoint. */
static tws_code find_buffers(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const tws_state *state = t->plan->state;
  c->buffer = tws_arena_alloc(c->arena, state->count + (size_t)1, sizeof *c->buffer);
  if (!c->buffer) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < state->count; i++) c->buffer[i] = tws_training_buffer(t->plan, state->entries[i].name);
  c->job_bytes = 4096;
  for (uint32_t i = 0; i < c->all_count; i++)
    c->job_bytes += 512 + c->all[i].count * tws_dtype_bytes((tws_dtype)c->entries[c->all[i].entry].dtype);
  return TWS_OK;
}

tws_code tws_checkpoint_prepare(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  tws_piece *held;
  uint32_t count;
  if (!c) return TWS_OK;
  TWS_TRY(tws_pieces_of(t->plan, c->arena, &held, &count, err));
  count = leave_out_frozen(t->plan->network, held, count);
  TWS_TRY(find_types(t, err));
  TWS_TRY(share_pieces(t, held, count, err));
  TWS_TRY(find_buffers(t, err));
  TWS_TRY(prepare_copy(t, err));
  return t->rank == 0 ? tws_folder_room(t->options->save, c->job_bytes, err) : TWS_OK;
}

/* ---- the index ---- */

static void describe_training(const tws_training *t, tws_saved_index *x) {
  const tws_config *config = t->config;
  const tws_network *network = t->plan->network;
  const tws_fingerprint *print = t->options->fingerprint;
  char model[24];
  snprintf(model, sizeof model, "%016" PRIx64, tws_network_fingerprint(network));
  x->model = tws_arena_strdup(x->arena, model);
  x->configuration = print ? print->configuration : "";
  x->plan = print ? print->plan : "";
  x->architecture = network->architecture ? network->architecture : "";
  x->class_name = network->class_name ? network->class_name : "";
  x->dtype = tws_dtype_name(config->dtype);
  x->data = t->options->data;
  x->data_tokens = (int64_t)t->data.count;
  x->samples = t->checkpoint->counters.steps * config->train_batch_size + t->data.offset;
  x->train_batch = config->train_batch_size;
  x->sequence_length = config->sequence_length;
  x->vocabulary = network->vocabulary;
  x->padded_vocabulary =
      network->padded_vocabulary > network->vocabulary ? network->padded_vocabulary : network->vocabulary;
  x->ranks = t->world;
  x->zero_stage = config->zero.stage;
  x->counters = t->checkpoint->counters;
  x->params = network->params;
  x->param_count = network->param_count;
  x->base = t->options->init_from && tws_training_has_frozen(t) ? t->options->init_from : "";
  x->client_state = t->client_state;
  x->lora_r = config->lora.r;
  x->lora_scale = tws_lora_scale(config);
  x->block = t->plan->quantized.type > 0 ? t->plan->quantized.block : 0;
  x->scale_block = t->plan->quantized.type > 0 ? t->plan->quantized.group : 0;
}

static void describe_state(const tws_training *t, tws_saved_index *x) {
  const tws_state *state = t->plan->state;
  x->entry_count = state->count;
  for (uint32_t i = 0; i < state->count; i++)
    x->entries[i] = (tws_saved_entry){
        .name = state->entries[i].name, .dtype = t->checkpoint->entries[i].dtype, .initial = state->entries[i].initial};
}

/* Builds the list of files from the ranks' reports, with the offset of each segment. */
static tws_code describe_files(const tws_training *t, const unsigned char *reports, const uint64_t *offset,
                               tws_saved_index *x, tws_error *err) {
  const tws_checkpoint *c = t->checkpoint;
  const uint64_t **at = tws_arena_alloc(x->arena, (size_t)t->world, sizeof *at);
  const uint64_t **checksums = tws_arena_alloc(x->arena, (size_t)t->world, sizeof *checksums);
  if (!at || !checksums) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index");
  x->file_count = (uint32_t)t->world;
  for (int r = 0; r < t->world; r++) {
    const shard_report *report = (const shard_report *)(const void *)(reports + offset[r]);
    char name[64];
    x->files[r] = (tws_saved_file){.name = tws_arena_strdup(x->arena, tws_shard_name(r, name, sizeof name)),
                                   .bytes = report->bytes,
                                   .data = report->data,
                                   .header_checksum = report->header_checksum};
    at[r] = (const uint64_t *)(const void *)(report + 1);
    checksums[r] = at[r] + report->pieces;
    if (!x->files[r].name) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index");
  }
  x->piece_count = c->all_count;
  for (uint32_t i = 0; i < c->all_count; i++) {
    const int r = c->all[i].rank;
    x->pieces[i] = (tws_saved_piece){.piece = c->all[i], .checksums = checksums[r]};
    x->pieces[i].piece.at = *at[r]++;
    checksums[r] += tws_saved_blocks(tws_saved_bytes(x, &c->all[i]));
  }
  return TWS_OK;
}

static tws_code write_new(const char *path, const tws_text *text, tws_error *err) {
  int fd;
  TWS_TRY(tws_file_begin(path, &fd, err));
  return tws_file_end(fd, path, tws_write_all(fd, path, text->data, text->length, err), err);
}

static tws_code write_index(const tws_training *t, const char *folder, const unsigned char *reports,
                            const uint64_t *offset, tws_arena *arena, tws_error *err) {
  char path[TWS_FOLDER_SIZE + 32];
  tws_saved_index x = {.arena = arena};
  tws_text text = {0};
  x.entries = tws_arena_alloc(arena, t->plan->state->count + (size_t)1, sizeof *x.entries);
  x.files = tws_arena_alloc(arena, (size_t)t->world, sizeof *x.files);
  x.pieces = tws_arena_alloc(arena, t->checkpoint->all_count + (size_t)1, sizeof *x.pieces);
  if (!x.entries || !x.files || !x.pieces) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index");
  describe_training(t, &x);
  describe_state(t, &x);
  TWS_TRY(describe_files(t, reports, offset, &x, err));
  tws_saved_write(&x, &text);
  snprintf(path, sizeof path, "%s/%s", folder, TWS_CHECKPOINT_INDEX);
  tws_code code = text.failed || !x.model ? tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index")
                                          : write_new(path, &text, err);
  tws_text_free(&text);
  return code;
}

/* ---- saving ---- */

int tws_checkpoint_is_due(const tws_training *t, int64_t step) {
  const int64_t every = t->options->save_every;
  if (step == t->options->steps) return 1;
  return t->kind.program != TWS_PROGRAM_LOCAL && (t->save_waits || (every > 0 && step % every == 0));
}

/* Reports this rank's phase within a save to its watchdog. */
static void at(const tws_training *t, const char *what, tws_phase_kind kind) {
  char text[112];
  snprintf(text, sizeof text, "saving %.40s: %s", t->checkpoint->tag, what);
  tws_training_at(t, t->counters->steps, text, kind);
}

/* Appends this rank's report for the index to a message. */
static void add_report(const tws_checkpoint *c, tws_text *message) {
  const tws_shard_written *w = &c->written;
  const shard_report report = {w->bytes, w->data, w->header_checksum, c->own_count, w->checksum_count};
  tws_text_add_bytes(message, (const char *)&report, sizeof report);
  tws_text_add_bytes(message, (const char *)w->at, c->own_count * sizeof *w->at);
  tws_text_add_bytes(message, (const char *)w->checksums, w->checksum_count * sizeof *w->checksums);
}

static tws_code gather_reports(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  tws_text message = {0};
  add_report(c, &message);
  tws_code code = message.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index")
                                 : tws_comm_gather(t->comm, message.data, message.length, &c->reports, &c->offset, err);
  tws_text_free(&message);
  return code;
}

static const char *shard_path(const tws_training *t, int rank, char *path, size_t size) {
  char temporary[TWS_FOLDER_SIZE], name[64];
  tws_folder_temporary(t->options->save, t->checkpoint->tag, temporary, sizeof temporary);
  snprintf(path, size, "%s/%s", temporary, tws_shard_name(rank, name, sizeof name));
  return path;
}

static tws_code write_shard(tws_training *t, const tws_shard_request *shard, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  char path[TWS_FOLDER_SIZE + 64];
  return tws_shard_write(shard_path(t, t->rank, path, sizeof path), shard, c->work, &c->written, err);
}

/* Writes all ranks' files to rank 0's disk; rank 0's own file is written first, while data of the others are in
 * transit. */
static tws_code write_far(tws_training *t, const tws_shard_request *shard, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  char path[TWS_FOLDER_SIZE + 64];
  if (t->far_writers[t->rank]) {
    TWS_TRY(tws_shard_make(shard, tws_remote_file_write, t, c->work, &c->written, err));
    return tws_remote_file_write_end(t, err);
  }
  TWS_TRY(write_shard(t, shard, err));
  for (int r = 1; t->rank == 0 && r < t->world; r++)
    if (t->far_writers[r]) TWS_TRY(tws_remote_file_receive(t, r, shard_path(t, r, path, sizeof path), err));
  return TWS_OK;
}

/* On rank 0, when all ranks have reported: writes the index and gives the folder its name. */
static tws_code publish(void *user, tws_error *err) {
  tws_training *t = user;
  tws_checkpoint *c = t->checkpoint;
  char temporary[TWS_FOLDER_SIZE];
  tws_folder_temporary(t->options->save, c->tag, temporary, sizeof temporary);
  TWS_TRY(write_index(t, temporary, c->reports, c->offset, c->work, err));
  return tws_folder_publish(t->options->save, c->tag, t->options->keep, &c->remarks, err);
}

/* Task of the thread: copies and writes this rank's segments. A job of one rank also publishes the checkpoint in it. */
static tws_code copy_and_write(void *user, tws_error *err) {
  tws_training *t = user;
  tws_checkpoint *c = t->checkpoint;
  tws_shard_request shard = shard_of(t);
  shard.source = get_copied;
  if (c->snapshot.overlaps) TWS_TRY(tws_snapshot_take(&c->snapshot, err));
  tws_task_yield();
  while (c->hold && atomic_load(&c->step) < c->hold) usleep(1000);
  TWS_TRY(write_shard(t, &shard, err));
  if (t->world > 1) return TWS_OK;
  TWS_TRY(gather_reports(t, err));
  return publish(t, err);
}

static void note_saved(tws_training *t) {
  const tws_checkpoint *c = t->checkpoint;
  at(t, "printing that it is saved", TWS_PHASE_WRITES);
  char bytes[32], seconds[32];
  if (t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_INFO, "saved %s/%s: %s in %s", t->options->save, c->tag,
                  tws_format_bytes((double)c->job_bytes, bytes, sizeof bytes),
                  tws_format_seconds(tws_clock_s() - c->start, seconds, sizeof seconds));
  tell_remarks(t);
  end_save(t->checkpoint);
}

/* Ends this rank's writing: the ranks' reports are gathered, and rank 0 publishes the checkpoint: in its thread, or at
 * once if `waits`. A call in phase PUBLISHING waits until rank 0 has renamed the folder. */
static tws_code advance(tws_training *t, int waits, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  at(t, "waiting for its own file", TWS_PHASE_ALONE);
  TWS_TRY(tws_task_wait(&c->task, err));
  if (c->phase == WRITING && t->world > 1) {
    at(t, "gathering what all ranks have written", TWS_PHASE_MEETS);
    TWS_TRY(gather_reports(t, err));
    at(t, "writing the index", TWS_PHASE_ALONE);
    c->phase = PUBLISHING;
    if (t->rank == 0 && !waits) return tws_task_start(&c->task, publish, t, err);
    if (t->rank == 0) TWS_TRY(publish(t, err));
  }
  note_saved(t);
  return TWS_OK;
}

static tws_code in_save(const tws_training *t, tws_code code, tws_error *err) {
  return code == TWS_OK ? code : tws_fail_in(err, code, "saving the checkpoint %s", t->checkpoint->tag);
}

tws_code tws_checkpoint_poll(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  if (!c || c->phase == IDLE) return TWS_OK;
  const double start = tws_clock_s();
  atomic_store(&c->step, t->counters->steps);
  double busy = !tws_task_ended(&c->task);
  at(t, "asking the others whether their files are written", TWS_PHASE_MEETS);
  tws_code code = TWS_OK;
  /* a failure of this rank's thread is returned at once; with several ranks the collective below also runs */
  if (!(busy > 0) && c->task.code != TWS_OK) code = tws_task_wait(&c->task, err);
  if (code == TWS_OK && c->phase == WRITING) code = tws_comm_max(t->comm, &busy, err);
  if (code == TWS_OK && !(busy > 0)) code = advance(t, 0, err);
  c->times.waited_s += tws_clock_s() - start;
  return in_save(t, code, err);
}

static tws_code finish(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  if (c->phase == IDLE) return TWS_OK;
  atomic_store(&c->step, INT64_MAX);
  return advance(t, 1, err);
}

uint32_t tws_checkpoint_gate(const tws_training *t) {
  const tws_checkpoint *c = t->checkpoint;
  return c && c->phase == WRITING && c->snapshot.overlaps ? c->snapshot.gate : TWS_NONE;
}

void tws_checkpoint_wait_copied(tws_training *t) {
  const double start = tws_clock_s();
  tws_snapshot_wait(&t->checkpoint->snapshot);
  t->checkpoint->times.waited_s += tws_clock_s() - start;
}

static tws_code begin_alone(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  c->start = tws_clock_s();
  c->saved_step = t->counters->steps;
  c->counters = *t->counters;
  TWS_TRY(tws_training_sync(t, err));
  tws_tag_of_step(t->counters->steps, c->tag, sizeof c->tag);
  at(t, "making its folder", TWS_PHASE_ALONE);
  c->work = tws_arena_create();
  if (!c->work) return tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
  if (t->rank != 0) return TWS_OK;
  TWS_TRY(tws_folder_room(t->options->save, c->job_bytes, err));
  const tws_code code = tws_folder_begin(t->options->save, c->tag, &c->remarks, err);
  tell_remarks(t);
  return code;
}

static tws_code begin(tws_training *t, tws_error *err) {
  TWS_TRY(begin_alone(t, err));
  at(t, "meeting the others", TWS_PHASE_MEETS);
  return tws_comm_barrier(t->comm, err);
}

static tws_code write_overlapped(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const int held = t->fault.kind == TWS_FAULT_HOLD && t->fault.step == c->saved_step;
  c->hold = held ? c->saved_step + 2 : 0;
  atomic_store(&c->step, c->saved_step);
  tws_snapshot_begin(&c->snapshot);
  at(t, "copying its state", TWS_PHASE_ALONE);
  if (!c->snapshot.overlaps) TWS_TRY(tws_snapshot_take(&c->snapshot, err));
  c->phase = WRITING;
  c->times.overlapped++;
  return tws_task_start(&c->task, copy_and_write, t, err);
}

static tws_code write_now(tws_training *t, tws_error *err) {
  const tws_shard_request shard = shard_of(t);
  at(t, "writing its file", TWS_PHASE_ALONE);
  TWS_TRY(t->far_writers ? write_far(t, &shard, err) : write_shard(t, &shard, err));
  at(t, "gathering what all ranks have written", TWS_PHASE_MEETS);
  TWS_TRY(gather_reports(t, err));
  at(t, "writing the index", TWS_PHASE_ALONE);
  if (t->rank == 0) TWS_TRY(publish(t, err));
  note_saved(t);
  return TWS_OK;
}

tws_code tws_checkpoint_save(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const double start = tws_clock_s();
  const int continues = !t->ended && t->counters->steps < t->options->steps;
  TWS_TRY(in_save(t, finish(t, err), err));
  if (c->saved_step == t->counters->steps) return TWS_OK;
  tws_code code = begin(t, err);
  if (code == TWS_OK) code = continues && c->snapshot.bytes ? write_overlapped(t, err) : write_now(t, err);
  if (continues) c->times.waited_s += tws_clock_s() - start;
  return in_save(t, code, err);
}

tws_save_times tws_checkpoint_times(const tws_training *t) {
  return t->checkpoint ? t->checkpoint->times : (tws_save_times){0};
}

/* ---- all ranks in one process ---- */

tws_code tws_checkpoint_prepare_all(tws_training *ranks, int world, tws_error *err) {
  tws_text held = {0};
  tws_code code = TWS_OK;
  for (int r = 0; r < world && code == TWS_OK; r++) {
    tws_piece *pieces;
    uint32_t count;
    code = tws_pieces_of(ranks[r].plan, ranks[r].checkpoint->arena, &pieces, &count, err);
    if (code == TWS_OK) code = find_types(&ranks[r], err);
    if (code == TWS_OK) tws_text_add_bytes(&held, (const char *)pieces, count * sizeof *pieces);
  }
  if (code == TWS_OK && held.failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  if (code == TWS_OK)
    code = divide_pieces(&ranks[0], (tws_piece *)(void *)held.data, held.length / sizeof(tws_piece), err);
  for (int r = 0; r < world && code == TWS_OK; r++) {
    code = take_pieces(&ranks[r], ranks[0].checkpoint->all, ranks[0].checkpoint->all_count, err);
    if (code == TWS_OK) code = find_buffers(&ranks[r], err);
  }
  tws_text_free(&held);
  return code;
}

uint64_t tws_checkpoint_share_bytes(const tws_training *t) {
  const tws_checkpoint *c = t->checkpoint;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < c->own_count; i++)
    bytes += c->own[i].count * tws_dtype_bytes((tws_dtype)c->entries[c->own[i].entry].dtype);
  return bytes;
}

tws_code tws_checkpoint_write_all(tws_training *ranks, int world, tws_error *err) {
  tws_checkpoint *first = ranks[0].checkpoint;
  tws_text reports = {0};
  tws_code code = TWS_OK;
  for (int r = 0; r < world && code == TWS_OK; r++) code = begin_alone(&ranks[r], err);
  if (code == TWS_OK) {
    first->offset = tws_calloc((size_t)world + 1, sizeof *first->offset);
    if (!first->offset) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index");
  }
  for (int r = 0; r < world && code == TWS_OK; r++) {
    const tws_shard_request shard = shard_of(&ranks[r]);
    code = write_shard(&ranks[r], &shard, err);
    if (code == TWS_OK) add_report(ranks[r].checkpoint, &reports);
    first->offset[r + 1] = reports.length;
  }
  if (code == TWS_OK && reports.failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index");
  first->reports = (unsigned char *)reports.data; /* end_save() frees it */
  first->phase = WRITING;
  return in_save(&ranks[0], code, err);
}

tws_code tws_checkpoint_publish_all(tws_training *ranks, int world, tws_error *err) {
  const tws_code code = in_save(&ranks[0], publish(&ranks[0], err), err);
  tell_remarks(&ranks[0]);
  for (int r = 0; r < world; r++) end_save(ranks[r].checkpoint);
  return code;
}

void tws_checkpoint_drop_all(tws_training *ranks, int world) {
  for (int r = 0; r < world; r++) end_save(ranks[r].checkpoint);
}

const char *tws_checkpoint_tag(const tws_training *t) {
  return t->checkpoint->tag;
}
