/* Convolutions: matrix products with matrices of patches, which are built for a few pictures at a time. Convolutions
 * with groups are computed as plain sums. */
#include "models/windows.h"
#include "real/host/kernels/kernels.h"

typedef struct convolution {
  const tws_host_call *call;
  tws_windows w;
  tws_patches p;
  const void *from;    /* pictures, or their gradient */
  void *to;            /* pictures, or their gradient */
  void *patches;       /* patches of the pictures that are being processed */
  int64_t first, rows; /* rows: number of pixels (inputs or outputs, as the task requires) of the pictures that are
                        * being processed */
  tws_dtype type;      /* type of the pictures' elements */
  int64_t windows;     /* number of windows of one picture */
  int accumulate;
} convolution;

static convolution begin_convolution(const tws_host_call *call, int workspace) {
  convolution c = {.call = call,
                   .w = tws_windows_of(call->work),
                   .p = tws_patches_of(call->work, TWS_BACKEND_HOST),
                   .patches = call->operand[workspace],
                   .type = call->dtype[0],
                   .accumulate = (call->work->flags & TWS_ACCUMULATE) != 0};
  c.windows = c.w.out_height * c.w.out_width;
  return c;
}

static int64_t size_of(tws_dtype type) {
  return type == TWS_F32 ? 4 : 2;
}

/* Returns the address of picture number `first`; each picture has `numbers` elements. */
static void *pictures(void *base, tws_dtype type, int64_t first, int64_t numbers) {
  return at_mutable(type, base, first * numbers);
}

/* ---- patches ---- */

static void fill_patch(const convolution *c, int64_t row) {
  const tws_windows *w = &c->w;
  const int64_t sample = row / c->windows, y0 = row % c->windows / w->out_width * w->stride - w->padding,
                x0 = row % w->out_width * w->stride - w->padding, bytes = w->in * size_of(c->type);
  char *to = (char *)c->patches + row * c->p.width * size_of(c->type);
  for (int64_t y = y0; y < y0 + w->rows; ++y)
    for (int64_t x = x0; x < x0 + w->columns; ++x, to += bytes) {
      if (y < 0 || y >= w->height || x < 0 || x >= w->width)
        memset(to, 0, (size_t)bytes);
      else
        memcpy(to, (const char *)c->from + ((sample * w->height + y) * w->width + x) * bytes, (size_t)bytes);
    }
}

static void patch_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const host_range r = share(c->rows, 1, thread, threads);
  for (int64_t row = r.begin; row < r.end; ++row) fill_patch(c, row);
}

/* Computes the gradient of a pixel: the sum over the patches that contain it. */
VECTOR_INLINE void sum_patches(tws_dtype T, const convolution *c, int64_t pixel) {
  const tws_windows *w = &c->w;
  const int64_t sample = pixel / (w->height * w->width), y = pixel / w->width % w->height, x = pixel % w->width;
  const float *patches = (const float *)c->patches + sample * c->windows * c->p.width;
  int64_t row, row_end, column, column_end;
  tws_windows_over(y, w->rows, w->stride, w->padding, w->out_height, &row, &row_end);
  tws_windows_over(x, w->columns, w->stride, w->padding, w->out_width, &column, &column_end);
  EACH_VECTOR(i, n, 0, w->in, {
    vf sum = c->accumulate ? v_get(T, c->to, pixel * w->in + i, n) : v_zero();
    for (int64_t oy = row; oy < row_end; ++oy)
      for (int64_t ox = column; ox < column_end; ++ox) {
        const int64_t tap = (y + w->padding - oy * w->stride) * w->columns + x + w->padding - ox * w->stride;
        sum += v_get(TWS_F32, patches, (oy * w->out_width + ox) * c->p.width + tap * w->in + i, n);
      }
    v_put(T, c->to, pixel * w->in + i, sum, n);
  });
}

static void unpatch_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const host_range r = share(c->rows, 1, thread, threads);
  FOR_TYPE(c->type, T, for (int64_t pixel = r.begin; pixel < r.end; ++pixel) sum_patches(T, c, pixel));
}

/* ---- products ---- */

typedef struct part {
  void *operand[4];
  tws_dtype dtype[4];
  int count;
} part;

static void add_operand(part *p, void *operand, tws_dtype dtype) {
  p->operand[p->count] = operand;
  p->dtype[p->count++] = dtype;
}

/* Runs another kernel on the pictures that are being processed: a product of rows x out x in elements, or an
 * elementwise kernel. */
static tws_code run_part(const convolution *c, tws_host_function run, const int64_t d[3], uint32_t flags, const part *p,
                         tws_error *err) {
  const tws_work work = {.dtype = (uint8_t)c->type, .flags = flags, .d = {d[0], d[1], d[2]}};
  const tws_host_call call = {.backend = c->call->backend,
                              .work = &work,
                              .argument = tws_no_arguments.a,
                              .operand = p->operand,
                              .dtype = p->dtype,
                              .count = p->count};
  return run(&call, err);
}

static tws_code forward_part(convolution *c, int64_t first, int64_t samples, tws_error *err) {
  const tws_host_call *call = c->call;
  const int biased = call->count > 4;
  void *x = pictures(call->operand[0], c->type, first, c->w.height * c->w.width * c->w.in);
  part p = {0};
  c->rows = samples * c->windows;
  c->from = x;
  if (!c->p.direct) run_parallel(call, 2.0 * (double)(c->rows * c->p.width), patch_task, c);
  add_operand(&p, c->p.direct ? x : c->patches, c->type);
  add_operand(&p, call->operand[1], c->type);
  if (biased) add_operand(&p, call->operand[2], c->type);
  add_operand(&p, pictures(call->operand[biased ? 3 : 2], c->type, first, c->windows * c->w.out), c->type);
  return run_part(c, TWS_HOST(linear), (const int64_t[]){c->rows, c->w.out, c->p.width}, biased ? TWS_BIAS : 0, &p,
                  err);
}

static tws_code input_part(convolution *c, int64_t first, int64_t samples, tws_error *err) {
  const tws_host_call *call = c->call;
  void *dx = pictures(call->operand[2], c->type, first, c->w.height * c->w.width * c->w.in);
  part p = {0};
  add_operand(&p, pictures(call->operand[0], c->type, first, c->windows * c->w.out), c->type);
  add_operand(&p, call->operand[1], c->type);
  add_operand(&p, c->p.direct ? dx : c->patches, c->p.direct ? c->type : TWS_F32);
  TWS_TRY(run_part(c, TWS_HOST(linear_grad_input), (const int64_t[]){samples * c->windows, c->w.out, c->p.width},
                   c->p.direct && c->accumulate ? TWS_ACCUMULATE : 0, &p, err));
  if (c->p.direct) return TWS_OK;
  c->rows = samples * c->w.height * c->w.width;
  c->to = dx;
  run_parallel(call, 8.0 * (double)(c->rows * c->w.in), unpatch_task, c);
  return TWS_OK;
}

/* Gradients of the weights and biases, and their types; `added`: they are added to existing values. */
typedef struct weight_sums {
  void *weights, *biases; /* biases NULL: the convolution has no biases */
  tws_dtype type;
  int added;
} weight_sums;

static tws_code weight_part(convolution *c, const weight_sums *sums, int64_t first, int64_t samples, tws_error *err) {
  const tws_host_call *call = c->call;
  void *x = pictures(call->operand[1], c->type, first, c->w.height * c->w.width * c->w.in);
  part p = {0};
  c->rows = samples * c->windows;
  c->from = x;
  if (!c->p.direct) run_parallel(call, 2.0 * (double)(c->rows * c->p.width), patch_task, c);
  add_operand(&p, pictures(call->operand[0], c->type, first, c->windows * c->w.out), c->type);
  add_operand(&p, c->p.direct ? x : c->patches, c->type);
  add_operand(&p, sums->weights, sums->type);
  if (sums->biases) add_operand(&p, sums->biases, sums->type);
  return run_part(c, TWS_HOST(linear_grad_weight), (const int64_t[]){c->rows, c->w.out, c->p.width},
                  (sums->biases ? TWS_BIAS : 0U) | (sums->added ? TWS_ACCUMULATE : 0U), &p, err);
}

/* Rounds float32 sums to the type of the gradient: 16-bit sums would be rounded once for each part. */
static tws_code round_sums(const convolution *c, float *from, void *to, int64_t count, tws_error *err) {
  part p = {0};
  add_operand(&p, from, TWS_F32);
  add_operand(&p, to, c->call->dtype[2]);
  return run_part(c, c->accumulate ? TWS_HOST(accumulate) : TWS_HOST(cast), (const int64_t[]){count, 0, 0}, 0, &p, err);
}

/* ---- convolutions with groups: each output channel reads only the input channels of its group ---- */

static int64_t group_of(int64_t channel, int64_t channels, int64_t groups) {
  return channel / (channels / groups);
}

/* Converts the weights to float32, in the order [tap][input channel of the group][output channel] or, with by_input,
 * [tap][output channel of the group][input channel]. */
static float *widen_weights(const convolution *c, const void *weights, int by_input) {
  const tws_windows *w = &c->w;
  const int64_t taps = w->rows * w->columns, in = w->in / w->groups, out = w->out / w->groups;
  float *to = c->patches;
  for (int64_t o = 0; o < w->out; ++o)
    for (int64_t t = 0; t < taps; ++t)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t place = by_input ? (t * out + o % out) * w->in + o / out * in + i : (t * in + i) * w->out + o;
        FOR_TYPE(c->type, T, to[place] = v_get(T, weights, (o * taps + t) * in + i, 1)[0]);
      }
  return to;
}

/* Returns 1 if each channel is a group of its own (depthwise): vectors of input channels then are vectors of output
 * channels too. */
static int is_depthwise(const tws_windows *w) {
  return w->in == w->groups && w->out == w->groups;
}
VECTOR_INLINE vf other_side(tws_dtype T, const void *base, int64_t place, int depthwise, int n) {
  return depthwise ? v_get(T, base, place, n) : v_set(v_get(T, base, place, 1)[0]);
}

/* Computes output channels [o, o + n) of a window, which are all in one group, or depthwise. */
VECTOR_INLINE void group_window(tws_dtype T, const convolution *c, int64_t row, int64_t o, int n) {
  const tws_windows *w = &c->w;
  const int64_t sample = row / c->windows, y0 = row % c->windows / w->out_width * w->stride - w->padding,
                x0 = row % w->out_width * w->stride - w->padding, in = w->in / w->groups;
  const int depthwise = is_depthwise(w);
  const int64_t channel = depthwise ? o : group_of(o, w->out, w->groups) * in;
  const float *weights = c->patches;
  vf sum = c->call->count > 4 ? v_get(T, c->call->operand[2], o, n) : v_zero();
  for (int64_t t = 0; t < w->rows * w->columns; ++t) {
    const int64_t y = y0 + t / w->columns, x = x0 + t % w->columns;
    if (y < 0 || y >= w->height || x < 0 || x >= w->width) continue;
    const int64_t pixel = ((sample * w->height + y) * w->width + x) * w->in + channel;
    for (int64_t i = 0; i < in; ++i)
      sum += other_side(T, c->from, pixel + i, depthwise, n) * v_get(TWS_F32, weights, (t * in + i) * w->out + o, n);
  }
  v_put(T, c->to, row * w->out + o, sum, n);
}

/* Computes the gradient of input channels [i, i + n) of a pixel, which are all in one group, or depthwise. */
VECTOR_INLINE void group_pixel(tws_dtype T, const convolution *c, int64_t pixel, int64_t i, int n) {
  const tws_windows *w = &c->w;
  const int64_t sample = pixel / (w->height * w->width), y = pixel / w->width % w->height, x = pixel % w->width;
  const int64_t out = w->out / w->groups;
  const int depthwise = is_depthwise(w);
  const int64_t channel = depthwise ? i : group_of(i, w->in, w->groups) * out;
  const float *weights = c->patches;
  int64_t row, row_end, column, column_end;
  tws_windows_over(y, w->rows, w->stride, w->padding, w->out_height, &row, &row_end);
  tws_windows_over(x, w->columns, w->stride, w->padding, w->out_width, &column, &column_end);
  vf sum = c->accumulate ? v_get(T, c->to, pixel * w->in + i, n) : v_zero();
  for (int64_t oy = row; oy < row_end; ++oy)
    for (int64_t ox = column; ox < column_end; ++ox) {
      const int64_t tap = (y + w->padding - oy * w->stride) * w->columns + x + w->padding - ox * w->stride;
      const int64_t at_window = ((sample * w->out_height + oy) * w->out_width + ox) * w->out + channel;
      for (int64_t o = 0; o < out; ++o)
        sum += other_side(T, c->from, at_window + o, depthwise, n) *
               v_get(TWS_F32, weights, (tap * out + o) * w->in + i, n);
    }
  v_put(T, c->to, pixel * w->in + i, sum, n);
}

/* Computes the gradient of the weights of a tap between output channel o of the group and input channels [i, i + n).
 * Windows are summed in order, in blocks, which keeps long sums accurate. */
VECTOR_INLINE void group_weights(tws_dtype T, const convolution *c, int64_t t, int64_t o, int64_t i, int n) {
  enum { BLOCK = 256 };
  const tws_windows *w = &c->w;
  const int64_t out = w->out / w->groups, rows = w->samples * c->windows;
  const int depthwise = is_depthwise(w);
  const int64_t channel = depthwise ? i : group_of(i, w->in, w->groups) * out + o;
  vf total = v_zero(), sum = v_zero();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t y = row % c->windows / w->out_width * w->stride - w->padding + t / w->columns,
                  x = row % w->out_width * w->stride - w->padding + t % w->columns;
    if (row % BLOCK == 0) total += sum, sum = v_zero();
    if (y < 0 || y >= w->height || x < 0 || x >= w->width) continue;
    const int64_t pixel = ((row / c->windows * w->height + y) * w->width + x) * w->in;
    sum += other_side(T, c->from, row * w->out + channel, depthwise, n) * v_get(T, c->call->operand[1], pixel + i, n);
  }
  v_put(TWS_F32, c->patches, (t * out + o) * w->in + i, total + sum, n);
}

/* Iterates over the channels of one side in vectors that do not cross a group boundary. */
#define EACH_GROUP_VECTOR(i, n, channels, c, ...)                                                        \
  do {                                                                                                   \
    const int64_t group_ = is_depthwise(&(c)->w) ? (channels) : (channels) / (c)->w.groups;              \
    for (int64_t g_ = 0; g_ < (channels); g_ += group_) EACH_VECTOR(i, n, g_, g_ + group_, __VA_ARGS__); \
  } while (0)

static void group_forward_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const host_range r = share(c->rows, 1, thread, threads);
  FOR_TYPE(c->type, T,
           for (int64_t row = r.begin; row < r.end; ++row)
               EACH_GROUP_VECTOR(o, n, c->w.out, c, group_window(T, c, row, o, n)));
}
static void group_input_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const host_range r = share(c->rows, 1, thread, threads);
  FOR_TYPE(c->type, T,
           for (int64_t pixel = r.begin; pixel < r.end; ++pixel)
               EACH_GROUP_VECTOR(i, n, c->w.in, c, group_pixel(T, c, pixel, i, n)));
}
static void group_weight_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const int64_t out = c->w.out / c->w.groups;
  const host_range r = share(c->w.rows * c->w.columns * out, 1, thread, threads);
  FOR_TYPE(c->type, T,
           for (int64_t k = r.begin; k < r.end; ++k)
               EACH_GROUP_VECTOR(i, n, c->w.in, c, group_weights(T, c, k / out, k % out, i, n)));
}

/* Writes the sums of the rows of dy, and the gradients of the weights in the weights' order. */
static void put_group_weights(const convolution *c) {
  const tws_windows *w = &c->w;
  const int64_t taps = w->rows * w->columns, in = w->in / w->groups, out = w->out / w->groups;
  const float *sums = c->patches;
  void *dweight = c->call->operand[2];
  for (int64_t o = 0; o < w->out; ++o)
    for (int64_t k = 0; k < taps * in; ++k) {
      const float sum = sums[(k / in * out + o % out) * w->in + o / out * in + k % in];
      FOR_TYPE(c->call->dtype[2], G, {
        const vf was = c->accumulate ? v_get(G, dweight, o * taps * in + k, 1) : v_zero();
        v_put(G, dweight, o * taps * in + k, was + sum, 1);
      });
    }
}

static void group_bias_task(void *arg, int thread, int threads) {
  const convolution *c = arg;
  const host_range r = share(c->w.out, LANES, thread, threads);
  void *dbias = c->call->operand[3];
  FOR_TYPE(c->type, T, FOR_TYPE(c->call->dtype[3], G, EACH_VECTOR(o, n, r.begin, r.end, {
                                  vf sum = c->accumulate ? v_get(G, dbias, o, n) : v_zero();
                                  for (int64_t row = 0; row < c->w.samples * c->windows; ++row)
                                    sum += v_get(T, c->from, row * c->w.out + o, n);
                                  v_put(G, dbias, o, sum, n);
                                })));
}

/* ---- kernels ---- */

static tws_code check_convolution(const convolution *c, tws_error *err) {
  const tws_windows *w = &c->w;
  if (w->in % w->groups == 0 && w->out % w->groups == 0 && w->out_height > 0 && w->out_width > 0) return TWS_OK;
  return tws_fail(
      err, TWS_INVALID, NULL,
      "%lld groups of %lld and %lld channels, windows of %lld pixels over %lld x %lld with %lld around them",
      (long long)w->groups, (long long)w->in, (long long)w->out, (long long)w->rows, (long long)w->height,
      (long long)w->width, (long long)w->padding);
}

HOST_KERNEL(convolution) {
  convolution c = begin_convolution(call, call->count - 1);
  TWS_TRY(check_convolution(&c, err));
  if (c.w.groups > 1) {
    c.from = call->operand[0];
    c.to = call->operand[call->count - 2];
    c.rows = c.w.samples * c.windows;
    widen_weights(&c, call->operand[1], 0);
    run_parallel(call, 8.0 * (double)(c.rows * c.w.out), group_forward_task, &c);
    return TWS_OK;
  }
  for (int64_t first = 0; first < c.w.samples; first += c.p.samples)
    TWS_TRY(forward_part(&c, first, c.p.samples < c.w.samples - first ? c.p.samples : c.w.samples - first, err));
  return TWS_OK;
}

HOST_KERNEL(convolution_grad_input) {
  convolution c = begin_convolution(call, call->count - 1);
  TWS_TRY(check_convolution(&c, err));
  if (c.w.groups > 1) {
    c.from = call->operand[0];
    c.to = call->operand[2];
    c.rows = c.w.samples * c.w.height * c.w.width;
    widen_weights(&c, call->operand[1], 1);
    run_parallel(call, 8.0 * (double)(c.rows * c.w.in), group_input_task, &c);
    return TWS_OK;
  }
  for (int64_t first = 0; first < c.w.samples; first += c.p.samples)
    TWS_TRY(input_part(&c, first, c.p.samples < c.w.samples - first ? c.p.samples : c.w.samples - first, err));
  return TWS_OK;
}

HOST_KERNEL(convolution_grad_weight) {
  convolution c = begin_convolution(call, call->count - 1);
  void *dbias = call->count > 4 ? call->operand[3] : NULL;
  TWS_TRY(check_convolution(&c, err));
  if (c.w.groups > 1) {
    c.from = call->operand[0];
    run_parallel(call, 8.0 * (double)(c.w.samples * c.windows * c.w.out), group_weight_task, &c);
    put_group_weights(&c);
    if (dbias) run_parallel(call, 4.0 * (double)(c.w.samples * c.windows * c.w.out), group_bias_task, &c);
    return TWS_OK;
  }
  const int64_t weights = c.w.out * c.p.width;
  const int rounds = call->dtype[2] != TWS_F32 && c.p.samples < c.w.samples;
  float *wide = (float *)(void *)((char *)c.patches + tws_convolution_patch_bytes(call->work, TWS_BACKEND_HOST));
  weight_sums sums = {call->operand[2], dbias, call->dtype[2], c.accumulate};
  if (rounds) sums = (weight_sums){wide, dbias ? wide + weights : NULL, TWS_F32, 0};
  for (int64_t first = 0; first < c.w.samples; first += c.p.samples, sums.added = 1)
    TWS_TRY(weight_part(&c, &sums, first, c.p.samples < c.w.samples - first ? c.p.samples : c.w.samples - first, err));
  if (!rounds) return TWS_OK;
  TWS_TRY(round_sums(&c, wide, call->operand[2], weights, err));
  return dbias ? round_sums(&c, wide + weights, dbias, c.w.out, err) : TWS_OK;
}
