/* Reads the operands of a collective segment by segment, as its row of models/collectives.def defines them. */
#ifndef TWS_PLAN_COLLECTIVE_H
#define TWS_PLAN_COLLECTIVE_H

#include "plan/plan.h"

/* One segment of a collective: a range that is updated in place, or a sent and a received range; uneven collectives
 * also have counts. */
typedef struct tws_plan_segment {
  const tws_operand *send, *receive, *counts; /* NULL: this rank has no such operand */
  tws_dtype dtype;                            /* type of both ranges */
  uint64_t count; /* number of elements of one unit; the row's SENDS and RECEIVES are multiples of the unit */
} tws_plan_segment;

/* Reads the segment that begins at operand *next of the operation, and advances *next to the first operand after it.
 * Fails with TWS_INTERNAL if the operands do not match the row or the group's size. */
tws_code tws_plan_next_segment(const tws_plan *plan, const tws_op *op, uint32_t *next, tws_plan_segment *segment,
                               tws_error *err);

#endif
