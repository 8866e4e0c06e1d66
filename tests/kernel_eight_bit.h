/* States of 8 bits: the dynamic maps are those of bitsandbytes, and so are weights, codes and scales after up to 50
 * updates. Part of test_kernels.c, so that every backend runs it. */
#ifndef TWS_TESTS_KERNEL_EIGHT_BIT_H
#define TWS_TESTS_KERNEL_EIGHT_BIT_H

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>

#include "base/dynamic_map.h"
#include "base/json.h"
#include "tests/kernel_run.h"

static tws_json *eight_bit_file(void) {
  tws_json *json = NULL;
  tws_error err = {0};
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/eight_bit.json", &json, &err) == TWS_OK, "%s", err.message);
  return json;
}

/* Each value of a map is create_dynamic_map()'s to the last bit, converts to itself, and is stored as its code. */
START_TEST(dynamic_maps_golden) {
  tws_json *json = eight_bit_file();
  for (int is_signed = 0; is_signed < 2; ++is_signed) {
    const cJSON *item = cJSON_GetObjectItem(json->root, is_signed ? "signed_map" : "unsigned_map")->child;
    const tws_dynamic_map *map = tws_dynamic_map_of(is_signed);
    for (int code = 0; code < TWS_DYNAMIC_CODES; ++code, item = item->next) {
      const float value = (float)item->valuedouble, own[2] = {value, 1};
      uint8_t codes[2];
      float scale, again[2];
      ck_assert_msg(map->value[code] == value && tws_dynamic_value(code, is_signed) == value, "code %d: %.9g, not %.9g",
                    code, (double)map->value[code], (double)value);
      tws_dynamic_encode(own, 2, is_signed, codes, &scale);
      tws_dynamic_decode(codes, 2, is_signed, scale, again);
      ck_assert(codes[0] == code && codes[1] == 255 && again[0] == value && scale == 1);
    }
    ck_assert_ptr_null(item);
  }
  tws_json_destroy(json);
}
END_TEST

/* Numbers of a block against quantize_blockwise() of bitsandbytes on the CPU, and what a sign adds to them. */
START_TEST(dynamic_codes_golden) {
  enum { NUMBERS = TWS_DYNAMIC_BLOCK };
  tws_json *json = eight_bit_file();
  const cJSON *block;
  int blocks = 0, lifted = 0;
  cJSON_ArrayForEach(block, cJSON_GetObjectItem(json->root, "blocks")) {
    const int is_signed = cJSON_IsTrue(cJSON_GetObjectItem(block, "signed"));
    const cJSON *number = cJSON_GetObjectItem(block, "numbers")->child,
                *code = cJSON_GetObjectItem(block, "codes")->child;
    float numbers[NUMBERS], scale;
    uint8_t codes[NUMBERS];
    int count = 0;
    for (; number; number = number->next) numbers[count++] = (float)number->valuedouble;
    tws_dynamic_encode(numbers, count, is_signed, codes, &scale);
    ck_assert(scale == (float)cJSON_GetObjectItem(block, "absmax")->valuedouble);
    for (int i = 0; i < count; ++i, code = code->next) {
      const int lifts = is_signed && numbers[i] < 0 && code->valueint == TWS_DYNAMIC_ZERO;
      ck_assert_msg(codes[i] == code->valueint - lifts, "number %d, %.9g of %.9g: code %d, not %d", i,
                    (double)numbers[i], (double)scale, codes[i], code->valueint - lifts);
      lifted += lifts;
    }
    ++blocks;
  }
  ck_assert_int_ge(blocks, 6);
  ck_assert_int_gt(lifted, 0);
  tws_json_destroy(json);
}
END_TEST

enum { EIGHT_BIT_MOST = 600 };

/* Numbers that the generator of the golden file makes alike: 16 bits of a linear congruential generator. */
static float eight_bit_number(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 16) / 65536 - 0.5F;
}

typedef struct eight_bit_run {
  float p[EIGHT_BIT_MOST], g[EIGHT_BIT_MOST], scales[2][3];
  uint8_t codes[2][EIGHT_BIT_MOST];
  int64_t flips, weights; /* codes on the other side of a border than the golden one; weights compared */
  double worst;           /* largest error of a weight relative to the root mean square of all */
} eight_bit_run;

/* Compares the state after an update. Where float32 rounds a moment to the other side of a border between two codes,
 * the codes differ by one, and the element's later updates by a part of the learning rate: such weights are counted. */
static void eight_bit_compare(eight_bit_run *run, const cJSON *result, int count, double lr) {
  const cJSON *p = cJSON_GetObjectItem(result, "p")->child, *m = cJSON_GetObjectItem(result, "m")->child,
              *v = cJSON_GetObjectItem(result, "v")->child;
  double square = 0;
  for (int i = 0; i < count; ++i) square += (double)run->p[i] * (double)run->p[i];
  const double scale = sqrt(square / count);
  for (int i = 0; i < count; ++i, p = p->next, m = m->next, v = v->next) {
    const int off[2] = {abs(run->codes[0][i] - m->valueint), abs(run->codes[1][i] - v->valueint)};
    const double error = fabs((double)run->p[i] - p->valuedouble) / scale;
    ck_assert_msg(off[0] <= 1 && off[1] <= 1, "element %d: codes %d and %d, not %d and %d", i, run->codes[0][i],
                  run->codes[1][i], m->valueint, v->valueint);
    run->flips += off[0] + off[1];
    ++run->weights;
    if (error < 1e-5) {
      run->worst = fmax(run->worst, error);
      continue;
    }
    ck_assert_msg(error * scale < 0.1 * lr, "element %d: %.9g, not %.9g", i, (double)run->p[i], p->valuedouble);
    run->flips++;
  }
  for (int k = 0; k < 2; ++k) {
    const cJSON *most = cJSON_GetObjectItem(result, k ? "v_absmax" : "m_absmax")->child;
    for (int b = 0; b < 3; ++b, most = most->next) /* the reference forms 1 - beta2 in float32, which is 1.7e-5 off */
      ck_assert_double_le(fabs((double)run->scales[k][b] - most->valuedouble), (k ? 3e-5 : 1e-5) * most->valuedouble);
  }
}

START_TEST(eight_bit_golden) {
  tws_json *json = eight_bit_file();
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json->root, "cases")) {
    static eight_bit_run run;
    const int count = cJSON_GetObjectItem(item, "count")->valueint;
    const double lr = cJSON_GetObjectItem(item, "lr")->valuedouble;
    const double betas[2] = {cJSON_GetObjectItem(item, "beta1")->valuedouble,
                             cJSON_GetObjectItem(item, "beta2")->valuedouble};
    const cJSON *result = cJSON_GetObjectItem(item, "results")->child;
    const tws_work w = {
        .code = TWS_KERNEL_ADAMW8,
        .d = {count},
        .f = {cJSON_GetObjectItem(item, "eps")->valuedouble, cJSON_GetObjectItem(item, "weight_decay")->valuedouble}};
    float hyper[TWS_HYPER_COUNT] = {[TWS_HYPER_LR] = (float)lr,
                                    [TWS_HYPER_BETA1] = (float)betas[0],
                                    [TWS_HYPER_BETA2] = (float)betas[1],
                                    [TWS_HYPER_REST1] = (float)(1 - betas[0]),
                                    [TWS_HYPER_REST2] = (float)(1 - betas[1])};
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = 1};
    tws_backend *backend = use_backend(0, 1);
    uint32_t random = (uint32_t)cJSON_GetObjectItem(item, "seed")->valueint;
    ck_assert_int_le(count, EIGHT_BIT_MOST);
    memset(&run, 0, sizeof run);
    for (int i = 0; i < count; ++i) run.p[i] = eight_bit_number(&random);
    for (int update = 1; update <= 50; ++update) {
      /* magnitudes of adjacent gradients differ by up to 2^-12, and stay as they are, so that all decades of the maps
       * are used */
      for (int i = 0; i < count; ++i) run.g[i] = ldexpf(eight_bit_number(&random), -(i * 7 % 13));
      hyper[TWS_HYPER_BIAS1] = (float)(1 - pow(betas[0], update));
      hyper[TWS_HYPER_BIAS2] = (float)(1 - pow(betas[1], update));
      void *data[] = {run.p, run.codes[0], run.codes[1], run.scales[0], run.scales[1], run.g, hyper, metrics};
      const tws_dtype types[] = {TWS_F32, TWS_U8, TWS_U8, TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64};
      ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 8, NULL), TWS_OK);
      if (!result || cJSON_GetObjectItem(result, "update")->valueint != update) continue;
      eight_bit_compare(&run, result, count, lr);
      result = result->next;
    }
    ck_assert_ptr_null(result);
    printf(
        "8-bit AdamW: weights are within %.2g of bitsandbytes' formulas; of %lld weights and their codes %lld are on "
        "the other side of a border\n",
        run.worst, (long long)run.weights, (long long)run.flips);
    ck_assert_int_le(run.flips, run.weights / 100);
    ++cases;
  }
  ck_assert_int_ge(cases, 2);
  tws_json_destroy(json);
}
END_TEST

#endif
