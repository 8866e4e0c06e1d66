// Signs of tensors with error feedback, and updates that use them: models/operators_compressed.def.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

enum { SIGNS = 8 };

// ---- signs: kernels that add the values to the error and sum its squares, compute the scale, and write the codes ----

__device__ inline void put_sum(double sum, double *parts) {
  __shared__ double scratch[BLOCK / WARP];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void add_values(const float *x, float *error, const double *metrics, int64_t given, int64_t count,
                           double *parts) {
  double sum = 0;
  const bool skips = metrics[TWS_METRIC_CLIP] == 0;
  EACH_ITEM(i, skips ? 0 : count) {
    const float value = i < given ? error[i] + x[i] : error[i];
    error[i] = value;
    sum += (double)value * (double)value;
  }
  put_sum(sum, parts);
}

__device__ inline int sign_at(const uint8_t *codes, int64_t i) {
  return codes[i / SIGNS] >> (SIGNS - 1 - i % SIGNS) & 1;
}

// Adds the mean over ranks of their signs times scales to `error`, and sums its squares. scales[rank * tensors] is the
// scale of this tensor on each rank.
__global__ void add_averages(const uint8_t *codes, const float *scales, float *error, const double *metrics,
                             int64_t count, int64_t ranks, int64_t tensors, double *parts) {
  double sum = 0;
  const bool skips = metrics[TWS_METRIC_CLIP] == 0;
  EACH_ITEM(i, skips ? 0 : count) {
    float mean = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const float part = scales[rank * tensors] / (float)ranks;
      mean += sign_at(codes + rank * (count / SIGNS), i) ? part : -part;
    }
    const float value = error[i] + mean;
    error[i] = value;
    sum += (double)value * (double)value;
  }
  put_sum(sum, parts);
}

__global__ void find_scale(const double *parts, int blocks, int64_t count, float *scale) {
  __shared__ double scratch[BLOCK / WARP];
  double sum = 0;
  for (int i = (int)threadIdx.x; i < blocks; i += (int)blockDim.x) sum += parts[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *scale = (float)sqrt(sum / (double)count);
}

// A thread writes a byte.
__global__ void write_signs(float *error, const float *scale, const double *metrics, int64_t bytes, uint8_t *codes) {
  const bool skips = metrics[TWS_METRIC_CLIP] == 0;
  const float size = *scale;
  EACH_ITEM(b, bytes) {
    unsigned byte = 0;
    for (int64_t i = b * SIGNS; !skips && i < (b + 1) * SIGNS; ++i) {
      const bool sign = error[i] >= 0;
      byte = byte << 1 | (sign ? 1U : 0U);
      error[i] -= sign ? size : -size;
    }
    codes[b] = (uint8_t)byte;
  }
}

tws_code finish(const tws_cuda_call *call, const double *parts, unsigned blocks, int64_t count, float *error,
                const double *metrics, uint8_t *codes, float *scale, tws_error *err) {
  TWS_TRY(launched(err));
  LAUNCH(find_scale, 1, BLOCK, 0, call, parts, (int)blocks, count, scale);
  TWS_TRY(launched(err));
  LAUNCH(write_signs, grid_for(call, count / SIGNS, BLOCK), BLOCK, 0, call, error, scale, metrics, count / SIGNS,
         codes);
  return launched(err);
}

// Expands codes to x = scale or -scale. x: all elements of one tensor, as the ranks' shards of `part` elements, one
// after another.
__global__ void unpack(const uint8_t *codes, const float *scales, const double *metrics, float *x, int64_t count,
                       int64_t part, int64_t tensors, bool keeps) {
  const bool skips = metrics[TWS_METRIC_CLIP] == 0;
  if (skips && keeps) return;
  EACH_ITEM(i, count) {
    const float scale = scales[i / part * tensors];
    x[i] = skips ? 0.0f : sign_at(codes, i) ? scale : -scale;
  }
}

// ---- momentum and updates ----

template <typename T>
__global__ void momentum(const T *g, const float *hyper, const double *metrics, float *m, int64_t count, double factor,
                         bool clips, bool adds) {
  const double clip = metrics[TWS_METRIC_CLIP];
  const float by = (float)(factor * (clips ? clip : 1.0));
  const float beta = hyper[TWS_HYPER_BETA1], rest = hyper[TWS_HYPER_REST1];
  if (clip == 0 && adds) return;
  EACH_ITEM(i, count) {
    const float value = to_float(g[i]) * by;
    m[i] = clip == 0 ? 0.0f : adds ? beta * m[i] + rest * value : value;
  }
}

struct Constants {
  float epsilon, decay;
};

Constants constants_of(const tws_work *work) {
  return {(float)tws_work_parameter(work, "epsilon"), (float)tws_work_parameter(work, "weight_decay")};
}

template <typename P>
__global__ void frozen(float *p, const float *m, const float *v, const float *hyper, const double *metrics, float *u,
                       P *p16, int64_t count, Constants c) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const float lr = hyper[TWS_HYPER_LR];
  EACH_ITEM(i, count) {
    const float weight = p[i], change = lr * (m[i] / (sqrtf(v[i]) + c.epsilon) + c.decay * weight);
    p[i] = weight - change;
    if (u) u[i] -= change;
    if (p16) p16[i] = from_float<P>(weight - change);
  }
}

__global__ void undo(float *p, float *u, const float *v, const double *metrics, int64_t count, Constants c) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  EACH_ITEM(i, count) {
    const float changes = u[i];
    p[i] -= changes;
    u[i] = changes * (sqrtf(v[i]) + c.epsilon);
  }
}

template <typename P>
__global__ void merge(float *p, float *m, float *u, const float *v, const float *hyper, const double *metrics, P *p16,
                      int64_t count, Constants c) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const float summed = hyper[TWS_HYPER_SUMMED_LR], by = summed > 0 ? -1.0f / summed : 0.0f;
  EACH_ITEM(i, count) {
    const float changes = u[i], weight = p[i] + changes / (sqrtf(v[i]) + c.epsilon);
    if (by < 0) m[i] = changes * by;
    p[i] = weight;
    u[i] = 0.0f;
    if (p16) p16[i] = from_float<P>(weight);
  }
}

}  // namespace

tws_code tws_cuda_sign_pack(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, count = d[1] * d[2];
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, count, BLOCK);
  LAUNCH(add_values, blocks, BLOCK, 0, call, in<float>(call, 0), out<float>(call, 1), in<double>(call, 2), d[0], count,
         parts);
  return finish(call, parts, blocks, count, out<float>(call, 1), in<double>(call, 2), out<uint8_t>(call, 3),
                out<float>(call, 4), err);
}

tws_code tws_cuda_sign_average(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, count = d[0];
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, count, BLOCK);
  LAUNCH(add_averages, blocks, BLOCK, 0, call, in<uint8_t>(call, 0), in<float>(call, 1) + (int64_t)call->argument[0],
         out<float>(call, 2), in<double>(call, 3), count, d[1], d[2], parts);
  return finish(call, parts, blocks, count, out<float>(call, 2), in<double>(call, 3), out<uint8_t>(call, 4),
                out<float>(call, 5), err);
}

tws_code tws_cuda_sign_unpack(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  LAUNCH(unpack, grid_for(call, d[0], BLOCK), BLOCK, 0, call, in<uint8_t>(call, 0),
         in<float>(call, 1) + (int64_t)call->argument[0], in<double>(call, 2), out<float>(call, 3), d[0], d[1], d[3],
         (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

tws_code tws_cuda_momentum(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  const bool clips = call->argument[1] > 0, adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  FOR_TYPE(call->dtype[0], T,
           LAUNCH((momentum<T>), grid_for(call, count, BLOCK), BLOCK, 0, call, in<T>(call, 0), in<float>(call, 1),
                  in<double>(call, 2), out<float>(call, 3), count, call->argument[0], clips, adds));
  return launched(err);
}

tws_code tws_cuda_frozen_adam(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  const int local = (call->work->flags & TWS_ACCUMULATE) != 0, last = 5 + local;
  const int type = call->count > last ? call->dtype[last] : TWS_F32;
  FOR_TYPE(type, P,
           LAUNCH((frozen<P>), grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), in<float>(call, 1),
                  in<float>(call, 2), in<float>(call, 3), in<double>(call, 4), local ? out<float>(call, 5) : nullptr,
                  call->count > last ? out<P>(call, last) : nullptr, count, constants_of(call->work)));
  return launched(err);
}

tws_code tws_cuda_local_undo(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  LAUNCH(undo, grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), out<float>(call, 1),
         in<float>(call, 2), in<double>(call, 3), count, constants_of(call->work));
  return launched(err);
}

tws_code tws_cuda_local_merge(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  const int type = call->count > 6 ? call->dtype[6] : TWS_F32;
  FOR_TYPE(type, P,
           LAUNCH((merge<P>), grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), out<float>(call, 1),
                  out<float>(call, 2), in<float>(call, 3), in<float>(call, 4), in<double>(call, 5),
                  call->count > 6 ? out<P>(call, 6) : nullptr, count, constants_of(call->work)));
  return launched(err);
}
