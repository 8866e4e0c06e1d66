/* The best of a search, really run: the trials that the tuner chooses, what they say of the profile, and the ranking
 * again with what they said. */
#ifndef TWS_AUTOTUNE_MEASURE_H
#define TWS_AUTOTUNE_MEASURE_H

#include "autotune/autotune.h"
#include "autotune/experiment.h"
#include "autotune/folders.h"
#include "autotune/next_trial.h"
#include "autotune/goal.h"

typedef struct tws_tune_measuring {
  tws_experiment_setup setup;
  const tws_tune_folders *folders;
  tws_trial_rule rule;
  int rounds;      /* of each trial; later ones are interleaved, so that a disturbance does not hit one of them alone */
  int race;        /* runs beyond these, at most, of each that may still be the fastest (autotune/race.h) */
  double budget_s; /* no run begins after so long; 0: never mind */
  const tws_log *log; /* may be NULL */
} tws_tune_measuring;

typedef struct tws_tune_trial {
  char name[TWS_VARIANT_NAME];
  tws_variant variant;
  tws_scored scored;               /* sequences a step, memory and flops; as predicted */
  double samples;                  /* sequences a step of the whole job */
  double predicted_s, corrected_s; /* before and after the profile was corrected; 0: not */
  double step_s, spread_s;         /* measured: median and interquartile range; 0: not */
  int reused;                      /* from the record of an earlier search */
  tws_experiment experiment;
} tws_tune_trial;

typedef struct tws_tune_trials {
  tws_tune_trial *all; /* in the order in which they were run */
  int count;
  int best; /* by the objective, of those that were measured; or -1 */
  size_t capacity;
  int corrected; /* kinds of operations whose costs were corrected */
  tws_profile_correction correction;
  double error_before, error_after; /* median error of the predicted step of trials, relative, by the two profiles */
} tws_tune_trials;

/* Runs trials out of *result, corrects the profile of request->job by them, searches again (*result is then another)
 * and runs what now leads and was not run. Trials that fail in any way are rows with a reason, and no error. The
 * folders of `setup` exist; experiments are added to them. Free *out in any case. */
tws_code tws_tune_measure(const tws_tune_request *request, const tws_tune_measuring *how, tws_tune_result **result,
                          tws_tune_trials *out, tws_error *err);
void tws_tune_trials_free(tws_tune_trials *trials);
double tws_tune_trial_throughput(const tws_tune_trial *trial); /* measured samples/s; 0: not */
/* The same in tokens/s of the whole job. */
double tws_tune_trial_tokens_per_s(const tws_tune_request *request, const tws_tune_trial *trial);

/* Whether what was predicted to be the fastest of the measured trials is that. Steps that vary by more than two trials
 * differ cannot say which of the two is faster. */
typedef struct tws_tune_pick {
  const tws_tune_trial *pick, *best; /* of the trials; NULL: none */
  int measured;                      /* how many were */
  double spread;                     /* of the steps of a run, the largest, relative */
  double share;                      /* of the best one's throughput that the pick reaches */
} tws_tune_pick;
tws_tune_pick tws_tune_pick_of(const tws_tune_trials *trials);

#endif
