/* Health check of a machine: whether everything that planning, training and launching need is present, and the
 * remedy. */
#ifndef TWS_LAUNCH_HEALTH_H
#define TWS_LAUNCH_HEALTH_H

#include <stddef.h>

typedef enum tws_health { TWS_HEALTH_OKAY, TWS_HEALTH_WARN, TWS_HEALTH_FAIL } tws_health;

/* The result of one examination. Its texts are valid only while the listener is called. */
typedef struct tws_finding {
  tws_health health;
  const char *what;   /* the examined thing: "cores", the name of a host */
  const char *text;   /* the result */
  const char *remedy; /* NULL: none is needed */
} tws_finding;

typedef struct tws_health_listener {
  void (*tell)(void *user, const tws_finding *finding);
  void *user;
} tws_health_listener;

/* Examines this machine, one finding after another, in at most half a minute for each program that is run.
 * `version`: of this program. */
void tws_health_machine(const tws_health_listener *listener, const char *version);
/* Examines a host of a hostfile: whether it can be reached without a password, has the same program, and has a clock
 * that agrees. given_shell: the program of --remote-shell with its arguments, or NULL: ssh. */
void tws_health_host(const tws_health_listener *listener, const char *given_shell, const char *host);

/* ---- shared by the files of the health check ---- */
enum { TWS_HEALTH_LIMIT_S = 20 }; /* time limit of a program that is run */
void tws_health_add(const tws_health_listener *listener, tws_health health, const char *what, const char *remedy,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Runs a program and reads the first line that it prints into `line`. Returns 0 if the program is missing or fails. */
int tws_health_run_program(const char *const *arguments, int with_errors, char *line, size_t size);

#endif
