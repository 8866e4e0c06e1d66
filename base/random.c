#include "base/random.h"

#include <math.h>
#include "base/philox.h"

void tws_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
  tws_philox_block(seed, stream, index, out);
}

/* Returns a number in the open interval (0, 1) from 52 random bits, plus half a unit, so that the result is neither 0
 * nor 1. */
static double open_unit(uint32_t high, uint32_t low) {
  uint64_t bits = ((uint64_t)high << 32 | low) >> 12;
  return ((double)bits + 0.5) * 0x1p-52;
}

double tws_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t word[4];
  tws_philox(seed, stream, index >> 1, word);
  return index & 1 ? open_unit(word[2], word[3]) : open_unit(word[0], word[1]);
}

double tws_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t word[4];
  tws_philox(seed, stream, index >> 1, word);
  double radius = sqrt(-2.0 * log(open_unit(word[0], word[1])));
  double angle = 2.0 * 3.14159265358979323846 * open_unit(word[2], word[3]);
  return radius * (index & 1 ? sin(angle) : cos(angle));
}

/* Mixes the bits by the finalizer of splitmix64 (Steele, Lea, Flood 2014), a fast bijection that is random enough for a
 * shuffle. */
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t tws_random_permute(uint64_t seed, uint64_t n, uint64_t i) {
  if (n < 2) return 0;
  i %= n;
  int bits = 64 - __builtin_clzll(n - 1);
  if (bits < 2) bits = 2;
  int left_bits = bits / 2, right_bits = bits - left_bits;
  uint64_t left_mask = (UINT64_C(1) << left_bits) - 1, right_mask = (UINT64_C(1) << right_bits) - 1;
  uint64_t x = i;
  do { /* the domain is a power of two of at most 2n numbers (4 for tiny n): repeat until the result is below n */
    uint64_t left = x >> right_bits & left_mask, right = x & right_mask;
    for (uint64_t round = 0; round < 8; round += 2) {
      left ^= mix(mix(seed + round * 0x9E3779B97F4A7C15u) ^ right) & left_mask;
      right ^= mix(mix(seed + (round + 1) * 0x9E3779B97F4A7C15u) ^ (left + 1)) & right_mask;
    }
    x = left << right_bits | right;
  } while (x >= n);
  return x;
}
