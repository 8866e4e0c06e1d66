// Slots of experts, for the kernels of EXPERT_LINEAR and its gradients. Only the device knows how many are filled.
#ifndef TWS_REAL_CUDA_KERNELS_EXPERTS_CUH
#define TWS_REAL_CUDA_KERNELS_EXPERTS_CUH

#include "models/routing.h"
#include "real/cuda/kernels/common.cuh"

// Computes EXPERT_LINEAR or its gradient (without that of the bias) by tiles on tensor cores. *done 0: nothing was
// started, since the type, a row size, an alignment or the device does not allow it, or the environment variable
// TWINSPEED_CUDA_PLAIN_EXPERTS is set.
tws_code tws_cuda_expert_tiles(const tws_cuda_call *call, int *done, tws_error *err);

namespace {

struct Experts {
  int64_t sources, experts, capacity, out, in, shared;
  const int32_t *counts;
};

inline Experts experts_of(const tws_cuda_call *call, int counts) {
  const int64_t *d = call->work->d;
  return {d[0], d[1], d[2], d[3], d[4], d[6], in<int32_t>(call, counts)};
}

// Returns the number of slots of an expert that a source fills. block: index of the pair of expert and source.
__device__ inline int64_t filled_of(const Experts &e, int64_t block) {
  const int64_t filled = e.counts[block * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  const int64_t most = e.shared > 1 ? e.shared * e.capacity - tws_slots_before(e.counts, block, e.shared) : e.capacity;
  return filled < 0 || most < 0 ? 0 : filled < most ? filled : most;
}
__device__ inline int64_t first_of(const Experts &e, int64_t block) {
  return tws_first_slot(e.counts, block, e.capacity, e.shared);
}

}  // namespace

#endif
