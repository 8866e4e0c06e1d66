/* Adafactor's weights against PyTorch's after up to 50 updates. Part of test_kernels.c, so that every backend runs
 * it. */
#ifndef TWS_TESTS_KERNEL_ADAFACTOR_H
#define TWS_TESTS_KERNEL_ADAFACTOR_H

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>

#include "base/json.h"
#include "tests/kernel_run.h"

enum { FACTORED_MOST = 64, FACTORED_TENSORS = 3 };

typedef struct factored_tensor {
  int64_t rows, columns; /* rows 0: a vector */
  int count;
  float p[FACTORED_MOST], g[FACTORED_MOST], moments[FACTORED_MOST], change[FACTORED_MOST];
} factored_tensor;

static int factored_read(const cJSON *array, float *out) {
  int count = 0;
  for (const cJSON *item = array->child; item && count < FACTORED_MOST; item = item->next)
    out[count++] = (float)item->valuedouble;
  return count;
}

static double factored_argument(const cJSON *arguments, const char *name, int index, double fallback) {
  const cJSON *item = cJSON_GetObjectItem(arguments, name);
  if (cJSON_IsArray(item)) item = cJSON_GetArrayItem(item, index);
  return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

/* Computes the sums of two parts of a tensor, as two ranks would do, adds these sums and updates the tensor. */
static void factored_update(tws_backend *backend, const cJSON *arguments, factored_tensor *t, float *hyper) {
  const double epsilon = factored_argument(arguments, "eps", 0, 1.1920928955078125e-7);
  const tws_work moments = {.code = TWS_KERNEL_FACTOR_MOMENTS,
                            .d = {t->rows, t->columns},
                            .f = {factored_argument(arguments, "beta2_decay", 0, -0.8)}};
  const tws_work norm = {.code = TWS_KERNEL_FACTOR_NORMS, .d = {t->count}};
  const tws_work update = {
      .code = TWS_KERNEL_ADAFACTOR,
      .d = {t->count},
      .f = {factored_argument(arguments, "weight_decay", 0, 0), factored_argument(arguments, "eps", 1, 1e-3),
            factored_argument(arguments, "d", 0, 1)}};
  const tws_arguments mean = {{1.0 / t->count}};
  double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1}, sums[FACTORED_MOST] = {0}, norms[2];
  const int cut = t->count / 2 + 1;
  for (int part = 0; part < 2; ++part) {
    const int first = part ? cut : 0, count = part ? t->count - cut : cut;
    const tws_work work = {.code = TWS_KERNEL_FACTOR_SUMS, .d = {t->rows, t->columns, count}};
    const tws_arguments at = {{first}};
    double own[FACTORED_MOST];
    void *data[] = {t->g + first, metrics, own};
    ck_assert_int_eq(run_kernel(backend, &work, &at, data, (const tws_dtype[]){TWS_F32, TWS_F64, TWS_F64}, 3, NULL),
                     TWS_OK);
    for (int64_t i = 0; i < t->rows + t->columns; ++i) sums[i] += own[i];
  }
  void *of_moments[] = {t->moments, sums, hyper, metrics};
  const tws_dtype moment_types[] = {TWS_F32, TWS_F64, TWS_F32, TWS_F64};
  ck_assert_int_eq(run_kernel(backend, &moments, NULL, of_moments, moment_types, 4, NULL), TWS_OK);
  for (int part = 0; part < 2; ++part) {
    const int first = part ? cut : 0, count = part ? t->count - cut : cut;
    const tws_work work = {.code = TWS_KERNEL_FACTOR_CHANGE, .d = {t->rows, t->columns, count}, .f = {epsilon}};
    const tws_arguments at = {{first}};
    void *data[] = {t->moments, t->g + first, metrics, t->change + first};
    const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F64, TWS_F32};
    ck_assert_int_eq(run_kernel(backend, &work, &at, data, types, 4, NULL), TWS_OK);
  }
  void *of_norm[] = {t->p, t->change, norms};
  ck_assert_int_eq(run_kernel(backend, &norm, &mean, of_norm, (const tws_dtype[]){TWS_F32, TWS_F32, TWS_F64}, 3, NULL),
                   TWS_OK);
  void *of_update[] = {t->p, t->change, hyper, metrics, norms};
  const tws_dtype update_types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F64, TWS_F64};
  ck_assert_int_eq(run_kernel(backend, &update, NULL, of_update, update_types, 5, NULL), TWS_OK);
}

START_TEST(adafactor_golden) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/adafactor.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *gradients;
  int compared = 0;
  double worst = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    factored_tensor tensors[FACTORED_TENSORS] = {{0}};
    const cJSON *arguments = cJSON_GetObjectItem(item, "arguments"),
                *result = cJSON_GetObjectItem(item, "results")->child;
    float hyper[TWS_HYPER_COUNT] = {[TWS_HYPER_LR] = (float)factored_argument(arguments, "lr", 0, 0)};
    tws_backend *backend = use_backend(0, 1);
    for (int k = 0; k < FACTORED_TENSORS; ++k) {
      factored_tensor *t = &tensors[k];
      const cJSON *shape = cJSON_GetArrayItem(cJSON_GetObjectItem(json->root, "shapes"), k);
      t->rows = shape->child->valueint == 1 ? 0 : shape->child->valueint;
      t->columns = shape->child->next->valueint;
      t->count = factored_read(cJSON_GetArrayItem(cJSON_GetObjectItem(json->root, "params0"), k), t->p);
    }
    cJSON_ArrayForEach(gradients, cJSON_GetObjectItem(json->root, "grads")) {
      hyper[TWS_HYPER_STEP] += 1;
      const int compares = result && (int)hyper[TWS_HYPER_STEP] == cJSON_GetObjectItem(result, "update")->valueint;
      for (int k = 0; k < FACTORED_TENSORS; ++k) {
        factored_tensor *t = &tensors[k];
        float want[FACTORED_MOST];
        ck_assert_int_eq(factored_read(cJSON_GetArrayItem(gradients, k), t->g), t->count);
        factored_update(backend, arguments, t, hyper);
        if (!compares) continue;
        factored_read(cJSON_GetArrayItem(cJSON_GetObjectItem(result, "params"), k), want);
        for (int i = 0; i < t->count; ++i) worst = fmax(worst, fabs(t->p[i] - want[i]) / fmax(fabs(want[i]), 0.1));
        ++compared;
      }
      if (compares) result = result->next;
    }
    ck_assert_int_eq((int)hyper[TWS_HYPER_STEP], 50);
  }
  printf("Adafactor: weights are within %.2g of PyTorch's\n", worst);
  ck_assert_msg(compared == 24 && worst < 1e-5, "%d tensors within %.3g", compared, worst);
  tws_json_destroy(json);
}
END_TEST

#endif
