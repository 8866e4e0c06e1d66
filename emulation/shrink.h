/* The smallest job that still fails: of one that a random test has found, what can be left out is left out. */
#ifndef TWS_EMULATION_SHRINK_H
#define TWS_EMULATION_SHRINK_H

#include "job/spec.h"

/* Returns 1 if the job fails; 0 if it succeeds, or if no such job is possible. */
typedef int (*tws_job_fails)(void *user, const tws_job_spec *spec);

/* Ranks, axes, stage, micro batches, settings and types: each as small or as plain as it can be while the job fails,
 * until nothing can be made smaller. `spec` fails. Returns how many jobs were tried. */
int tws_job_shrink(tws_job_spec *spec, tws_job_fails fails, void *user);

#endif
