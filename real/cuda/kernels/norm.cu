// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019). Rows belong to warps; gradients of weight and
// bias are column sums in two stages, through scratch, in an order that only the shape and the device decide.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { ROWS = BLOCK / WARP };  // of a block, one for each warp

// For each pack of a row that this lane owns.
#define EACH_PACK(column, width, V) \
  for (int64_t column = (int64_t)(threadIdx.x % WARP) * V; column < width; column += WARP * V)

template <typename T, int V, bool RMS>
__global__ void norm(const T *x, const T *weight, const T *bias, T *y, float *stats, int64_t tokens, int64_t width,
                     float epsilon) {
  const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  if (row >= tokens) return;
  const T *from = x + row * width;
  float mean = 0.0F, squares = 0.0F;
  if (!RMS) {
    EACH_PACK(c, width, V) {
      float v[V];
      load<V>(from + c, v);
#pragma unroll
      for (int j = 0; j < V; ++j) mean += v[j];
    }
    mean = warp_sum(mean) / (float)width;
  }
  EACH_PACK(c, width, V) {  // the row is in the cache now
    float v[V];
    load<V>(from + c, v);
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (v[j] - mean) * (v[j] - mean);
  }
  const float inverse = 1.0F / sqrtf(warp_sum(squares) / (float)width + epsilon);
  EACH_PACK(c, width, V) {
    float v[V], w[V], b[V];
    load<V>(from + c, v);
    load<V>(weight + c, w);
    if (bias) load<V>(bias + c, b);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = (v[j] - mean) * inverse * w[j] + (bias ? b[j] : 0.0F);
    store<V>(y + row * width + c, v);
  }
  if (threadIdx.x % WARP != 0) return;
  if (RMS) {
    stats[row] = inverse;
  } else {
    stats[2 * row] = mean;
    stats[2 * row + 1] = inverse;
  }
}

template <typename T, int V, bool RMS>
__global__ void norm_grad_input(const T *dy, const T *x, const T *weight, const float *stats, T *dx, int64_t tokens,
                                int64_t width, bool accumulate) {
  const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  if (row >= tokens) return;
  const float mean = RMS ? 0.0F : stats[2 * row], inverse = RMS ? stats[row] : stats[2 * row + 1];
  const T *d = dy + row * width, *from = x + row * width;
  float sum_g = 0.0F, sum_gz = 0.0F;
  EACH_PACK(c, width, V) {
    float g[V], v[V], w[V];
    load<V>(d + c, g);
    load<V>(from + c, v);
    load<V>(weight + c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      sum_g += g[j] * w[j];
      sum_gz += g[j] * w[j] * ((v[j] - mean) * inverse);
    }
  }
  const float mean_g = RMS ? 0.0F : warp_sum(sum_g) / (float)width, mean_gz = warp_sum(sum_gz) / (float)width;
  EACH_PACK(c, width, V) {
    float g[V], v[V], w[V], old[V];
    load<V>(d + c, g);
    load<V>(from + c, v);
    load<V>(weight + c, w);
    if (accumulate) load<V>(dx + row * width + c, old);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float z = (v[j] - mean) * inverse;
      g[j] = (g[j] * w[j] - mean_g - z * mean_gz) * inverse + (accumulate ? old[j] : 0.0F);
    }
    store<V>(dx + row * width + c, g);
  }
}

// Partial column sums: part p of `parts` takes rows p, p + parts, ...; a thread owns V columns.
// sums: [parts][2][width]: of dy z, and of dy. Without stats, of dy alone: [parts][width].
template <typename T, int V, bool RMS>
__global__ void column_parts(const T *dy, const T *x, const float *stats, float *sums, int64_t tokens, int64_t width) {
  const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (c >= width) return;
  float plain[V] = {}, normed[V] = {};
  for (int64_t row = blockIdx.y; row < tokens; row += gridDim.y) {
    float d[V], v[V];
    load<V>(dy + row * width + c, d);
    if (stats) {
      const float mean = RMS ? 0.0F : stats[2 * row], inverse = RMS ? stats[row] : stats[2 * row + 1];
      load<V>(x + row * width + c, v);
#pragma unroll
      for (int j = 0; j < V; ++j) normed[j] += d[j] * ((v[j] - mean) * inverse);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) plain[j] += d[j];
  }
  float *to = sums + (int64_t)blockIdx.y * width * (stats ? 2 : 1) + c;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (stats) to[j] = normed[j];
    to[(stats ? width : 0) + j] = plain[j];
  }
}

// out[c] (+)= sum over parts of sums[part stride + c]
template <typename T>
__global__ void column_finish(const float *sums, int parts, int64_t stride, int64_t width, T *to, bool accumulate) {
  const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= width) return;
  float sum = accumulate ? to_float(to[c]) : 0.0F;
  for (int p = 0; p < parts; ++p) sum += sums[p * stride + c];
  to[c] = from_float<T>(sum);
}

enum { COLUMN_BLOCK = 64 };

// Enough parts to fill the device, few enough for the scratch; 0: not even one fits.
int parts_for(const tws_cuda_call *call, int64_t tokens, int64_t width, int64_t floats_per_column, int pack) {
  const int64_t chunks = ceil_div(width, (int64_t)COLUMN_BLOCK * pack);
  int64_t parts = ceil_div((int64_t)call->multiprocessors * 8, chunks);
  const int64_t room = (int64_t)(call->scratch_bytes / sizeof(float)) / (width * floats_per_column);
  if (parts > tokens) parts = tokens;
  if (parts > room) parts = room;
  if (parts < 1 && room > 0) parts = 1;  // no tokens: one part of zeros
  return (int)(parts < 512 ? parts : 512);
}

tws_code too_wide(int64_t width, tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "column sums of %lld columns do not fit the scratch memory",
                  (long long)width);
}

tws_code finish(const tws_cuda_call *call, const float *sums, int parts, int64_t stride, int64_t width, void *to,
                tws_dtype type, bool accumulate, tws_error *err) {
  const unsigned grid = (unsigned)ceil_div(width, BLOCK);
  FOR_TYPE(type, G,
           LAUNCH(column_finish, grid, BLOCK, 0, call, sums, parts, stride, width, static_cast<G *>(to), accumulate));
  return launched(err);
}

template <typename T, int V, bool RMS>
tws_code run_norm(const tws_cuda_call *call, const T *bias, tws_error *err) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const int y = bias ? 3 : 2;
  LAUNCH((norm<T, V, RMS>), (unsigned)ceil_div(tokens, ROWS), BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1), bias,
         out<T>(call, y), out<float>(call, y + 1), tokens, width, (float)call->work->f[0]);
  return launched(err);
}

template <typename T, int V, bool RMS>
tws_code run_norm_grad(const tws_cuda_call *call, tws_error *err) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const uint32_t flags = call->work->flags;
  const T *dy = in<T>(call, 0), *x = in<T>(call, 1);
  const float *stats = in<float>(call, 3);
  float *sums = static_cast<float *>(call->scratch);
  const int parts = parts_for(call, tokens, width, 2, V);
  if (parts < 1) return too_wide(width, err);
  const dim3 grid((unsigned)ceil_div(width, (int64_t)COLUMN_BLOCK * V), (unsigned)parts);
  LAUNCH((column_parts<T, V, RMS>), grid, COLUMN_BLOCK, 0, call, dy, x, stats, sums, tokens, width);
  TWS_TRY(launched(err));
  const bool add = flags & TWS_ACCUMULATE_PARAM;
  TWS_TRY(finish(call, sums, parts, 2 * width, width, call->operand[5], call->dtype[5], add, err));
  if (call->count > 6)
    TWS_TRY(finish(call, sums + width, parts, 2 * width, width, call->operand[6], call->dtype[6], add, err));
  if (tokens == 0) return TWS_OK;
  LAUNCH((norm_grad_input<T, V, RMS>), (unsigned)ceil_div(tokens, ROWS), BLOCK, 0, call, dy, x, in<T>(call, 2), stats,
         out<T>(call, 4), tokens, width, (flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T>
tws_code choose_norm(const tws_cuda_call *whole, tws_error *err) {
  tws_cuda_call part = *whole, *const call = &part;
  const int biased = (whole->work->flags & (TWS_BIAS | TWS_RMS)) == TWS_BIAS;
  void *operand[5];
  for (int i = 0; i < 4 + biased; ++i) operand[i] = whole->operand[i];
  part.operand = operand;
  part.count = 4 + biased;
  if (whole->work->flags & TWS_RESIDUAL) {
    tws_work add = *whole->work;
    add.code = TWS_KERNEL_ADD;
    add.d[0] *= add.d[1];
    void *const terms[] = {whole->operand[0], whole->operand[part.count], whole->operand[part.count + 1]};
    tws_cuda_call sum = *whole;
    sum.work = &add;
    sum.operand = terms;
    sum.count = 3;
    TWS_TRY(tws_cuda_add(&sum, err));
    operand[0] = terms[2];
  }
  constexpr int N = Width<T>::value;
  const bool rms = call->work->flags & TWS_RMS;
  const int64_t width = call->work->d[1];
  if (call->work->d[0] == 0 || width == 0) return TWS_OK;
  const T *bias = call->count == 5 ? in<T>(call, 2) : nullptr;
  const bool aligned = packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width) &&
                       packable<N>(bias, width) && packable<N>(in<T>(call, bias ? 3 : 2), width);
  if (rms) return aligned ? run_norm<T, N, true>(call, nullptr, err) : run_norm<T, 1, true>(call, nullptr, err);
  return aligned ? run_norm<T, N, false>(call, bias, err) : run_norm<T, 1, false>(call, bias, err);
}

template <typename T>
tws_code choose_norm_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t width = call->work->d[1];
  if (width == 0) return TWS_OK;
  const bool aligned = packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width) &&
                       packable<N>(in<T>(call, 2), width) && packable<N>(in<T>(call, 4), width);
  if (call->work->flags & TWS_RMS)
    return aligned ? run_norm_grad<T, N, true>(call, err) : run_norm_grad<T, 1, true>(call, err);
  return aligned ? run_norm_grad<T, N, false>(call, err) : run_norm_grad<T, 1, false>(call, err);
}

template <typename T>
tws_code run_column_sums(const tws_cuda_call *call, const T *x, int64_t rows, int64_t columns, void *to, tws_dtype type,
                         bool accumulate, tws_error *err) {
  constexpr int N = Width<T>::value;
  float *sums = static_cast<float *>(call->scratch);
  const bool aligned = packable<N>(x, columns);
  const int parts = parts_for(call, rows, columns, 1, aligned ? N : 1);
  if (parts < 1) return too_wide(columns, err);
  const dim3 grid((unsigned)ceil_div(columns, (int64_t)COLUMN_BLOCK * (aligned ? N : 1)), (unsigned)parts);
  if (aligned)
    LAUNCH((column_parts<T, N, true>), grid, COLUMN_BLOCK, 0, call, x, nullptr, nullptr, sums, rows, columns);
  else
    LAUNCH((column_parts<T, 1, true>), grid, COLUMN_BLOCK, 0, call, x, nullptr, nullptr, sums, rows, columns);
  TWS_TRY(launched(err));
  return finish(call, sums, parts, columns, columns, to, type, accumulate, err);
}

}  // namespace

tws_code tws_cuda_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return choose_norm<T>(call, err));
}
tws_code tws_cuda_norm_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return choose_norm_grad<T>(call, err));
}
tws_code tws_cuda_column_sums(const tws_cuda_call *call, const void *x, tws_dtype type, int64_t rows, int64_t columns,
                              void *to, tws_dtype to_type, int accumulate, tws_error *err) {
  if (columns == 0) return TWS_OK;
  FOR_TYPE(type, T,
           return run_column_sums(call, static_cast<const T *>(x), rows, columns, to, to_type, accumulate != 0, err));
}
