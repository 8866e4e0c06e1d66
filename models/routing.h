/* Defines the routing of tokens to experts, for backends and plans. A layer of experts has a router, which chooses some
 * experts for each token by the softmax of the token's logits, and each expert has a number of slots, its capacity
 * (Shazeer et al. 2017; GShard, Lepikhin et al. 2021; DeepSpeed-MoE, Rajbhandari et al. 2022). */
#ifndef TWS_MODELS_ROUTING_H
#define TWS_MODELS_ROUTING_H

#include <stdint.h>
#include "base/philox.h"

/* The routes that an expert accepts if it has more routes than slots: the first ones, the most probable ones, or a
 * random choice. */
enum { TWS_KEEPS_FIRST, TWS_KEEPS_PROBABLE, TWS_KEEPS_RANDOM };

/* Counts of ROUTER for each expert: filled slots, routes before any is dropped, and routes that the load-balancing loss
 * counts. */
enum { TWS_COUNT_FILLED, TWS_COUNT_ROUTED, TWS_COUNT_BALANCED, TWS_EXPERT_COUNTS };

/* Largest number of groups of experts of a layer. */
enum { TWS_ROUTING_GROUPS = 64 };

/* Largest number of experts that a token chooses. */
enum { TWS_ROUTING_CHOICES = 64 };

/* Lower bound of the sum by which weights are divided, as in DeepSpeed: the distance from 1 to the next float. */
#define TWS_ROUTING_LEAST 0x1p-23F

/* Returns the number that represents a route that `expert` dropped: -1 - expert. Any other route is the number of its
 * slot: expert x capacity + index among the expert's slots. Experts of a pack share their slots: each expert's filled
 * slots follow those of the pack's earlier experts, so the counts determine to which expert a slot belongs. */
TWS_HOST_AND_DEVICE static inline int32_t tws_route_dropped(int64_t expert) {
  return (int32_t)(-1 - expert);
}

/* Returns the number of slots that the earlier experts of a pack of `shared` experts fill; shared 0: the expert has its
 * own slots. */
TWS_HOST_AND_DEVICE static inline int64_t tws_slots_before(const int32_t *counts, int64_t expert, int64_t shared) {
  int64_t before = 0;
  for (int64_t e = shared > 1 ? expert - expert % shared : expert; e < expert; ++e)
    before += counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  return before;
}
/* Returns the number of an expert's first slot. */
TWS_HOST_AND_DEVICE static inline int64_t tws_first_slot(const int32_t *counts, int64_t expert, int64_t capacity,
                                                         int64_t shared) {
  const int64_t pack = shared > 1 ? expert - expert % shared : expert;
  return pack * capacity + tws_slots_before(counts, expert, shared);
}
/* Returns the number of unfilled slots after an expert's routes: those of its own slots or, if the experts of a pack
 * share slots, those of the whole pack for the pack's last expert, and 0 for its other experts. */
TWS_HOST_AND_DEVICE static inline int64_t tws_slots_left(const int32_t *counts, int64_t expert, int64_t capacity,
                                                         int64_t shared) {
  const int64_t filled = counts[expert * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  if (shared <= 1) return capacity - filled;
  if (expert % shared != shared - 1) return 0;
  return shared * capacity - tws_slots_before(counts, expert, shared) - filled;
}
/* Returns the expert to which the slot of an accepted route belongs. */
TWS_HOST_AND_DEVICE static inline int64_t tws_route_expert(const int32_t *counts, int64_t route, int64_t capacity,
                                                           int64_t shared) {
  if (shared <= 1) return route / capacity;
  int64_t expert = route / (shared * capacity) * shared, place = route % (shared * capacity);
  while (place >= counts[expert * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED])
    place -= counts[expert++ * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  return expert;
}

/* The random bits of a router in a step, whose number is passed as the bits of a float. Whether choice c of a token is
 * accepted depends on word c % 4 of block token x ceil(choices / 4) + c / 4; noise on the logit of expert e uses word e
 * % 4 of block token x ceil(experts / 4) + e / 4. */
enum { TWS_ROUTING_KEEPS, TWS_ROUTING_NOISE, TWS_ROUTING_GROUP = 4 };
TWS_HOST_AND_DEVICE static inline uint64_t tws_routing_stream(uint32_t step, int what) {
  return (uint64_t)3 << 62 | (uint64_t)step << 2 | (uint64_t)what;
}
TWS_HOST_AND_DEVICE static inline uint64_t tws_routing_block(int64_t token, int64_t count, int64_t index) {
  return (uint64_t)(token * ((count + TWS_ROUTING_GROUP - 1) / TWS_ROUTING_GROUP) + index / TWS_ROUTING_GROUP);
}
/* Returns a number in (0, 1) that is exact as a float. */
TWS_HOST_AND_DEVICE static inline float tws_routing_uniform(uint32_t word) {
  return ((float)(word >> 9) + 0.5F) * (1.0F / 8388608.0F);
}

#endif
