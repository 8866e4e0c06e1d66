/* Tokens of a sequence that ring attention deals out in halves (Megatron's order for causal attention): of 2n chunks
 * rank r of n has chunk r and chunk 2n - 1 - r, so that all ranks see as many keys. For hosts and devices alike. */
#ifndef TWS_MODELS_ZIGZAG_H
#define TWS_MODELS_ZIGZAG_H

#include "base/philox.h"

/* Position of a rank's token `t` of `seq`, from that of its first one on; gap: tokens of others between its halves,
 * 0: none, and all of the rank's are one after another. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_position(int64_t seq, int64_t gap, int64_t t) {
  return 2 * t < seq ? t : t + gap;
}

/* The token at that position, or -1 where it is another rank's. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_token(int64_t seq, int64_t gap, int64_t position) {
  if (gap == 0) return position < seq ? position : -1;
  if (2 * position < seq) return position;
  const int64_t t = position - gap;
  return 2 * t >= seq && t < seq ? t : -1;
}

/* Return the first token of rank `rank` of `ranks` in a sequence of `whole`, and the gap between its halves. */
static inline int64_t tws_zigzag_first(int64_t whole, int ranks, int rank) {
  return whole / (2 * ranks) * rank;
}
static inline int64_t tws_zigzag_gap(int64_t whole, int ranks, int rank) {
  return whole / ranks * (ranks - 1 - rank);
}

#endif
