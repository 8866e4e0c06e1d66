/* Prints a flops profile in the layout of DeepSpeed's profiler, for `twinspeed profile` and for a profiled step of
 * training. */
#ifndef TWS_CLI_FLOPS_VIEW_H
#define TWS_CLI_FLOPS_VIEW_H

#include "estimators/flops_profile.h"
#include "job/job.h"

typedef struct tws_flops_view {
  const tws_job *job;
  const tws_flops_profile *profile;
  int measured, detailed;
  int top, depth; /* top: number of module classes shown at each depth; depth: deepest level shown, -1: all */
  int64_t step;   /* number of the profiled training step; 0: none */
} tws_flops_view;
void tws_flops_print(const tws_flops_view *view, tws_text *out);
double tws_flops_samples_per_s(const tws_flops_view *view);

#endif
