// RMSNorm of query and key heads, each head separately or all heads of a token's queries (or keys) as one row. A warp
// normalises one row; one thread sums one column of a weight's gradient over tokens, in an order that only the shape
// determines.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { ROWS = BLOCK / WARP };

// The rows to normalise: index 0 are queries and index 1 keys; of each token rows[i] rows of width[i] elements.
struct Heads {
  int64_t tokens, token, first[2], rows[2], width[2];  // token: elements of a token; first: first element of a token's
                                                       // queries and keys
  int64_t stats, normed;                               // stats: statistics of a token; normed: elements of a token that
                                                       // are normalised
  float epsilon, offset;
};

Heads heads_of(const tws_work *work) {
  const int64_t *d = work->d, heads[2] = {d[1], d[2]};
  const bool together = work->flags & TWS_TOGETHER;
  Heads h = {};
  h.tokens = d[0];
  h.token = (d[1] + 2 * d[2]) * d[3];
  h.epsilon = (float)work->f[0];
  h.offset = (float)work->f[1];
  for (int i = 0; i < 2; ++i) {
    h.first[i] = h.normed;
    h.rows[i] = together ? 1 : heads[i];
    h.width[i] = together ? heads[i] * d[3] : d[3];
    h.stats += h.rows[i];
    h.normed += heads[i] * d[3];
  }
  return h;
}

// One row: part 0 is queries, 1 keys, 2 the values of a token, which are copied; `at`: its first element; `stat`: its
// statistic.
struct Row {
  int part;
  int64_t at, stat, width;
};
__device__ int64_t width_of(const Heads &h, int part) {
  return part ? h.width[1] : h.width[0];
}
__device__ Row row_of(const Heads &h, int64_t index) {
  const int64_t token = index / (h.stats + 1), r = index % (h.stats + 1);
  if (r == h.stats) return {2, token * h.token + h.normed, 0, h.token - h.normed};
  // h.first[part] with a variable index would place the array in local memory.
  const int part = r < h.rows[0] ? 0 : 1;
  const int64_t of_part = part ? r - h.rows[0] : r, first = part ? h.first[1] : h.first[0], width = width_of(h, part);
  return {part, token * h.token + first + of_part * width, token * h.stats + r, width};
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    heads_norm(const T *x, const T *q_weight, const T *k_weight, T *y, float *stats, Heads h) {
  const int64_t index = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  const int lane = (int)threadIdx.x % WARP;
  if (index >= h.tokens * (h.stats + 1)) return;
  const Row r = row_of(h, index);
  if (r.part == 2) {
    for (int64_t c = lane; c < r.width; c += WARP) y[r.at + c] = x[r.at + c];
    return;
  }
  const T *weight = r.part ? k_weight : q_weight;
  float squares = 0.0F;
  for (int64_t c = lane; c < r.width; c += WARP) {
    const float v = to_float(x[r.at + c]);
    squares += v * v;
  }
  const float inverse = 1.0F / sqrtf(warp_sum(squares) / (float)r.width + h.epsilon);
  for (int64_t c = lane; c < r.width; c += WARP)
    y[r.at + c] = from_float<T>(to_float(x[r.at + c]) * inverse * (to_float(weight[c]) + h.offset));
  if (lane == 0) stats[r.stat] = inverse;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    heads_norm_grad(const T *dy, const T *x, const T *q_weight, const T *k_weight, const float *stats, T *dx, Heads h) {
  const int64_t index = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  const int lane = (int)threadIdx.x % WARP;
  if (index >= h.tokens * (h.stats + 1)) return;
  const Row r = row_of(h, index);
  if (r.part == 2) {
    for (int64_t c = lane; c < r.width; c += WARP) dx[r.at + c] = dy[r.at + c];
    return;
  }
  const T *weight = r.part ? k_weight : q_weight;
  const float inverse = stats[r.stat];
  float product = 0.0F;
  for (int64_t c = lane; c < r.width; c += WARP)
    product += to_float(dy[r.at + c]) * (to_float(weight[c]) + h.offset) * (to_float(x[r.at + c]) * inverse);
  const float mean = warp_sum(product) / (float)r.width;
  for (int64_t c = lane; c < r.width; c += WARP) {
    const float g = to_float(dy[r.at + c]) * (to_float(weight[c]) + h.offset);
    dx[r.at + c] = from_float<T>((g - to_float(x[r.at + c]) * inverse * mean) * inverse);
  }
}

// A block computes a column of a weight's gradient; its threads' sums are added in a fixed order.
template <typename T, typename G>
__global__ void __launch_bounds__(BLOCK)
    heads_norm_weights(const T *dy, const T *x, const float *stats, G *q, G *k, Heads h, bool adds) {
  __shared__ float sums[BLOCK / WARP];
  const int part = (int64_t)blockIdx.x < h.width[0] ? 0 : 1;
  const int64_t column = part ? blockIdx.x - h.width[0] : blockIdx.x, before = part ? h.rows[0] : 0;
  const int64_t rows = part ? h.rows[1] : h.rows[0], first = (part ? h.first[1] : h.first[0]) + column;
  const int64_t width = width_of(h, part);
  float sum = 0.0F;
  for (int64_t i = threadIdx.x; i < h.tokens * rows; i += BLOCK) {
    const int64_t token = i / rows, head = i % rows, at = token * h.token + first + head * width;
    sum += to_float(dy[at]) * (to_float(x[at]) * stats[token * h.stats + before + head]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0.0F;
  for (int i = 0; i < BLOCK / WARP; ++i) sum += sums[i];
  G *to = (part ? k : q) + column;
  *to = from_float<G>(adds ? to_float(*to) + sum : sum);
}

template <typename T>
tws_code run_heads_norm(const tws_cuda_call *call, tws_error *err) {
  const Heads h = heads_of(call->work);
  if (h.tokens == 0) return TWS_OK;
  LAUNCH(heads_norm<T>, (unsigned)ceil_div(h.tokens * (h.stats + 1), ROWS), BLOCK, 0, call, in<T>(call, 0),
         in<T>(call, 1), in<T>(call, 2), out<T>(call, 3), out<float>(call, 4), h);
  return launched(err);
}

template <typename T, typename G>
tws_code run_heads_norm_grad(const tws_cuda_call *call, tws_error *err) {
  const Heads h = heads_of(call->work);
  const bool adds = call->work->flags & TWS_ACCUMULATE_PARAM;
  LAUNCH((heads_norm_weights<T, G>), (unsigned)(h.width[0] + h.width[1]), BLOCK, 0, call, in<T>(call, 0),
         in<T>(call, 1), in<float>(call, 4), out<G>(call, 6), out<G>(call, 7), h, adds);
  TWS_TRY(launched(err));
  if (h.tokens == 0) return TWS_OK;
  LAUNCH(heads_norm_grad<T>, (unsigned)ceil_div(h.tokens * (h.stats + 1), ROWS), BLOCK, 0, call, in<T>(call, 0),
         in<T>(call, 1), in<T>(call, 2), in<T>(call, 3), in<float>(call, 4), out<T>(call, 5), h);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_heads_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_heads_norm<T>(call, err));
}
tws_code tws_cuda_heads_norm_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, FOR_TYPE(call->dtype[6], G, return (run_heads_norm_grad<T, G>(call, err))));
}
