/* The changes of a job that help most, found by trying: each is planned and estimated, none is guessed. */
#ifndef TWS_AUTOTUNE_ADVICE_H
#define TWS_AUTOTUNE_ADVICE_H

#include "job/fit.h"

enum { TWS_ADVICES = 3 };
typedef struct tws_advice {
  char words[96];            /* "optimizer off the host" */
  char arguments[192];       /* "--set zero_optimization.offload_optimizer.device=none" */
  int changes_results;       /* it changes what is trained */
  double tokens_per_s, gain; /* gain: 0.34 is 34 % more tokens a second than the job, were there memory for it */
  double device_bytes;
} tws_advice;

/* Changes of the job with which it fits, the fastest first: of a job that fits those that are faster by 2 % at least;
 * of one that does not also those that change what is trained (adapters). The global batch stays. estimate and fits
 * are the job's own. Returns their number; 0 on a host, and for plans that take seconds to try. */
int tws_advice_find(const tws_job_spec *spec, const tws_job *job, const tws_estimate *estimate, int fits,
                    uint64_t operations, tws_advice list[TWS_ADVICES]);

#endif
