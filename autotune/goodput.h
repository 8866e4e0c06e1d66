/* What failures leave of the speed of the best of a search: how often each of them saves, and the tokens a second that
 * remain. */
#ifndef TWS_AUTOTUNE_GOODPUT_H
#define TWS_AUTOTUNE_GOODPUT_H

#include "autotune/results.h"
#include "job/saving.h"

enum { TWS_GOODPUT_ROWS = 5 };
typedef struct tws_goodput_row {
  const tws_tune_candidate *of; /* of the result */
  double step_s;                /* simulated, or else its longest path */
  tws_saving_advice advice;
  double tokens_per_s; /* of the whole job, what failures leave of them */
} tws_goodput_row;

typedef struct tws_goodput {
  double between_failures_s, restart_s; /* restart_s: from a failure until training continues */
  double step_s;                        /* of the winner, as its analysis has it */
  tws_saving_advice winner;
  tws_goodput_row rows[TWS_GOODPUT_ROWS]; /* the first of the result, in its order: what is left may be in another */
  int count;
} tws_goodput;

/* between_s: between failures of the whole job, seconds. Of a report with an analysis, which lives as long as *out. */
tws_code tws_goodput_find(const tws_tune_report *report, double between_s, tws_goodput *out, tws_error *err);

#endif
