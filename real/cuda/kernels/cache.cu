// Kernels for the cache of keys and values: models/operators_cache.def. Elements are copied one by one; attention uses
// one block for each query head of a token, and the block's threads divide the keys among them.
#include "models/attention.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Cache {
  int64_t batch, seq, heads, kv_heads, head, rows, window;
};

Cache cache_of(const tws_work *work) {
  const int64_t *d = work->d;
  return {d[0], d[1], d[2], d[3], d[4], d[5], work->code == TWS_KERNEL_CACHED_ATTENTION ? d[7] : 0};
}

template <typename T>
__global__ void write(Cache s, const T *qkv, const int32_t *starts, const int32_t *lengths, T *cache) {
  const int64_t kv = 2 * s.kv_heads, all = s.batch * s.seq * kv * s.head, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t c = i % s.head, h = i / s.head % kv, t = i / s.head / kv % s.seq, b = i / s.head / kv / s.seq;
    if (t >= lengths[b] || t + s.rows < lengths[b]) continue;  // skips positions after the sequence, and tokens whose
                                                               // cache row a later token overwrites
    cache[((b * kv + h) * s.rows + (starts[b] + t) % s.rows) * s.head + c] =
        qkv[((b * s.seq + t) * (s.heads + kv) + s.heads + h) * s.head + c];
  }
}

// Returns the sum of x over the threads of a block; `room` has one element for each warp.
__device__ float block_sum(float x, float *room) {
  for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  __syncthreads();
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / WARP; ++w) sum += room[w];
  return sum;
}
__device__ float block_largest(float x, float *room) {
  for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  __syncthreads();
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
  __syncthreads();
  float most = room[0];
  for (unsigned w = 1; w < blockDim.x / WARP; ++w) most = fmaxf(most, room[w]);
  return most;
}

// Computes attention of new tokens to the cache. Keys are processed BLOCK at a time: each thread computes the score of
// one key, and then sums some elements of the weighted values.
template <typename T>
__global__ void attend(Cache s, tws_attention_form form, const T *qkv, const T *cache, const int32_t *starts,
                       const int32_t *lengths, T *o) {
  __shared__ float score[BLOCK], room[BLOCK / WARP];
  enum { PARTS = 4 };  // the size of a head is at most PARTS * BLOCK elements
  for (int64_t at = blockIdx.x; at < s.batch * s.seq * s.heads; at += gridDim.x) {
    const int64_t h = at % s.heads, t = at / s.heads % s.seq, b = at / s.heads / s.seq;
    const int64_t kv = h / (s.heads / s.kv_heads);
    const T *query = qkv + ((b * s.seq + t) * (s.heads + 2 * s.kv_heads) + h) * s.head;
    const T *keys = cache + (b * 2 * s.kv_heads + kv) * s.rows * s.head, *values = keys + s.kv_heads * s.rows * s.head;
    const int64_t position = starts[b] + t, most = s.window > 0 && s.window < s.rows ? s.window : s.rows;
    const int64_t first = position + 1 > most ? position + 1 - most : 0;
    const float slope = tws_attention_slope(&form, h);
    float largest = -CUDART_INF_F, total = 0, sum[PARTS] = {0};
    for (int64_t begin = first; t < lengths[b] && begin <= position; begin += BLOCK) {
      const int64_t key = begin + threadIdx.x;
      float x = -CUDART_INF_F;
      if (key <= position) {
        x = 0;
        for (int64_t c = 0; c < s.head; ++c) x += to_float(query[c]) * to_float(keys[key % s.rows * s.head + c]);
        x *= form.scale;
        if (form.cap != 0) x = form.cap * tanhf(x / form.cap);
        x -= slope * (float)(position - key);
      }
      const float now = fmaxf(largest, block_largest(x, room)), kept = total > 0 ? expf(largest - now) : 0.0F;
      const float p = key <= position ? expf(x - now) : 0.0F;
      total = total * kept + block_sum(p, room);
      score[threadIdx.x] = p;
      __syncthreads();
      const int64_t left = position + 1 - begin, count = left < BLOCK ? left : (int64_t)BLOCK;
      for (int part = 0; part < PARTS; ++part) {
        const int64_t c = part * BLOCK + threadIdx.x;
        if (c >= s.head) break;
        sum[part] *= kept;
        for (int64_t k = 0; k < count; ++k)
          sum[part] += score[k] * to_float(values[(begin + k) % s.rows * s.head + c]);
      }
      largest = now;
      __syncthreads();
    }
    for (int part = 0; part < PARTS; ++part) {
      const int64_t c = part * BLOCK + threadIdx.x;
      if (c < s.head) o[at * s.head + c] = from_float<T>(total == 0 ? 0.0F : sum[part] / total);
    }
  }
}

tws_attention_form form_of(const tws_cuda_call *call) {
  const double *f = call->work->f;
  tws_attention_form form = {};
  form.alibi = (call->work->flags & TWS_ALIBI) != 0;
  form.scale = f[0] != 0 ? (float)f[0] : 1.0F / sqrtf((float)call->work->d[4]);
  form.cap = (float)f[1];
  form.slope = f[2] != 0 ? (float)f[2] : 1;
  form.first_head = (int64_t)call->argument[0];
  form.heads = call->argument[1] > 0 ? (int64_t)call->argument[1] : call->work->d[2];
  return form;
}

}  // namespace

tws_code tws_cuda_cache_write(const tws_cuda_call *call, tws_error *err) {
  const Cache s = cache_of(call->work);
  if (call->dtype[3] != call->dtype[0]) return tws_fail(err, TWS_UNSUPPORTED, NULL, "a cache in 8 bits");
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(write<T>, grid_for(call, 2 * s.batch * s.seq * s.kv_heads * s.head, BLOCK), BLOCK, 0, call, s,
                  in<T>(call, 0), in<int32_t>(call, 1), in<int32_t>(call, 2), out<T>(call, 3)));
  return launched(err);
}

tws_code tws_cuda_cached_attention(const tws_cuda_call *call, tws_error *err) {
  const Cache s = cache_of(call->work);
  if (call->dtype[1] != call->dtype[0]) return tws_fail(err, TWS_UNSUPPORTED, NULL, "a cache in 8 bits");
  if (s.head > 4 * BLOCK)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "cached attention: heads of %lld elements; at most %d",
                    (long long)s.head, 4 * BLOCK);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(attend<T>, grid_for(call, s.batch * s.seq * s.heads, 1), BLOCK, 0, call, s, form_of(call),
                  in<T>(call, 0), in<T>(call, 1), in<int32_t>(call, 2), in<int32_t>(call, 3), out<T>(call, 4)));
  return launched(err);
}
