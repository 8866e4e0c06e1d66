/* Computes the goodput under failures of the best candidates of a search: the best interval between checkpoints, and
 * the tokens per second that remain. */
#ifndef TWS_AUTOTUNE_GOODPUT_H
#define TWS_AUTOTUNE_GOODPUT_H

#include "autotune/results.h"
#include "job/saving.h"

enum { TWS_GOODPUT_ROWS = 5 };
typedef struct tws_goodput_row {
  const tws_tune_candidate *of; /* the candidate of the result to which the row belongs */
  double step_s;                /* seconds of its step, simulated, or else by the longest path */
  tws_saving_advice advice;
  double tokens_per_s; /* goodput of the whole job */
} tws_goodput_row;

typedef struct tws_goodput {
  double between_failures_s, restart_s; /* restart_s: from a failure until training continues */
  double step_s;                        /* seconds of the winner's step, from its analysis */
  tws_saving_advice winner;
  tws_goodput_row rows[TWS_GOODPUT_ROWS]; /* the first candidates of the result, in its order; not sorted by goodput */
  int count;
} tws_goodput;

/* Computes the goodput of the candidates of a report that has an analysis; the report must outlive *out. between_s:
 * mean seconds between failures of the whole job. */
tws_code tws_goodput_find(const tws_tune_report *report, double between_s, tws_goodput *out, tws_error *err);

#endif
