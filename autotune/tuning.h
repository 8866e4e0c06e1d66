/* A tuning from its request to its files: the search, runs of the best where they are asked for, the
 * analysis of the winner, and the files, in that order. The verb `tune` is this with words around it. */
#ifndef TWS_AUTOTUNE_TUNING_H
#define TWS_AUTOTUNE_TUNING_H

#include "autotune/goodput.h"
#include "autotune/knee.h"

/* DeepSpeed's names for where things go. */
#define TWS_TUNING_RESULTS "autotuning_results"
#define TWS_TUNING_EXPERIMENTS "autotuning_exps"

typedef enum tws_tuning_axes {                       /* whether axes of ranks are tried besides those of the lists */
                               TWS_TUNING_AXES_AUTO, /* where a device is too small for the states */
                               TWS_TUNING_AXES_ON,
                               TWS_TUNING_AXES_OFF,
                               TWS_TUNING_AXES_UNSAID /* AUTO, unless the configuration says otherwise */
} tws_tuning_axes;

typedef struct tws_tuning {
  const tws_job_spec *spec; /* that search.job was opened with */
  /* As tws_tune() takes it, with the lists of its space; tws_tuning_complete() fills in tuner, trials, early_stopping,
   * seed, memory_bytes and what is not said of the space. The tuning is told of parts by the launcher that has started
   * this process, of the budget and of the file that keeps the search's state by the members below. */
  tws_tune_request search;
  tws_tuner tuner; /* of the runs; without them of the simulations */
  tws_tuning_axes axes;
  int64_t trials,
      early_stopping;      /* simulations, and those without a better one; 0: the configuration's, or tws_tune()'s */
  double memory;           /* bytes of one device; below 0: the machine's */
  int keeps_margin;        /* what is tight does not count as fitting */
  double budget_s;         /* of the runs, or without them of the search; 0: no limit */
  const char *results;     /* folder */
  const char *experiments; /* folder; NULL: DeepSpeed's name, in another folder than DeepSpeed's below `results` */
  tws_tune_earlier earlier;
  /* of runs */
  int64_t validate; /* most of them; 0: none */
  const char *data;
  int64_t first_step, last_step; /* that are measured; 0: the configuration's, else 3 to 5 */
  int64_t rounds, race;          /* as in tws_tune_measuring */
  double limit_s;                /* of a run */
} tws_tuning;

/* What flags leave open is as the configuration's section autotuning has it, or its batch keys. TWS_USAGE for what does
 * not go together, TWS_INVALID for a goal that the cluster has no figures for. */
tws_code tws_tuning_complete(tws_tuning *t, tws_error *err);
/* Whether the cluster's devices have room, and whether this machine can run what is to be measured; part of the two
 * functions below. TWS_NO: nothing can fit. */
tws_code tws_tuning_check(const tws_tuning *t, tws_error *err);

/* What was found, once all is written. report->result->fits is 0 where nothing fits. */
typedef tws_code (*tws_tuning_tell)(void *user, const tws_tune_report *report, tws_error *err);
/* Runs the tuning, writes its files and calls `tell`. A process that searches another part than the first
 * (tws_tune_request.part) writes nothing and does not call it. TWS_NO: nothing fits, or no run could be measured; files
 * are written and `tell` is called in that case, too. */
tws_code tws_tuning_run(const tws_tuning *t, tws_tuning_tell tell, void *user, tws_error *err);
/* Searches while one figure of the cluster varies; nothing is written. TWS_USAGE: runs are asked for. */
tws_code tws_tuning_sweep(const tws_tuning *t, const tws_knee_sweep *range, tws_knee *out, tws_error *err);

#endif
