/* Whether ranks that run their plans strictly in issue order, one operation at a time, come to their end: what the host
 * engine does. A collective waits for all members of its group, a message for its other end (no buffering). */
#ifndef TWS_TESTS_SERIAL_ORDER_H
#define TWS_TESTS_SERIAL_ORDER_H

#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

static inline const tws_op *serial_head(const tws_plan *plan, uint32_t at) {
  return at < plan->op_count ? &plan->ops[at] : NULL;
}

/* Whether everybody that the head of rank r waits for stands before the same thing. */
static inline int serial_met(const tws_plan *const *plans, const uint32_t *at, int r) {
  const tws_plan *plan = plans[r];
  const tws_op *op = serial_head(plan, at[r]);
  if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) {
    const tws_op *other = serial_head(plans[op->peer], at[op->peer]);
    return other && other->kind == (op->kind == TWS_OP_SEND ? TWS_OP_RECV : TWS_OP_SEND) && other->peer == (uint32_t)r;
  }
  if (op->kind != TWS_OP_COLLECTIVE) return 1;
  const tws_group *group = &plan->groups[plan->works[op->work].group];
  for (int i = 0; i < group->size; i++) {
    const tws_plan *p = plans[group->ranks[i]];
    const tws_op *other = serial_head(p, at[group->ranks[i]]);
    if (!other || other->kind != TWS_OP_COLLECTIVE) return 0;
    const tws_group *g = &p->groups[p->works[other->work].group];
    if (g->size != group->size || memcmp(g->ranks, group->ranks, (size_t)g->size * sizeof *g->ranks) != 0) return 0;
  }
  return 1;
}

/* plans[rank] of all ranks of a job. -1: all end; else a rank that does not, and its operation. */
static inline int serial_order(const tws_plan *const *plans, int ranks, uint32_t *stuck) {
  uint32_t *at = calloc((size_t)ranks, sizeof *at);
  for (int moved = 1; moved;) {
    moved = 0;
    for (int r = 0; r < ranks; r++)
      while (at[r] < plans[r]->op_count && serial_met(plans, at, r)) {
        const tws_op *op = &plans[r]->ops[at[r]];
        moved = 1;
        if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) at[op->peer]++;
        if (op->kind == TWS_OP_COLLECTIVE) {
          const tws_group *group = &plans[r]->groups[plans[r]->works[op->work].group];
          for (int i = 0; i < group->size; i++)
            if (group->ranks[i] != r) at[group->ranks[i]]++;
        }
        at[r]++;
      }
  }
  int found = -1;
  for (int r = 0; r < ranks && found < 0; r++)
    if (at[r] < plans[r]->op_count) {
      found = r;
      *stuck = at[r];
    }
  free(at);
  return found;
}

#endif
