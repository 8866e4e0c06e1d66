// Softmax cross-entropy over a vocabulary, which is whole or divided by columns among several ranks; the gradient
// overwrites the logits. A block processes one row and keeps as much of it as fits in shared memory, so that logits are
// read and written once; the remainder is read again from the cache. With several ranks, the ranks' statistics are
// exchanged between the two passes.
#include "real/cuda/kernels/common.cuh"

namespace {

// LOSS_BLOCK: threads of a block if two blocks with their rows fit on a multiprocessor; LARGE_BLOCK: if one fits. DEEP:
// packs of a row that a thread has in flight.
enum { LOSS_BLOCK = 512, LARGE_BLOCK = 1024, DEEP = 4, MOST_WARPS = LARGE_BLOCK / WARP };

// `sum` is the sum of exponentials divided by e^largest; an empty row has largest -infinity and sum 0. A NaN stays in
// the sum.
struct Softmax {
  float largest, sum;
};

__device__ Softmax join(Softmax a, Softmax b) {
  Softmax r;
  r.largest = fmaxf(a.largest, b.largest);
  const float from_a = a.largest == r.largest ? 1.0F : expf(a.largest - r.largest);
  const float from_b = b.largest == r.largest ? 1.0F : expf(b.largest - r.largest);
  r.sum = a.sum * from_a + b.sum * from_b;
  return r;
}

// Exponentials are computed relative to a power of two: e^(x - largest) = power(x, base) correction(largest, base).
// `base` is an integer, so differences of bases are exact.
constexpr float LOG2E = 1.4426950408889634F;
__device__ float base_of(float largest) {
  return rintf(largest * LOG2E);
}
__device__ float power(float x, float base) {
  return fast_exp2(fmaf(x, LOG2E, -base));
}
__device__ float correction(float largest, float base) {
  return fast_exp2(-fmaf(largest, LOG2E, -base));
}

// A row of logits in packs: the first `kept` of them have a copy in shared memory.
template <typename T, int V>
struct Row {
  Pack<T, V> *global, *copy;
  int columns, padded, kept;
};

template <typename T, int V>
__device__ Row<T, V> row_of(T *logits, int64_t token, int columns, int padded, Pack<T, V> *copy, int kept) {
  return {reinterpret_cast<Pack<T, V> *>(logits + token * padded), copy, columns, padded, kept};
}

// Returns the softmax statistics of a row, with the same bits in all threads. Each thread reads and writes only its own
// packs.
template <typename T, int V>
__device__ Softmax row_softmax(const Row<T, V> &row, float *scratch) {
  const int packs = (row.columns + V - 1) / V, threads = (int)blockDim.x;
  float largest = -1e38F, base = base_of(largest), sum = 0.0F;  // not -infinity: differences to it would be NaN
  const auto add = [&](int p, const Pack<T, V> &pack) {
    float x[V];
    if (p < row.kept) row.copy[p] = pack;
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = at(pack, j);
    if ((p + 1) * V > row.columns) {  // the rest is padding
#pragma unroll
      for (int j = 0; j < V; ++j)
        if (p * V + j >= row.columns) x[j] = -CUDART_INF_F;
    }
    float top = x[0];
#pragma unroll
    for (int j = 1; j < V; ++j) top = fmaxf(top, x[j]);
    if (top > largest) {
      const float next = base_of(top);
      sum *= fast_exp2(base - next);
      largest = top;
      base = next;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum += power(x[j], base);
  };
  for (int i = (int)threadIdx.x; i < packs; i += DEEP * threads)
    at_once<DEEP>(
        i, packs, threads, [&](int p) { return row.global[p]; }, add);
  Softmax s;
  s.largest = block_max(largest, scratch);
  const float whole = base_of(s.largest);
  s.sum = block_sum(sum * fast_exp2(base - whole), scratch) * correction(s.largest, whole);
  if (s.sum == 0.0F) s.largest = -CUDART_INF_F;
  return s;
}

template <typename T, int V>
__device__ void clear_row(const Row<T, V> &row) {
  const float zeros[V] = {};
  for (int i = (int)threadIdx.x; i < row.padded / V; i += (int)blockDim.x) row.global[i] = packed<T>(zeros);
}

// Gradient of a row: scale (softmax - onehot) = weight power(x, base), except at the target. target: its column; a
// number that is no column if the target is on another rank.
struct Gradient {
  float base, weight, at_target;
  int64_t target;
};

// Returns the gradient of a row; `logit` is the target's logit. If `valid` is 0, the gradient is NaN.
__device__ Gradient gradient_of(Softmax s, int64_t target, float logit, float scale, bool valid) {
  Gradient g;
  g.base = base_of(s.largest);
  g.weight = valid ? scale * correction(s.largest, g.base) / s.sum : CUDART_NAN_F;
  g.at_target = scale * (expf(logit - s.largest) / s.sum - 1.0F);
  g.target = target;
  return g;
}

template <typename T, int V>
__device__ void gradient_pack(const Row<T, V> &row, int p, const Pack<T, V> &pack, const Gradient &g) {
  float x[V];
#pragma unroll
  for (int j = 0; j < V; ++j) x[j] = power(at(pack, j), g.base) * g.weight;
  const int64_t hit = g.target - (int64_t)p * V;
  if (hit >= 0 && hit < V) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (j == hit) x[j] = g.at_target;
  }
  if ((p + 1) * V > row.columns) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (p * V + j >= row.columns) x[j] = 0.0F;
  }
  row.global[p] = packed<T>(x);
}

// Overwrites the logits of a row with their gradient; each thread processes the same packs as in row_softmax().
template <typename T, int V>
__device__ void gradient_row(const Row<T, V> &row, const Gradient &g) {
  const int packs = (row.columns + V - 1) / V, threads = (int)blockDim.x, me = (int)threadIdx.x;
  const int rounds = (packs - me + threads - 1) / threads, kept = (row.kept - me + threads - 1) / threads;
  for (int n = 0; n < rounds - kept; n += DEEP) {
    const int last = me + (rounds - 1) * threads;
    at_once<DEEP>(
        n, rounds - kept, 1, [&](int i) { return row.global[last - i * threads]; },
        [&](int i, const Pack<T, V> &pack) { gradient_pack<T, V>(row, last - i * threads, pack, g); });
  }
  for (int r = 0; r < kept; ++r) {
    const Pack<T, V> pack = row.copy[me + r * threads];
    gradient_pack<T, V>(row, me + r * threads, pack, g);
  }
  const float zeros[V] = {};
  for (int i = packs + me; i < row.padded / V; i += threads) row.global[i] = packed<T>(zeros);
}

// Returns the factor of a token's gradient. metrics: NULL, or metrics[1] is the share of ignored targets, if it was
// computed before this kernel.
__device__ float weight_of(double weight, const float *hyper, const double *metrics) {
  const double scaled = hyper ? weight * (double)hyper[TWS_HYPER_SCALE] : weight;
  if (!metrics) return (float)scaled;
  return metrics[1] < 1.0 - 1e-9 ? (float)(scaled / (1.0 - metrics[1])) : 0.0F;
}

__device__ double loss_of(Softmax s, float logit) {
  return log((double)s.sum) + ((double)s.largest - (double)logit);
}

// Computes losses[token] = -log p.
template <typename T, int V>
__global__ void __launch_bounds__(LARGE_BLOCK, 1)
    cross_entropy(T *logits, const int32_t *targets, double *losses, int columns, int padded, int kept, double weight,
                  const float *hyper, const double *metrics) {
  __shared__ float scratch[MOST_WARPS];
  BLOCK_MEMORY(memory);
  const int64_t token = blockIdx.x;
  const Row<T, V> row = row_of<T, V>(logits, token, columns, padded, reinterpret_cast<Pack<T, V> *>(memory), kept);
  const int32_t target = targets[token];
  if (target == -1) {
    clear_row(row);
    if (threadIdx.x == 0) losses[token] = 0.0;
    return;
  }
  const bool known = target >= 0 && target < columns;  // otherwise the data are wrong, and all results become NaN
  const float logit =
      known ? to_float(logits[token * padded + target]) : CUDART_NAN_F;  // read before any thread overwrites it
  const Softmax s = row_softmax(row, scratch);
  gradient_row(row, gradient_of(s, target, logit, weight_of(weight, hyper, metrics), known));
  if (threadIdx.x == 0) losses[token] = loss_of(s, logit);
}

// stats[token] = maximum, sum of exp(logit - maximum), logit of the target when it is among the columns.
template <typename T, int V>
__global__ void __launch_bounds__(LOSS_BLOCK)
    vocabulary_stats(const T *logits, const int32_t *targets, float *stats, int columns, int padded, int64_t first) {
  __shared__ float scratch[MOST_WARPS];
  const int64_t token = blockIdx.x, target = targets[token] - first;
  const Row<T, V> row = row_of<T, V>(const_cast<T *>(logits), token, columns, padded, nullptr, 0);
  const Softmax s = row_softmax(row, scratch);
  if (threadIdx.x != 0) return;
  const bool here = targets[token] >= 0 && target >= 0 && target < columns;
  stats[token * 3] = s.largest;
  stats[token * 3 + 1] = s.sum;
  stats[token * 3 + 2] = here ? to_float(logits[token * padded + target]) : 0.0F;
}

// Computes losses, and gradients in place of the logits. Every thread of every rank combines the ranks' statistics in
// the order of ranks, so that all ranks get the same bits.
template <typename T, int V>
__global__ void __launch_bounds__(LOSS_BLOCK)
    vocabulary_loss(T *logits, const int32_t *targets, const float *stats, double *losses, int64_t tokens, int columns,
                    int padded, int ranks, int64_t first, double weight, const float *hyper, const double *metrics) {
  const int64_t token = blockIdx.x;
  const Row<T, V> row = row_of<T, V>(logits, token, columns, padded, nullptr, 0);
  const int32_t target = targets[token];
  if (target == -1) {
    clear_row(row);
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
  gradient_row(row, gradient_of(s, target - first, logit, weight_of(weight, hyper, metrics), known));
  if (threadIdx.x == 0) losses[token] = known ? loss_of(s, logit) : (double)CUDART_NAN_F;
}

// losses[row] = mean over the columns of the binary cross-entropy, or of the squared error.
template <typename T, bool SQUARES>
__global__ void __launch_bounds__(LOSS_BLOCK)
    independent_loss(T *logits, const int32_t *targets, double *losses, int columns, int padded, double weight,
                     const float *hyper, const double *metrics) {
  __shared__ double scratch[MOST_WARPS];
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  const bool known = target >= 0 && (columns > 1 ? target < columns : SQUARES || target < 2);
  const float scale = weight_of(weight, hyper, metrics) / (float)columns;
  T *z = logits + row * padded;
  double sum = 0.0;
  for (int i = threadIdx.x; i < padded; i += LOSS_BLOCK) {
    float slope[1] = {0.0F};
    if (i < columns && target != -1) {
      const float x = to_float(z[i]), wanted = columns > 1 ? (i == target ? 1.0F : 0.0F) : (float)target;
      const float away = x - wanted;
      if (SQUARES)
        sum += (double)away * (double)away;
      else
        sum += fmax((double)x, 0.0) - (double)x * (double)wanted + log1p(exp(-fabs((double)x)));
      // sigmoid(x) - 1 is -sigmoid(-x), without cancellation
      const float binary = wanted > 0.0F ? -fast_reciprocal(1.0F + expf(x)) : fast_reciprocal(1.0F + expf(-x));
      slope[0] = known ? scale * (SQUARES ? 2.0F * away : binary) : CUDART_NAN_F;  // else the data are wrong
    }
    store<1>(z + i, slope);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) losses[row] = target == -1 ? 0.0 : known ? sum / columns : (double)CUDART_NAN_F;
}

// metrics[0] += weight x sum of losses, metrics[1] += weight x number of ignored targets, unless they are counted.
__global__ void __launch_bounds__(LARGE_BLOCK) add_losses(const double *losses, const int32_t *targets, int64_t tokens,
                                                          double weight, bool counted, double *metrics) {
  __shared__ double scratch[MOST_WARPS];
  double sum = 0, ignored = 0;
  struct Token {
    double loss;
    int32_t target;
  };
  for (int64_t i = threadIdx.x; i < tokens; i += DEEP * LARGE_BLOCK)
    at_once<DEEP>(
        i, tokens, (int64_t)LARGE_BLOCK,
        [=](int64_t token) {
          return Token{losses[token], targets[token]};
        },
        [&](int64_t, const Token &token) {
          sum += token.loss;
          ignored += token.target == -1;
        });
  sum = block_sum(sum, scratch);
  ignored = block_sum(ignored, scratch);
  if (threadIdx.x == 0) {
    metrics[0] += weight * sum;
    if (!counted) metrics[1] += weight * ignored;
  }
}

__global__ void __launch_bounds__(LARGE_BLOCK)
    count_ignored(const int32_t *targets, int64_t count, double factor, double *metrics) {
  __shared__ double scratch[MOST_WARPS];
  double ignored = 0;
  for (int64_t i = threadIdx.x; i < count; i += LARGE_BLOCK) ignored += targets[i] == -1;
  ignored = block_sum(ignored, scratch);
  if (threadIdx.x == 0) *metrics += factor * ignored;
}

// ---- launching ----

tws_code check(const tws_cuda_call *call, int64_t fewest, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[1] < fewest || d[2] < d[1] || d[2] > 1 << 30)
    return tws_fail(err, TWS_INVALID, NULL, "cross entropy over %lld columns in rows of %lld", (long long)d[1],
                    (long long)d[2]);
  if ((uint64_t)d[0] * sizeof(double) > call->scratch_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch",
                    "the losses of %lld tokens do not fit the scratch memory", (long long)d[0]);
  return TWS_OK;
}

// Returns the hyperparameters if there is a loss scale, else NULL.
const float *scale_of(const tws_cuda_call *call, int operand) {
  return call->work->flags & TWS_SCALED ? in<float>(call, operand) : nullptr;
}

// Returns the metrics if the number of ignored targets is known before the kernel runs, else NULL.
const double *counted_of(const tws_cuda_call *call, int operand) {
  return call->work->flags & TWS_COUNTED ? in<double>(call, operand) : nullptr;
}

tws_code finish(const tws_cuda_call *call, const double *losses, double *metrics, tws_error *err) {
  LAUNCH(add_losses, 1, LARGE_BLOCK, 0, call, losses, in<int32_t>(call, 1), call->work->d[0], call->argument[1],
         (call->work->flags & TWS_COUNTED) != 0, metrics);
  return launched(err);
}

// Starts the kernel: two blocks run on a multiprocessor if two rows fit in its shared memory (1 KiB of it is reserved
// for each block), else one block, with as much of its row in shared memory as fits.
template <typename T, int V>
tws_code start_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  constexpr int64_t SIZE = sizeof(T) * V;
  const int64_t *d = call->work->d, bytes = ceil_div(d[1], V) * SIZE;
  const bool two = bytes <= call->shared_bytes / 2 - 2048;
  const int64_t most = (call->shared_bytes - 1024) / SIZE * SIZE, shared = bytes < most ? bytes : most;
  TWS_TRY(allow_shared(cross_entropy<T, V>, (size_t)shared, err));
  LAUNCH((cross_entropy<T, V>), (unsigned)d[0], two ? LOSS_BLOCK : LARGE_BLOCK, (size_t)shared, call, out<T>(call, 0),
         in<int32_t>(call, 1), static_cast<double *>(call->scratch), (int)d[1], (int)d[2], (int)(shared / SIZE),
         call->argument[0], scale_of(call, 3), counted_of(call, 2));
  return launched(err);
}

template <typename T>
tws_code run_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  if (packable<N>(in<T>(call, 0), call->work->d[2]))
    TWS_TRY((start_cross_entropy<T, N>(call, err)));
  else
    TWS_TRY((start_cross_entropy<T, 1>(call, err)));
  return finish(call, static_cast<double *>(call->scratch), out<double>(call, 2), err);
}

template <typename T, bool SQUARES>
tws_code run_independent(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  double *losses = static_cast<double *>(call->scratch);
  LAUNCH((independent_loss<T, SQUARES>), (unsigned)d[0], LOSS_BLOCK, 0, call, out<T>(call, 0), in<int32_t>(call, 1),
         losses, (int)d[1], (int)d[2], call->argument[0], scale_of(call, 3), counted_of(call, 2));
  TWS_TRY(launched(err));
  return finish(call, losses, out<double>(call, 2), err);
}

template <typename T>
tws_code run_stats(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d, first = (int64_t)call->argument[0];
  const T *logits = in<T>(call, 0);
  if (packable<N>(logits, d[2]))
    LAUNCH((vocabulary_stats<T, N>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           out<float>(call, 2), (int)d[1], (int)d[2], first);
  else
    LAUNCH((vocabulary_stats<T, 1>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           out<float>(call, 2), (int)d[1], (int)d[2], first);
  return launched(err);
}

template <typename T>
tws_code run_vocabulary_loss(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d, first = (int64_t)call->argument[2];
  double *losses = static_cast<double *>(call->scratch);
  T *logits = out<T>(call, 0);
  const float *hyper = scale_of(call, 4);
  if (packable<N>(logits, d[2]))
    LAUNCH((vocabulary_loss<T, N>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           in<float>(call, 2), losses, d[0], (int)d[1], (int)d[2], (int)d[3], first, call->argument[0], hyper,
           counted_of(call, 3));
  else
    LAUNCH((vocabulary_loss<T, 1>), (unsigned)d[0], LOSS_BLOCK, 0, call, logits, in<int32_t>(call, 1),
           in<float>(call, 2), losses, d[0], (int)d[1], (int)d[2], (int)d[3], first, call->argument[0], hyper,
           counted_of(call, 3));
  TWS_TRY(launched(err));
  return finish(call, losses, out<double>(call, 3), err);
}

}  // namespace

tws_code tws_cuda_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 1, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return run_cross_entropy<T>(call, err));
}
tws_code tws_cuda_binary_cross_entropy(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 1, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return (run_independent<T, false>(call, err)));
}
tws_code tws_cuda_mean_squared_error(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check(call, 1, err));
  if (call->work->d[0] == 0) return TWS_OK;
  FOR_TYPE(call->dtype[0], T, return (run_independent<T, true>(call, err)));
}
tws_code tws_cuda_count_ignored(const tws_cuda_call *call, tws_error *err) {
  LAUNCH(count_ignored, 1, LARGE_BLOCK, 0, call, in<int32_t>(call, 0), call->work->d[0], call->argument[0],
         out<double>(call, 1));
  return launched(err);
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
