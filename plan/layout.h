/* Where buffers lie: offsets from lifetimes, ahead of time. Internal to plan/.
 *
 * Persistent buffers come first. The others are placed in the order in which they come alive, by best fit. When that
 * leaves gaps of more than 5 %, a second way is tried inside ever larger arenas until it fits or is no better: what
 * lives long is packed from the low end, what lives shortly from the high end, so that neither fragments the other.
 * Both repeat themselves exactly from the second micro-batch on, which is why an estimate may stop at the third. */
#ifndef TWS_PLAN_LAYOUT_H
#define TWS_PLAN_LAYOUT_H

#include "plan/builder.h"

static inline uint64_t tws_layout_bytes(uint64_t bytes) {
  if (bytes == 0) bytes = 1;
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Sets offset of every buffer that is used and arena_bytes of every tier. */
tws_code tws_layout_make(tws_builder *b, tws_arena *scratch);

#endif
