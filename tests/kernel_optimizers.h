/* Optimizers against golden updates of PyTorch and DeepSpeed, and gradients that are not finite. Part of
 * test_kernels.c, so that every backend runs it: it uses that file's backends. */
#ifndef TWS_TESTS_KERNEL_OPTIMIZERS_H
#define TWS_TESTS_KERNEL_OPTIMIZERS_H

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "plan/hyper.h"
#include "tests/kernel_run.h"

/* ---- AdamW against the reference implementation's own numbers ---- */
static void read_floats(const cJSON *array, float *out) {
  const cJSON *item;
  cJSON_ArrayForEach(item, array) *out++ = (float)item->valuedouble;
}
static double number(const cJSON *object, const char *key) {
  return cJSON_GetObjectItem(object, key)->valuedouble;
}

START_TEST(adam_golden) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/cpu_optim.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "adam")) {
    enum { MOST = 64 };
    float p[MOST], m[MOST] = {0}, v[MOST] = {0}, g[MOST], want[3][MOST], hyper[TWS_HYPER_COUNT] = {0};
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    const int count = cJSON_GetArraySize(cJSON_GetObjectItem(item, "params0"));
    ck_assert(count > 0 && count <= MOST);
    read_floats(cJSON_GetObjectItem(item, "params0"), p);
    const double beta1 = number(item, "beta1"), beta2 = number(item, "beta2");
    const tws_work w = {.code = TWS_KERNEL_ADAMW,
                        .d = {count},
                        .f = {number(item, "eps"), number(item, "weight_decay")},
                        .flags = number(item, "adamw_mode") != 0 ? 0 : TWS_L2};
    const int correct = number(item, "bias_correction") != 0;
    hyper[TWS_HYPER_LR] = (float)number(item, "lr");
    hyper[TWS_HYPER_BETA1] = (float)beta1, hyper[TWS_HYPER_REST1] = (float)(1 - beta1);
    hyper[TWS_HYPER_BETA2] = (float)beta2, hyper[TWS_HYPER_REST2] = (float)(1 - beta2);
    tws_backend *backend = use_backend(0, 1);
    int t = 0;
    const cJSON *step;
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(item, "steps")) {
      ++t;
      hyper[TWS_HYPER_BIAS1] = correct ? (float)(1 - pow(beta1, t)) : 1;
      hyper[TWS_HYPER_BIAS2] = correct ? (float)(1 - pow(beta2, t)) : 1;
      read_floats(cJSON_GetObjectItem(step, "grad"), g);
      read_floats(cJSON_GetObjectItem(step, "param"), want[0]);
      read_floats(cJSON_GetObjectItem(step, "m"), want[1]);
      read_floats(cJSON_GetObjectItem(step, "v"), want[2]);
      void *data[] = {p, m, v, g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 6, NULL), TWS_OK);
      for (int i = 0; i < count; ++i) {
        ck_assert_double_le(fabs(p[i] - want[0][i]), 2e-6 * fabs(want[0][i]) + 1e-7);
        ck_assert_double_le(fabs(m[i] - want[1][i]), 1e-6 * fabs(want[1][i]) + 2e-8);
        /* the reference forms 1 - beta2 in float32, which is 1.7e-5 off */
        ck_assert_double_le(fabs(v[i] - want[2][i]), 2e-5 * fabs(want[2][i]) + 1e-14);
      }
    }
    ck_assert_int_ge(t, 2);
    ++cases;
  }
  ck_assert_int_ge(cases, 4);
  tws_json_destroy(json);
}
END_TEST

/* Compares updates with a golden file, of PyTorch's Adagrad or of DeepSpeed's on the CPU, and returns their number.
 * decayed 0: skips cases with weight decay, which DeepSpeed's leaves out of the numerator. */
static int adagrad_updates(const char *path, int decayed) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *step;
  int updates = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "adagrad")) {
    enum { MOST = 64 };
    float p[MOST], v[MOST] = {0}, g[MOST], want[2][MOST], hyper[TWS_HYPER_COUNT] = {0};
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    const int count = cJSON_GetArraySize(cJSON_GetObjectItem(item, "params0"));
    const tws_work w = {
        .code = TWS_KERNEL_ADAGRAD, .d = {count}, .f = {number(item, "eps"), number(item, "weight_decay")}};
    ck_assert(count > 1 && count <= MOST);
    if (!decayed && w.f[1] > 0) continue;
    read_floats(cJSON_GetObjectItem(item, "params0"), p);
    hyper[TWS_HYPER_LR] = (float)number(item, "lr"), hyper[TWS_HYPER_BIAS1] = hyper[TWS_HYPER_BIAS2] = 1;
    tws_backend *backend = use_backend(0, 1);
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(item, "steps")) {
      read_floats(cJSON_GetObjectItem(step, "grad"), g);
      read_floats(cJSON_GetObjectItem(step, "param"), want[0]);
      read_floats(cJSON_GetObjectItem(step, "v"), want[1]);
      void *data[] = {p, v, g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 5, NULL), TWS_OK);
      for (int i = 0; i < count; ++i) {
        ck_assert_double_le(fabs(p[i] - want[0][i]), 2e-6 * fabs(want[0][i]) + 1e-7);
        ck_assert_double_le(fabs(v[i] - want[1][i]), 2e-6 * fabs(want[1][i]));
      }
      ++updates;
    }
  }
  tws_json_destroy(json);
  return updates;
}

START_TEST(adagrad_golden) {
  ck_assert_int_ge(adagrad_updates(TWS_TEST_DIR "/golden/adagrad.json", 1), 15);
  ck_assert_int_ge(adagrad_updates(TWS_TEST_DIR "/golden/cpu_optim.json", 0), 4);
}
END_TEST

/* PyTorch's SGD: each case takes the same 50 gradients. */
START_TEST(sgd_golden) {
  enum { MOST = 64 };
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/sgd.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *recorded, *start = cJSON_GetObjectItem(json->root, "params0");
  const int count = cJSON_GetArraySize(start);
  int compared = 0;
  ck_assert(count > 1 && count <= MOST);
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    float p[MOST], b[MOST] = {0}, g[MOST], want[MOST], hyper[TWS_HYPER_COUNT] = {0};
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1}, f[4] = {0};
    static const char *const names[] = {"weight_decay", "momentum", "dampening", "nesterov"};
    const cJSON *params = cJSON_GetObjectItem(item, "params"), *result = cJSON_GetObjectItem(item, "results")->child;
    for (int i = 0; i < 4; ++i) {
      const cJSON *given = cJSON_GetObjectItem(params, names[i]);
      f[i] = cJSON_IsTrue(given) ? 1 : given ? given->valuedouble : 0;
    }
    const tws_work w = {.code = TWS_KERNEL_SGD, .d = {count}, .f = {f[0], f[1], f[2], f[3]}};
    hyper[TWS_HYPER_LR] = (float)number(params, "lr"), hyper[TWS_HYPER_BIAS1] = hyper[TWS_HYPER_BIAS2] = 1;
    tws_backend *backend = use_backend(0, 1);
    read_floats(start, p);
    cJSON_ArrayForEach(recorded, cJSON_GetObjectItem(json->root, "grads")) {
      read_floats(recorded, g);
      hyper[TWS_HYPER_STEP] += 1;
      void *data[] = {p, b, g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 5, NULL), TWS_OK);
      if (hyper[TWS_HYPER_STEP] != (float)number(result, "update")) continue;
      read_floats(cJSON_GetObjectItem(result, "param"), want);
      for (int i = 0; i < count; ++i) ck_assert_double_le(fabs(p[i] - want[i]), 1e-5 * fabs(want[i]) + 1e-7);
      ++compared;
      if (!(result = result->next)) break;
    }
    ck_assert_int_eq((int)hyper[TWS_HYPER_STEP], 50);
  }
  ck_assert_int_ge(compared, 25);
  tws_json_destroy(json);
}
END_TEST

/* DeepSpeed's Lion on the CPU. Where the gradient is 0 throughout (the first weight), it moves the weight by the
 * learning rate; here, as in the paper, only weight decay moves it. */
START_TEST(lion_golden) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/cpu_optim.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *step;
  int updates = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "lion")) {
    enum { MOST = 64 };
    float p[MOST], m[MOST] = {0}, g[MOST], want[2][MOST], hyper[TWS_HYPER_COUNT] = {0};
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    const int count = cJSON_GetArraySize(cJSON_GetObjectItem(item, "params0"));
    ck_assert(count > 1 && count <= MOST);
    read_floats(cJSON_GetObjectItem(item, "params0"), p);
    const double beta1 = number(item, "beta1"), beta2 = number(item, "beta2"), lr = number(item, "lr");
    const tws_work w = {.code = TWS_KERNEL_LION, .d = {count}, .f = {number(item, "weight_decay")}};
    hyper[TWS_HYPER_LR] = (float)lr;
    hyper[TWS_HYPER_BETA1] = (float)beta1, hyper[TWS_HYPER_REST1] = (float)(1 - beta1);
    hyper[TWS_HYPER_BETA2] = (float)beta2, hyper[TWS_HYPER_REST2] = (float)(1 - beta2);
    tws_backend *backend = use_backend(0, 1);
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(item, "steps")) {
      const double first = p[0] * (1 - lr * w.f[0]);
      read_floats(cJSON_GetObjectItem(step, "grad"), g);
      read_floats(cJSON_GetObjectItem(step, "param"), want[0]);
      read_floats(cJSON_GetObjectItem(step, "m"), want[1]);
      void *data[] = {p, m, g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 5, NULL), TWS_OK);
      ck_assert(g[0] == 0 && m[0] == 0 && fabs(p[0] - first) <= 1e-6 * fabs(first));
      for (int i = 1; i < count; ++i) {
        ck_assert_double_le(fabs(p[i] - want[0][i]), 2e-6 * fabs(want[0][i]) + 1e-7);
        /* the reference forms 1 - beta2 in float32 */
        ck_assert_double_le(fabs(m[i] - want[1][i]), 2e-5 * fabs(want[1][i]) + 2e-8);
      }
      ++updates;
    }
  }
  ck_assert_int_ge(updates, 8);
  tws_json_destroy(json);
}
END_TEST

/* Returns a configuration with the optimizer and the schedule of a golden case. */
static tws_config *one_cycle_config(const cJSON *item) {
  tws_error err = {0};
  tws_json *json = NULL;
  tws_config *config = NULL;
  char *optimizer = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "optimizer")), text[1024];
  char *schedule = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "scheduler"));
  snprintf(text, sizeof text,
           "{\"train_batch_size\":8,\"optimizer\":{\"type\":\"Adam\",\"params\":%s},"
           "\"scheduler\":{\"type\":\"OneCycle\",\"params\":%s}}",
           optimizer, schedule);
  REQUIRE(tws_json_parse(text, strlen(text), "golden case", &json, &err) == TWS_OK, "%s", err.message);
  REQUIRE(tws_config_from_json(json, &config, &err) == TWS_OK, "%s", err.message);
  REQUIRE(tws_config_resolve(config, 1, NULL, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  cJSON_free(optimizer);
  cJSON_free(schedule);
  return config;
}

/* DeepSpeed's updates while OneCycle moves the betas, from what the engine hands to the kernel. */
START_TEST(one_cycle_golden) {
  enum { COUNT = 20 };
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/one_cycle.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *step;
  int cases = 0, updates = 0;
  double worst = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    float p[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, g[COUNT], want[COUNT], hyper[TWS_HYPER_COUNT];
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    tws_config *config = one_cycle_config(item);
    const tws_work w = {.code = TWS_KERNEL_ADAMW,
                        .d = {COUNT},
                        .f = {config->epsilon, config->weight_decay},
                        .flags = config->adam_w_mode ? 0 : TWS_L2};
    tws_backend *backend = use_backend(0, 1);
    int64_t update = 0;
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(item, "params0")), COUNT);
    read_floats(cJSON_GetObjectItem(item, "params0"), p);
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(item, "steps")) {
      const cJSON *betas = cJSON_GetObjectItem(step, "betas");
      double beta1, beta2, lr = tws_hyper_fill(config, ++update, 1, hyper);
      tws_config_betas(config, update - 1, &beta1, &beta2);
      ck_assert_double_le(fabs(lr - number(step, "lr")), 1e-15);
      ck_assert_double_le(fabs(beta1 - betas->child->valuedouble), 1e-15);
      ck_assert_double_eq(beta2, betas->child->next->valuedouble);
      read_floats(cJSON_GetObjectItem(step, "grad"), g);
      read_floats(cJSON_GetObjectItem(step, "param"), want);
      void *data[] = {p, m, v, g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 6, NULL), TWS_OK);
      for (int i = 0; i < COUNT; ++i) {
        const double error = fabs(p[i] - want[i]);
        REQUIRE(error < 2e-6, "case %d, update %d, weight %d: %.9g, golden %.9g", cases, (int)update, i, p[i], want[i]);
        worst = fmax(worst, error);
      }
      ++updates;
    }
    tws_config_destroy(config);
    ++cases;
  }
  printf("OneCycle: weights are within %.2g of DeepSpeed's\n", worst);
  ck_assert(cases >= 4 && updates >= 64);
  tws_json_destroy(json);
}
END_TEST

/* A gradient that is not finite must not touch weights or moments, with and without clipping. */
START_TEST(overflow_skips_the_step) {
  const float poison[] = {NAN, INFINITY, -INFINITY, 3e38F};
  for (int n = 0; n < 8; ++n) {
    enum { COUNT = 100 };
    float p[COUNT], m[COUNT], v[COUNT], g[COUNT], was[COUNT];
    float hyper[TWS_HYPER_COUNT] = {0.1F, 0.1F, 0.001F, 1, 1, 0.9F, 0.999F, 0.1F, 0.001F};
    double metrics[TWS_METRIC_COUNT] = {0};
    for (int i = 0; i < COUNT; ++i) p[i] = m[i] = v[i] = was[i] = (float)(i + 1), g[i] = 1;
    g[COUNT - 1] = poison[n % 4];
    const tws_dtype f = TWS_F32, d = TWS_F64;
    tws_backend *backend = use_backend(0, 2);
    const tws_work squares = {.code = TWS_KERNEL_SQUARED_NORM, .d = {COUNT}};
    const tws_arguments one = {{1}};
    const tws_work clip = {.code = TWS_KERNEL_CLIP, .f = {n < 4 ? 1 : 0}};
    const tws_work adamw = {.code = TWS_KERNEL_ADAMW, .d = {COUNT}, .f = {1e-8, 0.1}};
    void *const squared[] = {g, metrics + TWS_METRIC_SQUARES};
    ck_assert_int_eq(run_kernel(backend, &squares, &one, squared, (tws_dtype[]){f, d}, 2, NULL), TWS_OK);
    ck_assert_int_eq(run_kernel(backend, &clip, NULL, (void *[]){metrics}, &d, 1, NULL), TWS_OK);
    ck_assert_int_eq(run_kernel(backend, &adamw, NULL, (void *[]){p, m, v, g, hyper, metrics},
                                (tws_dtype[]){f, f, f, f, f, d}, 6, NULL),
                     TWS_OK);
    const int finite = isfinite(poison[n % 4]) != 0; /* its square overflows float32, not the float64 sum */
    ck_assert_int_eq(metrics[TWS_METRIC_CLIP] > 0, finite);
    for (int i = 0; i < COUNT && !finite; ++i) ck_assert(p[i] == was[i] && m[i] == was[i] && v[i] == was[i]);
    for (int i = 0; i < COUNT && finite; ++i) ck_assert(p[i] != was[i]);
  }
}
END_TEST

#endif
