/* Searches for the smallest change of a job's settings with which it fits. */
#ifndef TWS_AUTOTUNE_REMEDY_H
#define TWS_AUTOTUNE_REMEDY_H

#include "job/fit.h"

/* Writes the change in the flags of the command line, for a job that `program` is to run: "it fits with --recompute
 * full: 31.4 GiB, 33 % slower". "Slower" compares the time per token with the unchanged job on devices with enough
 * memory. Returns 0 if no change helps; the text then tells the user what to do instead. */
int tws_remedy_find(const tws_job_spec *spec, tws_program program, char *text, size_t size);

#endif
