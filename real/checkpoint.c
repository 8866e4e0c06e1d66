/* Saving: every rank writes a file of the pieces that it was given; rank 0 writes the index and gives the folder its
 * name when it has heard from all. What goes wrong on a rank ends the job, and what is unfinished has no name yet. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "checkpoint/shard.h"
#include "real/train_internal.h"

typedef struct tws_checkpoint {
  tws_arena *arena;
  int lock;
  tws_piece *all; /* of every rank, as tws_pieces_share() sorts them */
  uint32_t all_count;
  tws_piece *own;
  uint32_t own_count;
  uint64_t job_bytes; /* of a checkpoint, about; rank 0 */
  uint32_t *buffer;   /* of the program, by entry */
  int64_t saved_step;
} tws_checkpoint;

/* How every rank's message to rank 0 begins; its pieces' places and then their checksums follow. */
typedef struct shard_report {
  uint64_t bytes, data, header_checksum, pieces, checksums;
} shard_report;

tws_code tws_checkpoint_lock(tws_training *t, tws_error *err) {
  if (!t->options->save) return TWS_OK;
  t->checkpoint = tws_calloc(1, sizeof *t->checkpoint);
  tws_checkpoint *c = t->checkpoint;
  if (c) c->arena = tws_arena_create();
  if (!c || !c->arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  c->lock = -1;
  c->saved_step = -1;
  return t->rank == 0 ? tws_folder_lock(t->options->save, &c->lock, err) : TWS_OK;
}

void tws_checkpoint_close(tws_training *t) {
  if (!t->checkpoint) return;
  if (t->checkpoint->arena) tws_folder_unlock(t->checkpoint->lock);
  tws_arena_destroy(t->checkpoint->arena);
  tws_free(t->checkpoint);
}

/* ---- who writes what ---- */

static tws_code share_pieces(tws_training *t, const tws_piece *held, uint32_t count, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  const tws_state *state = t->plan->state;
  unsigned char *gathered = NULL;
  uint64_t *offset = NULL, bytes = 0;
  void *data = NULL;
  TWS_TRY(tws_comm_gather(t->comm, held, count * sizeof *held, &gathered, &offset, err));
  tws_code code = TWS_OK;
  if (t->rank == 0) {
    uint8_t *sizes = tws_arena_alloc(c->arena, state->count + (size_t)1, 1);
    for (uint32_t i = 0; sizes && i < state->count; i++)
      sizes[i] = (uint8_t)tws_dtype_bytes((tws_dtype)state->entries[i].dtype);
    code = sizes ? tws_pieces_share((tws_piece *)(void *)gathered, (uint32_t)(offset[t->world] / sizeof *held), sizes,
                                    t->world, c->arena, &c->all, &c->all_count, err)
                 : tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
    data = c->all;
    bytes = c->all_count * sizeof *c->all;
  }
  tws_free(gathered);
  tws_free(offset);
  TWS_TRY(code);
  code = tws_comm_broadcast(t->comm, &data, &bytes, err);
  const tws_piece *all = data;
  const uint32_t all_count = (uint32_t)(bytes / sizeof *all);
  c->own = tws_arena_alloc(c->arena, all_count + (size_t)1, sizeof *c->own);
  if (code == TWS_OK && !c->own) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; code == TWS_OK && i < all_count; i++)
    if (all[i].rank == t->rank) c->own[c->own_count++] = all[i];
  if (t->rank != 0) tws_free(data);
  return code;
}

static tws_code get_piece(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err) {
  const tws_training *t = user;
  return tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, t->checkpoint->buffer[piece->entry], piece->at + first, to,
                          count, err);
}

static tws_shard_request shard_of(tws_training *t) {
  return (tws_shard_request){.entries = t->plan->state->entries,
                             .params = t->plan->network->params,
                             .pieces = t->checkpoint->own,
                             .count = t->checkpoint->own_count,
                             .source = get_piece,
                             .user = t};
}

tws_code tws_checkpoint_prepare(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  if (!c) return TWS_OK;
  const tws_state *state = t->plan->state;
  tws_piece *held;
  uint32_t count;
  TWS_TRY(tws_pieces_of(t->plan, c->arena, &held, &count, err));
  TWS_TRY(share_pieces(t, held, count, err));
  c->buffer = tws_arena_alloc(c->arena, state->count + (size_t)1, sizeof *c->buffer);
  if (!c->buffer) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < state->count; i++) c->buffer[i] = tws_training_buffer(t->plan, state->entries[i].name);
  c->job_bytes = 4096;
  for (uint32_t i = 0; i < c->all_count; i++)
    c->job_bytes += 512 + c->all[i].count * tws_dtype_bytes((tws_dtype)state->entries[c->all[i].entry].dtype);
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
  x->samples = t->counters->steps * config->train_batch_size + t->data.offset;
  x->train_batch = config->train_batch_size;
  x->sequence_length = config->sequence_length;
  x->vocabulary = network->vocabulary;
  x->padded_vocabulary =
      network->padded_vocabulary > network->vocabulary ? network->padded_vocabulary : network->vocabulary;
  x->ranks = t->world;
  x->zero_stage = config->zero.stage;
  x->counters = *t->counters;
  x->params = network->params;
  x->param_count = network->param_count;
}

static void describe_state(const tws_training *t, tws_saved_index *x) {
  const tws_state *state = t->plan->state;
  x->entry_count = state->count;
  for (uint32_t i = 0; i < state->count; i++)
    x->entries[i] = (tws_saved_entry){
        .name = state->entries[i].name, .dtype = state->entries[i].dtype, .initial = state->entries[i].initial};
}

/* Files as the ranks reported them, and where in them each piece is. */
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
                                          : tws_write_durable(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}

/* ---- saving ---- */

int tws_checkpoint_is_due(const tws_training *t, int64_t step) {
  const int64_t every = t->options->save_every;
  return step == t->options->steps || (every > 0 && step % every == 0);
}

static tws_code gather_reports(tws_training *t, const tws_shard_written *w, unsigned char **all, uint64_t **offset,
                               tws_error *err) {
  const uint64_t pieces = t->checkpoint->own_count;
  const shard_report report = {w->bytes, w->data, w->header_checksum, pieces, w->checksum_count};
  tws_text message = {0};
  tws_text_add_bytes(&message, (const char *)&report, sizeof report);
  tws_text_add_bytes(&message, (const char *)w->at, pieces * sizeof *w->at);
  tws_text_add_bytes(&message, (const char *)w->checksums, w->checksum_count * sizeof *w->checksums);
  tws_code code = message.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for a checkpoint's index")
                                 : tws_comm_gather(t->comm, message.data, message.length, all, offset, err);
  tws_text_free(&message);
  return code;
}

static tws_code save_into(tws_training *t, const char *tag, tws_arena *arena, tws_error *err) {
  const char *folder = t->options->save;
  char temporary[TWS_FOLDER_SIZE], path[TWS_FOLDER_SIZE + 64], name[64];
  tws_shard_written written = {0};
  unsigned char *reports = NULL;
  uint64_t *offset = NULL;
  const tws_shard_request shard = shard_of(t);
  tws_folder_temporary(folder, tag, temporary, sizeof temporary);
  snprintf(path, sizeof path, "%s/%s", temporary, tws_shard_name(t->rank, name, sizeof name));
  TWS_TRY(tws_shard_write(path, &shard, arena, &written, err));
  TWS_TRY(gather_reports(t, &written, &reports, &offset, err));
  tws_code code = TWS_OK;
  if (t->rank == 0) code = write_index(t, temporary, reports, offset, arena, err);
  if (t->rank == 0 && code == TWS_OK) code = tws_folder_publish(folder, tag, t->options->keep, err);
  tws_free(reports);
  tws_free(offset);
  return code;
}

tws_code tws_checkpoint_save(tws_training *t, tws_error *err) {
  tws_checkpoint *c = t->checkpoint;
  char tag[TWS_TAG_SIZE], bytes[32], seconds[32];
  const double start = tws_clock_s();
  if (c->saved_step == t->counters->steps) return TWS_OK;
  tws_tag_of_step(t->counters->steps, tag, sizeof tag);
  if (t->rank == 0) {
    TWS_TRY(tws_folder_room(t->options->save, c->job_bytes, err));
    TWS_TRY(tws_folder_begin(t->options->save, tag, err));
  }
  TWS_TRY(tws_comm_barrier(t->comm, err));
  tws_arena *arena = tws_arena_create();
  tws_code code =
      arena ? save_into(t, tag, arena, err) : tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
  tws_arena_destroy(arena);
  if (code != TWS_OK) return tws_fail_in(err, code, "saving the checkpoint");
  c->saved_step = t->counters->steps;
  if (t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_INFO, "saved %s/%s: %s in %s", t->options->save, tag,
                  tws_format_bytes((double)c->job_bytes, bytes, sizeof bytes),
                  tws_format_seconds(tws_clock_s() - start, seconds, sizeof seconds));
  return TWS_OK;
}
