#include "library/status.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)TWINSPEED_OK == TWS_OK && (int)TWINSPEED_INTERNAL == TWS_INTERNAL &&
                   (int)TWINSPEED_UNSUPPORTED == TWS_UNSUPPORTED && (int)TWINSPEED_RANK == TWS_RANK,
               "the public statuses are those of base/status.h up to INTERNAL, in its order");

twinspeed_status twinspeed_failed_(tws_code code) {
  return code <= TWS_INTERNAL ? (twinspeed_status)code : TWINSPEED_INTERNAL;
}

twinspeed_status twinspeed_tell_(twinspeed_status status, const tws_error *why, twinspeed_error *error) {
  if (!error) return status;
  memset(error, 0, sizeof *error);
  error->status = status;
  if (status == TWINSPEED_OK) return status;
  snprintf(error->message, sizeof error->message, "%s", why->message);
  snprintf(error->hint, sizeof error->hint, "%s", why->hint);
  return status;
}

const char *twinspeed_version(void) {
  return TWS_VERSION;
}

const char *twinspeed_status_name(twinspeed_status status) {
  return tws_code_name((tws_code)status);
}
