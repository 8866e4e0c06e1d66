/* Measures the time of a work on a backend. On the host a clock is read before and after it. On a device, time stamps
 * are recorded on the compute stream, and the repetitions are recorded and launched as a whole if the backend can do
 * that, as in training, so that the launch overhead of small kernels is not included. */
#ifndef TWS_REAL_STOPWATCH_H
#define TWS_REAL_STOPWATCH_H

#include "real/real.h"

typedef struct tws_stopwatch {
  const tws_backend_ops *ops;
  tws_backend *backend;
  int one_by_one; /* 1: executions are launched one by one, because recording is not wanted or, as the first attempt has
                   * shown, not supported */
  /* 1: on the host, the work runs on the calling thread alone, and the CPU clock of this thread is read, which does not
   * count the time in which other processes have the core; 0: the monotonic clock is read */
  int alone;
} tws_stopwatch;

/* A function that starts one execution of the work; on a device, on the compute stream. */
typedef tws_code (*tws_timed)(void *user, tws_error *err);

/* Measures the seconds of one execution, averaged over `times` executions. `ready` is called immediately before, for
 * example for a barrier (NULL: no call). On a device, work of this shape must have run before. */
tws_code tws_stopwatch_measure(tws_stopwatch *watch, tws_timed start, tws_timed ready, void *user, int times,
                               double *seconds, tws_error *err);

/* The clocks of a pass of inference: seconds of the monotonic clock, and CPU seconds of the process so far. */
typedef struct tws_pass_clocks {
  double s, cpu_s;
} tws_pass_clocks;
tws_pass_clocks tws_pass_clocks_read(void);

#endif
