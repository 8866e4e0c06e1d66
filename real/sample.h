/* Choosing the next token from a model's scores. */
#ifndef TWS_REAL_SAMPLE_H
#define TWS_REAL_SAMPLE_H

#include <stdint.h>

typedef struct tws_sampling {
  double temperature; /* 0: always the likeliest, the smaller id of equals */
  int64_t top_k;      /* of the k likeliest; 0: of all */
  double top_p; /* of the fewest likeliest that have this much of the probability (Holtzman et al., 2020); 1: of all */
} tws_sampling;

typedef struct tws_candidate {
  float score;
  int32_t id;
} tws_candidate;

/* The token that `uniform`, of [0, 1), falls on. `room` is for `count` candidates. *log_probability: of the choice
 * under the scores alone, without temperature or limits. */
int32_t tws_sample(const float *scores, int32_t count, const tws_sampling *how, double uniform, tws_candidate *room,
                   double *log_probability);

#endif
