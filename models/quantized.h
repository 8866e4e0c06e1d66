/* Weights in few bits: blocks of consecutive elements, in each of them codes that are multiplied by one scale.
 *
 *   8 bits  code = round(127 w / a), a the largest |w| of the block; w' = code a / 127. Codes are signed, a byte each:
 *           the grid of LLM.int8 (Dettmers et al. 2022), whose outliers are not kept apart here
 *   4 bits  w' = level a, of the 16 levels of NormalFloat the nearest to w / a (QLoRA, Dettmers et al. 2023, appendix
 * E: equally likely values of a normal distribution, with 0 among them); the first of two is in the high half
 *
 * Scales may be 8-bit codes themselves (QLoRA's double quantization): of a group of neighbouring blocks the mean of
 * their scales and a step are kept in float32, scale' = mean + code step, step = the largest |scale - mean| / 127.
 * Codes of weights are those by exact scales, as bitsandbytes makes them; its mean is that of a whole tensor, its grid
 * a dynamic one.
 *
 * Blocks do not reach across rows, so that a part of a weight has the codes that it has in the whole. */
#ifndef TWS_MODELS_QUANTIZED_H
#define TWS_MODELS_QUANTIZED_H

#include <stdint.h>

#define TWS_NF4_LEVELS                                                                                            \
  {                                                                                                               \
    -1.0f, -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f, 0.07958030f, \
        0.16093020f, 0.24611230f, 0.33791524f, 0.44070983f, 0.56261700f, 0.72295684f, 1.0f                        \
  }

/* Bytes of codes; count: a multiple of the block's even size. */
static inline uint64_t tws_code_bytes(uint64_t count, int bits) {
  return count / 8 * (uint64_t)bits + count % 8 * (uint64_t)bits / 8;
}

/* values[count] as codes and as a scale of each block; bits: 4 or 8; count: a multiple of block. Values are finite. */
void tws_quantize(const float *values, uint64_t count, int64_t block, int bits, uint8_t *codes, float *scales);
/* scales[count] as codes and, of each group of them, mean and step; count: a multiple of group. */
void tws_quantize_scales(const float *scales, uint64_t count, int64_t group, uint8_t *codes, float (*means)[2]);
/* What they mean. */
static inline float tws_scale_of(uint8_t code, const float *mean) {
  return mean[0] + (float)(int8_t)code * mean[1];
}
void tws_dequantize_scales(const uint8_t *codes, const float (*means)[2], uint64_t count, int64_t group, float *scales);

void tws_dequantize(const uint8_t *codes, const float *scales, uint64_t count, int64_t block, int bits, float *values);

#endif
