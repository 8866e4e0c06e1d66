/* A placement states how a tensor is distributed over ranks along each axis (as in PyTorch's DTensor). This file also
 * determines which collective changes one placement to another. Internal to plan/.
 *
 * The placement of a value determines that of its gradient, its dual. If all ranks have equal values, there are two
 * cases: they do equal work with the value and compute equal gradients (REPLICATED), or they do different work with it,
 * each for its own tokens or columns, and each computes a partial sum of the gradient (BROADCAST). Conversely a value
 * of which each rank has a partial sum (PARTIAL) has a gradient that is equal on all ranks. In the backward pass a
 * change of placement becomes the opposite change of the duals: an all-gather in the forward pass becomes a
 * reduce-scatter in the backward pass. */
#ifndef TWS_PLAN_PLACEMENT_H
#define TWS_PLAN_PLACEMENT_H

#include "config/axes.h"
#include "models/kernel.h"

/* arguments of each row: identifier, name, placement of the gradient */
#define TWS_PLACEMENTS(X)                                                                                            \
  X(REPLICATED, "replicated", REPLICATED)                                                                            \
  X(BROADCAST, "broadcast", PARTIAL)                                                                                 \
  X(PARTIAL, "partial sum", BROADCAST)                                                                               \
  X(TOKENS, "split by tokens", TOKENS)                                                                               \
  X(FEATURES, "split by features", FEATURES) /* heads, columns of logits */                                          \
  X(ROWS, "split by rows", ROWS)             /* a weight is split by its output features */                          \
  X(COLUMNS, "split by columns", COLUMNS)    /* a weight is split by its input features */                           \
  X(EXPERTS, "one of its own",                                                                                       \
    EXPERTS) /* parameter: each rank has experts of its own; slots: a rank has those of all ranks for its experts */ \
  X(SAMPLES, "split by samples", SAMPLES) /* data parallelism */
typedef enum tws_placed {
#define X(id, name, dual) TWS_PLACED_##id,
  TWS_PLACEMENTS(X)
#undef X
      TWS_PLACED_COUNT
} tws_placed;

typedef struct tws_placement {
  uint8_t on[TWS_AXIS_COUNT]; /* per axis: tws_placed */
} tws_placement;

const char *tws_placed_name(tws_placed placed);
tws_placed tws_placed_dual(tws_placed placed);
static inline int tws_placed_is_split(tws_placed placed) {
  return placed >= TWS_PLACED_TOKENS;
}

/* Returns the tws_collective that changes placement `from` to placement `to` along one axis, or one of the values
 * below. The placement of the gradient then changes from dual(to) to dual(from). */
enum {
  TWS_NO_COMMUNICATION = -1, /* no communication: each rank already has what it needs */
  TWS_NO_CHANGE = -2         /* no collective changes `from` to `to` */
};
int tws_placed_change(tws_placed from, tws_placed to);

#endif
