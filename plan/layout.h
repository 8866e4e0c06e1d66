/* Where buffers lie: offsets from lifetimes, ahead of time. Internal to plan/.
 *
 * Persistent buffers come first. The others are placed in the order in which they come alive, by best fit. When that
 * leaves gaps of more than 5 %, a second way is tried inside ever larger arenas until it fits or is no better: what
 * lives long is packed from the low end, what lives shortly from the high end, so that neither fragments the other.
 * A plan says after how many micro-batches all that follow are known to lie likewise (plan/fold.h). */
#ifndef TWS_PLAN_LAYOUT_H
#define TWS_PLAN_LAYOUT_H

#include "plan/builder.h"

static inline uint64_t tws_layout_bytes(uint64_t bytes) {
  if (bytes == 0) bytes = 1;
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Sets offset of every buffer that is used and arena_bytes of every tier. */
tws_code tws_layout_make(tws_builder *b, tws_arena *scratch);
/* Sets offsets of messages alone, within a tier: they have slots of their own, wherever all the rest lies. */
tws_code tws_layout_messages(tws_builder *b, tws_arena *scratch);
/* Per buffer whether it is sent or received; NULL: no memory. */
uint8_t *tws_layout_find_messages(const tws_plan *plan, tws_arena *scratch);

#endif
