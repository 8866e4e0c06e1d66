// The small cache of multi-head latent attention: models/operators_cache.def. A block writes one token's row, or
// attends with one head of a token, whose query it multiplies by the weight's part for keys first.
#include "base/float8.h"
#include "models/latent.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct E4M3 {
  uint8_t code;
};
__device__ inline float to_float(E4M3 x) {
  return tws_from_e4m3(x.code);
}
using ::to_float;

__device__ inline void put(E4M3 *to, float x) {
  to->code = tws_to_e4m3(x);
}
template <typename T>
__device__ inline void put(T *to, float x) {
  *to = from_float<T>(x);
}

struct LatentCache {
  int64_t batch, seq, heads, nope, rope, value, rank, rows;
  double f[4];
  float gain;
};

__device__ void rotation(const LatentCache &s, int64_t position, int64_t pair, float *cosine, float *sine) {
  double x, y;
  sincos((double)position * tws_latent_frequency(s.f, s.rope, pair), &x, &y);
  *cosine = (float)y, *sine = (float)x;
}

template <typename T, typename C>
__global__ void write_rows(LatentCache s, const T *latent, const T *compressed, const int32_t *starts,
                           const int32_t *lengths, C *cache) {
  const int64_t width = s.rank + s.rope;
  for (int64_t token = blockIdx.x; token < s.batch * s.seq; token += gridDim.x) {
    const int64_t b = token / s.seq, t = token % s.seq, position = starts[b] + t;
    if (t >= lengths[b]) continue;
    C *row = cache + (b * s.rows + position % s.rows) * width;
    for (int64_t i = threadIdx.x; i < s.rank; i += blockDim.x) put(&row[i], to_float(latent[token * s.rank + i]));
    for (int64_t i = threadIdx.x; i < s.rope / 2; i += blockDim.x) {
      const T *key = compressed + token * width + s.rank + 2 * i;
      const float x = to_float(key[0]), y = to_float(key[1]);
      float cosine, sine;
      rotation(s, position, i, &cosine, &sine);
      put(&row[s.rank + 2 * i], x * cosine - y * sine);
      put(&row[s.rank + 2 * i + 1], y * cosine + x * sine);
    }
  }
}

// Shared memory: the absorbed query of rank + rope numbers, the weighted sum of rank numbers, and BLOCK scores.
template <typename T, typename C>
__global__ void attend(LatentCache s, const T *queries, const T *weight, const C *cache, const int32_t *starts,
                       const int32_t *lengths, T *o) {
  BLOCK_MEMORY(room);
  __shared__ float scratch[BLOCK / WARP];
  const int64_t width = s.rank + s.rope, head = s.nope + s.rope, each = s.nope + s.value;
  float *query = reinterpret_cast<float *>(room), *sum = query + width, *score = sum + s.rank;
  for (int64_t at = blockIdx.x; at < s.batch * s.seq * s.heads; at += gridDim.x) {
    const int64_t h = at % s.heads, token = at / s.heads, b = token / s.seq, t = token % s.seq;
    const int64_t position = starts[b] + t, first = position + 1 > s.rows ? position + 1 - s.rows : 0;
    const T *q = queries + at * head, *keys = weight + h * each * s.rank, *values = keys + s.nope * s.rank;
    const C *rows = cache + b * s.rows * width;
    float largest = -CUDART_INF_F, total = 0;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < s.rank; c += blockDim.x) {
      float x = 0;
      for (int64_t i = 0; i < s.nope; ++i) x += to_float(q[i]) * to_float(keys[i * s.rank + c]);
      query[c] = x * s.gain;
      sum[c] = 0;
    }
    for (int64_t i = threadIdx.x; i < s.rope / 2; i += blockDim.x) {
      const float x = to_float(q[s.nope + 2 * i]) * s.gain, y = to_float(q[s.nope + 2 * i + 1]) * s.gain;
      float cosine, sine;
      rotation(s, position, i, &cosine, &sine);
      query[s.rank + 2 * i] = x * cosine - y * sine;
      query[s.rank + 2 * i + 1] = y * cosine + x * sine;
    }
    __syncthreads();
    for (int64_t begin = first; t < lengths[b] && begin <= position; begin += BLOCK) {
      const int64_t key = begin + threadIdx.x, left = position + 1 - begin;
      const int64_t count = left < BLOCK ? left : (int64_t)BLOCK;
      float x = -CUDART_INF_F;
      if (key <= position) {
        x = 0;
        for (int64_t c = 0; c < width; ++c) x += query[c] * to_float(rows[key % s.rows * width + c]);
      }
      const float now = fmaxf(largest, block_max(x, scratch)), kept = total > 0 ? expf(largest - now) : 0.0F;
      const float p = key <= position ? expf(x - now) : 0.0F;
      total = total * kept + block_sum(p, scratch);
      score[threadIdx.x] = p;
      __syncthreads();
      for (int64_t c = threadIdx.x; c < s.rank; c += blockDim.x) {
        float y = sum[c] * kept;
        for (int64_t k = 0; k < count; ++k) y += score[k] * to_float(rows[(begin + k) % s.rows * width + c]);
        sum[c] = y;
      }
      largest = now;
      __syncthreads();
    }
    for (int64_t j = threadIdx.x; j < head; j += blockDim.x) {
      float y = 0;
      for (int64_t c = 0; j < s.value && total != 0 && c < s.rank; ++c) y += sum[c] * to_float(values[j * s.rank + c]);
      o[at * head + j] = from_float<T>(total != 0 ? y / total : 0.0F);
    }
  }
}

template <typename T, typename C>
tws_code start_attention(const tws_cuda_call *call, const LatentCache &s, tws_error *err) {
  const size_t bytes = (size_t)(2 * s.rank + s.rope + BLOCK) * sizeof(float);
  if (bytes > 48u << 10) {
    if (bytes > (size_t)call->shared_bytes)
      return tws_fail(err, TWS_UNSUPPORTED, NULL, "latent attention with rows of %lld elements", (long long)s.rank);
    const tws_code code = allow_shared(attend<T, C>, bytes, err);
    if (code != TWS_OK) return code;
  }
  LAUNCH((attend<T, C>), grid_for(call, s.batch * s.seq * s.heads, 1), BLOCK, bytes, call, s, in<T>(call, 0),
         in<T>(call, 1), in<C>(call, 2), in<int32_t>(call, 3), in<int32_t>(call, 4), out<T>(call, 5));
  return launched(err);
}

template <typename T, typename C>
tws_code start_write(const tws_cuda_call *call, const LatentCache &s, tws_error *err) {
  LAUNCH((write_rows<T, C>), grid_for(call, s.batch * s.seq, 1), BLOCK, 0, call, s, in<T>(call, 0), in<T>(call, 1),
         in<int32_t>(call, 2), in<int32_t>(call, 3), out<C>(call, 4));
  return launched(err);
}

}  // namespace

tws_code tws_cuda_latent_write(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  LatentCache s = {d[0], d[1], 0, 0, d[3], 0, d[2], d[4], {}, 1};
  for (int i = 0; i < 4; ++i) s.f[i] = call->work->f[i];
  tws_code code = TWS_OK;
  if (call->dtype[4] == TWS_E4M3)
    FOR_TYPE(call->dtype[0], T, code = start_write<T, E4M3>(call, s, err));
  else
    FOR_TYPE(call->dtype[0], T, code = start_write<T, T>(call, s, err));
  return code;
}

tws_code tws_cuda_latent_attention(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  LatentCache s = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], {}, (float)call->work->f[4]};
  for (int i = 0; i < 4; ++i) s.f[i] = call->work->f[i];
  tws_code code = TWS_OK;
  if (call->dtype[2] == TWS_E4M3)
    FOR_TYPE(call->dtype[0], T, code = start_attention<T, E4M3>(call, s, err));
  else
    FOR_TYPE(call->dtype[0], T, code = start_attention<T, T>(call, s, err));
  return code;
}
