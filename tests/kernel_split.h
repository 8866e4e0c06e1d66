/* Updates of float32 weights in two halves: they leave what updates of whole float32 weights leave. Part of
 * test_kernels.c, included after kernel_rounding.h, whose order of AdamW's operands the comparison has. */
#ifndef TWS_TESTS_KERNEL_SPLIT_H
#define TWS_TESTS_KERNEL_SPLIT_H

enum { SPLIT_ROUNDS = 48, SPLIT_MOST = 7 }; /* most operands of a rule: p, two states, grad, hyper, metrics, p16 */

/* A rule, its parameters and how many states it has. */
static const struct {
  uint8_t kernel;
  int states;
  double f[TWS_WORK_PARAMETERS];
} split_rules[] = {{TWS_KERNEL_ADAMW, 2, {1e-8, 0.1}},
                   {TWS_KERNEL_LION, 1, {0}},
                   {TWS_KERNEL_ADAGRAD, 1, {1e-8, 0.1}},
                   {TWS_KERNEL_SGD, 1, {0.1, 0.9}}};

/* Returns a weight: any number near 0, powers of two, numbers near the largest and near 0, both zeros. */
static float split_weight(uint64_t seed, int64_t i) {
  static const float special[] = {0, -0.0F, 1, -1, 0x1p-126F, 0x1p-140F, -0x1.fffffep127F, 0x1.01p0F, 0x1.03p0F};
  if (i % 16 == 0) return special[i / 16 % (int64_t)(sizeof special / sizeof *special)];
  return (float)tws_random_normal(seed, 1, (uint64_t)i);
}

/* The operands of an update of `count` weights, from the second element of their memory on where `shift` is 1. */
static void make_split_state(const tws_work *w, int states, int64_t count, int shift, uint64_t seed,
                             tensor x[SPLIT_MOST]) {
  const int split = (w->flags & TWS_SPLIT_WEIGHTS) != 0;
  x[0] = make_tensor(split ? TWS_LOW16 : TWS_F32, count + shift);
  for (int k = 1; k <= states; ++k) x[k] = make_tensor(TWS_F32, count + shift);
  x[states + 1] = make_tensor((tws_dtype)w->dtype, count + shift);
  x[states + 2] = make_tensor(TWS_F32, TWS_HYPER_COUNT);
  x[states + 3] = make_tensor(TWS_F64, TWS_METRIC_COUNT);
  x[states + 4] = make_tensor(TWS_BF16, count + shift);
  for (int64_t i = 0; i < count + shift; ++i) {
    const float p = split_weight(seed, i);
    const unsigned short upper = tws_to_bf16(p), low = tws_low_half(p);
    if (split) {
      ((uint16_t *)x[0].data)[i] = low;
      ((uint16_t *)x[states + 4].data)[i] = upper;
    } else {
      ((float *)x[0].data)[i] = tws_join_halves(upper, low);
    }
    for (int k = 1; k <= states; ++k) /* second moments are positive, and no rule minds other positive states */
      put(TWS_F32, x[k].data, i, i % 32 == 0 ? 0 : fabs(tws_random_normal(seed, (uint64_t)k + 1, (uint64_t)i)));
    put((tws_dtype)w->dtype, x[states + 1].data, i, i % 32 == 0 ? -1 : tws_random_normal(seed, 9, (uint64_t)i));
  }
  put_betas(x[states + 2].data, 0.5, 0.75);
  put(TWS_F32, x[states + 2].data, TWS_HYPER_LR, 0x1p-8);
  put(TWS_F32, x[states + 2].data, TWS_HYPER_BIAS1, 0.5);
  put(TWS_F32, x[states + 2].data, TWS_HYPER_BIAS2, 0.25);
  put(TWS_F32, x[states + 2].data, TWS_HYPER_STEP, 2);
  put(TWS_F64, x[states + 3].data, TWS_METRIC_CLIP, 0.5);
  for (int k = 0; k < states + 5; ++k) /* views that the caller moves back before it frees them */
    if (k < states + 2 || k == states + 4)
      x[k].data = (char *)x[k].data + (size_t)shift * tws_dtype_bytes(x[k].dtype), x[k].count = count;
}

static void free_split_state(int states, int shift, tensor x[SPLIT_MOST]) {
  for (int k = 0; k < states + 5; ++k) {
    const int moved = k < states + 2 || k == states + 4;
    free((char *)x[k].data - (moved ? (size_t)shift * tws_dtype_bytes(x[k].dtype) : 0));
  }
}

/* Whatever the rule, the type of the gradients, the number of elements and their alignment: three updates in a row
 * leave the bfloat16 weights and states of float32 weights bit for bit, and so are the joined halves. A float32 weight
 * without a code (midway above an even upper half, which Lion's elements with a gradient of -1 reach from 1) is its
 * neighbour towards 0 in halves; the comparison continues from that. */
START_TEST(split_weights_are_float32_weights) {
  const int rule = _i % 4, states = split_rules[rule].states, shift = _i / 4 % 3 == 1;
  const uint64_t seed = 9000 + (uint64_t)_i;
  const int64_t count = draw(seed, 4, 1, _i % 2 ? 40 : 9000);
  static const tws_dtype gradients[] = {TWS_BF16, TWS_F32, TWS_F16};
  tws_work whole = {.code = split_rules[rule].kernel, .dtype = (uint8_t)gradients[_i / 12 % 3], .dtype2 = TWS_BF16};
  memcpy(whole.f, split_rules[rule].f, sizeof whole.f);
  whole.d[0] = count;
  tws_work halves = whole;
  halves.flags |= TWS_SPLIT_WEIGHTS;
  for (int device = 0; device < 4; ++device) {
    tws_backend *backend = use_backend(device, 1 + _i % most_threads);
    if (!backend) continue;
    tensor want[SPLIT_MOST], x[SPLIT_MOST];
    make_split_state(&whole, states, count, shift, seed, want);
    make_split_state(&halves, states, count, shift, seed, x);
    int64_t without_code = 0;
    for (int step = 0; step < 3; ++step) {
      run_tensors(backend, &whole, NULL, want, states + 5);
      run_tensors(backend, &halves, NULL, x, states + 5);
      for (int k = 1; k < states + 5; ++k)
        REQUIRE(same_bits(&x[k], &want[k]), "%s, step %d", label(&halves, 0, device, k), step + 1);
      for (int64_t i = 0; i < count; ++i) {
        uint16_t upper, low;
        float p;
        memcpy(&upper, (char *)x[states + 4].data + 2 * i, 2);
        memcpy(&low, (char *)x[0].data + 2 * i, 2);
        memcpy(&p, (char *)want[0].data + 4 * i, 4);
        const float joined = tws_join_halves(upper, low);
        const uint32_t bits = float_bits(p), coded = (bits & 0x1ffff) == 0x8000 ? bits - 1 : bits;
        REQUIRE(float_bits(joined) == coded, "%s: element %lld is %a in halves and %a whole",
                label(&halves, 0, device, 0), (long long)i, (double)joined, (double)p);
        without_code += coded != bits;
        memcpy((char *)want[0].data + 4 * i, &joined, 4);
      }
    }
    if (rule == 1 && count > 400) ck_assert_int_gt(without_code, 0);
    free_split_state(states, shift, want);
    free_split_state(states, shift, x);
  }
}
END_TEST

/* Every float32 number comes back from its halves, except those without a code, which become their neighbour; the
 * upper half is the number rounded to bfloat16. Numbers are taken at random and around all borders of halves. */
START_TEST(halves_are_the_number) {
  int64_t neighbours = 0;
  for (uint64_t n = 0; n < 400000; ++n) {
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    const uint32_t any = (uint32_t)draw(77, n, 0, 0xffff) << 16 | (uint32_t)draw(78, n, 0, 0xffff);
    const uint32_t bits = n % 2 ? any : (any & 0xffff0000U) | lows[n / 2 % 6];
    float x;
    memcpy(&x, &bits, sizeof x);
    const float joined = tws_join_halves(tws_to_bf16(x), tws_low_half(x));
    const int has_none = (bits & 0x1ffff) == 0x8000;
    neighbours += has_none;
    if (isnan(x))
      ck_assert(isnan(joined));
    else
      ck_assert_msg(float_bits(joined) == bits - (has_none ? 1 : 0), "%08x comes back as %08x", bits,
                    float_bits(joined));
    ck_assert(isnan(x) || tws_to_bf16(joined) == tws_to_bf16(x));
  }
  ck_assert_int_gt(neighbours, 10000);
}
END_TEST

#endif
