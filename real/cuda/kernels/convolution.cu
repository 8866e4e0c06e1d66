// Convolutions: products with matrices of patches, which are built for a few pictures at a time; convolutions with
// groups are plain sums. No sum depends on timing.
#include "models/windows.h"
#include "real/cuda/kernels/common.cuh"

namespace {

// Sizes of a convolution, for the pictures that one kernel launch processes.
struct Shape {
  tws_windows w;
  int64_t width;    // elements of a patch
  int64_t windows;  // windows of a picture
  bool accumulate;
};

// The output windows that contain one input pixel, as ranges of rows and columns; tap_of() returns the tap of a window
// that reads the pixel.
struct Over {
  int64_t y, x, row, row_end, column, column_end;
};
__device__ inline Over windows_over(const Shape &s, int64_t pixel) {
  Over o;
  o.y = pixel / s.w.width % s.w.height;
  o.x = pixel % s.w.width;
  tws_windows_over(o.y, s.w.rows, s.w.stride, s.w.padding, s.w.out_height, &o.row, &o.row_end);
  tws_windows_over(o.x, s.w.columns, s.w.stride, s.w.padding, s.w.out_width, &o.column, &o.column_end);
  return o;
}
__device__ inline int64_t tap_of(const Shape &s, const Over &o, int64_t oy, int64_t ox) {
  return (o.y + s.w.padding - oy * s.w.stride) * s.w.columns + o.x + s.w.padding - ox * s.w.stride;
}

// Returns the input pixel of a window's tap, or -1 if it is outside the picture.
__device__ inline int64_t pixel_of(const Shape &s, int64_t window, int64_t tap) {
  const int64_t y = window % s.windows / s.w.out_width * s.w.stride - s.w.padding + tap / s.w.columns;
  const int64_t x = window % s.w.out_width * s.w.stride - s.w.padding + tap % s.w.columns;
  if (y < 0 || y >= s.w.height || x < 0 || x >= s.w.width) return -1;
  return (window / s.windows * s.w.height + y) * s.w.width + x;
}

// ---- patches: adjacent threads copy adjacent channels of one tap, V channels each ----

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) make_patches(const T *x, T *patches, Shape s, int64_t count) {
  const int64_t packs = s.w.in / V;
  EACH_ITEM(i, count) {
    const int64_t channel = i % packs * V, place = i / packs, taps = s.width / s.w.in;
    const int64_t pixel = pixel_of(s, place / taps, place % taps);
    float v[V] = {};
    if (pixel >= 0) load<V>(x + pixel * s.w.in + channel, v);
    store<V>(patches + i * V, v);
  }
}

// Computes the gradient of a pixel: the sum over the patches that contain it.
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) gather_patches(const float *patches, T *dx, Shape s, int64_t count) {
  const int64_t packs = s.w.in / V;
  EACH_ITEM(i, count) {
    const int64_t channel = i % packs * V, pixel = i / packs;
    const float *own = patches + pixel / (s.w.height * s.w.width) * s.windows * s.width + channel;
    const Over o = windows_over(s, pixel);
    float sum[V] = {}, v[V];
    if (s.accumulate) load<V>(dx + i * V, sum);
    for (int64_t oy = o.row; oy < o.row_end; ++oy)
      for (int64_t ox = o.column; ox < o.column_end; ++ox) {
        load<V>(own + (oy * s.w.out_width + ox) * s.width + tap_of(s, o, oy, ox) * s.w.in, v);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += v[j];
      }
    store<V>(dx + i * V, sum);
  }
}

// ---- convolutions with groups: a thread computes one element ----

// Returns the first input channel of the group of an output channel.
__device__ inline int64_t first_input(const Shape &s, int64_t channel) {
  return channel / (s.w.out / s.w.groups) * (s.w.in / s.w.groups);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) group_forward(const T *x, const T *weight, const T *bias, T *y, Shape s) {
  const int64_t own = s.w.in / s.w.groups, taps = s.w.rows * s.w.columns;
  EACH_ITEM(i, s.w.samples * s.windows * s.w.out) {
    const int64_t channel = i % s.w.out, first = first_input(s, channel);
    float sum = bias ? to_float(bias[channel]) : 0.0F;
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t pixel = pixel_of(s, i / s.w.out, t);
      for (int64_t k = 0; k < own && pixel >= 0; ++k)
        sum += to_float(x[pixel * s.w.in + first + k]) * to_float(weight[(channel * taps + t) * own + k]);
    }
    y[i] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) group_input(const T *dy, const T *weight, T *dx, Shape s) {
  const int64_t own = s.w.in / s.w.groups, others = s.w.out / s.w.groups, taps = s.w.rows * s.w.columns;
  EACH_ITEM(i, s.w.samples * s.w.height * s.w.width * s.w.in) {
    const int64_t channel = i % s.w.in, pixel = i / s.w.in, first = channel / own * others;
    const Over o = windows_over(s, pixel);
    float sum = s.accumulate ? to_float(dx[i]) : 0.0F;
    for (int64_t oy = o.row; oy < o.row_end; ++oy)
      for (int64_t ox = o.column; ox < o.column_end; ++ox) {
        const int64_t window = pixel / (s.w.height * s.w.width) * s.windows + oy * s.w.out_width + ox;
        const int64_t t = tap_of(s, o, oy, ox);
        for (int64_t k = first; k < first + others; ++k)
          sum += to_float(dy[window * s.w.out + k]) * to_float(weight[(k * taps + t) * own + channel % own]);
      }
    dx[i] = from_float<T>(sum);
  }
}

// Computes partial sums of the weights' gradient. A block sums the windows of range blockIdx.y; adjacent threads
// compute adjacent output channels.
template <typename T>
__global__ void __launch_bounds__(BLOCK, 1)  // one block per multiprocessor is enough: more registers are faster here
    group_weight_parts(const T *dy, const T *x, float *parts, Shape s) {
  const int64_t own = s.w.in / s.w.groups, weights = s.w.out * s.w.rows * s.w.columns * own;
  const int64_t all = s.w.samples * s.windows, begin = all * blockIdx.y / gridDim.y,
                end = all * (blockIdx.y + 1) / gridDim.y;
  EACH_ITEM(i, weights) {
    const int64_t channel = i % s.w.out, t = i / s.w.out / own, k = i / s.w.out % own;
    float sum = 0.0F;
    for (int64_t window = begin; window < end; ++window) {
      const int64_t pixel = pixel_of(s, window, t);
      if (pixel >= 0)
        sum += to_float(dy[window * s.w.out + channel]) * to_float(x[pixel * s.w.in + first_input(s, channel) + k]);
    }
    parts[blockIdx.y * weights + i] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) group_weight_finish(const float *parts, int count, T *dweight, Shape s) {
  const int64_t own = s.w.in / s.w.groups, taps = s.w.rows * s.w.columns, weights = s.w.out * taps * own;
  EACH_ITEM(i, weights) {
    const int64_t channel = i % s.w.out, t = i / s.w.out / own, k = i / s.w.out % own;
    T *to = dweight + (channel * taps + t) * own + k;
    float sum = s.accumulate ? to_float(*to) : 0.0F;
    for (int p = 0; p < count; ++p) sum += parts[p * weights + i];
    *to = from_float<T>(sum);
  }
}

// ---- launches ----

Shape shape_of(const tws_cuda_call *call, int64_t samples) {
  Shape s = {};
  s.w = tws_windows_of(call->work);
  s.w.samples = samples < 0 ? s.w.samples : samples;
  s.width = s.w.rows * s.w.columns * s.w.in;
  s.windows = s.w.out_height * s.w.out_width;
  s.accumulate = (call->work->flags & TWS_ACCUMULATE) != 0;
  return s;
}

template <typename T>
tws_code run_make(const tws_cuda_call *call, const Shape &s, const void *x, void *patches, tws_error *err) {
  constexpr int N = Width<T>::value;
  const T *from = static_cast<const T *>(x);
  T *to = static_cast<T *>(patches);
  const int64_t count = s.w.samples * s.windows * s.width;
  if (packable<N>(from, s.w.in) && packable<N>(to, s.w.in))
    LAUNCH((make_patches<T, N>), grid_for(call, count / N, BLOCK), BLOCK, 0, call, from, to, s, count / N);
  else
    LAUNCH((make_patches<T, 1>), grid_for(call, count, BLOCK), BLOCK, 0, call, from, to, s, count);
  return launched(err);
}

template <typename T>
tws_code run_gather(const tws_cuda_call *call, const Shape &s, const void *patches, void *dx, tws_error *err) {
  constexpr int N = Width<T, float>::value;
  const float *from = static_cast<const float *>(patches);
  T *to = static_cast<T *>(dx);
  const int64_t count = s.w.samples * s.w.height * s.w.width * s.w.in;
  if (packable<N>(from, s.w.in) && packable<N>(to, s.w.in))
    LAUNCH((gather_patches<T, N>), grid_for(call, count / N, BLOCK), BLOCK, 0, call, from, to, s, count / N);
  else
    LAUNCH((gather_patches<T, 1>), grid_for(call, count, BLOCK), BLOCK, 0, call, from, to, s, count);
  return launched(err);
}

struct Part {
  void *operand[4];
  tws_dtype dtype[4];
  int count;
};
void add_operand(Part *p, void *operand, tws_dtype dtype) {
  p->operand[p->count] = operand;
  p->dtype[p->count++] = dtype;
}

// Runs another kernel on a range of the pictures: a product (rows, ins) x (ins, outs), or an element-wise kernel of
// `rows` elements.
tws_code run_part(const tws_cuda_call *call, tws_cuda_function run, tws_kernel kernel, int64_t rows, int64_t outs,
                  int64_t ins, uint32_t flags, const Part &p, tws_error *err) {
  tws_work work = {};
  work.code = (uint8_t)kernel;
  work.dtype = (uint8_t)p.dtype[0];
  work.dtype2 = (uint8_t)p.dtype[p.count - 1];
  work.flags = flags;
  work.d[0] = rows, work.d[1] = outs, work.d[2] = ins;
  tws_cuda_call part = *call;
  part.work = &work, part.operand = p.operand, part.dtype = p.dtype, part.count = p.count;
  return run(&part, err);
}

void *pictures(void *base, tws_dtype type, int64_t first, int64_t numbers) {
  return static_cast<char *>(base) + first * numbers * (type == TWS_F32 ? 4 : 2);
}

tws_code forward_part(const tws_cuda_call *call, bool direct, int64_t first, const Shape &s, tws_error *err) {
  const tws_dtype type = call->dtype[0];
  const bool biased = call->count > 4;
  void *x = pictures(call->operand[0], type, first, s.w.height * s.w.width * s.w.in);
  void *patches = direct ? x : call->operand[call->count - 1];
  Part p = {};
  if (!direct) FOR_TYPE(type, T, TWS_TRY(run_make<T>(call, s, x, patches, err)));
  add_operand(&p, patches, type);
  add_operand(&p, call->operand[1], type);
  if (biased) add_operand(&p, call->operand[2], type);
  add_operand(&p, pictures(call->operand[call->count - 2], type, first, s.windows * s.w.out), type);
  return run_part(call, tws_cuda_linear, TWS_KERNEL_LINEAR, s.w.samples * s.windows, s.w.out, s.width,
                  biased ? TWS_BIAS : 0, p, err);
}

tws_code input_part(const tws_cuda_call *call, bool direct, int64_t first, const Shape &s, tws_error *err) {
  const tws_dtype type = call->dtype[0];
  void *dx = pictures(call->operand[2], type, first, s.w.height * s.w.width * s.w.in), *patches = call->operand[3];
  Part p = {};
  add_operand(&p, pictures(call->operand[0], type, first, s.windows * s.w.out), type);
  add_operand(&p, call->operand[1], type);
  add_operand(&p, direct ? dx : patches, direct ? type : TWS_F32);
  TWS_TRY(run_part(call, tws_cuda_linear_grad_input, TWS_KERNEL_LINEAR_GRAD_INPUT, s.w.samples * s.windows, s.w.out,
                   s.width, direct && s.accumulate ? TWS_ACCUMULATE : 0, p, err));
  if (direct) return TWS_OK;
  FOR_TYPE(type, T, return run_gather<T>(call, s, patches, dx, err));
}

// Gradients of the weights and biases, and their types; `added`: they are added to existing values.
struct Sums {
  void *weights, *biases;
  tws_dtype type;
  bool added;
};

tws_code weight_part(const tws_cuda_call *call, const Sums &sums, bool direct, int64_t first, const Shape &s,
                     tws_error *err) {
  const tws_dtype type = call->dtype[0];
  void *x = pictures(call->operand[1], type, first, s.w.height * s.w.width * s.w.in);
  void *patches = direct ? x : call->operand[call->count - 1];
  Part p = {};
  if (!direct) FOR_TYPE(type, T, TWS_TRY(run_make<T>(call, s, x, patches, err)));
  add_operand(&p, pictures(call->operand[0], type, first, s.windows * s.w.out), type);
  add_operand(&p, patches, type);
  add_operand(&p, sums.weights, sums.type);
  if (sums.biases) add_operand(&p, sums.biases, sums.type);
  return run_part(call, tws_cuda_linear_grad_weight, TWS_KERNEL_LINEAR_GRAD_WEIGHT, s.w.samples * s.windows, s.w.out,
                  s.width, (sums.biases ? (uint32_t)TWS_BIAS : 0U) | (sums.added ? (uint32_t)TWS_ACCUMULATE : 0U), p,
                  err);
}

// Rounds float32 sums: 16-bit sums would be rounded once for each part.
tws_code round_sums(const tws_cuda_call *call, float *from, void *to, int64_t count, tws_error *err) {
  const bool accumulate = (call->work->flags & TWS_ACCUMULATE) != 0;
  Part p = {};
  add_operand(&p, from, TWS_F32);
  add_operand(&p, to, call->dtype[2]);
  return run_part(call, accumulate ? tws_cuda_accumulate : tws_cuda_cast,
                  accumulate ? TWS_KERNEL_ACCUMULATE : TWS_KERNEL_CAST, count, 0, 0, 0, p, err);
}

tws_code weight_parts(const tws_cuda_call *call, const tws_patches &patches, void *dbias, tws_error *err) {
  const Shape whole = shape_of(call, -1);
  const int64_t weights = whole.w.out * whole.width;
  const bool rounds = call->dtype[2] != TWS_F32 && patches.samples < whole.w.samples;
  char *workspace = static_cast<char *>(call->operand[call->count - 1]);
  float *wide = reinterpret_cast<float *>(workspace + tws_convolution_patch_bytes(call->work, TWS_BACKEND_CUDA));
  Sums sums = {call->operand[2], dbias, call->dtype[2], whole.accumulate};
  if (rounds) sums = {wide, dbias ? wide + weights : nullptr, TWS_F32, false};
  for (int64_t first = 0; first < whole.w.samples; first += patches.samples, sums.added = true) {
    const int64_t left = whole.w.samples - first;
    const Shape s = shape_of(call, patches.samples < left ? patches.samples : left);
    TWS_TRY(weight_part(call, sums, patches.direct, first, s, err));
  }
  if (!rounds) return TWS_OK;
  TWS_TRY(round_sums(call, wide, call->operand[2], weights, err));
  return dbias ? round_sums(call, wide + weights, dbias, whole.w.out, err) : TWS_OK;
}

template <typename T>
tws_code group_weights(const tws_cuda_call *call, void *dbias, tws_error *err) {
  const Shape s = shape_of(call, -1);
  const int64_t weights = tws_windows_weights(&s.w), windows = s.w.samples * s.windows;
  const int parts = (int)(windows < TWS_CONVOLUTION_PARTS ? windows : (int64_t)TWS_CONVOLUTION_PARTS);
  float *sums = static_cast<float *>(call->operand[call->count - 1]);
  const unsigned blocks = grid_for(call, weights, BLOCK);
  LAUNCH(group_weight_parts<T>, dim3(blocks, (unsigned)parts), BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1), sums, s);
  TWS_TRY(launched(err));
  FOR_TYPE(call->dtype[2], G, LAUNCH(group_weight_finish<G>, blocks, BLOCK, 0, call, sums, parts, out<G>(call, 2), s));
  TWS_TRY(launched(err));
  if (!dbias) return TWS_OK;
  return tws_cuda_column_sums(call, call->operand[0], call->dtype[0], windows, s.w.out, dbias, call->dtype[3],
                              s.accumulate, err);
}

tws_code check_convolution(const tws_cuda_call *call, Shape *s, tws_error *err) {
  *s = shape_of(call, -1);
  const tws_windows *w = &s->w;
  if (w->in % w->groups == 0 && w->out % w->groups == 0 && s->windows > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, nullptr,
                  "%lld groups of %lld and %lld channels, windows of %lld pixels over %lld x %lld",
                  (long long)w->groups, (long long)w->in, (long long)w->out, (long long)w->rows, (long long)w->height,
                  (long long)w->width);
}

typedef tws_code (*part_function)(const tws_cuda_call *call, bool direct, int64_t first, const Shape &s,
                                  tws_error *err);

tws_code run_parts(const tws_cuda_call *call, part_function run, tws_error *err) {
  const tws_patches patches = tws_patches_of(call->work, TWS_BACKEND_CUDA);
  const int64_t samples = call->work->d[0];
  for (int64_t first = 0; first < samples; first += patches.samples) {
    const Shape s = shape_of(call, patches.samples < samples - first ? patches.samples : samples - first);
    TWS_TRY(run(call, patches.direct != 0, first, s, err));
  }
  return TWS_OK;
}

}  // namespace

tws_code tws_cuda_convolution(const tws_cuda_call *call, tws_error *err) {
  Shape s;
  TWS_TRY(check_convolution(call, &s, err));
  if (s.w.groups == 1) return run_parts(call, forward_part, err);
  const int y = call->count - 2;
  const unsigned blocks = grid_for(call, s.w.samples * s.windows * s.w.out, BLOCK);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(group_forward<T>, blocks, BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1),
                  y > 2 ? in<T>(call, 2) : nullptr, out<T>(call, y), s));
  return launched(err);
}

tws_code tws_cuda_convolution_grad_input(const tws_cuda_call *call, tws_error *err) {
  Shape s;
  TWS_TRY(check_convolution(call, &s, err));
  if (s.w.groups == 1) return run_parts(call, input_part, err);
  const unsigned blocks = grid_for(call, s.w.samples * s.w.height * s.w.width * s.w.in, BLOCK);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(group_input<T>, blocks, BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), s));
  return launched(err);
}

tws_code tws_cuda_convolution_grad_weight(const tws_cuda_call *call, tws_error *err) {
  void *dbias = call->count > 4 ? call->operand[3] : nullptr;
  Shape s;
  TWS_TRY(check_convolution(call, &s, err));
  if (s.w.groups == 1) return weight_parts(call, tws_patches_of(call->work, TWS_BACKEND_CUDA), dbias, err);
  FOR_TYPE(call->dtype[0], T, return group_weights<T>(call, dbias, err));
}
