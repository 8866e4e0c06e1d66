#include "autotune/next_trial.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <gsl/gsl_randist.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"

/* ---- orders ---- */

static int compare(double a, double b) {
  return a < b ? -1 : a > b;
}

static int by_space(const void *left, const void *right) {
  const tws_variant *a = (*(const tws_trial_point *const *)left)->variant,
                    *b = (*(const tws_trial_point *const *)right)->variant;
  const double x[] = {a->stage,
                      (double)a->recompute,
                      a->ranks,
                      a->threads,
                      a->pipeline,
                      a->tensor,
                      a->sequence,
                      (double)a->schedule.kind,
                      a->schedule.virtual_stages,
                      (double)a->sequence_parallel,
                      a->expert,
                      a->capacity,
                      (double)a->micro,
                      (double)a->accumulation};
  const double y[] = {b->stage,
                      (double)b->recompute,
                      b->ranks,
                      b->threads,
                      b->pipeline,
                      b->tensor,
                      b->sequence,
                      (double)b->schedule.kind,
                      b->schedule.virtual_stages,
                      (double)b->sequence_parallel,
                      b->expert,
                      b->capacity,
                      (double)b->micro,
                      (double)b->accumulation};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++)
    if (x[i] != y[i]) return compare(x[i], y[i]);
  /* points that are equal in these dimensions need some fixed order, here that of their predictions */
  return compare(-(*(const tws_trial_point *const *)left)->predicted,
                 -(*(const tws_trial_point *const *)right)->predicted);
}

static tws_code nth_of_space(const tws_trial_point *points, int count, int n, int *next, tws_error *err) {
  const tws_trial_point **order = tws_calloc((size_t)count, sizeof *order);
  if (!order) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < count; i++) order[i] = &points[i];
  qsort(order, (size_t)count, sizeof *order, by_space);
  *next = (int)(order[n] - points);
  tws_free(order);
  return TWS_OK;
}

/* ---- Gaussian process ---- */

enum { FEATURES = 9 };

/* Sets x to the coordinates of a configuration, in units of the length scale of the Gaussian process's kernel: doubling
 * a batch or an axis is a distance of half a unit, the next ZeRO stage of one unit. */
static void features_of(const tws_variant *v, double x[FEATURES]) {
  const double logs[] = {(double)v->micro, (double)v->accumulation, v->ranks, v->threads, v->pipeline, v->tensor,
                         v->sequence};
  x[0] = v->stage;
  x[1] = v->recompute;
  for (int i = 0; i < 7; i++) x[2 + i] = 0.5 * log2(fmax(logs[i], 1));
}

static double kernel_of(const tws_variant *a, const tws_variant *b) {
  double x[FEATURES], y[FEATURES], square = 0;
  features_of(a, x);
  features_of(b, y);
  for (int i = 0; i < FEATURES; i++) square += (x[i] - y[i]) * (x[i] - y[i]);
  return exp(-0.5 * square);
}

/* A Gaussian process for the error of predictions, y = ln(measured / predicted throughput). */
typedef struct surrogate {
  const tws_trial_point *points;
  const int *tried;
  int count;
  gsl_matrix *factor; /* Cholesky factor of the kernel matrix plus the measurement noise */
  gsl_vector *weight, *solved, *along;
  double mean, variance, best; /* best: ln of the largest measured throughput */
} surrogate;

/* noise: assumed relative standard deviation of a configuration's step time from run to run; least_deviation: smallest
 * standard deviation of the process. */
static const double noise = 0.02, least_deviation = 0.05;
/* A failed trial counts with the worst measured error plus this logarithm, so that similar configurations are not tried
 * next. */
static const double failed = -0.7;

static double off_by(const surrogate *s, int trial, double worst) {
  const tws_trial_point *p = &s->points[s->tried[trial]];
  return p->measured > 0 ? log(p->measured / p->predicted) : worst + failed;
}

static void read_trials(surrogate *s, double *y) {
  double sum = 0, worst = 0;
  int measured = 0;
  s->best = -INFINITY;
  for (int i = 0; i < s->count; i++) {
    const tws_trial_point *p = &s->points[s->tried[i]];
    if (!(p->measured > 0)) continue;
    worst = measured == 0 ? off_by(s, i, 0) : fmin(worst, off_by(s, i, 0));
    sum += off_by(s, i, 0);
    s->best = fmax(s->best, log(p->measured));
    measured++;
  }
  s->mean = measured > 0 ? sum / measured : 0;
  s->variance = least_deviation * least_deviation;
  for (int i = 0; i < s->count; i++) {
    y[i] = off_by(s, i, worst) - s->mean;
    s->variance = fmax(s->variance, y[i] * y[i] / 2);
  }
}

static tws_code fit(surrogate *s, tws_error *err) {
  const size_t n = (size_t)s->count;
  s->factor = gsl_matrix_alloc(n, n);
  s->weight = gsl_vector_alloc(n);
  s->solved = gsl_vector_alloc(n);
  s->along = gsl_vector_alloc(n);
  if (!s->factor || !s->weight || !s->solved || !s->along) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  read_trials(s, s->solved->data);
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < n; j++) {
      const double k = s->variance * kernel_of(s->points[s->tried[i]].variant, s->points[s->tried[j]].variant);
      gsl_matrix_set(s->factor, i, j, k + (i == j ? noise * noise : 0));
    }
  if (gsl_linalg_cholesky_decomp1(s->factor) != GSL_SUCCESS)
    return tws_fail(err, TWS_INTERNAL, NULL, "the kernel of the tuner's model is not positive definite");
  gsl_linalg_cholesky_solve(s->factor, s->solved, s->weight);
  return TWS_OK;
}

/* Returns the expected improvement of the logarithm of the throughput over the best measurement. */
static double improvement(const surrogate *s, const tws_trial_point *p) {
  double mean = s->mean, variance = s->variance;
  for (int i = 0; i < s->count; i++) {
    const double k = s->variance * kernel_of(p->variant, s->points[s->tried[i]].variant);
    gsl_vector_set(s->along, (size_t)i, k);
    mean += k * gsl_vector_get(s->weight, (size_t)i);
  }
  gsl_linalg_cholesky_solve(s->factor, s->along, s->solved);
  for (int i = 0; i < s->count; i++)
    variance -= gsl_vector_get(s->along, (size_t)i) * gsl_vector_get(s->solved, (size_t)i);
  const double deviation = sqrt(fmax(variance, 1e-12)), over = log(p->predicted) + mean - s->best, z = over / deviation;
  return over * gsl_cdf_ugaussian_P(z) + deviation * gsl_ran_ugaussian_pdf(z);
}

static void free_surrogate(surrogate *s) {
  if (s->factor) gsl_matrix_free(s->factor);
  if (s->weight) gsl_vector_free(s->weight);
  if (s->solved) gsl_vector_free(s->solved);
  if (s->along) gsl_vector_free(s->along);
}

static int was_tried(const int *tried, int count, int point) {
  for (int i = 0; i < count; i++)
    if (tried[i] == point) return 1;
  return 0;
}

static tws_code most_promising(const tws_trial_point *points, int count, const int *tried, int tried_count, int *next,
                               tws_error *err) {
  surrogate s = {.points = points, .tried = tried, .count = tried_count};
  int any = 0;
  for (int i = 0; i < tried_count; i++) any |= points[tried[i]].measured > 0;
  gsl_error_handler_t *handler = gsl_set_error_handler_off();
  tws_code code = any ? fit(&s, err) : TWS_OK;
  double best = -INFINITY;
  for (int i = 0; i < count && code == TWS_OK; i++) {
    if (was_tried(tried, tried_count, i)) continue;
    const double value = any ? improvement(&s, &points[i]) : points[i].predicted;
    if (value > best || *next < 0) {
      best = value;
      *next = i;
    }
  }
  gsl_set_error_handler(handler);
  free_surrogate(&s);
  return code;
}

static int has_ended(const tws_trial_rule *rule, const tws_trial_point *points, int count, const int *tried,
                     int tried_count) {
  int best = -1;
  for (int i = 0; i < tried_count; i++)
    if (points[tried[i]].measured > (best < 0 ? 0 : points[tried[best]].measured)) best = i;
  if (tried_count >= count || tried_count >= rule->trials) return 1;
  return rule->early_stopping > 0 && tried_count >= best + 1 + rule->early_stopping;
}

tws_code tws_next_trial(const tws_trial_rule *rule, const tws_trial_point *points, int count, const int *tried,
                        int tried_count, int *next, tws_error *err) {
  *next = -1;
  if (has_ended(rule, points, count, tried, tried_count)) return TWS_OK;
  if (rule->tuner == TWS_TUNER_GRIDSEARCH) return nth_of_space(points, count, tried_count, next, err);
  if (rule->tuner == TWS_TUNER_RANDOM) {
    *next = (int)tws_random_permute(rule->seed, (uint64_t)count, (uint64_t)tried_count);
    return TWS_OK;
  }
  return most_promising(points, count, tried, tried_count, next, err);
}
