/* Philox (base/philox.h), sixteen blocks at once. A word of the state is the lower half of a 64-bit lane: 32 x
 * 32-bit products need no more than that, and leave the next word in the upper half, where it is read. Other
 * contents of the upper half are ignored. */
#ifndef TWS_REAL_HOST_KERNELS_PHILOX_H
#define TWS_REAL_HOST_KERNELS_PHILOX_H

#include "base/philox.h"
#include "real/host/kernels/vector.h"

enum { PHILOX_BLOCKS = 16, PHILOX_WORDS = 4 * PHILOX_BLOCKS };
#if defined(__AVX512F__)
enum { PHILOX_LANES = 8 };
#elif defined(__AVX2__)
enum { PHILOX_LANES = 4 };
#else
enum { PHILOX_LANES = 2 };
#endif
typedef uint64_t vw __attribute__((vector_size(8 * PHILOX_LANES)));
typedef vw vw_unaligned __attribute__((aligned(4), may_alias));

VECTOR_INLINE vw v_multiply_low(vw x, uint32_t m) {
#if defined(__AVX512F__)
  return (vw)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((int64_t)m));
#elif defined(__AVX2__)
  return (vw)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((int64_t)m));
#else
  return (x & 0xffffffffU) * m;
#endif
}

/* Order of the blocks in the lanes, such that interleaving pairs of 64 bits from two registers yields the blocks in
 * sequence. */
#if defined(__AVX512F__)
static const vw PHILOX_ORDER = {0, 4, 1, 5, 2, 6, 3, 7};
#define FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define SECOND_PAIRS(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#elif defined(__AVX2__)
static const vw PHILOX_ORDER = {0, 2, 1, 3};
#define FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define SECOND_PAIRS(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#else
static const vw PHILOX_ORDER = {0, 1};
#define FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 2)
#define SECOND_PAIRS(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

/* Values that all blocks of a stream share: the keys of each round, those of the first round combined with the
 * stream. */
typedef struct philox_stream {
  uint64_t key[TWS_PHILOX_ROUNDS][2], c1;
} philox_stream;
VECTOR_INLINE philox_stream philox_stream_of(uint64_t seed, uint64_t stream) {
  philox_stream p;
  const uint64_t product = (uint64_t)TWS_PHILOX_MULTIPLIER_1 * (uint32_t)stream;
  uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int round = 0; round < TWS_PHILOX_ROUNDS; round++) {
    for (int k = 0; k < 2; k++) p.key[round][k] = key[k];
    key[0] += TWS_PHILOX_WEYL_0;
    key[1] += TWS_PHILOX_WEYL_1;
  }
  p.key[0][0] ^= product >> 32;
  p.key[0][1] ^= stream >> 32;
  p.c1 = product;
  return p;
}

/* Computes the random words of the blocks in `index`, in order. */
VECTOR_INLINE void v_philox_block(const philox_stream *p, vw index, uint32_t words[4 * PHILOX_LANES]) {
  const vw low = (vw){0} + 0xffffffffU;
  vw c3 = v_multiply_low(index, TWS_PHILOX_MULTIPLIER_0), c0 = (index >> 32) ^ p->key[0][0];
  vw c2 = (c3 >> 32) ^ p->key[0][1], c1 = (vw){0} + p->c1;
#pragma GCC unroll 10
  for (int round = 1; round < TWS_PHILOX_ROUNDS; round++) {
    const vw a = v_multiply_low(c0, TWS_PHILOX_MULTIPLIER_0), b = v_multiply_low(c2, TWS_PHILOX_MULTIPLIER_1);
    c0 = (b >> 32) ^ (c1 ^ p->key[round][0]);
    c2 = (a >> 32) ^ (c3 ^ p->key[round][1]);
    c1 = b;
    c3 = a;
  }
  const vw ahead = (c0 & low) | c1 << 32, behind = (c2 & low) | c3 << 32;
  *(vw_unaligned *)words = FIRST_PAIRS(ahead, behind);
  *(vw_unaligned *)(words + 2 * PHILOX_LANES) = SECOND_PAIRS(ahead, behind);
}

/* Computes the words of sixteen blocks, in order: first, first + 1, ...; with bits > 0, of 2^bits groups of 16 / 2^bits
 * consecutive blocks each, whose first blocks differ by `apart`. */
VECTOR_INLINE void v_philox_at(const philox_stream *p, uint64_t first, int bits, uint32_t apart,
                               uint32_t words[PHILOX_WORDS]) {
#pragma GCC unroll 8
  for (int i = 0; i < PHILOX_BLOCKS; i += PHILOX_LANES) {
    vw behind = PHILOX_ORDER + (uint64_t)i;
    if (bits) behind = (behind & (uint64_t)((PHILOX_BLOCKS >> bits) - 1)) + v_multiply_low(behind >> (4 - bits), apart);
    v_philox_block(p, behind + first, words + 4 * i);
  }
}

/* Computes the words of blocks first ... first + 15, in order. */
VECTOR_INLINE void v_philox(uint64_t seed, uint64_t stream, uint64_t first, uint32_t words[PHILOX_WORDS]) {
  const philox_stream p = philox_stream_of(seed, stream);
  v_philox_at(&p, first, 0, 0, words);
}

#undef FIRST_PAIRS
#undef SECOND_PAIRS

#endif
