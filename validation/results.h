/* Results that verbs left as JSON, side by side: those of one configuration make one entry. */
#ifndef TWS_VALIDATION_RESULTS_H
#define TWS_VALIDATION_RESULTS_H

#include "estimators/estimators.h"

/* One configuration: what was predicted for it, by which means, and what was measured. Times 0: not known. */
typedef struct tws_result_entry {
  char model[64], recompute[16], dtype[8]; /* dtype "": not said */
  char runtime[24];                        /* of a training, and where a file does not say: twinspeed */
  char axes[64]; /* "pipe 2, model 4, 1f1b, sequence parallel": what ranks are shared among besides replicas; "":
                    nothing */
  int64_t stage, micro, accumulation, ranks, threads;
  int64_t sequence, tokens; /* tokens of a sample, of a step; 0: not known */
  double estimated_s, simulated_s, measured_s, low_s, high_s;
  double predicted_bytes, allocated_bytes; /* of the fullest rank */
  double first_loss, last_loss;
  int64_t steps;
  tws_fingerprint fingerprint; /* "": not said */
  const char *file;            /* that said it */
} tws_result_entry;

typedef struct tws_results {
  tws_result_entry *entries;
  size_t count, capacity;
  const char *file; /* that is being read, and its fingerprint */
  tws_fingerprint fingerprint;
  const tws_result_entry *clash; /* of another model or plan, though it looks the same */
} tws_results;

/* Adds what a file says. TWS_INVALID for what is no result of train, estimate, simulate, tune or validate, and for two
 * files of different models or plans that look the same. `path` must live as long as the results. */
tws_code tws_results_read(tws_results *results, const char *path, tws_error *err);
void tws_results_free(tws_results *results);

/* Seconds of a step: a simulated time counts before an estimated one. */
double tws_result_predicted(const tws_result_entry *entry);
/* Relative; NaN where one of the two is not known. */
double tws_result_error(const tws_result_entry *entry);
/* Median of |error| over entries that have both sides; -1 without any. */
double tws_results_median_error(const tws_results *results, int *pairs);
/* A model's name for people: the same path may be written in two ways, so the last two parts of it. */
const char *tws_result_model(const char *model);
/* For titles, without folders: "demo" of ".../demo/config.json", "small" of ".../small.json". */
void tws_result_title(const char *model, char *title, size_t size);

#endif
