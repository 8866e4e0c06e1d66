/* Reductions in communication_data_type: gradients in another type are cast into a buffer of that type, reduced there,
 * and cast or added from there into the accumulation buffer, as DeepSpeed does. If the gradients of a step are in one
 * flat buffer (stages 0 and 1) the sums are cast back into it; at stages 2 and 3 later operations read only the sums,
 * so these are not cast back into the bucket.
 *
 * DeepSpeed divides the sum by the number of ranks, before the reduction or after it (prescale_gradients,
 * gradient_predivide_factor). Here the weight of the loss includes this division, so that gradients are divided before
 * they are cast; but if one of these keys is given, operations divide the reduced gradients, as in DeepSpeed. */
#include "plan/compressed.h"
#include "plan/zero.h"

int tws_zero_casts(const tws_lower *l) {
  const tws_zero *z = &l->zero;
  return z->ranks > 1 && tws_config_communication_dtype(l->config) != z->grad_dtype;
}

/* Casts a range; a cast that runs once a step belongs to no micro-batch. */
static void cast(tws_lower *l, tws_operand from, tws_operand to) {
  const uint32_t micro_batch = l->b.micro_batch;
  if (l->b.failed != TWS_OK || from.count == 0) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_CAST, (tws_dtype)l->b.plan->buffers[from.buffer].dtype, 0);
  work.dtype2 = l->b.plan->buffers[to.buffer].dtype;
  work.d[0] = (int64_t)from.count;
  from.access = TWS_READ;
  to.access = TWS_WRITE;
  const tws_operand operands[2] = {from, to};
  if (l->zero.flat_gradients) l->b.micro_batch = (uint32_t)l->extent.accumulation;
  tws_builder_compute(&l->b, l->streams.reduce, &work, operands, 2);
  l->b.micro_batch = micro_batch;
}

static int touches(const tws_operand *range, const tws_operand *next) {
  return next->offset == range->offset + range->count;
}

/* Casts ranges with one operation for each maximal run that is contiguous in the source and in the destination. */
static void cast_all(tws_lower *l, const tws_operand *from, const tws_operand *to, int count) {
  for (int i = 0; i < count;) {
    tws_operand source = from[i], target = to[i];
    for (i++; i < count && touches(&source, &from[i]) && touches(&target, &to[i]); i++) {
      source.count += from[i].count;
      target.count += to[i].count;
    }
    cast(l, source, target);
  }
}

void tws_zero_cast(tws_lower *l, const tws_operand *gradients, tws_operand *copies, int count) {
  uint64_t elements = 0;
  for (int i = 0; i < count; i++) elements += gradients[i].count;
  const uint32_t buffer = tws_builder_buffer(&l->b, "communicated gradients", TWS_CATEGORY_BUCKET,
                                             tws_config_communication_dtype(l->config), elements, TWS_LIFETIME_OPS);
  elements = 0;
  for (int i = 0; i < count; i++) {
    copies[i] = tws_update(buffer, elements, gradients[i].count);
    elements += gradients[i].count;
  }
  cast_all(l, gradients, copies, count);
}

void tws_zero_cast_back(tws_lower *l, const tws_operand *copies, const tws_operand *gradients, int count) {
  cast_all(l, copies, gradients, count);
}

int tws_zero_divides(const tws_lower *l) {
  return l->zero.ranks > 1 && tws_config_divides(l->config) && !tws_gradients_stay_local(l);
}

double tws_gradient_weight(const tws_lower *l) {
  return tws_zero_divides(l) ? l->zero.ranks : 1;
}

static void multiply(tws_lower *l, tws_operand range, double factor) {
  const uint32_t micro_batch = l->b.micro_batch;
  if (l->b.failed != TWS_OK || range.count == 0) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_MULTIPLY, (tws_dtype)l->b.plan->buffers[range.buffer].dtype, 0);
  work.d[0] = (int64_t)range.count;
  work.f[0] = factor;
  range.access = TWS_READ_WRITE;
  if (l->zero.flat_gradients) l->b.micro_batch = (uint32_t)l->extent.accumulation;
  tws_builder_compute(&l->b, l->streams.reduce, &work, &range, 1);
  l->b.micro_batch = micro_batch;
}

void tws_zero_divide(tws_lower *l, const tws_operand *gradients, int count, int after) {
  const double before = l->config->prescales ? l->zero.ranks : l->config->predivide;
  const double factor = after ? before / l->zero.ranks : 1 / before;
  if (!tws_zero_divides(l) || factor == 1) return;
  for (int i = 0; i < count;) {
    tws_operand range = gradients[i];
    for (i++; i < count && touches(&range, &gradients[i]) && gradients[i].buffer == range.buffer; i++)
      range.count += gradients[i].count;
    multiply(l, range, factor);
  }
}
