/* The end of a step where streams run beside the one that computes: copies to and from the host, and its updates.
 *
 * Stages meet in collectives on the stream that computes. What an operation waits for is a longest path: since one of
 * these meetings, or since the end's beginning, so long. Paths that another is never shorter than are forgotten, so
 * that few are left. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_TAIL_ORDER_H
#define TWS_ESTIMATORS_TAIL_ORDER_H

#include "estimators/pieces.h"

/* Before the stage's meetings of a plan with dependencies (per operation: whether it is one, and what it takes), and at
 * its end: out[meetings + 1]. NULL *out: they are not known, as other operations of the step decide. */
tws_code tws_tail_order_find(const tws_plan *plan, const uint8_t *meets, const tws_piece_time *times, tws_arena *arena,
                             tws_tail_paths **out, tws_error *err);

#endif
