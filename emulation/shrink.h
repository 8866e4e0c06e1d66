/* Reduces a failing job that a random test has found to a small job that still fails. */
#ifndef TWS_EMULATION_SHRINK_H
#define TWS_EMULATION_SHRINK_H

#include "job/spec.h"

/* Returns 1 if the job fails; 0 if it succeeds, or if no such job is possible. */
typedef int (*tws_job_fails)(void *user, const tws_job_spec *spec);

/* Reduces ranks, axes, ZeRO stage, micro-batches, settings and types one at a time, as long as the job still fails,
 * until none can be reduced further. `spec` is a failing job. Returns the number of jobs that were tried. */
int tws_job_minimize(tws_job_spec *spec, tws_job_fails fails, void *user);

#endif
