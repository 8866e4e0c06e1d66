/* One block of Philox 4x32-10 (base/random.h), compiled for hosts and devices, so that both generate the same bits. */
#ifndef TWS_BASE_PHILOX_H
#define TWS_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define TWS_HOST_AND_DEVICE __host__ __device__
#else
#define TWS_HOST_AND_DEVICE
#endif

/* Constants of Salmon et al. 2011, section 5 and table 2. */
enum { TWS_PHILOX_ROUNDS = 10 };
#define TWS_PHILOX_MULTIPLIER_0 0xD2511F53u
#define TWS_PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define TWS_PHILOX_WEYL_0 0x9E3779B9u
#define TWS_PHILOX_WEYL_1 0xBB67AE85u

TWS_HOST_AND_DEVICE static inline void tws_philox_block(uint64_t seed, uint64_t stream, uint64_t index,
                                                        uint32_t out[4]) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < TWS_PHILOX_ROUNDS; round++) {
    uint64_t a = (uint64_t)TWS_PHILOX_MULTIPLIER_0 * c0, b = (uint64_t)TWS_PHILOX_MULTIPLIER_1 * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)a;
    key0 += TWS_PHILOX_WEYL_0;
    key1 += TWS_PHILOX_WEYL_1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* Stochastic rounding to bfloat16 adds 16 random bits to the bits of the float32 and cuts off the low 16 bits of the
 * sum, so that the expected value of the result is the float32. Element e of the parameters uses half-word number e % 8
 * (low halves of the words first) of block e / 8 of the stream of (step, what): `what` is 0 for the weight, 1 for its
 * first moment and 2 for its second moment; `step` is the step's number as the bits of a float. Bit 63 distinguishes
 * these streams from those of initial weights. */
enum { TWS_ROUNDING_GROUP = 8 }; /* elements that share one block of random bits */
TWS_HOST_AND_DEVICE static inline uint64_t tws_rounding_stream(uint32_t step, int what) {
  return (uint64_t)1 << 63 | (uint64_t)step << 2 | (uint64_t)what;
}

#endif
