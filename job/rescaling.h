/* Factors of a profile by measurements (job/measured.h), as jobs keep them for their answers. */
#ifndef TWS_JOB_RESCALING_H
#define TWS_JOB_RESCALING_H

#include "models/hardware/profile.h"

typedef struct tws_rescaling {
  int steps, rates;                     /* measurements; both 0: the profile is as it was */
  double factor[TWS_SCALE_COUNT];       /* on seconds */
  int bounded[TWS_SCALE_COUNT];         /* 1: no faster is physical, -1: no slower is allowed */
  double before_s, after_s, measured_s; /* of the first step */
} tws_rescaling;

#endif
