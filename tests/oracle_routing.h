/* The kernels of experts in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_ROUTING_H
#define TWS_TESTS_ORACLE_ROUTING_H

#include "models/routing.h"

static inline uint32_t oracle_word(const double *a, const double *hyper, int what, int64_t token, int64_t count,
                                   int64_t index) {
  uint32_t word[4], step;
  const float number = (float)hyper[TWS_HYPER_STEP];
  memcpy(&step, &number, sizeof step);
  tws_philox((uint64_t)a[0], tws_routing_stream(step, what), tws_routing_block((int64_t)a[1] + token, count, index),
             word);
  return word[index % TWS_ROUTING_GROUP];
}

/* Returns 1 if random numbers are drawn: the hyperparameters are then one more operand after the routed ones. */
static inline int oracle_router_draws(const tws_work *w) {
  return w->f[0] == TWS_KEEPS_RANDOM || w->f[3] > 0;
}

/* Returns the score by which groups of experts are compared. */
static inline double oracle_group(const tws_work *w, const double *x, int64_t group) {
  const int64_t each = w->d[1] / w->d[4];
  double first = -INFINITY, second = -INFINITY;
  for (int64_t e = group * each; e < (group + 1) * each; ++e) {
    second = fmax(second, fmin(first, x[e]));
    first = fmax(first, x[e]);
  }
  return w->flags & TWS_SIGMOID ? first + (each > 1 ? second : 0) : first;
}

/* Returns 1 if an expert's group is one of those kept. */
static inline int oracle_in_group(const tws_work *w, const double *x, int64_t expert) {
  int64_t before = 0;
  if (w->d[4] == 0) return 1;
  const int64_t group = expert / (w->d[1] / w->d[4]);
  for (int64_t g = 0; g < w->d[4]; ++g)
    before += oracle_group(w, x, g) > oracle_group(w, x, group) ||
              (oracle_group(w, x, g) == oracle_group(w, x, group) && g < group);
  return before < w->d[5];
}

/* Chooses the experts of each token, in the order of its choices. */
static inline void oracle_choose(const tws_work *w, const double *a, double **o, int64_t *chosen) {
  const int64_t experts = w->d[1], choices = w->d[2];
  const double *bias = w->flags & TWS_BIAS ? o[7 + oracle_router_draws(w)] : NULL;
  double *sums = w->flags & TWS_Z_LOSS ? o[7 + oracle_router_draws(w) + (bias != NULL)] : NULL;
  double scores[1024]; /* the scores by which experts are chosen, rounded to float32 */
  for (int64_t t = 0; t < w->d[0]; ++t) {
    double largest = o[0][t * experts], sum = 0;
    for (int64_t e = 1; e < experts; ++e) largest = fmax(largest, o[0][t * experts + e]);
    for (int64_t e = 0; e < experts; ++e) sum += o[1][t * experts + e] = exp(o[0][t * experts + e] - largest);
    for (int64_t e = 0; e < experts; ++e) o[1][t * experts + e] /= sum;
    for (int64_t e = 0; e < experts && w->flags & TWS_SIGMOID; ++e)
      o[1][t * experts + e] = 1 / (1 + exp(-o[0][t * experts + e]));
    if (sums) sums[t] = largest + log(sum);
    for (int64_t e = 0; e < experts; ++e) {
      const int by_logit = !bias && (w->d[4] == 0 || !(w->flags & TWS_SIGMOID));
      scores[e] = by_logit ? o[0][t * experts + e] : (double)(float)o[1][t * experts + e];
      if (bias) scores[e] = (double)((float)scores[e] + (float)bias[e]);
    }
    for (int64_t c = 0; c < choices; ++c) {
      double best = 0;
      chosen[t * choices + c] = -1;
      for (int64_t e = 0; e < experts; ++e) {
        int before = !oracle_in_group(w, scores, e);
        for (int64_t k = 0; k < c; ++k) before |= chosen[t * choices + k] == e;
        double x = scores[e];
        if (w->f[3] > 0 && (double)(c + 1) >= w->f[3])
          x -= log(-log((double)tws_routing_uniform(oracle_word(a, o[7], TWS_ROUTING_NOISE, t, experts, e))));
        if (before || (chosen[t * choices + c] >= 0 && !(x > best))) continue;
        chosen[t * choices + c] = e;
        best = x;
      }
    }
  }
}

/* Returns 1 if route i precedes route k in the same expert's slots: by score, then by order. */
static inline int oracle_is_before(const tws_work *w, const double *a, double **o, const int64_t *order, int64_t i,
                                   int64_t k, int64_t expert) {
  const int64_t experts = w->d[1], choices = w->d[2];
  double mine = 0, other = 0;
  if (w->f[0] == TWS_KEEPS_PROBABLE) { /* as float32 tells them apart */
    mine = (double)(float)o[1][i / choices * experts + expert];
    other = (double)(float)o[1][k / choices * experts + expert];
  } else if (w->f[0] == TWS_KEEPS_RANDOM) {
    mine = oracle_word(a, o[7], TWS_ROUTING_KEEPS, i / choices, choices, i % choices);
    other = oracle_word(a, o[7], TWS_ROUTING_KEEPS, k / choices, choices, k % choices);
  }
  return mine > other || (mine == other && order[i] < order[k]);
}

static inline void oracle_router(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], experts = w->d[1], choices = w->d[2], capacity = w->d[3], all = tokens * choices;
  int64_t *chosen = calloc((size_t)all, sizeof *chosen), *order = calloc((size_t)all, sizeof *order);
  char *kept = calloc((size_t)all, 1);
  oracle_choose(w, a, o, chosen);
  for (int64_t i = 0; i < all; ++i) order[i] = w->f[1] != 0 ? i % choices * tokens + i / choices : i;
  for (int64_t i = 0; i < all; ++i) {
    int64_t before = 0;
    for (int64_t k = 0; k < all; ++k)
      before += k != i && chosen[k] == chosen[i] && oracle_is_before(w, a, o, order, k, i, chosen[i]);
    kept[i] = before < capacity || w->d[6] > 0;
  }
  memset(o[4], 0, sizeof(double) * (size_t)(experts * TWS_EXPERT_COUNTS));
  for (int64_t i = 0; i < all; ++i) {
    double *counts = o[4] + chosen[i] * TWS_EXPERT_COUNTS;
    int64_t place = 0;
    for (int64_t k = 0; k < all; ++k) place += kept[k] && chosen[k] == chosen[i] && order[k] < order[i];
    if (w->d[6] > 0) { /* experts of a pack share slots: the routes of its earlier experts come first, then earlier
                        * routes */
      const int64_t pack = chosen[i] - chosen[i] % w->d[6];
      place = (pack - chosen[i]) * capacity;
      for (int64_t k = 0; k < all; ++k)
        place += (chosen[k] >= pack && chosen[k] < chosen[i]) || (chosen[k] == chosen[i] && k < i);
    }
    o[2][i] = kept[i] ? (double)(chosen[i] * capacity + place) : (double)(-1 - chosen[i]);
    counts[TWS_COUNT_FILLED] += kept[i];
    counts[TWS_COUNT_ROUTED] += 1;
    counts[TWS_COUNT_BALANCED] += w->f[1] == 0 || i % choices == 0;
  }
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t i = t * choices; i < (t + 1) * choices; ++i) {
      o[3][i] = kept[i] ? o[1][t * experts + chosen[i]] : 0;
      sum += o[3][i];
    }
    for (int64_t i = t * choices; i < (t + 1) * choices; ++i)
      o[3][i] *= w->f[4] / (w->f[2] != 0 ? fmax(sum, (double)TWS_ROUTING_LEAST) : 1);
  }
  for (int64_t e = 0; e < experts; ++e) {
    const double *counts = o[4] + e * TWS_EXPERT_COUNTS;
    double mean = 0;
    for (int64_t t = 0; t < tokens; ++t) mean += o[1][t * experts + e] / (double)tokens;
    o[5][0] += a[2] * (double)experts * mean * counts[TWS_COUNT_BALANCED] / (double)tokens;
    o[5][1] += a[3] * (counts[TWS_COUNT_ROUTED] - counts[TWS_COUNT_FILLED]);
    o[6][e] += a[4] * counts[TWS_COUNT_ROUTED];
  }
  const int at = 7 + oracle_router_draws(w) + ((w->flags & TWS_BIAS) != 0);
  for (int64_t t = 0; t < tokens && w->flags & TWS_Z_LOSS; ++t) o[5][0] += a[5] * o[at][t] * o[at][t] / (double)tokens;
  free(chosen);
  free(order);
  free(kept);
}

/* Returns the expert whose slot a route has, computed from the counts of all experts. */
static inline int64_t oracle_expert_of(const tws_work *w, const double *counts, double route) {
  const int64_t shared = w->d[6] > 1 ? w->d[6] : 1, slots = shared * w->d[3];
  int64_t expert = (int64_t)route / slots * shared;
  double place = route - (double)((int64_t)route / slots * slots);
  while (shared > 1 && place >= counts[expert * TWS_EXPERT_COUNTS]) place -= counts[expert++ * TWS_EXPERT_COUNTS];
  return expert;
}

static inline void oracle_router_grad(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], experts = w->d[1], choices = w->d[2];
#define EXPERT_OF(route) oracle_expert_of(w, o[3], route)
  const double scale = w->flags & TWS_SCALED ? o[5][TWS_HYPER_SCALE] : 1;
  double *slope = calloc((size_t)experts, sizeof *slope);
  for (int64_t t = 0; t < tokens; ++t) {
    const double *p = o[1] + t * experts;
    double sum = 0, mean = 0;
    for (int64_t e = 0; e < experts; ++e)
      slope[e] = scale * a[0] * (double)experts * o[3][e * TWS_EXPERT_COUNTS + TWS_COUNT_BALANCED] /
                 ((double)tokens * (double)tokens);
    for (int64_t i = t * choices; i < (t + 1) * choices; ++i)
      if (o[2][i] >= 0) sum += p[EXPERT_OF(o[2][i])];
    for (int64_t i = t * choices; i < (t + 1) * choices; ++i) {
      if (o[2][i] < 0) continue;
      const int64_t e = EXPERT_OF(o[2][i]);
      if (w->f[2] == 0) {
        slope[e] += w->f[4] * o[0][i];
        continue;
      }
      for (int64_t k = t * choices; k < (t + 1) * choices; ++k) /* of p / sum */
        if (o[2][k] >= 0) slope[EXPERT_OF(o[2][k])] += w->f[4] * o[0][i] * ((k == i) / sum - p[e] / (sum * sum));
    }
    for (int64_t e = 0; e < experts; ++e) mean += p[e] * slope[e];
    if (w->flags & TWS_Z_LOSS) mean -= scale * a[1] * 2 * o[5 + ((w->flags & TWS_SCALED) != 0)][t] / (double)tokens;
    for (int64_t e = 0; e < experts; ++e)
      o[4][t * experts + e] = w->flags & TWS_SIGMOID ? p[e] * (1 - p[e]) * slope[e] : p[e] * (slope[e] - mean);
  }
#undef EXPERT_OF
  free(slope);
}

static inline void oracle_balance(const tws_work *w, double **o) {
  double mean = 0;
  for (int64_t e = 0; e < w->d[0]; ++e) mean += o[1][e] / (double)w->d[0];
  for (int64_t e = 0; e < w->d[0]; ++e) o[0][e] += o[1][e] < mean ? w->f[0] : o[1][e] > mean ? -w->f[0] : 0;
}

static inline double oracle_gate_share(const tws_work *w, const double *gates, int64_t row) {
  const double x = gates[row * w->d[2]] - (w->d[2] > 1 ? gates[row * w->d[2] + 1] : 0);
  return 1 / (1 + exp(w->f[0] != 0 ? x : -x));
}

static inline void oracle_gate(const tws_work *w, double **o) {
  for (int64_t i = 0; i < w->d[0] * w->d[1]; ++i) o[2][i] = o[0][i] * oracle_gate_share(w, o[1], i / w->d[1]);
}

static inline void oracle_gate_grad(const tws_work *w, double **o) {
  memset(o[4], 0, sizeof(double) * (size_t)(w->d[0] * w->d[2]));
  for (int64_t i = 0; i < w->d[0] * w->d[1]; ++i) {
    const int64_t row = i / w->d[1];
    const double share = oracle_gate_share(w, o[2], row), slope = o[0][i] * o[1][i] * share * (1 - share);
    o[3][i] = o[0][i] * share;
    o[4][row * w->d[2]] += w->f[0] != 0 ? -slope : slope;
    if (w->d[2] > 1) o[4][row * w->d[2] + 1] -= w->f[0] != 0 ? -slope : slope;
  }
}

static inline void oracle_dispatch(const tws_work *w, double **o) {
  const int64_t width = w->d[1], choices = w->d[3];
  memset(o[3], 0, sizeof(double) * (size_t)(w->d[2] * w->d[4] * width));
  for (int64_t i = 0; i < w->d[0] * choices; ++i)
    for (int64_t j = 0; j < width && o[1][i] >= 0; ++j)
      o[3][(int64_t)o[1][i] * width + j] = o[0][i / choices * width + j];
}

/* weights NULL: all 1. */
static inline void oracle_gather(const tws_work *w, double **o, const double *weights, double *to) {
  const int64_t width = w->d[1], choices = w->d[3];
  if (!(w->flags & TWS_ACCUMULATE)) memset(to, 0, sizeof(double) * (size_t)(w->d[0] * width));
  for (int64_t i = 0; i < w->d[0] * choices; ++i)
    for (int64_t j = 0; j < width && o[1][i] >= 0; ++j)
      to[i / choices * width + j] += o[0][(int64_t)o[1][i] * width + j] * (weights ? weights[i] : 1);
}

static inline void oracle_combine_grad(const tws_work *w, double **o) {
  const int64_t width = w->d[1], choices = w->d[3];
  memset(o[5], 0, sizeof(double) * (size_t)(w->d[2] * w->d[4] * width));
  for (int64_t i = 0; i < w->d[0] * choices; ++i) {
    o[6][i] = 0;
    for (int64_t j = 0; j < width && o[2][i] >= 0; ++j) {
      const double dy = o[0][i / choices * width + j];
      o[5][(int64_t)o[2][i] * width + j] = dy * o[3][i];
      o[6][i] += dy * o[1][(int64_t)o[2][i] * width + j];
    }
  }
}

/* Computes any of the three products of experts' layers, for every filled row of every source. */
static inline void oracle_expert_linear(const tws_work *w, double **o) {
  const int64_t blocks = w->d[0] * w->d[1], capacity = w->d[2], n = w->d[3], k = w->d[4];
  const int bias = (w->flags & TWS_BIAS) != 0, adds = (w->flags & TWS_ACCUMULATE) != 0;
  const int forward = w->code == TWS_KERNEL_EXPERT_LINEAR, input = w->code == TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT;
  const double *counts = o[forward && bias ? 3 : 2];
  double *out = o[forward && bias ? 4 : 3];
  const int64_t size = forward ? blocks * capacity * n : input ? blocks * capacity * k : w->d[1] * n * k;
  if (forward || !adds) memset(out, 0, sizeof(double) * (size_t)size);
  if (!forward && !input && bias && !adds) memset(o[4], 0, sizeof(double) * (size_t)(w->d[1] * n));
  for (int64_t b = 0, first = 0; b < blocks; ++b) {
    if (w->d[6] <= 1 || b % w->d[6] == 0) first = b * capacity;
    for (int64_t r = first; r < first + (int64_t)counts[b * TWS_EXPERT_COUNTS]; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const int64_t e = b % w->d[1];
        if (forward && bias) out[r * n + i] += o[2][e * n + i];
        if (!forward && !input && bias) o[4][e * n + i] += o[0][r * n + i];
        for (int64_t j = 0; j < k; ++j) {
          if (forward)
            out[r * n + i] += o[0][r * k + j] * o[1][(e * n + i) * k + j];
          else if (input)
            out[r * k + j] += o[0][r * n + i] * o[1][(e * n + i) * k + j];
          else
            out[(e * n + i) * k + j] += o[0][r * n + i] * o[1][r * k + j];
        }
      }
    first += (int64_t)counts[b * TWS_EXPERT_COUNTS];
  }
}

#endif
