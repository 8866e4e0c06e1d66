/* The closed form that pipeline schedules and their plans are compared with. */
#ifndef TWS_TESTS_BUBBLE_H
#define TWS_TESTS_BUBBLE_H

#include "plan/pipeline_schedule.h"

/* Returns the bubble of an ideal pipeline: idle seconds of a stage in one step, for stages of equal cost and free
 * messages. forward_s, input_s and weight_s (f, b and w) are the seconds of one micro-batch on all chunks of a stage: forward pass, gradients of inputs,
 * gradients of weights. With p stages and m micro-batches the bubble is (p-1)(f+b+w); INTERLEAVED divides it by the
 * virtual stages; for ZB_H1 it is (p-1)(f+b-w) + max(0, p-m) w, which is valid if w is at most f and at most b. */
static inline double ideal_bubble(const tws_pipeline_shape *shape, double forward_s, double input_s, double weight_s) {
  int p = shape->stages, m = shape->micro_batches;
  if (shape->kind == TWS_PIPELINE_ZB_H1) {
    return (p - 1) * (forward_s + input_s - weight_s) + (p > m ? p - m : 0) * weight_s;
  }
  return (p - 1) * (forward_s + input_s + weight_s) / shape->virtual_stages;
}

#endif
