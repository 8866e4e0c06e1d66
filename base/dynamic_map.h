/* The dynamic map of 8-bit optimizer states (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR
 * 2022), as create_dynamic_map() of bitsandbytes computes it, compiled for hosts and devices.
 *
 * A block of TWS_DYNAMIC_BLOCK adjacent elements has a float32 scale, the largest magnitude in the block, and a code of
 * 8 bits for each element; the element's value is the scale times the value that the map gives the code. The map has
 * seven decades from 1e-6 to 1. A decade ends at a power of ten 10^k, and its values are the centres of equal intervals
 * from 0.1 x 10^k to 10^k: one interval in the first decade, and in each decade twice as many as in the one before it.
 * The map has 0 and 1 as well. This is the signed map, with each value but 1 in both signs; the unsigned map has no
 * negative values, and twice as many intervals in each decade. Codes are numbered in the order of their values. */
#ifndef TWS_BASE_DYNAMIC_MAP_H
#define TWS_BASE_DYNAMIC_MAP_H

#include <stdint.h>

#include "base/philox.h" /* TWS_HOST_AND_DEVICE */

enum { TWS_DYNAMIC_BLOCK = 256, TWS_DYNAMIC_CODES = 256 };
/* Number of the largest magnitude, 1, of each map; the signed map has the code of 0 in its middle. */
enum { TWS_DYNAMIC_SIGNED_MOST = 128, TWS_DYNAMIC_UNSIGNED_MOST = 255, TWS_DYNAMIC_ZERO = 127 };

/* Returns boundary j of n equal intervals from 0.1 to 1. As torch.linspace does it in float32, the lower half is
 * counted from 0.1 and the upper half from 1, with one rounding of product and sum, as processors with fused
 * multiply-adds have it. In float64 both are exact, so that the result is the same with every compiler. */
TWS_HOST_AND_DEVICE static inline float tws_dynamic_boundary(int j, int n) {
  const float low = 0.1F, step = (1.0F - low) / (float)n;
  if (j < (n + 1) / 2) return (float)((double)low + (double)step * j);
  return (float)(1.0 - (double)step * (n - j));
}

/* Returns the magnitude with number k, in ascending order from number 0, which is 0. */
TWS_HOST_AND_DEVICE static inline float tws_dynamic_magnitude(int k, int is_signed) {
  const float decades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1};
  const int at = is_signed ? k : k + 1;
  int n = is_signed ? 1 : 2, decade = 0;
  if (k == 0) return 0;
  if (k == (is_signed ? TWS_DYNAMIC_SIGNED_MOST : TWS_DYNAMIC_UNSIGNED_MOST)) return 1;
  for (; at >= 2 * n; n *= 2) decade++;
  const float sum = (float)((double)tws_dynamic_boundary(at - n, n) + (double)tws_dynamic_boundary(at - n + 1, n));
  return (float)((double)decades[decade] * (double)(sum / 2));
}

/* Returns the value of a code. */
TWS_HOST_AND_DEVICE static inline float tws_dynamic_value(int code, int is_signed) {
  if (!is_signed) return tws_dynamic_magnitude(code, 0);
  return code < TWS_DYNAMIC_ZERO ? -tws_dynamic_magnitude(TWS_DYNAMIC_ZERO - code, 1)
                                 : tws_dynamic_magnitude(code - TWS_DYNAMIC_ZERO, 1);
}

/* Returns the code of a number whose nearest magnitude has number k. A negative number is never stored as 0 but as the
 * smallest negative value, as in bitsandbytes, so that a first moment keeps its sign; -1 is not in the map. */
TWS_HOST_AND_DEVICE static inline int tws_dynamic_signed_code(int k, int negative) {
  const int least = k < 1 ? 1 : k;
  if (!negative) return TWS_DYNAMIC_ZERO + k;
  return TWS_DYNAMIC_ZERO - (least < TWS_DYNAMIC_ZERO ? least : TWS_DYNAMIC_ZERO);
}

/* A map for conversions on the host. Borders are the means of adjacent magnitudes: a number above border[k] is nearer
 * to magnitude k + 1 than to magnitude k. The upper 16 bits of a float32 number select an interval of numbers which has
 * at most one border in it; first[] has the number of the magnitude that is nearest to the interval's beginning. */
enum { TWS_DYNAMIC_FIRST_BITS = 0x3380, TWS_DYNAMIC_INTERVALS = 0x3f80 - TWS_DYNAMIC_FIRST_BITS + 1 };
typedef struct tws_dynamic_map {
  float value[TWS_DYNAMIC_CODES]; /* value of each code */
  float border[TWS_DYNAMIC_CODES];
  uint8_t first[TWS_DYNAMIC_INTERVALS];
} tws_dynamic_map;

/* Returns the signed or the unsigned map, which lasts as long as the process. Threads may call it concurrently. */
const tws_dynamic_map *tws_dynamic_map_of(int is_signed);

/* Returns the number of the magnitude that is nearest to x, which is from 0 to 1. */
static inline int tws_dynamic_nearest(const tws_dynamic_map *map, float x) {
  union {
    float value;
    uint32_t bits;
  } u = {.value = x};
  const uint32_t upper = u.bits >> 16;
  if (upper < TWS_DYNAMIC_FIRST_BITS) return 0; /* x is below 2^-24, the first border above 1e-7 */
  const int k = map->first[upper < 0x3f80 ? upper - TWS_DYNAMIC_FIRST_BITS : TWS_DYNAMIC_INTERVALS - 1];
  return k + (x > map->border[k]);
}

/* Converts between the numbers of a block, at most TWS_DYNAMIC_BLOCK of them, and their codes and scale. */
void tws_dynamic_encode(const float *numbers, int count, int is_signed, uint8_t *codes, float *scale);
void tws_dynamic_decode(const uint8_t *codes, int count, int is_signed, float scale, float *numbers);

#endif
