/* How the library tells of failures: private to this folder. */
#ifndef TWS_LIBRARY_STATUS_H
#define TWS_LIBRARY_STATUS_H

#include "base/status.h"
#include "library/twinspeed.h"

/* Returns the public word for a code. */
twinspeed_status twinspeed_failed_(tws_code code);
/* Copies message and hint into `error`, if it is not NULL and the status is a failure; returns the status. */
twinspeed_status twinspeed_tell_(twinspeed_status status, const tws_error *why, twinspeed_error *error);

#endif
