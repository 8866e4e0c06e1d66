/* Trains one configuration in a separate process that may crash, hang or run out of memory; every outcome becomes a
 * record with a reason.
 *
 * Files are laid out as by DeepSpeed's autotuner: EXPS/<name>.json (the configuration to run), RESULTS/<name>/ with
 * ds_config.json, exp.json, cmd.txt, stdout.log, stderr.log, metrics.json, and Twinspeed's own measured.json. The
 * latter is the record, written after each run: a search that was killed reads it when it is resumed and does not
 * repeat the run. */
#ifndef TWS_AUTOTUNE_EXPERIMENT_H
#define TWS_AUTOTUNE_EXPERIMENT_H

#include "base/memory.h"
#include "job/job.h"

typedef enum tws_outcome {
  TWS_OUTCOME_NONE, /* the configuration was not run */
  TWS_OUTCOME_MEASURED,
  TWS_OUTCOME_OUT_OF_MEMORY,
  TWS_OUTCOME_HUNG, /* a step, or the whole run, exceeded its time limit */
  TWS_OUTCOME_FAILED,
  TWS_OUTCOMES
} tws_outcome;
const char *tws_outcome_name(tws_outcome outcome); /* returns "measured", "out_of_memory", ... */

enum { TWS_EXPERIMENT_KINDS = TWS_KERNEL_COUNT + TWS_COLLECTIVE_COUNT };
typedef struct tws_experiment {
  tws_outcome outcome;
  char reason[256]; /* one line: the reason why the configuration was not measured */
  int runs;         /* number of successful runs */
  double *step_s;   /* the measured steps of all runs */
  size_t count, capacity;
  double *run_s; /* median step of each run */
  size_t run_count, run_capacity;
  double rank_bytes, peak_rss_bytes; /* bytes: arenas of the fullest rank; resident memory of all ranks */
  double phase_s[TWS_PHASE_COUNT];   /* busy seconds of one rank in the traced step, by phase, mean over the ranks */
  /* seconds in the traced step by kernel, mean over the ranks; then by collective, of the rank with the shortest wait
   * for other ranks */
  double kind_s[TWS_EXPERIMENT_KINDS];
} tws_experiment;
void tws_experiment_free(tws_experiment *experiment);
/* Computes the median and the interquartile range of the steps; 0 if there are none. */
void tws_experiment_times(tws_experiment *experiment, double *median_s, double *spread_s);

/* Settings that all experiments of a search share. */
typedef struct tws_experiment_setup {
  const tws_job_spec *spec; /* the specification of the search's job */
  const char *data, *results;
  int64_t first_step, last_step; /* measured steps, 1-based; one more step is run for its trace */
  double limit_s;                /* time limit of one run */
  const char *fidelity;          /* fidelity of the simulation that predicted the step; NULL: the longest path was
                                  * used */
} tws_experiment_setup;

/* Runs `job`, whose configuration is RESULTS/<name>/ds_config.json, once; adds the result to *experiment and writes the
 * record. Fails only if the run could not be started or the record not be written. */
tws_code tws_experiment_run(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                            tws_experiment *experiment, tws_error *err);
/* Reads the record of an earlier run of the same model, configuration, data and steps; outcome NONE: there is none. */
tws_code tws_experiment_read(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                             tws_experiment *experiment, tws_error *err);
/* Writes the text of cmd.txt: the command that trains, without the options that only the tuner uses, and, as a comment,
 * the command that predicts; for another runtime than Twinspeed's own, only the latter. The texts live in the arena. */
tws_code tws_experiment_command(const tws_experiment_setup *setup, const tws_job *job, const char *config,
                                tws_arena *arena, tws_text *out, tws_error *err);

#endif
