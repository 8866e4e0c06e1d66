/* Best first: of all points that may fit, those that promise most are looked at more closely, until the best plans
 * promise no less than everything that is left.
 *
 *   a division: what its passes take; of a pipeline, what the layers of all stages take (tws_bound_layers)
 *   -> its points -> a bound of each (tws_bound_step) -> the plan (tws_job_estimate)
 *
 * Each step costs more than the one before it and never promises more, so what has been planned when it comes first
 * again is better than everything else, and what never comes first is never planned. Equal requests look at the same
 * points in the same order, whatever the number of processes. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_FRONTIER_H
#define TWS_AUTOTUNE_FRONTIER_H

#include "autotune/search_state.h"

/* A search under way. */
typedef struct tws_search {
  const tws_tune_request *request;
  const tws_points *points;
  tws_search_state *state;
  tws_divisions *divisions; /* NULL: every point is listed */
  int wanted;               /* so many of the best; every == 1: all */
  int every;
  int workers;
  double until_s; /* begin nothing then; 0: no limit */
  tws_tally *tally;
  tws_tune_swept *swept;
  /* what was planned and fits, best first; behind it what does not fit: all of it, or what came closest */
  tws_tune_candidate *fits, *rejects;
  int fit_count, reject_count;
  size_t fit_capacity, reject_capacity;
  double left_score; /* what is left promises no more; 0: nothing is left */
} tws_search;

/* Looks at the points of the divisions that were found, or at those of a list. */
tws_code tws_frontier_search(tws_search *search, tws_error *err);
/* Nothing fits: the candidates that came closest are planned, so that it can be said what is missing. */
tws_code tws_frontier_plan_closest(tws_search *search, tws_error *err);

#endif
