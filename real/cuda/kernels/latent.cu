// Kernels of multi-head latent attention that process whole rows: models/latent.h. One block processes one token, and
// each of its threads pairs of adjacent elements.
#include "models/latent.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Latent {
  int64_t tokens, heads, nope, rope, value, rank, seq, head;
  double f[5];
  const int32_t *documents;  // or null: a sequence is one
};

Latent latent_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  Latent l = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[2] + d[3], {}, nullptr};
  if (call->work->flags & TWS_DOCUMENTS) l.documents = in<int32_t>(call, 4);
  for (int i = 0; i < 5; ++i) l.f[i] = call->work->f[i];
  return l;
}

__device__ void rotation(const Latent &l, int64_t token, int64_t pair, float *cosine, float *sine) {
  double s, c;
  const int64_t position = token % l.seq - (l.documents ? l.documents[2 * token] : 0);
  sincos((double)position * tws_latent_frequency(l.f, l.rope, pair), &s, &c);
  *cosine = (float)c, *sine = (float)s;
}

template <typename T>
__device__ void turn(const T *from, T *to, float c, float s, float factor) {
  const float a = to_float(from[0]) * factor, b = to_float(from[1]) * factor;
  to[0] = from_float<T>(a * c - b * s), to[1] = from_float<T>(b * c + a * s);
}

template <typename T>
__global__ void make_rows(Latent l, const T *q, const T *compressed, const T *kv, T *qkv) {
  const int64_t all = l.heads * l.head, each = l.nope + l.value;
  const float gain = (float)l.f[4];
  for (int64_t t = blockIdx.x; t < l.tokens; t += gridDim.x) {
    const T *queries = q + t * all, *values = kv + t * l.heads * each;
    T *row = qkv + t * 3 * all;
    for (int64_t i = threadIdx.x; i < l.heads * l.nope; i += blockDim.x) {
      const int64_t h = i / l.nope, j = i % l.nope;
      row[h * l.head + j] = from_float<T>(to_float(queries[h * l.head + j]) * gain);
      row[all + h * l.head + j] = values[h * each + j];
    }
    for (int64_t i = threadIdx.x; i < l.heads * l.head; i += blockDim.x) {
      const int64_t h = i / l.head, j = i % l.head;
      row[2 * all + i] = j < l.value ? values[h * each + l.nope + j] : from_float<T>(0.0F);
    }
    for (int64_t i = threadIdx.x; i < l.rope / 2; i += blockDim.x) {
      float c, s;
      rotation(l, t, i, &c, &s);
      const T *key = compressed + t * (l.rank + l.rope) + l.rank + 2 * i;
      for (int64_t h = 0; h < l.heads; ++h) {
        const int64_t at = h * l.head + l.nope + 2 * i;
        turn(queries + at, row + at, c, s, gain);
        turn(key, row + all + at, c, s, 1.0F);
      }
    }
  }
}

template <typename T>
__global__ void make_gradients(Latent l, const T *dqkv, T *dq, T *dcompressed, T *dkv) {
  const int64_t all = l.heads * l.head, each = l.nope + l.value;
  const float gain = (float)l.f[4];
  for (int64_t t = blockIdx.x; t < l.tokens; t += gridDim.x) {
    const T *row = dqkv + t * 3 * all;
    T *queries = dq + t * all, *values = dkv + t * l.heads * each, *latent = dcompressed + t * (l.rank + l.rope);
    for (int64_t i = threadIdx.x; i < l.heads * l.nope; i += blockDim.x) {
      const int64_t h = i / l.nope, j = i % l.nope;
      queries[h * l.head + j] = from_float<T>(to_float(row[h * l.head + j]) * gain);
      values[h * each + j] = row[all + h * l.head + j];
    }
    for (int64_t i = threadIdx.x; i < l.heads * l.value; i += blockDim.x)
      values[i / l.value * each + l.nope + i % l.value] = row[2 * all + i / l.value * l.head + i % l.value];
    for (int64_t i = threadIdx.x; i < l.rank; i += blockDim.x) latent[i] = from_float<T>(0.0F);
    for (int64_t i = threadIdx.x; i < l.rope / 2; i += blockDim.x) {
      float c, s, a = 0, b = 0;
      rotation(l, t, i, &c, &s);
      for (int64_t h = 0; h < l.heads; ++h) {
        const int64_t at = h * l.head + l.nope + 2 * i;
        turn(row + at, queries + at, c, -s, gain);
        a += to_float(row[all + at]), b += to_float(row[all + at + 1]);
      }
      latent[l.rank + 2 * i] = from_float<T>(a * c + b * s);
      latent[l.rank + 2 * i + 1] = from_float<T>(b * c - a * s);
    }
  }
}

struct Part {
  int64_t blocks, width, kept, first;
};

template <typename T>
__global__ void part(Part p, const T *x, T *y) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.blocks * p.kept; i += step)
    y[i] = x[i / p.kept * p.width + p.first + i % p.kept];
}

template <typename T>
__global__ void part_grad(Part p, const T *dy, T *dx, bool adds) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.blocks * p.width; i += step) {
    const int64_t column = i % p.width - p.first;
    const bool inside = column >= 0 && column < p.kept;
    const float slope = inside ? to_float(dy[i / p.width * p.kept + column]) : 0.0F;
    if (!adds || inside) dx[i] = from_float<T>(slope + (adds ? to_float(dx[i]) : 0.0F));
  }
}

Part part_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  return {d[0] * d[1], d[2], d[3], (int64_t)call->argument[0]};
}

}  // namespace

tws_code tws_cuda_latent(const tws_cuda_call *call, tws_error *err) {
  const Latent l = latent_of(call);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(make_rows<T>, grid_for(call, l.tokens, 1), BLOCK, 0, call, l, in<T>(call, 0), in<T>(call, 1),
                  in<T>(call, 2), out<T>(call, 3)));
  return launched(err);
}

tws_code tws_cuda_latent_grad(const tws_cuda_call *call, tws_error *err) {
  const Latent l = latent_of(call);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(make_gradients<T>, grid_for(call, l.tokens, 1), BLOCK, 0, call, l, in<T>(call, 0), out<T>(call, 1),
                  out<T>(call, 2), out<T>(call, 3)));
  return launched(err);
}

tws_code tws_cuda_part(const tws_cuda_call *call, tws_error *err) {
  const Part p = part_of(call);
  FOR_TYPE(
      call->dtype[0], T,
      LAUNCH(part<T>, grid_for(call, p.blocks * p.kept, BLOCK), BLOCK, 0, call, p, in<T>(call, 0), out<T>(call, 1)));
  return launched(err);
}

tws_code tws_cuda_part_grad(const tws_cuda_call *call, tws_error *err) {
  const Part p = part_of(call);
  const bool adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(part_grad<T>, grid_for(call, p.blocks * p.width, BLOCK), BLOCK, 0, call, p, in<T>(call, 0),
                  out<T>(call, 1), adds));
  return launched(err);
}
