/* The smallest change of a job's settings with which it fits, found by trying. */
#ifndef TWS_AUTOTUNE_REMEDY_H
#define TWS_AUTOTUNE_REMEDY_H

#include "job/fit.h"

/* Of a job that is to run that program: "it fits with --recompute full: 31.4 GiB, 33 % slower", in the flags that are
 * given; slower by the time of a token than the job as it was given, if only there were memory for that. 0 when no
 * change that is tried helps, with what to do instead. */
int tws_remedy_find(const tws_job_spec *spec, tws_program program, char *text, size_t size);

#endif
