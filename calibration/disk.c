#include "calibration/disk.h"

#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "models/hardware/profile.h"

static double median(double *values, int count) {
  for (int i = 1; i < count; i++)
    for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
      const double value = values[k];
      values[k] = values[k - 1];
      values[k - 1] = value;
    }
  return values[count / 2];
}

static void list_trials(int quick, tws_disk_calibration *out) {
  static const int64_t blocks[] = {1 << 20, 1 << 17, 1 << 19, 1 << 23}, depths[] = {8, 32, 1}, threads[] = {1, 4};
  const int most = quick ? 2 : 4;
  for (int b = 0; b < most; b++)
    for (int d = 0; d < (quick ? 2 : 3); d++)
      for (int t = 0; t < (quick ? 1 : 2); t++)
        out->trial[out->count++].aio =
            (tws_aio){.block_size = blocks[b], .queue_depth = depths[d], .threads = threads[t], .overlap_events = 1};
}

static double seconds_a_byte(const tws_disk_trial *trial) {
  return 1 / trial->read + 1 / trial->write;
}

/* Each round measures all settings, so that a load of other processes on the disk affects all settings alike. */
tws_code tws_calibrate_disk(const tws_real_api *real, const char *folder, uint64_t bytes, int quick,
                            tws_progress *progress, tws_disk_calibration *out, tws_error *err) {
  double read[TWS_DISK_TRIALS][TWS_DISK_ROUNDS], write[TWS_DISK_TRIALS][TWS_DISK_ROUNDS];
  const int rounds = quick ? 1 : TWS_DISK_ROUNDS;
  tws_code code = TWS_OK;
  memset(out, 0, sizeof *out);
  out->bytes = bytes;
  list_trials(quick, out);
  tws_progress_begin(progress, "measuring the disk", (double)(rounds * out->count));
  for (int i = 0; i < rounds * out->count && code == TWS_OK; i++) {
    const int at = i % out->count, round = i / out->count;
    code =
        real->measure_disk(folder, &out->trial[at].aio, bytes, &read[at][round], &write[at][round], &out->direct, err);
    tws_progress_update(progress, (double)(i + 1));
  }
  tws_progress_end(progress);
  TWS_TRY(code);
  for (int i = 0; i < out->count; i++) {
    out->trial[i].read = median(read[i], rounds);
    out->trial[i].write = median(write[i], rounds);
    if (seconds_a_byte(&out->trial[i]) < seconds_a_byte(&out->trial[out->best])) out->best = i;
  }
  return TWS_OK;
}

/* ---- storing the results in a profile or a configuration ---- */

tws_code tws_disk_into_profile(const tws_disk_trial *best, const char *path, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read_regular(path, &json, err));
  cJSON *disk = cJSON_CreateObject();
  cJSON_AddNumberToObject(disk, "read", best->read);
  cJSON_AddNumberToObject(disk, "write", best->write);
  cJSON_DeleteItemFromObjectCaseSensitive(json->root, "disk");
  cJSON_AddItemToObject(json->root, "disk", disk);
  char *text = cJSON_Print(json->root);
  const tws_code code = text ? tws_write_file(path, text, strlen(text), err)
                             : tws_fail(err, TWS_MEMORY, NULL, "no memory to write %s with", path);
  cJSON_free(text);
  tws_json_destroy(json);
  return code;
}

tws_code tws_disk_profile_check(const char *path, tws_error *err) {
  tws_json *json;
  tws_profile *profile = NULL;
  TWS_TRY(tws_json_read_regular(path, &json, err));
  const tws_code code = tws_profile_from_json(json, &profile, err);
  tws_json_destroy(json);
  tws_profile_destroy(profile);
  return code;
}

cJSON *tws_aio_json(const tws_aio *aio) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddNumberToObject(json, "block_size", (double)aio->block_size);
  cJSON_AddNumberToObject(json, "queue_depth", (double)aio->queue_depth);
  cJSON_AddNumberToObject(json, "intra_op_parallelism", (double)aio->threads);
  cJSON_AddBoolToObject(json, "single_submit", aio->single_submit);
  cJSON_AddBoolToObject(json, "overlap_events", aio->overlap_events);
  return json;
}

tws_code tws_aio_write(const tws_aio *aio, const char *path, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddItemToObject(json, "aio", tws_aio_json(aio));
  char *text = cJSON_Print(json);
  tws_text line = {0};
  if (text) tws_text_add(&line, "%s\n", text);
  cJSON_free(text);
  cJSON_Delete(json);
  const tws_code code = !text || line.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", path)
                                             : tws_write_file(path, line.data, line.length, err);
  tws_text_free(&line);
  return code;
}
