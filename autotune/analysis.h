/* Analysis of the winner of a search: its estimate next to that of the user's own configuration, the effect of each
 * knob when it is changed alone, and the Pareto set of the candidates (throughput, memory, cost). */
#ifndef TWS_AUTOTUNE_ANALYSIS_H
#define TWS_AUTOTUNE_ANALYSIS_H

#include "autotune/autotune.h"

/* One variant with the estimate of its plan. */
typedef struct tws_tune_point {
  tws_variant variant;
  double step_s;     /* seconds of a step by the longest path; 0: the variant has no plan */
  double throughput; /* samples/s of the whole job */
  double bytes;      /* peak memory in bytes of the rank that uses the most */
  double cost;       /* price of a million tokens, in the currency of the cluster file; 0: the file has no price */
  int fits;
  char reason[160]; /* why the variant does not fit or has no plan */
} tws_tune_point;

enum { TWS_TUNE_KNOBS = 48 };
/* The winner with the value of one knob changed; the global batch stays the same. */
typedef struct tws_tune_knob {
  const char *name;           /* name of the knob: "ZeRO stage" */
  char winner[32], value[32]; /* the winner's value of the knob, and the changed value, as text */
  tws_tune_point point;
} tws_tune_knob;

typedef struct tws_tune_analysis {
  int *pareto; /* indices of candidates, fastest first: no other candidate has more throughput with no more memory and
                * no more cost */
  int pareto_count;
  tws_tune_knob knobs[TWS_TUNE_KNOBS];
  int knob_count;
  tws_tune_point winner, own; /* own: the user's configuration, unchanged */
  int has_own;                /* the user's configuration is complete, so that `own` has an estimate */
} tws_tune_analysis;

/* Analyses the winner by some tens of estimates. own NULL: the user gave no complete configuration. The caller destroys
 * *out with tws_tune_analysis_destroy(). */
tws_code tws_tune_analyse(const tws_tune_request *request, const tws_tune_result *result, const tws_variant *winner,
                          const tws_variant *own, tws_tune_analysis **out, tws_error *err);
void tws_tune_analysis_destroy(tws_tune_analysis *analysis); /* does nothing for NULL */

/* Returns the price of training a million tokens, in the currency of the cluster file; 0: the file has no price. */
double tws_tune_cost(const tws_tune_request *request, const tws_variant *variant, double samples_per_s);
/* Appends one line for each setting that differs between two variants, such as "micro batch: 4 -> 8". */
void tws_variant_difference(const tws_variant *from, const tws_variant *to, tws_text *out);

#endif
