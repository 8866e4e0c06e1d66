/* Placement of buffers in arenas: offsets are computed ahead of time from lifetimes. Internal to plan/.
 *
 * Buffers that live as long as the program are placed first, the others in the order in which their lifetimes begin, by
 * best fit. If fragmentation exceeds 5 %, a second strategy is tried in increasingly large arenas until the buffers fit
 * or the arena is no smaller: long-lived buffers are packed from the low end and short-lived ones from the high end, so
 * that they do not fragment each other. The layout also determines after how many micro-batches it is periodic
 * (plan/fold.h). */
#ifndef TWS_PLAN_LAYOUT_H
#define TWS_PLAN_LAYOUT_H

#include "plan/builder.h"

static inline uint64_t tws_layout_bytes(uint64_t bytes) {
  if (bytes == 0) bytes = 1;
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Sets the offset of every used buffer, and arena_bytes of every tier. */
tws_code tws_layout_make(tws_builder *b, tws_arena *scratch);
/* Sets only the offsets of message buffers, relative to each other: they have slots of their own, independent of other
 * buffers. */
tws_code tws_layout_messages(tws_builder *b, tws_arena *scratch);
/* Returns, per buffer, 1 if it is sent or received in a message; NULL: no memory. */
uint8_t *tws_layout_find_messages(const tws_plan *plan, tws_arena *scratch);

#endif
