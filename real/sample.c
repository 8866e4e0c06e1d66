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

double tws_log_probability(const float *scores, int32_t count, int32_t token) {
  float largest = scores[0];
  for (int32_t i = 1; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
  return (double)scores[token] - log_sum(scores, count, largest);
}

/* Returns the score of a token after the repetition penalty. */
static float penalized(const float *scores, int32_t i, const tws_sampling *how, const uint8_t *seen) {
  if (!seen || !seen[i] || how->repetition <= 0) return scores[i];
  return (float)(scores[i] > 0 ? (double)scores[i] / how->repetition : (double)scores[i] * how->repetition);
}

int32_t tws_sample(const float *scores, int32_t count, const tws_sampling *how, const uint8_t *seen, double uniform,
                   tws_candidate *room, double *log_probability) {
  int32_t chosen = 0;
  float most = -INFINITY, largest = scores[0];
  for (int32_t i = 0; i < count; i++) {
    room[i] = (tws_candidate){penalized(scores, i, how, seen), i};
    if (room[i].score > most) most = room[i].score, chosen = i;
    if (scores[i] > largest) largest = scores[i];
  }
  if (how->temperature > 0) {
    int32_t kept = how->top_k > 0 && how->top_k < count ? (int32_t)how->top_k : count, i = 0;
    double all = 0, sum = 0, at = 0;
    qsort(room, (size_t)count, sizeof *room, likelier_first);
#define WEIGHT(i) exp(((double)room[i].score - (double)most) / how->temperature)
    for (i = 0; i < kept; i++) all += WEIGHT(i);
    for (i = 0; i < kept && (i == 0 || (sum < how->top_p * all && WEIGHT(i) >= how->min_p)); i++) sum += WEIGHT(i);
    kept = i;
    for (i = 0; i + 1 < kept; i++) {
      at += WEIGHT(i);
      if (uniform * sum < at) break;
    }
#undef WEIGHT
    chosen = room[i].id;
  }
  *log_probability = (double)scores[chosen] - log_sum(scores, count, largest);
  return chosen;
}
