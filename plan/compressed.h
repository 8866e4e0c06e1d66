/* Averages over ranks by signs with error feedback, and the optimizer phase of programs that use them. Internal to
 * plan/. */
#ifndef TWS_PLAN_COMPRESSED_H
#define TWS_PLAN_COMPRESSED_H

#include "plan/lower.h"

/* Callback: returns the range of a float32 buffer that holds a tensor to average; if no operation has computed it yet,
 * emits one. */
typedef tws_operand (*tws_compressed_source)(tws_lower *l, const tws_compressed_tensor *t);
/* Callback: emits the operations that use the average of a tensor, which is in the float32 range `average`. */
typedef void (*tws_compressed_sink)(tws_lower *l, const tws_compressed_tensor *t, tws_operand average);

/* Adds the state entries of the compression: the compression errors of each tensor and, for local steps, the changes of
 * the rank's weights that are not averaged yet. */
void tws_compressed_begin(tws_lower *l);
/* Adds a tensor of `count` elements that the ranks of a class average; at: as tws_compressed_tensor.at. */
void tws_compressed_add(tws_lower *l, const tws_zero_class *of, uint32_t param, uint64_t at, uint64_t count);
/* Returns the number of elements of a rank's part of a tensor, which is padded as in DeepSpeed: to a multiple of 8,
 * equal on all ranks. */
uint64_t tws_compressed_part(uint64_t count, uint64_t ranks);
/* Adds the state entries of the compression errors; called after all tensors are added. */
void tws_compressed_add_errors(tws_lower *l);
/* Returns 1 if the program leaves the gradients of each rank unreduced. */
int tws_gradients_stay_local(const tws_lower *l);
/* Emits the average of all tensors of a class. sink NULL: averages replace the tensors. */
void tws_compressed_average(tws_lower *l, const tws_zero_class *of, tws_compressed_source source,
                            tws_compressed_sink sink);
/* Emits zeros for the positions of a position table that no sequence reaches: a sign cannot be 0. `range` has the
 * parameter's elements, in float32. Emits nothing for other parameters. */
void tws_compressed_mask(tws_lower *l, uint32_t param, tws_operand range);
/* Emits the updates of the program COMPRESSED, LOCAL or MERGE. */
void tws_compressed_update(tws_lower *l);
/* Emits the program FREEZE, which sets the compression errors to 0. */
void tws_compressed_freeze(tws_lower *l);

#endif
