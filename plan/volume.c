#include "plan/volume.h"

#include "models/collective.h"

double tws_plan_sent_bytes(const tws_plan *plan) {
  double sum = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    if (op->kind == TWS_OP_SEND) sum += (double)work->d[0];
    if (op->kind != TWS_OP_COLLECTIVE) continue;
    const tws_group *group = &plan->groups[work->group];
    const int rooted = tws_collective_of((tws_collective)work->code)->root != TWS_ROOT_NONE;
    sum += tws_collective_sent_bytes((tws_collective)work->code, group->size, group->index, rooted ? (int)op->peer : 0,
                                     (double)work->d[0]);
  }
  return sum;
}
