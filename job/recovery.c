#include "job/recovery.h"

#include "checkpoint/folder.h"

int tws_recovery_goes_on(tws_code code, int64_t left, int64_t ranks, const char *folder) {
  return left > 0 && ranks > 1 && (code == TWS_RANK || code == TWS_HANG) && folder &&
         tws_folder_has_checkpoints(folder);
}

tws_code tws_recovery_shrink(const tws_job_spec *spec, int64_t most, int64_t *ranks, tws_job **job, tws_error *err) {
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
