/* The operands of a collective, segment by segment, as its row of models/collectives.def has them. */
#ifndef TWS_PLAN_COLLECTIVE_H
#define TWS_PLAN_COLLECTIVE_H

#include "plan/plan.h"

/* A segment: one updated range, or one that is sent and one that is received, where this rank has both; then counts,
 * where parts are uneven. */
typedef struct tws_plan_segment {
  const tws_operand *send, *receive, *counts; /* NULL: this rank has none */
  tws_dtype dtype;                            /* of both ranges */
  uint64_t count;                             /* elements, which the row's SENDS and RECEIVES are multiples of */
} tws_plan_segment;

/* Reads the segment that begins at operand *next of the operation, and moves *next behind it. TWS_INTERNAL: the
 * operands do not fit the row, or those of the group's size. */
tws_code tws_plan_next_segment(const tws_plan *plan, const tws_op *op, uint32_t *next, tws_plan_segment *segment,
                               tws_error *err);

#endif
