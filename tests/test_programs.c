/* ctest: engine mpi */
/* Future techniques, written down by hand: plans over states that no pass of the lowering makes yet. Each is verified,
 * laid out, costed, simulated, and executed on the host with known results. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "command.h"
#include "estimators/estimators.h"
#include "hand_program.h"
#include "models/operator.h"
#include "plan/hyper.h"
#include "real/executor.h"
#include "job_seconds.h"
#include "suite.h"

const tws_backend_ops *tws_host_backend(void);

static tws_error err;

static tws_executor *execute_on_host(const tws_plan *const *plans, int count, tws_backend **backend) {
  tws_executor *executor;
  ck_assert(tws_host_backend()->create(0, 1, backend, &err) == TWS_OK);
  const tws_executor_setup setup = {
      .programs = plans, .program_count = count, .ops = tws_host_backend(), .backend = *backend};
  ck_assert_msg(tws_executor_create(&setup, &executor, &err) == TWS_OK, "%s", err.message);
  for (int t = 0; t < TWS_TIER_COUNT; t++) { /* memory: each state once, plus the largest program */
    uint64_t largest = 0, states = 0;
    for (int i = 0; i < count; i++) {
      int seen = 0;
      for (int k = 0; k < i; k++) seen |= plans[k]->state == plans[i]->state;
      if (!seen && plans[i]->state) states += plans[i]->state->arena_bytes[t];
      if (plans[i]->arena_bytes[t] > largest) largest = plans[i]->arena_bytes[t];
    }
    ck_assert_uint_eq(tws_executor_allocated(executor, (tws_tier)t), states + largest);
  }
  return executor;
}

static void step(tws_executor *executor, int program) {
  ck_assert_msg(tws_executor_step(executor, program, 1, NULL, NULL, NULL, &err) == TWS_OK, "%s", err.message);
}

static void put(tws_executor *x, int program, uint32_t buffer, const void *from, uint64_t count) {
  ck_assert_msg(tws_executor_put(x, program, buffer, 0, from, count, &err) == TWS_OK, "%s", err.message);
}
static void get(tws_executor *x, int program, uint32_t buffer, void *to, uint64_t count) {
  ck_assert_msg(tws_executor_get(x, program, buffer, 0, to, count, &err) == TWS_OK, "%s", err.message);
}

static void finish(tws_executor *executor, tws_backend *backend) {
  tws_executor_destroy(executor);
  tws_host_backend()->destroy(backend);
}

/* ---- an all-to-all with uneven counts known only at run time ---- */

START_TEST(uneven_all_to_all) {
  enum { RANKS = 4 };
  const tws_plan *plans[RANKS];
  for (int r = 0; r < RANKS; r++) plans[r] = uneven_plan(r, RANKS);
  ck_assert_msg(tws_plans_verify(plans, RANKS, &err) == TWS_OK, "%s", err.message);
  const double seconds = job_seconds(plans, RANKS);
  for (int r = 0; r < RANKS; r++) { /* with more expected bytes the collective takes longer, in the same memory */
    tws_plan *plan = (tws_plan *)(uintptr_t)plans[r];
    for (uint32_t w = 0; w < plan->work_count; w++)
      if (plan->works[w].kind == TWS_OP_COLLECTIVE) plan->works[w].d[0] *= 1000;
  }
  ck_assert_double_gt(job_seconds(plans, RANKS), seconds);
  for (int r = 0; r < RANKS; r++) tws_plan_destroy((tws_plan *)(uintptr_t)plans[r]);
  command_result r =
      twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_engine uneven", RANKS, TWS_BUILD_DIR);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

/* ---- a gather to a root and the scatter back: every rank's plan is another one ---- */

START_TEST(gather_and_scatter) {
  enum { RANKS = 4 };
  const tws_plan *plans[RANKS];
  for (int r = 0; r < RANKS; r++) plans[r] = gather_plan(r, RANKS);
  ck_assert_msg(tws_plans_verify(plans, RANKS, &err) == TWS_OK, "%s", err.message);
  for (int r = 0; r < RANKS; r++) /* only the root has buffers for the data of all ranks */
    ck_assert((plans[r]->arena_bytes[TWS_TIER_DEVICE] > 8 * GATHERED * sizeof(float)) == (r == GATHER_ROOT));
  job_seconds(plans, RANKS);
  tws_plan *root = (tws_plan *)(uintptr_t)plans[GATHER_ROOT];
  root->operands[root->ops[0].operand_first + 1].count--; /* the root's buffer becomes too small for the data of all
                                                           * ranks */
  ck_assert_int_eq(tws_plan_verify(root, &err), TWS_INTERNAL);
  ck_assert_msg(strstr(err.message, "gather of 4 ranks") != NULL, "%s", err.message);
  for (int r = 0; r < RANKS; r++) tws_plan_destroy((tws_plan *)(uintptr_t)plans[r]);
  for (int i = 0; i < 2; i++) {
    char emulated[4096];
    snprintf(emulated, sizeof emulated, "%s/emulated", TWS_BUILD_DIR);
    if (i && access(emulated, R_OK) != 0) break; /* built without CUDA's headers */
    command_result r =
        twinspeed("launch --quiet -n %d --threads 1 -- env TWINSPEED_MODULES=%s %s/tests/ranks_engine gather %s", RANKS,
                  emulated, TWS_BUILD_DIR, i ? "cuda" : "host");
    ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
    command_free(&r);
  }
}
END_TEST

/* ---- weights on a disk, fetched through pinned memory while the device computes; sums kept by the host ---- */

enum { LAYERS = 6, WIDTH = 40000 };

/* Makes the program: while the device computes with one layer's weights, the next layer's are fetched and the previous
 * sum is copied out. */
static tws_plan *streaming_program(tws_state *state) {
  hand_program h;
  uint32_t fetched[LAYERS], out[LAYERS];
  hand_begin(&h, state, 0, 1);
  const uint32_t weights = hand_state(&h, "weights"), totals = hand_state(&h, "totals");
  uint32_t sum = hand_buffer(&h, "x", TWS_TIER_DEVICE, TWS_F32, WIDTH, TWS_LIFETIME_PROGRAM);
  for (int turn = 0; turn < LAYERS + 2; turn++) {
    if (turn < LAYERS) {
      const uint32_t pinned = hand_buffer(&h, "on its way", TWS_TIER_PINNED, TWS_F32, WIDTH, TWS_LIFETIME_OPS);
      fetched[turn] = hand_buffer(&h, "fetched", TWS_TIER_DEVICE, TWS_F32, WIDTH, TWS_LIFETIME_OPS);
      tws_builder_copy(&h.b, TWS_STREAM_DISK, tws_read(weights, (uint64_t)turn * WIDTH, WIDTH),
                       tws_write(pinned, 0, WIDTH));
      tws_builder_copy(&h.b, TWS_STREAM_COPY_IN, tws_read(pinned, 0, WIDTH), tws_write(fetched[turn], 0, WIDTH));
    }
    if (turn > 0 && turn <= LAYERS) {
      const uint32_t next = hand_buffer(&h, "sum", TWS_TIER_DEVICE, TWS_F32, WIDTH, TWS_LIFETIME_OPS);
      const tws_operand add[3] = {tws_read(sum, 0, WIDTH), tws_read(fetched[turn - 1], 0, WIDTH),
                                  tws_write(next, 0, WIDTH)};
      hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ADD, WIDTH, 0, add, 3);
      out[turn - 1] = hand_buffer(&h, "on its way out", TWS_TIER_PINNED, TWS_F32, WIDTH, TWS_LIFETIME_OPS);
      tws_builder_copy(&h.b, TWS_STREAM_COPY_OUT, tws_read(next, 0, WIDTH), tws_write(out[turn - 1], 0, WIDTH));
      sum = next;
    }
    if (turn > 1) {
      const tws_operand keep[2] = {tws_read(out[turn - 2], 0, WIDTH), tws_update(totals, 0, WIDTH)};
      hand_compute(&h, TWS_STREAM_HOST, TWS_KERNEL_ACCUMULATE, WIDTH, 0, keep, 2);
    }
  }
  return hand_end(&h);
}

START_TEST(weights_on_a_disk) {
  tws_state *state;
  tws_backend *backend;
  ck_assert(tws_state_create(&state, &err) == TWS_OK);
  hand_add_state(state, "weights", TWS_TIER_DISK, TWS_F32, LAYERS * WIDTH);
  hand_add_state(state, "totals", TWS_TIER_HOST, TWS_F32, WIDTH);
  const tws_plan *plan = streaming_program(state);
  int places[TWS_PLACE_COUNT] = {0}, channels[TWS_CHANNEL_COUNT] = {0};
  double serial = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    places[plan->ops[op].place]++;
    channels[plan->ops[op].channel]++;
    serial += tws_plan_work_seconds(plan, plan->ops[op].work, job_machine(), 0);
  }
  ck_assert_int_eq(places[TWS_PLACE_DISK], LAYERS);
  ck_assert_int_eq(places[TWS_PLACE_HOST], LAYERS);
  ck_assert_int_eq(places[TWS_PLACE_DEVICE], 3 * LAYERS);
  ck_assert_int_eq(channels[TWS_CHANNEL_DISK], LAYERS);
  ck_assert_int_eq(channels[TWS_CHANNEL_COPY_IN], LAYERS);
  ck_assert_int_eq(channels[TWS_CHANNEL_COPY_OUT], LAYERS);
  ck_assert_double_lt(job_seconds(&plan, 1), 0.8 * serial); /* engines work side by side */
  ck_assert_uint_eq(state->arena_bytes[TWS_TIER_DEVICE], 0);
  ck_assert_uint_lt(plan->arena_bytes[TWS_TIER_DEVICE], LAYERS * WIDTH * sizeof(float)); /* never all at once */
  tws_executor *x = execute_on_host(&plan, 1, &backend);
  float *values = malloc(LAYERS * WIDTH * sizeof *values), *got = malloc(WIDTH * sizeof *got);
  for (int i = 0; i < LAYERS * WIDTH; i++) values[i] = (float)(i % 1013) - (float)(i / WIDTH);
  put(x, 0, 0, values, LAYERS * WIDTH);
  put(x, 0, 2, values, WIDTH); /* x: as the first layer */
  for (int run = 0; run < 2; run++) step(x, 0);
  get(x, 0, 1, got, WIDTH);
  for (int i = 0; i < WIDTH; i++) {
    float sum = values[i], want = 0;
    for (int layer = 0; layer < LAYERS; layer++) want += sum += values[layer * WIDTH + i];
    ck_assert_msg(got[i] == 2 * want, "%d: %g, not %g", i, (double)got[i], 2.0 * (double)want);
  }
  free(values);
  free(got);
  finish(x, backend);
  tws_plan_destroy((tws_plan *)(uintptr_t)plan);
  tws_state_destroy(state);
}
END_TEST

/* ---- decoding with a cache that grows: one program for each length, over one state ---- */

enum { LENGTH = 12, KEY = 96 };

static tws_plan *decoding_program(tws_state *state, uint64_t position) {
  hand_program h;
  hand_begin(&h, state, 0, 1);
  const uint32_t cache = hand_state(&h, "keys");
  const uint32_t key = hand_buffer(&h, "key", TWS_TIER_DEVICE, TWS_F32, KEY, TWS_LIFETIME_PROGRAM);
  const uint32_t score = hand_buffer(&h, "score", TWS_TIER_DEVICE, TWS_F64, 1, TWS_LIFETIME_PROGRAM);
  tws_builder_copy(&h.b, TWS_STREAM_COMPUTE, tws_read(key, 0, KEY), tws_write(cache, position * KEY, KEY));
  const tws_operand look[2] = {tws_read(cache, 0, (position + 1) * KEY), tws_update(score, 0, 1)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_SQUARED_NORM, (int64_t)(position + 1) * KEY, 1, look, 2);
  return hand_end(&h);
}

START_TEST(a_cache_that_grows) {
  tws_state *state;
  tws_backend *backend;
  const tws_plan *plans[LENGTH];
  ck_assert(tws_state_create(&state, &err) == TWS_OK);
  hand_add_state(state, "keys", TWS_TIER_DEVICE, TWS_F32, LENGTH * KEY);
  for (int i = 0; i < LENGTH; i++) plans[i] = decoding_program(state, (uint64_t)i);
  ck_assert_double_gt(job_seconds(&plans[LENGTH - 1], 1), job_seconds(&plans[0], 1));
  tws_executor *x = execute_on_host(plans, LENGTH, &backend);
  double want = 0;
  for (int i = 0; i < LENGTH; i++) {
    float key[KEY];
    double score = 0;
    for (int k = 0; k < KEY; k++) {
      key[k] = (float)(i + 1) * (float)(k % 7 - 3);
      want += (double)key[k] * (double)key[k];
    }
    put(x, i, 1, key, KEY);
    put(x, i, 2, &score, 1);
    step(x, i);
    get(x, i, 2, &score, 1);
    ck_assert_msg(score == want, "%d keys: %g, not %g", i + 1, score, want);
  }
  finish(x, backend);
  for (int i = 0; i < LENGTH; i++) tws_plan_destroy((tws_plan *)(uintptr_t)plans[i]);
  tws_state_destroy(state);
}
END_TEST

/* ---- two networks that train alternately over two states ---- */

static tws_state *adam_state(uint64_t count) {
  static const char *const names[] = {"weights", "first moments", "second moments"};
  tws_state *state;
  ck_assert(tws_state_create(&state, &err) == TWS_OK);
  for (int i = 0; i < 3; i++) hand_add_state(state, names[i], TWS_TIER_DEVICE, TWS_F32, count);
  return state;
}

enum { ADAM_GRADIENT = 3, ADAM_HYPER, ADAM_METRICS }; /* indices of the buffers that follow those of the state */
static tws_plan *adam_program(tws_state *state, uint64_t count) {
  hand_program h;
  hand_begin(&h, state, 0, 1);
  const uint32_t weights = hand_state(&h, "weights"), first = hand_state(&h, "first moments"),
                 second = hand_state(&h, "second moments");
  const uint32_t gradient = hand_buffer(&h, "gradient", TWS_TIER_DEVICE, TWS_F32, count, TWS_LIFETIME_PROGRAM);
  const uint32_t hyper = hand_buffer(&h, "hyper", TWS_TIER_DEVICE, TWS_F32, TWS_HYPER_COUNT, TWS_LIFETIME_PROGRAM);
  const uint32_t metrics = hand_buffer(&h, "metrics", TWS_TIER_DEVICE, TWS_F64, TWS_METRIC_COUNT, TWS_LIFETIME_PROGRAM);
  const tws_operand operands[6] = {tws_update(weights, 0, count),       tws_update(first, 0, count),
                                   tws_update(second, 0, count),        tws_read(gradient, 0, count),
                                   tws_read(hyper, 0, TWS_HYPER_COUNT), tws_read(metrics, 0, TWS_METRIC_COUNT)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ADAMW, (int64_t)count, 1e-8, operands, 6);
  return hand_end(&h);
}

START_TEST(two_networks) {
  enum { STEPS = 3 };
  const uint64_t count[2] = {500, 80};
  tws_config *config;
  tws_backend *backend;
  tws_state *states[2];
  const tws_plan *plans[2];
  double want[2][3] = {{0}, {0}}; /* the weight and both moments, equal for all elements */
  ck_assert(tws_config_default(&config, &err) == TWS_OK);
  for (int n = 0; n < 2; n++) {
    states[n] = adam_state(count[n]);
    plans[n] = adam_program(states[n], count[n]);
    job_seconds(&plans[n], 1);
  }
  tws_executor *x = execute_on_host(plans, 2, &backend);
  for (int t = 1; t <= STEPS; t++)
    for (int n = 0; n < 2; n++) {
      float hyper[TWS_HYPER_COUNT], values[500];
      double metrics[TWS_METRIC_COUNT] = {0}, g = (n ? -0.25 : 0.5) * t, *w = want[n];
      const double lr = tws_hyper_fill(config, t, 1, hyper);
      metrics[TWS_METRIC_CLIP] = 1;
      for (uint64_t i = 0; i < count[n]; i++) values[i] = (float)g;
      put(x, n, ADAM_GRADIENT, values, count[n]);
      put(x, n, ADAM_HYPER, hyper, TWS_HYPER_COUNT);
      put(x, n, ADAM_METRICS, metrics, TWS_METRIC_COUNT);
      step(x, n);
      w[1] = config->beta1 * w[1] + (1 - config->beta1) * g;
      w[2] = config->beta2 * w[2] + (1 - config->beta2) * g * g;
      w[0] -= lr * (w[1] / (1 - pow(config->beta1, t))) / (sqrt(w[2] / (1 - pow(config->beta2, t))) + 1e-8);
      for (uint32_t k = 0; k < 3; k++) {
        get(x, n, k, values, count[n]);
        for (uint64_t i = 0; i < count[n]; i++)
          ck_assert_msg(fabs((double)values[i] - w[k]) <= 1e-6 * fabs(w[k]), "network %d, step %d, %u: %g, not %g", n,
                        t, k, (double)values[i], w[k]);
      }
    }
  ck_assert(want[0][0] < 0 && want[1][0] > 0);
  finish(x, backend);
  for (int n = 0; n < 2; n++) {
    tws_plan_destroy((tws_plan *)(uintptr_t)plans[n]);
    tws_state_destroy(states[n]);
  }
  tws_config_destroy(config);
}
END_TEST

/* ---- Lamb: norms of each parameter ---- */

enum { TENSORS = 3, LAMB_GRADIENT = 3, LAMB_HYPER, LAMB_METRICS, LAMB_NORMS }; /* indices of the buffers that follow
                                                                                * those of the state */
static const uint64_t tensor_first[TENSORS + 1] = {0, 300, 301, 4000};

static tws_work lamb_work(tws_kernel kernel, int tensor) {
  tws_work work = {.kind = TWS_OP_COMPUTE, .code = (uint8_t)kernel, .dtype = TWS_F32, .dtype2 = TWS_F32};
  work.d[0] = (int64_t)(tensor_first[tensor + 1] - tensor_first[tensor]);
  tws_work_set_parameter(&work, "epsilon", 1e-6);
  tws_work_set_parameter(&work, "weight_decay", 0.1);
  tws_work_set_parameter(&work, "min_coeff", 0.01);
  tws_work_set_parameter(&work, "max_coeff", 10);
  return work;
}

static tws_plan *lamb_program(tws_state *state) {
  const uint64_t count = tensor_first[TENSORS];
  hand_program h;
  hand_begin(&h, state, 0, 1);
  const uint32_t states[3] = {hand_state(&h, "weights"), hand_state(&h, "first moments"),
                              hand_state(&h, "second moments")};
  const uint32_t gradient = hand_buffer(&h, "gradient", TWS_TIER_DEVICE, TWS_F32, count, TWS_LIFETIME_PROGRAM);
  const uint32_t hyper = hand_buffer(&h, "hyper", TWS_TIER_DEVICE, TWS_F32, TWS_HYPER_COUNT, TWS_LIFETIME_PROGRAM);
  const uint32_t metrics = hand_buffer(&h, "metrics", TWS_TIER_DEVICE, TWS_F64, TWS_METRIC_COUNT, TWS_LIFETIME_PROGRAM);
  const uint32_t norms = hand_buffer(&h, "norms", TWS_TIER_DEVICE, TWS_F64, 2 * TENSORS, TWS_LIFETIME_PROGRAM);
  for (int update = 0; update < 2; update++)
    for (int t = 0; t < TENSORS; t++) {
      const uint64_t first = tensor_first[t], n = tensor_first[t + 1] - first, at = 2 * (uint64_t)t;
      const tws_work work = lamb_work(update ? TWS_KERNEL_LAMB : TWS_KERNEL_LAMB_NORMS, t);
      tws_operand operands[7] = {{0},
                                 {0},
                                 {0},
                                 tws_read(gradient, first, n),
                                 tws_read(hyper, 0, TWS_HYPER_COUNT),
                                 tws_read(metrics, 0, TWS_METRIC_COUNT)};
      for (int k = 0; k < 3; k++)
        operands[k] = update ? tws_update(states[k], first, n) : tws_read(states[k], first, n);
      operands[6] = update ? tws_read(norms, at, 2) : tws_write(norms, at, 2);
      const tws_arguments share = {{1}};
      tws_builder_compute_with(&h.b, TWS_STREAM_COMPUTE, &work, update ? NULL : &share, operands, 7);
    }
  return hand_end(&h);
}

/* Computes the update of You et al. as DeepSpeed does it, in double precision. */
static void lamb_reference(const tws_config *config, int step, const float *gradient, double *p, double *m, double *v) {
  const double beta1 = config->beta1, beta2 = config->beta2;
  const double size = config->lr * sqrt(1 - pow(beta2, step)) / (1 - pow(beta1, step));
  for (int t = 0; t < TENSORS; t++) {
    double weights = 0, changes = 0, ratio = 1, change[4000];
    for (uint64_t i = tensor_first[t]; i < tensor_first[t + 1]; i++) {
      m[i] = beta1 * m[i] + (1 - beta1) * (double)gradient[i];
      v[i] = beta2 * v[i] + (1 - beta2) * (double)gradient[i] * (double)gradient[i];
      change[i] = m[i] / (sqrt(v[i]) + 1e-6) + 0.1 * p[i];
      weights += p[i] * p[i];
      changes += change[i] * change[i];
    }
    if (weights > 0 && changes > 0) ratio = fmin(fmax(sqrt(weights / changes), 0.01), 10);
    for (uint64_t i = tensor_first[t]; i < tensor_first[t + 1]; i++) p[i] -= size * ratio * change[i];
  }
}

START_TEST(norms_per_parameter) {
  enum { STEPS = 4, COUNT = 4000 };
  tws_config *config;
  tws_backend *backend;
  ck_assert(tws_config_default(&config, &err) == TWS_OK);
  tws_state *state = adam_state(COUNT);
  const tws_plan *plan = lamb_program(state);
  ck_assert_msg(tws_plans_verify(&plan, 1, &err) == TWS_OK, "%s", err.message);
  ck_assert_uint_eq(plan->works[0].d[0] == 300, 1);
  job_seconds(&plan, 1);
  tws_executor *x = execute_on_host(&plan, 1, &backend);
  static double want[3][COUNT];
  static float values[COUNT], gradient[COUNT];
  for (int i = 0; i < COUNT; i++) values[i] = i < 300 ? 0 : (float)(i % 17 - 8) / 20; /* the first tensor: all zero */
  for (int i = 0; i < COUNT; i++) want[0][i] = (double)values[i];
  put(x, 0, 0, values, COUNT);
  for (int step_ = 1; step_ <= STEPS; step_++) {
    float hyper[TWS_HYPER_COUNT];
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    tws_hyper_fill(config, step_, 1, hyper);
    for (int i = 0; i < COUNT; i++) gradient[i] = (float)((i * 7 + step_ * 11) % 23 - 11) / 50;
    put(x, 0, LAMB_GRADIENT, gradient, COUNT);
    put(x, 0, LAMB_HYPER, hyper, TWS_HYPER_COUNT);
    put(x, 0, LAMB_METRICS, metrics, TWS_METRIC_COUNT);
    step(x, 0);
    lamb_reference(config, step_, gradient, want[0], want[1], want[2]);
    for (uint32_t k = 0; k < 3; k++) {
      get(x, 0, k, values, COUNT);
      for (int i = 0; i < COUNT; i++)
        ck_assert_msg(fabs((double)values[i] - want[k][i]) <= 2e-6 * fabs(want[k][i]) + 1e-8,
                      "step %d, %u[%d]: %g, not %g", step_, k, i, (double)values[i], want[k][i]);
    }
  }
  finish(x, backend);
  tws_plan_destroy((tws_plan *)(uintptr_t)plan);
  tws_state_destroy(state);
  tws_config_destroy(config);
}
END_TEST

/* ---- error feedback that one program fills and another uses ---- */

enum { FEEDBACK = 300 };

static tws_plan *warm_up_program(tws_state *state) {
  hand_program h;
  hand_begin(&h, state, 0, 1);
  const uint32_t feedback = hand_state(&h, "error feedback");
  const uint32_t error = hand_buffer(&h, "error", TWS_TIER_DEVICE, TWS_F32, FEEDBACK, TWS_LIFETIME_PROGRAM);
  const tws_operand add[2] = {tws_read(error, 0, FEEDBACK), tws_update(feedback, 0, FEEDBACK)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ACCUMULATE, FEEDBACK, 0, add, 2);
  return hand_end(&h);
}

static tws_plan *compressed_program(tws_state *state) {
  hand_program h;
  hand_begin(&h, state, 0, 1);
  const uint32_t weights = hand_state(&h, "weights"), feedback = hand_state(&h, "error feedback");
  const uint32_t scratch = hand_buffer(&h, "compensated", TWS_TIER_DEVICE, TWS_F32, FEEDBACK, TWS_LIFETIME_OPS);
  const uint32_t gradient = hand_buffer(&h, "gradient", TWS_TIER_DEVICE, TWS_F32, FEEDBACK, TWS_LIFETIME_PROGRAM);
  const tws_operand compensate[3] = {tws_read(gradient, 0, FEEDBACK), tws_read(feedback, 0, FEEDBACK),
                                     tws_write(scratch, 0, FEEDBACK)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ADD, FEEDBACK, 0, compensate, 3);
  const tws_operand update[2] = {tws_read(scratch, 0, FEEDBACK), tws_update(weights, 0, FEEDBACK)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ACCUMULATE, FEEDBACK, 0, update, 2);
  const tws_operand clear = tws_write(feedback, 0, FEEDBACK);
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_FILL, FEEDBACK, 0, &clear, 1);
  return hand_end(&h);
}

START_TEST(error_feedback) {
  tws_state *state;
  tws_backend *backend;
  float values[FEEDBACK], got[FEEDBACK];
  ck_assert(tws_state_create(&state, &err) == TWS_OK);
  hand_add_state(state, "weights", TWS_TIER_DEVICE, TWS_F32, FEEDBACK);
  hand_add_state(state, "error feedback", TWS_TIER_DEVICE, TWS_F32, FEEDBACK);
  const tws_plan *plans[2] = {warm_up_program(state), compressed_program(state)};
  for (int i = 0; i < 2; i++) {
    tws_ledger ledger;
    ck_assert(tws_ledger_read(plans[i], &ledger, &err) == TWS_OK); /* each program's ledger counts the whole state */
    ck_assert_uint_eq(ledger.tier[TWS_TIER_DEVICE].category[TWS_CATEGORY_PARAMETER], 2 * FEEDBACK * sizeof(float));
    job_seconds(&plans[i], 1);
  }
  tws_executor *x = execute_on_host(plans, 2, &backend);
  for (int i = 0; i < FEEDBACK; i++) values[i] = (float)i;
  for (int run = 0; run < 3; run++) {
    put(x, 0, 1, values, FEEDBACK);
    step(x, 0);
  }
  for (int run = 0; run < 2; run++) { /* the first run adds the error feedback and clears it; the second adds 0 */
    put(x, 1, 3, values, FEEDBACK);
    step(x, 1);
    get(x, 1, 0, got, FEEDBACK);
    for (int i = 0; i < FEEDBACK; i++) ck_assert_msg(got[i] == (float)((4 + run) * i), "%d: %g", i, (double)got[i]);
  }
  finish(x, backend);
  for (int i = 0; i < 2; i++) tws_plan_destroy((tws_plan *)(uintptr_t)plans[i]);
  tws_state_destroy(state);
}
END_TEST

/* ---- entries and programs that a state refuses ---- */

START_TEST(states_and_programs_fit) {
  tws_state *state;
  hand_program h;
  uint32_t index;
  ck_assert(tws_state_create(&state, &err) == TWS_OK);
  hand_add_state(state, "weights", TWS_TIER_DEVICE, TWS_F32, 100);
  const tws_state_entry again = {.name = "weights", .dtype = TWS_F32, .elements = 5};
  ck_assert_int_eq(tws_state_add(state, &again, &index, &err), TWS_INTERNAL);
  for (int i = 0; i < 3; i++) { /* the entry has a wrong name, a wrong size, a wrong type */
    const tws_state_entry wanted = {
        .name = i == 0 ? "moments" : "weights", .dtype = i == 2 ? TWS_BF16 : TWS_F32, .elements = i == 1 ? 99 : 100};
    hand_begin(&h, state, 0, 1);
    tws_builder_state(&h.b, &wanted);
    ck_assert_int_eq(tws_builder_finish(&h.b), TWS_INTERNAL);
    ck_assert_msg(strstr(h.err.message, wanted.name) != NULL, "%s", h.err.message);
    tws_builder_free(&h.b);
    tws_plan_destroy(h.b.plan);
  }
  tws_state_destroy(state);
}
END_TEST

/* ---- one collective over segments of several types ---- */

/* Makes a plan with an all-gather of n float32 and 2n bf16 elements per rank, or of 2n bf16 and n float32 ones, which
 * have as many bytes. */
static tws_plan *mixed_plan(int rank, int bf16_first, uint64_t bytes) {
  enum { EACH = 64, RANKS = 2 };
  hand_program h;
  hand_begin(&h, NULL, rank, RANKS);
  tws_operand operands[4];
  for (int s = 0; s < 2; s++) {
    const tws_dtype dtype = s == bf16_first ? TWS_F32 : TWS_BF16;
    const uint64_t count = dtype == TWS_F32 ? EACH : 2 * EACH;
    const uint32_t own = hand_buffer(&h, "own", TWS_TIER_DEVICE, dtype, count, TWS_LIFETIME_PROGRAM);
    const uint32_t all = hand_buffer(&h, "all", TWS_TIER_DEVICE, dtype, count * RANKS, TWS_LIFETIME_PROGRAM);
    operands[2 * s] = tws_read(own, 0, count);
    operands[2 * s + 1] = tws_write(all, 0, count * RANKS);
  }
  tws_builder_collective(&h.b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_GATHER, 0, bf16_first ? TWS_BF16 : TWS_F32, bytes,
                         2, 0, operands, 4);
  ck_assert_msg(tws_builder_finish(&h.b) == TWS_OK, "%s", h.err.message);
  tws_builder_free(&h.b);
  return h.b.plan;
}

START_TEST(segments_of_several_types) {
  enum { BYTES = 2 * (64 * 4 + 128 * 2) };
  tws_plan *a = mixed_plan(0, 0, BYTES), *b = mixed_plan(1, 0, BYTES), *other = mixed_plan(1, 1, BYTES),
           *fewer = mixed_plan(0, 0, 3 * 64 * 4 * 2); /* as if all were float32 */
  ck_assert_msg(tws_plan_verify(a, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_plans_verify((const tws_plan *[]){a, b}, 2, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_plans_verify((const tws_plan *[]){a, other}, 2, &err), TWS_INTERNAL);
  ck_assert_int_eq(tws_plan_verify(fewer, &err), TWS_INTERNAL);
  tws_plan *plans[] = {a, b, other, fewer};
  for (int i = 0; i < 4; i++) tws_plan_destroy(plans[i]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("programs");
  TCase *tests = tcase_create("programs");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, uneven_all_to_all);
  tcase_add_test(tests, gather_and_scatter);
  tcase_add_test(tests, weights_on_a_disk);
  tcase_add_test(tests, a_cache_that_grows);
  tcase_add_test(tests, two_networks);
  tcase_add_test(tests, norms_per_parameter);
  tcase_add_test(tests, error_feedback);
  tcase_add_test(tests, states_and_programs_fit);
  tcase_add_test(tests, segments_of_several_types);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
