/* One configuration, really run: a training in a process of its own that may crash, hang or run out of memory, and
 * whatever came of it is a record with a reason.
 *
 * Files, as DeepSpeed's autotuner lays them out: EXPS/<name>.json (what is to be run), RESULTS/<name>/ with
 * ds_config.json, exp.json, cmd.txt, stdout.log, stderr.log, metrics.json, and our measured.json, the record itself,
 * which is written after each run: a search that was killed reads it and does not run the same again. */
#ifndef TWS_AUTOTUNE_EXPERIMENT_H
#define TWS_AUTOTUNE_EXPERIMENT_H

#include "base/memory.h"
#include "job/job.h"

typedef enum tws_outcome {
  TWS_OUTCOME_NONE, /* not run */
  TWS_OUTCOME_MEASURED,
  TWS_OUTCOME_OUT_OF_MEMORY,
  TWS_OUTCOME_HUNG, /* a step, or the whole run, took longer than the limit */
  TWS_OUTCOME_FAILED,
  TWS_OUTCOMES
} tws_outcome;
const char *tws_outcome_name(tws_outcome outcome); /* "measured", "out_of_memory", ... */

enum { TWS_EXPERIMENT_KINDS = TWS_KERNEL_COUNT + TWS_COLLECTIVE_COUNT };
typedef struct tws_experiment {
  tws_outcome outcome;
  char reason[256]; /* of what is not measured: one line */
  int runs;         /* that ended well */
  double *step_s;   /* of the measured steps of all runs */
  size_t count, capacity;
  double *run_s; /* median step of each run */
  size_t run_count, run_capacity;
  double rank_bytes, peak_rss_bytes;   /* arenas of the fullest rank; resident memory of all ranks */
  double phase_s[TWS_PHASE_COUNT];     /* of the traced step: busy seconds of one rank, mean over the ranks */
  double kind_s[TWS_EXPERIMENT_KINDS]; /* by kernel, mean over the ranks; then by collective, of the rank that waits
                                        * for others least */
} tws_experiment;
void tws_experiment_free(tws_experiment *experiment);
/* Median and interquartile range of the steps; 0 without any. */
void tws_experiment_times(tws_experiment *experiment, double *median_s, double *spread_s);

/* What all experiments of a search have in common. */
typedef struct tws_experiment_setup {
  const tws_job_spec *spec; /* what the search's job was opened with */
  const char *data, *results;
  int64_t first_step, last_step; /* that are measured, 1-based; one more is run, for its trace */
  double limit_s;                /* for one run */
  const char *fidelity;          /* of the simulation that predicted; NULL: the longest path did */
} tws_experiment_setup;

/* One run of `job`, whose configuration is RESULTS/<name>/ds_config.json; adds to *experiment and writes the record.
 * Fails only where nothing could be tried or written. */
tws_code tws_experiment_run(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                            tws_experiment *experiment, tws_error *err);
/* The record of an earlier run of the same model, configuration, data and steps; outcome NONE where there is none. */
tws_code tws_experiment_read(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                             tws_experiment *experiment, tws_error *err);
/* cmd.txt: the command that trains, without what only the tuner wants of it, and, as a comment, the one that predicts
 * again; with another runtime than this program's the one that predicts alone. The texts live in the arena. */
tws_code tws_experiment_command(const tws_experiment_setup *setup, const tws_job *job, const char *config,
                                tws_arena *arena, tws_text *out, tws_error *err);

#endif
