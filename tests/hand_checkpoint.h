/* A small checkpoint by hand of one rank and one matrix, which is saved as a job saves its checkpoint. */
#ifndef TESTS_HAND_CHECKPOINT_H
#define TESTS_HAND_CHECKPOINT_H

#include <check.h>
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "checkpoint/index.h"
#include "checkpoint/saving.h"
#include "checkpoint/shard.h"

enum { HAND_ROWS = 8, HAND_COLUMNS = 4 };

static float hand_value; /* of all elements */
static tws_code hand_source(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                            tws_error *err) {
  (void)user, (void)piece, (void)first, (void)err;
  for (uint64_t i = 0; i < count; i++) ((float *)to)[i] = hand_value;
  return TWS_OK;
}

/* Into a folder that is there. */
static inline tws_code write_hand_checkpoint(const char *path, tws_error *err) {
  static tws_param params[] = {{.name = "w", .rows = HAND_ROWS, .columns = HAND_COLUMNS}};
  const tws_state_entry state[] = {{.name = "weights", .dtype = TWS_F32}};
  tws_saved_entry entries[] = {{"weights", TWS_F32, TWS_INITIAL_PARAMETER}};
  tws_piece piece = {.slice = {.rows = {HAND_ROWS}, .columns = HAND_COLUMNS, .whole_columns = HAND_COLUMNS},
                     .count = HAND_ROWS * HAND_COLUMNS};
  const tws_shard_request request = {
      .entries = state, .params = params, .pieces = &piece, .count = 1, .source = hand_source};
  tws_arena *arena = tws_arena_create();
  tws_shard_written w = {0};
  tws_text text = {0};
  char name[64], file[TWS_FOLDER_SIZE];
  snprintf(file, sizeof file, "%s/%s", path, tws_shard_name(0, name, sizeof name));
  tws_code code = tws_shard_write(file, &request, arena, &w, err);
  if (code == TWS_OK) {
    tws_saved_file files[] = {{name, w.bytes, w.data, w.header_checksum}};
    tws_saved_piece saved[] = {{.piece = piece, .checksums = w.checksums}};
    const tws_saved_index index = {.model = "",
                                   .configuration = "",
                                   .plan = "",
                                   .architecture = "none",
                                   .class_name = "",
                                   .dtype = "fp32",
                                   .data = "text",
                                   .train_batch = 1,
                                   .sequence_length = 8,
                                   .ranks = 1,
                                   .counters = {.steps = 4, .loss_scale = {.scale = 1}},
                                   .entries = entries,
                                   .params = params,
                                   .files = files,
                                   .pieces = saved,
                                   .entry_count = 1,
                                   .param_count = 1,
                                   .file_count = 1,
                                   .piece_count = 1};
    tws_saved_write(&index, &text);
    snprintf(file, sizeof file, "%s/%s", path, TWS_CHECKPOINT_INDEX);
    code = tws_write_file(file, text.data, text.length, err);
  }
  tws_text_free(&text);
  tws_arena_destroy(arena);
  return code;
}

static inline tws_code save_hand_checkpoint(const char *save, int64_t step, int64_t keep, tws_text *remarks,
                                            tws_error *err) {
  char tag[TWS_TAG_SIZE], temporary[TWS_FOLDER_SIZE];
  tws_tag_of_step(step, tag, sizeof tag);
  TWS_TRY(tws_folder_begin(save, tag, remarks, err));
  TWS_TRY(write_hand_checkpoint(tws_folder_temporary(save, tag, temporary, sizeof temporary), err));
  return tws_folder_publish(save, tag, keep, remarks, err);
}

#endif
