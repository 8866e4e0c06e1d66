/* Networks without some of their alike layers, for what does not depend on how many there are. */
#ifndef TWS_MODELS_NETWORK_SHORTEN_H
#define TWS_MODELS_NETWORK_SHORTEN_H

#include "models/network/network.h"

/* `whole` without modules [first, end): layers of `width` modules each that are alike, and so is the one before them,
 * whose values stand for those of the last that is left out. Names, inputs and counts of layers stay. It lives in
 * `arena` and refers to `whole`. NULL: what is left uses more of those layers than that (or no memory is left). */
const tws_network *tws_network_shorten(const tws_network *whole, uint32_t first, uint32_t end, uint32_t width,
                                       tws_arena *arena);

#endif
