/* Elementwise kernels. */
#include "models/dropout.h"
#include "real/host/kernels/codes.h"
#include "real/host/kernels/philox.h"

/* Returns -2u, with u = sqrt(2/pi) (x + 0.044715 x^3). GELU, 0.5 x (1 + tanh(u)), is computed as x s with s = 1 / (1 +
 * e^-2u), which loses no digits by cancellation. */
VECTOR_INLINE vf gelu_negative_2u(vf x) {
  return x * (-1.5957691216F - 0.0713548162F * (x * x));
}
/* Returns 0 for the lanes of `mask`, and x for the others. It is used if the exponential exceeds float32: the result is
 * then smaller than the smallest normal number, and set to 0, so that a huge x times a clamped exponential cannot
 * become large. */
VECTOR_INLINE vf zero_where(vi mask, vf x) {
  return (vf)((vi)x & ~mask);
}
VECTOR_INLINE vf gelu_of(vf x) {
  return zero_where(x < -10.5F, x / (1.0F + v_exp_finite(gelu_negative_2u(x))));
}
VECTOR_INLINE vf gelu_slope(vf x) {
  vf e = v_exp_finite(gelu_negative_2u(x));
  vf s = 1.0F / (1.0F + e);
  vf slope_2u = 1.5957691216F + 0.2140644488F * (x * x);
  vf tail = zero_where(x > 10.5F, x * slope_2u * s * (e * s)); /* x^2 may be infinite in lanes that become 0 */
  return zero_where(x < -10.5F, s + tail);
}
VECTOR_INLINE vf silu_of(vf g) {
  return zero_where(g < -88.0F, g / (1.0F + v_exp_finite(-g)));
}
VECTOR_INLINE vf silu_slope(vf g) {
  vf e = v_exp_finite(-g);
  vf s = 1.0F / (1.0F + e);
  return zero_where(g < -88.0F, s + zero_where(g > 88.0F, g * s * (e * s)));
}
/* Returns 1 / (1 + e^-x), and its derivative s (1 - s) with 1 - s = s e^-x, which loses no digits by cancellation. */
VECTOR_INLINE vf sigmoid_of(vf x) {
  return zero_where(x < -87.3F, 1.0F / (1.0F + v_exp_finite(-x)));
}
VECTOR_INLINE vf sigmoid_slope(vf x) {
  const vf e = v_exp_finite(-x), s = 1.0F / (1.0F + e);
  return zero_where((x < -87.3F) | (x > 87.3F), s * (e * s));
}
VECTOR_INLINE vf relu_of(vf x) {
  return zero_where(x < 0.0F, x);
}
VECTOR_INLINE vf relu_slope(vf x) {
  return zero_where(x <= 0.0F, (vf){0} + 1.0F);
}
/* Returns the factor of x: 1 where x > 0 or x is NaN, else `slope`. */
VECTOR_INLINE vf leaky_factor(vf x, float slope) {
  return v_select(x <= 0.0F, v_set(slope), v_set(1.0F));
}

/* Returns 1 where low < x < high or x is NaN, else 0. As a factor of a gradient it leaves a NaN there. */
VECTOR_INLINE vf clamp_slope(vf x, float low, float high) {
  return zero_where((x <= low) | (x >= high), (vf){0} + 1.0F);
}

/* Returns Phi(x), the normal distribution function, and sets *density to e^(-x^2/2). Phi(x) = e^(-x^2/2) erfcx(|x|/sqrt
 * 2) / 2 for x < 0, where erfcx(z) = e^(z^2) erfc(z) is t P(t) with t = 1 / (1 + 0.35 z), P fitted for |x| < 13.4 to a
 * relative error of 1e-8. Beyond it Phi is 0 or 1 in float32. */
VECTOR_INLINE vf normal_share(vf x, vf *density) {
  static const float fit[] = {0.197495049F, 0.196927379F, 0.189601517F, 0.143462104F,  0.167902526F,
                              0.047028144F, 0.019650271F, 0.146401786F, -0.144178737F, 0.035709974F};
  const vf size = v_max(x, -x), t = 1.0F / (1.0F + 0.247487373F * size);
  vf fitted = v_set(fit[9]);
  for (int i = 8; i >= 0; --i) fitted = fitted * t + fit[i];
  *density = zero_where(size > 13.0F, v_exp_finite(x * x * -0.5F));
  const vf tail = 0.5F * *density * t * fitted;
  return v_select(x < 0.0F, tail, 1.0F - tail);
}
VECTOR_INLINE vf gelu_exact_of(vf x) {
  vf density;
  const vf share = normal_share(x, &density);
  return zero_where(x < -13.0F, x * share);
}
VECTOR_INLINE vf gelu_exact_slope(vf x) {
  vf density;
  const vf share = normal_share(x, &density);
  const vf near = v_select(density == 0.0F, v_zero(), x); /* x may be infinite where the density is 0 */
  return share + near * density * 0.3989422804F;
}

/* Defines the tasks of an activation, y = value, and of its gradient, dx = dy slope. value and slope are expressions of
 * the vector `in` of x, and of the kernel's parameters a and b. */
#define ACTIVATION_TASKS(name, value, slope)                              \
  static void name##_task(void *arg, int thread, int threads) {           \
    const tws_host_call *call = arg;                                      \
    const host_range r = share(call->work->d[0], 64, thread, threads);    \
    const void *x = call->operand[0];                                     \
    void *y = call->operand[1];                                           \
    const float a = (float)call->work->f[0], b = (float)call->work->f[1]; \
    (void)a, (void)b;                                                     \
    FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, {       \
               const vf in = v_get(T, x, i, n);                           \
               v_put(T, y, i, value, n);                                  \
             }));                                                         \
  }                                                                       \
  static void name##_grad_task(void *arg, int thread, int threads) {      \
    const tws_host_call *call = arg;                                      \
    const host_range r = share(call->work->d[0], 64, thread, threads);    \
    const void *dy = call->operand[0], *x = call->operand[1];             \
    void *dx = call->operand[2];                                          \
    const float a = (float)call->work->f[0], b = (float)call->work->f[1]; \
    (void)a, (void)b;                                                     \
    FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, {       \
               const vf in = v_get(T, x, i, n);                           \
               v_put(T, dx, i, v_get(T, dy, i, n) * (slope), n);          \
             }));                                                         \
  }

/* Defines the task of a kernel that writes the 8-bit codes of `result`, a vector of elements [at, at + n), in place of
 * the elements themselves. x, dy: the kernel's inputs, dy of a gradient alone. */
#define CODES_TASK(name, type, x_, dy_, result)                                                         \
  static void name##_codes_task(void *arg, int thread, int threads) {                                   \
    cast_job *job = arg;                                                                                \
    const tws_host_call *call = job->found.call;                                                        \
    const void *x = call->operand[x_], *dy = call->operand[dy_];                                        \
    vi most = {0};                                                                                      \
    (void)dy;                                                                                           \
    FOR_TYPE(call->dtype[0], T, EACH_VECTOR_OF_TILES(r, i, n, job->rows, job->width, thread, threads, { \
               const int64_t at = r * job->width + i;                                                   \
               const vf in = v_get(T, x, at, n);                                                        \
               most = put_codes(type, job, r, i, v_stored(T, result), n, most);                         \
             }));                                                                                       \
    job->found.largest[thread] = v_largest_bits(most);                                                  \
  }

/* Runs the task of an activation or of its gradient, or with TWS_FP8 the task `codes`, which casts the result to
 * `type`. bytes: those of an element, as run_parallel() counts them; inputs: number of the kernel's inputs. */
static tws_code run_activation(const tws_host_call *call, double bytes, tws_host_task task, tws_host_task codes,
                               tws_dtype type, int inputs) {
  const tws_work *work = call->work;
  if (!(work->flags & TWS_FP8)) {
    run_parallel(call, bytes * (double)work->d[0], task, (void *)(uintptr_t)call);
    return TWS_OK;
  }
  const int64_t width = (int64_t)work->f[0];
  cast_job cast = begin_cast(call, type, inputs, width > 0 ? work->d[0] / width : 0, width, 1);
  run_parallel(call, bytes * (double)work->d[0], codes, &cast);
  end_cast(&cast);
  return TWS_OK;
}

#define RUN_ACTIVATION(name, bytes, codes, type, inputs)                  \
  HOST_KERNEL(name) {                                                     \
    (void)err;                                                            \
    return run_activation(call, bytes, name##_task, codes, type, inputs); \
  }

/* Define the kernels of an activation and of its gradient. CASTING_ACTIVATION: they can cast what they compute;
 * CASTING_FORWARD: the first one alone can. */
#define ACTIVATION(name, bytes, value, grad_bytes, slope) \
  ACTIVATION_TASKS(name, value, slope)                    \
  RUN_ACTIVATION(name, bytes, NULL, TWS_E4M3, 1)          \
  RUN_ACTIVATION(name##_grad, grad_bytes, NULL, TWS_E5M2, 2)
#define CASTING_FORWARD(name, bytes, value, grad_bytes, slope) \
  ACTIVATION_TASKS(name, value, slope)                         \
  CODES_TASK(name, TWS_E4M3, 0, 0, value)                      \
  RUN_ACTIVATION(name, bytes, name##_codes_task, TWS_E4M3, 1)  \
  RUN_ACTIVATION(name##_grad, grad_bytes, NULL, TWS_E5M2, 2)
#define CASTING_ACTIVATION(name, bytes, value, grad_bytes, slope)        \
  ACTIVATION_TASKS(name, value, slope)                                   \
  CODES_TASK(name, TWS_E4M3, 0, 0, value)                                \
  CODES_TASK(name##_grad, TWS_E5M2, 1, 0, v_get(T, dy, at, n) * (slope)) \
  RUN_ACTIVATION(name, bytes, name##_codes_task, TWS_E4M3, 1)            \
  RUN_ACTIVATION(name##_grad, grad_bytes, name##_grad_codes_task, TWS_E5M2, 2)

CASTING_FORWARD(gelu, 16.0, gelu_of(in), 24.0, gelu_slope(in))
CASTING_ACTIVATION(gelu_exact, 16.0, gelu_exact_of(in), 24.0, gelu_exact_slope(in))
CASTING_ACTIVATION(relu, 1.0, relu_of(in), 2.0, relu_slope(in))
CASTING_ACTIVATION(squared_relu, 2.0, relu_of(in) * relu_of(in), 3.0, 2.0F * relu_of(in))
ACTIVATION(sigmoid, 16.0, sigmoid_of(in), 24.0, sigmoid_slope(in))
ACTIVATION(silu, 16.0, silu_of(in), 24.0, silu_slope(in))
ACTIVATION(leaky_relu, 2.0, leaky_factor(in, a) * in, 3.0, leaky_factor(in, a))
ACTIVATION(clamp, 2.0, v_select(in < a, v_set(a), v_select(in > b, v_set(b), in)), 3.0, clamp_slope(in, a, b))
ACTIVATION(softcap, 16.0, v_tanh((1.0F / a) * in) * a, 24.0, v_tanh_slope((1.0F / a) * in))

static void multiply_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 64, thread, threads);
  void *x = call->operand[0];
  const float factor = (float)call->work->f[0];
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, v_put(T, x, i, v_get(T, x, i, n) * factor, n)));
}
HOST_KERNEL(multiply) {
  (void)err;
  run_parallel(call, 8.0 * (double)call->work->d[0], multiply_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Returns the dropout factors of n consecutive elements from number e on: 0, or 1 / (1 - p); or random factors for the
 * router's jitter. */
VECTOR_INLINE vf dropout_factors(const tws_host_call *call, uint64_t e, int n) {
  const double probability = call->work->f[0];
  const uint32_t below = tws_dropout_threshold(probability);
  const float jitter = (float)call->work->f[1], kept = (float)(1 / (1 - probability)),
              step = ((const float *)call->operand[1])[TWS_HYPER_STEP];
  union {
    vf v;
    float f[LANES];
  } factors = {.v = v_zero()};
  uint32_t bits, word[TWS_DROPOUT_GROUP];
  memcpy(&bits, &step, sizeof bits);
  for (int k = 0; k < n; ++k) {
    const uint64_t at_element = e + (uint64_t)k;
    if (k == 0 || at_element % TWS_DROPOUT_GROUP == 0)
      tws_philox_block((uint64_t)call->argument[0], tws_dropout_stream(bits), at_element / TWS_DROPOUT_GROUP, word);
    const uint32_t mine = word[at_element % TWS_DROPOUT_GROUP];
    factors.f[k] = jitter > 0 ? tws_jitter_factor(mine, jitter) : mine < below ? 0 : kept;
  }
  return factors.v;
}

/* Applies dropout to the elements of one draw, from element e on, which begins a block. */
static void drop_many(const tws_host_call *call, int64_t at, uint64_t e) {
  const double probability = call->work->f[0];
  const vu below = (vu){0} + tws_dropout_threshold(probability);
  const vf kept = v_set((float)(1 / (1 - probability)));
  void *x = call->operand[0];
  uint32_t bits, words[PHILOX_WORDS];
  memcpy(&bits, (const float *)call->operand[1] + TWS_HYPER_STEP, sizeof bits);
  v_philox((uint64_t)call->argument[0], tws_dropout_stream(bits), e / TWS_DROPOUT_GROUP, words);
  FOR_TYPE(
      call->dtype[0], T, for (int k = 0; k < PHILOX_WORDS; k += LANES) {
        const vu word = (vu) * (const vi_unaligned *)(words + k);
        const vf factors = v_select((vi)(word < below), v_zero(), kept);
        v_put(T, x, at + k, v_get(T, x, at + k, LANES) * factors, LANES);
      });
}

static void drop_run(const tws_host_call *call, int64_t begin, int64_t end, uint64_t number) {
  void *x = call->operand[0];
  const int jitters = call->work->f[1] > 0;
  for (; !jitters && number % TWS_DROPOUT_GROUP == 0 && begin + PHILOX_WORDS <= end;
       begin += PHILOX_WORDS, number += PHILOX_WORDS)
    drop_many(call, begin, number);
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, begin, end, {
             v_put(T, x, i, v_get(T, x, i, n) * dropout_factors(call, number + (uint64_t)(i - begin), n), n);
           }));
}
static void dropout_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t count = call->work->d[0], run = call->argument[2] > 0 ? (int64_t)call->argument[2] : count;
  host_range r = share(count, 64, thread, threads);
  for (int64_t i = r.begin, end; i < r.end; i = end) {
    const int64_t runs = i / run;
    end = (runs + 1) * run < r.end ? (runs + 1) * run : r.end;
    drop_run(call, i, end,
             (uint64_t)call->argument[1] + (uint64_t)runs * (uint64_t)call->argument[3] + (uint64_t)(i - runs * run));
  }
}
HOST_KERNEL(dropout) {
  (void)err;
  run_parallel(call, 16.0 * (double)call->work->d[0], dropout_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Returns the activation of a gate, for gated units y = act(gate) up. */
VECTOR_INLINE vf gate_of(const int gelu, vf g) {
  return gelu ? gelu_of(g) : silu_of(g);
}
VECTOR_INLINE vf gate_slope(const int gelu, vf g) {
  return gelu ? gelu_slope(g) : silu_slope(g);
}

/* Return elements of a gated unit's output, and of the gradients of its gate and of `up`. gate, up: indices of the
 * first element in gate_up. */
VECTOR_INLINE vf gated_of(tws_dtype T, const int gelu, const void *gate_up, int64_t gate, int64_t up, int n) {
  return gate_of(gelu, v_get(T, gate_up, gate, n)) * v_get(T, gate_up, up, n);
}
typedef struct gated_slopes {
  vf gate, up;
} gated_slopes;
VECTOR_INLINE gated_slopes gated_slopes_of(tws_dtype T, const int gelu, const void *gate_up, int64_t gate, int64_t up,
                                           vf dy, int n) {
  const vf g = v_get(T, gate_up, gate, n);
  return (gated_slopes){dy * v_get(T, gate_up, up, n) * gate_slope(gelu, g), dy * gate_of(gelu, g)};
}

/* Returns the bits of the largest |y| of the rows, with TWS_LARGEST. */
VECTOR_INLINE int32_t gated_rows(const tws_host_call *call, const int gelu, int thread, int threads) {
  const int64_t width = call->work->d[1];
  host_range r = share(call->work->d[0], 1, thread, threads);
  const void *gate_up = call->operand[0];
  void *y = call->operand[1];
  const int finds = !gelu && call->work->flags & TWS_LARGEST;
  vi most = {0};
  for (int64_t t = r.begin; t < r.end; ++t) {
    const int64_t gate = 2 * t * width, up = gate + width, out = t * width;
    FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, 0, width, {
               const vf v = gated_of(T, gelu, gate_up, gate + i, up + i, n);
               v_put(T, y, out + i, v, n);
               if (finds) most = v_larger_magnitude(most, v_keep(v_stored(T, v), n));
             }));
  }
  return v_largest_bits(most);
}

VECTOR_INLINE void gated_grad_rows(const tws_host_call *call, const int gelu, int thread, int threads) {
  const int64_t width = call->work->d[1];
  host_range r = share(call->work->d[0], 1, thread, threads);
  const void *dy = call->operand[0], *gate_up = call->operand[1];
  void *out = call->operand[2];
  for (int64_t t = r.begin; t < r.end; ++t) {
    const int64_t gate = 2 * t * width, up = gate + width;
    FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, 0, width, {
               const vf d = v_get(T, dy, t * width + i, n);
               const gated_slopes slopes = gated_slopes_of(T, gelu, gate_up, gate + i, up + i, d, n);
               v_put(T, out, gate + i, slopes.gate, n);
               v_put(T, out, up + i, slopes.up, n);
             }));
  }
}

/* Casts the output, or the gradients of gate and `up`, to 8 bits; with TWS_FP8 no other result is written. */
VECTOR_INLINE void gated_codes(tws_dtype T, cast_job *job, const int gelu, int thread, int threads) {
  const tws_work *work = job->found.call->work;
  const void *gate_up = job->found.call->operand[0];
  const int64_t width = work->d[1];
  vi most = {0};
  EACH_VECTOR_OF_TILES(r, i, n, work->d[0], width, thread, threads, {
    const int64_t gate = 2 * r * width + i;
    const vf v = gated_of(T, gelu, gate_up, gate, gate + width, n);
    most = put_codes(TWS_E4M3, job, r, i, v_stored(T, v), n, most);
  });
  job->found.largest[thread] = v_largest_bits(most);
}
VECTOR_INLINE void gated_grad_codes(tws_dtype T, cast_job *job, const int gelu, int thread, int threads) {
  const tws_work *work = job->found.call->work;
  const void *dy = job->found.call->operand[0], *gate_up = job->found.call->operand[1];
  const int64_t width = work->d[1];
  vi most = {0};
  EACH_VECTOR_OF_TILES(r, i, n, work->d[0], width, thread, threads, {
    const int64_t gate = 2 * r * width + i;
    const vf d = v_get(T, dy, r * width + i, n);
    const gated_slopes slopes = gated_slopes_of(T, gelu, gate_up, gate, gate + width, d, n);
    most = put_codes(TWS_E5M2, job, r, i, v_stored(T, slopes.gate), n, most);
    most = put_codes(TWS_E5M2, job, r, width + i, v_stored(T, slopes.up), n, most);
  });
  job->found.largest[thread] = v_largest_bits(most);
}

static void gated_codes_task(void *arg, int thread, int threads) {
  cast_job *job = arg;
  const int gelu = job->found.call->work->code == TWS_KERNEL_GEGLU;
  FOR_TYPE(
      job->found.call->dtype[0], T, if (gelu) gated_codes(T, job, 1, thread, threads);
      else gated_codes(T, job, 0, thread, threads));
}
static void gated_grad_codes_task(void *arg, int thread, int threads) {
  cast_job *job = arg;
  const int gelu = job->found.call->work->code == TWS_KERNEL_GEGLU_GRAD;
  FOR_TYPE(
      job->found.call->dtype[0], T, if (gelu) gated_grad_codes(T, job, 1, thread, threads);
      else gated_grad_codes(T, job, 0, thread, threads));
}

static void swiglu_task(void *arg, int thread, int threads) {
  largest_job *job = arg;
  job->largest[thread] = gated_rows(job->call, 0, thread, threads);
}
static void geglu_task(void *arg, int thread, int threads) {
  const largest_job *job = arg;
  gated_rows(job->call, 1, thread, threads);
}
static tws_code run_gated(const tws_host_call *call, tws_host_task task) {
  const tws_work *work = call->work;
  const double bytes = 16.0 * (double)(work->d[0] * work->d[1]);
  if (work->flags & TWS_FP8) {
    cast_job cast = begin_cast(call, TWS_E4M3, 1, work->d[0], work->d[1], 1);
    run_parallel(call, bytes, gated_codes_task, &cast);
    end_cast(&cast);
    return TWS_OK;
  }
  largest_job job = {.call = call};
  run_parallel(call, bytes, task, &job);
  if (work->flags & TWS_LARGEST) put_largest(&job, call->operand[2]);
  return TWS_OK;
}
HOST_KERNEL(swiglu) {
  (void)err;
  return run_gated(call, swiglu_task);
}
HOST_KERNEL(geglu) {
  (void)err;
  return run_gated(call, geglu_task);
}

static void swiglu_grad_task(void *arg, int thread, int threads) {
  gated_grad_rows(arg, 0, thread, threads);
}
static void geglu_grad_task(void *arg, int thread, int threads) {
  gated_grad_rows(arg, 1, thread, threads);
}
static tws_code run_gated_grad(const tws_host_call *call, tws_host_task task) {
  const tws_work *work = call->work;
  const double bytes = 32.0 * (double)(work->d[0] * work->d[1]);
  if (work->flags & TWS_FP8) {
    cast_job cast = begin_cast(call, TWS_E5M2, 2, work->d[0], 2 * work->d[1], 1);
    run_parallel(call, bytes, gated_grad_codes_task, &cast);
    end_cast(&cast);
    return TWS_OK;
  }
  run_parallel(call, bytes, task, (void *)(uintptr_t)call);
  return TWS_OK;
}
HOST_KERNEL(swiglu_grad) {
  (void)err;
  return run_gated_grad(call, swiglu_grad_task);
}
HOST_KERNEL(geglu_grad) {
  (void)err;
  return run_gated_grad(call, geglu_grad_task);
}

/* Returns a row's factor, the sigmoid of its gate, whose derivative is share (1 - share). */
VECTOR_INLINE float gate_share(const tws_host_call *call, const void *gates, int64_t row) {
  const int64_t count = call->work->d[2];
  float x = 0;
  FOR_TYPE(call->dtype[0], T, {
    x = v_get(T, gates, row * count, 1)[0];
    if (count > 1) x -= v_get(T, gates, row * count + 1, 1)[0];
  });
  return 1.0F / (1.0F + expf(call->work->f[0] != 0 ? x : -x));
}

static void gate_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t width = call->work->d[1];
  const host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    const float factor = gate_share(call, call->operand[1], t);
    FOR_TYPE(call->dtype[0], T,
             EACH_VECTOR(i, n, t * width, (t + 1) * width,
                         v_put(T, call->operand[2], i, v_get(T, call->operand[0], i, n) * factor, n)));
  }
}
HOST_KERNEL(gate) {
  (void)err;
  run_parallel(call, 4.0 * (double)(call->work->d[0] * call->work->d[1]), gate_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void gate_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t width = call->work->d[1], gates = call->work->d[2];
  const host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    const float factor = gate_share(call, call->operand[2], t);
    vf sum = v_zero();
    FOR_TYPE(call->dtype[0], T, {
      EACH_VECTOR(i, n, t * width, (t + 1) * width, {
        const vf dy = v_get(T, call->operand[0], i, n);
        sum += dy * v_get(T, call->operand[1], i, n);
        v_put(T, call->operand[3], i, dy * factor, n);
      });
      const float slope = v_sum(sum) * factor * (1.0F - factor) * (call->work->f[0] != 0 ? -1.0F : 1.0F);
      for (int64_t g = 0; g < gates; ++g) v_put(T, call->operand[4], t * gates + g, v_set(g == 1 ? -slope : slope), 1);
    });
  }
}
HOST_KERNEL(gate_grad) {
  (void)err;
  run_parallel(call, 8.0 * (double)(call->work->d[0] * call->work->d[1]), gate_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void add_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 64, thread, threads);
  const void *x = call->operand[0], *y = call->operand[1];
  void *z = call->operand[2];
  FOR_TYPE(call->dtype[0], T,
           EACH_VECTOR(i, n, r.begin, r.end, v_put(T, z, i, v_get(T, x, i, n) + v_get(T, y, i, n), n)));
}
HOST_KERNEL(add) {
  (void)err;
  run_parallel(call, 12.0 * (double)call->work->d[0], add_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void accumulate_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 64, thread, threads);
  const void *x = call->operand[0];
  void *y = call->operand[1];
  FOR_TYPE(call->dtype[0], X,
           FOR_TYPE(call->dtype[1], Y,
                    EACH_VECTOR(i, n, r.begin, r.end, v_put(Y, y, i, v_get(Y, y, i, n) + v_get(X, x, i, n), n))));
}
HOST_KERNEL(accumulate) {
  (void)err;
  run_parallel(call, 12.0 * (double)call->work->d[0], accumulate_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void fill_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 64, thread, threads);
  void *x = call->operand[0];
  const vf value = v_set((float)call->argument[0]);
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, v_put(T, x, i, value, n)));
}
HOST_KERNEL(fill) {
  (void)err;
  run_parallel(call, 4.0 * (double)call->work->d[0], fill_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void cast_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 64, thread, threads);
  const void *x = call->operand[0];
  void *y = call->operand[1];
  if (call->dtype[0] == call->dtype[1]) { /* copies the bits, which preserves NaN payloads */
    if (r.end > r.begin)
      memmove(at_mutable(call->dtype[1], y, r.begin), at(call->dtype[0], x, r.begin),
              (size_t)(r.end - r.begin) * (call->dtype[0] == TWS_F32 ? 4U : 2U));
    return;
  }
  FOR_TYPE(call->dtype[0], X,
           FOR_TYPE(call->dtype[1], Y, EACH_VECTOR(i, n, r.begin, r.end, v_put(Y, y, i, v_get(X, x, i, n), n))));
}
HOST_KERNEL(cast) {
  (void)err;
  run_parallel(call, 6.0 * (double)call->work->d[0], cast_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
