/* Ulysses sequence parallelism (Jacobs et al., 2023) as arithmetic: who holds which heads and tokens, and where an
 * element goes in the all-to-all around attention. Values are as DeepSpeed's sequence/layer.py, except that the way
 * back with the sequence first returns every element to its place (there it does not). */
#ifndef TWS_PLAN_SEQUENCE_RULES_H
#define TWS_PLAN_SEQUENCE_RULES_H

#include <stdint.h>
#include "base/status.h"

/* What a rank has: tokens outside attention; query, key and value heads inside it. Query heads of a rank attend with
 * its key and value heads alone. */
typedef struct tws_ulysses_part {
  int64_t token_first, token_count;
  int64_t head_first, head_count;
  int64_t kv_first, kv_count;
  int kv_copies; /* ranks that hold the same key and value heads: more than 1 when these are fewer than the ranks */
} tws_ulysses_part;

/* Heads of keys and values that a rank attends with, of kv_heads that `ranks` divide or that divide `ranks`. */
static inline int64_t tws_ulysses_kv_count(int64_t kv_heads, int64_t ranks) {
  return kv_heads < ranks ? 1 : kv_heads / ranks;
}

/* Ranks must divide query heads and sequence, and key and value heads or be a multiple of them (each is then copied to
 * ranks / kv_heads neighbours). TWS_INVALID names the rule and the nearest smaller degree that is legal. */
tws_code tws_ulysses_part_of(int64_t heads, int64_t kv_heads, int64_t sequence, int ranks, int rank,
                             tws_ulysses_part *part, tws_error *err);

/* A tensor of the whole sequence and all heads: [batch][sequence][heads][width], or [sequence][batch][heads][width]. A
 * rank holds sequence / ranks tokens of it outside attention and heads / ranks heads inside; both divide. */
typedef struct tws_ulysses_tensor {
  int ranks, sequence_first;
  int64_t batch, sequence, heads, width;
} tws_ulysses_tensor;

/* Elements that a rank holds on either side, and those of them that go to other ranks in one all-to-all. */
int64_t tws_ulysses_elements(const tws_ulysses_tensor *tensor);
int64_t tws_ulysses_sent(const tws_ulysses_tensor *tensor);
/* Where element `index` of a rank's tensor comes from: into attention (from token shards to head shards) and back. The
 * two undo each other. */
void tws_ulysses_into(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank, int64_t *from_index);
void tws_ulysses_back(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank, int64_t *from_index);

#endif
