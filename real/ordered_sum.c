#include <string.h>
#include "real/shared_comm.h"

/* Constant block lengths let the compiler vectorize the loops; a block of every source fits into the first-level
 * cache. */
enum { BLOCK = 1024 };

static void add_f32(float *restrict sum, const float *restrict x, int n) {
  if (n == BLOCK) {
    for (int i = 0; i < BLOCK; i++) sum[i] += x[i];
  } else {
    for (int i = 0; i < n; i++) sum[i] += x[i];
  }
}

static void add_bf16(float *restrict sum, const unsigned short *restrict x, int n) {
  if (n == BLOCK) {
    for (int i = 0; i < BLOCK; i++) sum[i] += tws_from_bf16(x[i]);
  } else {
    for (int i = 0; i < n; i++) sum[i] += tws_from_bf16(x[i]);
  }
}

static void add_f16(float *restrict sum, const unsigned short *restrict x, int n) {
  if (n == BLOCK) {
    for (int i = 0; i < BLOCK; i++) sum[i] += tws_from_f16(x[i]);
  } else {
    for (int i = 0; i < n; i++) sum[i] += tws_from_f16(x[i]);
  }
}

static void sum_f32(const void *const *from, int sources, uint64_t first, int n, float *sum) {
  memcpy(sum, (const float *)from[0] + first, (size_t)n * sizeof *sum);
  for (int s = 1; s < sources; s++) add_f32(sum, (const float *)from[s] + first, n);
}

static void sum_bf16(const void *const *from, int sources, uint64_t first, int n, unsigned short *rounded) {
  float sum[BLOCK] = {0};
  for (int s = 0; s < sources; s++) add_bf16(sum, (const unsigned short *)from[s] + first, n);
  if (n == BLOCK) {
    for (int i = 0; i < BLOCK; i++) rounded[i] = tws_to_bf16(sum[i]);
  } else {
    for (int i = 0; i < n; i++) rounded[i] = tws_to_bf16(sum[i]);
  }
}

static void sum_f16(const void *const *from, int sources, uint64_t first, int n, unsigned short *rounded) {
  float sum[BLOCK] = {0};
  for (int s = 0; s < sources; s++) add_f16(sum, (const unsigned short *)from[s] + first, n);
  for (int i = 0; i < n; i++) rounded[i] = tws_to_f16(sum[i]);
}

static void sum_f64(const void *const *from, int sources, uint64_t first, int n, double *sum) {
  memcpy(sum, (const double *)from[0] + first, (size_t)n * sizeof *sum);
  for (int s = 1; s < sources; s++) {
    const double *x = (const double *)from[s] + first;
    for (int i = 0; i < n; i++) sum[i] += x[i];
  }
}

void tws_ordered_sum(tws_dtype dtype, const void *const *from, int sources, void *const *to, int destinations,
                     uint64_t count) {
  union {
    float f32[BLOCK];
    unsigned short half[BLOCK];
    double f64[BLOCK];
  } block;
  size_t size = tws_dtype_bytes(dtype);
  for (uint64_t first = 0; first < count; first += BLOCK) {
    int n = count - first < BLOCK ? (int)(count - first) : BLOCK;
    if (dtype == TWS_F32)
      sum_f32(from, sources, first, n, block.f32);
    else if (dtype == TWS_BF16)
      sum_bf16(from, sources, first, n, block.half);
    else if (dtype == TWS_F16)
      sum_f16(from, sources, first, n, block.half);
    else
      sum_f64(from, sources, first, n, block.f64);
    for (int d = 0; d < destinations; d++) memcpy((char *)to[d] + first * size, &block, (size_t)n * size);
  }
}

/* Adds sources to a partial sum (`carry`; NULL: none) in the wide type. 16-bit types start from zero, as in
 * tws_ordered_sum(), so that the sum of two negative zeros is +0. */
void tws_ordered_sum_part(tws_dtype dtype, const void *carry, const void *const *from, int sources, void *wide,
                          uint64_t count) {
  const size_t size = tws_dtype_bytes(dtype);
  for (uint64_t first = 0; first < count; first += BLOCK) {
    const int n = count - first < BLOCK ? (int)(count - first) : BLOCK;
    if (dtype == TWS_F64) {
      double *sum = (double *)wide + first;
      const double *old = carry ? (const double *)carry + first : (const double *)from[0] + first;
      if (sum != old) memcpy(sum, old, (size_t)n * sizeof *sum);
      for (int s = carry ? 0 : 1; s < sources; s++) {
        const double *x = (const double *)from[s] + first;
        for (int i = 0; i < n; i++) sum[i] += x[i];
      }
      continue;
    }
    float *sum = (float *)wide + first;
    const float *old = carry ? (const float *)carry + first : NULL;
    int s = 0;
    if (!old && dtype == TWS_F32) old = (const float *)from[s++] + first;
    if (!old) memset(sum, 0, (size_t)n * sizeof *sum);
    if (old && sum != old) memcpy(sum, old, (size_t)n * sizeof *sum);
    for (; s < sources; s++) {
      const void *x = (const char *)from[s] + first * size;
      if (dtype == TWS_F32)
        add_f32(sum, x, n);
      else if (dtype == TWS_BF16)
        add_bf16(sum, x, n);
      else
        add_f16(sum, x, n);
    }
  }
}

void tws_ordered_sum_round(tws_dtype dtype, const void *wide, void *to, uint64_t count) {
  const float *sum = wide;
  unsigned short *rounded = to;
  if (dtype == TWS_F32 || dtype == TWS_F64) {
    memcpy(to, wide, count * tws_ordered_sum_wide(dtype));
  } else if (dtype == TWS_BF16) {
    for (uint64_t i = 0; i < count; i++) rounded[i] = tws_to_bf16(sum[i]);
  } else {
    for (uint64_t i = 0; i < count; i++) rounded[i] = tws_to_f16(sum[i]);
  }
}
