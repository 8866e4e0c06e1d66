/* Numbers of 8 bits as products on tensor cores read them (Micikevicius et al., "FP8 formats for deep learning", 2022):
 *
 *   e4m3  4 bits of exponent, bias 7, 3 of fraction; up to 448, multiples of 2^-9; no infinity, one NaN (PyTorch's
 * e4m3fn) e5m2  5 bits of exponent, bias 15, 2 of fraction; up to 57344, multiples of 2^-16; infinity and NaN as IEEE's
 *
 * Rounding is to nearest even; what is beyond the largest number, infinity too, becomes it, and NaN stays NaN. */
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

TWS_FLOAT8_FUNCTION float tws_from_e4m3(unsigned char code) {
  union {
    unsigned int bits;
    float value;
  } u;
  const unsigned int magnitude = code & 0x7fu, sign = (unsigned int)(code & 0x80u) << 24;
  if (magnitude < 8) { /* zero or denormal: so many times 2^-9 */
    u.value = (float)magnitude * 0x1p-9f;
    u.bits |= sign;
    return u.value;
  }
  u.bits = sign | (magnitude == 0x7fu ? 0x7fc00000u : (magnitude << 20) + (120u << 23));
  return u.value;
}

TWS_FLOAT8_FUNCTION unsigned char tws_to_e4m3(float value) {
  union {
    float value;
    unsigned int bits;
  } u;
  u.value = value;
  const unsigned int sign = (u.bits >> 24) & 0x80u, magnitude = u.bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned char)(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return (unsigned char)(sign | 0x7eu);
  if (magnitude >= 0x3c800000u)
    return (unsigned char)(sign | ((magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20));
  u.bits = magnitude; /* the last place of 2^14 is that of denormal numbers */
  u.value += 0x1p14f;
  return (unsigned char)(sign | (u.bits - 0x46800000u));
}

TWS_FLOAT8_FUNCTION float tws_from_e5m2(unsigned char code) {
  union {
    unsigned int bits;
    float value;
  } u;
  const unsigned int magnitude = code & 0x7fu, sign = (unsigned int)(code & 0x80u) << 24;
  if (magnitude < 4) {
    u.value = (float)magnitude * 0x1p-16f;
    u.bits |= sign;
    return u.value;
  }
  u.bits = sign | ((magnitude << 21) + (magnitude < 0x7cu ? 112u << 23 : 224u << 23));
  if (magnitude > 0x7cu) u.bits |= 0x400000u;
  return u.value;
}

TWS_FLOAT8_FUNCTION unsigned char tws_to_e5m2(float value) {
  union {
    float value;
    unsigned int bits;
  } u;
  u.value = value;
  const unsigned int sign = (u.bits >> 24) & 0x80u, magnitude = u.bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned char)(sign | 0x7fu);
  if (magnitude >= 0x47600000u) return (unsigned char)(sign | 0x7bu);
  if (magnitude >= 0x38800000u)
    return (unsigned char)(sign | ((magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21));
  u.bits = magnitude; /* likewise that of 2^7 */
  u.value += 0x1p7f;
  return (unsigned char)(sign | (u.bits - 0x43000000u));
}

/* What a tensor whose largest magnitude is `amax` is multiplied with before it is rounded, so that its largest number
 * becomes the type's (current scaling, as Transformer Engine does it); the codes then mean so many times the inverse. 1
 * for a tensor of zeros. Not a number where amax is not finite, so that it shows in whatever is made of the codes. */
TWS_FLOAT8_FUNCTION float tws_float8_multiplier(float amax, tws_dtype type) {
  const float most = type == TWS_E5M2 ? TWS_E5M2_MOST : TWS_E4M3_MOST, multiplier = most / amax;
  if (amax == 0) return 1;
  if (!(amax <= FLT_MAX)) return amax - amax;
  return multiplier <= FLT_MAX ? multiplier : FLT_MAX;
}

#endif
