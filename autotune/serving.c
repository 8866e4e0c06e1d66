#include "autotune/serving.h"

#include <stdlib.h>

static int is_within(const tws_serve_answer *a, tws_serve_limits limits) {
  return a->fit.fits && (limits.token_s <= 0 || a->token_s <= limits.token_s) &&
         (limits.first_token_s <= 0 || a->first_token_s <= limits.first_token_s);
}

/* Finds the number of texts, a power of two, with the highest rate of generated tokens within the limits, for one
 * division. Latencies grow with the number of texts, so the search ends at the first number that exceeds a limit or
 * does not fit. */
static tws_code fill_point(tws_job *job, const tws_serve_request *request, tws_serve_limits limits,
                           tws_serve_point *point, tws_error *err) {
  enum { MOST = 1 << 12 };
  for (int64_t micro = 1; micro <= MOST; micro *= 2) {
    tws_serve_answer answer;
    job->config->micro_batch_size = micro;
    TWS_TRY(tws_job_serve(job, request, &answer, err));
    if (!is_within(&answer, limits)) return TWS_OK;
    if (answer.tokens_per_s <= point->answer.tokens_per_s) continue;
    point->answer = answer;
    point->micro = micro;
  }
  return TWS_OK;
}

static tws_code try_division(const tws_job_spec *base, const tws_serve_request *request, tws_serve_limits limits,
                             int ranks, tws_serve_point *point, tws_error *err) {
  tws_job_spec spec = *base;
  tws_job *job;
  spec.ranks = ranks;
  spec.tensor_ranks = point->tensor;
  spec.pipeline_stages = point->stages;
  spec.vocabulary_multiple = point->tensor;
  spec.micro_batch = 1;
  spec.accumulation = point->stages;
  spec.sequence = request->prompt + request->output;
  point->replicas = ranks / point->tensor / point->stages;
  TWS_TRY(tws_job_load(&spec, &job, err));
  tws_code code = tws_job_set_server(job, request->server, err);
  if (code == TWS_OK) code = fill_point(job, request, limits, point, err);
  tws_job_destroy(job);
  return code;
}

static int fastest_first(const void *a, const void *b) {
  const tws_serve_point *x = a, *y = b;
  if (x->answer.tokens_per_s != y->answer.tokens_per_s) return x->answer.tokens_per_s < y->answer.tokens_per_s ? 1 : -1;
  return x->tensor * 65536 + x->stages - y->tensor * 65536 - y->stages;
}

tws_code tws_serve_tune(const tws_job_spec *spec, const tws_serve_request *request, tws_serve_limits limits,
                        tws_arena *arena, tws_serve_point points[TWS_SERVE_POINTS], int *count, tws_error *err) {
  tws_job_spec first = *spec;
  tws_job *job;
  int possible = 0;
  first.sequence = request->prompt + request->output;
  first.micro_batch = first.accumulation = 1;
  *count = 0;
  TWS_TRY(tws_job_load(&first, &job, err));
  const int ranks = job->ranks;
  tws_job_destroy(job);
  for (int tensor = 1; tensor <= ranks; tensor *= 2)
    for (int stages = 1; tensor * stages <= ranks && *count < TWS_SERVE_POINTS; stages *= 2) {
      if (ranks % (tensor * stages)) continue;
      tws_error why = {0};
      tws_serve_point *point = &points[(*count)++];
      *point = (tws_serve_point){.tensor = tensor, .stages = stages, .refused = ""};
      const tws_code code = try_division(spec, request, limits, ranks, point, &why);
      possible += code == TWS_OK;
      if (code == TWS_OK) continue;
      point->refused = tws_arena_strdup(arena, why.message);
      if (!point->refused) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
      if (*count == 1 && err) *err = why;
    }
  qsort(points, (size_t)*count, sizeof *points, fastest_first);
  return possible ? TWS_OK : TWS_INVALID;
}
