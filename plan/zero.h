/* What the optimizer pass needs of ZeRO beyond plan/lower.h, and ZeRO of itself. Internal to plan/. */
#ifndef TWS_PLAN_ZERO_H
#define TWS_PLAN_ZERO_H

#include <string.h>
#include "plan/lower.h"

/* zero_classes.c: tws_zero.classes and class_of, without ranges. */
void tws_zero_make_classes(tws_lower *l);

/* Elements of a parameter on this rank: none of one that only other pipeline stages use. */
static inline uint64_t tws_zero_numel(const tws_lower *l, uint32_t param) {
  return l->zero.uses[param] ? (uint64_t)tws_param_numel(&l->network->params[param]) : 0;
}
/* Which gradients are reduced together, in the order in which they become complete. */
void tws_zero_make_buckets(tws_lower *l);
/* zero_turns.c: whether buckets take turns in buffers. The buffer of a bucket that begins; when it has been copied out.
 */
int tws_zero_takes_turns(const tws_lower *l);
uint32_t tws_zero_turn_begin(tws_lower *l, uint32_t bucket);
void tws_zero_turn_end(tws_lower *l, uint32_t bucket);
/* Stage 3: when what is gathered and released, once storage is laid out. (plan/zero3_gathers.c) */
void tws_zero3_gathers_begin(tws_lower *l);
/* zero_secondary.c: with that schedule, what neighbours keep; what they do of a parameter that has just been gathered.
 */
void tws_secondary_begin(tws_lower *l);
void tws_secondary_keep(tws_lower *l, uint32_t param);
/* Elements of a parameter that each of the neighbours keeps. */
static inline uint64_t tws_secondary_part(const tws_zero *z, uint32_t param) {
  return (uint64_t)z->part[param] * (uint64_t)(tws_zero_class_of(z, param)->ranks / z->secondary.ranks);
}
/* Whether a gather of a parameter is from the neighbours alone. */
static inline int tws_secondary_has(const tws_zero *z, uint32_t param) {
  return z->secondary.buffer != TWS_NONE && z->secondary.has[param];
}
/* Work of QUANTIZE_PARTS or DEQUANTIZE_PARTS: first x second parts of so many elements, codes of `bits` with a scale
 * for each `block` of them; dtype: of what is no code. */
static inline tws_work tws_parts_work(tws_kernel kernel, tws_dtype dtype, int64_t part, int64_t first, int64_t second,
                                      int block, int bits) {
  tws_work work = tws_kernel_work(kernel, dtype, 0);
  const int64_t d[] = {part, first, second, block, bits};
  memcpy(work.d, d, sizeof d);
  return work;
}
/* zero_codes.c: gathers of codes. Whether the next one of a parameter is; its four operands, for what a rank has of it;
 * the whole of what came, nothing where no codes did. */
void tws_codes_begin(tws_lower *l);
int tws_gathers_codes(const tws_lower *l, uint32_t param);
int tws_codes_segments(tws_lower *l, uint32_t param, tws_operand own, tws_operand *operands);
void tws_codes_decode(tws_lower *l, uint32_t param);
/* zero_hops.c: reductions of codes. Whether a gradient's is; `operands` are two of each gradient, as of a
 * reduce-scatter: a part of it for each rank, and where this one's sum goes. */
void tws_hops_begin(tws_lower *l);
int tws_hops_take(const tws_lower *l, uint32_t param);
void tws_hops_reduce(tws_lower *l, const tws_zero_class *c, const int64_t *part, uint32_t count,
                     const tws_operand *operands);
/* zero_communication.c: whether gradients are reduced in another type than they are in; copies in that type of ranges
 * of one buffer, one after the other in a buffer of their own; and from there back. */
int tws_zero_casts(const tws_lower *l);
void tws_zero_cast(tws_lower *l, const tws_operand *gradients, tws_operand *copies, int count);
void tws_zero_cast_back(tws_lower *l, const tws_operand *copies, const tws_operand *gradients, int count);
/* zero_groups.c: of ranks in groups, each with all partitions. Sums of what a rank keeps of these parameters, among the
 * ranks that keep the same, where the last micro-batch has added to it; a gather among `group` of pairs of what a rank
 * has and the whole, in two steps where groups have nodes. */
void tws_groups_begin(tws_lower *l);
void tws_groups_add_up(tws_lower *l, const uint32_t *params, uint32_t count);
void tws_groups_gather(tws_lower *l, uint32_t group, const tws_operand *operands, int count);
/* Padding at the end of a rank's part must be finite before norm and update read it. */
void tws_zero_pad_gradients(tws_lower *l);

#endif
