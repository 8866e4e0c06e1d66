/* ctest: sampled */
/* The components of checkpoints, without training: segments of parameters, the choice of the rank that writes each, the
 * index, folders. */
#include <check.h>
#include <math.h>
#include <sys/file.h>
#include "base/checksum.h"
#include "base/memory.h"
#include "base/random.h"
#include "checkpoint/folder.h"
#include "checkpoint/index.h"
#include "checkpoint/read.h"
#include "checkpoint/shard.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/hand_checkpoint.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

static uint64_t drawn;
static uint64_t draw(uint64_t below) {
  return (uint64_t)(tws_random_uniform(11, 3, drawn++) * (double)below);
}

/* CRC-64/XZ gives its published check value, computed in one call and in several. */
START_TEST(checksum) {
  ck_assert(tws_checksum(0, "123456789", 9) == UINT64_C(0x995dc9bbdf1939fa));
  ck_assert(tws_checksum(0, "", 0) == 0);
  unsigned char bytes[200];
  for (int i = 0; i < 200; i++) bytes[i] = (unsigned char)draw(256);
  const uint64_t whole = tws_checksum(0, bytes, 200);
  for (size_t cut = 0; cut <= 200; cut++)
    ck_assert(tws_checksum(tws_checksum(0, bytes, cut), bytes + cut, 200 - cut) == whole);
  for (int bit = 0; bit < 1600; bit++) {
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    ck_assert(tws_checksum(0, bytes, 200) != whole);
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
}
END_TEST

/* ---- parts ---- */

static tws_param_slice draw_slice(const tws_param *param) {
  if (param->rows == 1) {
    const int64_t rows = 1 + (int64_t)draw((uint64_t)param->columns);
    return (tws_param_slice){.first_row = {(int64_t)draw((uint64_t)(param->columns - rows + 1))},
                             .rows = {rows},
                             .columns = 1,
                             .whole_columns = 1};
  }
  tws_param_slice slice = {.whole_columns = param->columns, .columns = param->columns};
  int64_t at = 0, end = param->rows;
  const int64_t step = 1 + (int64_t)draw((uint64_t)param->rows), cells = param->rows / step;
  if (cells > 1 && draw(2)) { /* selects the same rows in each of some adjacent cells */
    const int64_t first = (int64_t)draw((uint64_t)cells - 1);
    slice.repeats = 2 + (int64_t)draw((uint64_t)(cells - first - 1));
    slice.step = step;
    at = first * step;
    end = at + step;
  }
  for (int i = 0; i < 3 && at < end; i++) {
    slice.first_row[i] = at + (int64_t)draw((uint64_t)(end - at));
    slice.rows[i] = 1 + (int64_t)draw((uint64_t)(end - slice.first_row[i]));
    at = slice.first_row[i] + slice.rows[i];
  }
  if (draw(2)) {
    slice.columns = 1 + (int64_t)draw((uint64_t)param->columns);
    slice.first_column = (int64_t)draw((uint64_t)(param->columns - slice.columns + 1));
  }
  return slice;
}

/* The two descriptions of a slice of a parameter list the same elements in the same order, and each element is found in
 * both. */
START_TEST(slices) {
  for (int trial = 0; trial < 300; trial++) {
    const tws_param param = {.rows = draw(3) ? 1 + (int64_t)draw(9) : 1, .columns = 1 + (int64_t)draw(9)};
    const tws_param_slice from = draw_slice(&param), to = tws_slice_of(&param, &from);
    const uint64_t count = tws_slice_count(&to), whole = (uint64_t)(param.rows * param.columns);
    char held[100] = {0};
    ck_assert_uint_eq(count, tws_slice_count(&from));
    for (uint64_t i = 0; i < count; i++) {
      uint64_t run, runs;
      const uint64_t at = tws_param_slice_whole(&from, i, &run);
      ck_assert_uint_eq(tws_param_slice_whole(&to, i, &runs), at);
      ck_assert_uint_eq(tws_slice_local(&to, at, &runs), i);
      for (uint64_t k = 1; k < runs && i + k < count; k++) {
        ck_assert_uint_eq(tws_param_slice_whole(&to, i + k, &run), at + k);
      }
      held[at] = 1;
    }
    for (uint64_t at = 0; at < whole; at++) {
      uint64_t run;
      if (held[at]) continue;
      ck_assert_uint_eq(tws_slice_local(&to, at, &run), UINT64_MAX);
      ck_assert_uint_gt(run, 0);
      for (uint64_t k = 0; k < run && at + k < whole; k++) ck_assert(!held[at + k]);
    }
  }
}
END_TEST

/* Ranks hold random elements, some of them several times: each element that any rank holds is written once, by a rank
 * that holds it at the stated position, and by a rank that is marked as far only where no other holds it. Equal
 * replicas share the bytes. */
START_TEST(sharing) {
  enum { WORLD = 6, ENTRIES = 2, PARAMS = 3, ELEMENTS = 60, MOST = 64 };
  const uint8_t sizes[ENTRIES] = {4, 2};
  uint8_t far[WORLD];
  for (int trial = 0; trial < 200; trial++) {
    tws_arena *arena = tws_arena_create();
    tws_piece held[MOST], *chosen = NULL;
    uint32_t count = 0, chosen_count = 0;
    static uint8_t there[WORLD][ENTRIES][PARAMS][ELEMENTS], written[ENTRIES][PARAMS][ELEMENTS];
    for (int r = 0; r < WORLD; r++) far[r] = trial % 2 && draw(2);
    memset(there, 0, sizeof there);
    memset(written, 0, sizeof written);
    for (int i = 0; i < 40; i++) {
      const uint64_t first = draw(ELEMENTS), n = 1 + draw(ELEMENTS - first);
      const uint32_t entry = (uint32_t)draw(ENTRIES), param = (uint32_t)draw(PARAMS);
      const int rank = (int)draw(WORLD);
      int overlaps = 0; /* 1: the rank holds some of these elements already */
      for (uint64_t e = first; e < first + n; e++) overlaps |= there[rank][entry][param][e];
      if (overlaps) continue;
      memset(&there[rank][entry][param][first], 1, n);
      held[count++] = (tws_piece){.entry = entry,
                                  .param = param,
                                  .rank = rank,
                                  .slice = {.rows = {ELEMENTS}, .columns = 1, .whole_columns = 1},
                                  .first = first,
                                  .count = n,
                                  .at = 1000 + first};
    }
    ck_assert(tws_pieces_share(held, count, sizes, trial % 2 ? far : NULL, WORLD, arena, &chosen, &chosen_count,
                               NULL) == TWS_OK);
    for (uint32_t i = 0; i < chosen_count; i++)
      for (uint64_t e = chosen[i].first; e < chosen[i].first + chosen[i].count; e++) {
        ck_assert(there[chosen[i].rank][chosen[i].entry][chosen[i].param][e]);
        for (int r = 0; r < WORLD && far[chosen[i].rank]; r++)
          ck_assert(far[r] || !there[r][chosen[i].entry][chosen[i].param][e]);
        ck_assert_uint_eq(chosen[i].at + e - chosen[i].first, 1000 + e);
        written[chosen[i].entry][chosen[i].param][e]++;
      }
    for (int k = 0; k < ENTRIES; k++)
      for (int p = 0; p < PARAMS; p++)
        for (int e = 0; e < ELEMENTS; e++) {
          int any = 0;
          for (int r = 0; r < WORLD; r++) any |= there[r][k][p][e];
          ck_assert_int_eq(written[k][p][e], any);
        }
    tws_arena_destroy(arena);
  }
}
END_TEST

START_TEST(replicas_share_the_work) {
  enum { WORLD = 4, PARAMS = 32 };
  tws_arena *arena = tws_arena_create();
  tws_piece held[WORLD * PARAMS], *chosen = NULL;
  uint32_t count = 0, chosen_count = 0;
  uint64_t load[WORLD] = {0};
  const uint8_t size = 4;
  for (int r = 0; r < WORLD; r++)
    for (uint32_t p = 0; p < PARAMS; p++)
      held[count++] = (tws_piece){.param = p,
                                  .rank = r,
                                  .slice = {.rows = {100}, .columns = 1, .whole_columns = 1},
                                  .count = 100,
                                  .at = p * 100};
  ck_assert(tws_pieces_share(held, count, &size, NULL, WORLD, arena, &chosen, &chosen_count, NULL) == TWS_OK);
  ck_assert_uint_eq(chosen_count, PARAMS);
  for (uint32_t i = 0; i < chosen_count; i++) load[chosen[i].rank] += chosen[i].count;
  for (int r = 0; r < WORLD; r++) ck_assert_uint_eq(load[r], 100 * PARAMS / WORLD);
  tws_arena_destroy(arena);
}
END_TEST

/* ---- a checkpoint by hand: two ranks, a matrix cut by columns, a vector per rank ---- */

enum { ROWS = 700, COLUMNS = 1000, CUT = 300, OWN = 5 };

static double value_of(uint64_t element) {
  return (double)(element % 100003) * 0.5 - 7;
}

static tws_code get_value(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err) {
  (void)user, (void)err;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t run;
    if (piece->param == TWS_NONE)
      ((int32_t *)to)[i] = (int32_t)(100 * piece->copy) + (int32_t)(first + i);
    else
      ((float *)to)[i] = (float)value_of(tws_param_slice_whole(&piece->slice, piece->first + first + i, &run));
  }
  return TWS_OK;
}

static const tws_state_entry hand_entries[] = {{.name = "weights", .dtype = TWS_F32},
                                               {.name = "errors", .dtype = TWS_I32}};
static tws_param hand_params[] = {{.name = "w", .rows = ROWS, .columns = COLUMNS, .fused = {200, 500, 0}}};

static void save_by_hand(const char *path) {
  tws_arena *arena = tws_arena_create();
  tws_saved_file files[2];
  tws_saved_entry entries[2] = {{"weights", TWS_F32, TWS_INITIAL_PARAMETER}, {"errors", TWS_I32, TWS_INITIAL_ZERO}};
  tws_saved_piece saved[4];
  tws_text text = {0};
  ck_assert_int_eq(mkdir(path, 0777), 0);
  for (int r = 0; r < 2; r++) {
    char file[300], *name = tws_arena_alloc(arena, 64, 1);
    tws_shard_written w;
    tws_error err = {0};
    const tws_piece pieces[2] = {{.rank = r,
                                  .slice = {.rows = {ROWS},
                                            .first_column = r ? CUT : 0,
                                            .columns = r ? COLUMNS - CUT : CUT,
                                            .whole_columns = COLUMNS},
                                  .count = (uint64_t)ROWS * (r ? COLUMNS - CUT : CUT)},
                                 {.entry = 1, .param = TWS_NONE, .copy = r, .rank = r, .count = OWN}};
    const tws_shard_request request = {
        .entries = hand_entries, .params = hand_params, .pieces = pieces, .count = 2, .source = get_value};
    snprintf(file, sizeof file, "%s/%s", path, tws_shard_name(r, name, 64));
    ck_assert_msg(tws_shard_write(file, &request, arena, &w, &err) == TWS_OK, "%s", err.message);
    ck_assert_uint_ge(tws_shard_bytes(&request), w.bytes);
    files[r] = (tws_saved_file){name, w.bytes, w.data, w.header_checksum};
    for (int i = 0; i < 2; i++) {
      saved[2 * i + r] =
          (tws_saved_piece){.piece = pieces[i], .checksums = w.checksums + (i ? w.checksum_count - 1 : 0)};
      saved[2 * i + r].piece.at = w.at[i];
    }
  }
  const tws_saved_index index = {.model = "a\"b\\c",
                                 .configuration = "",
                                 .plan = "",
                                 .architecture = "none",
                                 .class_name = "",
                                 .dtype = "fp32",
                                 .data = "text",
                                 .train_batch = 1,
                                 .sequence_length = 8,
                                 .vocabulary = ROWS,
                                 .padded_vocabulary = ROWS,
                                 .ranks = 2,
                                 .counters = {.seed = -3, .steps = 4, .skipped = 1, .loss_scale = {.scale = 0.5}},
                                 .entries = entries,
                                 .params = hand_params,
                                 .files = files,
                                 .pieces = saved,
                                 .entry_count = 2,
                                 .param_count = 1,
                                 .file_count = 2,
                                 .piece_count = 4};
  tws_saved_write(&index, &text);
  char file[300];
  snprintf(file, sizeof file, "%s/%s", path, TWS_CHECKPOINT_INDEX);
  ck_assert(tws_write_file(file, text.data, text.length, NULL) == TWS_OK);
  tws_text_free(&text);
  tws_arena_destroy(arena);
}

static void check_part(tws_saved_reader *reader, const tws_param_slice *slice, uint64_t first, uint64_t count,
                       uint64_t saved) {
  tws_error err = {0};
  float *out = malloc((count + 1) * sizeof *out);
  double *wide = malloc((count + 1) * sizeof *wide);
  for (uint64_t i = 0; i <= count; i++) out[i] = 12345;
  ck_assert_msg(tws_saved_read(reader, 0, 0, 0, slice, first, count, TWS_F32, out, &err) == TWS_OK, "%s", err.message);
  if (saved == UINT64_MAX)
    ck_assert(tws_saved_read(reader, 0, 0, 0, slice, first, count, TWS_F64, wide, &err) == TWS_OK);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t run;
    const uint64_t whole = tws_param_slice_whole(slice, first + i, &run);
    ck_assert_float_eq(out[i], whole < saved ? (float)value_of(whole) : 12345);
    if (saved == UINT64_MAX) ck_assert_double_eq(wide[i], value_of(whole));
  }
  ck_assert_float_eq(out[count], 12345);
  free(out);
  free(wide);
}

/* Reads any part of a matrix that two ranks saved by columns, also in other types than the saved one; rows beyond its
 * last are refused, and empty ranges read nothing. */
START_TEST(reading_parts) {
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  tws_error err = {0};
  char path[64];
  snprintf(path, sizeof path, "%s/hand", folder);
  save_by_hand(path);
  ck_assert_msg(tws_saved_open(path, &index, &err) == TWS_OK, "%s", err.message);
  ck_assert_str_eq(index->model, "a\"b\\c");
  ck_assert(index->counters.seed == -3 && index->counters.steps == 4 && index->counters.skipped == 1 &&
            index->counters.loss_scale.scale == 0.5 && index->params[0].fused[1] == 500);
  ck_assert(tws_saved_reader_open(index, &reader, &err) == TWS_OK);
  ck_assert(tws_saved_verify(&reader, &err) == TWS_OK);
  const tws_param_slice whole = tws_slice_of(&hand_params[0], NULL);
  check_part(&reader, &whole, 0, (uint64_t)ROWS * COLUMNS, UINT64_MAX);
  for (int i = 0; i < 20; i++) {
    const tws_param_slice slice = draw_slice(&hand_params[0]);
    const uint64_t all = tws_slice_count(&slice), first = draw(all), count = 1 + draw(all - first);
    check_part(&reader, &slice, first, count, UINT64_MAX);
  }
  const tws_param longer = {.rows = ROWS + 20, .columns = COLUMNS};
  const tws_param_slice beyond = tws_slice_of(&longer, NULL);
  check_part(&reader, &beyond, 690 * COLUMNS + 7, 25 * COLUMNS, (uint64_t)ROWS * COLUMNS);
  int32_t own[OWN];
  ck_assert(tws_saved_read(&reader, 1, TWS_NONE, 1, NULL, 1, OWN - 1, TWS_I32, own, &err) == TWS_OK);
  for (int i = 0; i < OWN - 1; i++) ck_assert_int_eq(own[i], 101 + i);
  ck_assert(tws_saved_read(&reader, 1, TWS_NONE, 2, NULL, 0, OWN, TWS_I32, own, &err) == TWS_INVALID);
  ck_assert(tws_saved_read(&reader, 1, 0, 0, &whole, 0, 10, TWS_I32, own, &err) == TWS_INVALID);
  ck_assert_msg(strstr(err.message, "w errors") && strstr(err.message, "0 of 10"), "%s", err.message);
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
}
END_TEST

static tws_code read_whole(const char *path, tws_error *err) {
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  TWS_TRY(tws_saved_open(path, &index, err));
  ck_assert(tws_saved_reader_open(index, &reader, err) == TWS_OK);
  tws_code code = tws_saved_verify(&reader, err);
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
  return code;
}

/* One bit anywhere in any file. */
START_TEST(every_flipped_bit) {
  static const char *const files[] = {TWS_CHECKPOINT_INDEX, "rank-00000.safetensors", "rank-00001.safetensors"};
  char path[64], file[128];
  tws_error err = {0};
  snprintf(path, sizeof path, "%s/flipped", folder);
  save_by_hand(path);
  ck_assert(read_whole(path, &err) == TWS_OK);
  for (int i = 0; i < (TWS_SANITIZED ? 30 : 150); i++) {
    snprintf(file, sizeof file, "%s/%s", path, files[i % 3]);
    struct stat info;
    const int fd = open(file, O_RDWR);
    ck_assert(fd >= 0 && fstat(fd, &info) == 0);
    const off_t at = (off_t)draw(i % 2 ? (uint64_t)info.st_size : 900); /* headers, too */
    unsigned char before, byte;
    ck_assert_int_eq(pread(fd, &before, 1, at), 1);
    byte = before ^ (unsigned char)(1 << draw(8));
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    memset(&err, 0, sizeof err);
    ck_assert_msg(read_whole(path, &err) == TWS_INVALID, "byte %ld of %s", (long)at, file);
    ck_assert_msg(strstr(err.message, files[i % 3]) && *err.hint, "%s", err.message);
    ck_assert_int_eq(pwrite(fd, &before, 1, at), 1);
    close(fd);
  }
  ck_assert(read_whole(path, NULL) == TWS_OK);
}
END_TEST

/* ---- folders ---- */

static void publish(const char *save, int64_t step, int64_t keep) {
  char tag[TWS_TAG_SIZE], found[TWS_FOLDER_SIZE];
  tws_error err = {0};
  tws_text remarks = {0};
  tws_tag_of_step(step, tag, sizeof tag);
  ck_assert_msg(save_hand_checkpoint(save, step, keep, &remarks, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(remarks.length == 0, "%s", remarks.data);
  ck_assert(tws_folder_find(save, NULL, found, sizeof found, &err) == TWS_OK);
  ck_assert_str_eq(strrchr(found, '/') + 1, tag);
}

/* The newest checkpoints stay, leftovers are removed, later checkpoints of an earlier run stay untouched, and a tag can
 * be saved again. */
START_TEST(folders) {
  char save[64], path[TWS_FOLDER_SIZE], text[200];
  tws_error err = {0};
  int lock = -1, second = -1;
  snprintf(save, sizeof save, "%s/run", folder);
  ck_assert_int_eq(tws_folder_has_checkpoints(save), 0);
  ck_assert(tws_folder_lock(save, &lock, &err) == TWS_OK);
  ck_assert(tws_folder_lock(save, &second, &err) == TWS_IO && second == -1);
  ck_assert_msg(strstr(err.message, "another job saves there: process "), "%s", err.message);
  ck_assert(tws_folder_find(save, NULL, path, sizeof path, &err) == TWS_IO && strstr(err.message, "latest"));
  for (int step = 5; step <= 25; step += 5) publish(save, step, 3);
  ck_assert_int_eq(count_named(save, "global_step"), 3);
  ck_assert_str_eq(tws_folder_other_tags("x/y", text, sizeof text), "");
  snprintf(path, sizeof path, "%s/global_step20", save);
  ck_assert_str_eq(tws_folder_other_tags(path, text, sizeof text), "global_step25 global_step15");
  snprintf(path, sizeof path, "%s/.saving-global_step30", save);
  ck_assert_int_eq(mkdir(path, 0777), 0);
  snprintf(path, sizeof path, "%s/.removing-global_step10", save);
  ck_assert_int_eq(mkdir(path, 0777), 0);
  publish(save, 20, 1); /* again: 15 goes, 25 stays */
  ck_assert_int_eq(count_named(save, "global_step"), 2);
  ck_assert_int_eq(count_named(save, ".saving"), 0);
  ck_assert_int_eq(count_named(save, ".removing"), 0);
  ck_assert_int_eq(tws_folder_has_checkpoints(save), 1);
  ck_assert(tws_folder_find(save, "global_step7", path, sizeof path, &err) == TWS_IO);
  ck_assert_str_eq(err.hint, "there are: global_step25 global_step20");
  ck_assert(tws_folder_find(save, "../run", path, sizeof path, &err) == TWS_USAGE);
  ck_assert(tws_folder_room(save, 1000, &err) == TWS_OK);
  ck_assert(tws_folder_room(save, UINT64_C(1) << 62, &err) == TWS_IO && strstr(err.message, "4.00 EiB"));
  tws_folder_unlock(lock);
  ck_assert(tws_folder_lock(save, &lock, &err) == TWS_OK);
  tws_folder_unlock(lock);
  ck_assert_int_eq(tws_step_of_tag("global_step007"), -1);
  ck_assert_int_eq(tws_step_of_tag("global_step"), -1);
  ck_assert_int_eq(tws_step_of_tag("global_step123456789012"), 123456789012);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("checkpoint_parts");
  TCase *tests = tcase_create("checkpoint_parts");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, checksum);
  tcase_add_test(tests, slices);
  tcase_add_test(tests, sharing);
  tcase_add_test(tests, replicas_share_the_work);
  tcase_add_test(tests, reading_parts);
  tcase_add_test(tests, every_flipped_bit);
  tcase_add_test(tests, folders);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
