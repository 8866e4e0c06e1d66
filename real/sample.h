/* Sampling of the next token from a model's logits (scores). */
#ifndef TWS_REAL_SAMPLE_H
#define TWS_REAL_SAMPLE_H

#include <stdint.h>

typedef struct tws_sampling {
  double temperature; /* 0: greedy, choosing the smaller id among equal scores */
  int64_t top_k;      /* number of most likely tokens from which one is drawn; 0: all */
  double top_p;       /* nucleus sampling (Holtzman et al., 2020): draws from the fewest most likely tokens, at least
                       * one, whose probabilities sum to this number; 1: from all */
  double min_p;       /* draws from tokens with at least this share of the most likely token's probability; 0: all */
  double repetition;  /* scores of tokens that the text already has are divided by it if positive, else multiplied
                       * (Keskar et al., 2019); 0 or 1: unchanged */
} tws_sampling;

typedef struct tws_candidate {
  float score;
  int32_t id;
} tws_candidate;

/* Returns the token at quantile `uniform`, in [0, 1), of the distribution. seen: [count] 1 for tokens that the text
 * already has; NULL without a repetition penalty. `room` is scratch memory for `count` candidates. *log_probability:
 * the logarithm of the token's probability under the scores alone, without temperature, penalty or limits. */
int32_t tws_sample(const float *scores, int32_t count, const tws_sampling *how, const uint8_t *seen, double uniform,
                   tws_candidate *room, double *log_probability);

/* Returns the natural logarithm of the probability of a token. */
double tws_log_probability(const float *scores, int32_t count, int32_t token);

#endif
