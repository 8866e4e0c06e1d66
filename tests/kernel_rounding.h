/* Updates of bfloat16 weights that have no float32 copy: the random bits of stochastic rounding, the mean that it
 * keeps, and skipped steps. Part of test_kernels.c, included after kernel_identities.h. */
#ifndef TWS_TESTS_KERNEL_ROUNDING_H
#define TWS_TESTS_KERNEL_ROUNDING_H

enum { HALF_P, HALF_M, HALF_V, HALF_GRAD, HALF_HYPER, HALF_METRICS, HALF_OPERANDS };

/* Makes AdamW without decay and bias corrections, whose products are exact with fused multiply-add and without. */
static tws_work exact_adamw(int64_t count, int half_moments) {
  return (tws_work){
      .code = TWS_KERNEL_ADAMW,
      .dtype = TWS_BF16,
      .dtype2 = TWS_BF16,
      .flags = (uint32_t)(TWS_HALF_WEIGHTS | TWS_STOCHASTIC | (half_moments ? TWS_HALF_MOMENTS : 0)),
      .d = {count},
  };
}

static void put_betas(void *hyper, double beta1, double beta2) {
  put(TWS_F32, hyper, TWS_HYPER_BETA1, beta1), put(TWS_F32, hyper, TWS_HYPER_REST1, 1 - beta1);
  put(TWS_F32, hyper, TWS_HYPER_BETA2, beta2), put(TWS_F32, hyper, TWS_HYPER_REST2, 1 - beta2);
}

static void make_half_state(const tws_work *w, double step, uint64_t seed, tensor x[HALF_OPERANDS]) {
  const tws_dtype moments = w->flags & TWS_HALF_MOMENTS ? TWS_BF16 : TWS_F32;
  const int64_t count = w->d[0];
  x[HALF_P] = random_tensor(TWS_BF16, count, seed);
  x[HALF_M] = make_tensor(moments, count);
  x[HALF_V] = make_tensor(moments, count);
  x[HALF_GRAD] = random_tensor(TWS_BF16, count, seed + 1);
  for (int64_t i = 0; i < count; ++i) {
    const double m = tws_random_normal(11, seed + 2, (uint64_t)i), v = tws_random_normal(11, seed + 3, (uint64_t)i);
    put(moments, x[HALF_M].data, i, stored(TWS_BF16, m));
    put(moments, x[HALF_V].data, i, stored(TWS_BF16, 0.01 + v * v));
  }
  x[HALF_HYPER] = make_tensor(TWS_F32, TWS_HYPER_COUNT);
  x[HALF_METRICS] = make_tensor(TWS_F64, TWS_METRIC_COUNT);
  put(TWS_F32, x[HALF_HYPER].data, TWS_HYPER_LR, 0x1p-7);
  put(TWS_F32, x[HALF_HYPER].data, TWS_HYPER_BIAS1, 1);
  put(TWS_F32, x[HALF_HYPER].data, TWS_HYPER_BIAS2, 1);
  put(TWS_F32, x[HALF_HYPER].data, TWS_HYPER_STEP, step);
  put_betas(x[HALF_HYPER].data, 0.5, 0.75);
  put(TWS_F64, x[HALF_METRICS].data, TWS_METRIC_CLIP, 1);
}

static void free_tensors(tensor *x, int count) {
  for (int k = 0; k < count; ++k) free(x[k].data);
}

static uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Rounds x stochastically as base/philox.h states, computed from the random number generator alone. */
static uint16_t rounded_as_stated(float x, uint64_t seed, float step, int what, uint64_t element) {
  uint32_t word[4];
  tws_philox(seed, 0x8000000000000000U + 4 * (uint64_t)float_bits(step) + (uint64_t)what, element / 8, word);
  const uint32_t half = element % 2 ? word[element % 8 / 2] >> 16 : word[element % 8 / 2] & 0xffffU;
  return (uint16_t)((float_bits(x) + half) >> 16);
}

/* Returns operand `what` at element i as exact_adamw() leaves it, before it is rounded to the operand's type. */
static float exact_result(const tensor *before, int what, int64_t i) {
  const float p = (float)at_index(&before[HALF_P], i), g = (float)at_index(&before[HALF_GRAD], i);
  const float m = 0.5F * (float)at_index(&before[HALF_M], i) + 0.5F * g;
  const float v = 0.75F * (float)at_index(&before[HALF_V], i) + 0.25F * (g * g);
  return what == HALF_M ? m : what == HALF_V ? v : p - 0x1p-7F * m / sqrtf(v);
}

/* Stochastic rounding gives equal bits on every backend, instruction set and number of threads, wherever the elements
 * begin. */
START_TEST(rounding_draws_the_stated_bits) {
  const uint64_t s = 8000 + (uint64_t)_i, seed = _i % 4 ? (uint64_t)draw(s, 1, 0, 1 << 30) : 0x1fedcba987654;
  const int64_t beginnings[] = {0, 8, 128, draw(s, 2, 1, 200), ((int64_t)1 << 35) - draw(s, 3, 0, 100)};
  const int64_t first = beginnings[_i % 5], count = draw(s, 4, 1, _i % 2 ? 40 : 9000);
  const float step = (float)draw(s, 5, 1, 1 << 24);
  const tws_work w = exact_adamw(count, _i / 2 % 2);
  const tws_arguments a = {{(double)seed, (double)first}};
  for (int device = 0; device < 4; ++device) {
    tws_backend *backend = use_backend(device, 1 + _i % most_threads);
    if (!backend) continue;
    tensor before[HALF_OPERANDS], x[HALF_OPERANDS];
    make_half_state(&w, step, s, before);
    make_half_state(&w, step, s, x);
    run_tensors(backend, &w, &a, x, HALF_OPERANDS);
    for (int what = HALF_P; what <= HALF_V; ++what)
      for (int64_t i = 0; i < count; ++i) {
        const float exact = exact_result(before, what, i);
        const double want = x[what].dtype == TWS_F32
                                ? (double)exact
                                : tws_from_bf16(rounded_as_stated(exact, seed, step, what, (uint64_t)(first + i)));
        REQUIRE(at_index(&x[what], i) == want, "%s: element %lld is %.9g instead of %.9g, before rounding %.9g",
                label(&w, 0, device, what), (long long)i, at_index(&x[what], i), want, (double)exact);
      }
    free_tensors(before, HALF_OPERANDS);
    free_tensors(x, HALF_OPERANDS);
  }
}
END_TEST

/* Weights of 1 lose a share of the distance to the next number below: each is 1 or that number, the mean loses what it
 * should, and neither adjacent elements nor successive steps are correlated. Rounding to nearest keeps them all or
 * none. */
START_TEST(rounding_keeps_the_mean) {
  enum { COUNT = 10007 };
  const double share = (_i + 1) / 16.0, below = 1 - 0x1p-8, deviation = sqrt(share * (1 - share) / COUNT);
  tws_backend *backend = use_backend(0, 1 + _i % most_threads);
  unsigned char fell[2][COUNT];
  for (int step = 0; step < 2; ++step) {
    tensor x[HALF_OPERANDS];
    const tws_work w = exact_adamw(COUNT, 1);
    const tws_arguments a = {{99, 5}};
    make_half_state(&w, 1 + step, 0, x);
    put_betas(x[HALF_HYPER].data, 0, 0); /* a step of the learning rate */
    put(TWS_F32, x[HALF_HYPER].data, TWS_HYPER_LR, share * 0x1p-8);
    for (int64_t i = 0; i < COUNT; ++i) put(TWS_BF16, x[HALF_P].data, i, 1), put(TWS_BF16, x[HALF_GRAD].data, i, 1);
    run_tensors(backend, &w, &a, x, HALF_OPERANDS);
    double sum = 0;
    for (int64_t i = 0; i < COUNT; ++i) {
      const double got = at_index(&x[HALF_P], i);
      REQUIRE(got == 1 || got == below, "element %lld is %.9g", (long long)i, got);
      sum += fell[step][i] = got == below;
    }
    REQUIRE(fabs(sum / COUNT - share) < 4.5 * deviation, "%g of the weights fell instead of %g", sum / COUNT, share);
    free_tensors(x, HALF_OPERANDS);
  }
  double neighbours = 0, steps = 0;
  for (int64_t i = 0; i < COUNT; ++i) {
    neighbours += (fell[0][i] - share) * (fell[0][(i + 1) % COUNT] - share);
    steps += (fell[0][i] - share) * (fell[1][i] - share);
  }
  const double variance = share * (1 - share), bound = 4.5 * variance * sqrt(COUNT);
  REQUIRE(fabs(neighbours) < bound && fabs(steps) < bound, "correlated: adjacent %g, steps %g",
          neighbours / variance / COUNT, steps / variance / COUNT);
}
END_TEST

/* Each result is one of the two numbers next to the exact one, and its mean error over all weights and moments is 0. */
START_TEST(rounding_is_to_an_adjacent_number) {
  enum { COUNT = 30011 };
  const uint64_t s = 8500 + (uint64_t)_i;
  tensor before[HALF_OPERANDS], x[HALF_OPERANDS];
  const tws_work w = exact_adamw(COUNT, 1);
  const tws_arguments a = {{(double)s, 1000 * _i + 3}};
  make_half_state(&w, 7, s, before);
  make_half_state(&w, 7, s, x);
  run_tensors(use_backend(0, 1 + _i % most_threads), &w, &a, x, HALF_OPERANDS);
  for (int what = HALF_P; what <= HALF_V; ++what) {
    double error = 0, variance = 0, up_error = 0, up_variance = 0;
    for (int64_t i = 0; i < COUNT; ++i) {
      const double exact = exact_result(before, what, i), got = at_index(&x[what], i);
      const uint32_t bits = float_bits((float)exact);
      const double toward_0 = tws_from_bf16((uint16_t)(bits >> 16)), away = tws_from_bf16((uint16_t)((bits >> 16) + 1));
      const double part = (exact - toward_0) / (away - toward_0), moved = (got - exact) / (away - toward_0);
      REQUIRE(got == toward_0 || (part > 0 && got == away), "%.9g became %.9g", exact, got);
      error += moved, variance += part * (1 - part);
      if (part > 0.5) up_error += moved, up_variance += part * (1 - part); /* to nearest these all go up */
    }
    REQUIRE(fabs(error) < 4.5 * sqrt(variance) && fabs(up_error) < 4.5 * sqrt(up_variance),
            "operand %d is off by %g deviations, by %g where nearest is away from 0", what, error / sqrt(variance),
            up_error / sqrt(up_variance));
  }
  free_tensors(before, HALF_OPERANDS);
  free_tensors(x, HALF_OPERANDS);
}
END_TEST

/* A clip coefficient of 0 leaves all bits unchanged; a NaN among the gradients changes only its own element. */
START_TEST(rounding_of_values_that_are_not_finite) {
  for (int half_moments = 0; half_moments < 2; ++half_moments)
    for (int stochastic = 0; stochastic < 2; ++stochastic) {
      tws_work w = exact_adamw(300, half_moments);
      const tws_arguments a = {{1, 11}};
      if (!stochastic) w.flags &= ~(uint32_t)TWS_STOCHASTIC;
      tensor before[HALF_OPERANDS], x[HALF_OPERANDS];
      make_half_state(&w, 1, 5, before);
      make_half_state(&w, 1, 5, x);
      put(TWS_F64, x[HALF_METRICS].data, TWS_METRIC_CLIP, 0);
      put(TWS_BF16, x[HALF_GRAD].data, 77, NAN);
      run_tensors(use_backend(0, 1), &w, &a, x, HALF_OPERANDS);
      for (int what = HALF_P; what <= HALF_V; ++what) ck_assert(same_bits(&x[what], &before[what]));
      put(TWS_F64, x[HALF_METRICS].data, TWS_METRIC_CLIP, 1);
      run_tensors(use_backend(0, 1), &w, &a, x, HALF_OPERANDS);
      for (int what = HALF_P; what <= HALF_V; ++what)
        for (int64_t i = 0; i < 300; ++i) ck_assert_int_eq(isnan(at_index(&x[what], i)) != 0, i == 77);
      free_tensors(before, HALF_OPERANDS);
      free_tensors(x, HALF_OPERANDS);
    }
}
END_TEST

#endif
