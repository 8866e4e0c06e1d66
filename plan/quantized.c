/* Frozen weights in few bits (models/quantized.h): the state has their codes and the scales of blocks, and every kernel
 * that reads such a weight gets it in the type of the computation, made right before in memory that lives as long. */
#include "models/quantized.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
#include "plan/zero.h"

int tws_is_quantized(const tws_lower *l, uint32_t param) {
  return l->network->params[param].bits > 0;
}

static tws_code refuse_block(const tws_lower *l, const tws_param *param, int64_t common, tws_error *err) {
  char hint[128];
  int64_t nearest = l->config->quantization.block - l->config->quantization.block % 2;
  while (nearest > 0 && common % nearest != 0) nearest -= 2;
  if (nearest > 0)
    snprintf(hint, sizeof hint, "the nearest block_size that divides the rows of all weights is %" PRId64, nearest);
  else
    snprintf(hint, sizeof hint, "name it in twinspeed.frozen_quantization.skip_modules: its rows are odd");
  return tws_fail(err, TWS_INVALID, hint,
                  "twinspeed.frozen_quantization.block_size: a rank's rows of %s have %" PRId64
                  " elements, no multiple of %" PRId64,
                  param->name, param->columns, l->config->quantization.block);
}

tws_code tws_quantized_begin(tws_lower *l) {
  const int64_t block = l->config->quantization.block;
  const tws_param *odd = NULL;
  int64_t common = 0;
  l->b.plan->quantized = (tws_quantized){.first = TWS_NO_OFFSET, .codes = TWS_NONE, .scales = TWS_NONE};
  for (uint32_t p = 0; p < l->network->param_count; p++) {
    const tws_param *param = &l->network->params[p];
    if (!tws_is_quantized(l, p)) continue;
    common = tws_common_divisor(param->columns, common);
    if (!odd && (param->columns % block != 0 || block % 2 != 0)) odd = param;
    l->b.plan->quantized.bits = param->bits;
    l->b.plan->quantized.block = block;
  }
  if (odd) return refuse_block(l, odd, common, l->b.err);
  if (common > 0 && l->zero.stage == 3 && l->config->zero.offload_param)
    return tws_fail(
        l->b.err, TWS_UNSUPPORTED,
        "leave out zero_optimization.offload_param, or set twinspeed.frozen_quantization.type to \"none\" and "
        "zero_quantized_nontrainable_weights to false",
        "weights of few bits stay on the device");
  return TWS_OK;
}

void tws_quantized_state(tws_lower *l, uint64_t first, uint64_t elements) {
  tws_quantized *q = &l->b.plan->quantized;
  tws_state_entry entry = {.name = "codes of quantized parameters",
                           .tier = TWS_TIER_DEVICE,
                           .dtype = TWS_U8,
                           .category = TWS_CATEGORY_PARAMETER,
                           .role = TWS_ELEMENTS_NONE,
                           .initial = TWS_INITIAL_QUANTIZED,
                           .elements = tws_code_bytes(elements, q->bits)};
  if (q->bits == 0) return;
  q->first = first;
  q->codes = tws_builder_state(&l->b, &entry);
  entry.name = "scales of quantized parameters";
  entry.dtype = TWS_F32;
  entry.elements = elements / (uint64_t)q->block;
  q->scales = tws_builder_state(&l->b, &entry);
}

int tws_quantized_stored(const tws_lower *l, uint64_t offset, uint64_t count, tws_operand out[2]) {
  const tws_quantized *q = &l->b.plan->quantized;
  offset -= q->first;
  out[0] = tws_read(q->codes, tws_code_bytes(offset, q->bits), tws_code_bytes(count, q->bits));
  out[1] = tws_read(q->scales, offset / (uint64_t)q->block, count / (uint64_t)q->block);
  return 2;
}

tws_operand tws_dequantized(tws_lower *l, uint32_t param) {
  const tws_quantized *q = &l->b.plan->quantized;
  const tws_zero *z = &l->zero;
  const uint64_t count = tws_zero_numel(l, param);
  tws_work work = tws_kernel_work(TWS_KERNEL_DEQUANTIZE, l->config->dtype, 0);
  tws_operand operands[3];
  if (z->stage == 3) {
    operands[0] = tws_read(z->gathered[param], 0, tws_code_bytes(count, q->bits));
    operands[1] = tws_read(z->gathered_scales[param], 0, count / (uint64_t)q->block);
  } else {
    tws_quantized_stored(l, z->flat_offset[param], count, operands);
  }
  operands[2] = tws_lower_scratch(l, "dequantized weight", l->config->dtype, count);
  work.d[0] = (int64_t)count;
  work.d[1] = q->block;
  work.d[2] = q->bits;
  tws_lower_compute(l, &work, operands, 3);
  operands[2].access = TWS_READ;
  return operands[2];
}
