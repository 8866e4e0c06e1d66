#include "real/stopwatch.h"

#include <time.h>

#include "base/log.h"

static tws_code repeat_timed(tws_timed start, void *user, int times, tws_error *err) {
  for (int i = 0; i < times; i++) TWS_TRY(start(user, err));
  return TWS_OK;
}

static double now_s(const tws_stopwatch *w) {
  struct timespec now;
  if (!w->alone || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return tws_clock_s();
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static tws_code on_host(const tws_stopwatch *w, tws_timed start, tws_timed ready, void *user, int times,
                        double *seconds, tws_error *err) {
  if (ready) TWS_TRY(ready(user, err));
  const double started = now_s(w);
  TWS_TRY(repeat_timed(start, user, times, err));
  TWS_TRY(w->ops->synchronize(w->backend, err));
  *seconds = (now_s(w) - started) / times;
  return TWS_OK;
}

tws_pass_clocks tws_pass_clocks_read(void) {
  struct timespec now;
  tws_pass_clocks clocks = {.s = tws_clock_s()};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0)
    clocks.cpu_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  return clocks;
}

static tws_code record_timed(tws_stopwatch *w, tws_timed start, void *user, int times, tws_error *err) {
  const tws_code code = w->ops->record ? w->ops->record(w->backend, 1, err) : TWS_UNSUPPORTED;
  if (code == TWS_UNSUPPORTED) {
    w->one_by_one = 1;
    return TWS_OK;
  }
  TWS_TRY(code);
  TWS_TRY(repeat_timed(start, user, times, err));
  return w->ops->record(w->backend, 0, err);
}

static tws_code repeat_recorded(const tws_stopwatch *w, tws_timed start, void *user, int times, tws_error *err) {
  return w->one_by_one ? repeat_timed(start, user, times, err) : w->ops->replay(w->backend, err);
}

/* Measures on a device. The recording is launched twice in immediate succession: the first execution raises the clocks,
 * and hides the launch time of the second, which is timed. */
static tws_code on_device(tws_stopwatch *w, tws_timed start, tws_timed ready, void *user, int times, double *seconds,
                          tws_error *err) {
  double moments[2];
  if (!w->one_by_one) TWS_TRY(record_timed(w, start, user, times, err));
  TWS_TRY(w->ops->synchronize(w->backend, err));
  if (ready) TWS_TRY(ready(user, err));
  TWS_TRY(repeat_recorded(w, start, user, times, err));
  TWS_TRY(w->ops->mark(w->backend, TWS_STREAM_COMPUTE, 0, err));
  TWS_TRY(repeat_recorded(w, start, user, times, err));
  TWS_TRY(w->ops->mark(w->backend, TWS_STREAM_COMPUTE, 1, err));
  TWS_TRY(w->ops->marked(w->backend, 2, moments, err));
  *seconds = (moments[1] - moments[0]) / times;
  return TWS_OK;
}

tws_code tws_stopwatch_measure(tws_stopwatch *watch, tws_timed start, tws_timed ready, void *user, int times,
                               double *seconds, tws_error *err) {
  return watch->ops->mark ? on_device(watch, start, ready, user, times, seconds, err)
                          : on_host(watch, start, ready, user, times, seconds, err);
}
