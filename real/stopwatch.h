/* How long work takes on a backend. On the host: a clock around it. On a device: moments noted on its compute stream,
 * with the repetitions recorded and started as a whole where the backend can do that, as training does: what a host
 * needs to start small kernels one by one is then no part of it. */
#ifndef TWS_REAL_STOPWATCH_H
#define TWS_REAL_STOPWATCH_H

#include "real/real.h"

typedef struct tws_stopwatch {
  const tws_backend_ops *ops;
  tws_backend *backend;
  int one_by_one; /* recording is not wanted or not there: set by the first attempt */
} tws_stopwatch;

/* Starts one execution; on a device, on its compute stream. */
typedef tws_code (*tws_timed)(void *user, tws_error *err);

/* Seconds of one of `times` executions. `ready` is called right before, for example to meet other ranks (NULL: nobody).
 * On a device, work of this shape must have run before. */
tws_code tws_stopwatch_measure(tws_stopwatch *watch, tws_timed start, tws_timed ready, void *user, int times,
                               double *seconds, tws_error *err);

#endif
