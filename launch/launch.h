/* Starts ranks, `twinspeed rank-worker VERB ...` once per rank under mpirun or srun, and handles their failures.
 *
 * The launcher keeps a socket to each rank. Over a local socket a rank receives the launcher's standard output and
 * error (so that mpirun's own messages never mix with its output) and a line of shared memory, in which it reports
 * what it is doing; ranks on other nodes send both through the network, every second. A rank that ends without a
 * final message has died, and the launcher names it and its last operation; a node that sends nothing is lost; a job
 * without progress for the deadline is ended (launch/watch.h). The first failure is reported once; then every rank
 * is terminated: SIGTERM, and SIGKILL after five seconds. Files and processes that a killed mpirun leaves are
 * removed (launch/remains.h). Ranks also end when the launcher disappears, so there are no orphans. */
#ifndef TWS_LAUNCH_LAUNCH_H
#define TWS_LAUNCH_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include "base/log.h"
#include "base/status.h"
#include "launch/hostfile.h"

/* The program that starts the ranks. AUTO: Open MPI's mpirun, on this machine without a remote shell, on others
 * through one. */
typedef enum tws_launcher {
  TWS_LAUNCHER_AUTO,
  TWS_LAUNCHER_LOCAL,  /* mpirun, on this machine only */
  TWS_LAUNCHER_MPIRUN, /* mpirun, which reaches the nodes by its own means (a batch system, else ssh) */
  TWS_LAUNCHER_SSH,    /* mpirun, through a remote shell */
  TWS_LAUNCHER_SRUN,   /* Slurm's srun, within an allocation */
  /* DeepSpeed's launchers, which start and supervise the ranks of a command by themselves (launch/handover.h) */
  TWS_LAUNCHER_PDSH,
  TWS_LAUNCHER_OPENMPI,
  TWS_LAUNCHER_MPICH,
  TWS_LAUNCHER_IMPI,
  TWS_LAUNCHER_MVAPICH,
  TWS_LAUNCHER_SLURM
} tws_launcher;
/* "local", "mpirun", "ssh", "srun", "pdsh" ...; NULL or "auto": AUTO. TWS_USAGE otherwise. */
tws_code tws_launcher_parse(const char *name, tws_launcher *out, tws_error *err);

typedef struct tws_launch_options {
  const tws_hosts *hosts; /* hosts of the ranks, in rank order; NULL: `ranks` of them on this machine */
  tws_launcher launcher;
  const char *remote_shell; /* of SSH, instead of ssh: called with the host and a command; or NULL */
  const char *log_folder;   /* a rank's output is copied to FOLDER/rank-N.log; or NULL */
  const tws_log *log;       /* receives the operation of every rank when one hangs; or NULL */
  tws_progress *progress;   /* updated with the step that rank 0 reports; begun by the caller; or NULL */
  double deadline_s;        /* status 124 when there is no progress for this long, from the start on; 0: never */
  int ranks;
  int threads;                  /* per rank: OMP_NUM_THREADS, OPENBLAS_NUM_THREADS */
  const char *const *arguments; /* arguments of `twinspeed rank-worker`: the verb and its arguments */
  int argument_count;
  int ends_itself;  /* SIGTERM is forwarded as tws_worker_asked_to_end(), and the job succeeds if its ranks then do;
                       a second SIGTERM ends them as usual */
  int least_nodes;  /* for jobs that are restarted: with fewer nodes there is no restart; 0: any number */
  int *failed_rank; /* set to the rank that failed, or one of the lost node; or NULL */
  int silent;       /* the ranks' standard output is discarded */
  int to_stderr;    /* it goes to standard error: standard output has another document */
  int printed_only; /* tws_launch_command() is to be printed: mpirun and srun need not be installed */
} tws_launch_options;

/* Runs until all ranks have ended. TWS_RANK: a rank failed (err names rank and operation); TWS_HANG, TWS_INVALID
 * ...: the code that a rank reported; TWS_INTERRUPTED after Ctrl-C; TWS_ENVIRONMENT: mpirun is missing or does not
 * start. */
tws_code tws_launch(const tws_launch_options *options, tws_error *err);
/* The words of the command that tws_launch() runs, in the arena, NULL after the last. With `printed_only` in options it
 * begins with the plain name of a program that is not installed here. */
tws_code tws_launch_command(const tws_launch_options *options, tws_arena *arena, const char ***words, tws_error *err);

/* Threads of a host rank when the configuration leaves them open: cores / ranks, at least 1. */
int tws_launch_threads(int64_t configured, int ranks);
int tws_launch_cores(void); /* cores this process may use */
/* Thread variables (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, ...) for the engine inside this process; call it before the
 * module is loaded. */
void tws_launch_set_threads(int threads);

/* Returns 1 in a rank that an mpirun or srun outside of this program has started, with its number and the world
 * size. */
int tws_started_elsewhere(int *rank, int *ranks);
/* Returns 1 in a rank for which another process has checked the job and its files, and prints the messages. */
int tws_rank_follows(void);

/* ---- inside a rank ---- */
typedef struct tws_rank_place tws_rank_place; /* launch/protocol.h */
const tws_rank_place *tws_worker_place(void);
int tws_worker_is(void);                     /* 1 in a process started by tws_launch() */
int tws_worker_rank(void);                   /* rank number as mpirun assigns it; 0 outside */
tws_code tws_worker_connect(tws_error *err); /* takes over the launcher's output; must be called first */
char *tws_worker_argument(char *argument);   /* decodes an argument of its command line to the launcher's original */
char *tws_worker_activity(size_t *bytes);    /* buffer for this rank's current operation; NULL outside */
uint64_t tws_worker_news(void);              /* a number that changes when any rank's line does; 0 outside */
int tws_worker_asked_to_end(void);           /* 1 once the launcher received SIGTERM, with ends_itself */
void tws_worker_fail(const tws_error *err);  /* reports to the launcher why this rank ends */
void tws_worker_done(void);                  /* reports to the launcher that this rank ends well */

#endif
