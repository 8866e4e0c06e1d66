/* Compares a simulated with a measured timeline of the same plan: operations summed by phase, by stream and by kind.
 *
 * Sums are busy seconds of one rank in one step: totals over the ranks that both timelines have, divided by their
 * number and by the number of steps. Operations on different streams overlap, so sums may exceed the step. */
#ifndef TWS_TRACES_COMPARE_H
#define TWS_TRACES_COMPARE_H

#include "base/memory.h"
#include "traces/timeline.h"

typedef enum tws_comparison_group {
  TWS_COMPARE_STEP, /* one row: mean over steps of the time from the first start to the last end on the compared
                     * ranks */
  TWS_COMPARE_PHASE,
  TWS_COMPARE_STREAM,
  TWS_COMPARE_KIND,      /* one row for each last word of the labels: kernel or collective */
  TWS_COMPARE_OPERATION, /* one row for each of the labels with the largest differences */
  TWS_COMPARE_GROUPS
} tws_comparison_group;

typedef struct tws_comparison_row {
  tws_comparison_group group;
  const char *name;
  double simulated_s, measured_s;
  double error; /* (simulated - measured) / measured; NaN when nothing was measured */
} tws_comparison_row;

typedef struct tws_comparison {
  tws_comparison_row *rows; /* sorted by group; inside a group in the plan's order (phase, stream), or with the largest
                             * first */
  int row_count;
  int ranks, simulated_steps, measured_steps;
  tws_arena *arena;
} tws_comparison;

/* Compares two timelines. Fails with TWS_INVALID if they are not of the same plan (an operation of a shared rank has
 * another name or is missing in one of them), or have no common rank. Free with tws_comparison_destroy(). */
tws_code tws_timeline_compare(const tws_timeline *simulated, const tws_timeline *measured, tws_comparison **out,
                              tws_error *err);
void tws_comparison_destroy(tws_comparison *comparison);
/* Prints the comparison: json 0: as an aligned table; 1: as {"ranks": .., "step": {...}, "phase": [...], ...}, with
 * times in seconds, and null for an error that is not defined. */
tws_code tws_comparison_print(const tws_comparison *comparison, int json, tws_text *out, tws_error *err);

#endif
