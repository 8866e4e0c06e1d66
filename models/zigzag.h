/* The distribution of a sequence's tokens in ring attention (Megatron's order for causal attention): of 2n chunks, rank
 * r of n has chunk r and chunk 2n - 1 - r, so that all ranks compute equally many scores. Hosts and devices compile
 * this file. */
#ifndef TWS_MODELS_ZIGZAG_H
#define TWS_MODELS_ZIGZAG_H

#include "base/philox.h"

/* Returns the position of a rank's token `t` of `seq` relative to the rank's first token. gap: number of other ranks'
 * tokens between the rank's two chunks; 0: the rank's tokens are consecutive. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_position(int64_t seq, int64_t gap, int64_t t) {
  return 2 * t < seq ? t : t + gap;
}

/* Returns the rank's token at that position, or -1 if another rank has it. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_token(int64_t seq, int64_t gap, int64_t position) {
  if (gap == 0) return position < seq ? position : -1;
  if (2 * position < seq) return position;
  const int64_t t = position - gap;
  return 2 * t >= seq && t < seq ? t : -1;
}

/* Return the position of the first token of rank `rank` of `ranks` in a sequence of `whole` tokens, and the gap between
 * its two chunks. */
static inline int64_t tws_zigzag_first(int64_t whole, int ranks, int rank) {
  return whole / (2 * ranks) * rank;
}
static inline int64_t tws_zigzag_gap(int64_t whole, int ranks, int rank) {
  return whole / ranks * (ranks - 1 - rank);
}

#endif
