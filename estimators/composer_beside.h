/* Lines of ranks that meet in what runs beside their layers (estimators/composer_beside.c), and the account of what
 * they wait for. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_COMPOSER_BESIDE_H
#define TWS_ESTIMATORS_COMPOSER_BESIDE_H

#include "estimators/composer.h"

/* An operation on a stream beside what computes: when it could start for all that its rank knows, when its group had
 * come, and when it ended. */
typedef struct tws_timed_op {
  double ready_s, met_s, end_s, seconds; /* seconds: between the last two */
  uint32_t cause; /* 1 + the number of the one whose end it was ready at; 0: none but what computes */
  uint8_t axis;   /* tws_piece_axis() */
} tws_timed_op;
/* Operation `number` of a stream of each line, all[line], which lies behind those before it: they start when the last
 * of a group is ready and has ended its own before. ready_s and seconds are set; of: see tws_lines_along(), NULL:
 * nobody meets another. */
void tws_start_jointly(const uint8_t *of, int lines, uint32_t number, tws_timed_op *const *all);
/* Why nothing was computed from then until then, when operation `last` ended: along what it waited for, as
 * tws_path_read() attributes it. */
void tws_account_gap(tws_composed_account *account, const tws_timed_op *(*at)(const void *of, uint32_t number),
                     const void *of, uint32_t last, double from_s, double to_s);

#endif
