/* Hardware profiles: exactness at measured shapes, monotone costs, collectives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/made_up_machine.h"
#include "tests/suite.h"

START_TEST(builtins) {
  for (const char *const *name = tws_profile_builtin_names(); *name != NULL; name++) {
    tws_profile *p = load(*name);
    ck_assert_str_eq(tws_profile_name(p), *name);
    ck_assert_double_gt(tws_profile_memory_bytes(p), 1e9);
    ck_assert_double_gt(tws_profile_peak_flops(p, TWS_BF16), 1e9);
    int host = tws_profile_backend(p) == TWS_BACKEND_HOST;
    ck_assert_int_eq(tws_profile_serial_streams(p), host);
    ck_assert_int_eq(tws_profile_cores(p) > 0, host);
    for (int kernel = 0; kernel < TWS_KERNEL_COUNT; kernel++) {
      tws_work work = {.code = (uint8_t)kernel, .dtype = TWS_BF16, .d = {64, 64, 8, 8, 64}};
      double s = tws_kernel_seconds(p, &work, 1, 1);
      ck_assert_msg(isfinite(s) && s > 0, "%s: %s: %g", *name, tws_kernel_name((tws_kernel)kernel), s);
    }
    tws_profile_destroy(p);
  }
}
END_TEST

/* The best of published searches over shapes (stas00/ml-engineering, compute/accelerator, bf16): the shapes at
 * which each GPU reaches its best. The model's sustained rates are fitted to training runs, which stay below
 * such searches. */
START_TEST(published_matrix_products) {
  static const struct {
    const char *profile;
    int64_t m, n, k;
    double tflops;
  } best[] = {{"a100-80gb", 1024, 10240, 5120, 271.2},
              {"h100-sxm", 2048, 2048, 13312, 794.5},
              {"b200", 1792, 16128, 3072, 1745}};
  for (size_t i = 0; i < sizeof best / sizeof best[0]; i++) {
    tws_profile *p = load(best[i].profile);
    tws_work work = linear(TWS_KERNEL_LINEAR, best[i].m, best[i].n, best[i].k);
    work.dtype = TWS_BF16;
    double tflops = tws_work_flops(&work) / tws_kernel_seconds(p, &work, 1, 1) * 1e-12;
    ck_assert_msg(tflops > 0.65 * best[i].tflops && tflops < 1.02 * best[i].tflops, "%s: %.1f", best[i].profile,
                  tflops);
    tws_profile_destroy(p);
  }
}
END_TEST

/* Twice the work of the same family never takes less time, and on GPUs a misaligned size never takes less. */
START_TEST(more_is_not_faster) {
  for (const char *const *name = tws_profile_builtin_names(); *name != NULL; name++) {
    tws_profile *p = load(*name);
    for (uint64_t c = 0; c < 400; c++) {
      uint32_t r[4];
      tws_philox(11, 0, c, r);
      tws_work work = {.code = (uint8_t)(r[0] % TWS_KERNEL_COUNT), .dtype = r[0] >> 8 & 1 ? TWS_BF16 : TWS_F32};
      for (int d = 0; d < 5; d++) work.d[d] = 8 * (1 + (int64_t)(tws_random_uniform(11, 1 + (uint64_t)d, c) * 300));
      double before = tws_kernel_seconds(p, &work, 1, 1);
      for (int d = 0; d < 3; d++) {
        tws_work more = work;
        const int quantized = work.code == TWS_KERNEL_DEQUANTIZE || work.code == TWS_KERNEL_DEQUANTIZE_TWICE;
        if (quantized && d > 0) continue; /* the other numbers are a block's size and a type, and not amounts of work */
        more.d[d] *= 2;
        double after = tws_kernel_seconds(p, &more, 1, 1);
        ck_assert_msg(after >= before * (1 - 1e-12), "%s: %s [%ld,%ld,%ld] size %d: %g then %g", *name,
                      tws_kernel_name((tws_kernel)work.code), work.d[0], work.d[1], work.d[2], d, before, after);
      }
      ck_assert_double_ge(tws_kernel_seconds(p, &work, 1, 4), before);
      ck_assert_double_le(tws_kernel_seconds(p, &work, 2, 1), before);
    }
    tws_work even = linear(TWS_KERNEL_LINEAR, 4096, 50264, 1600), odd = linear(TWS_KERNEL_LINEAR, 4096, 50257, 1600);
    even.dtype = odd.dtype = TWS_F16;
    if (tws_profile_backend(p) == TWS_BACKEND_CUDA && !tws_profile_has_no_engine(p)) {
      ck_assert_double_gt(tws_kernel_seconds(p, &odd, 1, 1), tws_kernel_seconds(p, &even, 1, 1));
    }
    tws_profile_destroy(p);
  }
}
END_TEST

START_TEST(exact_where_measured) {
  tws_profile *p = finish(measured_machine(0.2));
  uint64_t i = 0;
  for (int t = 0; t < 4; t++) {
    for (int n = 0; n < 4; n++) {
      for (int k = 0; k < 4; k++, i++) {
        tws_work work = linear(TWS_KERNEL_LINEAR, token_sizes[t], widths[n], widths[k]);
        double s = machine_seconds(token_sizes[t], widths[n], widths[k], 0.2, i);
        ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / s, 1, 1e-8);
        ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 4) / s, 1.5, 1e-8);
        ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 64) / s, 1.5, 1e-8); /* the most that was measured */
        ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 2) / s, sqrt(1.5), 1e-8); /* halfway in the logarithm */
        ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 2, 1) / s, 0.5, 1e-8);
      }
    }
  }
  for (int64_t count = 1 << 10; count <= 1 << 22; count *= 4) {
    tws_work work = sized(TWS_KERNEL_GELU, count, 0);
    double bytes = 8.0 * (double)count, s = 1e-6 + bytes / (bytes < 1 << 20 ? 5e10 : 1e10);
    ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / s, 1, 1e-8);
  }
  tws_work clip = sized(TWS_KERNEL_CLIP, 0, 0);
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &clip, 1, 1), 5e-7, 1e-15);
  tws_profile_destroy(p);
}
END_TEST

/* In an older profile without a kernel's measurements the kernel has the curve of another one with similar traffic; its
 * own measurements replace that. */
START_TEST(substitute_curves) {
  static const struct {
    tws_kernel kernel, like;
  } pairs[] = {{TWS_KERNEL_CROSS_ENTROPY, TWS_KERNEL_CROSS_ENTROPY},
               {TWS_KERNEL_ADD, TWS_KERNEL_ADD},
               {TWS_KERNEL_VOCABULARY_STATS, TWS_KERNEL_CROSS_ENTROPY},
               {TWS_KERNEL_VOCABULARY_LOSS, TWS_KERNEL_CROSS_ENTROPY},
               {TWS_KERNEL_TRANSPOSE, TWS_KERNEL_ADD},
               {TWS_KERNEL_HEADS_PACK, TWS_KERNEL_ADD},
               {TWS_KERNEL_HEADS_UNPACK, TWS_KERNEL_ADD}};
  const size_t count = sizeof pairs / sizeof *pairs;
  tws_error err;
  for (int own = 0; own < 2; own++) {
    tws_profile_builder *b = measured_machine(0);
    for (size_t i = 0; i < (own ? count : 2); i++)
      for (int64_t size = 4; size <= 4096; size *= 2) {
        const tws_work work = {.code = (uint8_t)pairs[i].kernel, .d = {size, 64, 128, 4, 8}};
        const double s = 1e-6 * (double)(i + 1) * (double)size;
        ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, &err), TWS_OK);
      }
    tws_profile *p = finish(b);
    for (size_t i = 0; i < count; i++) {
      const tws_work work = {.code = (uint8_t)pairs[i].kernel, .d = {256, 64, 128, 4, 8}};
      const tws_work like = {.code = (uint8_t)pairs[i].like, .d = {256, 64, 128, 4, 8}};
      const double s = tws_kernel_seconds(p, &work, 1, 1), bytes = tws_work_bytes(&work);
      const double of_like = tws_kernel_seconds(p, &like, 1, 1) * bytes / tws_work_bytes(&like);
      const double want = own ? 1e-6 * (double)(i + 1) * 256 : of_like;
      ck_assert_msg(fabs(s / want - 1) < (own ? 1e-8 : 0.05), "%s: %g instead of %g", tws_kernel_name(pairs[i].kernel),
                    s, want);
    }
    /* a work of padding alone still takes time, because the padding is cleared */
    const tws_work padding = {.code = TWS_KERNEL_VOCABULARY_LOSS, .d = {4096, 0, 4096, 2}};
    ck_assert_double_gt(tws_kernel_seconds(p, &padding, 1, 1), 1e-4);
    tws_profile_destroy(p);
  }
}
END_TEST

/* In a profile without fp16 measurements fp16 kernels take the time of bf16, which moves as many bytes, and products
 * follow the peaks. */
START_TEST(fp16_without_a_curve) {
  static const tws_dtype types[] = {TWS_F32, TWS_BF16, TWS_F16};
  tws_error err;
  for (int own = 0; own < 2; own++) {
    tws_profile_builder *b = measured_machine(0);
    tws_profile_builder_peak(b, TWS_F32, 1e11);
    tws_profile_builder_peak(b, TWS_BF16, 4e11);
    for (int t = 0; t < 2 + own; t++)
      for (int64_t size = 64; size <= 1 << 20; size *= 2) {
        const uint8_t type = (uint8_t)types[t];
        const tws_work add = {.code = TWS_KERNEL_ADD, .dtype = type, .dtype2 = type, .d = {size}};
        const tws_work product = {.code = TWS_KERNEL_LINEAR, .dtype = type, .dtype2 = type, .d = {size, 64, 64}};
        const double s = 1e-9 * (double)(t + 1) * (double)size;
        ck_assert_int_eq(tws_profile_builder_kernel(b, &add, 1, 1, s, &err), TWS_OK);
        if (t > 0) ck_assert_int_eq(tws_profile_builder_kernel(b, &product, 1, 1, s, &err), TWS_OK);
      }
    tws_profile *p = finish(b);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      const uint8_t wider = accumulate ? TWS_F32 : TWS_F16;
      const tws_work add = {.code = TWS_KERNEL_ADD, .dtype = TWS_F16, .dtype2 = wider, .d = {4096}};
      const tws_work product = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_F16, .dtype2 = wider, .d = {4096, 64, 64}};
      const double want = own ? 3e-9 * 4096 : 2e-9 * 4096, scaled = own ? want : 4 * want;
      ck_assert_double_lt(fabs(tws_kernel_seconds(p, &add, 1, 1) / want - 1), 0.01);
      ck_assert_double_lt(fabs(tws_kernel_seconds(p, &product, 1, 1) / scaled - 1), 0.01);
    }
    tws_profile_destroy(p);
  }
}
END_TEST

/* Between and beyond the samples of a noisy measurement, predictions are close to the machine's true law, and more work
 * does not take less time. */
START_TEST(interpolates) {
  tws_profile *p = finish(measured_machine(0.03));
  double worst = 0, total = 0;
  for (uint64_t c = 0; c < 500; c++) {
    int64_t m = (int64_t)exp(log(8) + tws_random_uniform(1, 1, c) * log(512));
    int64_t n = (int64_t)exp(log(32) + tws_random_uniform(1, 2, c) * log(256));
    int64_t k = (int64_t)exp(log(32) + tws_random_uniform(1, 3, c) * log(256));
    tws_work work = linear(TWS_KERNEL_LINEAR, m, n, k);
    double s = tws_kernel_seconds(p, &work, 1, 1), error = fabs(s / machine_seconds(m, n, k, 0, 0) - 1);
    worst = fmax(worst, error);
    total += error;
    for (int d = 0; d < 3; d++) {
      tws_work more = work;
      more.d[d] *= 2;
      ck_assert_double_ge(tws_kernel_seconds(p, &more, 1, 1), s * 0.97); /* small works are dominated by start-up and
                                                                          * noise */
    }
  }
  ck_assert_msg(worst < 0.06 && total / 500 < 0.03, "worst %.3f mean %.3f", worst, total / 500);
  /* a product ten times larger than the largest sample */
  tws_work huge = linear(TWS_KERNEL_LINEAR, 8192, 16384, 8192);
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &huge, 1, 1) / machine_seconds(8192, 16384, 8192, 0, 0), 1, 0.05);
  double before = 0;
  for (int64_t count = 1; count < 1 << 26; count += 1 + count / 3) {
    tws_work work = sized(TWS_KERNEL_GELU, count, 0);
    double s = tws_kernel_seconds(p, &work, 1, 1);
    ck_assert_double_ge(s, before);
    before = s;
  }
  tws_profile_destroy(p);
}
END_TEST

/* Samples that contradict monotony are averaged, and so are samples of equal shapes. */
START_TEST(noise_is_pooled) {
  tws_profile_builder *b = tws_profile_builder_create("noisy", TWS_BACKEND_HOST);
  tws_profile_builder_provenance(b, "made up");
  tws_profile_builder_node(b, 1, 1e9, 0);
  tws_profile_builder_peak(b, TWS_F32, 1e9);
  tws_profile_builder_bandwidth(b, 1e9, 0);
  static const double seconds[] = {1e-6, 4e-6, 1e-6, 8e-6};
  for (int i = 0; i < 4; i++) {
    tws_work work = sized(TWS_KERNEL_ADD, 1000 << i, 0);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, seconds[i], NULL), TWS_OK);
  }
  tws_work fill = sized(TWS_KERNEL_FILL, 100, 0), product = linear(TWS_KERNEL_LINEAR, 8, 8, 8);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &fill, 1, 1, 1e-6, NULL), TWS_OK);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &fill, 1, 1, 4e-6, NULL), TWS_OK);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &product, 1, 1, 1e-6, NULL), TWS_OK);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &product, 1, 1, 4e-6, NULL), TWS_OK);
  tws_profile *p = finish(b);
  static const double expected[] = {1e-6, 2e-6, 2e-6, 8e-6};
  for (int i = 0; i < 4; i++) {
    tws_work work = sized(TWS_KERNEL_ADD, 1000 << i, 0);
    ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / expected[i], 1, 1e-8);
  }
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &fill, 1, 1) / 2e-6, 1, 1e-8);
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &product, 1, 1) / 2e-6, 1, 1e-8);
  tws_work twice = linear(TWS_KERNEL_LINEAR, 16, 8, 8); /* one sample still gives a rate */
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &twice, 1, 1) / 4e-6, 1, 1e-6);
  tws_profile_destroy(p);
}
END_TEST

/* A cast to both layouts takes what was measured for it, one to a single layout less. */
START_TEST(casts_have_the_layouts_that_were_measured) {
  tws_profile_builder *b = measured_machine(0);
  tws_work work = {.code = TWS_KERNEL_QUANTIZE, .dtype = TWS_BF16, .dtype2 = TWS_E4M3, .flags = TWS_ROWS | TWS_COLUMNS};
  work.d[1] = 1024;
  for (int i = 0; i < 3; i++) {
    work.d[0] = 1024 << i;
    ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, 1e-3 * (1 << i), NULL), TWS_OK);
  }
  tws_profile *p = finish(b);
  work.d[0] = 2048;
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1), 2e-3, 1e-8);
  work.flags = TWS_ROWS;
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1), 1.5e-3, 1e-5);
  tws_profile_destroy(p);
}
END_TEST

/* With a grid of samples of the plain product and few samples of a variant that adds to its output, the variant is
 * exact at its samples, and near them the plain grid is scaled by their ratio. */
START_TEST(variants_share_a_surface) {
  static const uint32_t flags[] = {TWS_ACCUMULATE, TWS_BIAS, TWS_ACCUMULATE | TWS_BIAS};
  static const double factors[] = {1.2, 1.1, 1.4};
  tws_profile_builder *b = measured_machine(0);
  for (int t = 0; t < 4; t++) {
    tws_work work = linear(TWS_KERNEL_LINEAR_GRAD_WEIGHT, token_sizes[t], 768, 768);
    double s = machine_seconds(token_sizes[t], 768, 768, 0, 0);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, NULL), TWS_OK);
    for (int v = 0; v < 3; v++) {
      work.flags = flags[v];
      ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, factors[v] * s, NULL), TWS_OK);
    }
  }
  tws_profile *p = finish(b);
  tws_work work = linear(TWS_KERNEL_LINEAR_GRAD_WEIGHT, 256, 768, 768);
  double s = machine_seconds(256, 768, 768, 0, 0), plain = tws_kernel_seconds(p, &work, 1, 1);
  ck_assert_double_eq_tol(plain / s, 1, 1e-8);
  for (int v = 0; v < 3; v++) {
    work.flags = flags[v];
    work.d[0] = 256;
    ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / s, factors[v], 1e-8);
    work.d[0] = 384;
    double ratio = tws_kernel_seconds(p, &work, 1, 1) / machine_seconds(384, 768, 768, 0, 0);
    ck_assert_msg(ratio > 1.02 && ratio < factors[v] + 0.05, "%g", ratio);
  }
  tws_profile_destroy(p);
}
END_TEST

/* Products of few rows, whose time on a host is that of reading the weight, have a surface of their own: they follow
 * its samples, other products do not change, and with GELU the time of the GELU kernel is added. */
START_TEST(few_rows_have_a_surface) {
  tws_profile *without = finish(measured_machine(0));
  tws_profile_builder *b = measured_machine(0);
  for (int64_t rows = 1; rows <= 4; rows *= 2)
    for (int n = 0; n < 4; n++)
      for (int k = 0; k < 4; k++) {
        const tws_work work = linear(TWS_KERNEL_LINEAR, rows, widths[n], widths[k]);
        const double s = 4.0 * (double)(widths[n] * widths[k]) / 8e9 + 2e-7;
        ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, NULL), TWS_OK);
      }
  tws_profile *p = finish(b);
  for (int64_t rows = 1; rows <= 4; rows++) {
    tws_work work = linear(TWS_KERNEL_LINEAR, rows, 300, 2000), gelu = sized(TWS_KERNEL_GELU, 300 * rows, 0);
    const double s = tws_kernel_seconds(p, &work, 1, 1);
    ck_assert_double_eq_tol(s / (4.0 * 300 * 2000 / 8e9 + 2e-7), 1, 0.02);
    work.flags = TWS_GELU;
    ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / (s + tws_kernel_seconds(p, &gelu, 1, 1)), 1, 1e-9);
  }
  const int64_t others[] = {5, 16, 200};
  for (int i = 0; i < 3; i++) {
    const tws_work work = linear(TWS_KERNEL_LINEAR, others[i], 300, 2000);
    ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / tws_kernel_seconds(without, &work, 1, 1), 1, 1e-9);
  }
  tws_profile_destroy(without);
  tws_profile_destroy(p);
}
END_TEST

/* A product fused with GELU takes its measured time, or without measurements, on a host, the time of both kernels. */
START_TEST(two_in_one) {
  tws_profile_builder *b = measured_machine(0);
  tws_work work = linear(TWS_KERNEL_LINEAR, 256, 768, 768), gelu = sized(TWS_KERNEL_GELU, 256 * 768, 0);
  tws_profile *p = finish(b);
  double product = tws_kernel_seconds(p, &work, 1, 1), activation = tws_kernel_seconds(p, &gelu, 1, 1);
  work.flags = TWS_GELU;
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / (product + activation), 1, 1e-9);
  tws_profile_destroy(p);
  b = measured_machine(0);
  for (int t = 0; t < 4; t++) {
    work.d[0] = token_sizes[t];
    double s = machine_seconds(token_sizes[t], 768, 768, 0, 0);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, 1.3 * s, NULL), TWS_OK);
  }
  p = finish(b);
  work.d[0] = 256;
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / machine_seconds(256, 768, 768, 0, 0), 1.3, 1e-8);
  work.flags = 0; /* the plain product has not changed */
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &work, 1, 1) / product, 1, 1e-9);
  tws_profile_destroy(p);
}
END_TEST

/* On a machine whose rate falls with the size (caches), a plain least-squares fit would make start-up or traffic
 * negative, and thereby times far from the samples: costs stay positive. */
START_TEST(costs_are_not_negative) {
  tws_profile_builder *b = measured_machine(0);
  for (int t = 0; t < 4; t++) {
    for (int n = 0; n < 4; n++) {
      tws_work work = linear(TWS_KERNEL_LINEAR_GRAD_INPUT, token_sizes[t], widths[n], 768);
      double s = 1e-14 * pow(tws_work_flops(&work), 1.3);
      ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, NULL), TWS_OK);
    }
  }
  tws_profile *p = finish(b);
  for (int64_t m = 1; m <= 1 << 20; m *= 32) {
    double before = 0;
    for (int64_t n = 1; n <= 1 << 20; n *= 4) {
      tws_work work = linear(TWS_KERNEL_LINEAR_GRAD_INPUT, m, n, 768);
      double s = tws_kernel_seconds(p, &work, 1, 1);
      ck_assert_msg(s > 0 && s >= 0.9 * before, "[%ld,%ld]: %g after %g", m, n, s, before);
      before = s;
    }
  }
  tws_profile_destroy(p);
}
END_TEST

START_TEST(attention_by_shape) {
  tws_profile_builder *b = tws_profile_builder_create("attention", TWS_BACKEND_HOST);
  tws_profile_builder_provenance(b, "made up");
  tws_profile_builder_node(b, 1, 1e9, 0);
  tws_profile_builder_peak(b, TWS_F32, 1e10);
  tws_profile_builder_bandwidth(b, 1e10, 0);
#define LAW(w, pairs) (tws_work_flops(&(w)) / 2e10 + (pairs)*2e-9 + 1e-5)
  for (int64_t seq = 32; seq <= 512; seq *= 2) {
    for (int64_t head = 32; head <= 128; head *= 2) {
      tws_work w = {.code = TWS_KERNEL_ATTENTION, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {4, seq, 12, 12, head}};
      double pairs = 48.0 * (double)seq * (double)(seq + 1) / 2;
      ck_assert_int_eq(tws_profile_builder_kernel(b, &w, 1, 1, LAW(w, pairs), NULL), TWS_OK);
    }
  }
  tws_profile *p = finish(b);
  tws_work w = {.code = TWS_KERNEL_ATTENTION, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {2, 1024, 16, 4, 96}};
  double expected = LAW(w, 32.0 * 1024 * 1025 / 2);
  ck_assert_double_eq_tol(tws_kernel_seconds(p, &w, 1, 1) / expected, 1, 0.1);
  tws_profile_destroy(p);
}
END_TEST

static tws_profile_builder *host_without_kernels(void) {
  tws_profile_builder *b = tws_profile_builder_create("caches", TWS_BACKEND_HOST);
  tws_profile_builder_provenance(b, "made up");
  tws_profile_builder_node(b, 1, 1e9, 0);
  tws_profile_builder_peak(b, TWS_F32, 1e11);
  tws_profile_builder_bandwidth(b, 1e10, 0);
  return b;
}

/* Products of one row whose weights are read from memory at 10 GB/s, from one cache at 20 and from another at 40:
 * between the measured numbers of bytes after which a weight is read again, seconds are interpolated in the logarithm;
 * with fewer bytes they are those of the smaller cache, and with twice as many as the larger one those of memory.
 * A product of more rows saves what the product of one row saves. */
START_TEST(weights_that_caches_hold) {
  enum { MIB = 1 << 20 };
  tws_profile_builder *b = host_without_kernels();
  static const double reread[] = {0, 16 * MIB, MIB}, rate[] = {10e9, 20e9, 40e9};
  for (int64_t n = 32; n <= 256; n *= 2) {
    const tws_work work = linear(TWS_KERNEL_LINEAR, 1, n, n), many = linear(TWS_KERNEL_LINEAR, 64, n, n);
    for (int i = 0; i < 3; i++)
      ck_assert_int_eq(tws_profile_builder_rereading(b, &work, 1, 1, reread[i], 4.0 * (double)(n * n) / rate[i], NULL),
                       TWS_OK);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &many, 1, 1, 1e-9 * (double)(n * n), NULL), TWS_OK);
  }
  const tws_work work = linear(TWS_KERNEL_LINEAR, 1, 128, 128), many = linear(TWS_KERNEL_LINEAR, 64, 128, 128);
  ck_assert_int_eq(tws_profile_builder_rereading(b, &work, 1, 1, -1, 1, NULL), TWS_INVALID);
  tws_profile *p = finish(b);
  static const struct {
    double bytes, rate;
  } expected[] = {{0, 10e9},         {MIB, 40e9},
                  {MIB / 2.0, 40e9}, {4 * MIB, 40e9 / M_SQRT2},
                  {16 * MIB, 20e9},  {16 * M_SQRT2 * MIB, 20e9 / M_SQRT2},
                  {32 * MIB, 10e9},  {1e12, 10e9}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    const double s = tws_kernel_seconds_rereading(p, &work, 1, 1, expected[i].bytes);
    ck_assert_double_eq_tol(s * expected[i].rate / (4 * 128 * 128), 1, 1e-6);
    ck_assert_double_eq_tol(tws_kernel_seconds_rereading(p, &many, 1, 1, expected[i].bytes),
                            tws_kernel_seconds(p, &many, 1, 1) - (tws_kernel_seconds(p, &work, 1, 1) - s), 1e-12);
  }
  ck_assert_double_eq(tws_kernel_seconds_rereading(p, &work, 1, 1, 0), tws_kernel_seconds(p, &work, 1, 1));
  tws_profile_destroy(p);
}
END_TEST

/* A product of more rows than any that was measured with its weight in caches, of `many` times the seconds of that of
 * one row, which caches shorten from 1 s to 0.1 s: 0.9 s are saved, and 0.1 s at least remain. */
START_TEST(caches_leave_the_seconds_of_fewer_rows) {
  static const double many[] = {0.5, 1, 1.5, 10}, left[] = {0.1, 0.1, 0.6, 9.1};
  enum { MIB = 1 << 20 };
  tws_profile_builder *b = host_without_kernels();
  for (int64_t n = 32; n <= 256; n *= 2) {
    const tws_work one = linear(TWS_KERNEL_LINEAR, 1, n, n), more = linear(TWS_KERNEL_LINEAR, 64, n, n);
    const double s = 1e-4 * (double)(n * n);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &one, 1, 1, s, NULL), TWS_OK);
    ck_assert_int_eq(tws_profile_builder_rereading(b, &one, 1, 1, MIB, 0.1 * s, NULL), TWS_OK);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &more, 1, 1, many[_i] * s, NULL), TWS_OK);
  }
  tws_profile *p = finish(b);
  const tws_work more = linear(TWS_KERNEL_LINEAR, 64, 128, 128);
  ck_assert_double_eq_tol(tws_kernel_seconds_rereading(p, &more, 1, 1, MIB) / (1e-4 * 128 * 128), left[_i], 1e-6);
  tws_profile_destroy(p);
}
END_TEST

/* Products of many rows with weights in caches: a measured shape has its time, one of more rows than were measured
 * saves as many seconds as one of the most rows that were. */
START_TEST(short_prompts_whose_weights_caches_hold) {
  enum { MIB = 1 << 20 };
  tws_profile_builder *b = host_without_kernels();
  for (int64_t rows = 16; rows <= 256; rows *= 4)
    for (int64_t n = 32; n <= 256; n *= 2) {
      const tws_work work = linear(TWS_KERNEL_LINEAR, rows, n, n);
      const double flops_s = 2e-11 * (double)(rows * n * n), reading_s = 1e-9 * (double)(n * n);
      ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, flops_s + reading_s, NULL), TWS_OK);
      if (rows <= 64)
        ck_assert_int_eq(tws_profile_builder_rereading(b, &work, 1, 1, MIB, flops_s + reading_s / 4, NULL), TWS_OK);
    }
  tws_profile *p = finish(b);
  const double saved_s = 0.75e-9 * 128 * 128;
  for (int64_t rows = 16; rows <= 256; rows *= 4) {
    const tws_work work = linear(TWS_KERNEL_LINEAR, rows, 128, 128);
    const double cold_s = tws_kernel_seconds(p, &work, 1, 1);
    ck_assert_double_eq_tol(tws_kernel_seconds_rereading(p, &work, 1, 1, MIB), cold_s - saved_s, 1e-3 * cold_s);
    ck_assert_double_eq(tws_kernel_seconds_rereading(p, &work, 1, 1, 2 * MIB), cold_s);
  }
  tws_profile_destroy(p);
}
END_TEST

/* Seconds around the kernels of a pass: in proportion to the texts, and interpolated between vocabularies in the
 * logarithms; a profile without them has none. A choice that took no measurable time is not kept: a profile with it
 * could not be read. */
START_TEST(seconds_around_kernels) {
  const tws_pass_costs costs = {
      .start_s = 3e-8, .pass_s = 2e-6, .choice_count = 3, .choice = {{10, 0}, {100, 1e-6}, {400, 4e-6}}};
  for (int measured = 0; measured < 2; measured++) {
    tws_profile_builder *b = measured_machine(0.1);
    if (measured) tws_profile_builder_passes(b, &costs);
    tws_profile *p = finish(b);
    ck_assert_double_eq_tol(tws_profile_start_s(p), measured * 3e-8, 1e-15);
    ck_assert_double_eq_tol(tws_profile_pass_s(p, 3, 200), measured * (2e-6 + 3 * 2e-6), 1e-12);
    ck_assert_double_eq_tol(tws_profile_pass_s(p, 1, 4000), measured * (2e-6 + 40e-6), 1e-12);
    tws_profile_destroy(p);
  }
}
END_TEST

static const tws_cluster cluster = {.nodes = 4,
                                    .devices_per_node = 8,
                                    .intra = {1e11, 1e-6},
                                    .inter = {1e10, 5e-6},
                                    .nics_per_node = 4,
                                    .host_link = {1e10, 1e-5}};

START_TEST(rings) {
  double B = 1e9;
  /* one node, the formulas of the header */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, B, 1),
                          2 * 7 / 8.0 * B / 1e11 + 14 * 1e-6, 1e-12);
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_ALL_GATHER, 8, 8, B, 1),
                          7 / 8.0 * B / 1e11 + 7 * 1e-6, 1e-12);
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_BROADCAST, 8, 8, B, 1),
                          B / 1e11 + 7 * 1e-6, 1e-12);
  /* four nodes of eight ranks: their four NICs give 4e10 bytes/s, less than a device's own link, so the segments wait
   * for the NICs */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_REDUCE_SCATTER, 32, 8, B, 1),
                          31 / 32.0 * B / 4e10 + 5e-6, 1e-12);
  /* no bytes: the latency of 31 steps, of which four leave a node; many bytes: waits within the flow are negligible */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_REDUCE_SCATTER, 32, 8, 0, 1),
                          4 * 5e-6 + 27 * 1e-6, 1e-15);
  ck_assert_double_eq_tol(tws_collective_latency_s(&cluster, NULL, TWS_COLLECTIVE_REDUCE_SCATTER, 32, 8, B, 1), 5e-6,
                          1e-12);
  /* with one rank per node, eight such rings share a node's four NICs */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_ALL_GATHER, 4, 1, B, 1),
                          3 / 4.0 * B / 5e9 + 3 * 5e-6, 1e-12);
  ck_assert_double_eq(tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_ALL_REDUCE, 1, 1, B, 1), 0);
  ck_assert_double_eq_tol(tws_p2p_seconds(&cluster, NULL, 0, B), 5e-6 + B / 1e10, 1e-12);
  tws_cluster faster = cluster;
  faster.message_bandwidth = 4e10;
  ck_assert_double_eq_tol(tws_p2p_seconds(&faster, NULL, 0, B), 5e-6 + B / 4e10, 1e-12);
  ck_assert_double_eq(tws_p2p_seconds(&faster, NULL, 1, B), tws_p2p_seconds(&cluster, NULL, 1, B));
  tws_cluster paired = cluster; /* a group of three of eight paired devices has two sevenths of a port */
  paired.paired = 1;
  ck_assert_double_eq_tol(tws_collective_seconds(&paired, NULL, TWS_COLLECTIVE_ALL_GATHER, 3, 3, B, 1),
                          2 / 3.0 * B / (1e11 * 2 / 7) + 2 * 1e-6, 1e-12);
  ck_assert_double_eq_tol(tws_collective_seconds(&paired, NULL, TWS_COLLECTIVE_ALL_TO_ALL, 3, 3, B, 1),
                          2 / 3.0 * B / (1e11 * 2 / 7) + 1e-6, 1e-12);
  ck_assert_double_eq_tol(tws_p2p_seconds(&paired, NULL, 1, B), 1e-6 + B / (1e11 / 7), 1e-12);
  ck_assert_double_eq(tws_collective_seconds(&paired, NULL, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, B, 1),
                      tws_collective_seconds(&cluster, NULL, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, B, 1));
  for (int c = 0; c < TWS_COLLECTIVE_COUNT; c++) {
    double before = 0;
    for (double bytes = 0; bytes < 1e10; bytes = bytes * 3 + 1) {
      double s = tws_collective_seconds(&cluster, NULL, (tws_collective)c, 16, 8, bytes, 1);
      ck_assert_double_ge(s, before);
      before = s;
    }
  }
}
END_TEST

START_TEST(measured_collectives) {
  tws_profile *p = finish(measured_machine(0));
  for (int ranks = 2; ranks <= 4; ranks += 2) {
    double s = tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, ranks, 8, 65536, 1);
    ck_assert_double_eq_tol(s / (2e-5 * ranks + 65536 / 2e9), 1, 1e-8);
  }
  /* the time of three ranks lies between those of two and four; beyond the largest measured size the time grows with
   * the bytes */
  double two = 4e-5 + 65536 / 2e9, four = 8e-5 + 65536 / 2e9;
  double three = tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 3, 8, 65536, 1);
  ck_assert_double_gt(three, two);
  ck_assert_double_lt(three, four);
  double once = tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 2, 8, 1e9, 1);
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 2, 8, 2e9, 1) / once, 2, 1e-9);
  /* cases that were not measured follow the formulas: another collective, more ranks, several nodes */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_GATHER, 2, 8, 1e9, 1),
                          0.5 * 1e9 / 1e11 + 1e-6 + 1e-6, 1e-12);
  ck_assert_double_gt(tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, 1e9, 1), 0);
  ck_assert_double_gt(tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 2, 1, 1e9, 1), 1e9 / 1e10);
  /* each coalesced segment adds a start-up time */
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, p, TWS_COLLECTIVE_ALL_REDUCE, 2, 8, 65536, 11),
                          two + 10 * 1e-6, 1e-9);
  ck_assert_double_eq_tol(tws_p2p_seconds(&cluster, p, 1, 1e6), 1e-3, 1e-9);
  tws_profile_destroy(p);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("profile");
  TCase *test = tcase_create("profile");
  tcase_add_test(test, builtins);
  tcase_add_test(test, published_matrix_products);
  tcase_add_test(test, more_is_not_faster);
  tcase_add_test(test, exact_where_measured);
  tcase_add_test(test, substitute_curves);
  tcase_add_test(test, fp16_without_a_curve);
  tcase_add_test(test, interpolates);
  tcase_add_test(test, noise_is_pooled);
  tcase_add_test(test, variants_share_a_surface);
  tcase_add_test(test, casts_have_the_layouts_that_were_measured);
  tcase_add_test(test, few_rows_have_a_surface);
  tcase_add_test(test, two_in_one);
  tcase_add_test(test, costs_are_not_negative);
  tcase_add_test(test, attention_by_shape);
  tcase_add_test(test, weights_that_caches_hold);
  tcase_add_loop_test(test, caches_leave_the_seconds_of_fewer_rows, 0, 4);
  tcase_add_test(test, short_prompts_whose_weights_caches_hold);
  tcase_add_test(test, seconds_around_kernels);
  tcase_add_test(test, rings);
  tcase_add_test(test, measured_collectives);
  suite_add_tcase(suite, test);
  return run_suite(suite);
}
