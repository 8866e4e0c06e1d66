/* Numeric helpers of the host's kernels: the exponential, and every rounding of half precision and bfloat16, bit for
 * bit. */
#define TWS_HOST_ISA test
#include "real/host/kernels/vector.h"
#include <cjson/cJSON.h>

#include "base/float8.h"
#include "base/json.h"
#include "base/random.h"
#include "models/kernel.h"
#include "models/quantized.h"
#include "tests/kernel_backend.h"
#include "tests/oracle.h"

/* ---- the exponential under softmax, GELU and SiLU ---- */
START_TEST(exponential) {
  double worst = 0;
  for (double x = -87.2; x < 88.2; x += 0.00071) {
    const double want = exp((double)(float)x);
    const vf input = v_set((float)x);
    worst = fmax(worst, fabs(v_exp(input)[3] / want - 1));
    worst = fmax(worst, fabs(v_exp_finite(input)[LANES - 1] / want - 1));
  }
  ck_assert_double_lt(worst, 2e-7);
  ck_assert(v_exp(v_set(0))[0] == 1);
  ck_assert(v_exp(v_set(-INFINITY))[0] == 0);
  ck_assert(v_exp(v_set(-104))[0] == 0);
  ck_assert(isinf(v_exp(v_set(100))[0]));
  ck_assert(isnan(v_exp(v_set(NAN))[0]));
  ck_assert(isnan(v_exp_finite(v_set(NAN))[0]));
}
END_TEST

/* Converts every bfloat16 to float32 and back, and all kinds of float32 roundings: ties, overflow to infinity, denormal
 * numbers, NaN whose payload is in the bits that are cut. */
START_TEST(bf16_bits) {
  enum { ALL = 1 << 16, TAILS = 8 };
  static const uint32_t tail[TAILS] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000};
  uint16_t *half = calloc(ALL, sizeof *half), *rounded = calloc((size_t)ALL * TAILS, sizeof *rounded);
  uint32_t *bits = calloc((size_t)ALL * TAILS, sizeof *bits);
  for (int device = 0; device <= 3; ++device) {
    tws_backend *backend = use_backend(device, 2);
    if (!backend) continue;
    const tws_work widen = {.code = TWS_KERNEL_CAST, .dtype = TWS_BF16, .dtype2 = TWS_F32, .d = {ALL}};
    const tws_work narrow = {.code = TWS_KERNEL_CAST, .dtype = TWS_F32, .dtype2 = TWS_BF16, .d = {ALL * TAILS}};
    const tws_dtype up[] = {TWS_BF16, TWS_F32}, down[] = {TWS_F32, TWS_BF16};
    for (int i = 0; i < ALL; ++i) half[i] = (uint16_t)i;
    ck_assert_int_eq(run_kernel(backend, &widen, NULL, (void *[]){half, bits}, up, 2, NULL), TWS_OK);
    for (uint32_t i = 0; i < ALL; ++i) REQUIRE(bits[i] == i << 16, "bf16 %04x became %08x", i, bits[i]);
    for (uint32_t i = 0; i < ALL * TAILS; ++i) bits[i] = (i / TAILS) << 16 | tail[i % TAILS];
    ck_assert_int_eq(run_kernel(backend, &narrow, NULL, (void *[]){bits, rounded}, down, 2, NULL), TWS_OK);
    for (uint32_t i = 0; i < ALL * TAILS; ++i) {
      float x;
      memcpy(&x, &bits[i], sizeof x);
      REQUIRE(rounded[i] == tws_to_bf16(x), "%08x became %04x instead of %04x", bits[i], rounded[i], tws_to_bf16(x));
    }
  }
  free(half), free(rounded), free(bits);
}
END_TEST

/* Returns the value of a half-precision number, computed from its sign, exponent and fraction. */
static double half_value(uint32_t half) {
  const int exponent = half >> 10 & 31, sign = half >> 15 ? -1 : 1;
  const double fraction = half & 1023;
  if (exponent == 31) return fraction > 0 ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

/* Returns the half-precision number that is nearest to x, and of two equally near ones the even one. */
static uint16_t nearest_half(double x) {
  uint32_t low = 0, high = 0x7c00;
  const double size = fabs(x);
  if (isnan(x)) return 0x7e00;
  if (size >= 65520) return (uint16_t)(0x7c00 | (signbit(x) ? 0x8000 : 0));
  while (high - low > 1) { /* the bits of positive halves are in the order of their values */
    const uint32_t middle = (low + high) / 2;
    if (half_value(middle) <= size)
      low = middle;
    else
      high = middle;
  }
  const double below = size - half_value(low), above = (high == 0x7c00 ? 65536 : half_value(high)) - size;
  if (above < below || (above == below && low % 2)) low = high;
  return (uint16_t)(low | (signbit(x) ? 0x8000 : 0));
}

START_TEST(f16_bits) {
  enum { ALL = 1 << 16, TAILS = 8, COUNT = ALL * TAILS };
  static const uint32_t tail[TAILS] = {0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0xffff};
  uint16_t *half = calloc(ALL, sizeof *half), *rounded = calloc(COUNT, sizeof *rounded);
  uint16_t *want = calloc(COUNT, sizeof *want);
  float *wide = calloc(COUNT, sizeof *wide);
  for (int device = 0; device <= 3; ++device) {
    tws_backend *backend = use_backend(device, 2);
    if (!backend) continue;
    const tws_work widen = {.code = TWS_KERNEL_CAST, .dtype = TWS_F16, .dtype2 = TWS_F32, .d = {ALL}};
    const tws_work narrow = {.code = TWS_KERNEL_CAST, .dtype = TWS_F32, .dtype2 = TWS_F16, .d = {COUNT}};
    const tws_dtype up[] = {TWS_F16, TWS_F32}, down[] = {TWS_F32, TWS_F16};
    for (int i = 0; i < ALL; ++i) half[i] = (uint16_t)i;
    ck_assert_int_eq(run_kernel(backend, &widen, NULL, (void *[]){half, wide}, up, 2, NULL), TWS_OK);
    for (uint32_t i = 0; i < ALL; ++i) {
      const double x = half_value(i);
      const int same = isnan(x) ? isnan(wide[i]) != 0 : wide[i] == x && !signbit(wide[i]) == !signbit(x);
      REQUIRE(same && (isnan(x) || tws_from_f16((uint16_t)i) == x), "fp16 %04x became %.9g", i, (double)wide[i]);
    }
    for (uint32_t i = 0; i < COUNT; ++i) {
      const uint32_t bits = (i / TAILS) << 16 | tail[i % TAILS];
      memcpy(&wide[i], &bits, sizeof bits);
      if (device == 0) want[i] = nearest_half(wide[i]);
    }
    ck_assert_int_eq(run_kernel(backend, &narrow, NULL, (void *[]){wide, rounded}, down, 2, NULL), TWS_OK);
    for (uint32_t i = 0; i < COUNT; ++i) {
      const int nan = isnan(wide[i]) && (rounded[i] & 0x7e00) == 0x7e00;
      REQUIRE((nan || rounded[i] == want[i]) && rounded[i] == tws_to_f16(wide[i]),
              "%a became %04x instead of %04x, %04x", (double)wide[i], rounded[i], want[i], tws_to_f16(wide[i]));
    }
  }
  free(half), free(rounded), free(want), free(wide);
}
END_TEST

/* Every code is the nearest one, and the largest value of a block is kept. */
START_TEST(quantized) {
  enum { BLOCK = 66, BLOCKS = 200, COUNT = BLOCK * BLOCKS };
  static float values[COUNT], back[COUNT], scales[BLOCKS];
  static uint8_t codes[COUNT];
  for (int i = 0; i < COUNT; ++i)
    values[i] = i < BLOCK ? 0 : (float)(tws_random_normal(3, 1, (uint64_t)i) * pow(10, i / BLOCK % 9 - 4));
  for (int bits = 4; bits <= 8; bits += 4) {
    double level[256];
    const int levels = bits == 8 ? 255 : 16;
    for (int k = 0; k < levels; ++k) level[k] = bits == 8 ? (k - 127) / 127.0 : oracle_level(k);
    tws_quantize(values, COUNT, BLOCK, bits, codes, scales);
    tws_dequantize(codes, scales, COUNT, BLOCK, bits, back);
    for (int b = 0; b < BLOCKS; ++b) {
      double most = 0;
      for (int i = b * BLOCK; i < (b + 1) * BLOCK; ++i) most = fmax(most, fabs((double)values[i]));
      for (int i = b * BLOCK; i < (b + 1) * BLOCK; ++i) {
        double best = INFINITY;
        for (int k = 0; k < levels; ++k) best = fmin(best, fabs(level[k] * most - (double)values[i]));
        const double error = fabs((double)back[i] - (double)values[i]);
        REQUIRE(error <= best + 1e-6 * most, "%d bits: %g became %g", bits, (double)values[i], (double)back[i]);
      }
    }
  }
}
END_TEST

/* Quantizing scales to 8 bits: each scale is off by at most half a quantization step, a step is a 127th of the largest
 * difference of a group's scale from their mean, and equal scales are kept exactly. */
START_TEST(quantized_scales) {
  enum { GROUP = 256, GROUPS = 50, COUNT = GROUP * GROUPS };
  static float scales[COUNT], back[COUNT], means[GROUPS][2];
  static uint8_t codes[COUNT];
  for (int i = 0; i < COUNT; ++i) scales[i] = i < GROUP ? 0.125F : (float)fabs(tws_random_normal(4, 1, (uint64_t)i));
  tws_quantize_scales(scales, COUNT, GROUP, codes, means);
  tws_dequantize_scales(codes, (const float(*)[2])means, COUNT, GROUP, back);
  for (int g = 0; g < GROUPS; ++g) {
    double sum = 0, most = 0;
    for (int i = g * GROUP; i < (g + 1) * GROUP; ++i) sum += (double)scales[i];
    for (int i = g * GROUP; i < (g + 1) * GROUP; ++i) most = fmax(most, fabs((double)scales[i] - sum / GROUP));
    for (int i = g * GROUP; i < (g + 1) * GROUP; ++i) {
      const double error = fabs((double)back[i] - (double)scales[i]);
      REQUIRE(error <= most / 254 + 1e-6 * (most + fabs(sum / GROUP)), "%g became %g", (double)scales[i],
              (double)back[i]);
    }
  }
  REQUIRE(back[0] == 0.125F, "%g", (double)back[0]);
}
END_TEST

static float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* All 256 codes of each 8-bit type have PyTorch's values, and numbers are rounded like PyTorch's: halfway between two
 * codes, close to that, and anywhere. */
START_TEST(float8_golden) {
  tws_json *json = NULL;
  tws_error err = {0};
  int rounded = 0;
  REQUIRE(tws_json_read(TWS_TEST_DIR "/golden/float8.json", &json, &err) == TWS_OK, "%s", err.message);
  for (int type = TWS_E4M3; type <= TWS_E5M2; ++type) {
    const cJSON *all = cJSON_GetObjectItem(json->root, tws_dtype_name((tws_dtype)type)), *item;
    int code = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(all, "meaning")) {
      const float value = type == TWS_E4M3 ? tws_from_e4m3((uint8_t)code) : tws_from_e5m2((uint8_t)code);
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      if (cJSON_IsNull(item))
        REQUIRE(isnan(value), "%s %d", tws_dtype_name((tws_dtype)type), code);
      else if (cJSON_IsString(item))
        REQUIRE(isinf(value) && (value < 0) == (*item->valuestring == '-'), "code %d", code);
      else
        REQUIRE(bits == (uint32_t)item->valuedouble, "%s %d: %g", tws_dtype_name((tws_dtype)type), code, (double)value);
      ++code;
    }
    ck_assert_int_eq(code, 256);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(all, "rounded")) {
      const float value = of_bits((uint32_t)cJSON_GetArrayItem(item, 0)->valuedouble);
      const int want = cJSON_GetArrayItem(item, 1)->valueint;
      const int got = type == TWS_E4M3 ? tws_to_e4m3(value) : tws_to_e5m2(value);
      REQUIRE(got == want, "%s of %.9g is %d, not %d", tws_dtype_name((tws_dtype)type), (double)value, got, want);
      ++rounded;
    }
  }
  ck_assert_int_gt(rounded, 1000);
  tws_json_destroy(json);
}
END_TEST

/* Every instruction set rounds as base/float8.h does: all bfloat16 numbers, including infinity and NaN, multiplied by 1
 * and by the factor that makes the largest number that of the type. */
START_TEST(float8_codes) {
  enum { ALL = 1 << 16 };
  static uint16_t x[ALL];
  static uint8_t y[ALL], y_t[ALL];
  for (int i = 0; i < ALL; ++i) x[i] = (uint16_t)i;
  for (int device = 0; device <= 3; ++device)
    for (int type = TWS_E4M3; type <= TWS_E5M2; ++type)
      for (int scaled = 0; scaled < 2; ++scaled) {
        tws_backend *backend = use_backend(device, 2);
        if (!backend) continue;
        const tws_work w = {.code = TWS_KERNEL_QUANTIZE,
                            .dtype = TWS_BF16,
                            .dtype2 = (uint8_t)type,
                            .flags = TWS_ROWS | TWS_COLUMNS,
                            .d = {256, 256}};
        const float most = type == TWS_E4M3 ? TWS_E4M3_MOST : TWS_E5M2_MOST;
        float amax = scaled ? 3.3e38F : most, scale = 0;
        void *data[] = {x, &amax, &scale, y, y_t};
        const tws_dtype types[] = {TWS_BF16, TWS_F32, TWS_F32, (tws_dtype)type, (tws_dtype)type};
        ck_assert_int_eq(run_kernel(backend, &w, NULL, data, types, 5, NULL), TWS_OK);
        const float multiplier = most / amax;
        ck_assert(scale == 1 / multiplier);
        for (int i = 0; i < ALL; ++i) {
          const float value = tws_from_bf16(x[i]) * multiplier;
          const int want = type == TWS_E4M3 ? tws_to_e4m3(value) : tws_to_e5m2(value);
          REQUIRE(y[i] == want && y_t[i % 256 * 256 + i / 256] == want, "device %d: %d of %g", device, y[i],
                  (double)value);
          if (!isfinite(value)) continue;
          const double nearest = fmin(fmax((double)value, -(double)most), (double)most);
          const double meaning = type == TWS_E4M3 ? tws_from_e4m3(y[i]) : tws_from_e5m2(y[i]);
          REQUIRE(meaning == oracle_nearest8((tws_dtype)type, nearest), "%g became %g", (double)value, meaning);
        }
      }
}
END_TEST

/* The multiplier of a tensor of zeros is 1; infinity or NaN in a tensor makes it NaN, and thereby every product. */
START_TEST(float8_scales) {
  ck_assert(tws_float8_multiplier(0, TWS_E4M3) == 1);
  ck_assert(tws_float8_multiplier(2, TWS_E4M3) == 224);
  ck_assert(tws_float8_multiplier(1e-44F, TWS_E5M2) == FLT_MAX);
  ck_assert(isnan(tws_float8_multiplier(INFINITY, TWS_E5M2)));
  ck_assert(isnan(tws_float8_multiplier(NAN, TWS_E4M3)));
}
END_TEST

/* Delayed scaling: a NaN that one cast of a step finds is not replaced by the finite numbers of a later cast, and the
 * history replaces it by its newest number. The amax stays finite where the margin would make it infinity, since an
 * infinite amax would make all numbers NaN. */
START_TEST(float8_histories) {
  enum { WIDTH = 40 };
  for (int device = 0; device <= 3; ++device) {
    tws_backend *backend = use_backend(device, 2);
    if (!backend) continue;
    float x[WIDTH] = {[3] = NAN, [17] = 2}, largest = 0, scale, history[2] = {3e38F, 1}, amax = 4;
    uint8_t y[WIDTH];
    const tws_work cast = {.code = TWS_KERNEL_QUANTIZE,
                           .dtype = TWS_F32,
                           .dtype2 = TWS_E4M3,
                           .flags = TWS_ROWS | TWS_LARGEST,
                           .d = {1, WIDTH}};
    const tws_work step = {.code = TWS_KERNEL_AMAX_HISTORY, .dtype = TWS_F32, .d = {1, 2}, .f = {1}};
    void *casts[] = {x, &amax, &scale, y, &largest}, *steps[] = {&largest, history, &amax};
    const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, TWS_E4M3, TWS_F32};
    for (int i = 0; i < 2; ++i) {
      ck_assert_int_eq(run_kernel(backend, &cast, NULL, casts, types, 5, NULL), TWS_OK);
      ck_assert_msg(isnan(largest), "device %d: %g after cast %d", device, (double)largest, i);
      x[3] = 1;
    }
    ck_assert_int_eq(run_kernel(backend, &step, NULL, steps, types, 3, NULL), TWS_OK);
    ck_assert(history[0] == 3e38F && history[1] == 3e38F && largest == 0);
    ck_assert(amax == FLT_MAX);
  }
}
END_TEST

/* Delayed scaling: numbers whose product with amax's multiplier is infinity become the largest code; an infinity and a
 * NaN among the numbers themselves become NaN. */
START_TEST(float8_far_above_amax) {
  enum { WIDTH = 40 };
  for (int device = 0; device <= 3; ++device)
    for (int type = TWS_E4M3; type <= TWS_E5M2; ++type) {
      tws_backend *backend = use_backend(device, 2);
      if (!backend) continue;
      const int most = type == TWS_E4M3 ? 0x7e : 0x7b;
      float x[WIDTH] = {1, -1, 1e30F, -FLT_MAX, INFINITY, -INFINITY, NAN, 0}, amax = 1e-35F, largest = 0, scale;
      for (int i = 8; i < WIDTH; ++i) x[i] = i % 2 ? 1e5F : -1e5F;
      uint8_t y[WIDTH], y_t[WIDTH];
      const tws_work cast = {.code = TWS_KERNEL_QUANTIZE,
                             .dtype = TWS_F32,
                             .dtype2 = (uint8_t)type,
                             .flags = TWS_ROWS | TWS_COLUMNS | TWS_LARGEST,
                             .d = {1, WIDTH}};
      void *data[] = {x, &amax, &scale, y, y_t, &largest};
      const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_F32, (tws_dtype)type, (tws_dtype)type, TWS_F32};
      ck_assert_int_eq(run_kernel(backend, &cast, NULL, data, types, 6, NULL), TWS_OK);
      for (int i = 0; i < WIDTH; ++i) {
        const int magnitude = isfinite(x[i]) ? x[i] != 0 ? most : 0 : 0x7f, code = y[i];
        ck_assert_msg((code & 0x7f) == magnitude && y_t[i] == code, "device %d: code %d of %g", device, code,
                      (double)x[i]);
        if (isfinite(x[i])) ck_assert_int_eq(code >> 7, x[i] < 0);
      }
      ck_assert(isnan(largest) && scale > 0 && scale <= 1e-35F);
    }
}
END_TEST

int main(void) {
  host = load_backend("host");
  if (!host) {
    fprintf(stderr, "the host backend was not built: nothing to test\n");
    return 0;
  }
  Suite *suite = suite_create("kernel_numbers");
  TCase *numbers = tcase_create("numbers");
  tcase_set_timeout(numbers, 60);
  tcase_add_test(numbers, exponential);
  tcase_add_test(numbers, bf16_bits);
  tcase_add_test(numbers, f16_bits);
  tcase_add_test(numbers, quantized);
  tcase_add_test(numbers, quantized_scales);
  tcase_add_test(numbers, float8_golden);
  tcase_add_test(numbers, float8_codes);
  tcase_add_test(numbers, float8_scales);
  tcase_add_test(numbers, float8_histories);
  tcase_add_test(numbers, float8_far_above_amax);
  suite_add_tcase(suite, numbers);
  return run_kernel_suite(suite);
}
