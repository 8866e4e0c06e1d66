#include <math.h>
#include <string.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit.h>
#include "models/hardware/profile_internal.h"

/* Distance in natural logarithms of sizes (a factor of about 4 in one size) beyond which the fit outweighs the nearest
 * sample. */
static const double reach = 1.4;

static double distance2(const tws_shape *a, const tws_shape *b) {
  double sum = 0;
  for (int i = 0; i < TWS_SURFACE_DIMS; i++) {
    double d = a->log_size[i] - b->log_size[i];
    sum += d * d;
  }
  return sum;
}

static double fitted(const tws_surface *surface, const tws_shape *shape) {
  double sum = 0;
  for (int j = 0; j < TWS_SURFACE_COSTS; j++) sum += surface->coefficient[j] * shape->cost[j];
  return sum;
}

/* Solves the least-squares problem sum_j c_j cost_j / seconds = 1 over the costs in `use`. Costs are scaled so that the
 * largest ratio is 1, because flops and bytes differ by many orders of magnitude. Returns 0 on success. */
static int solve_patch(const tws_surface *surface, const int *use, int used, double *coefficient) {
  size_t n = surface->count, p = (size_t)used;
  gsl_matrix *x = gsl_matrix_alloc(n, p), *covariance = gsl_matrix_alloc(p, p);
  gsl_vector *y = gsl_vector_alloc(n), *c = gsl_vector_alloc(p);
  gsl_multifit_linear_workspace *work = gsl_multifit_linear_alloc(n, p);
  int failed = x == NULL || covariance == NULL || y == NULL || c == NULL || work == NULL;
  if (!failed) {
    double scale[TWS_SURFACE_COSTS], chi = 0;
    gsl_vector_set_all(y, 1);
    for (size_t j = 0; j < p; j++) {
      double largest = 0;
      for (size_t i = 0; i < n; i++) largest = fmax(largest, surface->shapes[i].cost[use[j]] / surface->seconds[i]);
      scale[j] = largest > 0 ? largest : 1;
      for (size_t i = 0; i < n; i++) {
        gsl_matrix_set(x, i, j, surface->shapes[i].cost[use[j]] / surface->seconds[i] / scale[j]);
      }
    }
    size_t rank = 0;
    failed = gsl_multifit_linear_tsvd(x, y, 1e-9, c, covariance, &chi, &rank, work) != GSL_SUCCESS;
    for (size_t j = 0; j < p && !failed; j++) coefficient[j] = gsl_vector_get(c, j) / scale[j];
  }
  gsl_multifit_linear_free(work);
  gsl_vector_free(c);
  gsl_vector_free(y);
  gsl_matrix_free(covariance);
  gsl_matrix_free(x);
  return failed;
}

/* Fits non-negative coefficients, because a cost never makes work faster: leaves out the most negative cost until none
 * is negative. */
static int fit_surface(tws_surface *surface) {
  size_t n = surface->count;
  int limit = n < 3 ? 1 : n < 6 ? 2 : n < 10 ? 3 : TWS_SURFACE_COSTS;
  int use[TWS_SURFACE_COSTS], used = 0;
  for (int j = 0; j < TWS_SURFACE_COSTS && used < limit; j++) {
    double total = 0;
    for (size_t i = 0; i < n; i++) total += surface->shapes[i].cost[j];
    if (total > 0) use[used++] = j;
  }
  while (used > 0) {
    double coefficient[TWS_SURFACE_COSTS];
    if (solve_patch(surface, use, used, coefficient) != 0) return -1;
    int worst = -1;
    double most = 0;
    for (int j = 0; j < used; j++) {
      double share = coefficient[j] * surface->shapes[n / 2].cost[use[j]];
      if (coefficient[j] < 0 && (worst < 0 || share < most)) worst = j, most = share;
    }
    if (worst < 0) {
      memset(surface->coefficient, 0, sizeof surface->coefficient);
      for (int j = 0; j < used; j++) surface->coefficient[use[j]] = coefficient[j];
      return 0;
    }
    memmove(&use[worst], &use[worst + 1], (size_t)(used - worst - 1) * sizeof use[0]);
    used--;
  }
  return -1;
}

/* Copies the points; equal shapes are averaged. */
static void gather_samples(tws_surface *surface, const tws_shape *shapes, double (*samples)[2], size_t n) {
  for (size_t i = 0; i < n; i++) {
    size_t same = 0;
    while (same < surface->count && distance2(&surface->shapes[same], &shapes[i]) > 0) same++;
    if (same == surface->count) {
      surface->shapes[same] = shapes[i];
      surface->seconds[same] = samples[i][1];
      surface->residual[same] = 1; /* number of samples averaged, until the residuals are computed */
      surface->count++;
    } else {
      double count = surface->residual[same]++;
      surface->seconds[same] = exp((log(surface->seconds[same]) * count + log(samples[i][1])) / (count + 1));
    }
  }
}

tws_code tws_surface_create(tws_arena *arena, const tws_shape *shapes, double (*samples)[2], size_t n,
                            tws_surface *surface, tws_error *err) {
  *surface = (tws_surface){0};
  surface->shapes = tws_arena_alloc(arena, n, sizeof *surface->shapes);
  surface->seconds = tws_arena_alloc(arena, n, sizeof *surface->seconds);
  surface->residual = tws_arena_alloc(arena, n, sizeof *surface->residual);
  if (surface->shapes == NULL || surface->seconds == NULL || surface->residual == NULL) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a measured kernel");
  }
  gather_samples(surface, shapes, samples, n);
  gsl_error_handler_t *handler = gsl_set_error_handler_off();
  int failed = fit_surface(surface);
  gsl_set_error_handler(handler);
  if (failed) return tws_fail(err, TWS_INVALID, "measure more shapes", "the samples of a kernel cannot be fitted");
  for (size_t i = 0; i < surface->count; i++) {
    surface->residual[i] = log(surface->seconds[i] / fitted(surface, &surface->shapes[i]));
  }
  return TWS_OK;
}

double tws_surface_seconds(const tws_surface *surface, const tws_shape *shape) {
  double weights = 1 / (reach * reach * reach * reach), sum = 0;
  for (size_t i = 0; i < surface->count; i++) {
    double d2 = distance2(&surface->shapes[i], shape);
    if (d2 <= 0) return surface->seconds[i];
    double weight = 1 / (d2 * d2);
    weights += weight;
    sum += weight * surface->residual[i];
  }
  return fitted(surface, shape) * exp(sum / weights);
}
