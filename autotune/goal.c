#include "autotune/goal.h"

#include <stdlib.h>

static const char *const names[TWS_GOALS] = {"throughput", "latency", "flops", "memory", "cost"};

const char *tws_goal_name(tws_goal objective) {
  return names[objective];
}

/* Returns the score. The price of a device-hour is the same for all candidates, so that the cost is proportional to
 * device-seconds per sample. */
double tws_goal_score(tws_goal objective, const tws_scored *s) {
  if (!(s->step_s > 0)) return 0;
  switch (objective) {
    case TWS_GOAL_LATENCY:
      return 1 / s->step_s;
    case TWS_GOAL_FLOPS:
      return s->model_flops / s->ranks / s->step_s;
    case TWS_GOAL_MEMORY:
      return (s->bytes > 0 ? 1 / s->bytes : 0) * (1 + 1e-6 / (1 + s->step_s / s->samples));
    case TWS_GOAL_COST:
      return s->samples / s->step_s / s->ranks;
    default:
      return s->samples / s->step_s;
  }
}

double tws_tune_predicted(const tws_tune_candidate *c) {
  return c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s;
}

tws_scored tws_candidate_scored(const tws_tune_candidate *c) {
  return (tws_scored){.step_s = tws_tune_predicted(c),
                      .samples = c->samples,
                      .bytes = c->needed_bytes,
                      .model_flops = c->estimate.model_flops,
                      .ranks = c->variant.ranks};
}

typedef struct place {
  double score;
  int index;
} place;

static int by_score(const void *left, const void *right) {
  const place *a = left, *b = right;
  if (a->score != b->score) return a->score > b->score ? -1 : 1;
  return a->index - b->index;
}

tws_code tws_tune_order(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  const size_t fits = (size_t)result->fits;
  if (request->goal == TWS_GOAL_THROUGHPUT || fits < 2) return TWS_OK;
  place *places = tws_calloc(fits, sizeof *places);
  tws_tune_candidate *sorted = tws_calloc(fits, sizeof *sorted);
  for (size_t i = 0; places && sorted && i < fits; i++) {
    const tws_scored scored = tws_candidate_scored(&result->candidates[i]);
    places[i] = (place){tws_goal_score(request->goal, &scored), (int)i};
  }
  if (places && sorted) {
    qsort(places, fits, sizeof *places, by_score);
    for (size_t i = 0; i < fits; i++) sorted[i] = result->candidates[places[i].index];
    for (size_t i = 0; i < fits; i++) result->candidates[i] = sorted[i];
  }
  const tws_code code = places && sorted ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(places);
  tws_free(sorted);
  return code;
}
