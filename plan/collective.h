/* Reads the operands of a collective segment by segment, as its row of models/collectives.def defines them. */
#ifndef TWS_PLAN_COLLECTIVE_H
#define TWS_PLAN_COLLECTIVE_H

#include "plan/plan.h"

/* A segment: one range that is updated in place, or a sent and a received range, as far as this rank has them; and
 * counts if slots are uneven. */
typedef struct tws_plan_segment {
  const tws_operand *send, *receive, *counts; /* NULL: this rank has none */
  tws_dtype dtype;                            /* of both ranges */
  uint64_t count; /* elements of one unit: the row's SENDS and RECEIVES are multiples of it */
} tws_plan_segment;

/* Reads the segment that begins at operand *next of the operation, and advances *next past it. TWS_INTERNAL: the
 * operands do not match the row or the group's size. */
tws_code tws_plan_next_segment(const tws_plan *plan, const tws_op *op, uint32_t *next, tws_plan_segment *segment,
                               tws_error *err);

#endif
