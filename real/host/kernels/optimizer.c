/* The optimizer: gradient norm, clipping and updates of weights. */
#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"
#include "real/host/kernels/philox.h"

/* Constants of an update: learning rates of this step, and the parameters of the optimizer by name. */
typedef struct update_constants {
  float lr, beta1, beta2, rest1, rest2, epsilon, weight_decay, decay, step, inverse_root_bias2, clip;
  float momentum, fresh; /* fresh: factor of the gradient in the sum of gradients (SGD) */
  float scale;           /* factor of the change of the weight, computed from norms of its parameter (LAMB) */
  int l2, nesterov;
  uint32_t number; /* number of the update, as the bits of a float; it and the seed determine random bits */
  uint64_t seed, first;
} update_constants;

/* ---- the rules of config/optimizers.def: compute the new weight and states of an element from the old ones and the
 * clipped gradient ---- */

VECTOR_INLINE vf adamw_update(const update_constants *c, vf weight, vf *state, vf g) {
  if (c->l2) g += c->decay * weight;
  state[0] = c->beta1 * state[0] + c->rest1 * g;
  state[1] = c->beta2 * state[1] + c->rest2 * (g * g);
  vf change = c->step * state[0] / (v_sqrt(state[1]) * c->inverse_root_bias2 + c->epsilon);
  if (!c->l2) change += c->decay * weight;
  return weight - change;
}

VECTOR_INLINE vf lion_update(const update_constants *c, vf weight, vf *state, vf g) {
  const vf mixed = c->beta1 * state[0] + c->rest1 * g;
  const vf sign = v_select(mixed > 0, v_set(1), v_select(mixed < 0, v_set(-1), mixed)); /* 0 and NaN are kept */
  state[0] = c->beta2 * state[0] + c->rest2 * g;
  return weight - (c->lr * sign + c->decay * weight);
}

VECTOR_INLINE vf adagrad_update(const update_constants *c, vf weight, vf *state, vf g) {
  g += c->weight_decay * weight;
  state[0] += g * g;
  return weight - c->lr * g / (v_sqrt(state[0]) + c->epsilon);
}

VECTOR_INLINE vf sgd_update(const update_constants *c, vf weight, vf *state, vf g) {
  g += c->weight_decay * weight;
  state[0] = c->momentum * state[0] + c->fresh * g;
  return weight - c->lr * (c->nesterov ? g + c->momentum * state[0] : state[0]);
}

VECTOR_INLINE vf muon_update(const update_constants *c, vf weight, vf *state, vf g) {
  (void)state;
  return weight - (c->lr * g + c->decay * weight);
}

/* Returns the change of the weight before it is scaled, for a rule that needs norms. */
VECTOR_INLINE vf lamb_change(const update_constants *c, vf weight, vf *state, vf g) {
  state[0] = c->beta1 * state[0] + c->rest1 * g;
  state[1] = c->beta2 * state[1] + c->rest2 * (g * g);
  return state[0] / (v_sqrt(state[1]) + c->epsilon) + c->weight_decay * weight;
}

/* ---- selection of the rule and its number of states, both of which are compile-time constants ---- */

VECTOR_INLINE vf update_vector(tws_kernel kernel, const update_constants *c, vf weight, vf *state, vf g) {
  switch (kernel) {
#define UPDATE_RULE(id, name, ...) \
  case TWS_KERNEL_##id:            \
    return name##_update(c, weight, state, g * c->clip);
#define TENSOR_UPDATE_RULE(id, name, ...) \
  case TWS_KERNEL_##id:                   \
    return weight - c->scale * name##_change(c, weight, state, g * c->clip);
#include "config/optimizers.def"
    default:
      return weight;
  }
}

VECTOR_INLINE vf change_vector(tws_kernel kernel, const update_constants *c, vf weight, vf *state, vf g) {
  switch (kernel) {
#define UPDATE_RULE(...)
#define TENSOR_UPDATE_RULE(id, name, ...) \
  case TWS_KERNEL_##id:                   \
    return name##_change(c, weight, state, g * c->clip);
#include "config/optimizers.def"
    default:
      return v_zero();
  }
}

VECTOR_INLINE int has_norms(tws_kernel kernel) {
  switch (kernel) {
#define UPDATE_RULE(...)
#define TENSOR_UPDATE_RULE(id, ...) case TWS_KERNEL_##id:
#include "config/optimizers.def"
    return 1;
    default:
      return 0;
  }
}

enum { MOST_STATES = 4 };

VECTOR_INLINE int state_count(tws_kernel kernel) {
  switch (kernel) {
#define STATE(...) +1
#define STATES(...) __VA_ARGS__
#define UPDATE_RULE(id, name, summary, n, parameters, flops, states) \
  case TWS_KERNEL_##id:                                              \
    return 0 states;
#include "config/optimizers.def"
    default:
      return 0;
  }
}

VECTOR_INLINE void update_range(tws_kernel kernel, tws_dtype G, tws_dtype P, const tws_host_call *call,
                                const update_constants *constants, host_range r) {
  const update_constants copy = *constants, *c = &copy; /* a local copy, so that the compiler knows that no store can
                                                         * change it */
  const int states = state_count(kernel);
  float *p = call->operand[0], *stored[MOST_STATES];
  const void *grad = call->operand[states + 1];
  for (int k = 0; k < states; ++k) stored[k] = call->operand[k + 1];
  const int copy_at = states + 4 + has_norms(kernel);
  uint16_t *p16 = call->count > copy_at ? call->operand[copy_at] : NULL;
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf state[MOST_STATES];
    for (int k = 0; k < states; ++k) state[k] = v_get(TWS_F32, stored[k], i, n);
    const vf weight = update_vector(kernel, c, v_get(TWS_F32, p, i, n), state, v_get(G, grad, i, n));
    for (int k = 0; k < states; ++k) v_put(TWS_F32, stored[k], i, state[k], n);
    v_put(TWS_F32, p, i, weight, n);
    if (p16) v_put(P, p16, i, weight, n);
  });
}

/* Updates a range of float32 weights in two halves, as tws_join_halves() and tws_low_half() of base/dtype.h have
 * them. */
VECTOR_INLINE void update_split_range(tws_kernel kernel, tws_dtype G, const tws_host_call *call,
                                      const update_constants *constants, host_range r) {
  const update_constants copy = *constants, *c = &copy;
  const int states = state_count(kernel);
  uint16_t *low = call->operand[0], *upper = call->operand[states + 4];
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf state[MOST_STATES];
    union {
      vf number;
      vu bits;
    } u;
    for (int k = 0; k < states; ++k) state[k] = v_get(TWS_F32, call->operand[k + 1], i, n);
    u.bits = __builtin_convertvector(v_get_half(upper + i, n), vu) << 16;
    u.bits += (__builtin_convertvector(v_get_half(low + i, n), vu) ^ 0x8000U) - 0x8000U;
    u.number = update_vector(kernel, c, u.number, state, v_get(G, call->operand[states + 1], i, n));
    for (int k = 0; k < states; ++k) v_put(TWS_F32, call->operand[k + 1], i, state[k], n);
    u.bits += (vu)((u.bits & 0x1ffffU) == 0x8000U); /* the comparison is -1 where it is true */
    v_put_half(low + i, __builtin_convertvector(u.bits & 0xffffU, vh), n);
    v_put(TWS_BF16, upper, i, u.number, n);
  });
}

/* ---- bfloat16 weights without a float32 copy ---- */

/* Random bits are drawn for this many elements at once. */
enum { DRAWN = PHILOX_BLOCKS * TWS_ROUNDING_GROUP };

/* Computes sixteen tws_philox_block() from `index` on, in order; the lower half of each word comes first. One copy of
 * this long function serves all rules. */
static __attribute__((noinline)) void draw_blocks(uint64_t seed, uint64_t stream, uint64_t index, uint16_t out[DRAWN]) {
  uint32_t words[PHILOX_WORDS];
  v_philox(seed, stream, index, words);
  for (int i = 0; i < PHILOX_WORDS; ++i) {
    out[2 * i] = (uint16_t)words[i];
    out[2 * i + 1] = (uint16_t)(words[i] >> 16);
  }
}

/* Stores bfloat16 numbers, rounded with random bits; `bits` NULL: to nearest. */
VECTOR_INLINE void put_bf16(void *base, int64_t index, vf x, int n, const uint16_t *bits) {
  uint16_t *p = (uint16_t *)base + index;
  if (bits)
    v_put_half(p, v_cut_bf16(x, __builtin_convertvector(*(const vh_unaligned *)bits, vu)), n);
  else
    v_put_half(p, v_to_bf16(x), n);
}

/* Updates a range of float16 weights without a float32 copy, by float16 gradients; the states are float32. */
VECTOR_INLINE void update_f16_range(tws_kernel kernel, const tws_host_call *call, const update_constants *constants,
                                    host_range r) {
  const update_constants copy = *constants, *c = &copy;
  const int states = state_count(kernel);
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf state[MOST_STATES];
    for (int k = 0; k < states; ++k) state[k] = v_get(TWS_F32, call->operand[k + 1], i, n);
    const vf weight = update_vector(kernel, c, v_get(TWS_F16, call->operand[0], i, n), state,
                                    v_get(TWS_F16, call->operand[states + 1], i, n));
    for (int k = 0; k < states; ++k) v_put(TWS_F32, call->operand[k + 1], i, state[k], n);
    v_put(TWS_F16, call->operand[0], i, weight, n);
  });
}

/* Updates a range of elements, in runs whose random bits are drawn together. `S`: type of the states. */
VECTOR_INLINE void update_bf16_range(tws_kernel kernel, tws_dtype S, int stochastic, const tws_host_call *call,
                                     const update_constants *constants, host_range r) {
  const update_constants copy = *constants, *c = &copy;
  const int states = state_count(kernel);
  void *p = call->operand[0], *stored[MOST_STATES];
  const void *grad = call->operand[states + 1];
  for (int k = 0; k < states; ++k) stored[k] = call->operand[k + 1];
  uint16_t bits[1 + MOST_STATES][DRAWN + LANES]; /* longer by one vector, as a vector may be loaded beyond the last
                                                  * element */
  memset(bits, 0, sizeof *bits * (size_t)(1 + states));
  for (int64_t begin = r.begin, end; begin < r.end; begin = end) {
    const uint64_t element = c->first + (uint64_t)begin, into = element % DRAWN;
    end = begin + (int64_t)(DRAWN - into) < r.end ? begin + (int64_t)(DRAWN - into) : r.end;
    for (int k = 0; stochastic && k < (S == TWS_BF16 ? 1 + states : 1); ++k)
      draw_blocks(c->seed, tws_rounding_stream(c->number, k), (element - into) / TWS_ROUNDING_GROUP, bits[k]);
    EACH_VECTOR(i, n, begin, end, {
      vf state[MOST_STATES];
      for (int k = 0; k < states; ++k) state[k] = v_get(S, stored[k], i, n);
      const vf weight = update_vector(kernel, c, v_get(TWS_BF16, p, i, n), state, v_get(TWS_BF16, grad, i, n));
      const uint64_t at = into + (uint64_t)(i - begin);
      put_bf16(p, i, weight, n, stochastic ? bits[0] + at : NULL);
      for (int k = 0; k < states; ++k)
        if (S == TWS_BF16)
          put_bf16(stored[k], i, state[k], n, stochastic ? bits[k + 1] + at : NULL);
        else
          v_put(S, stored[k], i, state[k], n);
    });
  }
}

typedef struct update_job {
  const tws_host_call *call;
  update_constants constants;
} update_job;

VECTOR_INLINE void update_share(tws_kernel kernel, const update_job *job, int thread, int threads) {
  const tws_host_call *call = job->call;
  const update_constants *c = &job->constants;
  const uint32_t flags = call->work->flags;
  const int states = state_count(kernel);
  host_range r = share(call->work->d[0], flags & TWS_HALF_WEIGHTS ? DRAWN : 64, thread, threads);
  if (flags & TWS_SPLIT_WEIGHTS) {
    FOR_TYPE(call->dtype[states + 1], G, update_split_range(kernel, G, call, c, r));
  } else if (!(flags & TWS_HALF_WEIGHTS)) {
    const int copy_at = states + 4 + has_norms(kernel);
    const tws_dtype type = call->count > copy_at ? call->dtype[copy_at] : TWS_F32;
    FOR_TYPE(call->dtype[states + 1], G, FOR_TYPE(type, P, update_range(kernel, G, P, call, c, r)));
  } else if (call->work->dtype == TWS_F16) {
    update_f16_range(kernel, call, c, r);
  } else if (flags & TWS_STOCHASTIC) {
    if (flags & TWS_HALF_MOMENTS)
      update_bf16_range(kernel, TWS_BF16, 1, call, c, r);
    else
      update_bf16_range(kernel, TWS_F32, 1, call, c, r);
  } else if (flags & TWS_HALF_MOMENTS) {
    update_bf16_range(kernel, TWS_BF16, 0, call, c, r);
  } else {
    update_bf16_range(kernel, TWS_F32, 0, call, c, r);
  }
}

static update_constants constants_of(const tws_host_call *call, int states) {
  const tws_work *work = call->work;
  const float *hyper = call->operand[states + 2];
  const double *metrics = call->operand[states + 3];
  const float lr = hyper[TWS_HYPER_LR];
  const int l2 = (work->flags & TWS_L2) != 0;
  const double decay = tws_work_parameter(work, "weight_decay"), momentum = tws_work_parameter(work, "momentum");
  const int damped = momentum != 0 && hyper[TWS_HYPER_STEP] != 1; /* the sum of gradients begins undamped */
  update_constants c = {.lr = lr,
                        .beta1 = hyper[TWS_HYPER_BETA1],
                        .beta2 = hyper[TWS_HYPER_BETA2],
                        .rest1 = hyper[TWS_HYPER_REST1],
                        .rest2 = hyper[TWS_HYPER_REST2],
                        .epsilon = (float)tws_work_parameter(work, "epsilon"),
                        .weight_decay = (float)decay,
                        .decay = l2 ? (float)decay : (float)((double)lr * decay),
                        .step = lr / hyper[TWS_HYPER_BIAS1],
                        .inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]),
                        .momentum = (float)momentum,
                        .fresh = damped ? (float)(1 - tws_work_parameter(work, "dampening")) : 1,
                        .nesterov = tws_work_parameter(work, "nesterov") != 0,
                        .clip = work->code == TWS_KERNEL_MUON ? 1 : (float)metrics[TWS_METRIC_CLIP],
                        .l2 = l2,
                        .seed = (uint64_t)call->argument[0],
                        .first = (uint64_t)(int64_t)call->argument[1]};
  memcpy(&c.number, &hyper[TWS_HYPER_STEP], sizeof c.number);
  return c;
}

/* Returns the learning rate with bias corrections, times the ratio of the norms of the parameter and of its change. */
static float tensor_scale(const tws_host_call *call, const update_constants *c, const double *norms) {
  double ratio = 1;
  if (norms[0] > 0 && norms[1] > 0) {
    ratio = fmax(sqrt(norms[0] / norms[1]), tws_work_parameter(call->work, "min_coeff"));
    ratio = fmin(ratio, tws_work_parameter(call->work, "max_coeff"));
  }
  return (float)(c->step / (double)c->inverse_root_bias2 * ratio);
}

static void put_weights_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int last = call->count - 1;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[last], P, EACH_VECTOR(i, n, r.begin, r.end, {
             v_put(P, call->operand[last], i, v_get(TWS_F32, call->operand[0], i, n), n);
           }));
}

/* Called after a skipped update: the 16-bit weights are unchanged, but may have to be copied to a device. */
static void put_weights(const tws_host_call *call, int copy_at) {
  if (call->work->place == TWS_PLACE_HOST && call->count > copy_at)
    run_parallel(call, 6.0 * (double)call->work->d[0], put_weights_task, (void *)(uintptr_t)call);
}

static tws_code run_update(const tws_host_call *call, int states, int norms, tws_host_task task) {
  const double *metrics = call->operand[states + 3];
  if (metrics[TWS_METRIC_CLIP] == 0) { /* the gradients are not finite: weights and states stay unchanged */
    put_weights(call, states + 4 + norms);
    return TWS_OK;
  }
  update_job job = {call, constants_of(call, states)};
  if (norms) job.constants.scale = tensor_scale(call, &job.constants, call->operand[states + 4]);
  run_parallel(call, tws_work_bytes(call->work), task, &job);
  return TWS_OK;
}

#define UPDATE_RULE(id, name, ...)                                                                  \
  static void name##_task(void *arg, int thread, int threads) {                                     \
    update_share(TWS_KERNEL_##id, arg, thread, threads);                                            \
  }                                                                                                 \
  HOST_KERNEL(name) {                                                                               \
    (void)err;                                                                                      \
    return run_update(call, state_count(TWS_KERNEL_##id), has_norms(TWS_KERNEL_##id), name##_task); \
  }
#include "config/optimizers.def"

/* ---- sums of squares ---- */

/* Adds the squares of a vector in double precision. */
VECTOR_INLINE void add_squares(vd *low, vd *high, vf x) {
  union {
    vf v;
    vf_half half[2];
  } u = {.v = x};
  const vd a = __builtin_convertvector(u.half[0], vd), b = __builtin_convertvector(u.half[1], vd);
  *low += a * a;
  *high += b * b;
}

VECTOR_INLINE double sum_of(vd low, vd high) {
  low += high;
  double sum = 0;
  for (int i = 0; i < LANES / 2; ++i) sum += low[i];
  return sum;
}

typedef struct norms_job {
  const tws_host_call *call;
  update_constants constants;
  double sum[MAX_THREADS][8]; /* [thread] sums of squares of the parameter and of its change */
} norms_job;

VECTOR_INLINE void norms_range(tws_kernel kernel, tws_dtype W, tws_dtype S, tws_dtype G, const tws_host_call *call,
                               const update_constants *c, host_range r, double *sum) {
  const int states = state_count(kernel);
  vd low[2] = {{0}, {0}}, high[2] = {{0}, {0}};
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf state[MOST_STATES];
    for (int k = 0; k < states; ++k) state[k] = v_get(S, call->operand[k + 1], i, n);
    const vf weight = v_get(W, call->operand[0], i, n), g = v_get(G, call->operand[states + 1], i, n);
    vf change = change_vector(kernel, c, weight, state, g);
    for (int k = n; k < LANES; ++k) change[k] = 0; /* lanes without an element may hold 0 / 0 */
    add_squares(&low[0], &high[0], weight);
    add_squares(&low[1], &high[1], change);
  });
  for (int k = 0; k < 2; ++k) sum[k] = sum_of(low[k], high[k]);
}

VECTOR_INLINE void norms_share(tws_kernel kernel, norms_job *job, int thread, int threads) {
  const tws_host_call *call = job->call;
  const update_constants *c = &job->constants;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  double *sum = job->sum[thread];
  if (call->work->flags & TWS_HALF_MOMENTS)
    norms_range(kernel, TWS_BF16, TWS_BF16, TWS_BF16, call, c, r, sum);
  else if (call->work->flags & TWS_HALF_WEIGHTS && call->work->dtype == TWS_F16)
    norms_range(kernel, TWS_F16, TWS_F32, TWS_F16, call, c, r, sum);
  else if (call->work->flags & TWS_HALF_WEIGHTS)
    norms_range(kernel, TWS_BF16, TWS_F32, TWS_BF16, call, c, r, sum);
  else
    FOR_TYPE(call->dtype[state_count(kernel) + 1], G, norms_range(kernel, TWS_F32, TWS_F32, G, call, c, r, sum));
}

static tws_code run_norms(const tws_host_call *call, int states, tws_host_task task) {
  const double *metrics = call->operand[states + 3];
  double *norms = call->operand[states + 4];
  norms[0] = norms[1] = 0;
  if (metrics[TWS_METRIC_CLIP] == 0) return TWS_OK;
  norms_job job = {.call = call, .constants = constants_of(call, states)};
  run_parallel(call, tws_work_bytes(call->work), task, &job);
  for (int i = 0; i < call->backend->threads; ++i)
    for (int k = 0; k < 2; ++k) norms[k] += job.sum[i][k];
  for (int k = 0; k < 2; ++k) norms[k] *= call->argument[0];
  return TWS_OK;
}

#define UPDATE_RULE(...)
#define TENSOR_UPDATE_RULE(id, name, ...)                                    \
  static void name##_norms_task(void *arg, int thread, int threads) {        \
    norms_share(TWS_KERNEL_##id, arg, thread, threads);                      \
  }                                                                          \
  HOST_KERNEL(name##_norms) {                                                \
    (void)err;                                                               \
    return run_norms(call, state_count(TWS_KERNEL_##id), name##_norms_task); \
  }
#include "config/optimizers.def"

typedef struct squares_job {
  const tws_host_call *call;
  double sum[MAX_THREADS][8];
} squares_job;

VECTOR_INLINE double squares_of(tws_dtype T, const void *x, host_range r) {
  vd low = {0}, high = {0};
  EACH_VECTOR(i, n, r.begin, r.end, add_squares(&low, &high, v_get(T, x, i, n)));
  return sum_of(low, high);
}

static void squares_task(void *arg, int thread, int threads) {
  squares_job *job = arg;
  const tws_host_call *call = job->call;
  host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T, job->sum[thread][0] = squares_of(T, call->operand[0], r));
}

HOST_KERNEL(squared_norm) {
  (void)err;
  squares_job job = {.call = call};
  run_parallel(call, 4.0 * (double)call->work->d[0], squares_task, &job);
  double sum = 0;
  for (int i = 0; i < call->backend->threads; ++i) sum += job.sum[i][0];
  *(double *)call->operand[1] += call->argument[0] * sum;
  return TWS_OK;
}

/* Combines several losses: each becomes the mean over its targets that are not ignored, and their sum is the loss.
 * Returns 0 if all targets are ignored. */
static int join_heads(double *metrics, int heads) {
  int any = 0;
  metrics[TWS_METRIC_LOSS] = 0;
  for (int h = 0; h < heads; ++h) {
    double *head = metrics + TWS_METRIC_HEADS + 2 * h;
    const double kept = 1 - head[1];
    head[0] = kept < 1e-9 ? 0 : head[0] / kept;
    metrics[TWS_METRIC_LOSS] += head[0];
    any |= kept >= 1e-9;
  }
  return any;
}

/* Computes the coefficient of torch.nn.utils.clip_grad_norm_, for gradients that are divided by the share of tokens
 * whose targets are not ignored and by the loss scale; 0 means that the gradients are not finite, or that all targets
 * are ignored. */
HOST_KERNEL(clip) {
  (void)err;
  double *metrics = call->operand[0];
  const int scaled = (call->work->flags & TWS_SCALED) != 0;
  const double scale = scaled ? ((const float *)call->operand[1])[TWS_HYPER_SCALE] : 1;
  const int heads = (int)call->work->f[1];
  const double kept = heads > 0 ? join_heads(metrics, heads) : 1 - metrics[TWS_METRIC_IGNORED];
  if (scaled)
    metrics[TWS_METRIC_OVERFLOW] = !isfinite(metrics[TWS_METRIC_SQUARES]) || !isfinite(metrics[TWS_METRIC_LOSS]);
  if (kept < 1e-9) { /* if all targets are ignored, only rounding errors remain */
    metrics[TWS_METRIC_LOSS] = metrics[TWS_METRIC_NORM] = metrics[TWS_METRIC_CLIP] = 0;
    return TWS_OK;
  }
  const double max_norm = call->work->f[0], norm = sqrt(metrics[TWS_METRIC_SQUARES]) / (kept * scale);
  double coefficient = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
  if (coefficient > 1) coefficient = 1;
  const int usable = isfinite(norm) && metrics[TWS_METRIC_OVERFLOW] == 0;
  metrics[TWS_METRIC_LOSS] /= kept;
  metrics[TWS_METRIC_NORM] = norm;
  metrics[TWS_METRIC_CLIP] = usable ? coefficient / (kept * scale) : 0;
  return TWS_OK;
}
