/* Optimizer states of 8 bits (base/dynamic_map.h), as bitsandbytes has them: each state of a large tensor is a code for
 * each element and a float32 scale for each block of TWS_STATE_BLOCK elements. Internal to plan/.
 *
 * Blocks are counted from the first element of a parameter. So that no block is divided among ranks, a ZeRO class has
 * either parameters with such states or others, and the partitions of the former are multiples of a block. A parameter
 * whose number of elements is no multiple of a block has float32 states, as small ones have. */
#ifndef TWS_PLAN_EIGHT_BIT_H
#define TWS_PLAN_EIGHT_BIT_H

#include "plan/lower.h"

/* Names of the entries of the float32 states of the other parameters. */
extern const char *const tws_eight_bit_others[2];

/* Returns 1 if the states of a trained parameter are 8-bit codes. */
int tws_has_eight_bits(const tws_lower *l, uint32_t param);
/* Returns the elements of a ZeRO class of `total` elements with the padding that makes partitions whole blocks. */
uint64_t tws_eight_bit_aligned(uint64_t total, int ranks);
/* Adds the codes and scales to the state, if the optimizer has them, when the ZeRO classes are laid out. Returns the
 * number of elements that the rank updates with them. */
uint64_t tws_eight_bit_begin(tws_lower *l);
/* Emits the update of elements [at, at + count) of the flat order of parameters, which belong to the ZeRO class `c`. */
void tws_eight_bit_update(tws_lower *l, const tws_zero_class *c, uint64_t at, uint64_t count);

#endif
