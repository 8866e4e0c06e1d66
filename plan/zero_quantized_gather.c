/* ZeRO++'s quantized gathers (qwZ; Wang et al. 2023, section 4.1): a rank sends its shard of a parameter as 8-bit codes
 * with one scale per block, and every rank dequantizes the codes of all ranks, including its own, so that all use equal
 * weights.
 *
 * Persistent parameters, which are small, gathers from the secondary partition (plan/zero_secondary.c) and weights that
 * are quantized already are not quantized for the gather. */
#include "plan/zero.h"

enum { BITS = 8, BLOCK = 2048 };

int tws_gathers_codes(const tws_lower *l, uint32_t param) {
  const tws_zero *z = &l->zero;
  return tws_config_quantizes_weights(l->config) && tws_zero_class_of(z, param)->ranks > 1 && !z->persistent[param] &&
         !tws_secondary_has(z, param) && !tws_is_quantized(l, param);
}

static uint32_t room_for(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_GATHERED, dtype, elements, TWS_LIFETIME_OPS);
}

int tws_codes_segments(tws_lower *l, uint32_t param, tws_operand own, tws_operand *operands) {
  tws_zero *z = &l->zero;
  const uint64_t ranks = (uint64_t)tws_zero_class_of(z, param)->ranks, blocks = (own.count + BLOCK - 1) / BLOCK;
  const tws_work work =
      tws_parts_work(TWS_KERNEL_QUANTIZE_PARTS, l->config->dtype, (int64_t)own.count, 1, 1, BLOCK, BITS);
  operands[0] = tws_write(room_for(l, "codes of a part", TWS_U8, own.count), 0, own.count);
  operands[2] = tws_write(room_for(l, "scales of a part", TWS_F32, blocks), 0, blocks);
  z->codes[param] = room_for(l, "gathered codes", TWS_U8, own.count * ranks);
  z->code_scales[param] = room_for(l, "gathered scales", TWS_F32, blocks * ranks);
  if (l->b.failed != TWS_OK) return 0;
  operands[1] = tws_all(&l->b, z->codes[param], TWS_WRITE);
  operands[3] = tws_all(&l->b, z->code_scales[param], TWS_WRITE);
  tws_builder_compute(&l->b, l->streams.gather, &work, (tws_operand[]){own, operands[0], operands[2]}, 3);
  operands[0].access = operands[2].access = TWS_READ;
  return 4;
}

void tws_codes_decode(tws_lower *l, uint32_t param) {
  tws_zero *z = &l->zero;
  if (!z->codes || z->codes[param] == TWS_NONE || l->b.failed != TWS_OK) return;
  const tws_work work = tws_parts_work(TWS_KERNEL_DEQUANTIZE_PARTS, l->config->dtype, z->part[param],
                                       tws_zero_class_of(z, param)->ranks, 1, BLOCK, BITS);
  const tws_operand operands[3] = {tws_all(&l->b, z->codes[param], TWS_READ),
                                   tws_all(&l->b, z->code_scales[param], TWS_READ),
                                   tws_all(&l->b, z->gathered[param], TWS_WRITE)};
  tws_builder_compute(&l->b, l->streams.gather, &work, operands, 3);
  z->codes[param] = TWS_NONE;
}

void tws_codes_begin(tws_lower *l) {
  tws_zero *z = &l->zero;
  if (!tws_config_quantizes_weights(l->config)) return;
  z->codes = tws_lower_memory(l, l->network->param_count, sizeof *z->codes);
  z->code_scales = tws_lower_memory(l, l->network->param_count, sizeof *z->code_scales);
  for (uint32_t p = 0; z->codes && p < l->network->param_count; p++) z->codes[p] = TWS_NONE;
}
