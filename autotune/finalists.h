/* Points of an exhaustive search that may be among the best, and their plans. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_FINALISTS_H
#define TWS_AUTOTUNE_FINALISTS_H

#include "autotune/product.h"

typedef struct tws_finalist {
  int64_t number;
  double samples_per_s, step_s; /* composed: exact, or no slower than that */
  int exact;
} tws_finalist;

/* A heap whose root is the worst of the best. */
typedef struct tws_best {
  tws_finalist *items;
  int count, most;
  int64_t dropped;
  double best_dropped;
} tws_best;
void tws_finalists_offer(tws_best *best, const tws_finalist *finalist);

struct tws_search_state;
/* Plans them in the order of what they promise (and sorts them so), until nothing that is left can be among the
 * `wanted` best; of those that have equal plans the first. What *sweep knows is not planned
 * again unless it leads. Fills candidates, count and fits of *result, and counts in
 * its swept. TWS_INTERNAL: a plan is not what was composed. */
tws_code tws_finalists_plan(const tws_product *product, struct tws_search_state *sweep, tws_finalist *all, int count,
                            int wanted, tws_tune_result *result, tws_error *err);

#endif
