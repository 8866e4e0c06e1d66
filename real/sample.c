#include "real/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int likelier_first(const void *a, const void *b) {
  const tws_candidate *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return (x->id > y->id) - (x->id < y->id);
}

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t lane_bits __attribute__((vector_size(LANES * sizeof(int32_t))));

/* Returns e^x for numbers x <= 0 with a relative error below 3e-7, and 0 for x < -87: 2^n e^r with n the integer
 * closest to x / ln 2 and |r| <= ln(2) / 2, of which e^r is a Taylor polynomial. Adding and subtracting 1.5 * 2^23
 * rounds to an integer. */
static inline lanes exp_of(lanes x) {
  const float round_to_integer = 12582912.0F;
  const lane_bits kept = ~(x < -87.0F); /* NaN is kept, too */
  const lanes n = x * 1.44269504F + round_to_integer - round_to_integer;
  const lanes r = x - n * 0.693359375F + n * 2.12194440e-4F; /* ln 2 in two parts, so that n times the first is exact */
  lanes p = r * (1.0F / 720) + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const lane_bits power = (__builtin_convertvector(n, lane_bits) + 127) << 23;
  return (lanes)((lane_bits)(p * (lanes)power) & kept);
}

/* Returns ln(sum of e^score). A vocabulary has up to some hundred thousand scores, whose exponentials would take longer
 * than a small model's decode one by one, so that most of them are computed LANES at a time. */
static double log_sum(const float *scores, int32_t count, float most) {
  enum { BLOCK = 512, MANY = 64 }; /* BLOCK: scores whose exponentials are added in float32 */
  double sum = 0;
  int32_t i = 0;
  while (count >= MANY && count - i >= LANES) {
    lanes part = {0}, x;
    const int32_t end = count - i < BLOCK ? count : i + BLOCK;
    for (; end - i >= LANES; i += LANES) {
      memcpy(&x, scores + i, sizeof x);
      part += exp_of(x - most);
    }
    for (int k = 0; k < LANES; k++) sum += (double)part[k];
  }
  for (; i < count; i++) sum += exp((double)scores[i] - (double)most);
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
    const float score = penalized(scores, i, how, seen);
    if (score > most) most = score, chosen = i;
    if (scores[i] > largest) largest = scores[i];
  }
  if (how->temperature > 0) {
    int32_t kept = how->top_k > 0 && how->top_k < count ? (int32_t)how->top_k : count, i = 0;
    double all = 0, sum = 0, at = 0;
    for (int32_t k = 0; k < count; k++) room[k] = (tws_candidate){penalized(scores, k, how, seen), k};
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
