/* Muon's changes of matrices against DeepSpeed's: the momentum, then the operations that the plan lists for the
 * orthogonalization. Part of test_kernels.c, so that every backend runs it. */
#ifndef TWS_TESTS_KERNEL_MUON_H
#define TWS_TESTS_KERNEL_MUON_H

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "plan/muon.h"
#include "tests/kernel_run.h"

enum { MUON_MOST = 64 };

typedef struct muon_matrix {
  int rows, columns;
  float momentum[MUON_MOST], buffer[TWS_MUON_BUFFERS][MUON_MOST];
} muon_matrix;

/* Reads the numbers of a list, which may have lists inside it, and returns their number. */
static int read_nested(const cJSON *array, float *out) {
  const cJSON *item;
  int count = 0;
  cJSON_ArrayForEach(item, array) {
    if (cJSON_IsArray(item))
      count += read_nested(item, out + count);
    else
      out[count++] = (float)item->valuedouble;
  }
  return count;
}

/* Computes the change of a matrix by a gradient, which is left in buffer[TWS_MUON_X]. */
static void muon_change(tws_backend *backend, muon_matrix *m, tws_muon_method method, double momentum, float *g) {
  const int64_t count = (int64_t)m->rows * m->columns;
  const tws_work mix = {.code = TWS_KERNEL_MUON_MOMENTUM, .d = {count}, .f = {momentum}};
  double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
  tws_muon_operation list[TWS_MUON_MOST_OPERATIONS];
  const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F64, TWS_F32}, floats[] = {TWS_F32, TWS_F32, TWS_F32};
  void *data[] = {m->momentum, g, metrics, m->buffer[TWS_MUON_X]};
  ck_assert_int_eq(run_kernel(backend, &mix, NULL, data, types, 4, NULL), TWS_OK);
  const int operations = tws_muon_orthogonalize(m->rows, m->columns, method, list);
  ck_assert_int_le(operations, TWS_MUON_MOST_OPERATIONS);
  for (int i = 0; i < operations; ++i) {
    void *operands[3];
    for (int k = 0; k < list[i].operands; ++k) operands[k] = m->buffer[list[i].operand[k]];
    ck_assert_int_eq(run_kernel(backend, &list[i].work, NULL, operands, floats, list[i].operands, NULL), TWS_OK);
  }
}

static tws_muon_method muon_method(const cJSON *item) {
  return strcmp(cJSON_GetObjectItem(item, "method")->valuestring, "gram") == 0 ? TWS_MUON_GRAM : TWS_MUON_STANDARD;
}

/* The recorded changes of three updates of matrices of several shapes, by both forms of iterations. */
START_TEST(muon_golden) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/muon.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *step;
  int updates = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    const cJSON *shape = cJSON_GetObjectItem(item, "shape");
    muon_matrix m = {.rows = shape->child->valueint, .columns = shape->child->next->valueint};
    tws_backend *backend = use_backend(0, 1);
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(item, "steps")) {
      float g[MUON_MOST], want[2][MUON_MOST];
      const int count = read_nested(cJSON_GetObjectItem(step, "grad"), g);
      ck_assert(count == m.rows * m.columns && count <= MUON_MOST);
      read_nested(cJSON_GetObjectItem(step, "momentum_after"), want[0]);
      read_nested(cJSON_GetObjectItem(step, "update"), want[1]);
      muon_change(backend, &m, muon_method(item), 0.95, g);
      for (int i = 0; i < count; ++i) {
        /* the file has six decimals: DeepSpeed's own code, given its gradients, differs from its changes by 3.6e-5 */
        ck_assert_double_le(fabs(m.momentum[i] - want[0][i]), 2e-6);
        ck_assert_double_le(fabs(m.buffer[TWS_MUON_X][i] - want[1][i]), 5e-5);
      }
      ++updates;
    }
  }
  ck_assert_int_ge(updates, 24);
  tws_json_destroy(json);
}
END_TEST

/* Weights after up to 50 updates from the same gradients. */
START_TEST(muon_updates) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/muon_updates.json", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item, *gradients, *arguments = cJSON_GetObjectItem(json->root, "arguments");
  const double momentum = cJSON_GetObjectItem(arguments, "momentum")->valuedouble;
  float hyper[TWS_HYPER_COUNT] = {[TWS_HYPER_LR] = (float)cJSON_GetObjectItem(arguments, "lr")->valuedouble};
  hyper[TWS_HYPER_BIAS1] = hyper[TWS_HYPER_BIAS2] = 1;
  int compared = 0;
  double worst = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    muon_matrix m[3] = {{0}};
    float p[3][MUON_MOST], g[MUON_MOST], want[MUON_MOST];
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    tws_backend *backend = use_backend(0, 1);
    for (int k = 0; k < 3; ++k) {
      const cJSON *shape = cJSON_GetArrayItem(cJSON_GetObjectItem(json->root, "shapes"), k);
      m[k].rows = shape->child->valueint, m[k].columns = shape->child->next->valueint;
      read_nested(cJSON_GetArrayItem(cJSON_GetObjectItem(json->root, "params0"), k), p[k]);
    }
    const cJSON *result = cJSON_GetObjectItem(item, "results")->child;
    int update = 0;
    cJSON_ArrayForEach(gradients, cJSON_GetObjectItem(json->root, "grads")) {
      const int compares = result && ++update == cJSON_GetObjectItem(result, "update")->valueint;
      for (int k = 0; k < 3; ++k) {
        const int count = read_nested(cJSON_GetArrayItem(gradients, k), g);
        const tws_work work = {
            .code = TWS_KERNEL_MUON, .d = {count}, .f = {cJSON_GetObjectItem(arguments, "weight_decay")->valuedouble}};
        ck_assert_int_eq(count, m[k].rows * m[k].columns);
        muon_change(backend, &m[k], muon_method(item), momentum, g);
        void *data[] = {p[k], m[k].momentum, m[k].buffer[TWS_MUON_X], hyper, metrics};
        const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
        ck_assert_int_eq(run_kernel(backend, &work, NULL, data, types, 5, NULL), TWS_OK);
        if (!compares) continue;
        read_nested(cJSON_GetArrayItem(cJSON_GetObjectItem(result, "params"), k), want);
        for (int i = 0; i < count; ++i) worst = fmax(worst, fabs(p[k][i] - want[i]) / fmax(fabs(want[i]), 0.1));
        ++compared;
      }
      if (compares) result = result->next;
    }
    ck_assert_int_eq(update, 50);
  }
  printf("Muon: weights are within %.2g of DeepSpeed's\n", worst);
  ck_assert(compared == 30 && worst < 1e-5);
  tws_json_destroy(json);
}
END_TEST

#endif
