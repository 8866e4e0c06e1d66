/* Arithmetic of ZeRO's partitioning of parameters among the ranks of a data-parallel group. */
#ifndef TWS_PLAN_ZERO_PARTITION_H
#define TWS_PLAN_ZERO_PARTITION_H

#include <stdint.h>

/* Stages 1 and 2 flatten the parameters and pad the whole to a multiple of 2 x ranks elements, so that the partitions
 * are equal and start on 4-byte boundaries in 16-bit storage. Returns the padded number. */
int64_t tws_zero_aligned_numel(int64_t total, int ranks);
/* Returns the padding in the partition of `rank`, of `part` elements, given the unpadded total. */
int64_t tws_zero_padding(int64_t total, int64_t part, int rank);
/* Writes the order in which parameters are flattened to order[count]: as given, or with round_robin_gradients assigned
 * to the ranks in turn and concatenated rank by rank. */
void tws_zero_flatten_order(int count, int ranks, int round_robin, int *order);

/* Stage 3 partitions each parameter: ceil(numel / ranks) elements per rank, the last shards padded. */
static inline int64_t tws_zero3_part(int64_t numel, int ranks) {
  return (numel + ranks - 1) / ranks;
}
/* Stage 3 runs the optimizer by sub-groups: a sub-group ends once its shards add up to sub_group_size. Writes the
 * sub-group of each parameter and returns the number of sub-groups. */
int tws_zero3_sub_groups(int count, const int64_t *parts, int64_t sub_group_size, int *group_of);
/* Persistence threshold of stage 3, which keeps small parameters gathered: those of at most `threshold` elements, as
 * long as their sum stays within `model_threshold`. Writes 0 or 1 for each parameter. */
void tws_zero3_persistent(int count, const int64_t *numel, int64_t threshold, int64_t model_threshold,
                          uint8_t *persistent);

#endif
