#include "validation/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/json.h"
#include "launch/launch.h"
#include "traces/measurements.h"

enum { ARGUMENTS = 64 + TWS_MAX_STRINGS };

static double number_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void read_memory(const cJSON *root, tws_trial *trial) {
  const cJSON *rank, *tier;
  trial->predicted_bytes = trial->allocated_bytes = trial->peak_rss_bytes = 0;
  trial->rank_predicted_bytes = trial->rank_allocated_bytes = 0;
  cJSON_ArrayForEach(rank, cJSON_GetObjectItemCaseSensitive(root, "memory")) {
    trial->peak_rss_bytes += number_of(rank, "peak_rss_bytes");
    double predicted = 0, allocated = 0;
    cJSON_ArrayForEach(tier, rank) {
      if (!cJSON_IsObject(tier)) continue;
      predicted += number_of(tier, "predicted_bytes");
      allocated += number_of(tier, "allocated_bytes");
    }
    trial->predicted_bytes += predicted;
    trial->allocated_bytes += allocated;
    trial->rank_predicted_bytes = fmax(trial->rank_predicted_bytes, predicted);
    trial->rank_allocated_bytes = fmax(trial->rank_allocated_bytes, allocated);
  }
}

static tws_code read_result(const char *path, int traced, tws_trial *trial, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read_regular(path, &json, err));
  const cJSON *times = cJSON_GetObjectItemCaseSensitive(json->root, "step_s");
  const cJSON *losses = cJSON_GetObjectItemCaseSensitive(json->root, "losses");
  int count = cJSON_GetArraySize(times), losses_count = cJSON_GetArraySize(losses);
  tws_code code = TWS_OK;
  if (count < 1 || losses_count < 1) code = tws_json_fail(json, json->root, err, 0, "a training run without steps");
  int first = count > 1 ? 1 : 0, last = traced && count > 2 ? count - 1 : count; /* the first step fills caches */
  if (code == TWS_OK && tws_reserve(&trial->step_s, &trial->capacity, trial->count + (size_t)count, sizeof(double)))
    code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = first; code == TWS_OK && i < last; i++)
    trial->step_s[trial->count++] = cJSON_GetArrayItem(times, i)->valuedouble;
  if (code == TWS_OK) {
    trial->first_loss = cJSON_GetArrayItem(losses, 0)->valuedouble;
    trial->last_loss = cJSON_GetArrayItem(losses, losses_count - 1)->valuedouble;
    read_memory(json->root, trial);
    trial->runs++;
  }
  tws_json_destroy(json);
  return code;
}

static tws_code launch_train(const tws_trial_request *request, const char *trace, const char *result, tws_error *err) {
  const char *arguments[ARGUMENTS];
  int count = 0;
  tws_job_spec spec = *request->spec;
  spec.ranks = request->ranks;
  spec.threads = request->threads;
  spec.measured.count = 0; /* the profile is not rescaled, since the trial itself measures */
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  arguments[count++] = "train";
  tws_code code = tws_job_spec_arguments(&spec, arena, arguments, ARGUMENTS - 9, &count, err);
  arguments[count++] = tws_arena_printf(arena, "--data=%s", request->data);
  arguments[count++] = tws_arena_printf(arena, "--steps=%lld", (long long)request->steps);
  arguments[count++] = tws_arena_printf(arena, "--result=%s", result);
  arguments[count++] = tws_arena_printf(arena, "--deadline=%g", TWS_FAILURE_DEADLINE_S);
  if (trace) arguments[count++] = tws_arena_printf(arena, "--trace=%s", trace);
  arguments[count++] = "--quiet";
  for (int i = 0; i < count; i++)
    if (!arguments[i] && code == TWS_OK) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_launch_options launch = {.ranks = request->ranks,
                               .threads = request->threads,
                               .arguments = arguments,
                               .argument_count = count,
                               .deadline_s = TWS_FAILURE_DEADLINE_S,
                               .silent = 1,
                               .progress = request->progress};
  if (request->progress) tws_progress_begin(request->progress, "training steps", (double)request->steps);
  if (code == TWS_OK) code = tws_launch(&launch, err);
  tws_arena_destroy(arena);
  return code;
}

tws_code tws_trial_run(const tws_trial_request *request, const char *trace, tws_trial *trial, tws_error *err) {
  char result[4096];
  TWS_TRY(tws_temporary_file(result, sizeof result, "trial", err));
  tws_code code = launch_train(request, trace, result, err);
  if (code == TWS_OK) code = read_result(result, trace != NULL, trial, err);
  tws_temporary_remove(result);
  return code;
}

void tws_trial_times(const tws_trial *trial, double *median_s, double *low_s, double *high_s) {
  *median_s = *low_s = *high_s = 0;
  if (trial->count == 0) return;
  *median_s = tws_sample_median(trial->step_s, trial->count); /* sorts: the order of steps does not matter here */
  *low_s = trial->step_s[trial->count / 4];
  *high_s = trial->step_s[trial->count - 1 - trial->count / 4];
}

void tws_trial_free(tws_trial *trial) {
  tws_free(trial->step_s);
  *trial = (tws_trial){0};
}
