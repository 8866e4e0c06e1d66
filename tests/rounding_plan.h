/* Checks which random numbers a job's plans use to round which weights, for suites of plans and for the verifier's
 * jobs. */
#ifndef TWS_TESTS_ROUNDING_PLAN_H
#define TWS_TESTS_ROUNDING_PLAN_H

#include <check.h>
#include <stdlib.h>

#include "plan/plan.h"

/* Returns for each element of a rank's state 1 + the number of the random bits that ADAMW rounds it with; 0: the
 * element is not updated, or is updated twice. The caller frees it. */
static uint64_t *drawn_numbers(const tws_plan *plan) {
  const uint64_t count = plan->buffers[plan->optimizer_state[0]].elements;
  uint64_t *numbers = calloc(count + 1, sizeof *numbers);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *w = &plan->works[plan->ops[i].work];
    const tws_operand *moment = &plan->operands[plan->ops[i].operand_first + 1];
    if (plan->ops[i].kind != TWS_OP_COMPUTE || w->code != TWS_KERNEL_ADAMW) continue;
    ck_assert(w->flags & TWS_STOCHASTIC && plan->ops[i].arguments && moment->buffer == plan->optimizer_state[0]);
    const double first = tws_op_arguments(plan, &plan->ops[i])->a[1];
    for (uint64_t k = 0; k < moment->count; k++) {
      uint64_t *number = &numbers[moment->offset + k];
      *number = *number ? 0 : (uint64_t)first + k + 1;
    }
  }
  return numbers;
}

/* Checks that each weight has its own number, below the number of weights, that is the same on all ranks that update a
 * copy of the weight. Without tensor parallelism the number is the weight's index, whatever the ZeRO stage and the
 * number of ranks. */
static void check_random_numbers(tws_plan *const *plans, int world, const tws_network *network, uint64_t seed) {
  uint64_t total = (uint64_t)tws_network_params(network, 0), wrong = 0;
  uint64_t *number_of = calloc(total, sizeof *number_of), *weight_of = calloc(total, sizeof *weight_of);
  uint64_t *before = calloc(network->param_count + 1u, sizeof *before);
  for (uint32_t p = 0; p < network->param_count; p++)
    before[p + 1] = before[p] + (uint64_t)tws_param_numel(&network->params[p]);
  ck_assert_uint_eq(before[network->param_count], total);
  for (int r = 0; r < world; r++) {
    uint64_t *numbers = drawn_numbers(plans[r]), run;
    for (uint32_t i = 0; i < plans[r]->state->shard_count; i++) {
      const tws_shard *s = &plans[r]->state->shards[i];
      for (uint64_t k = 0; k < s->count && s->owned_offset != TWS_NO_OFFSET; k++) {
        const uint64_t e = s->param_first + k, number = numbers[s->owned_offset + k];
        const uint64_t weight =
            before[s->param] + (plans[r]->slices ? tws_param_slice_whole(&plans[r]->slices[s->param], e, &run) : e);
        if (number == 0 || number > total || (plans[r]->position.ranks[TWS_AXIS_MODEL] == 1 && number != weight + 1)) {
          wrong++;
          continue;
        }
        wrong += (number_of[weight] && number_of[weight] != number) ||
                 (weight_of[number - 1] && weight_of[number - 1] != weight + 1);
        number_of[weight] = number;
        weight_of[number - 1] = weight + 1;
      }
    }
    free(numbers);
  }
  for (uint64_t i = 0; i < total; i++) wrong += number_of[i] == 0;
  free(number_of), free(weight_of), free(before);
  ck_assert_msg(wrong == 0, "seed %d: %d weights draw others' bits, or none", (int)seed, (int)wrong);
}

#endif
