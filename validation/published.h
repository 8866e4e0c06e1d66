/* Published training runs, as data: what was run, what was measured, and where that was read. A file of them
 * (scenarios/published/runs.json) is made into jobs that can be planned, so that predictions stand beside what others
 * measured.
 *
 * The file is JSON with "schema": "twinspeed-published-1":
 *   about     text
 *   sources   {name: {"title", "url"}}
 *   systems   {name: a cluster file's object}; a profile that is a path is meant relative to the file
 *   models    {name: a Hugging Face config.json's object}
 *   config    a ds_config.json's object that all runs share
 *   runs      [{"id", "group", "source", "where" (table or figure), "system", "model", "gpus", "config" (keys of their
 * own, over the shared ones), "published", "note" (what was assumed), "reason" (why there is no prediction)}]
 * "published" has any of:
 *   step_s          seconds of one iteration
 *   teraflops       of one GPU, counted by tws_published_flops() with recomputation
 *   mfu             share of the peak, counted by tws_published_flops() without recomputation
 *   state_gib       weights, gradients and optimizer states of one GPU, GiB
 *   activation_gib  activations of one GPU, GiB
 *   fits            whether it ran in the GPU's memory */
#ifndef TWS_VALIDATION_PUBLISHED_H
#define TWS_VALIDATION_PUBLISHED_H

#include "base/json.h"
#include "base/log.h"
#include "job/simulate.h"

typedef struct tws_published_run {
  const char *id, *group, *title, *url, *where, *system, *model; /* all but id and group: "" when not given */
  const char *note, *reason;                                     /* NULL: none */
  int gpus;
  double step_s, teraflops, mfu, state_gib, activation_gib; /* 0: not published */
  int fits;                                                 /* -1: not published */
  const cJSON *config;                                      /* may be NULL */
} tws_published_run;

typedef struct tws_published {
  tws_json *json; /* owns all texts */
  const char *about;
  tws_published_run *runs;
  int count;
} tws_published;

/* TWS_INVALID with file, line and key: unknown keys, two runs of one id, names that are not in the file, a run that has
 * neither a reason nor what a prediction needs. */
tws_code tws_published_load(const char *path, tws_published **out, tws_error *err);
void tws_published_destroy(tws_published *published);

/* What one run is in this program's words. TWS_UNSUPPORTED and TWS_INVALID: what the run needs and why it cannot be
 * had. */
tws_code tws_published_job(const tws_published *published, int run, tws_job **out, tws_error *err);

/* Flops of one iteration as these papers count them: dense products of the layers and the logits of GPT, attention over
 * the whole square, h hidden, l layers, s sequence, V padded vocabulary, B samples:
 *   without recomputation 72 B s l h^2 (1 + s / 6h + V / 12lh), with it 96 B s l h^2 (1 + s / 6h + V / 16lh)
 * (Narayanan et al., 2021, appendix; the first is three quarters of the second but for the logits, which are never
 * recomputed). They assume a feed-forward width of 4h and as many key heads as query heads. */
double tws_published_flops(const tws_network *network, double samples, double sequence, int recomputed);
/* Seconds of one iteration as published: step_s, or what teraflops or mfu make it; 0: not published. *derived (may be
 * NULL) tells which. */
double tws_published_step(const tws_published_run *run, const tws_job *job, int *derived);
/* TFLOP/s of one GPU, counted with recomputation, when an iteration takes step_s. */
double tws_published_teraflops(const tws_published_run *run, const tws_job *job, double step_s);

typedef struct tws_prediction {
  tws_estimate estimate;
  double step_s;
  double state_gib, activation_gib; /* at the peak of the pipeline stage that needs the most memory */
  double memory_gib;                /* of that stage's device: arena and what libraries hold beside it */
  int fits;
} tws_prediction;
tws_code tws_published_predict(const tws_job *job, tws_prediction *prediction, tws_error *err);

/* ---- predictions beside what was published ---- */

typedef struct tws_published_row {
  const tws_published_run *run;
  tws_job *job;
  tws_prediction prediction;
  int predicted, derived, chosen; /* derived: published_s is of a rate */
  double published_s;
  tws_error why; /* no prediction */
} tws_published_row;

typedef struct tws_published_comparison {
  tws_published_row *rows; /* one for each run */
  int count;
} tws_published_comparison;

/* only: runs with this in their name (NULL: all); TWS_USAGE when there are none. sim: NULL, or what simulates those
 * whose time was published. Runs that cannot be planned are part of the answer; what fails for another reason ends it.
 * Free *out in any case after the call. */
tws_code tws_published_compare(const tws_published *published, const char *only, const tws_sim_api *sim,
                               tws_fidelity fidelity, tws_progress *progress, tws_published_comparison *out,
                               tws_error *err);
void tws_published_comparison_free(tws_published_comparison *comparison);

typedef enum tws_published_measure {
  TWS_PUBLISHED_STEP,
  TWS_PUBLISHED_STATE,
  TWS_PUBLISHED_ACTIVATIONS,
  TWS_PUBLISHED_MEASURES
} tws_published_measure;
/* Relative; NaN where one of the two is missing. */
double tws_published_error(const tws_published_row *row, tws_published_measure measure);
/* Median of the absolute errors of a group (NULL: all); the number of them in *count. NaN without any. */
double tws_published_median(const tws_published_comparison *comparison, const char *group,
                            tws_published_measure measure, int *count);
/* The groups in turn, in the order of their first chosen run: *next starts at 0; NULL past the last. */
const char *tws_published_next_group(const tws_published_comparison *comparison, int *next);

#endif
