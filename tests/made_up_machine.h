/* Helper of the suites of profiles: the measurements of a made-up machine whose law of costs is known. */
#ifndef TESTS_MADE_UP_MACHINE_H
#define TESTS_MADE_UP_MACHINE_H

#include <check.h>

#include "base/random.h"
#include "models/hardware/profile_build.h"

static inline tws_profile *load(const char *spec) {
  tws_profile *profile = NULL;
  tws_error err;
  ck_assert_msg(tws_profile_load(spec, &profile, &err) == TWS_OK, "%s: %s", spec, err.message);
  return profile;
}

static inline tws_work linear(tws_kernel kernel, int64_t m, int64_t n, int64_t k) {
  return (tws_work){.code = (uint8_t)kernel, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {m, n, k}};
}
static inline tws_work sized(tws_kernel kernel, int64_t d0, int64_t d1) {
  return (tws_work){.code = (uint8_t)kernel, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {d0, d1}};
}

/* Returns the seconds of a product on a made-up machine: 1e11 FLOP/s, packing of the weight at 2e10 elements/s, 3 us to
 * start, and a relative noise of `noise`. */
static inline double machine_seconds(int64_t m, int64_t n, int64_t k, double noise, uint64_t i) {
  double seconds = 2.0 * (double)m * (double)n * (double)k / 1e11 + (double)n * (double)k / 2e10 + 3e-6;
  return seconds * (1 + noise * (2 * tws_random_uniform(3, 5, i) - 1));
}

static const int64_t token_sizes[] = {16, 64, 256, 1024}, widths[] = {64, 192, 768, 3072};

static inline tws_profile_builder *measured_machine(double noise) {
  tws_profile_builder *b = tws_profile_builder_create("made-up", TWS_BACKEND_HOST);
  tws_profile_builder_provenance(b, "made up \"for\" a test\\");
  tws_profile_builder_detail(b, "cpu", "line\nbreak");
  tws_profile_builder_node(b, 4, 16e9, 1e6);
  tws_profile_builder_peak(b, TWS_F32, 1e11);
  tws_profile_builder_bandwidth(b, 1e10, 2e10);
  tws_profile_builder_launch(b, 1e-6);
  uint64_t i = 0;
  tws_error err;
  for (int t = 0; t < 4; t++) {
    for (int n = 0; n < 4; n++) {
      for (int k = 0; k < 4; k++, i++) {
        tws_work work = linear(TWS_KERNEL_LINEAR, token_sizes[t], widths[n], widths[k]);
        double s = machine_seconds(token_sizes[t], widths[n], widths[k], noise, i);
        ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, &err), TWS_OK);
        ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 4, 1.5 * s, &err), TWS_OK);
      }
    }
  }
  for (int64_t count = 1 << 10; count <= 1 << 22; count *= 4) {
    tws_work work = sized(TWS_KERNEL_GELU, count, 0); /* a cache that ends at 1 MiB */
    double bytes = 8.0 * (double)count, s = 1e-6 + bytes / (bytes < 1 << 20 ? 5e10 : 1e10);
    ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, s, &err), TWS_OK);
  }
  tws_work clip = sized(TWS_KERNEL_CLIP, 0, 0);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &clip, 1, 1, 5e-7, &err), TWS_OK);
  for (int ranks = 2; ranks <= 4; ranks += 2) {
    for (double bytes = 1024; bytes < 1e8; bytes *= 8) {
      double s = 2e-5 * ranks + bytes / 2e9;
      ck_assert_int_eq(tws_profile_builder_collective(b, TWS_COLLECTIVE_ALL_REDUCE, ranks, bytes, s, &err), TWS_OK);
    }
  }
  ck_assert_int_eq(tws_profile_builder_p2p(b, 1000, 1e-5, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_builder_p2p(b, 1e6, 1e-3, &err), TWS_OK);
  return b;
}

static inline tws_profile *finish(tws_profile_builder *b) {
  tws_profile *profile = NULL;
  tws_error err;
  ck_assert_msg(tws_profile_builder_finish(b, &profile, &err) == TWS_OK, "%s", err.message);
  tws_profile_builder_destroy(b);
  return profile;
}

#endif
