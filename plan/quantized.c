/* Lowers quantized frozen weights (models/quantized.h): the state has the codes of the weights and the scales of blocks
 * of codes; these scales may be quantized too. A weight is dequantized right before each kernel that reads it, to the
 * type of the computation, into a buffer that lives until this kernel has ended. */
#include "models/quantized.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
#include "plan/zero.h"

int tws_is_quantized(const tws_lower *l, uint32_t param) {
  return l->network->params[param].code_type > 0;
}

/* Returns 1 if the types of codes are those of a request of inference (tws_serving_sizes), on which the configuration's
 * keys of quantization have no effect. */
static int types_are_requested(const tws_lower *l) {
  return tws_program_serves(l->b.plan->program) && tws_config_frozen_type(l->config) == TWS_QUANTIZATION_NONE;
}

/* Returns the parameter of the whole network that a local parameter is a part of. */
static const tws_param *whole_param(const tws_lower *l, uint32_t p) {
  return &l->b.plan->network->params[tws_is_weight_tile(l, p) ? l->tiling.weight_of[p] : p];
}

/* Returns the largest number of tensor ranks, among the divisors of the plan's number, whose rows of all quantized
 * weights are whole blocks; 0: there is none. */
static int legal_tensor_ranks(const tws_lower *l) {
  const int tensor = l->b.plan->position.ranks[TWS_AXIS_MODEL];
  for (int ranks = tensor; ranks > 0; ranks--) {
    int legal = tensor % ranks == 0;
    for (uint32_t p = 0; legal && p < l->network->param_count; p++) {
      const int64_t own = l->network->params[p].columns, whole = whole_param(l, p)->columns;
      const int64_t columns = own == whole ? whole : whole / ranks;
      legal = !tws_is_quantized(l, p) || columns % l->config->quantization.block == 0;
    }
    if (legal) return ranks;
  }
  return 0;
}

static tws_code refuse_requested(const tws_lower *l, const tws_param *param, tws_error *err) {
  char hint[128];
  const int ranks = legal_tensor_ranks(l);
  if (ranks > 0)
    snprintf(hint, sizeof hint, "use --tp %d, or leave out --weights (in a file of -c: quant)", ranks);
  else
    snprintf(hint, sizeof hint, "leave out --weights (in a file of -c: quant)");
  return tws_fail(err, TWS_INVALID, hint,
                  "--weights: a rank's rows of %s have %" PRId64 " elements, no multiple of the %" PRId64
                  " that share a scale",
                  param->name, param->columns, l->config->quantization.block);
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

/* Returns the largest number of elements such that a parameter consists of contiguous runs of this length, on any
 * number of ranks and in files: the elements of one row if this rank has part of each row, otherwise those of the
 * common divisor of the numbers of rows of all fused parts and of their slices. */
static int64_t run_of(const tws_lower *l, uint32_t p) {
  const tws_param *param = &l->network->params[p];
  const tws_param *whole = whole_param(l, p);
  const int64_t groups = whole->groups > 1 ? whole->groups : 1;
  int64_t rows = param->rows;
  if (param->columns != whole->columns) return param->columns;
  for (int i = 0; i < 3; i++) {
    rows = tws_common_divisor(param->fused[i], rows);
    rows = tws_common_divisor(whole->fused[i] / groups, rows);
  }
  return rows * param->columns;
}

/* Fails with TWS_INVALID if some group of scales would be divided among ranks, since groups would then depend on the
 * number of ranks. */
static tws_code check_groups(const tws_lower *l) {
  const int64_t block = l->config->quantization.block, group = l->config->quantization.scale_block;
  const tws_param *odd = NULL;
  int64_t common = 0, nearest = group, blocks = 0;
  char hint[128];
  for (uint32_t p = 0; p < l->network->param_count; p++) {
    const int64_t run = tws_is_quantized(l, p) ? run_of(l, p) / block : 0;
    common = tws_common_divisor(run, common);
    if (odd || run % group == 0) continue;
    odd = &l->network->params[p];
    blocks = run;
  }
  if (!odd) return TWS_OK;
  while (common % nearest != 0) nearest--;
  snprintf(hint, sizeof hint, "the nearest scale_block_size that divides all weights' is %" PRId64 "; 0 keeps float32",
           nearest);
  return tws_fail(l->b.err, TWS_INVALID, hint,
                  "twinspeed.frozen_quantization.scale_block_size: of %s %" PRId64
                  " blocks follow each other on this rank or in files, no multiple of %" PRId64,
                  odd->name, blocks, group);
}

tws_code tws_quantized_begin(tws_lower *l) {
  const int64_t block = l->config->quantization.block;
  tws_quantized *q = &l->b.plan->quantized;
  const tws_param *odd = NULL;
  int64_t common = 0;
  *q = (tws_quantized){.first = TWS_NO_OFFSET, .codes = TWS_NONE, .scales = TWS_NONE, .means = TWS_NONE};
  for (uint32_t p = 0; p < l->network->param_count; p++) {
    const tws_param *param = &l->network->params[p];
    if (!tws_is_quantized(l, p)) continue;
    common = tws_common_divisor(param->columns, common);
    if (!odd && (param->columns % block != 0 || block % 2 != 0)) odd = param;
    q->type = param->code_type;
    q->block = block;
    q->group = l->config->quantization.scale_block;
  }
  const int requested = types_are_requested(l);
  if (odd) return requested ? refuse_requested(l, odd, l->b.err) : refuse_block(l, odd, common, l->b.err);
  if (q->group > 0) TWS_TRY(check_groups(l));
  if (common > 0 && l->zero.stage == 3 && l->config->zero.offload_param)
    return tws_fail(l->b.err, TWS_UNSUPPORTED,
                    requested
                        ? "leave out zero_optimization.offload_param, or --weights"
                        : "leave out zero_optimization.offload_param, or set twinspeed.frozen_quantization.type to "
                          "\"none\" and zero_quantized_nontrainable_weights to false",
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
                           .elements = tws_code_bytes(elements, q->type)};
  if (q->type == TWS_CODES_NONE) return;
  q->first = first;
  q->codes = tws_builder_state(&l->b, &entry);
  entry.name = "scales of quantized parameters";
  entry.dtype = q->group > 0 ? TWS_U8 : TWS_F32;
  entry.elements = elements / (uint64_t)q->block * (uint64_t)tws_code_scales(q->type);
  q->scales = tws_builder_state(&l->b, &entry);
  if (q->group == 0) return;
  entry.name = "means of quantized scales";
  entry.dtype = TWS_F32;
  entry.elements = 2 * elements / (uint64_t)tws_quantized_unit(q);
  q->means = tws_builder_state(&l->b, &entry);
}

/* Writes the operands of codes, scales and means of a range of elements; the buffers begin with element 0 of the
 * parameter. Returns their number. */
static int parts_of(const tws_quantized *q, const uint32_t *buffers, uint64_t offset, uint64_t count,
                    tws_operand *out) {
  const uint64_t block = (uint64_t)q->block, unit = (uint64_t)tws_quantized_unit(q);
  const uint64_t each = (uint64_t)tws_code_scales(q->type);
  out[0] = tws_read(buffers[0], tws_code_bytes(offset, q->type), tws_code_bytes(count, q->type));
  out[1] = tws_read(buffers[1], offset / block * each, count / block * each);
  if (q->group > 0) out[2] = tws_read(buffers[2], 2 * offset / unit, 2 * count / unit);
  return q->group > 0 ? 3 : 2;
}

int tws_quantized_stored(const tws_quantized *q, uint64_t offset, uint64_t count,
                         tws_operand out[TWS_QUANTIZED_PARTS]) {
  return parts_of(q, (const uint32_t[]){q->codes, q->scales, q->means}, offset - q->first, count, out);
}

tws_operand tws_dequantized(tws_lower *l, uint32_t param) {
  const tws_quantized *q = &l->b.plan->quantized;
  const tws_zero *z = &l->zero;
  const uint64_t count = tws_zero_numel(l, param);
  const tws_kernel kernel = q->group > 0 ? TWS_KERNEL_DEQUANTIZE_TWICE : TWS_KERNEL_DEQUANTIZE;
  tws_work work = tws_kernel_work(kernel, l->config->dtype, 0);
  tws_operand operands[TWS_QUANTIZED_PARTS + 1];
  const int parts = z->stage == 3 ? parts_of(q, z->gathered_parts[param], 0, count, operands)
                                  : tws_quantized_stored(q, z->flat_offset[param], count, operands);
  operands[parts] = tws_lower_scratch(l, "dequantized weight", l->config->dtype, count);
  work.d[0] = (int64_t)count;
  work.d[1] = q->block;
  work.d[2] = q->type;
  work.d[3] = q->group;
  tws_lower_compute(l, &work, operands, parts + 1);
  operands[parts].access = TWS_READ;
  return operands[parts];
}
