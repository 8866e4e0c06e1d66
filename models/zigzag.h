/* The distribution of a sequence's tokens among sequence-parallel ranks. Ring attention uses Megatron's order for
 * causal attention: of 2n chunks, rank r of n has chunk r and chunk 2n - 1 - r, so that all ranks compute equally many
 * scores. Kernels of hosts and of devices include this file. */
#ifndef TWS_MODELS_ZIGZAG_H
#define TWS_MODELS_ZIGZAG_H

#include "base/philox.h"

/* Returns the position of token `t` of the `seq` tokens of a rank, relative to the position of the rank's first token.
 * gap: number of other ranks' tokens between the rank's two chunks; 0: the rank's tokens are consecutive. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_position(int64_t seq, int64_t gap, int64_t t) {
  return 2 * t < seq ? t : t + gap;
}

/* Returns the index, among the rank's tokens, of the token at a position relative to its first token; -1: another rank
 * has this token. */
TWS_HOST_AND_DEVICE static inline int64_t tws_zigzag_token(int64_t seq, int64_t gap, int64_t position) {
  if (gap == 0) return position < seq ? position : -1;
  if (2 * position < seq) return position;
  const int64_t t = position - gap;
  return 2 * t >= seq && t < seq ? t : -1;
}

/* tws_zigzag_first() returns the position of the first token of rank `rank` of `ranks` in a sequence of `whole` tokens,
 * tws_zigzag_gap() the gap between its two chunks. */
static inline int64_t tws_zigzag_first(int64_t whole, int ranks, int rank) {
  return whole / (2 * ranks) * rank;
}
static inline int64_t tws_zigzag_gap(int64_t whole, int ranks, int rank) {
  return whole / ranks * (ranks - 1 - rank);
}

/* The tokens of a sequence that one of its ranks has: `ranges` ranges of `length` tokens each. The first range begins
 * at token `first`; other ranks have the `gap` tokens between a range and the next. */
typedef struct tws_token_ranges {
  int ranges;
  int64_t first, length, gap;
} tws_token_ranges;

/* Returns the ranges of rank `rank` of `ranks` in a sequence of `whole` tokens. ring: 1 for ring attention, with the
 * order described above. chunks > 1: attention in chunks (FPDT): every rank has an equal part of each chunk, so that an
 * all-to-all yields the tokens of a chunk in their order. */
static inline tws_token_ranges tws_token_ranges_of(int64_t whole, int ranks, int rank, int ring, int64_t chunks) {
  if (ring)
    return (tws_token_ranges){2, tws_zigzag_first(whole, ranks, rank), whole / (2 * ranks),
                              tws_zigzag_gap(whole, ranks, rank)};
  const int64_t length = whole / (ranks * (chunks > 1 ? chunks : 1));
  return (tws_token_ranges){chunks > 1 ? (int)chunks : 1, rank * length, length, (ranks - 1) * length};
}

#endif
