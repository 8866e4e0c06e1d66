// Quantized weights of 8 or 4 bits: codes times the scales of their blocks. The kernels are bound by memory bandwidth:
// a thread processes two elements, so that adjacent threads access adjacent memory.
#include "models/quantized.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Levels {
  float of[16];
};

Levels levels_of(int type) {
  if (type == TWS_CODES_INT4) return {TWS_INT4_LEVELS};
  if (type == TWS_CODES_INT4_ASYMMETRIC) return {TWS_UNSIGNED_LEVELS};
  return {TWS_NF4_LEVELS};
}

// Scales of blocks as floats, with a minimum for each block if the code type has one; CodedScales: scales as 8-bit
// codes, with a mean and a step size for each group.
struct Scales {
  const float *of;
  int each;
  __device__ float operator()(int64_t block) const { return of[block * each]; }
  __device__ float minimum(int64_t block) const { return each == 2 ? of[block * 2 + 1] : 0.0F; }
};
struct CodedScales {
  const signed char *codes;
  const float *means;
  int64_t group;
  __device__ float operator()(int64_t block) const {
    const float *mean = means + block / group * 2;
    return mean[0] + (float)codes[block] * mean[1];
  }
  __device__ float minimum(int64_t) const { return 0.0F; }
};

__device__ float byte_of(signed char code, int type) {
  return type == TWS_CODES_INT8 ? (float)code : (float)(unsigned char)code;
}

template <typename T, bool packs, typename S>
__global__ void dequantize(const uint8_t *codes, S scales, T *w, int64_t pairs, int64_t pairs_of_block, int type,
                           int bits, Levels level) {
  __shared__ float levels[16];
  if (threadIdx.x < 16) levels[threadIdx.x] = level.of[threadIdx.x];
  __syncthreads();
  EACH_ITEM(i, pairs) {
    const float scale = scales(i / pairs_of_block), minimum = scales.minimum(i / pairs_of_block);
    float first, second;
    if (bits == 8) {
      const char2 two = packs ? reinterpret_cast<const char2 *>(codes)[i]
                              : char2{(signed char)codes[2 * i], (signed char)codes[2 * i + 1]};
      first = byte_of(two.x, type);
      second = byte_of(two.y, type);
    } else {
      first = levels[codes[i] >> 4];
      second = levels[codes[i] & 15];
    }
    const float both[2] = {first * scale + minimum, second * scale + minimum};
    if (packs) {
      store(w + 2 * i, both);
    } else {
      w[2 * i] = from_float<T>(both[0]);
      w[2 * i + 1] = from_float<T>(both[1]);
    }
  }
}

template <typename T, bool packs, typename S>
tws_code run(const tws_cuda_call *call, const S &scales, T *w, tws_error *err) {
  const Levels level = levels_of((int)call->work->d[2]);
  const int64_t pairs = call->work->d[0] / 2;
  LAUNCH((dequantize<T, packs, S>), grid_for(call, pairs, BLOCK), BLOCK, 0, call, in<uint8_t>(call, 0), scales, w,
         pairs, call->work->d[1] / 2, (int)call->work->d[2], tws_code_bits((int)call->work->d[2]), level);
  return launched(err);
}

// Computes y = x W^T + bias for coded weights W. A block of threads computes one output of one token; its threads
// divide the columns. bits: of a code, tws_code_bits(); each: number of floats for a block of weights,
// tws_code_scales().
template <typename T>
__global__ void coded_linear(const T *x, const uint8_t *codes, const float *scales, const T *bias, T *y, int64_t tokens,
                             int64_t out, int64_t in, int64_t block, int type, int bits, int each, Levels level) {
  __shared__ float room[BLOCK / WARP];
  for (int64_t at = blockIdx.x; at < tokens * out; at += gridDim.x) {
    const int64_t row = at % out, t = at / out;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < in; c += blockDim.x) {
      const int64_t i = row * in + c;
      const int pair = bits == 8 ? 0 : i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
      const float code = bits == 8 ? byte_of((signed char)codes[i], type) : level.of[pair];
      const float minimum = each == 2 ? scales[i / block * 2 + 1] : 0.0F;
      sum += (code * scales[i / block * each] + minimum) * to_float(x[t * in + c]);
    }
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned w = 1; w < blockDim.x / WARP; ++w) sum += room[w];
      y[t * out + row] = from_float<T>(sum + (bias ? to_float(bias[row]) : 0.0F));
    }
    __syncthreads();
  }
}

template <typename S>
tws_code run_to(const tws_cuda_call *call, const S &scales, int to, tws_error *err) {
  FOR_TYPE(call->dtype[to], T,
           return packable<2>(in<uint8_t>(call, 0), 2) && packable<2>(out<T>(call, to), 2)
                      ? run<T, true>(call, scales, out<T>(call, to), err)
                      : run<T, false>(call, scales, out<T>(call, to), err));
}

}  // namespace

tws_code tws_cuda_dequantize(const tws_cuda_call *call, tws_error *err) {
  return run_to(call, Scales{in<float>(call, 1), tws_code_scales((int)call->work->d[2])}, 2, err);
}

tws_code tws_cuda_dequantize_twice(const tws_cuda_call *call, tws_error *err) {
  return run_to(call, CodedScales{in<signed char>(call, 1), in<float>(call, 2), call->work->d[3]}, 3, err);
}

tws_code tws_cuda_coded_linear(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  const bool biased = (call->work->flags & TWS_BIAS) != 0;
  const Levels level = levels_of((int)d[4]);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(coded_linear<T>, grid_for(call, d[0] * d[1], 1), BLOCK, 0, call, in<T>(call, 0), in<uint8_t>(call, 1),
                  in<float>(call, 2), biased ? in<T>(call, 3) : nullptr, out<T>(call, biased ? 4 : 3), d[0], d[1], d[2],
                  d[3], (int)d[4], tws_code_bits((int)d[4]), tws_code_scales((int)d[4]), level));
  return launched(err);
}
