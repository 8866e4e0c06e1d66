/* Best-first search (branch and bound). A priority queue holds entries of three kinds, ordered by an upper bound of
 * their score. The entry with the highest bound is refined: a division is replaced by its points, the bound of a point
 * by a tighter bound, and the latter by a plan.
 *
 *   division: bound by its passes; for a pipeline, by the layers of all stages (tws_bound_layers)
 *   -> its points -> bound of each point (tws_bound_step) -> plan (tws_job_estimate)
 *
 * Each refinement costs more than the one before it and never raises the bound. A planned point at the head of the
 * queue is therefore better than all other entries, and points whose bound never reaches the head are never planned.
 * Equal requests examine the same points in the same order with any number of processes. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_FRONTIER_H
#define TWS_AUTOTUNE_FRONTIER_H

#include "autotune/search_state.h"

/* State of a running search. */
typedef struct tws_search {
  const tws_tune_request *request;
  const tws_points *points;
  tws_search_state *state;
  tws_divisions *divisions; /* NULL: every point is listed */
  int wanted;               /* number of best points to find; ignored if `every` (plan all points) is 1 */
  int every;
  int workers;
  double until_s; /* start no work after this time; 0: no limit */
  tws_tally *tally;
  tws_tune_swept *swept;
  /* Planned points that fit, best first; then planned points that do not fit: all of them, or those closest to
   * fitting. */
  tws_tune_candidate *fits, *rejects;
  int fit_count, reject_count;
  size_t fit_capacity, reject_capacity;
  double left_score; /* upper bound of the scores of points that are left; 0: none is left */
} tws_search;

/* Plans points, best bounds first, until no other point can be better, and leaves the results in `search`. The points
 * are those of divisions of ranks that may fit, or those of the search's list if it has one. */
tws_code tws_frontier_search(tws_search *search, tws_error *err);
/* Plans the candidates closest to fitting, if nothing fits, so that a message can state the missing bytes. */
tws_code tws_frontier_plan_closest(tws_search *search, tws_error *err);

#endif
