/* Element types and memory tiers that models, plans and backends share. */
#ifndef TWS_BASE_DTYPE_H
#define TWS_BASE_DTYPE_H

#include <stddef.h>

/* E4M3 and E5M2 are described in base/float8.h, LOW16 below. */
#define TWS_DTYPES(X) \
  X(F32, 4, "fp32")   \
  X(BF16, 2, "bf16")  \
  X(F16, 2, "fp16") X(F64, 8, "fp64") X(I32, 4, "int32") X(U8, 1, "uint8") X(E4M3, 1, "e4m3") X(E5M2, 1, "e5m2") \
  X(LOW16, 2, "low16")
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

/* A float32 number in two halves of 16 bits: the bfloat16 to which it rounds, and its own lower 16 bits, which have the
 * type LOW16. Rounding to nearest even adds 1 to the number's upper half if the lower bits are more than 0x8000, or are
 * 0x8000 and the upper half is odd. The lower bits as a signed integer are therefore the difference between the bits of
 * the number and those of the bfloat16, and tws_join_halves() adds them. The exception is a number midway between two
 * bfloat16 numbers of which the one nearer to 0 has an even upper half (one in 2^17 of all numbers): its difference,
 * +0x8000, has no signed 16-bit code, and the next float32 number towards 0, which rounds to the same bfloat16, takes
 * its place. tws_low_half() returns the lower bits of the number or of that neighbour. NaN stays NaN. */
static inline unsigned short tws_low_half(float value) {
  union { float value; unsigned int bits; } u = {.value = value};
  return (unsigned short)((u.bits & 0x1ffffu) == 0x8000u ? 0x7fffu : u.bits & 0xffffu);
}
static inline float tws_join_halves(unsigned short bf16, unsigned short low) {
  union { unsigned int bits; float value; } u = {.bits = ((unsigned int)bf16 << 16) + ((low ^ 0x8000u) - 0x8000u)};
  return u.value;
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
