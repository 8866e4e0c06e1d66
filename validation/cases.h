/* Measured runs of other software, as data: what was run, on what, and what was measured. Each is converted to a job
 * that can be planned, so that predictions are compared with measurements, by group.
 *
 * A file is a list of rows {"id", "group", "source", "model", "parallel", "hardware", "result", "notes", "tags",
 * "confidence", "config_confidence", "usable"}; members that are absent are unknown (docs/accuracy.md has the schema).
 * Rows hold a model's sizes, not its config.json: one is made of them. Nothing in a row is a setting of the predictor:
 * GPU, network and software choose profile, cluster and runtime style by rules about the sources, which lie next to
 * the published rows (scenarios/published/sources.json). */
#ifndef TWS_VALIDATION_CASES_H
#define TWS_VALIDATION_CASES_H

#include "base/json.h"
#include "base/log.h"
#include "job/simulate.h"
#include "models/hardware/runtime_interval.h"

typedef enum tws_case_memory {                     /* what a measured peak counts */
                               TWS_CASE_ALLOCATED, /* tensors: torch's max_memory_allocated */
                               TWS_CASE_RESERVED,  /* what its allocator holds */
                               TWS_CASE_DEVICE     /* nvidia-smi: everything on the device */
} tws_case_memory;

typedef struct tws_case {
  const char *id, *group;
  const cJSON *row;
  cJSON *facts;          /* what the rules about its source add: validation/case_rules.h */
  double measured_s;     /* stated seconds of a step; 0: none, or only a rate (tws_case_step_s()) */
  double measured_bytes; /* 0: none */
  tws_case_memory counts;
  int of_last_stage, of_first_stage; /* measured there; neither: on the fullest device */
  int out_of_memory;                 /* -1: not stated; a run that anything was measured of ran */
} tws_case;

typedef struct tws_cases {
  tws_json *json;  /* owns all texts */
  tws_json *rules; /* about the sources (validation/case_rules.h) */
  tws_case *cases;
  int count;
} tws_cases;

/* TWS_INVALID with file, line and key if the file is not such a list, or has rows without id or group or two rows of
 * one id. */
tws_code tws_cases_load(const char *path, tws_cases **out, tws_error *err);
void tws_cases_destroy(tws_cases *cases);

/* Converts the run to a job. TWS_UNSUPPORTED: the message is the reason, with the same text for all runs that lack the
 * same. TWS_INVALID: as tws_job_load(). */
tws_code tws_case_job(const tws_cases *cases, int index, tws_job **out, tws_error *err);

/* Flops of one iteration as papers count them: dense products of the layers and the logits of GPT, attention over the
 * whole square, h hidden, l layers, s sequence, V padded vocabulary, B samples:
 *   without recomputation 72 B s l h^2 (1 + s / 6h + V / 12lh), with it 96 B s l h^2 (1 + s / 6h + V / 16lh)
 * (Narayanan et al., 2021, appendix). They assume a feed-forward width of 4h and as many key heads as query heads. */
double tws_case_flops(const tws_network *network, double samples, double sequence, int recomputed);
/* Returns the seconds of one step: stated, or derived from tokens, samples or flops per second as the source counts
 * them; 0: the row has no usable figure. */
double tws_case_step_s(const tws_case *one, const tws_job *job);

typedef struct tws_case_prediction {
  double step_s, bytes;                 /* bytes: as the row counts them */
  double state_bytes, activation_bytes; /* at the peak of the stage that needs the most */
  int fits, tight;                      /* tight: it fits, and what was seen of the runtime reaches beyond the device */
  const tws_memory_interval *seen;
} tws_case_prediction;
/* sim: NULL, or what simulates the step instead of estimating it. */
tws_code tws_case_predict(const tws_case *one, const tws_job *job, const tws_sim_api *sim,
                          tws_case_prediction *prediction, tws_error *err);

/* ---- comparison ---- */

typedef struct tws_case_result {
  const tws_case *of;
  const char *skipped_because;                                     /* NULL: predicted */
  double predicted_s, measured_s, predicted_bytes, measured_bytes; /* 0: none */
  int predicted_fits, out_of_memory;                               /* -1: no verdict */
  int predicted_tight;
  const tws_memory_interval *seen; /* NULL where skipped */
  const char *runtime;             /* "" where skipped */
  const char *doubt;               /* why it is not scored or NULL */
  int doubts_time, doubts_memory;  /* which of the two */
  int for_fitting;                 /* tws_case_is_for_fitting() */
} tws_case_result;

typedef struct tws_case_reason {
  const char *text;
  int count;
} tws_case_reason;

typedef struct tws_case_group {
  const char *name;
  int n, skipped, time_n, mem_n, oom_right, oom_wrong;
  /* percent of the measured; NaN without any. bias: mean of signed errors. concordance: share of pairs of runs that are
   * predicted in their measured order, ties in the prediction half. */
  double time_mape, time_median_ape, time_bias, within_10, concordance, mem_mape;
} tws_case_group;

typedef struct tws_case_comparison {
  tws_case_result *results; /* of the chosen groups, in the file's order */
  int count;
  tws_case_group *groups;
  int group_count;
  tws_case_reason *reasons; /* the most frequent first */
  int reason_count;
  tws_arena *arena;
} tws_case_comparison;

/* groups: names, or none for all; TWS_USAGE when one is not in the file. Runs that cannot be planned are skipped with
 * the reason. Free *out in any case after the call. */
tws_code tws_cases_compare(const tws_cases *cases, const char *const *groups, int group_count, const tws_sim_api *sim,
                           tws_progress *progress, tws_case_comparison *out, tws_error *err);
/* Relative error of the predicted time; NaN where it is not scored. */
double tws_case_time_error(const tws_case_result *result);
/* Results whose time is scored, the farthest off first; farthest[comparison->count], returns how many there are. */
int tws_cases_farthest(const tws_case_comparison *comparison, const tws_case_result **farthest);
void tws_case_comparison_free(tws_case_comparison *comparison);

/* Constants may be fitted on the runs whose id has a SHA-256 with an even first byte
 * (scenarios/published/split.sh); the others are only reported. */
int tws_case_is_for_fitting(const char *id);
const char *tws_case_half_name(int fitting); /* "fitting", "reported" */

typedef struct tws_case_half {
  int for_fitting, runs;
  /* verdicts of runs that ran, and of those that ran out of memory */
  int ran_right, ran_wrong, oom_right, oom_wrong;
  int ran_tight, oom_tight; /* runs among these that are predicted to fit tightly, which counts as fitting */
  /* errors of peaks in percent, NaN without any: of runs; of groups, each by the mean of its runs in this half */
  int memory_runs, memory_groups;
  int memory_inside; /* of the runs: inside what was seen of their runtime (models/hardware/runtime_intervals.def) */
  double memory_median, memory_median_of_groups, memory_mean_of_groups;
} tws_case_half;
/* The half for fitting, then the reported one. */
tws_code tws_cases_halves(const tws_case_comparison *comparison, tws_case_half halves[2], tws_error *err);

/* Mean absolute error of time over all results, percent; NaN without any. */
double tws_cases_time_error(const tws_case_comparison *comparison, int *count);

#endif
