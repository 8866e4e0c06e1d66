// OneBitLamb's kernels: models/operators_compressed.def.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

enum { FIGURES = 3 };

// Returns the larger number, or NaN if one of them is NaN.
template <typename T>
__device__ inline T larger_of(T a, T b) {
  return b > a || isnan(b) ? b : a;
}

// Limits a number to [least, most]; NaN stays NaN.
__device__ inline double cut_to(double x, double least, double most) {
  return x > most ? most : x < least ? least : x;
}

template <typename T>
__global__ void scaled(const T *g, const float *m, const float *scale, const float *hyper, const double *metrics,
                       float *x, int64_t count, double factor) {
  const double clip = metrics[TWS_METRIC_CLIP];
  const float by = (float)(factor * clip), times = *scale;
  const float beta = hyper[TWS_HYPER_BETA1], rest = hyper[TWS_HYPER_REST1];
  EACH_ITEM(i, count) x[i] = clip == 0 ? 0.0f : (beta * m[i] + rest * (to_float(g[i]) * by)) * times;
}

// Writes parts[block][FIGURES]: the block's share of the squared norms of the change without and with decay, and its
// largest quotient. In a skipped step nothing changes, and the figures are 0.
__global__ void fresh(const float *x, const float *p, float *m, const float *v, float *f, const float *scale,
                      const float *hyper, const double *metrics, int64_t count, float epsilon, float decay,
                      double *parts) {
  __shared__ double sums[BLOCK / WARP];
  __shared__ float most[BLOCK / WARP];
  const float by = *scale, beta1 = hyper[TWS_HYPER_BETA1], rest1 = hyper[TWS_HYPER_REST1];
  const float beta2 = hyper[TWS_HYPER_BETA2], rest2 = hyper[TWS_HYPER_REST2];
  double plain = 0, whole = 0;
  float largest = 0;
  EACH_ITEM(i, metrics[TWS_METRIC_CLIP] == 0 ? 0 : count) {
    const float momentum = x[i] / by, g = (momentum - m[i] * beta1) / rest1;
    const float second = beta2 * f[i] + rest2 * (g * g), root = sqrtf(v[i]) + epsilon;
    const float change = momentum / root, decayed = change + decay * p[i], quotient = root / (sqrtf(second) + epsilon);
    m[i] = momentum;
    f[i] = second;
    plain += (double)change * (double)change;
    whole += (double)decayed * (double)decayed;
    largest = larger_of(largest, quotient);
  }
  plain = block_sum(plain, sums);
  whole = block_sum(whole, sums);
  largest = block_max(largest, most);
  if (threadIdx.x == 0) {
    double *own = parts + (int64_t)blockIdx.x * FIGURES;
    own[0] = plain, own[1] = whole, own[2] = (double)largest;
  }
}

__global__ void join_figures(const double *parts, int blocks, double share, double *figures) {
  __shared__ double sums[BLOCK / WARP];
  __shared__ float most[BLOCK / WARP];
  double plain = 0, whole = 0;
  float largest = 0;
  for (int i = (int)threadIdx.x; i < blocks; i += (int)blockDim.x) {
    plain += parts[i * FIGURES];
    whole += parts[i * FIGURES + 1];
    largest = fmaxf(largest, (float)parts[i * FIGURES + 2]);
  }
  plain = block_sum(plain, sums);
  whole = block_sum(whole, sums);
  largest = block_max(largest, most);
  if (threadIdx.x == 0) figures[0] = share * plain, figures[1] = share * whole, figures[2] = (double)largest;
}

__global__ void squares(const float *x, int64_t count, double *parts) {
  __shared__ double sums[BLOCK / WARP];
  double sum = 0;
  EACH_ITEM(i, count) sum += (double)x[i] * (double)x[i];
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void join_squares(const double *parts, int blocks, double share, double *square) {
  __shared__ double sums[BLOCK / WARP];
  double sum = 0;
  for (int i = (int)threadIdx.x; i < blocks; i += (int)blockDim.x) sum += parts[i];
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) *square = share * sum;
}

// ---- lists of all parameters ----

struct Limits {
  double most, least, rate;
};

__global__ void find_factors(const double *figures, const double *metrics, float *factors, int64_t tensors,
                             int64_t parts, Limits c) {
  EACH_ITEM(t, metrics[TWS_METRIC_CLIP] == 0 ? 0 : tensors) {
    double plain = 0, whole = 0, largest = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const double *own = figures + (part * tensors + t) * FIGURES;
      plain += own[0], whole += own[1], largest = larger_of(largest, own[2]);
    }
    const double weight = whole == 0 ? 1.0 : cut_to(sqrt(plain / whole), 0, 1), before = (double)factors[t];
    const double factor = cut_to(largest * weight + (1 - weight), c.least, c.most);
    factors[t] = (float)cut_to(factor, before * (1 - c.rate), before * (1 + c.rate));
  }
}

__global__ void follow_ratios(const double *norms, const float *hyper, const double *metrics, float *ratios,
                              int64_t tensors, Limits c) {
  if (metrics[TWS_METRIC_CLIP] == 0 || hyper[TWS_HYPER_REST1] == 0) return;
  EACH_ITEM(t, tensors) {
    if (norms[2 * t] == 0 || norms[2 * t + 1] == 0) continue;
    const double ratio = cut_to(sqrt(norms[2 * t] / norms[2 * t + 1]), c.least, c.most);
    if (ratio != 1) ratios[t] = (float)(c.rate * (double)ratios[t] + (1 - c.rate) * ratio);
  }
}

// Launched with one block.
__global__ void find_scales(const double *squares, float *scales, float *factors, int64_t tensors) {
  __shared__ double sums[BLOCK / WARP];
  double sum = 0, counted = 0;
  for (int64_t t = threadIdx.x; t < tensors; t += blockDim.x) {
    sum += sqrt(squares[t]);
    counted += squares[t] != 0 ? 1 : 0;
  }
  sum = block_sum(sum, sums);
  counted = block_sum(counted, sums);
  for (int64_t t = threadIdx.x; t < tensors; t += blockDim.x) {
    scales[t] = squares[t] != 0 ? (float)(sum / counted / sqrt(squares[t])) : 1.0f;
    factors[t] = 1.0f;
  }
}

// ---- the update ----

template <typename P>
__global__ void frozen(float *p, const float *m, const float *v, const float *ratio, const float *factor,
                       const float *hyper, const double *metrics, P *p16, int64_t count, float epsilon, float decay) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const float by = hyper[TWS_HYPER_LR] * *ratio * *factor;
  EACH_ITEM(i, count) {
    const float weight = p[i], changed = weight - by * (m[i] / (sqrtf(v[i]) + epsilon) + decay * weight);
    p[i] = changed;
    if (p16) p16[i] = from_float<P>(changed);
  }
}

float parameter(const tws_cuda_call *call, const char *name) {
  return (float)tws_work_parameter(call->work, name);
}

}  // namespace

tws_code tws_cuda_scaled_momentum(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  FOR_TYPE(call->dtype[0], T,
           LAUNCH((scaled<T>), grid_for(call, count, BLOCK), BLOCK, 0, call, in<T>(call, 0), in<float>(call, 1),
                  in<float>(call, 2), in<float>(call, 3), in<double>(call, 4), out<float>(call, 5), count,
                  call->argument[0]));
  return launched(err);
}

tws_code tws_cuda_fresh_moments(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, count, BLOCK);
  LAUNCH(fresh, blocks, BLOCK, 0, call, in<float>(call, 0), in<float>(call, 1), out<float>(call, 2), in<float>(call, 3),
         out<float>(call, 4), in<float>(call, 5), in<float>(call, 6), in<double>(call, 7), count,
         parameter(call, "epsilon"), parameter(call, "weight_decay"), parts);
  TWS_TRY(launched(err));
  LAUNCH(join_figures, 1, BLOCK, 0, call, parts, (int)blocks, call->argument[0], out<double>(call, 8));
  return launched(err);
}

tws_code tws_cuda_lamb_factors(const tws_cuda_call *call, tws_error *err) {
  const tws_work *w = call->work;
  const Limits limits = {tws_work_parameter(w, "factor_max"), tws_work_parameter(w, "factor_min"),
                         tws_work_parameter(w, "factor_threshold")};
  LAUNCH(find_factors, grid_for(call, w->d[0], BLOCK), BLOCK, 0, call, in<double>(call, 0), in<double>(call, 1),
         out<float>(call, 2), w->d[0], w->d[1], limits);
  return launched(err);
}

tws_code tws_cuda_lamb_ratios(const tws_cuda_call *call, tws_error *err) {
  const tws_work *w = call->work;
  const Limits limits = {tws_work_parameter(w, "max_coeff"), tws_work_parameter(w, "min_coeff"),
                         tws_work_parameter(w, "coeff_beta")};
  LAUNCH(follow_ratios, grid_for(call, w->d[0], BLOCK), BLOCK, 0, call, in<double>(call, 0), in<float>(call, 1),
         in<double>(call, 2), out<float>(call, 3), w->d[0], limits);
  return launched(err);
}

tws_code tws_cuda_mean_square(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, count, BLOCK);
  LAUNCH(squares, blocks, BLOCK, 0, call, in<float>(call, 0), count, parts);
  TWS_TRY(launched(err));
  LAUNCH(join_squares, 1, BLOCK, 0, call, parts, (int)blocks, call->argument[0], out<double>(call, 1));
  return launched(err);
}

tws_code tws_cuda_momentum_scales(const tws_cuda_call *call, tws_error *err) {
  LAUNCH(find_scales, 1, BLOCK, 0, call, in<double>(call, 0), out<float>(call, 1), out<float>(call, 2),
         call->work->d[0]);
  return launched(err);
}

tws_code tws_cuda_frozen_lamb(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  const int type = call->count > 7 ? call->dtype[7] : TWS_F32;
  FOR_TYPE(type, P,
           LAUNCH((frozen<P>), grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), in<float>(call, 1),
                  in<float>(call, 2), in<float>(call, 3), in<float>(call, 4), in<float>(call, 5), in<double>(call, 6),
                  call->count > 7 ? out<P>(call, 7) : nullptr, count, parameter(call, "epsilon"),
                  parameter(call, "weight_decay")));
  return launched(err);
}
