#include <math.h>
#include <stdlib.h>
#include <gsl/gsl_errno.h>
#include "models/hardware/profile_internal.h"

static int by_bytes(const void *a, const void *b) {
  double x = ((const double *)a)[0], y = ((const double *)b)[0];
  return (x > y) - (x < y);
}

/* Replaces points with equal bytes by their geometric mean; returns the number of remaining points. */
static size_t merge_equal(double (*points)[2], size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n;) {
    double sum = 0;
    size_t j = i;
    for (; j < n && points[j][0] <= points[i][0]; j++) sum += log(points[j][1]);
    points[kept][0] = points[i][0];
    points[kept][1] = j - i == 1 ? points[i][1] : exp(sum / (double)(j - i));
    kept++;
    i = j;
  }
  return kept;
}

/* Replaces the logarithms y[n] by the closest non-decreasing sequence, by pooling adjacent violators (Barlow et al.,
 * 1972). weight[n]: scratch array. */
static void make_monotone(double *y, double *weight, size_t n) {
  size_t blocks = 0; /* number of pooled blocks; y[b] and weight[b]: mean and size of block b */
  for (size_t i = 0; i < n; i++) {
    double value = y[i], count = 1;
    while (blocks > 0 && y[blocks - 1] > value) {
      blocks--;
      value = (value * count + y[blocks] * weight[blocks]) / (count + weight[blocks]);
      count += weight[blocks];
    }
    y[blocks] = value;
    weight[blocks++] = count;
  }
  for (size_t i = n; blocks > 0; blocks--) { /* expand the blocks, last first */
    double value = y[blocks - 1];
    for (size_t left = (size_t)(weight[blocks - 1] + 0.5); left > 0; left--) y[--i] = value;
  }
}

tws_code tws_curve_create(tws_arena *arena, double (*points)[2], size_t n, tws_curve *curve, tws_error *err) {
  *curve = (tws_curve){0};
  qsort(points, n, sizeof *points, by_bytes);
  n = merge_equal(points, n);
  double *x = tws_arena_alloc(arena, n, sizeof *x), *y = tws_arena_alloc(arena, n, sizeof *y);
  double *scratch = tws_calloc(n, sizeof *scratch);
  if (x != NULL && y != NULL && scratch != NULL) {
    for (size_t i = 0; i < n; i++) x[i] = log(points[i][0]), y[i] = log(points[i][1]);
    make_monotone(y, scratch, n);
  }
  tws_free(scratch);
  if (x == NULL || y == NULL || scratch == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a curve");
  *curve = (tws_curve){.count = n, .x = x, .y = y};
  if (n < 2) return TWS_OK;
  gsl_error_handler_t *handler = gsl_set_error_handler_off(); /* GSL's default handler would call abort() */
  curve->interp = gsl_interp_alloc(n > 2 ? gsl_interp_steffen : gsl_interp_linear, n);
  int failed = curve->interp == NULL || gsl_interp_init(curve->interp, x, y, n) != GSL_SUCCESS;
  gsl_set_error_handler(handler);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "a measured curve of %zu points cannot be interpolated", n) : TWS_OK;
}

void tws_curve_destroy(tws_curve *curve) {
  if (curve->interp != NULL) gsl_interp_free(curve->interp);
  curve->interp = NULL;
}

double tws_curve_seconds(const tws_curve *curve, double bytes, double floor_s) {
  size_t last = curve->count - 1;
  double first_bytes = exp(curve->x[0]), first_s = exp(curve->y[0]);
  if (bytes <= first_bytes) {
    if (bytes < 0) bytes = 0;
    if (floor_s > first_s) floor_s = first_s;
    return floor_s + (first_s - floor_s) * (bytes / first_bytes);
  }
  double x = log(bytes);
  if (x >= curve->x[last]) return exp(curve->y[last] + x - curve->x[last]);
  return exp(gsl_interp_eval(curve->interp, curve->x, curve->y, x, NULL));
}
