/* Measured runs of other software, as data: what was run, on what, and what was measured. Each is converted to a job
 * that can be planned, so that predictions are compared with measurements, by group.
 *
 * A file is a list of rows {"id", "group", "source", "model", "parallel", "hardware", "result", "notes", "tags",
 * "confidence", "config_confidence", "usable"}; members that are absent are unknown (docs/accuracy.md has the schema).
 * A row has a model's sizes, not its config.json, which is generated from them. Nothing in a row is a setting of the
 * predictor: GPU, network and software choose profile, cluster and runtime style by rules about the sources, which are
 * stored with the published rows (scenarios/published/sources.json). */
#ifndef TWS_VALIDATION_CASES_H
#define TWS_VALIDATION_CASES_H

#include "base/json.h"
#include "base/log.h"
#include "job/simulate.h"
#include "models/hardware/runtime_interval.h"
#include "validation/evidence.h"

typedef enum tws_case_memory {                     /* the quantity of a measured peak of memory */
                               TWS_CASE_ALLOCATED, /* tensors: torch's max_memory_allocated */
                               TWS_CASE_RESERVED,  /* all bytes that PyTorch's allocator holds: torch's
                                                   * max_memory_reserved */
                               TWS_CASE_DEVICE     /* nvidia-smi: everything on the device */
} tws_case_memory;

typedef struct tws_case {
  const char *id, *group;
  const cJSON *row;
  cJSON *facts; /* properties that the row does not state, from the rules about its source (validation/case_rules.h) */
  double measured_s;     /* stated seconds of a step; 0: the row has none, or only a rate (tws_case_step_s()) */
  double measured_bytes; /* measured peak of memory; 0: none */
  tws_case_memory counts;
  int of_last_stage, of_first_stage; /* stage of the measured peak; both 0: the stage with the highest */
  int out_of_memory; /* 1: the run failed for lack of memory; -1: not stated; 0 if anything was measured, since the run
                      * completed then */
} tws_case;

typedef struct tws_cases {
  tws_json *json;  /* owns all texts */
  tws_json *rules; /* rules about the sources of the runs (validation/case_rules.h) */
  tws_case *cases;
  int count;
} tws_cases;

/* Reads a file of measured runs. Fails with TWS_INVALID and with file, line and key if the file is not such a list, has
 * rows without id or group, or has two rows with one id. */
tws_code tws_cases_load(const char *path, tws_cases **out, tws_error *err);
void tws_cases_destroy(tws_cases *cases);

/* Converts a run to a job. Fails with TWS_UNSUPPORTED if the run cannot be planned: the message is the reason, with the
 * same text for all runs that lack the same property; with TWS_INVALID as tws_job_load(). */
tws_code tws_case_job(const tws_cases *cases, int index, tws_job **out, tws_error *err);

/* Flops of one iteration as papers count them: dense products of the layers and the logits of GPT, attention over the
 * whole square, h hidden, l layers, s sequence, V padded vocabulary, B samples:
 *   without recomputation 72 B s l h^2 (1 + s / 6h + V / 12lh), with it 96 B s l h^2 (1 + s / 6h + V / 16lh)
 * (Narayanan et al., 2021, appendix). They assume a feed-forward width of 4h and as many key heads as query heads. */
double tws_case_flops(const tws_network *network, double samples, double sequence, int recomputed);
/* Returns the measured seconds of one step, as stated, or derived from tokens, samples or flops per second as the
 * source counts them; 0: the row has no usable figure. */
double tws_case_step_s(const tws_case *one, const tws_job *job);

typedef struct tws_case_prediction {
  double step_s, bytes;                 /* bytes: peak of memory, allocated or reserved, as the row says */
  double state_bytes, activation_bytes; /* bytes by category at the peak of the pipeline stage with the highest peak */
  int fits, tight; /* tight: it fits, but the upper end of the interval of the runtime's peaks does not */
  const tws_memory_interval *seen;
} tws_case_prediction;
/* Predicts a run's step and memory. sim: the simulator of the step; NULL: the step is estimated by its longest path. */
tws_code tws_case_predict(const tws_case *one, const tws_job *job, const tws_sim_api *sim,
                          tws_case_prediction *prediction, tws_error *err);

/* ---- comparison ---- */

typedef struct tws_case_result {
  const tws_case *of;
  const char *skipped_because; /* reason why the run is not predicted; NULL: it is */
  double predicted_s, measured_s, predicted_bytes, measured_bytes; /* seconds of a step, peaks of memory; 0: none */
  int predicted_fits, out_of_memory; /* 1 or 0; out_of_memory: as in tws_case; -1: not known */
  int predicted_tight;
  const tws_memory_interval *seen; /* interval of measured peaks of the runtime; NULL: the run is skipped */
  const char *runtime;             /* name of the runtime; "": the run is skipped */
  const char *doubt;               /* reason why the run is excluded from the errors; NULL: it is not */
  int doubts_time, doubts_memory;  /* 1: the exclusion concerns the errors of time, of memory */
  int for_fitting;                 /* tws_case_is_for_fitting() */
  tws_evidence_key key;            /* properties of the job, for the evidence */
  tws_evidence_part part;          /* half of the run: its residual determines intervals or is only reported */
  double low_s, high_s;            /* interval in which nine of ten measured steps of similar runs lie; 0: not known */
} tws_case_result;

typedef struct tws_case_reason {
  const char *text;
  int count;
} tws_case_reason;

typedef struct tws_case_group {
  const char *name;
  int n, skipped, time_n, mem_n, oom_right, oom_wrong;
  /* Errors in percent of the measured value; NaN: there are none. bias: mean of signed errors. concordance: share of
   * pairs of runs that are predicted in their measured order; a tie in the prediction counts as one half. */
  double time_mape, time_median_ape, time_bias, within_10, concordance, mem_mape;
  int apart_n; /* number of predicted steps that are excluded from all other figures, for the reason in
                * tws_case_result.doubt */
  double apart_mape;
} tws_case_group;

typedef struct tws_case_comparison {
  tws_case_result *results; /* results of the chosen groups, in the order of the file */
  int count;
  tws_case_group *groups;
  int group_count;
  tws_case_reason *reasons; /* reasons for skipped runs, the most frequent first */
  int reason_count;
  tws_arena *arena;
} tws_case_comparison;

/* Predicts the runs of the named groups, or of all if group_count is 0, and compares them with the measurements. Runs
 * that cannot be planned are skipped with the reason. Fails with TWS_USAGE if a group is not in the file. The caller
 * frees *out with tws_case_comparison_free(), after an error too. */
tws_code tws_cases_compare(const tws_cases *cases, const char *const *groups, int group_count, const tws_sim_api *sim,
                           tws_progress *progress, tws_case_comparison *out, tws_error *err);
/* Returns 1 for a run that is excluded from the errors of a figure that was measured; tables count such runs
 * separately. */
int tws_case_is_excluded(const tws_case_result *result);
/* Returns the relative error of the predicted time; NaN if the run's time is not scored. */
double tws_case_time_error(const tws_case_result *result);
/* Lists the results whose time is scored, the largest error first, in farthest[comparison->count]. Returns their
 * number. */
int tws_cases_by_error(const tws_case_comparison *comparison, const tws_case_result **farthest);
void tws_case_comparison_free(tws_case_comparison *comparison);

/* The errors if one run is the measurement by which the profile is rescaled (job/measured.h), and the other runs of its
 * group are predicted with that profile: mean absolute errors in percent. */
typedef struct tws_case_choice {
  const tws_case *of;
  double measured_s, factor[TWS_SCALE_COUNT];
  double own;    /* error of this run itself */
  double others; /* mean error of the group's other runs; NaN: there are none */
} tws_case_choice;
typedef struct tws_case_rescaled {
  const char *group;
  int runs;
  double before, after; /* mean errors without a measurement, and with one, averaged over the choices */
} tws_case_rescaled;
typedef struct tws_case_choices {
  tws_case_choice *choices;
  tws_case_rescaled *groups;
  int count, group_count;
} tws_case_choices;
/* Rescales the profile by each timed run of the named groups in turn, or of all groups if group_count is 0, and
 * predicts the group's other runs. The caller calls tws_case_choices_free() on *out, after an error too. */
tws_code tws_cases_rescale(const tws_cases *cases, const char *const *groups, int group_count, tws_progress *progress,
                           tws_case_choices *out, tws_error *err);
void tws_case_choices_free(tws_case_choices *choices);

/* Returns 1 if constants may be fitted on the run: its id has a SHA-256 with an even first byte
 * (scenarios/published/split.sh). The other runs are only reported. */
int tws_case_is_for_fitting(const char *id);
const char *tws_case_half_name(int fitting); /* returns "fitting" or "reported" */

typedef struct tws_case_half {
  int for_fitting, runs;
  /* numbers of right and wrong predictions of fitting, for runs that completed and for runs that ran out of memory */
  int ran_right, ran_wrong, oom_right, oom_wrong;
  int ran_tight, oom_tight; /* number of runs that completed, or ran out of memory, and were predicted to fit tightly,
                             * which counts as fitting */
  /* Errors of memory peaks in percent, NaN if there are none: median over runs; median and mean over groups, each with
   * the mean error of its runs in this half. */
  int memory_runs, memory_groups;
  int memory_inside; /* number of runs whose measured peak is in the interval of their runtime
                      * (models/hardware/runtime_intervals.def) */
  double memory_median, memory_median_of_groups, memory_mean_of_groups;
  /* Errors of the step's time in percent, over groups with five timed runs or more. time_inside: number of steps in
   * their interval, out of time_in_interval, which counts all timed runs, excluded ones too. time_half_width: half
   * width of the intervals relative to the predicted step, as the median over all groups of their means. */
  int time_runs, time_groups, time_inside, time_in_interval;
  double time_median_of_groups, time_mean_of_groups, time_worst_group, time_half_width;
} tws_case_half;
/* Sums up the runs of the half for fitting in halves[0], and of the reported half in halves[1]. */
tws_code tws_cases_halves(const tws_case_comparison *comparison, tws_case_half halves[2], tws_error *err);

/* Returns the mean absolute error of time in percent over all scored results, whose number is *count; NaN: there are
 * none. */
double tws_cases_time_error(const tws_case_comparison *comparison, int *count);

#endif
