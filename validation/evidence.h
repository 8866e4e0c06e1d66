/* Compares a prediction with the nearest measurements. The table has all published training runs whose step's time is
 * known, each with its predicted step (evidence.def and the files that it includes, docs/accuracy.md). From it this
 * file finds the run that is nearest to a job, and the interval in which nine of ten measured steps of similar jobs
 * lie. The weights and the formula are in evidence_weights.def. */
#ifndef TWS_VALIDATION_EVIDENCE_H
#define TWS_VALIDATION_EVIDENCE_H

#include <cjson/cJSON.h>
#include "job/job.h"

typedef enum tws_evidence_model {
  TWS_EVIDENCE_DENSE,
  TWS_EVIDENCE_EXPERTS,
  TWS_EVIDENCE_ENCODER,
  TWS_EVIDENCE_ADAPTERS,
  TWS_EVIDENCE_MODELS
} tws_evidence_model;
const char *tws_evidence_model_name(tws_evidence_model model); /* returns "dense", "experts", ... */

/* The properties by which published runs and jobs are compared. */
typedef struct tws_evidence_key {
  const char *runtime;
  char gpu[48];   /* a run's GPU, "a100"; for a job the name of its profile */
  int generation; /* tws_generation */
  tws_evidence_model model;
  double parameters, tokens; /* number of the model's parameters; tokens of a step */
  double predicted_s;        /* predicted seconds of a step */
  int gpus, stage;           /* number of GPUs; ZeRO stage, 0 with one replica */
} tws_evidence_key;
tws_evidence_key tws_evidence_describe(const tws_job *job, double step_s);

typedef enum tws_evidence_part {
  TWS_EVIDENCE_FITTING,  /* the run is of the half whose residuals determine intervals */
  TWS_EVIDENCE_REPORTED, /* the run is of the other half, which is only reported */
  TWS_EVIDENCE_APART     /* the run is excluded from all errors (docs/accuracy.md) */
} tws_evidence_part;
const char *tws_evidence_part_name(tws_evidence_part part);

typedef struct tws_evidence_run {
  const char *id, *group;
  tws_evidence_key key;
  double measured_s;
  tws_evidence_part part;
} tws_evidence_run;
const tws_evidence_run *tws_evidence_runs(int *count);
/* Returns the relative error of the predicted step: -0.2 means a fifth too short */
double tws_evidence_error(const tws_evidence_run *run);

typedef enum tws_evidence_kind {
  TWS_EVIDENCE_OWN, /* no run is compared: the profile is that of this machine's processor, calibrated or guessed as its
                     * provenance states, or the program is not a training step */
  TWS_EVIDENCE_PUBLISHED, /* the job is a published run */
  TWS_EVIDENCE_NEAR, /* the nearest run was predicted within 15 %, and has the same runtime, the same GPU, half to twice
                      * the GPUs, a quarter to four times the parameters, and ZeRO-3 if and only if the job has it */
  TWS_EVIDENCE_WRONG, /* the nearest run is as similar as for NEAR, but its prediction had a larger error */
  TWS_EVIDENCE_FAR    /* no run is as similar as for NEAR */
} tws_evidence_kind;

typedef struct tws_evidence {
  tws_evidence_kind kind;
  const tws_evidence_run *nearest; /* the nearest run; NULL: the kind is OWN */
  /* 1: the nearest run has another runtime, another GPU, ZeRO-3 where the job has not or the reverse */
  int other_runtime, other_gpu, other_stage;
  double gpus_factor, parameters_factor; /* the job's GPUs and parameters divided by those of the nearest run */
  /* Interval in which nine of ten measured steps of similar jobs lie, divided by the predicted step; both 0: the kind
   * is OWN. runs: sum of the weights of the runs that determine it. */
  double low, high, runs;
} tws_evidence;

/* Return the evidence for a job, or for a variant of an open job, whose step is predicted to take step_s seconds. */
tws_evidence tws_evidence_of_job(const tws_job *job, double step_s);
tws_evidence tws_evidence_of_variant(const tws_job *open, const tws_variant *variant, double step_s);
/* Returns the evidence for a job that is described by its properties. */
tws_evidence tws_evidence_of(const tws_evidence_key *key);

/* Returns a word for the kind, for a table: "published", "near", "far", "wrong" or "own". */
const char *tws_evidence_word(tws_evidence_kind kind);
/* Writes one sentence: the nearest measured run, the error of its prediction, and how this job differs; "" for
 * TWS_EVIDENCE_OWN. */
void tws_evidence_text(const tws_evidence *evidence, char *text, size_t size);
/* Writes the interval as " (3.6 s to 4.7 s in nine of ten such runs)", to follow the predicted seconds; "" for
 * TWS_EVIDENCE_OWN. */
void tws_evidence_interval_text(const tws_evidence *evidence, double step_s, char *text, size_t size);
/* Adds "predicted_low_s" and "predicted_high_s"; adds nothing for TWS_EVIDENCE_OWN (the profile is this machine's). */
void tws_evidence_interval_json(const tws_evidence *evidence, double step_s, cJSON *to);
/* Returns a new object {"kind", "nearest", "error", ...}, which the caller adds as "evidence" to a result. */
cJSON *tws_evidence_json(const tws_evidence *evidence);

#endif
