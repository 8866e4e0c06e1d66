/* Published runs of inference, compared with predictions. A file is a list of rows {"id", "group", "core", "model",
 * "hardware", "software", "config", "result", "measure"}; scenarios/published/inference_sources.json says which
 * names of this program their texts mean. */
#ifndef TWS_VALIDATION_SERVING_CASES_H
#define TWS_VALIDATION_SERVING_CASES_H

#include "base/json.h"
#include "base/log.h"
#include "job/serving.h"

typedef struct tws_served_result {
  const char *id, *group;
  const char *skipped_because;       /* reason why the run is not predicted; NULL: it is */
  double measured, predicted;        /* generated tokens/s of all GPUs; 0: the row has no rate of a batch */
  /* GiB of a device: of all buffers, or of keys and values where those are what was measured; 0: the row has neither */
  double measured_gib, predicted_gib;
  int out_of_memory, predicted_fits; /* 1 or 0; out_of_memory -1: not stated */
  int for_fitting;                   /* tws_case_is_for_fitting() */
} tws_served_result;

/* Figures of the runs of a group, or of a half of all. Errors in percent of what was measured; NaN: there are none. */
typedef struct tws_served_group {
  const char *name;
  int n, skipped, timed, weighed, verdicts_right, verdicts_wrong; /* weighed: runs whose memory was measured */
  double median, bias; /* median of absolute errors; mean of signed ones */
  double memory;       /* median of absolute errors of the memory */
  double concordance;  /* share of pairs of runs that are predicted in their measured order */
} tws_served_group;

typedef struct tws_served_comparison {
  tws_json *json, *rules;
  tws_served_result *results;
  int count;
  tws_served_group *groups;
  int group_count;
  tws_served_group halves[2]; /* the half for fitting, and the reported one */
  tws_arena *arena;
} tws_served_comparison;

/* Returns 1 if the rows of a file are runs of inference. */
int tws_served_is_list(const tws_json *json);
/* Predicts the core rows of the named groups, or of all if group_count is 0. Rows without a batch or concurrency, of
 * other kinds or of unknown texts are skipped with the reason. Fails with TWS_INVALID for a bad file. The caller calls
 * tws_served_free(), after an error too. */
tws_code tws_served_compare(const char *path, const char *const *groups, int group_count, tws_progress *progress,
                            tws_served_comparison *out, tws_error *err);
void tws_served_free(tws_served_comparison *comparison);

#endif
