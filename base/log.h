/* Logging and progress. The library writes through a sink that the program installs; without a sink, nothing is
 * written. */
#ifndef TWS_BASE_LOG_H
#define TWS_BASE_LOG_H

typedef enum tws_log_level { TWS_LOG_ERROR, TWS_LOG_WARNING, TWS_LOG_INFO, TWS_LOG_DEBUG } tws_log_level;

typedef struct tws_log {
  void (*write)(void *user, tws_log_level level, const char *line);
  void *user;
  tws_log_level level; /* more detailed levels than this one are dropped without being formatted */
} tws_log;

/* Writes one formatted line; `log` may be NULL, which drops it. */
void tws_log_write(const tws_log *log, tws_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Shows progress with an estimate of the remaining time on one line of a terminal. The program sets draw() only if
 * stderr is a terminal that can erase a line and --quiet is not given. update() redraws at most ten times a second. */
typedef struct tws_progress {
  void (*draw)(void *user, const char *line); /* shows one line of progress; NULL: nothing is shown */
  void *user;
  const char *what;
  double total, done, before, started_s, drawn_s;
} tws_progress;
void tws_progress_begin(tws_progress *progress, const char *what, double total);
/* Starts to show progress. An earlier run has already completed the amount `before` of the work, whose amount is
 * `total`. */
void tws_progress_resume(tws_progress *progress, const char *what, double before, double total);
void tws_progress_update(tws_progress *progress, double done);
void tws_progress_end(tws_progress *progress);

double tws_clock_s(void); /* monotonic time in seconds */
double tws_wall_s(void);  /* seconds since 1970 */

#endif
