/* Compares a simulated with a measured timeline of the same plan: operations summed by phase, by stream and by kind.
 *
 * Sums are busy seconds of one rank in one step: totals over the ranks that both timelines have, divided by their
 * number and by the number of steps. Operations on different streams overlap, so sums may exceed the step. */
#ifndef TWS_TRACES_COMPARE_H
#define TWS_TRACES_COMPARE_H

#include "base/memory.h"
#include "traces/timeline.h"

typedef enum tws_comparison_group {
  TWS_COMPARE_STEP, /* one row: from the first start to the last end over the compared ranks, mean of steps */
  TWS_COMPARE_PHASE,
  TWS_COMPARE_STREAM,
  TWS_COMPARE_KIND,      /* last word of the labels: kernel or collective */
  TWS_COMPARE_OPERATION, /* the labels with the largest difference */
  TWS_COMPARE_GROUPS
} tws_comparison_group;

typedef struct tws_comparison_row {
  tws_comparison_group group;
  const char *name;
  double simulated_s, measured_s;
  double error; /* (simulated - measured) / measured; NaN when nothing was measured */
} tws_comparison_row;

typedef struct tws_comparison {
  tws_comparison_row *rows; /* by group; inside a group in the plan's order (phase, stream) or largest first */
  int row_count;
  int ranks, simulated_steps, measured_steps;
  tws_arena *arena;
} tws_comparison;

/* TWS_INVALID when the two are not of the same plan (an operation of a shared rank has another name or is missing in
 * one of them), or share no rank. Free with tws_comparison_destroy(). */
tws_code tws_timeline_compare(const tws_timeline *simulated, const tws_timeline *measured, tws_comparison **out,
                              tws_error *err);
void tws_comparison_destroy(tws_comparison *comparison);
/* json 0: an aligned table; 1: {"ranks": .., "step": {...}, "phase": [...], ...}, times in seconds, null for
 * no error. */
tws_code tws_comparison_print(const tws_comparison *comparison, int json, tws_text *out, tws_error *err);

#endif
