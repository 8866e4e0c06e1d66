// Quantization of gradient shards to 8 or 4 bits, and sums of quantized shards: models/operators_parts.def.
#include "real/cuda/kernels/common.cuh"

namespace {

struct Sizes {
  int64_t part, nodes, node_ranks, block, blocks, bytes;  // blocks, bytes: of a part
  int bits;
};

__host__ __device__ inline int64_t pieces_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// Returns the largest bits of all threads; non-negative floats are ordered as their bits are.
__device__ inline uint32_t largest_of(uint32_t mine, uint32_t *scratch) {
  scratch[threadIdx.x] = mine;
  __syncthreads();
  for (int width = BLOCK / 2; width > 0; width /= 2) {
    if ((int)threadIdx.x < width && scratch[threadIdx.x + width] > scratch[threadIdx.x])
      scratch[threadIdx.x] = scratch[threadIdx.x + width];
    __syncthreads();
  }
  const uint32_t all = scratch[0];
  __syncthreads();
  return all;
}

// Quantizes x. A block of threads processes one quantization block, in two passes: one for the largest magnitude, and
// one that writes the codes.
template <typename T>
__global__ void quantize_parts(const T *x, uint8_t *codes, float *scales, Sizes d) {
  __shared__ uint32_t scratch[BLOCK];
  const uint32_t infinite = 0x7f800000U;
  const float most = d.bits == 8 ? 127.0f : 7.0f;
  for (int64_t b = blockIdx.x; b < d.nodes * d.node_ranks * d.blocks; b += gridDim.x) {
    const int64_t to = b / d.blocks, from = to % d.nodes * d.node_ranks + to / d.nodes, first = b % d.blocks * d.block;
    const int64_t count = d.part - first < d.block ? d.part - first : d.block;
    const T *v = x + from * d.part + first;
    uint8_t *out = codes + to * d.bytes + first * d.bits / 8;
    uint32_t bits = 0;
    for (int64_t i = threadIdx.x; i < count; i += BLOCK) {
      const uint32_t size = bits_of<uint32_t>(to_float(v[i])) & 0x7fffffffU;
      if (size > bits) bits = size;
    }
    bits = largest_of(bits, scratch);
    const float largest = bits_of<float>(bits);
    const bool there = bits < infinite && largest >= 1e-30f;
    const float factor = there ? most / largest : 0.0f;
    if (threadIdx.x == 0) scales[b] = bits >= infinite ? CUDART_NAN_F : there ? largest / most : 0.0f;
    if (d.bits == 8) {
      for (int64_t i = threadIdx.x; i < count; i += BLOCK)
        out[i] = there ? (uint8_t)(int8_t)(int)rintf(to_float(v[i]) * factor) : 0;
    } else {
      for (int64_t i = threadIdx.x; 2 * i < count; i += BLOCK) {
        const int high = there ? (int)rintf(to_float(v[2 * i]) * factor) : 0;
        const int low = there && 2 * i + 1 < count ? (int)rintf(to_float(v[2 * i + 1]) * factor) : 0;
        out[i] = (uint8_t)((high & 15) << 4 | (low & 15));
      }
    }
  }
}

// ---- dequantization: a thread computes two adjacent elements, since two 4-bit codes share a byte ----

template <typename T>
__global__ void dequantize_parts(const uint8_t *codes, const float *scales, T *y, int64_t parts, int64_t sources,
                                 Sizes d) {
  const int64_t pairs = (d.part + 1) / 2;
  EACH_ITEM(item, parts * pairs) {
    const int64_t p = item / pairs, i = 2 * (item % pairs);
    const bool both = i + 1 < d.part;
    float first = 0, second = 0;
    for (int64_t s = 0; s < sources; ++s) {
      const uint8_t *from = codes + (s * parts + p) * d.bytes;
      const float *scale = scales + (s * parts + p) * d.blocks;
      const float one = scale[i / d.block], other = both ? scale[(i + 1) / d.block] : 0.0f;
      if (d.bits == 8) {
        first += (float)(signed char)from[i] * one;
        if (both) second += (float)(signed char)from[i + 1] * other;
      } else {
        first += (float)(((from[i / 2] >> 4) ^ 8) - 8) * one;
        second += (float)(((from[i / 2] & 15) ^ 8) - 8) * other;
      }
    }
    y[p * d.part + i] = from_float<T>(first);
    if (both) y[p * d.part + i + 1] = from_float<T>(second);
  }
}

Sizes sizes_of(const int64_t *d) {
  return {d[0], d[1], d[2], d[3], pieces_of(d[0], d[3]), pieces_of(d[0] * d[4], 8), (int)d[4]};
}

}  // namespace

tws_code tws_cuda_quantize_parts(const tws_cuda_call *call, tws_error *err) {
  const Sizes d = sizes_of(call->work->d);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH((quantize_parts<T>), grid_for(call, d.nodes * d.node_ranks * d.blocks, 1), BLOCK, 0, call,
                  in<T>(call, 0), out<uint8_t>(call, 1), out<float>(call, 2), d));
  return launched(err);
}

tws_code tws_cuda_dequantize_parts(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  FOR_TYPE(call->dtype[2], T,
           LAUNCH((dequantize_parts<T>), grid_for(call, d[1] * ((d[0] + 1) / 2), BLOCK), BLOCK, 0, call,
                  in<uint8_t>(call, 0), in<float>(call, 1), out<T>(call, 2), d[1], d[2], sizes_of(d)));
  return launched(err);
}
