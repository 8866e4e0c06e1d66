#include "real/sample.h"

#include <math.h>
#include <stdlib.h>

static int likelier_first(const void *a, const void *b) {
  const tws_candidate *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return (x->id > y->id) - (x->id < y->id);
}

static double log_sum(const float *scores, int32_t count, float most) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++) sum += exp((double)scores[i] - (double)most);
  return (double)most + log(sum);
}

int32_t tws_sample(const float *scores, int32_t count, const tws_sampling *how, double uniform, tws_candidate *room,
                   double *log_probability) {
  int32_t chosen = 0;
  for (int32_t i = 1; i < count; i++)
    if (scores[i] > scores[chosen]) chosen = i;
  const float most = scores[chosen];
  if (how->temperature > 0) {
    int32_t kept = how->top_k > 0 && how->top_k < count ? (int32_t)how->top_k : count, i = 0;
    double all = 0, sum = 0, at = 0;
    for (i = 0; i < count; i++) room[i] = (tws_candidate){scores[i], i};
    qsort(room, (size_t)count, sizeof *room, likelier_first);
#define WEIGHT(i) exp(((double)room[i].score - (double)most) / how->temperature)
    for (i = 0; i < kept; i++) all += WEIGHT(i);
    for (i = 0; i < kept && (i == 0 || sum < how->top_p * all); i++) sum += WEIGHT(i);
    kept = i;
    for (i = 0; i + 1 < kept; i++) {
      at += WEIGHT(i);
      if (uniform * sum < at) break;
    }
#undef WEIGHT
    chosen = room[i].id;
  }
  *log_probability = (double)scores[chosen] - log_sum(scores, count, most);
  return chosen;
}
