/* Computes sizes of ZeRO's partitioning of parameters among the ranks of a data-parallel group. */
#ifndef TWS_PLAN_ZERO_PARTITION_H
#define TWS_PLAN_ZERO_PARTITION_H

#include <stdint.h>

/* Returns the number of elements with padding. Stages 1 and 2 flatten the parameters and pad them to a multiple of 2 x
 * ranks elements, so that all partitions are equal and start on 4-byte boundaries in 16-bit storage. */
int64_t tws_zero_aligned_numel(int64_t total, int ranks);
/* Returns the number of elements of padding in the partition of `rank`, which has `part` elements; total: number of
 * elements without padding. */
int64_t tws_zero_padding(int64_t total, int64_t part, int rank);
/* Writes the order in which parameters are flattened to order[count]. It is the given order, or, with
 * round_robin_gradients, the parameters are dealt to the ranks one by one, and the ranks' lists are concatenated. */
void tws_zero_flatten_order(int count, int ranks, int round_robin, int *order);

/* Returns the number of elements of one rank's shard: stage 3 gives ceil(numel / ranks) elements of each parameter to
 * each rank, and pads the last shards. */
static inline int64_t tws_zero3_part(int64_t numel, int ranks) {
  return (numel + ranks - 1) / ranks;
}
/* Writes the index of each parameter's sub-group and returns the number of sub-groups. Stage 3 runs the optimizer by
 * sub-groups: a sub-group is complete when the sizes of its shards add up to at least sub_group_size elements. */
int tws_zero3_sub_groups(int count, const int64_t *parts, int64_t sub_group_size, int *group_of);
/* Writes 1 for each parameter that stage 3 keeps gathered, and 0 for the others. It keeps parameters of at most
 * `threshold` elements gathered, as long as the sum of their elements is at most `model_threshold`. */
void tws_zero3_persistent(int count, const int64_t *numel, int64_t threshold, int64_t model_threshold,
                          uint8_t *persistent);

#endif
