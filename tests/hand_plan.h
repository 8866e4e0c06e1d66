/* Helpers for tests that write down a plan operation by operation, as the plan's builder does. */
#ifndef TWS_TESTS_HAND_PLAN_H
#define TWS_TESTS_HAND_PLAN_H

#include "plan/plan.h"

/* Sets the match number of the plan's last operation: the number of earlier operations of the same communicator (for a
 * message: of the same kind and peer). */
static inline void number_last_op(tws_plan *plan) {
  tws_op *op = &plan->ops[plan->op_count - 1];
  op->match = 0;
  if (op->kind != TWS_OP_COLLECTIVE && op->kind != TWS_OP_SEND && op->kind != TWS_OP_RECV) return;
  for (const tws_op *before = plan->ops; before < op; before++)
    op->match += before->kind == op->kind &&
                 (op->kind == TWS_OP_COLLECTIVE ? plan->works[before->work].group == plan->works[op->work].group
                                                : before->peer == op->peer);
}

/* Makes the plan's last operation wait for operation `op`. */
static inline void last_op_waits(tws_plan *plan, uint32_t op) {
  plan->deps[plan->dep_count++] = op;
  plan->ops[plan->op_count - 1].dep_count++;
  plan->ops[op].awaited = 1;
}

#endif
