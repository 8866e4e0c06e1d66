/* The factors by which measurements rescale a profile (job/measured.h), as a job keeps them for its reports. */
#ifndef TWS_JOB_RESCALING_H
#define TWS_JOB_RESCALING_H

#include "models/hardware/profile.h"

typedef struct tws_rescaling {
  int steps, rates; /* numbers of measured steps and of measured rates; both 0: the profile is unchanged */
  double factor[TWS_SCALE_COUNT]; /* factors on the seconds of each kind of operation */
  /* 1: the factor is at the bound below which times would not be physical; -1: at the upper bound */
  int bounded[TWS_SCALE_COUNT];
  /* seconds of the first measured step: predicted before and after rescaling, and measured */
  double before_s, after_s, measured_s;
} tws_rescaling;

#endif
