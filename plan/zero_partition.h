/* How ZeRO cuts parameters among the ranks of a data-parallel group: the arithmetic alone, without a plan. */
#ifndef TWS_PLAN_ZERO_PARTITION_H
#define TWS_PLAN_ZERO_PARTITION_H

#include <stdint.h>

/* Stages 1 and 2 flatten the parameters and pad the whole to a multiple of 2 x ranks elements, so that every rank's
 * part starts on a 4-byte boundary in 16-bit storage; equal parts. */
int64_t tws_zero_aligned_numel(int64_t total, int ranks);
/* Padding inside the part of `rank`, given the unpadded total. */
int64_t tws_zero_padding(int64_t total, int64_t part, int rank);
/* Order in which parameters are flattened: as given, or (round_robin_gradients) dealt one by one to the ranks and laid
 * down rank by rank. `order` has room for count entries. */
void tws_zero_flatten_order(int count, int ranks, int round_robin, int *order);

/* Stage 3 cuts each parameter: ceil(numel / ranks) elements a rank, the last parts padded. */
static inline int64_t tws_zero3_part(int64_t numel, int ranks) {
  return (numel + ranks - 1) / ranks;
}
/* Stage 3 updates the optimizer by sub-groups: a group closes once its parts add up to sub_group_size. Writes the
 * group of each parameter and returns how many groups there are. */
int tws_zero3_sub_groups(int count, const int64_t *parts, int64_t sub_group_size, int *group_of);
/* Stage 3 keeps small parameters gathered: those of at most `threshold` elements, as long as their sum stays within
 * `model_threshold`. Writes 0 or 1 for each parameter. */
void tws_zero3_persistent(int count, const int64_t *numel, int64_t threshold, int64_t model_threshold,
                          uint8_t *persistent);

#endif
