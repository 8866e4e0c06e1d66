/* Computes initial weights: those that the model's file has (tws_param.given), or random ones. Then element e of
 * parameter p is init_value + init_std x normal(e), where the normals of elements 4 b .. 4 b + 3 come from one Philox
 * block (seed, stream p, index b) by Box-Muller in float32: a weight depends on the seed alone, not on ranks, ZeRO
 * stage, tensor parallelism or the rank that computes it. */
#ifndef TWS_REAL_INIT_H
#define TWS_REAL_INIT_H

#include "plan/plan.h"

/* Computes out[i] = element first + i of the parameter, for i < count. */
void tws_init_values(const tws_param *param, uint32_t index, uint64_t seed, uint64_t first, uint64_t count, float *out);
/* Computes out[i] = element first + i of the shard that `slice` selects from the parameter (NULL: of the whole
 * parameter). Short ranges are cheap, since each computes only its own blocks of four. */
void tws_init_part(const tws_param *param, uint32_t index, uint64_t seed, const tws_param_slice *slice, uint64_t first,
                   uint64_t count, float *out);

/* Computes what tws_init_part() computes, with up to `threads` threads of this process, which are joined before the
 * call returns. */
void tws_init_part_with(int threads, const tws_param *param, uint32_t index, uint64_t seed,
                        const tws_param_slice *slice, uint64_t first, uint64_t count, float *out);

/* Computes the initial values of a rank's running statistics: all elements of that entry of the plan's state. */
void tws_init_running(const tws_plan *plan, float *out);

#endif
