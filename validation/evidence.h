/* Evidence for a prediction: the published training runs that predictions were compared with (evidence.def,
 * docs/accuracy.md), and the one that is nearest to a job. */
#ifndef TWS_VALIDATION_EVIDENCE_H
#define TWS_VALIDATION_EVIDENCE_H

#include <cjson/cJSON.h>
#include "job/job.h"

typedef struct tws_evidence_run {
  const char *id, *gpu;     /* "a100" */
  double parameters, error; /* error: relative, of the predicted step; -0.2: a fifth too short */
  int gpus, stage;          /* ZeRO; 0 with one replica */
} tws_evidence_run;
const tws_evidence_run *tws_evidence_runs(int *count);

typedef enum tws_evidence_kind {
  TWS_EVIDENCE_OWN,   /* this machine: its profile's provenance says if it was calibrated or guessed */
  TWS_EVIDENCE_NEAR,  /* a run on such a GPU, both or none with ZeRO-3, on half to twice the GPUs, of a quarter to four
                       * times the size, was predicted within 15 % */
  TWS_EVIDENCE_WRONG, /* such a run was predicted worse */
  TWS_EVIDENCE_FAR    /* there is no such run */
} tws_evidence_kind;

typedef struct tws_evidence {
  tws_evidence_kind kind;
  const tws_evidence_run *nearest; /* NULL: OWN */
  int other_gpu, other_stage;      /* 1: the job has another GPU, another ZeRO stage; factors > 1: the job has more */
  double gpus_factor, parameters_factor;
} tws_evidence;

tws_evidence tws_evidence_of_job(const tws_job *job);
tws_evidence tws_evidence_of_variant(const tws_job *open, const tws_variant *variant);

/* "near", "far", "wrong" for a table; "own" */
const char *tws_evidence_word(tws_evidence_kind kind);
/* One sentence: what was measured nearest, how it was predicted and how this job differs. "" for OWN. */
void tws_evidence_text(const tws_evidence *evidence, char *text, size_t size);
/* "evidence": {"kind", "nearest", "error", ...}: the caller's to add. */
cJSON *tws_evidence_json(const tws_evidence *evidence);

#endif
