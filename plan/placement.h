/* Placement: how a tensor lies among the ranks along each axis, and which collective changes it. Internal to plan/.
 *
 * A value and its gradient are placed together. Where all ranks have equal values there are two cases: they also do
 * equal work with it and get equal gradients (REPLICATED), or they do different work with it, each for its own tokens
 * or columns, and each gets one part of the gradient's sum (BROADCAST). Likewise a value of which each rank has one
 * part of the sum (PARTIAL) has a gradient that is equal on all. So every placement has a dual, that of its gradient,
 * and a change backward is the change of the duals the other way round: where the forward pass gathers, the backward
 * pass reduces and scatters. */
#ifndef TWS_PLAN_PLACEMENT_H
#define TWS_PLAN_PLACEMENT_H

#include "config/axes.h"
#include "models/kernel.h"

/* identifier, name, the gradient's placement */
#define TWS_PLACEMENTS(X)                                                                                             \
  X(REPLICATED, "replicated", REPLICATED)                                                                             \
  X(BROADCAST, "broadcast", PARTIAL)                                                                                  \
  X(PARTIAL, "partial sum", BROADCAST)                                                                                \
  X(TOKENS, "split by tokens", TOKENS)                                                                                \
  X(FEATURES, "split by features", FEATURES) /* heads, columns of logits */                                           \
  X(ROWS, "split by rows", ROWS)             /* of a parameter: a product's outputs */                                \
  X(COLUMNS, "split by columns", COLUMNS)    /* of a parameter: its inputs */                                         \
  X(EXPERTS, "one of its own", EXPERTS)   /* of a parameter: every rank has another; of slots: all ranks' of these */ \
  X(SAMPLES, "split by samples", SAMPLES) /* as replicas are */
typedef enum tws_placed {
#define X(id, name, dual) TWS_PLACED_##id,
  TWS_PLACEMENTS(X)
#undef X
      TWS_PLACED_COUNT
} tws_placed;

typedef struct tws_placement {
  uint8_t on[TWS_AXIS_COUNT]; /* tws_placed */
} tws_placement;

const char *tws_placed_name(tws_placed placed);
tws_placed tws_placed_dual(tws_placed placed);
static inline int tws_placed_is_split(tws_placed placed) {
  return placed >= TWS_PLACED_TOKENS;
}

/* The tws_collective that makes `to` of `from` along one axis, or one of these. The gradient goes from dual(to) to
 * dual(from). */
enum {
  TWS_MOVES_NOTHING = -1, /* what a rank has is what it needs */
  TWS_NO_CHANGE = -2      /* there is no such change */
};
int tws_placed_change(tws_placed from, tws_placed to);

#endif
