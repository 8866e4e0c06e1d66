/* A complete tuning: the search, optional runs of the best configurations, the analysis of the winner, and the files,
 * in that order. The verb `tune` calls this and prints the result. */
#ifndef TWS_AUTOTUNE_TUNING_H
#define TWS_AUTOTUNE_TUNING_H

#include "autotune/goodput.h"
#include "autotune/knee.h"

/* DeepSpeed's names of the folders. */
#define TWS_TUNING_RESULTS "autotuning_results"
#define TWS_TUNING_EXPERIMENTS "autotuning_exps"

typedef enum tws_tuning_axes {                       /* which parallel axes are tried in addition to those of the
                                                      * lists */
                               TWS_TUNING_AXES_AUTO, /* if the states exceed one device */
                               TWS_TUNING_AXES_ON,
                               TWS_TUNING_AXES_OFF,
                               TWS_TUNING_AXES_UNSAID /* AUTO, unless the configuration has a setting */
} tws_tuning_axes;

typedef struct tws_tuning {
  const tws_job_spec *spec; /* the specification with which search.job was opened */
  /* The request of tws_tune() with the lists of its space. tws_tuning_complete() sets tuner, trials, early_stopping,
   * seed, memory_bytes and unset fields of the space. Parts are set by the launcher that started this process; the
   * budget and the state file are set from the members below. */
  tws_tune_request search;
  tws_tuner tuner; /* tuner of the runs; without runs that of the simulations */
  tws_tuning_axes axes;
  int64_t trials,
      early_stopping;      /* maximum number of simulations, and of those without an improvement; 0: the configuration's
                            * value, or that of tws_tune() */
  double memory;           /* bytes of one device; below 0: the device's own */
  double budget_s;         /* time limit of the runs, or without runs of the search; 0: no limit */
  const char *results;     /* folder */
  const char *experiments; /* folder; NULL: DeepSpeed's default name, in a folder inside `results` */
  tws_tune_earlier earlier;
  /* settings of the runs */
  int64_t validate; /* maximum number of trials that are run; 0: none */
  const char *data;
  int64_t first_step, last_step; /* measured steps; 0: the configuration's, else 3 to 5 */
  int64_t rounds, race;          /* as in tws_tune_measuring */
  double limit_s;                /* time limit of a run */
} tws_tuning;

/* Completes settings that the flags leave open from the configuration's section autotuning or its batch keys.
 * TWS_USAGE: settings contradict each other. TWS_INVALID: the cluster file lacks the figures of the objective. */
tws_code tws_tuning_complete(tws_tuning *t, tws_error *err);
/* Checks that the cluster's devices have enough memory, and that this machine can run the trials; called by the two
 * functions below. TWS_NO: nothing can fit. */
tws_code tws_tuning_check(const tws_tuning *t, tws_error *err);

/* Callback with the report, after all files are written. report->result->fits is 0 if nothing fits. */
typedef tws_code (*tws_tuning_tell)(void *user, const tws_tune_report *report, tws_error *err);
/* Runs the tuning, writes its files and calls `tell`. A process that searches a part other than the first
 * (tws_tune_request.part) writes nothing and does not call it. TWS_NO: nothing fits, or no run could be measured; files
 * are written and `tell` is called in this case too. */
tws_code tws_tuning_run(const tws_tuning *t, tws_tuning_tell tell, void *user, tws_error *err);
/* Searches while one figure of the cluster varies; writes nothing. TWS_USAGE: runs are requested. */
tws_code tws_tuning_sweep(const tws_tuning *t, const tws_knee_sweep *range, tws_knee *out, tws_error *err);

#endif
