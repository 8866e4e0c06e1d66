// Softmax cross-entropy over a vocabulary; logits become their own gradient. A block has a row: one pass for maximum
// and sum, one that reads the logits again (mostly from the cache) and writes the gradient.
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
__global__ void cross_entropy(T *logits, const int32_t *targets, double *losses, int64_t columns, int64_t padded,
                              float scale) {
  __shared__ Softmax room[LOSS_BLOCK / WARP];
  const int64_t token = blockIdx.x;
  T *row = logits + token * padded;
  const int32_t target = targets[token];
  const int64_t packs = columns / V, tail = packs * V;
  const float zeros[V] = {};
  if (target == -1) {
    for (int64_t i = threadIdx.x; i < padded / V; i += blockDim.x) store<V>(row + i * V, zeros);
    for (int64_t i = padded / V * V + threadIdx.x; i < padded; i += blockDim.x) row[i] = from_float<T>(0.0F);
    if (threadIdx.x == 0) losses[token] = 0.0;
    return;
  }
  Softmax s = {-CUDART_INF_F, 0.0F};
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float x[V];
    load<V>(row + i * V, x);
#pragma unroll
    for (int j = 0; j < V; ++j) take(&s, x[j]);
  }
  for (int64_t i = tail + threadIdx.x; i < columns; i += blockDim.x) take(&s, to_float(row[i]));
  const bool known = target >= 0 && target < columns;  // else the data are wrong: nothing but NaN comes out
  const float logit = known ? to_float(row[target]) : CUDART_NAN_F;  // before any thread overwrites it
  s = block_softmax(s, room);
  const float weight = known ? scale / s.sum : CUDART_NAN_F;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float x[V];
    load<V>(row + i * V, x);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const bool hit = i * V + j == target;
      x[j] = hit ? scale * (expf(x[j] - s.largest) / s.sum - 1.0F) : expf(x[j] - s.largest) * weight;
    }
    store<V>(row + i * V, x);
  }
  for (int64_t i = tail + threadIdx.x; i < columns; i += blockDim.x) {
    const float p = expf(to_float(row[i]) - s.largest);
    row[i] = from_float<T>(i == target ? scale * (p / s.sum - 1.0F) : p * weight);
  }
  for (int64_t i = columns + threadIdx.x; i < padded; i += blockDim.x) row[i] = from_float<T>(0.0F);
  if (threadIdx.x == 0) losses[token] = log((double)s.sum) + ((double)s.largest - (double)logit);
}

__global__ void add_losses(const double *losses, int64_t tokens, double weight, double *loss) {
  __shared__ double room[BLOCK / WARP];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < tokens; i += blockDim.x) sum += losses[i];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) *loss += weight * sum;
}

template <typename T>
tws_code run_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], columns = call->work->d[1], padded = call->work->d[2];
  double *losses = static_cast<double *>(call->scratch);
  T *logits = out<T>(call, 0);
  const float scale = (float)call->work->f[0];
  if (packable<N>(logits, padded))
    LAUNCH((cross_entropy<T, N>), (unsigned)tokens, LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1), losses, columns,
           padded, scale);
  else
    LAUNCH((cross_entropy<T, 1>), (unsigned)tokens, LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1), losses, columns,
           padded, scale);
  TWS_TRY(launched(err));
  LAUNCH(add_losses, 1, BLOCK, 0, call, losses, tokens, call->work->f[1], out<double>(call, 2));
  return launched(err);
}

}  // namespace

tws_code tws_cuda_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[1] < 1 || d[2] < d[1])
    return tws_fail(err, TWS_INVALID, NULL, "cross entropy over %lld columns in rows of %lld", (long long)d[1],
                    (long long)d[2]);
  if (d[0] == 0) return TWS_OK;
  if ((uint64_t)d[0] * sizeof(double) > call->scratch_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch",
                    "the losses of %lld tokens do not fit the scratch memory", (long long)d[0]);
  FOR_TYPE(call->dtype[0], T, return run_cross_entropy<T>(call, err));
}
