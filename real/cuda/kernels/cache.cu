// The cache of keys and values: models/operators_cache.def. Copies are element by element; attention has a block for
// each query head of a token, whose threads divide the keys among them.
#include "base/float8.h"
#include "models/attention.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct E4M3 {
  uint8_t code;
};
__device__ inline float to_float(E4M3 x) {
  return tws_from_e4m3(x.code);
}
using ::to_float;

// Write a number of type T to a cache of that type, or in 8 bits.
template <typename T>
__device__ inline void put(T *to, T x) {
  *to = x;
}
template <typename T>
__device__ inline void put(E4M3 *to, T x) {
  to->code = tws_to_e4m3(to_float(x));
}

struct Cache {
  int64_t batch, seq, heads, kv_heads, head, rows, window;
  int64_t row, first;  // heads of a row of qkv, and the number of the first one that is read
  int64_t block;          // rows of a block of a cache in blocks; others: all rows of a sequence
  const int32_t *blocks;  // which blocks of the cache a sequence's rows are in, or null: one for each sequence
};

// The number of the row of a position of a sequence, among rows of all heads of the cache; head: a key head, or
// kv_heads plus a value head.
__device__ inline int64_t row_of(const Cache &s, int64_t b, int64_t head, int64_t position) {
  const int64_t row = position % s.rows, each = (s.rows + s.block - 1) / s.block;
  const int64_t block = s.blocks ? s.blocks[b * each + row / s.block] : b;
  return (block * 2 * s.kv_heads + head) * s.block + row % s.block;
}

Cache cache_of(const tws_cuda_call *call) {
  const tws_work *work = call->work;
  const int64_t *d = work->d;
  const bool paged = (work->flags & TWS_PAGED) != 0;
  const bool reads = work->code == TWS_KERNEL_CACHED_ATTENTION, alone = (work->flags & TWS_Q_KV) != 0;
  const int64_t row = (reads || !alone ? d[2] : 0) + (reads && alone ? 0 : 2 * d[3]);
  const int64_t block = !paged ? d[5] : reads ? (int64_t)work->f[5] : d[6];
  const int32_t *blocks = paged ? in<int32_t>(call, call->count - 1) : nullptr;
  const int64_t window = reads && !paged ? d[7] : 0, first = reads || alone ? 0 : d[2];
  return {d[0], d[1], d[2], d[3], d[4], d[5], window, row, first, block, blocks};
}

template <typename T, typename C>
__global__ void write(Cache s, const T *qkv, const int32_t *starts, const int32_t *lengths, C *cache) {
  const int64_t kv = 2 * s.kv_heads, all = s.batch * s.seq * kv * s.head, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t c = i % s.head, h = i / s.head % kv, t = i / s.head / kv % s.seq, b = i / s.head / kv / s.seq;
    if (t >= lengths[b] || t + s.rows < lengths[b]) continue;  // no token, or one that a later one replaces
    put(&cache[row_of(s, b, h, starts[b] + t) * s.head + c],
        qkv[((b * s.seq + t) * s.row + s.first + h) * s.head + c]);
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

// Keys are processed BLOCK at a time, a thread's score for each; then a thread has elements of the value's sum.
template <typename T, typename C>
__global__ void attend(Cache s, tws_attention_form form, const T *qkv, const C *cache, const int32_t *starts,
                       const int32_t *lengths, const T *biases, T *o) {
  __shared__ float score[BLOCK], room[BLOCK / WARP];
  enum { PARTS = 4 };  // the size of a head is at most PARTS * BLOCK elements
  for (int64_t at = blockIdx.x; at < s.batch * s.seq * s.heads; at += gridDim.x) {
    const int64_t h = at % s.heads, t = at / s.heads % s.seq, b = at / s.heads / s.seq;
    const int64_t kv = h / (s.heads / s.kv_heads);
    const T *query = qkv + ((b * s.seq + t) * s.row + h) * s.head;
    const int64_t position = starts[b] + t, most = s.window > 0 && s.window < s.rows ? s.window : s.rows;
    const int64_t first = position + 1 > most ? position + 1 - most : 0;
    const float slope = tws_attention_slope(&form, h);
    float largest = -CUDART_INF_F, total = 0, sum[PARTS] = {0};
    for (int64_t begin = first; t < lengths[b] && begin <= position; begin += BLOCK) {
      const int64_t key = begin + threadIdx.x;
      float x = -CUDART_INF_F;
      if (key <= position) {
        const C *row = cache + row_of(s, b, kv, key) * s.head;
        x = 0;
        for (int64_t c = 0; c < s.head; ++c) x += to_float(query[c]) * to_float(row[c]);
        x *= form.scale;
        if (form.cap != 0) x = form.cap * tanhf(x / form.cap);
        x -= slope * (float)(position - key);
        if (biases) x += to_float(biases[tws_attention_bucket(&form, key - position) * s.heads + h]);
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
          sum[part] += score[k] * to_float(cache[row_of(s, b, s.kv_heads + kv, begin + k) * s.head + c]);
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
  form.buckets = call->work->flags & TWS_RELATIVE ? (int64_t)f[3] : 0;
  form.max_distance = (int64_t)f[4];
  form.first_head = (int64_t)call->argument[0];
  form.heads = call->argument[1] > 0 ? (int64_t)call->argument[1] : call->work->d[2];
  return form;
}

}  // namespace

tws_code tws_cuda_cache_write(const tws_cuda_call *call, tws_error *err) {
  const Cache s = cache_of(call);
  const unsigned grid = grid_for(call, 2 * s.batch * s.seq * s.kv_heads * s.head, BLOCK);
  if (call->dtype[3] == TWS_E4M3)
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((write<T, E4M3>), grid, BLOCK, 0, call, s, in<T>(call, 0), in<int32_t>(call, 1),
                    in<int32_t>(call, 2), out<E4M3>(call, 3)));
  else
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((write<T, T>), grid, BLOCK, 0, call, s, in<T>(call, 0), in<int32_t>(call, 1), in<int32_t>(call, 2),
                    out<T>(call, 3)));
  return launched(err);
}

tws_code tws_cuda_cached_attention(const tws_cuda_call *call, tws_error *err) {
  const Cache s = cache_of(call);
  if (s.head > 4 * BLOCK)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "cached attention: heads of %lld elements; at most %d",
                    (long long)s.head, 4 * BLOCK);
  const unsigned grid = grid_for(call, s.batch * s.seq * s.heads, 1);
  const bool relative = (call->work->flags & TWS_RELATIVE) != 0;
  if (call->dtype[1] == TWS_E4M3)
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((attend<T, E4M3>), grid, BLOCK, 0, call, s, form_of(call), in<T>(call, 0), in<E4M3>(call, 1),
                    in<int32_t>(call, 2), in<int32_t>(call, 3), relative ? in<T>(call, 5) : nullptr, out<T>(call, 4)));
  else
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((attend<T, T>), grid, BLOCK, 0, call, s, form_of(call), in<T>(call, 0), in<T>(call, 1),
                    in<int32_t>(call, 2), in<int32_t>(call, 3), relative ? in<T>(call, 5) : nullptr, out<T>(call, 4)));
  return launched(err);
}
