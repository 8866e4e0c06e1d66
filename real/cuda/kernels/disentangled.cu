// Disentangled attention: models/disentangled.h. A block computes one query of a head; in the backward pass other
// kernels use a block for each key and for each row of positions. Sums within a block have a fixed order, and the
// backward pass computes the scores again.
#include "models/disentangled.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Shape {
  tws_disentangled s;
  tws_attention_form form;
  const int32_t *lengths;
  const float *hyper;
};

template <typename T>
struct Given {
  const T *qkv, *p;
};

template <typename T>
__device__ const T *token_at(const Shape &x, const T *qkv, int64_t b, int64_t i, int part, int64_t h) {
  return qkv + (((b * x.s.seq + i) * 3 + part) * x.s.heads + h) * x.s.head;
}
template <typename T>
__device__ const T *position_at(const Shape &x, const T *p, int64_t row, int64_t part, int64_t h) {
  return p + ((row * x.s.parts + part) * x.s.heads + h) * x.s.head;
}

template <typename T>
__device__ float dot(const T *a, const T *b, int64_t count) {
  float sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += to_float(a[c]) * to_float(b[c]);
  return sum;
}

__device__ int64_t keys_of(const Shape &x, int64_t b) {
  const int64_t length = x.lengths ? x.lengths[b] : x.s.seq;
  return length < 0 ? 0 : length < x.s.seq ? length : x.s.seq;
}

template <typename T>
__device__ float score(const Shape &x, const Given<T> &g, int64_t b, int64_t h, int64_t i, int64_t key) {
  const int64_t row = tws_disentangled_row(x.s.positions, x.s.max_distance, i - key), head = x.s.head;
  const T *q = token_at(x, g.qkv, b, i, 0, h), *k = token_at(x, g.qkv, b, key, 1, h);
  float sum = dot(q, k, head);
  if (x.s.key_part >= 0) sum += dot(q, position_at(x, g.p, row, x.s.key_part, h), head);
  if (x.s.query_part >= 0) sum += dot(position_at(x, g.p, row, x.s.query_part, h), k, head);
  return sum * x.s.scale;
}

// Returns the dropout factor of a probability.
__device__ float kept(const Shape &x, int64_t b, int64_t h, int64_t i, int64_t key) {
  if (!x.form.dropped_below) return 1;
  uint32_t word[4];
  tws_philox_block(x.form.seed, tws_dropout_stream(bits_of<uint32_t>(x.hyper[TWS_HYPER_STEP])),
                   tws_attention_block(&x.form, b, h, i) + (uint64_t)key / TWS_DROPOUT_GROUP, word);
  return word[key % TWS_DROPOUT_GROUP] < x.form.dropped_below ? 0.0F : x.form.kept;
}

// For a query and a key: the probability after dropout, and the gradient of the score.
struct Slopes {
  float probability, product;
};
template <typename T>
__device__ Slopes slopes(const Shape &x, const Given<T> &g, const T *d_o, const float *lse, const float *delta,
                         int64_t b, int64_t h, int64_t i, int64_t key) {
  const int64_t query = (b * x.s.heads + h) * x.s.seq + i;
  const float p = expf(score(x, g, b, h, i, key) - lse[query]), factor = kept(x, b, h, i, key);
  const float dp =
      dot(d_o + ((b * x.s.seq + i) * x.s.heads + h) * x.s.head, token_at(x, g.qkv, b, key, 2, h), x.s.head);
  return {p * factor, p * (dp * factor - delta[query]) * x.s.scale};
}

__device__ void place(const Shape &x, int64_t block, int64_t *b, int64_t *h, int64_t *i) {
  *i = block % x.s.seq;
  *h = block / x.s.seq % x.s.heads;
  *b = block / x.s.seq / x.s.heads;
}

template <typename T>
__global__ void attend(Shape x, Given<T> g, T *o, float *lse) {
  BLOCK_MEMORY(memory);
  float *scores = reinterpret_cast<float *>(memory), *scratch = scores + x.s.seq;
  int64_t b, h, i;
  place(x, blockIdx.x, &b, &h, &i);
  const int64_t keys = keys_of(x, b);
  float largest = -CUDART_INF_F, sum = 0;
  for (int64_t k = threadIdx.x; k < keys; k += blockDim.x) {
    scores[k] = score(x, g, b, h, i, k);
    largest = scores[k] <= largest ? largest : scores[k];
  }
  scratch[threadIdx.x] = largest;
  __syncthreads();
  for (int k = 0; k < (int)blockDim.x; ++k) largest = scratch[k] <= largest ? largest : scratch[k];
  __syncthreads();
  for (int64_t k = threadIdx.x; k < keys; k += blockDim.x) {
    scores[k] = expf(scores[k] - largest);
    sum += scores[k];
  }
  sum = block_sum(sum, scratch);
  for (int64_t k = threadIdx.x; k < keys; k += blockDim.x) scores[k] *= kept(x, b, h, i, k) / sum;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < x.s.head; c += blockDim.x) {
    float y = 0;
    for (int64_t k = 0; k < keys; ++k) y += scores[k] * to_float(token_at(x, g.qkv, b, k, 2, h)[c]);
    o[((b * x.s.seq + i) * x.s.heads + h) * x.s.head + c] = from_float<T>(y);
  }
  if (threadIdx.x == 0) lse[blockIdx.x] = keys > 0 ? largest + logf(sum) : 0.0F;
}

// Computes delta: for each query the sum of products of the output and its gradient.
template <typename T>
__global__ void output_products(Shape x, const T *d_o, const T *o, float *delta) {
  const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= x.s.batch * x.s.heads * x.s.seq) return;
  int64_t b, h, i;
  place(x, at, &b, &h, &i);
  const int64_t first = ((b * x.s.seq + i) * x.s.heads + h) * x.s.head;
  delta[at] = dot(d_o + first, o + first, x.s.head);
}

template <typename T>
__global__ void gradient_of_query(Shape x, Given<T> g, const T *d_o, const float *lse, const float *delta, T *dqkv) {
  BLOCK_MEMORY(memory);
  float *ds = reinterpret_cast<float *>(memory);
  int64_t b, h, i;
  place(x, blockIdx.x, &b, &h, &i);
  const int64_t keys = keys_of(x, b);
  for (int64_t k = threadIdx.x; k < keys; k += blockDim.x) ds[k] = slopes(x, g, d_o, lse, delta, b, h, i, k).product;
  __syncthreads();
  T *to = dqkv + (token_at(x, g.qkv, b, i, 0, h) - g.qkv);
  for (int64_t c = threadIdx.x; c < x.s.head; c += blockDim.x) {
    float sum = 0;
    for (int64_t k = 0; k < keys; ++k) {
      float y = to_float(token_at(x, g.qkv, b, k, 1, h)[c]);
      if (x.s.key_part >= 0) {
        const int64_t row = tws_disentangled_row(x.s.positions, x.s.max_distance, i - k);
        y += to_float(position_at(x, g.p, row, x.s.key_part, h)[c]);
      }
      sum += ds[k] * y;
    }
    to[c] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void gradient_of_key(Shape x, Given<T> g, const T *d_o, const float *lse, const float *delta, T *dqkv) {
  BLOCK_MEMORY(memory);
  float *ds = reinterpret_cast<float *>(memory), *p = ds + x.s.seq;
  int64_t b, h, key;
  place(x, blockIdx.x, &b, &h, &key);
  const int64_t queries = key < keys_of(x, b) ? x.s.seq : 0;
  for (int64_t i = threadIdx.x; i < queries; i += blockDim.x) {
    const Slopes y = slopes(x, g, d_o, lse, delta, b, h, i, key);
    p[i] = y.probability, ds[i] = y.product;
  }
  __syncthreads();
  T *dk = dqkv + (token_at(x, g.qkv, b, key, 1, h) - g.qkv), *dv = dqkv + (token_at(x, g.qkv, b, key, 2, h) - g.qkv);
  for (int64_t c = threadIdx.x; c < x.s.head; c += blockDim.x) {
    float keys = 0, values = 0;
    for (int64_t i = 0; i < queries; ++i) {
      float y = to_float(token_at(x, g.qkv, b, i, 0, h)[c]);
      if (x.s.query_part >= 0) {
        const int64_t row = tws_disentangled_row(x.s.positions, x.s.max_distance, i - key);
        y += to_float(position_at(x, g.p, row, x.s.query_part, h)[c]);
      }
      keys += ds[i] * y;
      values += p[i] * to_float(d_o[((b * x.s.seq + i) * x.s.heads + h) * x.s.head + c]);
    }
    dk[c] = from_float<T>(keys);
    dv[c] = from_float<T>(values);
  }
}

// Computes the gradient of the position table: a block, for a row of positions and a head, sums over all sequences the
// pairs with this distance.
template <typename T>
__global__ void gradient_of_position(Shape x, Given<T> g, const T *d_o, const float *lse, const float *delta, T *dp) {
  BLOCK_MEMORY(memory);
  float *ds = reinterpret_cast<float *>(memory), *queries = ds + x.s.seq, *keys = queries + x.s.head;
  const int64_t row = blockIdx.x / x.s.heads, h = blockIdx.x % x.s.heads, head = x.s.head;
  for (int64_t c = threadIdx.x; c < head; c += blockDim.x) queries[c] = keys[c] = 0;
  for (int64_t d = 1 - x.s.seq; d < x.s.seq; ++d) {
    if (tws_disentangled_row(x.s.positions, x.s.max_distance, d) != row) continue;
    for (int64_t b = 0; b < x.s.batch; ++b) {
      const int64_t first = d < 0 ? 0 : d, behind = keys_of(x, b) + d, last = behind < x.s.seq ? behind : x.s.seq;
      __syncthreads();
      for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x)
        ds[i] = slopes(x, g, d_o, lse, delta, b, h, i, i - d).product;
      __syncthreads();
      for (int64_t c = threadIdx.x; c < head; c += blockDim.x)
        for (int64_t i = first; i < last; ++i) {
          keys[c] += ds[i] * to_float(token_at(x, g.qkv, b, i, 0, h)[c]);
          queries[c] += ds[i] * to_float(token_at(x, g.qkv, b, i - d, 1, h)[c]);
        }
    }
  }
  for (int64_t part = 0; part < x.s.parts; ++part)
    for (int64_t c = threadIdx.x; c < head; c += blockDim.x)
      dp[((row * x.s.parts + part) * x.s.heads + h) * head + c] = from_float<T>(part == x.s.query_part ? queries[c]
                                                                                : part == x.s.key_part ? keys[c]
                                                                                                       : 0.0F);
}

Shape shape_of(const tws_cuda_call *call, int *at) {
  Shape x = {tws_disentangled_of(call->work), tws_disentangled_form(call->work, call->argument), nullptr, nullptr};
  if (call->work->flags & TWS_LENGTHS) x.lengths = in<int32_t>(call, (*at)++);
  if (call->work->flags & TWS_DROPOUT) x.hyper = in<float>(call, (*at)++);
  return x;
}

template <typename K>
tws_code take_shared(const tws_cuda_call *call, K kernel, size_t bytes, tws_error *err) {
  if (bytes > (size_t)call->shared_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use shorter sequences or another device",
                    "disentangled attention needs %zu bytes of shared memory a block, this device has %d", bytes,
                    call->shared_bytes);
  return allow_shared(kernel, bytes, err);
}

template <typename T>
tws_code forward(const tws_cuda_call *call, tws_error *err) {
  int at = 4;
  const Shape x = shape_of(call, &at);
  const Given<T> g = {in<T>(call, 0), in<T>(call, 1)};
  const size_t bytes = (size_t)(x.s.seq + BLOCK) * sizeof(float);
  TWS_TRY(take_shared(call, attend<T>, bytes, err));
  LAUNCH(attend, (unsigned)(x.s.batch * x.s.heads * x.s.seq), BLOCK, bytes, call, x, g, out<T>(call, 2),
         out<float>(call, 3));
  return launched(err);
}

template <typename T>
tws_code backward(const tws_cuda_call *call, tws_error *err) {
  int at = 7;
  const Shape x = shape_of(call, &at);
  const Given<T> g = {in<T>(call, 1), in<T>(call, 2)};
  const T *d_o = in<T>(call, 0), *o = in<T>(call, 3);
  const float *lse = in<float>(call, 4);
  T *dqkv = out<T>(call, 5), *dp = out<T>(call, 6);
  float *delta = out<float>(call, at);
  const int64_t rows = x.s.batch * x.s.heads * x.s.seq;
  const size_t seq = (size_t)x.s.seq * sizeof(float), sums = seq + 2 * (size_t)x.s.head * sizeof(float);
  TWS_TRY(take_shared(call, gradient_of_query<T>, seq, err));
  TWS_TRY(take_shared(call, gradient_of_key<T>, 2 * seq, err));
  TWS_TRY(take_shared(call, gradient_of_position<T>, sums, err));
  LAUNCH(output_products, (unsigned)ceil_div(rows, BLOCK), BLOCK, 0, call, x, d_o, o, delta);
  TWS_TRY(launched(err));
  LAUNCH(gradient_of_query, (unsigned)rows, BLOCK, seq, call, x, g, d_o, lse, delta, dqkv);
  TWS_TRY(launched(err));
  LAUNCH(gradient_of_key, (unsigned)rows, BLOCK, 2 * seq, call, x, g, d_o, lse, delta, dqkv);
  TWS_TRY(launched(err));
  LAUNCH(gradient_of_position, (unsigned)(x.s.positions * x.s.heads), BLOCK, sums, call, x, g, d_o, lse, delta, dp);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_disentangled(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return forward<T>(call, err));
}
tws_code tws_cuda_disentangled_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return backward<T>(call, err));
}
