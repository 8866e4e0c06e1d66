/* The distance of a prediction from measurements: all published training runs whose step's time is known, each with
 * what was predicted for it (evidence.def and the files that it includes, docs/accuracy.md), the nearest of them to a
 * job, and the interval in which nine of ten measured steps of such jobs lie. Weights and formula are in
 * evidence_weights.def. */
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
const char *tws_evidence_model_name(tws_evidence_model model); /* "dense", "experts", ... */

/* The properties that tell published runs and jobs from each other. */
typedef struct tws_evidence_key {
  const char *runtime;
  char gpu[48];   /* a run: "a100"; a job: its profile's name */
  int generation; /* tws_generation */
  tws_evidence_model model;
  double parameters, tokens; /* tokens: of a step */
  double predicted_s;        /* of a step */
  int gpus, stage;           /* ZeRO; 0 with one replica */
} tws_evidence_key;
tws_evidence_key tws_evidence_describe(const tws_job *job, double step_s);

typedef enum tws_evidence_part {
  TWS_EVIDENCE_FITTING,  /* of the half whose residuals make intervals */
  TWS_EVIDENCE_REPORTED, /* of the other half */
  TWS_EVIDENCE_APART     /* no error counts it (docs/accuracy.md) */
} tws_evidence_part;
const char *tws_evidence_part_name(tws_evidence_part part);

typedef struct tws_evidence_run {
  const char *id, *group;
  tws_evidence_key key;
  double measured_s;
  tws_evidence_part part;
} tws_evidence_run;
const tws_evidence_run *tws_evidence_runs(int *count);
double tws_evidence_error(const tws_evidence_run *run); /* of the predicted step, relative: -0.2 is a fifth too short */

typedef enum tws_evidence_kind {
  TWS_EVIDENCE_OWN,       /* of this machine: its profile was calibrated, or is a guess: its provenance says; and of
                           * programs other than a training step */
  TWS_EVIDENCE_PUBLISHED, /* the job is a published run */
  TWS_EVIDENCE_NEAR,  /* a run of the runtime on such a GPU, both or none with ZeRO-3, on half to twice the GPUs, of a
                           * quarter to four times the size, was predicted within 15 % */
  TWS_EVIDENCE_WRONG, /* such a run was predicted worse */
  TWS_EVIDENCE_FAR    /* there is no such run */
} tws_evidence_kind;

typedef struct tws_evidence {
  tws_evidence_kind kind;
  const tws_evidence_run *nearest;           /* NULL: OWN */
  int other_runtime, other_gpu, other_stage; /* what differs */
  double gpus_factor, parameters_factor;     /* > 1: the job has more */
  /* Nine of ten steps of such jobs took low to high times the predicted one; both 0: OWN. runs: the weight of those
   * that say it. */
  double low, high, runs;
} tws_evidence;

/* The evidence for a job whose step is predicted to take step_s. */
tws_evidence tws_evidence_of_job(const tws_job *job, double step_s);
tws_evidence tws_evidence_of_variant(const tws_job *open, const tws_variant *variant, double step_s);
/* The same of what is described. */
tws_evidence tws_evidence_of(const tws_evidence_key *key);

/* "published", "near", "far", "wrong" for a table; "own" */
const char *tws_evidence_word(tws_evidence_kind kind);
/* One sentence: what was measured nearest, how it was predicted and how this job differs. "" for OWN. */
void tws_evidence_text(const tws_evidence *evidence, char *text, size_t size);
/* " (3.6 s to 4.7 s in nine of ten such runs)", to stand after the predicted seconds; "" for OWN. */
void tws_evidence_interval_text(const tws_evidence *evidence, double step_s, char *text, size_t size);
/* Adds "predicted_low_s" and "predicted_high_s"; nothing for OWN. */
void tws_evidence_interval_json(const tws_evidence *evidence, double step_s, cJSON *to);
/* "evidence": {"kind", "nearest", "error", ...}: the caller's to add. */
cJSON *tws_evidence_json(const tws_evidence *evidence);

#endif
