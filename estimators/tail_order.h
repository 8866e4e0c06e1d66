/* The end of a step where streams run beside the one that computes: copies to and from the host, and its updates.
 *
 * Stages meet in collectives on the stream that computes. What an operation waits for is a longest path: since one of
 * these meetings, or since the end's beginning, so long. Paths that another is never shorter than are forgotten, so
 * that few are left. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_TAIL_ORDER_H
#define TWS_ESTIMATORS_TAIL_ORDER_H

#include "estimators/pieces.h"

typedef struct tws_tail_ops {
  const tws_plan *plan;        /* with dependencies */
  const uint8_t *meets;        /* per operation: whether it is a meeting */
  const tws_piece_time *times; /* likewise: what it takes */
  uint32_t reduced_at;         /* where it lacks reductions; TWS_NONE: nowhere */
} tws_tail_ops;
/* Before each meeting of the stage, and at the tail's end: out[meetings + 1]. NULL *out: they are not known, as other
 * operations of the step decide. */
tws_code tws_tail_order_find(const tws_tail_ops *of, tws_arena *arena, tws_tail_paths **out, tws_error *err);
/* Whether the layout of a tail alone is the step's: where other streams touch nothing on the device but gradients, and
 * nothing is laid on these. */
int tws_tail_has_own_layout(const tws_plan *plan);

#endif
