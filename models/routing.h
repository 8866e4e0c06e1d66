/* Routing tokens to experts, for backends and plans alike. A network of experts has a router, which chooses for each
 * token some experts by the softmax of their logits, and for each expert a number of slots, its capacity (Shazeer et
 * al. 2017; GShard, Lepikhin et al. 2021; DeepSpeed-MoE, Rajbhandari et al. 2022). */
#ifndef TWS_MODELS_ROUTING_H
#define TWS_MODELS_ROUTING_H

#include <stdint.h>
#include "base/philox.h"

/* Which routes of an expert are kept where there are more than slots: the first, those of the largest probabilities, or
 * a random choice. */
enum { TWS_KEEPS_FIRST, TWS_KEEPS_PROBABLE, TWS_KEEPS_RANDOM };

/* Counts of ROUTER for each expert: filled slots, routes before any is dropped, and those of them that its auxiliary
 * loss balances. */
enum { TWS_COUNT_FILLED, TWS_COUNT_ROUTED, TWS_COUNT_BALANCED, TWS_EXPERT_COUNTS };

/* The most groups of experts. */
enum { TWS_ROUTING_GROUPS = 64 };

/* The most choices of a token. */
enum { TWS_ROUTING_CHOICES = 64 };

/* The least sum that weights are divided by: DeepSpeed's, the distance of 1 to the next float. */
#define TWS_ROUTING_LEAST 0x1p-23F

/* A route is the slot expert x capacity + place; when it was dropped -1 - expert. Experts of a pack share their slots:
 * those of each lie one after the other, in its experts' order, and a slot's expert follows from how many are filled.
 */
TWS_HOST_AND_DEVICE static inline int32_t tws_route_dropped(int64_t expert) {
  return (int32_t)(-1 - expert);
}

/* Returns the slots that earlier experts of a pack of `shared` fill; shared 0: the expert has its own slots. */
TWS_HOST_AND_DEVICE static inline int64_t tws_slots_before(const int32_t *counts, int64_t expert, int64_t shared) {
  int64_t before = 0;
  for (int64_t e = shared > 1 ? expert - expert % shared : expert; e < expert; ++e)
    before += counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  return before;
}
/* The first slot of an expert. */
TWS_HOST_AND_DEVICE static inline int64_t tws_first_slot(const int32_t *counts, int64_t expert, int64_t capacity,
                                                         int64_t shared) {
  const int64_t pack = shared > 1 ? expert - expert % shared : expert;
  return pack * capacity + tws_slots_before(counts, expert, shared);
}
/* Returns the number of unfilled slots after the expert's routes: of its own slots, or of the pack if it is the last
 * one there; otherwise 0. */
TWS_HOST_AND_DEVICE static inline int64_t tws_slots_left(const int32_t *counts, int64_t expert, int64_t capacity,
                                                         int64_t shared) {
  const int64_t filled = counts[expert * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  if (shared <= 1) return capacity - filled;
  if (expert % shared != shared - 1) return 0;
  return shared * capacity - tws_slots_before(counts, expert, shared) - filled;
}
/* Whose slot a kept route is. */
TWS_HOST_AND_DEVICE static inline int64_t tws_route_expert(const int32_t *counts, int64_t route, int64_t capacity,
                                                           int64_t shared) {
  if (shared <= 1) return route / capacity;
  int64_t expert = route / (shared * capacity) * shared, place = route % (shared * capacity);
  while (place >= counts[expert * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED])
    place -= counts[expert++ * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  return expert;
}

/* Random bits of a router in a step, whose number is a float's bits: the choice number c of a token is kept by word c %
 * 4 of block token x ceil(choices / 4) + c / 4; of noise on logits expert e takes word e % 4 of block token x
 * ceil(experts / 4) + e / 4. */
enum { TWS_ROUTING_KEEPS, TWS_ROUTING_NOISE, TWS_ROUTING_GROUP = 4 };
TWS_HOST_AND_DEVICE static inline uint64_t tws_routing_stream(uint32_t step, int what) {
  return (uint64_t)3 << 62 | (uint64_t)step << 2 | (uint64_t)what;
}
TWS_HOST_AND_DEVICE static inline uint64_t tws_routing_block(int64_t token, int64_t count, int64_t index) {
  return (uint64_t)(token * ((count + TWS_ROUTING_GROUP - 1) / TWS_ROUTING_GROUP) + index / TWS_ROUTING_GROUP);
}
/* In (0, 1), exactly as a float. */
TWS_HOST_AND_DEVICE static inline float tws_routing_uniform(uint32_t word) {
  return ((float)(word >> 9) + 0.5F) * (1.0F / 8388608.0F);
}

#endif
