/* Functions of ZeRO, in addition to those in plan/lower.h, that only ZeRO's own files and a few other passes (losses,
 * optimizers, offloading) use. Internal to plan/. */
#ifndef TWS_PLAN_ZERO_H
#define TWS_PLAN_ZERO_H

#include <string.h>
#include "plan/lower.h"

/* zero_classes.c: divides the parameters into ZeRO classes, whose members are partitioned among the same ranks, and
 * fills tws_zero.classes and tws_zero.class_of. The offsets of the classes in buffers are set later, when the buffers
 * are laid out. */
void tws_zero_make_classes(tws_lower *l);

/* Returns the number of elements of a parameter on this rank; 0 if only other pipeline stages use it. */
static inline uint64_t tws_zero_numel(const tws_lower *l, uint32_t param) {
  return l->zero.uses[param] ? (uint64_t)tws_param_numel(&l->network->params[param]) : 0;
}
/* The elements of a parameter that this rank updates. count: their number, 0 if none; index of the first one: first: in
 * the parameter, at: in the flat order of the elements that the rank stores, kept: among all elements that the rank
 * updates. */
typedef struct tws_zero_part {
  uint64_t count, first, at, kept;
} tws_zero_part;
/* zero_classes.c: finds the part of a parameter of the class `c` that this rank updates. */
tws_zero_part tws_zero_part_of(const tws_lower *l, const tws_zero_class *c, uint32_t param);
/* Assigns gradients to buckets in the order in which they become complete. */
void tws_zero_make_buckets(tws_lower *l);
/* zero_bucket_slots.c: tws_zero_reuses_buffers() returns 1 if all buckets reuse a few buffers; tws_zero_bucket_begin()
 * returns the buffer of a bucket that begins; tws_zero_bucket_end() is called when a bucket has been copied out. */
int tws_zero_reuses_buffers(const tws_lower *l);
uint32_t tws_zero_bucket_begin(tws_lower *l, uint32_t bucket);
void tws_zero_bucket_end(tws_lower *l, uint32_t bucket);
/* Schedules the gathers and releases of stage 3. Called when storage is laid out (plan/zero3_gathers.c). */
void tws_zero3_gathers_begin(tws_lower *l);
/* zero_secondary.c: the first chooses the parameters of the secondary partition from the schedule of gathers; the
 * second stores the rank's secondary shard of a parameter that has just been gathered. */
void tws_secondary_begin(tws_lower *l);
void tws_secondary_keep(tws_lower *l, uint32_t param);
/* Returns the number of elements of a rank's secondary shard of a parameter. */
static inline uint64_t tws_secondary_part(const tws_zero *z, uint32_t param) {
  return (uint64_t)z->part[param] * (uint64_t)(tws_zero_class_of(z, param)->ranks / z->secondary.ranks);
}
/* Returns 1 if the next gather of a parameter is from the secondary partition. */
static inline int tws_secondary_has(const tws_zero *z, uint32_t param) {
  return z->secondary.buffer != TWS_NONE && z->secondary.has[param];
}
/* Returns the work of the kernel QUANTIZE_PARTS or DEQUANTIZE_PARTS for [first][second] parts of `part` elements each,
 * with `bits` per code and one scale per `block` elements; dtype: the type of the elements that are not quantized. */
static inline tws_work tws_parts_work(tws_kernel kernel, tws_dtype dtype, int64_t part, int64_t first, int64_t second,
                                      int block, int bits) {
  tws_work work = tws_kernel_work(kernel, dtype, 0);
  const int64_t d[] = {part, first, second, block, bits};
  memcpy(work.d, d, sizeof d);
  return work;
}
/* zero_quantized_gather.c: quantized gathers. tws_gathers_codes() returns 1 if the next gather of a parameter is
 * quantized; tws_codes_segments() writes the four operands of the gather, whose input is the rank's shard `own`, and
 * returns their number; tws_codes_decode() dequantizes the gathered codes if the gather was quantized. */
void tws_codes_begin(tws_lower *l);
int tws_gathers_codes(const tws_lower *l, uint32_t param);
int tws_codes_segments(tws_lower *l, uint32_t param, tws_operand own, tws_operand *operands);
void tws_codes_decode(tws_lower *l, uint32_t param);
/* zero_quantized_reduce.c: quantized reductions. tws_quantized_reduce_begin() makes their groups of ranks, within and
 * between nodes. tws_reduces_quantized() returns 1 if a gradient's reduction is quantized. tws_quantized_reduce() takes
 * two operands per gradient, like a reduce-scatter: the parts for all ranks, and the sum of the parts for this rank. */
void tws_quantized_reduce_begin(tws_lower *l);
int tws_reduces_quantized(const tws_lower *l, uint32_t param);
void tws_quantized_reduce(tws_lower *l, const tws_zero_class *c, const int64_t *part, uint32_t count,
                          const tws_operand *operands);
/* zero_communication.c: tws_zero_casts() returns 1 if gradients are reduced in a type other than their own.
 * tws_zero_cast() casts ranges of one buffer to that type, into one new buffer in which they are contiguous;
 * tws_zero_cast_back() casts them back. */
int tws_zero_casts(const tws_lower *l);
void tws_zero_cast(tws_lower *l, const tws_operand *gradients, tws_operand *copies, int count);
void tws_zero_cast_back(tws_lower *l, const tws_operand *copies, const tws_operand *gradients, int count);
/* tws_zero_divides() returns 1 if operations divide gradients by the number of ranks; tws_zero_divide() emits the
 * divisions before a reduction (after 0) or after it (after 1). tws_gradient_weight() returns the factor by which
 * gradients are multiplied relative to their loss, whose weight includes the division: the number of ranks if
 * operations divide, else 1. */
int tws_zero_divides(const tws_lower *l);
void tws_zero_divide(tws_lower *l, const tws_operand *gradients, int count, int after);
double tws_gradient_weight(const tws_lower *l);
/* sparse_gradients.c: tws_sparse_next() finds the first table of a class, from element `at` of its range on, whose
 * gradient is communicated by rows; it returns 0 if there is none, else 1, the parameter, and its first element in the
 * range. tws_sparse_reduce() emits the operations. */
int tws_sparse_next(const tws_lower *l, const tws_zero_class *c, uint64_t at, uint32_t *param, uint64_t *begin);
void tws_sparse_reduce(tws_lower *l, const tws_zero_class *c, uint32_t param);
/* zero_groups.c: groups of ranks that each have all partitions (MiCS). tws_groups_begin() creates them;
 * tws_groups_add_up() all-reduces the rank's shards of the gradients of `params` among the ranks that have the same
 * shards, after the last micro-batch; tws_groups_gather() gathers pairs of (shard, whole) within `group`, in two levels
 * if groups span nodes. */
void tws_groups_begin(tws_lower *l);
void tws_groups_add_up(tws_lower *l, const uint32_t *params, uint32_t count);
void tws_groups_gather(tws_lower *l, uint32_t group, const tws_operand *operands, int count);
/* Clears the padding at the end of a rank's partition of gradients, which the norm and the update read. */
void tws_zero_pad_gradients(tws_lower *l);

#endif
