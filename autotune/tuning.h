/* Runs a complete tuning: the search, optional runs of the best configurations, the analysis of the winner, and the
 * writing of files, in this order. `twinspeed tune` calls this and prints the result. */
#ifndef TWS_AUTOTUNE_TUNING_H
#define TWS_AUTOTUNE_TUNING_H

#include "autotune/goodput.h"
#include "autotune/knee.h"

/* Names of the folders, which are DeepSpeed's. */
#define TWS_TUNING_RESULTS "autotuning_results"
#define TWS_TUNING_EXPERIMENTS "autotuning_exps"

typedef enum tws_tuning_axes { /* the parallel axes that are tried in addition to those in the lists of the space */
                               TWS_TUNING_AXES_AUTO, /* tries parallel axes if the model's states exceed one device */
                               TWS_TUNING_AXES_ON,
                               TWS_TUNING_AXES_OFF,
                               TWS_TUNING_AXES_DEFAULT /* AUTO, unless the configuration has a setting */
} tws_tuning_axes;

typedef struct tws_tuning {
  const tws_job_spec *spec; /* the specification with which search.job was opened */
  /* The request of tws_tune() with the lists of its space. tws_tuning_complete() sets tuner, trials, early_stopping,
   * seed, memory_bytes and unset fields of the space. If several processes share the search, the launcher that started
   * this one sets its part; the budget and the state file are set from the members below. */
  tws_tune_request search;
  tws_tuner tuner; /* tuner that orders the runs; if none are requested, the one that orders the simulations */
  tws_tuning_axes axes;
  int64_t trials,
      early_stopping;  /* maximum number of simulations, and of successive simulations without an improvement; 0: the
                       * configuration's value, or that of tws_tune() */
  double memory;       /* bytes of one device; below 0: the device's own */
  int keeps_margin;    /* 1: tight candidates (tws_tune_is_tight()) do not count as fitting */
  double budget_s;     /* time limit of the runs, or of the search if no runs are requested; 0: no limit */
  const char *results; /* folder of the results */
  const char *experiments; /* folder; NULL: DeepSpeed's default name, in a folder inside `results` */
  tws_tune_earlier earlier;
  /* settings of the runs */
  int64_t validate; /* maximum number of trials that are run; 0: no run is requested */
  const char *data;
  /* first and last measured step of a run; 0: the configuration's values, else 3 and 5 */
  int64_t first_step, last_step;
  int64_t rounds, race; /* as in tws_tune_measuring */
  double limit_s;       /* time limit of a run */
} tws_tuning;

/* Sets the settings that no option states from the configuration's section autotuning or its batch keys. Fails with
 * TWS_USAGE if settings contradict each other, and with TWS_INVALID if the cluster file lacks the figures of the
 * objective. */
tws_code tws_tuning_complete(tws_tuning *t, tws_error *err);
/* Checks that the cluster's devices have enough memory, and that this machine can run the trials. tws_tuning_run() and
 * tws_tuning_sweep() call it. Fails with TWS_NO if nothing can fit. */
tws_code tws_tuning_check(const tws_tuning *t, tws_error *err);

/* Type of the callback that receives the report after all files are written. report->result->fits is 0 if nothing
 * fits. */
typedef tws_code (*tws_tuning_callback)(void *user, const tws_tune_report *report, tws_error *err);
/* Runs the tuning, writes its files and calls `tell`. A process that searches a part other than the first
 * (tws_tune_request.part) writes nothing and does not call `tell`. Returns TWS_NO if nothing fits, or no run could be
 * measured; files are written and `tell` is called in this case too. */
tws_code tws_tuning_run(const tws_tuning *t, tws_tuning_callback tell, void *user, tws_error *err);
/* Repeats the search for each value of one figure of the cluster; writes no files. Fails with TWS_USAGE if runs are
 * requested. */
tws_code tws_tuning_sweep(const tws_tuning *t, const tws_knee_sweep *range, tws_knee *out, tws_error *err);

#endif
