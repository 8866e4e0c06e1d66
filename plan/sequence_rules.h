/* Computes sizes of Ulysses sequence parallelism (Jacobs et al., 2023): the heads and tokens of each rank, and the
 * destination of each element in the all-to-all around attention. Results are those of DeepSpeed's sequence/layer.py,
 * except that the second all-to-all with the sequence dimension first returns every element to its position (in
 * DeepSpeed it does not). */
#ifndef TWS_PLAN_SEQUENCE_RULES_H
#define TWS_PLAN_SEQUENCE_RULES_H

#include <stdint.h>
#include "base/status.h"

/* A rank's tokens outside attention, and its query heads and key/value heads inside it. Query heads of a rank attend
 * only to its own key/value heads. */
typedef struct tws_ulysses_part {
  int64_t token_first, token_count;
  int64_t head_first, head_count;
  int64_t kv_first, kv_count;
  int kv_copies; /* number of ranks that hold the same key/value heads; above 1 if there are fewer heads than ranks */
} tws_ulysses_part;

/* Returns the number of key/value heads of a rank. `ranks` must divide kv_heads or be a multiple of it. */
static inline int64_t tws_ulysses_kv_count(int64_t kv_heads, int64_t ranks) {
  return kv_heads < ranks ? 1 : kv_heads / ranks;
}

/* Computes the part of rank number `rank`. `ranks` must divide the query heads and the sequence, and must divide the
 * key/value heads or be a multiple of them (each key/value head is then replicated on ranks / kv_heads successive
 * ranks). Otherwise it fails with TWS_INVALID; the message names the rule and the nearest smaller degree that is
 * legal. */
tws_code tws_ulysses_part_of(int64_t heads, int64_t kv_heads, int64_t sequence, int ranks, int rank,
                             tws_ulysses_part *part, tws_error *err);

/* A tensor of the whole sequence and all heads: [batch][sequence][heads][width], or [sequence][batch][heads][width].
 * Outside attention a rank holds sequence / ranks tokens of the tensor, inside it heads / ranks heads; `ranks` divides
 * both. */
typedef struct tws_ulysses_tensor {
  int ranks, sequence_first;
  int64_t batch, sequence, heads, width;
} tws_ulysses_tensor;

/* The first returns the number of elements that a rank has, which is the same before and after the all-to-all; the
 * second returns how many of these are sent to other ranks. */
int64_t tws_ulysses_elements(const tws_ulysses_tensor *tensor);
int64_t tws_ulysses_sent(const tws_ulysses_tensor *tensor);
/* Compute the rank, and the index in its tensor, from which element `index` of a rank's tensor comes: the first for the
 * all-to-all into attention (from token shards to head shards), the second for the all-to-all after attention, which is
 * the inverse. */
void tws_ulysses_before_attention(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                  int64_t *from_index);
void tws_ulysses_after_attention(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                 int64_t *from_index);

#endif
