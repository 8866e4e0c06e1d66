/* Sampling of the next token from a model's logits (scores). */
#ifndef TWS_REAL_SAMPLE_H
#define TWS_REAL_SAMPLE_H

#include <stdint.h>

typedef struct tws_sampling {
  double temperature; /* 0: greedy, the smaller id of equal scores */
  int64_t top_k;      /* samples from the k most likely tokens; 0: from all */
  double top_p; /* nucleus sampling (Holtzman et al., 2020): from the fewest most likely tokens whose probabilities
                   sum to this; 1: from all */
} tws_sampling;

typedef struct tws_candidate {
  float score;
  int32_t id;
} tws_candidate;

/* Returns the token at quantile `uniform`, in [0, 1). `room` is scratch for `count` candidates. *log_probability:
 * that of the token under the scores alone, without temperature or limits. */
int32_t tws_sample(const float *scores, int32_t count, const tws_sampling *how, double uniform, tws_candidate *room,
                   double *log_probability);

#endif
