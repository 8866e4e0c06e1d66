/* Floating-point numbers of 8 bits as tensor cores read them (Micikevicius et al., "FP8 formats for deep learning",
 * 2022):
 *
 *   e4m3: 4 exponent bits (bias 7), 3 fraction bits; up to 448, multiples of 2^-9; one NaN and no infinity (e4m3fn)
 *   e5m2: 5 exponent bits (bias 15), 2 fraction bits; up to 57344, multiples of 2^-16; infinity and NaN as IEEE's
 *
 * Rounding is to nearest even; magnitudes above the largest number, infinity included, saturate; NaN stays NaN. */
#ifndef TWS_BASE_FLOAT8_H
#define TWS_BASE_FLOAT8_H

#include <float.h>
#include "base/dtype.h"

#ifdef __CUDACC__
#define TWS_FLOAT8_FUNCTION static __host__ __device__ inline
#else
#define TWS_FLOAT8_FUNCTION static inline
#endif

#define TWS_E4M3_MOST 448.0f
#define TWS_E5M2_MOST 57344.0f

/* The functions below serve e4m3 and e5m2: `fraction` is the number of fraction bits, and `end` the lowest code that is
 * not a finite number. The bias and whether the type has an infinity follow from these two. */
#define TWS_FLOAT8_BIAS(fraction) ((1u << (6 - (fraction))) - 1)

TWS_FLOAT8_FUNCTION float tws_from_float8(unsigned char code, unsigned int fraction, unsigned int end) {
  union {
    unsigned int bits;
    float value;
  } u;
  const unsigned int magnitude = code & 0x7fu, sign = (unsigned int)(code & 0x80u) << 24, shift = 23 - fraction;
  const unsigned int bias = TWS_FLOAT8_BIAS(fraction), infinity = 0x80u - (1u << fraction);
  if (magnitude < 1u << fraction) { /* zero or subnormal: a multiple of the last fraction bit of the least normal
                                       number */
    u.bits = (128 - bias - fraction) << 23;
    u.value *= (float)magnitude;
    u.bits |= sign;
    return u.value;
  }
  if (magnitude < end)
    u.bits = sign | ((magnitude << shift) + ((127 - bias) << 23));
  else
    u.bits = sign | 0x7f800000u | magnitude << shift | (magnitude > infinity ? 0x400000u : 0);
  return u.value;
}

TWS_FLOAT8_FUNCTION unsigned char tws_to_float8(float value, unsigned int fraction, unsigned int end) {
  union {
    float value;
    unsigned int bits;
  } u, least;
  u.value = value;
  const unsigned int sign = (u.bits >> 24) & 0x80u, magnitude = u.bits & 0x7fffffffu, shift = 23 - fraction;
  const unsigned int bias = TWS_FLOAT8_BIAS(fraction), moved = (127 - bias) << 23;
  if (magnitude > 0x7f800000u) return (unsigned char)(sign | 0x7fu);
  if (magnitude >= ((end - 1) << shift) + moved) return (unsigned char)(sign | (end - 1));
  if (magnitude >= (128 - bias) << 23)
    return (unsigned char)(sign |
                           ((magnitude - moved + (1u << (shift - 1)) - 1 + ((magnitude >> shift) & 1u)) >> shift));
  least.bits = (151 - bias - fraction) << 23; /* adding this number rounds to the last bit of subnormal numbers */
  u.bits = magnitude;
  u.value += least.value;
  return (unsigned char)(sign | (u.bits - least.bits));
}

TWS_FLOAT8_FUNCTION float tws_from_e4m3(unsigned char code) {
  return tws_from_float8(code, 3, 0x7f);
}
TWS_FLOAT8_FUNCTION unsigned char tws_to_e4m3(float value) {
  return tws_to_float8(value, 3, 0x7f);
}
TWS_FLOAT8_FUNCTION float tws_from_e5m2(unsigned char code) {
  return tws_from_float8(code, 2, 0x7c);
}
TWS_FLOAT8_FUNCTION unsigned char tws_to_e5m2(float value) {
  return tws_to_float8(value, 2, 0x7c);
}

/* Returns the scale of a tensor whose largest magnitude is `amax` (current scaling, as in Transformer Engine).
 * Quantization multiplies elements by the scale before it rounds them, so that the largest element becomes the type's
 * maximum; dequantization multiplies codes by the scale's inverse. Returns 1 for a tensor of zeros, and NaN if amax is
 * not finite, so that every result computed from the codes is NaN too. */
TWS_FLOAT8_FUNCTION float tws_float8_multiplier(float amax, tws_dtype type) {
  const float most = type == TWS_E5M2 ? TWS_E5M2_MOST : TWS_E4M3_MOST, multiplier = most / amax;
  if (amax == 0) return 1;
  if (!(amax <= FLT_MAX)) return amax - amax;
  return multiplier <= FLT_MAX ? multiplier : FLT_MAX;
}

#endif
