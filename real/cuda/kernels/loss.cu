// Softmax cross-entropy over a vocabulary, whole or in the columns of several ranks; logits become their own gradient.
// A block has a row: one pass for maximum and sum, one that reads the logits again (mostly from the cache) and writes
// the gradient. With several ranks the statistics of all of them come between the two.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { LOSS_BLOCK = 512 };

struct Softmax {
  float largest, sum;
};

// Sums count from their own maximum; -infinity with sum 0 is the empty row. NaN stays in the sum.
__device__ Softmax join(Softmax a, Softmax b) {
  Softmax r;
  r.largest = fmaxf(a.largest, b.largest);
  const float from_a = a.largest == r.largest ? 1.0F : expf(a.largest - r.largest);
  const float from_b = b.largest == r.largest ? 1.0F : expf(b.largest - r.largest);
  r.sum = a.sum * from_a + b.sum * from_b;
  return r;
}
__device__ void take(Softmax *s, float x) {
  if (x > s->largest) {
    s->sum = s->sum * expf(s->largest - x) + (x == CUDART_INF_F ? CUDART_NAN_F : 1.0F);
    s->largest = x;
  } else if (x != -CUDART_INF_F) {
    s->sum += expf(x - s->largest);
  }
}

__device__ Softmax block_softmax(Softmax s, Softmax *room) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) {
    Softmax other;
    other.largest = __shfl_xor_sync(0xffffffffU, s.largest, d);
    other.sum = __shfl_xor_sync(0xffffffffU, s.sum, d);
    // Both lanes join in the same order, so that all agree on every bit.
    s = (threadIdx.x & (unsigned)d) ? join(other, s) : join(s, other);
  }
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = s;
  __syncthreads();
  Softmax all = room[0];
  for (int i = 1; i < (int)blockDim.x / WARP; ++i) all = join(all, room[i]);
  return all;
}

template <typename T, int V>
__device__ Softmax row_softmax(const T *row, int64_t columns, Softmax *room) {
  Softmax s = {-CUDART_INF_F, 0.0F};
  const int64_t packs = columns / V;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float x[V];
    load<V>(row + i * V, x);
#pragma unroll
    for (int j = 0; j < V; ++j) take(&s, x[j]);
  }
  for (int64_t i = packs * V + threadIdx.x; i < columns; i += blockDim.x) take(&s, to_float(row[i]));
  return block_softmax(s, room);
}

template <typename T, int V>
__device__ void clear_row(T *row, int64_t padded) {
  const float zeros[V] = {};
  for (int64_t i = threadIdx.x; i < padded / V; i += blockDim.x) store<V>(row + i * V, zeros);
  for (int64_t i = padded / V * V + threadIdx.x; i < padded; i += blockDim.x) row[i] = from_float<T>(0.0F);
}

// Logits become scale (softmax - onehot). target: a column, or one that there is not; `logit` is its logit. valid 0:
// NaN instead.
template <typename T, int V>
__device__ void gradient_row(T *row, int64_t columns, int64_t padded, int64_t target, float logit, Softmax s,
                             float scale, bool valid) {
  const int64_t packs = columns / V;
  const float weight = valid ? scale / s.sum : CUDART_NAN_F;
  const float at_target = scale * (expf(logit - s.largest) / s.sum - 1.0F);
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float x[V];
    load<V>(row + i * V, x);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const bool hit = i * V + j == target;
      x[j] = hit ? at_target : expf(x[j] - s.largest) * weight;
    }
    store<V>(row + i * V, x);
  }
  for (int64_t i = packs * V + threadIdx.x; i < columns; i += blockDim.x) {
    row[i] = from_float<T>(i == target ? at_target : expf(to_float(row[i]) - s.largest) * weight);
  }
  for (int64_t i = columns + threadIdx.x; i < padded; i += blockDim.x) row[i] = from_float<T>(0.0F);
}

// What a token's gradient is multiplied with.
__device__ float weight_of(double weight, const float *hyper) {
  return (float)(hyper ? weight * (double)hyper[TWS_HYPER_SCALE] : weight);
}

__device__ double loss_of(Softmax s, float logit) {
  return log((double)s.sum) + ((double)s.largest - (double)logit);
}

template <typename T, int V>
__global__ void cross_entropy(T *logits, const int32_t *targets, double *losses, int64_t columns, int64_t padded,
                              double weight, const float *hyper) {
  __shared__ Softmax room[LOSS_BLOCK / WARP];
  const int64_t token = blockIdx.x;
  T *row = logits + token * padded;
  const int32_t target = targets[token];
  if (target == -1) {
    clear_row<T, V>(row, padded);
    if (threadIdx.x == 0) losses[token] = 0.0;
    return;
  }
  const bool known = target >= 0 && target < columns;  // else the data are wrong: nothing but NaN comes out
  const float logit = known ? to_float(row[target]) : CUDART_NAN_F;  // before any thread overwrites it
  const Softmax s = row_softmax<T, V>(row, columns, room);
  gradient_row<T, V>(row, columns, padded, target, logit, s, weight_of(weight, hyper), known);
  if (threadIdx.x == 0) losses[token] = loss_of(s, logit);
}

// stats[token] = maximum, sum of exp(logit - maximum), logit of the target when it is among the columns.
template <typename T, int V>
__global__ void vocabulary_stats(const T *logits, const int32_t *targets, float *stats, int64_t columns, int64_t padded,
                                 int64_t first) {
  __shared__ Softmax room[LOSS_BLOCK / WARP];
  const int64_t token = blockIdx.x, target = targets[token] - first;
  const T *row = logits + token * padded;
  const Softmax s = row_softmax<T, V>(row, columns, room);
  if (threadIdx.x != 0) return;
  const bool here = targets[token] >= 0 && target >= 0 && target < columns;
  stats[token * 3] = s.largest;
  stats[token * 3 + 1] = s.sum;
  stats[token * 3 + 2] = here ? to_float(row[target]) : 0.0F;
}

// All threads and all ranks join the ranks' statistics in the order of ranks, so that all agree on every bit.
template <typename T, int V>
__global__ void vocabulary_loss(T *logits, const int32_t *targets, const float *stats, double *losses, int64_t tokens,
                                int64_t columns, int64_t padded, int ranks, int64_t first, double weight,
                                const float *hyper) {
  const int64_t token = blockIdx.x;
  T *row = logits + token * padded;
  const int32_t target = targets[token];
  if (target == -1) {
    clear_row<T, V>(row, padded);
    if (threadIdx.x == 0) losses[token] = 0.0;
    return;
  }
  Softmax s = {-CUDART_INF_F, 0.0F};
  float logit = 0.0F;
  for (int r = 0; r < ranks; ++r) {
    const float *part = stats + ((int64_t)r * tokens + token) * 3;
    Softmax other;
    other.largest = part[0];
    other.sum = part[1];
    s = join(s, other);
    logit += part[2];
  }
  const bool known = target >= 0;
  gradient_row<T, V>(row, columns, padded, target - first, logit, s, weight_of(weight, hyper), known);
  if (threadIdx.x == 0) losses[token] = known ? loss_of(s, logit) : (double)CUDART_NAN_F;
}

// metrics[0] += weight x sum of losses, metrics[1] += weight x number of ignored targets.
__global__ void add_losses(const double *losses, const int32_t *targets, int64_t tokens, double weight,
                           double *metrics) {
  __shared__ double room[LOSS_BLOCK / WARP];
  double sum = 0, ignored = 0;
  for (int64_t i = threadIdx.x; i < tokens; i += blockDim.x) {
    sum += losses[i];
    ignored += targets[i] == -1;
  }
  sum = block_sum(sum, room);
  ignored = block_sum(ignored, room);
  if (threadIdx.x == 0) {
    metrics[0] += weight * sum;
    metrics[1] += weight * ignored;
  }
}

// ---- launching ----

tws_code check(const tws_cuda_call *call, int64_t fewest, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[1] < fewest || d[2] < d[1])
    return tws_fail(err, TWS_INVALID, NULL, "cross entropy over %lld columns in rows of %lld", (long long)d[1],
                    (long long)d[2]);
  if ((uint64_t)d[0] * sizeof(double) > call->scratch_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch",
                    "the losses of %lld tokens do not fit the scratch memory", (long long)d[0]);
  return TWS_OK;
}

// The hyperparameters, where a loss scale is asked for.
const float *scale_of(const tws_cuda_call *call, int operand) {
  return call->work->flags & TWS_SCALED ? in<float>(call, operand) : nullptr;
}

tws_code finish(const tws_cuda_call *call, const double *losses, double *metrics, tws_error *err) {
  LAUNCH(add_losses, 1, LOSS_BLOCK, 0, call, losses, in<int32_t>(call, 1), call->work->d[0], call->work->f[1], metrics);
  return launched(err);
}

template <typename T>
tws_code run_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d;
  double *losses = static_cast<double *>(call->scratch);
  T *logits = out<T>(call, 0);
  const float *hyper = scale_of(call, 3);
  if (packable<N>(logits, d[2]))
    LAUNCH((cross_entropy<T, N>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1), losses, d[1], d[2],
           call->work->f[0], hyper);
  else
    LAUNCH((cross_entropy<T, 1>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1), losses, d[1], d[2],
           call->work->f[0], hyper);
  TWS_TRY(launched(err));
  return finish(call, losses, out<double>(call, 2), err);
}

template <typename T>
tws_code run_stats(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d, first = (int64_t)call->work->f[0];
  const T *logits = in<T>(call, 0);
  if (packable<N>(logits, d[2]))
    LAUNCH((vocabulary_stats<T, N>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           out<float>(call, 2), d[1], d[2], first);
  else
    LAUNCH((vocabulary_stats<T, 1>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           out<float>(call, 2), d[1], d[2], first);
  return launched(err);
}

template <typename T>
tws_code run_vocabulary_loss(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d, first = (int64_t)call->work->f[2];
  double *losses = static_cast<double *>(call->scratch);
  T *logits = out<T>(call, 0);
  const float *hyper = scale_of(call, 4);
  if (packable<N>(logits, d[2]))
    LAUNCH((vocabulary_loss<T, N>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           in<float>(call, 2), losses, d[0], d[1], d[2], (int)d[3], first, call->work->f[0], hyper);
  else
    LAUNCH((vocabulary_loss<T, 1>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           in<float>(call, 2), losses, d[0], d[1], d[2], (int)d[3], first, call->work->f[0], hyper);
  TWS_TRY(launched(err));
  return finish(call, losses, out<double>(call, 3), err);
}

}  // namespace

tws_code tws_cuda_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 1, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return run_cross_entropy<T>(call, err));
}
tws_code tws_cuda_vocabulary_stats(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 0, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return run_stats<T>(call, err));
}
tws_code tws_cuda_vocabulary_loss(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 0, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return run_vocabulary_loss<T>(call, err));
}
