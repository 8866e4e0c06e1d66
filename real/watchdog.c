#include "real/watchdog.h"
#include <inttypes.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include "base/memory.h"
#include "real/mpi_comm.h"

static const double grace_s = 2.0;

struct tws_watchdog {
  tws_watchdog_setup setup;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int stop, running;
  int64_t step;
  double began_s;
};

static void report_hang(const tws_watchdog *w, int64_t step) {
  tws_error err = {0};
  int missing = tws_comm_missing(w->setup.comm);
  char text[256];
  const char *doing = tws_executor_doing(w->setup.executor, text, (int)sizeof text);
  const char *hint = "raise --deadline if the step is only slow; look at that rank's machine otherwise";
  if (missing >= 0)
    tws_fail(&err, TWS_HANG, hint, "step %" PRId64 " is not done after %.3g s: rank %d does not come to operation '%s'",
             step, w->setup.deadline_s, missing, doing);
  else
    tws_fail(&err, TWS_HANG, hint, "step %" PRId64 " is not done after %.3g s: rank %d is in operation '%s'", step,
             w->setup.deadline_s, w->setup.rank, doing);
  if (w->setup.on_hang) w->setup.on_hang(w->setup.user, &err);
  _exit(tws_code_exit(TWS_HANG));
}

static void *watch_thread(void *argument) {
  tws_watchdog *w = argument;
  pthread_mutex_lock(&w->lock);
  while (!w->stop) {
    if (!w->running) {
      pthread_cond_wait(&w->changed, &w->lock);
      continue;
    }
    double left = w->began_s + w->setup.deadline_s - tws_clock_s();
    if (left <= 0.0 && tws_comm_missing(w->setup.comm) >= 0) left += grace_s;
    if (left <= 0.0) report_hang(w, w->step);
    if (left > 0.25) left = 0.25;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long nanoseconds = until.tv_nsec + (long)(left * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_cond_timedwait(&w->changed, &w->lock, &until);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

tws_code tws_watchdog_create(const tws_watchdog_setup *setup, tws_watchdog **out, tws_error *err) {
  *out = NULL;
  tws_watchdog *w = tws_calloc(1, sizeof *w);
  if (!w) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  w->setup = *setup;
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, &clock);
  pthread_condattr_destroy(&clock);
  if (pthread_create(&w->thread, NULL, watch_thread, w) != 0) {
    tws_free(w);
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread");
  }
  *out = w;
  return TWS_OK;
}

static void set_state(tws_watchdog *w, int running, int stop, int64_t step) {
  pthread_mutex_lock(&w->lock);
  w->running = running;
  w->stop = stop;
  w->step = step;
  w->began_s = tws_clock_s();
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_begin(tws_watchdog *w, int64_t step) {
  if (w) set_state(w, 1, 0, step);
}

void tws_watchdog_end(tws_watchdog *w) {
  if (w) set_state(w, 0, 0, 0);
}

void tws_watchdog_destroy(tws_watchdog *w) {
  if (!w) return;
  set_state(w, 0, 1, 0);
  pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  tws_free(w);
}
