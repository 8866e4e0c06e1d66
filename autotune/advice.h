/* Finds the changes of a job that increase its speed most, or make it fit. Each change is tried: the changed job is
 * planned and estimated. */
#ifndef TWS_AUTOTUNE_ADVICE_H
#define TWS_AUTOTUNE_ADVICE_H

#include "job/fit.h"

enum { TWS_ADVICES = 3 };
typedef struct tws_advice {
  char words[96];      /* the change in words: "optimizer off the host" */
  char arguments[192]; /* flags that make the change: "--set zero_optimization.offload_optimizer.device=none" */
  int changes_results; /* 1: the change affects the trained model, as adapters do */
  /* gain in tokens per second over the unchanged job on devices with enough memory: 0.34 means 34 % more */
  double tokens_per_s, gain;
  double device_bytes;
} tws_advice;

/* Lists changes of the job with which it fits, the fastest first: for a job that fits, those that are faster by at
 * least 2 %; for one that does not, also those that affect the trained model (adapters). The global batch stays the
 * same. `estimate` and `fits` are those of the unchanged job. Returns the number of changes; 0 if the job runs on a
 * host without devices, or if its plans take seconds to build. */
int tws_advice_find(const tws_job_spec *spec, const tws_job *job, const tws_estimate *estimate, int fits,
                    uint64_t operations, tws_advice list[TWS_ADVICES]);

/* Lists changes of a variant of the open job `job`, such as the winner of a search, as tws_advice_find() does. `spec`
 * is the specification of `job`. Returns 0 also if the variant cannot be planned. */
int tws_advice_for_variant(const tws_job_spec *spec, tws_job *job, const tws_variant *variant,
                           tws_advice list[TWS_ADVICES]);
/* Adds the array "advice" to a result. */
void tws_advice_json(const tws_advice *list, int count, cJSON *root);

#endif
