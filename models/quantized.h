/* Quantized weights: a block of consecutive elements has one code per element and one scale.
 *
 *   8 bits  code = round(127 w / a), with a the largest |w| of the block; w' = code a / 127. Codes are signed bytes,
 *           the grid of LLM.int8 (Dettmers et al. 2022), but outliers are not stored separately
 *   4 bits  w' = level a, with the level of NormalFloat's 16 that is nearest to w / a (QLoRA, Dettmers et al. 2023,
 *           appendix E: equally probable values of a normal distribution, including 0); the first of two codes is in
 *           the high half of a byte
 *
 * Scales may be 8-bit codes themselves (QLoRA's double quantization): a group of adjacent blocks has the mean of its
 * scales and a step in float32, scale' = mean + code step, step = the largest |scale - mean| / 127. As in bitsandbytes,
 * codes of weights are computed with exact scales; unlike here, bitsandbytes uses the mean of a whole tensor and a
 * dynamic grid.
 *
 * Blocks do not cross rows, so that a part of a weight has the same codes as in the whole weight. */
#ifndef TWS_MODELS_QUANTIZED_H
#define TWS_MODELS_QUANTIZED_H

#include <stdint.h>

#define TWS_NF4_LEVELS                                                                                            \
  {                                                                                                               \
    -1.0f, -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f, 0.07958030f, \
        0.16093020f, 0.24611230f, 0.33791524f, 0.44070983f, 0.56261700f, 0.72295684f, 1.0f                        \
  }

/* Returns the bytes of `count` codes; count: a multiple of the block size, which is even. */
static inline uint64_t tws_code_bytes(uint64_t count, int bits) {
  return count / 8 * (uint64_t)bits + count % 8 * (uint64_t)bits / 8;
}

/* Converts values[count], which are finite, to codes and one scale per block; bits: 4 or 8; count: a multiple of
 * block. */
void tws_quantize(const float *values, uint64_t count, int64_t block, int bits, uint8_t *codes, float *scales);
/* Converts scales[count] to codes and a mean and a step per group; count: a multiple of group. */
void tws_quantize_scales(const float *scales, uint64_t count, int64_t group, uint8_t *codes, float (*means)[2]);
/* Returns the scale that a code means; mean: mean and step of its group. */
static inline float tws_scale_of(uint8_t code, const float *mean) {
  return mean[0] + (float)(int8_t)code * mean[1];
}
void tws_dequantize_scales(const uint8_t *codes, const float (*means)[2], uint64_t count, int64_t group, float *scales);

void tws_dequantize(const uint8_t *codes, const float *scales, uint64_t count, int64_t block, int bits, float *values);

#endif
