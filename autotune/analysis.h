/* What there is to say about the winner of a search: what it is beside the user's own configuration, what each knob is
 * worth, and which candidates nothing beats in every respect. */
#ifndef TWS_AUTOTUNE_ANALYSIS_H
#define TWS_AUTOTUNE_ANALYSIS_H

#include "autotune/autotune.h"

/* One variant, estimated from its plans. */
typedef struct tws_tune_point {
  tws_variant variant;
  double step_s;     /* longest path; 0: there is no plan */
  double throughput; /* samples/s */
  double bytes;      /* of the fullest rank */
  double cost;       /* money for a million tokens; 0: no price */
  int fits;
  char reason[160]; /* why not */
} tws_tune_point;

enum { TWS_TUNE_KNOBS = 48 };
/* The winner with one knob turned; the global batch is kept. */
typedef struct tws_tune_knob {
  const char *name;           /* "ZeRO stage" */
  char winner[32], value[32]; /* as the winner has it, and turned to */
  tws_tune_point point;
} tws_tune_knob;

typedef struct tws_tune_analysis {
  int *pareto; /* indices of candidates, fastest first: none has more throughput with no more memory and no more cost */
  int pareto_count;
  tws_tune_knob knobs[TWS_TUNE_KNOBS];
  int knob_count;
  tws_tune_point winner, own; /* own: the user's configuration, as it was given */
  int has_own;                /* it says all that a job needs */
} tws_tune_analysis;

/* Some tens of estimates. own NULL: the user gave no configuration of a whole job. Destroy with
 * tws_tune_analysis_destroy(). */
tws_code tws_tune_analyse(const tws_tune_request *request, const tws_tune_result *result, const tws_variant *winner,
                          const tws_variant *own, tws_tune_analysis **out, tws_error *err);
void tws_tune_analysis_destroy(tws_tune_analysis *analysis); /* NULL is allowed */

/* Money for a million tokens; 0 where the cluster file has no price. */
double tws_tune_cost(const tws_tune_request *request, const tws_variant *variant, double samples_per_s);
/* What two variants differ in, a line each: "micro batch: 4 -> 8". */
void tws_variant_difference(const tws_variant *from, const tws_variant *to, tws_text *out);

#endif
