/* ctest: sampled */
/* The loss scale compared with recorded runs of the reference implementation, and invariants of every run. */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/random.h"
#include "config/loss_scale.h"
#include "tests/members.h"
#include "tests/suite.h"

static tws_config adaptive(int64_t power, int64_t window, int64_t hysteresis, int64_t minimum, int consecutive) {
  tws_config c = {.dtype = TWS_F16};
  c.fp16.initial_power = power;
  c.fp16.window = window;
  c.fp16.hysteresis = hysteresis;
  c.fp16.minimum = minimum;
  c.fp16.consecutive = consecutive;
  return c;
}

/* Compares each line of a trace: scale, hysteresis, iteration of the last overflow (-1: none), number of updates. */
START_TEST(golden) {
  tws_json *json = golden_file("loss_scaler.json");
  const cJSON *item;
  int cases = 0, errors = 0, updates = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    const cJSON *overflow = cJSON_GetObjectItem(item, "overflow")->child, *error = cJSON_GetObjectItem(item, "error");
    const cJSON *line = cJSON_GetObjectItem(item, "trace_scale_hyst_lastovf_iter")->child;
    tws_config c = adaptive((int64_t)log2(number(item, "init_scale")), (int64_t)number(item, "scale_window"),
                            (int64_t)number(item, "hysteresis"), (int64_t)number(item, "min_scale"),
                            cJSON_IsTrue(cJSON_GetObjectItem(item, "consecutive_hysteresis")));
    tws_loss_scale state = tws_loss_scale_start(&c);
    ck_assert_double_eq(state.scale, number(item, "init_scale"));
    int step = 0;
    for (; line; line = line->next, overflow = overflow->next, step++, updates++) {
      const cJSON *want = line->child;
      ck_assert_int_eq(tws_loss_scale_update(&state, &c, overflow->valueint), 0);
      ck_assert_msg(state.scale == want->valuedouble, "case %d step %d: %g, not %g", cases, step, state.scale,
                    want->valuedouble);
      ck_assert_int_eq(state.hysteresis, want->next->valueint);
      ck_assert_int_eq(step - state.stable, want->next->next->valueint);
      ck_assert_int_eq(step + 1, want->next->next->next->valueint);
    }
    if (cJSON_IsArray(error)) {
      ck_assert_int_eq(step, error->child->valueint);
      const tws_loss_scale before = state;
      ck_assert_int_eq(tws_loss_scale_update(&state, &c, 1), -1);
      ck_assert(state.scale == before.scale && state.stable == before.stable && state.overflows == before.overflows);
      errors++;
    } else {
      ck_assert_ptr_null(overflow);
    }
    cases++;
  }
  ck_assert_int_eq(cases, 56);
  ck_assert(errors == 11 && updates > 1000);
  tws_json_destroy(json);
}
END_TEST

/* The scale is a power of two times its minimum or its first value, and lies between the minimum and 2^126. It falls
 * only after an overflow and rises only without one; where it cannot be halved it becomes the minimum. */
START_TEST(any_run) {
  for (uint64_t trial = 0; trial < 2000; trial++) {
    uint32_t w[4], v[4];
    tws_philox(5, 0, trial, w);
    tws_philox(5, 1, trial, v);
    tws_config c = adaptive(w[0] % 101, 1 + w[1] % 9, w[2] % 5, 1, (int)(w[3] % 2));
    c.fp16.minimum = 1 + (int64_t)(v[0] % (1u << (w[0] % 101 < 20 ? w[0] % 101 : 20)));
    tws_loss_scale state = tws_loss_scale_start(&c);
    for (uint64_t step = 0; step < 300; step++) {
      const int overflow = tws_random_uniform(6, trial, step) < (v[1] % 8) / 8.0;
      const tws_loss_scale before = state;
      if (tws_loss_scale_update(&state, &c, overflow)) {
        ck_assert(overflow && before.scale == (double)c.fp16.minimum);
        break;
      }
      ck_assert(state.scale >= (double)c.fp16.minimum && state.scale <= 0x1p126);
      ck_assert(overflow ? state.scale <= before.scale : state.scale >= before.scale);
      ck_assert(state.scale == before.scale || state.scale == 2 * before.scale || state.scale == before.scale / 2 ||
                state.scale == (double)c.fp16.minimum);
      if (c.fp16.hysteresis < 2 && overflow) ck_assert(state.scale < before.scale);
      ck_assert_int_eq(state.overflows, overflow ? before.overflows + 1 : 0);
    }
  }
}
END_TEST

START_TEST(growth_ends) {
  tws_config c = adaptive(100, 1, 2, 1, 0);
  tws_loss_scale state = tws_loss_scale_start(&c);
  for (int i = 0; i < 200; i++) ck_assert_int_eq(tws_loss_scale_update(&state, &c, 0), 0);
  ck_assert_double_eq(state.scale, 0x1p126);
  ck_assert_float_gt(1 / (float)state.scale, 0);
}
END_TEST

START_TEST(fixed_scales) {
  tws_config c = adaptive(16, 1, 2, 1, 0);
  c.fp16.loss_scale = 1000;
  tws_loss_scale state = tws_loss_scale_start(&c);
  for (int i = 0; i < 3 * TWS_LOSS_SCALE_PATIENCE; i++)
    ck_assert_int_eq(tws_loss_scale_update(&state, &c, i % TWS_LOSS_SCALE_PATIENCE != 0), 0);
  for (int i = 0; i + 1 < TWS_LOSS_SCALE_PATIENCE; i++) {
    ck_assert_double_eq(state.scale, 1000);
    ck_assert_int_eq(tws_loss_scale_update(&state, &c, i > 0), 0);
  }
  ck_assert_int_eq(tws_loss_scale_update(&state, &c, 1), 0);
  ck_assert_int_eq(tws_loss_scale_update(&state, &c, 1), -1);
  c.dtype = TWS_BF16; /* no scale at all */
  state = tws_loss_scale_start(&c);
  for (int i = 0; i < 10; i++) ck_assert_int_eq(tws_loss_scale_update(&state, &c, 0), 0);
  ck_assert_double_eq(state.scale, 1);
}
END_TEST

START_TEST(from_the_file) {
  static const char text[] =
      "{\"train_batch_size\": 1, \"fp16\": {\"enabled\": true, \"initial_scale_power\": 12, \"loss_scale_window\": 3,"
      " \"hysteresis\": 1, \"min_loss_scale\": 1024, \"consecutive_hysteresis\": true}}";
  tws_json *json = NULL;
  tws_config *c = NULL;
  tws_error err = {0};
  ck_assert_int_eq(tws_json_parse(text, sizeof text - 1, "ds.json", &json, &err), TWS_OK);
  ck_assert_int_eq(tws_config_from_json(json, &c, &err), TWS_OK);
  ck_assert_msg(tws_config_resolve(c, 1, NULL, &err) == TWS_OK, "%s", err.message);
  tws_loss_scale state = tws_loss_scale_start(c);
  static const double scales[] = {4096, 4096, 4096, 4096, 8192}; /* before each step */
  for (int i = 0; i < 5; i++) {
    ck_assert_double_eq(state.scale, scales[i]);
    ck_assert_int_eq(tws_loss_scale_update(&state, c, 0), 0);
  }
  for (int i = 0; i < 3; i++) ck_assert_int_eq(tws_loss_scale_update(&state, c, 1), 0);
  ck_assert_double_eq(state.scale, 1024);
  ck_assert_int_eq(tws_loss_scale_update(&state, c, 1), -1);
  ck_assert_int_eq(tws_config_set(c, "fp16.loss_scale", "128.5", &err), TWS_OK);
  ck_assert_double_eq(tws_loss_scale_start(c).scale, 128.5);
  tws_config_destroy(c);
  tws_json_destroy(json);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("loss_scale");
  TCase *all = tcase_create("all");
  tcase_add_test(all, golden);
  tcase_add_test(all, any_run);
  tcase_add_test(all, growth_ends);
  tcase_add_test(all, fixed_scales);
  tcase_add_test(all, from_the_file);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
