/* Logging and progress. The library writes through a sink that the program installs; without one it is silent. */
#ifndef TWS_BASE_LOG_H
#define TWS_BASE_LOG_H

typedef enum tws_log_level { TWS_LOG_ERROR, TWS_LOG_WARNING, TWS_LOG_INFO, TWS_LOG_DEBUG } tws_log_level;

typedef struct tws_log {
  void (*write)(void *user, tws_log_level level, const char *line);
  void *user;
  tws_log_level level; /* lines above this level are dropped before they are formatted */
} tws_log;

/* log may be NULL */
void tws_log_write(const tws_log *log, tws_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Progress with an estimate of the time left, on one line of a terminal; the program decides whether it is drawn (a
 * terminal on stderr that can erase a line, no --quiet). update() redraws at most ten times a second. */
typedef struct tws_progress {
  void (*draw)(void *user, const char *line); /* NULL: silent */
  void *user;
  const char *what;
  double total, done, before, started_s, drawn_s;
} tws_progress;
void tws_progress_begin(tws_progress *progress, const char *what, double total);
/* The same for work of which an earlier run has completed the amount `before`. */
void tws_progress_resume(tws_progress *progress, const char *what, double before, double total);
void tws_progress_update(tws_progress *progress, double done);
void tws_progress_end(tws_progress *progress);

double tws_clock_s(void); /* monotonic seconds */
double tws_wall_s(void);  /* seconds since 1970 */

#endif
