#include "real/watchdog.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/memory.h"
#include "real/mpi_comm.h"

static const double grace_s = TWS_FAILURE_GRACE_S;

struct tws_watchdog {
  tws_watchdog_setup setup;
  const tws_executor *executor; /* NULL: none yet */
  const tws_comm *comm;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int stop, running;
  int64_t step;
  const char *phase; /* NULL: in a step */
  int meets;
  const void *seen; /* the operation that was running when it was looked at last */
  uint64_t heard;   /* of other ranks */
  double since_s;   /* when something happened */
};

static void report_hang(const tws_watchdog *w, int missing) {
  tws_error err = {0};
  char text[256];
  const double after = w->setup.deadline_s;
  const int rank = w->setup.rank;
  const char *doing = w->phase ? w->phase : tws_executor_doing(w->executor, text, (int)sizeof text);
  if (w->phase)
    tws_fail(&err, TWS_HANG, TWS_FAILURE_HANG_HINT, "nothing has happened for %.3g s: rank %d is %s", after, rank,
             doing);
  else
    tws_failure_hang(w->step, after, missing >= 0 ? missing : rank, missing < 0, doing, &err);
  if (w->setup.on_hang) w->setup.on_hang(w->setup.user, &err);
  _exit(tws_code_exit(TWS_HANG));
}

/* Seconds until it is time to speak. */
static double seconds_left(tws_watchdog *w, int *missing) {
  const void *now = w->phase ? w->phase : tws_executor_at(w->executor);
  *missing = -1;
  const uint64_t heard = w->setup.news ? w->setup.news(w->setup.user) : 0;
  if (now != w->seen || heard != w->heard) w->since_s = tws_clock_s();
  w->seen = now;
  w->heard = heard;
  const double left = w->since_s + w->setup.deadline_s - tws_clock_s();
  if (left > 0) return left;
  if (w->phase) return left + (w->meets ? grace_s : 0);
  *missing = tws_comm_missing(w->comm);
  if (*missing >= 0) return left + grace_s;
  return left + (tws_comm_waits(w->comm) ? 2 * grace_s : 0);
}

static void *watch_thread(void *argument) {
  tws_watchdog *w = argument;
  pthread_mutex_lock(&w->lock);
  while (!w->stop) {
    int missing;
    if (!w->running) {
      pthread_cond_wait(&w->changed, &w->lock);
      continue;
    }
    double left = seconds_left(w, &missing);
    if (left <= 0.0) report_hang(w, missing);
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

static void set_state(tws_watchdog *w, int running, int64_t step, const char *phase, int meets) {
  pthread_mutex_lock(&w->lock);
  w->running = running;
  w->step = step;
  w->phase = phase;
  w->meets = meets;
  w->seen = NULL;
  w->since_s = tws_clock_s();
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_attach(tws_watchdog *w, const tws_executor *executor, const tws_comm *comm) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->executor = executor;
  w->comm = comm;
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_phase(tws_watchdog *w, const char *what, int meets) {
  if (!w) return;
  if (w->setup.activity) snprintf(w->setup.activity, w->setup.activity_bytes, "%s", what);
  set_state(w, w->setup.deadline_s > 0.0, 0, what, meets);
}

void tws_watchdog_goes_on(tws_watchdog *w, const char *what) {
  if (!w) return;
  if (w->setup.activity) snprintf(w->setup.activity, w->setup.activity_bytes, "%s", what);
  pthread_mutex_lock(&w->lock);
  w->since_s = tws_clock_s();
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_begin(tws_watchdog *w, int64_t step) {
  if (w) set_state(w, w->setup.deadline_s > 0.0 && w->executor, step, NULL, 0);
}

void tws_watchdog_end(tws_watchdog *w) {
  if (w) set_state(w, 0, 0, NULL, 0);
}

void tws_watchdog_destroy(tws_watchdog *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->stop = 1;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  tws_free(w);
}
