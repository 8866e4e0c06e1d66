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

#endif
