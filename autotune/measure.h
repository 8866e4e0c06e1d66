/* Runs the best configurations of a search: the tuner chooses trials, their measurements correct the profile, and the
 * ranking is computed again with the corrected profile. */
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
  int rounds;         /* runs per trial; runs of different trials are interleaved, so that a disturbance does not affect
                    * one trial alone */
  int race;           /* maximum number of further runs of each trial that may still be the fastest (autotune/race.h) */
  double budget_s;    /* no run starts after this time; 0: no limit */
  const tws_log *log; /* may be NULL */
} tws_tune_measuring;

typedef struct tws_tune_trial {
  char name[TWS_VARIANT_NAME];
  tws_variant variant;
  tws_scored scored;               /* predicted figures: sequences per step, memory and FLOPs */
  double samples;                  /* sequences per step of the whole job */
  double predicted_s, corrected_s; /* predicted step: with the given, the corrected profile; 0: not predicted */
  double step_s, spread_s;         /* measured seconds of a step: median and interquartile range; 0: not measured */
  int reused;                      /* 1: the result was read from the record of an earlier search */
  tws_experiment experiment;
} tws_tune_trial;

typedef struct tws_tune_trials {
  tws_tune_trial *all; /* all trials, in the order in which they were run */
  int count;
  int best; /* index of the best measured trial by the objective; -1: none */
  size_t capacity;
  int corrected; /* number of kinds of operations whose costs were corrected */
  tws_profile_correction correction;
  double error_before, error_after; /* median relative error of predicted steps with the given, the corrected profile */
} tws_tune_trials;

/* Runs trials of *result, corrects the profile of request->job by them, searches again (which replaces *result), and
 * runs the new leaders that were not run yet. A failed trial is a row with a reason, and no error. The folders of
 * `setup` must exist; experiments are added to them. The caller frees *out in any case. */
tws_code tws_tune_measure(const tws_tune_request *request, const tws_tune_measuring *how, tws_tune_result **result,
                          tws_tune_trials *out, tws_error *err);
void tws_tune_trials_free(tws_tune_trials *trials);
double tws_tune_trial_throughput(const tws_tune_trial *trial); /* returns the measured samples/s; 0: not measured */
/* Returns the measured throughput in tokens/s of the whole job. */
double tws_tune_trial_tokens_per_s(const tws_tune_request *request, const tws_tune_trial *trial);

/* Comparison of the pick (the measured trial that was predicted to be fastest) with the fastest measured one. If the
 * spread of the steps exceeds the difference of two trials, the measurement cannot order them. */
typedef struct tws_tune_pick {
  const tws_tune_trial *pick, *best; /* trials of the list; NULL: none */
  int measured;                      /* number of measured trials */
  double spread;                     /* largest relative spread of the steps of a run */
  double share;                      /* throughput of the pick divided by that of the best */
} tws_tune_pick;
tws_tune_pick tws_tune_pick_of(const tws_tune_trials *trials);

#endif
