/* Element types and memory tiers that models, plans and backends share. */
#ifndef TWS_BASE_DTYPE_H
#define TWS_BASE_DTYPE_H

#include <stddef.h>

/* E4M3 and E5M2 are described in base/float8.h. */
#define TWS_DTYPES(X) \
  X(F32, 4, "fp32")   \
  X(BF16, 2, "bf16")  \
  X(F16, 2, "fp16") X(F64, 8, "fp64") X(I32, 4, "int32") X(U8, 1, "uint8") X(E4M3, 1, "e4m3") X(E5M2, 1, "e5m2")
typedef enum tws_dtype {
#define X(name, bytes, text) TWS_##name,
  TWS_DTYPES(X)
#undef X
  TWS_DTYPE_COUNT
} tws_dtype;
size_t tws_dtype_bytes(tws_dtype dtype);
const char *tws_dtype_name(tws_dtype dtype); /* such as "bf16" */

#define TWS_TIERS(X) X(DEVICE, "device") X(PINNED, "pinned host") X(HOST, "host") X(DISK, "disk")
typedef enum tws_tier {
#define X(name, text) TWS_TIER_##name,
  TWS_TIERS(X)
#undef X
  TWS_TIER_COUNT
} tws_tier;
const char *tws_tier_name(tws_tier tier);

/* Convert between bfloat16, which is the upper half of a float32, and float32. Conversion to bfloat16 rounds to nearest
 * even; NaN stays NaN. */
static inline float tws_from_bf16(unsigned short value) {
  union { unsigned int bits; float value; } u = {.bits = (unsigned int)value << 16};
  return u.value;
}
static inline unsigned short tws_to_bf16(float value) {
  union { float value; unsigned int bits; } u = {.value = value};
  if ((u.bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((u.bits >> 16) | 0x40u);
  return (unsigned short)((u.bits + 0x7fffu + ((u.bits >> 16) & 1u)) >> 16);
}

/* Convert between IEEE half precision, with 5 bits of exponent and 10 of fraction, and float32. Conversion to half
 * precision rounds to nearest even, and magnitudes above 65519.996 become infinity. */
static inline float tws_from_f16(unsigned short value) {
  unsigned int magnitude = value & 0x7fffu, sign = (unsigned int)(value & 0x8000u) << 16;
  union { unsigned int bits; float value; } u;
  if (magnitude < 0x400u) { /* zero or subnormal: a multiple of 2^-24 */
    u.value = (float)magnitude * 0x1p-24f;
    u.bits |= sign;
    return u.value;
  }
  u.bits = sign | ((magnitude << 13) + (magnitude < 0x7c00u ? 112u << 23 : 224u << 23));
  return u.value;
}
static inline unsigned short tws_to_f16(float value) {
  union { float value; unsigned int bits; } u = {.value = value};
  unsigned int sign = (u.bits >> 16) & 0x8000u, magnitude = u.bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x47800000u) return (unsigned short)(sign | 0x7c00u);
  if (magnitude >= 0x38800000u)
    return (unsigned short)(sign | ((magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  u.bits = magnitude; /* adding 0.5 aligns the last fraction bit with that of subnormal halves */
  u.value += 0.5f;
  return (unsigned short)(sign | (u.bits - 0x3f000000u));
}

#endif
