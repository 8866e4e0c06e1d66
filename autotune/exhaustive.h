/* Exhaustive searches: every point of the lists' product, by composed steps (estimators/composer.h).
 *
 *   points, streamed as numbers -> no such job | equal to another | too large | too slow | composed or bounded
 *   the best of them -> plans: exact times, arenas; a composed time that is not the plan's is an error
 *
 * Bounds are planned as long as they are better than what has been planned, so the best are those that plans of all
 * points would find. Processes share the points by classes of layers; equal requests with equal numbers of workers give
 * equal results. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_EXHAUSTIVE_H
#define TWS_AUTOTUNE_EXHAUSTIVE_H

#include "autotune/autotune.h"

/* The finalists, planned and not simulated, fastest first; request->trials of them at most. */
tws_code tws_tune_exhaustive(const tws_tune_request *request, tws_tune_result *result, tws_error *err);
/* As a search does; or whatever is legal is composed, also what is too large or too slow: in haste, or exactly where
 * that is possible (tws_compose_limits). */
typedef enum tws_compose_how { TWS_COMPOSE_PRUNED, TWS_COMPOSE_HASTILY, TWS_COMPOSE_EXACTLY } tws_compose_how;
/* Looks at every point in this process and plans none: how fast that is. */
tws_code tws_tune_compose_all(const tws_tune_request *request, tws_compose_how how, tws_tune_swept *swept,
                              tws_error *err);
/* Verdict and bytes of a candidate that has been planned; job: its own. (autotune/search.c) */
void tws_tune_judge(const tws_tune_request *request, const tws_job *job, tws_tune_candidate *candidate);

#endif
