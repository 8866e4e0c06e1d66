#include "job/recovery.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/read.h"

int tws_recovery_continues(tws_code code, int64_t left, int64_t ranks, const char *folder) {
  return left > 0 && ranks > 1 && (code == TWS_RANK || code == TWS_HANG) && folder != NULL;
}

static tws_code verify(const char *path, int *has_base, tws_error *err) {
  tws_saved_index *index;
  tws_saved_reader reader;
  TWS_TRY(tws_saved_open(path, &index, err));
  tws_code code = tws_saved_reader_open(index, &reader, err);
  if (code == TWS_OK) {
    code = tws_saved_verify(&reader, err);
    tws_saved_reader_close(&reader);
  }
  *has_base = code == TWS_OK && *index->base;
  tws_saved_close(index);
  return code;
}

/* Returns one more than the step of the checkpoint that `latest` names, if the job has written `latest`: folders of
 * later steps are then leftovers of an older training. */
static int64_t newest_of_job(const char *folder, int64_t since) {
  char path[TWS_FOLDER_SIZE];
  if (tws_folder_stamp(folder, "latest") <= since || tws_folder_find(folder, NULL, path, sizeof path, NULL) != TWS_OK)
    return INT64_MAX;
  const int64_t step = tws_step_of_tag(strrchr(path, '/') + 1);
  return step < 0 ? INT64_MAX : step + 1;
}

tws_code tws_recovery_find(const char *folder, int64_t since, const char *origin, tws_recovery_point *point,
                           tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  *point = (tws_recovery_point){0};
  for (int64_t below = newest_of_job(folder, since); (below = tws_folder_newest(folder, below)) >= 0;) {
    tws_error damage = {0};
    tws_tag_of_step(below, point->tag, sizeof point->tag);
    const int known = origin && strcmp(origin, point->tag) == 0;
    snprintf(path, sizeof path, "%.255s/%s", point->tag, TWS_CHECKPOINT_INDEX);
    if (!known && tws_folder_stamp(folder, path) <= since) continue;
    snprintf(path, sizeof path, "%.3500s/%.255s", folder, point->tag);
    if (verify(path, &point->has_base, &damage) == TWS_OK) return TWS_OK;
    if (!*point->damage.message) point->damage = damage;
  }
  *point->tag = '\0';
  if (!*point->damage.message) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "begin anew in another folder, or continue from a copy: --resume",
                  "%s; no checkpoint of the job is whole", point->damage.message);
}

tws_code tws_recovery_reshard(const tws_job_spec *spec, int64_t most, int64_t *ranks, tws_job **job, tws_error *err) {
  tws_job_spec fewer = *spec;
  if (job) *job = NULL;
  for (*ranks = most; *ranks > 0; --*ranks) {
    tws_job *found;
    fewer.ranks = *ranks;
    const tws_code code = tws_job_load(&fewer, &found, err);
    if (code != TWS_OK && code != TWS_INVALID) return code;
    if (code != TWS_OK) continue;
    if (job)
      *job = found;
    else
      tws_job_destroy(found);
    return TWS_OK;
  }
  return tws_fail(err, TWS_NO, "leave the batch to `elasticity`",
                  "no number of ranks is left that the batch can be divided among");
}
