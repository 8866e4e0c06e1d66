/* Reads the JSON results of several subcommands and joins those of one configuration to one entry. */
#ifndef TWS_VALIDATION_RESULTS_H
#define TWS_VALIDATION_RESULTS_H

#include "estimators/estimators.h"

/* One configuration, with the estimated, the simulated and the measured results. Times 0: not known. */
typedef struct tws_result_entry {
  char model[64], recompute[16], dtype[8]; /* dtype "": not stated */
  char runtime[24]; /* runtime of the prediction; "twinspeed" for a training, and for a file that does not state it */
  char axes[64];    /* "pipe 2, model 4, 1f1b, sequence parallel": axes other than the data-parallel one; "": none */
  int64_t stage, micro, accumulation, ranks, threads;
  int64_t sequence, tokens; /* tokens of a sample, and of a step; 0: not known */
  double estimated_s, simulated_s, measured_s, low_s, high_s;
  double predicted_bytes, allocated_bytes; /* predicted and allocated memory of the rank that uses the most */
  double first_loss, last_loss;
  int64_t steps;
  tws_fingerprint fingerprint; /* fingerprint of model and plan; "": not stated */
  const char *file;            /* file with the fingerprint */
} tws_result_entry;

typedef struct tws_results {
  tws_result_entry *entries;
  size_t count, capacity;
  const char *file; /* file that is being read, and its fingerprint */
  tws_fingerprint fingerprint;
  /* an earlier entry of this configuration whose fingerprint has another model or plan; NULL: none */
  const tws_result_entry *clash;
} tws_results;

/* Adds the results in a file. TWS_INVALID if it is no result of train, estimate, simulate, tune or validate, or if its
 * configuration equals that of another file but its model's or plan's fingerprint differs. `path` must live as long as
 * the results. */
tws_code tws_results_read(tws_results *results, const char *path, tws_error *err);
void tws_results_free(tws_results *results);

/* Returns the predicted seconds of a step: the simulated time, or else the estimated one. */
double tws_result_predicted(const tws_result_entry *entry);
/* Returns the relative error of the predicted step; NaN if the predicted or the measured step is not known. */
double tws_result_error(const tws_result_entry *entry);
/* Returns the median of |error| over the entries that have both a prediction and a measurement, whose number is *pairs;
 * -1: there are none. */
double tws_results_median_error(const tws_results *results, int *pairs);
/* Returns the last two components of a model's path, since one file may be given by several paths. */
const char *tws_result_model(const char *model);
/* Writes the model's name for titles: "demo" for ".../demo/config.json", "small" for ".../small.json". */
void tws_result_title(const char *model, char *title, size_t size);

/* Returns tokens per second of the measured step, or of the predicted one if none was measured; 0: not known. */
double tws_result_tokens_per_s(const tws_result_entry *entry);

#endif
