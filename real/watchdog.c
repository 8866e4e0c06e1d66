#include "real/watchdog.h"
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/memory.h"
#include "base/system.h"
#include "real/mpi_comm.h"

static const double grace_s = TWS_FAILURE_GRACE_S, look_s = 0.25, beat_s = 1.0;

struct tws_watchdog {
  tws_watchdog_setup setup;
  const tws_executor *executor; /* NULL: no executor was attached yet */
  const tws_comm *comm;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int stop, running;
  int64_t step;
  char phase[160]; /* description of the phase; "": a step is running */
  tws_phase_kind kind;
  atomic_uint_fast64_t moved; /* number of progress events inside phases */
  uint64_t seen_moved;
  const void *seen; /* the operation that was running at the last check */
  uint64_t heard;   /* value of news() at the last check */
  double since_s;   /* time of the last progress */
  double told_s;    /* time at which other ranks were last informed that a phase continues */
  double looked_s;
};

/* Writes this rank's current phase into the line that the launcher reads. */
static void write_line(const tws_watchdog *w, const char *what) {
  const tws_watchdog_setup *s = &w->setup;
  if (s->activity && w->step > 0)
    snprintf(s->activity, s->activity_bytes, "step %" PRId64 ", %s", w->step, what);
  else if (s->activity)
    snprintf(s->activity, s->activity_bytes, "%s", what);
}

static int waits_for_others(const tws_watchdog *w) {
  if (w->phase[0] && w->kind == TWS_PHASE_MEETS) return 1;
  return w->comm && tws_comm_waits(w->comm);
}

static void report_hang(const tws_watchdog *w, int missing) {
  tws_error err = {0};
  char text[256];
  const double after = w->setup.deadline_s;
  const int rank = w->setup.rank;
  const char *doing = w->phase[0] ? w->phase : tws_executor_activity(w->executor, text, (int)sizeof text);
  if (w->phase[0] && waits_for_others(w))
    tws_fail(&err, TWS_HANG, TWS_FAILURE_HANG_HINT,
             "nothing has happened for %.3g s: another rank does not continue, for which rank %d waits: %s", after,
             rank, doing);
  else if (w->phase[0])
    tws_fail(&err, TWS_HANG, TWS_FAILURE_HANG_HINT, "nothing has happened for %.3g s: rank %d is %s", after, rank,
             doing);
  else
    tws_failure_hang(w->step, after, missing >= 0 ? missing : rank, missing < 0, doing, &err);
  if (w->setup.on_hang) w->setup.on_hang(w->setup.user, &err);
  _exit(tws_code_exit(TWS_HANG));
}

/* Returns 1 if the reader of this rank's output does not read, so that a write would block; never for a file. */
static int output_is_full(void) {
  struct pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = STDERR_FILENO, .events = POLLOUT}};
  return poll(outputs, 2, 0) >= 0 && (!outputs[0].revents || !outputs[1].revents);
}

/* Reports progress within a phase to the other ranks and the launcher, at most once a second. */
static void tell_moves(tws_watchdog *w, double now) {
  char text[256];
  const uint64_t moved = atomic_load(&w->moved);
  const int writes = w->kind == TWS_PHASE_WRITES && output_is_full();
  if (moved == w->seen_moved && !writes) return;
  w->since_s = now;
  w->seen_moved = moved;
  if (now - w->told_s < beat_s) return;
  w->told_s = now;
  snprintf(text, sizeof text, "%s (%" PRIu64 "%s)", w->phase, writes ? (uint64_t)now : moved, writes ? " s" : "");
  write_line(w, text);
}

/* Returns the seconds until a hang is to be reported; *missing receives a rank that has not arrived, or -1. */
static double seconds_left(tws_watchdog *w, int *missing) {
  const double now = tws_clock_s(), away = now - w->looked_s;
  const void *at = w->phase[0] ? NULL : tws_executor_at(w->executor);
  const uint64_t heard = w->setup.news ? w->setup.news(w->setup.user) : 0;
  *missing = -1;
  w->looked_s = now;
  /* a long gap means that this process itself was stopped: the gap does not count */
  if (away > 4 * look_s) w->since_s += away;
  if (at != w->seen || heard != w->heard) w->since_s = now;
  w->seen = at;
  w->heard = heard;
  if (w->phase[0]) tell_moves(w, now);
  const double left = w->since_s + w->setup.deadline_s - now;
  if (left > 0) return left;
  if (!w->phase[0]) *missing = tws_comm_missing(w->comm);
  if (*missing >= 0) return left + grace_s;
  if (waits_for_others(w)) /* if there is a launcher, it reports the hang; else this rank does */
    return w->setup.activity ? look_s : left + 2 * grace_s;
  return left;
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
    if (left > look_s) left = look_s;
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
  w->looked_s = tws_clock_s();
  sigset_t before;
  tws_hold_signals(&before);
  const int failed = pthread_create(&w->thread, NULL, watch_thread, w);
  tws_release_signals(&before);
  if (failed) {
    tws_free(w);
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread");
  }
  *out = w;
  return TWS_OK;
}

/* Sets whether a step is running; the caller holds the lock. */
static void set_running(tws_watchdog *w, int running) {
  w->since_s = tws_clock_s();
  w->seen = NULL;
  if (!w->running && running) {
    w->looked_s = w->since_s;
    pthread_cond_signal(&w->changed);
  }
  w->running = running;
}

void tws_watchdog_attach(tws_watchdog *w, const tws_executor *executor, const tws_comm *comm) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->executor = executor;
  w->comm = comm;
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_phase(tws_watchdog *w, int64_t step, const char *what, tws_phase_kind kind) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  snprintf(w->phase, sizeof w->phase, "%s", what);
  w->step = step;
  w->kind = kind;
  w->told_s = tws_clock_s();
  w->seen_moved = atomic_load(&w->moved);
  write_line(w, w->phase);
  set_running(w, w->setup.deadline_s > 0.0);
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_progress(tws_watchdog *w, const char *what) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->since_s = tws_clock_s();
  write_line(w, what);
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_count_progress(tws_watchdog *w) {
  if (w) atomic_fetch_add_explicit(&w->moved, 1, memory_order_relaxed);
}

void tws_watchdog_begin(tws_watchdog *w, int64_t step) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->phase[0] = '\0';
  w->step = step;
  set_running(w, w->setup.deadline_s > 0.0 && w->executor);
  pthread_mutex_unlock(&w->lock);
}

void tws_watchdog_destroy(tws_watchdog *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->stop = 1;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  w->step = 0;
  write_line(w, "ending");
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  tws_free(w);
}
