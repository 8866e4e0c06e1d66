/* Sixteen blocks of Philox (base/philox.h) at once. */
#ifndef TWS_REAL_HOST_KERNELS_PHILOX_H
#define TWS_REAL_HOST_KERNELS_PHILOX_H

#include "base/philox.h"
#include "real/host/kernels/vector.h"

enum { PHILOX_WORDS = 4 * LANES };
typedef uint64_t vw __attribute__((vector_size(64)));

/* Products of the even lanes with m, in 64 bits. */
VECTOR_INLINE vw v_multiply_even(vu x, uint32_t m) {
#if defined(__AVX512F__)
  return (vw)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi32((int)m));
#elif defined(__AVX2__) && defined(__F16C__)
  union {
    vu v;
    __m256i half[2];
    vw w;
  } u = {.v = x};
  for (int i = 0; i < 2; ++i) u.half[i] = _mm256_mul_epu32(u.half[i], _mm256_set1_epi32((int)m));
  return u.w;
#else
  return ((vw)x & 0xffffffffU) * m;
#endif
}

VECTOR_INLINE void v_multiply_wide(vu x, uint32_t m, vu *low, vu *high) {
  const vw even = v_multiply_even(x, m), odd = v_multiply_even((vu)((vw)x >> 32), m);
#ifdef __AVX512F__
  *low = (vu)_mm512_mask_shuffle_epi32((__m512i)even, 0xaaaa, (__m512i)odd, _MM_PERM_CCAA);
  *high = (vu)_mm512_mask_shuffle_epi32((__m512i)odd, 0x5555, (__m512i)even, _MM_PERM_DDBB);
#else
  const vw upper = (vw){0} + 0xffffffff00000000U;
  *low = (vu)((even & ~upper) | odd << 32);
  *high = (vu)(even >> 32 | (odd & upper));
#endif
}

#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* The words of the blocks that are so many behind the first, in order. */
VECTOR_INLINE void v_philox_at(uint64_t seed, uint64_t stream, uint64_t first, vu behind,
                               uint32_t words[PHILOX_WORDS]) {
  const uint32_t begin = (uint32_t)first;
  vu c0 = behind + begin, c2 = (vu){0} + (uint32_t)stream, c3 = (vu){0} + (uint32_t)(stream >> 32);
  vu c1 = (uint32_t)(first >> 32) - (vu)(c0 < begin); /* a carry is -1 */
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < TWS_PHILOX_ROUNDS; round++) {
    vu a, b, a_high, b_high;
    v_multiply_wide(c0, TWS_PHILOX_MULTIPLIER_0, &a, &a_high);
    v_multiply_wide(c2, TWS_PHILOX_MULTIPLIER_1, &b, &b_high);
    c0 = b_high ^ c1 ^ key0;
    c1 = b;
    c2 = a_high ^ c3 ^ key1;
    c3 = a;
    key0 += TWS_PHILOX_WEYL_0;
    key1 += TWS_PHILOX_WEYL_1;
  }
  const vu t0 = ZIP_LOW(c0, c2), t1 = ZIP_HIGH(c0, c2), u0 = ZIP_LOW(c1, c3), u1 = ZIP_HIGH(c1, c3);
  const vu block[4] = {ZIP_LOW(t0, u0), ZIP_HIGH(t0, u0), ZIP_LOW(t1, u1), ZIP_HIGH(t1, u1)};
  memcpy(words, block, sizeof block);
}

/* The words of blocks first ... first + 15, in order. */
VECTOR_INLINE void v_philox(uint64_t seed, uint64_t stream, uint64_t first, uint32_t words[PHILOX_WORDS]) {
  v_philox_at(seed, stream, first, (vu){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, words);
}

#undef ZIP_LOW
#undef ZIP_HIGH

#endif
