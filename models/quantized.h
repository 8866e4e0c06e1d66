/* Quantized weights: a block of consecutive elements has one code per element and one scale, or a scale and a minimum.
 *
 *   int8             code = round(127 w / a), with a the largest |w| of the block; w' = code a / 127. Codes are signed
 *                    bytes, the grid of LLM.int8 (Dettmers et al. 2022), but outliers are not stored separately
 *   nf4              w' = level a, with the level of NormalFloat's 16 that is nearest to w / a (QLoRA, Dettmers et al.
 *                    2023, appendix E: equally probable values of a normal distribution, including 0)
 *   int4             w' = (code - 8) / 8 scale, with scale = -e and e the element of largest magnitude, which thus has
 *                    code 0: all 16 codes are used
 *   int8-asymmetric, int4-asymmetric  w' = minimum + code scale, with 0 the code of the smallest element, 255 or 15
 *                    that of the largest one
 *
 * Two 4-bit codes share a byte: the first is in the four high bits.
 *
 * Scales may themselves be quantized to 8-bit codes (QLoRA's double quantization): each group of adjacent blocks then
 * has two float32 numbers, the mean of its scales and a step: scale' = mean + code step, step = the largest |scale -
 * mean| / 127. As in bitsandbytes, codes of weights are computed with exact scales; unlike here, bitsandbytes uses the
 * mean of a whole tensor and a dynamic grid.
 *
 * Blocks do not cross rows, so that a part of a weight that consists of whole rows has the same codes as in the whole
 * weight. */
#ifndef TWS_MODELS_QUANTIZED_H
#define TWS_MODELS_QUANTIZED_H

#include <stdint.h>

/* Types of codes. The lower four bits of a type are the size of a code. */
typedef enum tws_code_type {
  TWS_CODES_NONE = 0,
  TWS_CODES_NF4 = 4,
  TWS_CODES_INT8 = 8,
  TWS_CODES_INT4 = 4 | 16,
  TWS_CODES_INT8_ASYMMETRIC = 8 | 32,
  TWS_CODES_INT4_ASYMMETRIC = 4 | 32
} tws_code_type;

/* Returns the type of codes called `name`; TWS_CODES_NONE: there is none. */
int tws_code_type_named(const char *name);
/* Returns the name of a type; "?": the number is not a type. */
const char *tws_code_type_name(int type);
#define TWS_CODE_TYPES "int8, int4, nf4, int8-asymmetric or int4-asymmetric"

/* Returns the number of bits of a code. */
static inline int tws_code_bits(int type) {
  return type & 15;
}
/* Returns the number of float32 values per block: 1 (a scale) or 2 (a scale and a minimum). */
static inline int tws_code_scales(int type) {
  return type & 32 ? 2 : 1;
}

/* The values of 4-bit codes in units of their scale: those of nf4, of int4 and of int4-asymmetric. */
#define TWS_INT4_LEVELS                                                                                           \
  {                                                                                                               \
    -1, -0.875f, -0.75f, -0.625f, -0.5f, -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f, 0.5f, 0.625f, 0.75f, \
        0.875f                                                                                                    \
  }
#define TWS_UNSIGNED_LEVELS \
  { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }
#define TWS_NF4_LEVELS                                                                                            \
  {                                                                                                               \
    -1.0f, -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f, 0.07958030f, \
        0.16093020f, 0.24611230f, 0.33791524f, 0.44070983f, 0.56261700f, 0.72295684f, 1.0f                        \
  }

/* Returns the bytes of `count` codes of a type; count: a multiple of the block size, which is even. */
static inline uint64_t tws_code_bytes(uint64_t count, int type) {
  const uint64_t bits = (uint64_t)tws_code_bits(type);
  return count / 8 * bits + count % 8 * bits / 8;
}

/* Converts values[count], which are finite, to codes of a type and the scales of blocks, of which each has
 * tws_code_scales() values; count: a multiple of block. */
void tws_quantize(const float *values, uint64_t count, int64_t block, int type, uint8_t *codes, float *scales);
/* Converts scales[count] to codes and a mean and a step per group; count: a multiple of group. */
void tws_quantize_scales(const float *scales, uint64_t count, int64_t group, uint8_t *codes, float (*means)[2]);
/* Returns the scale that an 8-bit code represents; mean[2]: mean and step of its group. */
static inline float tws_scale_of(uint8_t code, const float *mean) {
  return mean[0] + (float)(int8_t)code * mean[1];
}
void tws_dequantize_scales(const uint8_t *codes, const float (*means)[2], uint64_t count, int64_t group, float *scales);

void tws_dequantize(const uint8_t *codes, const float *scales, uint64_t count, int64_t block, int type, float *values);

#endif
