/* Updates of the optimizers of config/optimizers.def, in float64; included by tests/oracle.h after its helpers. */
#ifndef TESTS_ORACLE_OPTIMIZERS_H
#define TESTS_ORACLE_OPTIMIZERS_H

#include <math.h>

#include "models/kernel.h"

static inline void oracle_adamw(const tws_work *w, double **o, int count) {
  const double *f = w->f, lr = o[4][TWS_HYPER_LR], clip = o[5][TWS_METRIC_CLIP];
  for (int64_t i = 0; i < w->d[0] && clip != 0; ++i) {
    const double decay = f[1] * o[0][i], g = o[3][i] * clip + (w->flags & TWS_L2 ? decay : 0);
    o[1][i] = o[4][TWS_HYPER_BETA1] * o[1][i] + o[4][TWS_HYPER_REST1] * g;
    o[2][i] = o[4][TWS_HYPER_BETA2] * o[2][i] + o[4][TWS_HYPER_REST2] * g * g;
    const double m = o[1][i] / o[4][TWS_HYPER_BIAS1], v = o[2][i] / o[4][TWS_HYPER_BIAS2];
    o[0][i] -= lr * (m / (sqrt(v) + f[0]) + (w->flags & TWS_L2 ? 0 : decay));
    if (count > 6) o[6][i] = o[0][i];
  }
}

static inline void oracle_lion(const tws_work *w, double **o, int count) {
  const double lr = o[3][TWS_HYPER_LR], clip = o[4][TWS_METRIC_CLIP];
  for (int64_t i = 0; i < w->d[0] && clip != 0; ++i) {
    const double g = o[2][i] * clip, c = o[3][TWS_HYPER_BETA1] * o[1][i] + o[3][TWS_HYPER_REST1] * g;
    o[1][i] = o[3][TWS_HYPER_BETA2] * o[1][i] + o[3][TWS_HYPER_REST2] * g;
    o[0][i] -= lr * ((c > 0) - (c < 0) + w->f[0] * o[0][i]);
    if (count > 5) o[5][i] = o[0][i];
  }
}

static inline void oracle_adagrad(const tws_work *w, double **o, int count) {
  const double lr = o[3][TWS_HYPER_LR], clip = o[4][TWS_METRIC_CLIP];
  for (int64_t i = 0; i < w->d[0] && clip != 0; ++i) {
    const double g = o[2][i] * clip + w->f[1] * o[0][i];
    o[1][i] += g * g;
    o[0][i] -= lr * g / (sqrt(o[1][i]) + w->f[0]);
    if (count > 5) o[5][i] = o[0][i];
  }
}

static inline void oracle_sgd(const tws_work *w, double **o, int count) {
  const double *f = w->f, fresh = f[1] != 0 && o[3][TWS_HYPER_STEP] != 1 ? 1 - f[2] : 1;
  for (int64_t i = 0; i < w->d[0] && o[4][TWS_METRIC_CLIP] != 0; ++i) {
    const double g = o[2][i] * o[4][TWS_METRIC_CLIP] + f[0] * o[0][i];
    o[1][i] = f[1] * o[1][i] + fresh * g;
    o[0][i] -= o[3][TWS_HYPER_LR] * (f[3] != 0 ? g + f[1] * o[1][i] : o[1][i]);
    if (count > 5) o[5][i] = o[0][i];
  }
}

static inline void oracle_muon(const tws_work *w, double **o, int count) {
  for (int64_t i = 0; i < w->d[0] && o[4][TWS_METRIC_CLIP] != 0; ++i) {
    o[0][i] -= o[3][TWS_HYPER_LR] * (o[2][i] + w->f[0] * o[0][i]);
    if (count > 5) o[5][i] = o[0][i];
  }
}

static inline void oracle_muon_momentum(const tws_work *w, double **o) {
  const double clip = o[2][TWS_METRIC_CLIP], momentum = w->f[0];
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const double g = (1 - momentum) * clip * o[1][i];
    if (clip != 0) o[0][i] = momentum * o[0][i] + g;
    o[3][i] = clip != 0 ? momentum * o[0][i] + g : 0;
  }
}

static inline void oracle_unit_norm(const tws_work *w, double **o) {
  double sum = 0;
  for (int64_t i = 0; i < w->d[0]; ++i) sum += o[0][i] * o[0][i];
  for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = o[0][i] / (sqrt(sum) + 1e-7);
}

static inline void oracle_newton_schulz(const tws_work *w, double **o) {
  for (int64_t i = 0; i < w->d[0] * w->d[1]; ++i)
    o[1][i] = w->f[0] * ((i / w->d[1] == i % w->d[1] ? 3.4445 : 0) - 4.7750 * o[0][i] + 2.0315 * o[1][i]);
}

/* Computes the moments m and v, and returns the change of the weight before it is scaled. */
static inline double oracle_lamb_change(const tws_work *w, double **o, int64_t i, double *m, double *v) {
  const double g = o[3][i] * o[5][TWS_METRIC_CLIP];
  *m = o[4][TWS_HYPER_BETA1] * o[1][i] + o[4][TWS_HYPER_REST1] * g;
  *v = o[4][TWS_HYPER_BETA2] * o[2][i] + o[4][TWS_HYPER_REST2] * g * g;
  return *m / (sqrt(*v) + w->f[0]) + w->f[1] * o[0][i];
}

static inline void oracle_lamb_norms(const tws_work *w, const double *a, double **o) {
  double m, v;
  o[6][0] = o[6][1] = 0;
  for (int64_t i = 0; i < w->d[0] && o[5][TWS_METRIC_CLIP] != 0; ++i) {
    const double change = oracle_lamb_change(w, o, i, &m, &v);
    o[6][0] += a[0] * o[0][i] * o[0][i];
    o[6][1] += a[0] * change * change;
  }
}

static inline void oracle_lamb(const tws_work *w, double **o, int count) {
  const double *norms = o[6], step = o[4][TWS_HYPER_LR] * sqrt(o[4][TWS_HYPER_BIAS2]) / o[4][TWS_HYPER_BIAS1];
  const double ratio = norms[0] > 0 && norms[1] > 0 ? fmin(fmax(sqrt(norms[0] / norms[1]), w->f[3]), w->f[2]) : 1;
  for (int64_t i = 0; i < w->d[0] && o[5][TWS_METRIC_CLIP] != 0; ++i) {
    double m, v;
    const double change = oracle_lamb_change(w, o, i, &m, &v);
    o[0][i] -= step * ratio * change;
    o[1][i] = m, o[2][i] = v;
    if (count > 7) o[7][i] = o[0][i];
  }
}

#endif
