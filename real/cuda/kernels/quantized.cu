// Weights in few bits: codes times the scales of their blocks. Bound by memory: a thread has two elements, so that
// neighbours read and write what lies together.
#include "models/quantized.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Levels {
  float of[16];
};

template <typename T, bool packs>
__global__ void dequantize(const uint8_t *codes, const float *scales, T *w, int64_t pairs, int64_t pairs_of_block,
                           int bits, Levels level) {
  __shared__ float levels[16];
  if (threadIdx.x < 16) levels[threadIdx.x] = level.of[threadIdx.x];
  __syncthreads();
  EACH_ITEM(i, pairs) {
    const float scale = scales[i / pairs_of_block];
    float first, second;
    if (bits == 8) {
      const char2 two = packs ? reinterpret_cast<const char2 *>(codes)[i]
                              : char2{(signed char)codes[2 * i], (signed char)codes[2 * i + 1]};
      first = (float)two.x;
      second = (float)two.y;
    } else {
      first = levels[codes[i] >> 4];
      second = levels[codes[i] & 15];
    }
    const float both[2] = {first * scale, second * scale};
    if (packs) {
      store(w + 2 * i, both);
    } else {
      w[2 * i] = from_float<T>(both[0]);
      w[2 * i + 1] = from_float<T>(both[1]);
    }
  }
}

template <typename T, bool packs>
tws_code run(const tws_cuda_call *call, const Levels &level, tws_error *err) {
  const int64_t pairs = call->work->d[0] / 2;
  LAUNCH((dequantize<T, packs>), grid_for(call, pairs, BLOCK), BLOCK, 0, call, in<uint8_t>(call, 0), in<float>(call, 1),
         out<T>(call, 2), pairs, call->work->d[1] / 2, (int)call->work->d[2], level);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_dequantize(const tws_cuda_call *call, tws_error *err) {
  const Levels level = {TWS_NF4_LEVELS};
  FOR_TYPE(call->dtype[2], T,
           return packable<2>(in<uint8_t>(call, 0), 2) && packable<2>(out<T>(call, 2), 2)
                      ? run<T, true>(call, level, err)
                      : run<T, false>(call, level, err));
}
