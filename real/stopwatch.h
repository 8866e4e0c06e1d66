/* Times work on a backend. On the host a clock is read before and after it. On a device, time stamps are recorded on
 * its compute stream, and the repetitions are recorded and launched as a whole if the backend can do that, as in
 * training: so the launch overhead of small kernels is not included. */
#ifndef TWS_REAL_STOPWATCH_H
#define TWS_REAL_STOPWATCH_H

#include "real/real.h"

typedef struct tws_stopwatch {
  const tws_backend_ops *ops;
  tws_backend *backend;
  int one_by_one; /* recording is not wanted or not supported: set by the first attempt */
} tws_stopwatch;

/* Starts one execution; on a device, on its compute stream. */
typedef tws_code (*tws_timed)(void *user, tws_error *err);

/* Seconds of one execution, measured over `times` executions. `ready` is called right before, for example for a
 * barrier (NULL: no call). On a device, work of this shape must have run before. */
tws_code tws_stopwatch_measure(tws_stopwatch *watch, tws_timed start, tws_timed ready, void *user, int times,
                               double *seconds, tws_error *err);

#endif
