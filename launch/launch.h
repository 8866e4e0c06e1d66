/* Starts ranks, `twinspeed rank-worker VERB ...` once per rank under mpirun or srun, and handles their failures.
 *
 * The launcher keeps a socket to each rank. Over a local socket a rank receives the launcher's standard output and
 * error (so that mpirun's own messages never mix with its output) and a line of shared memory, in which it reports
 * what it is doing; ranks on other nodes send both through the network, every second. A rank that ends without a
 * final message has died, and the launcher names it and its last operation; a node that sends nothing is lost; a job
 * without progress for the deadline is ended (launch/watch.h). The first failure is reported once; then every rank
 * is terminated: SIGTERM, and SIGKILL after five seconds. Files and processes that a killed mpirun leaves are
 * removed (launch/mpirun_cleanup.h). Ranks also end when the launcher disappears, so there are no orphans. */
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
/* Parses the name of a launcher: "local", "mpirun", "ssh", "srun", "pdsh" ...; NULL or "auto" gives AUTO. Fails with
 * TWS_USAGE for other names. */
tws_code tws_launcher_parse(const char *name, tws_launcher *out, tws_error *err);

typedef struct tws_launch_options {
  const tws_hosts *hosts; /* hosts of the ranks, in rank order; NULL: `ranks` ranks on this machine */
  tws_launcher launcher;
  const char *remote_shell; /* used instead of ssh by the launcher SSH, called with the host and a command; or NULL */
  const char *log_folder;   /* a rank's output is copied to FOLDER/rank-N.log; or NULL */
  const tws_log *log;       /* receives the operation of every rank when one hangs; or NULL */
  tws_progress *progress;   /* receives the step that rank 0 reports; the caller has begun it; or NULL */
  double deadline_s;        /* status 124 when there is no progress for this long, from the start on; 0: never */
  int ranks;
  int threads;                  /* per rank: OMP_NUM_THREADS, OPENBLAS_NUM_THREADS */
  const char *const *arguments; /* arguments of `twinspeed rank-worker`: the verb and its arguments */
  int argument_count;
  int ends_itself;  /* 1: SIGTERM is forwarded to the ranks (tws_worker_asked_to_end()), and the job succeeds if they
                     * then end successfully; a second SIGTERM terminates them */
  int least_nodes;  /* for jobs that are restarted: a job with fewer remaining nodes is not restarted; 0: any number */
  int *failed_rank; /* receives the rank that failed, or one rank of the lost node; or NULL */
  int silent;       /* the ranks' standard output is discarded */
  int to_stderr;    /* 1: the ranks' standard output is passed to standard error, because standard output receives
                     * another document */
  int printed_only; /* 1: tws_launch_command() is called only to print the command, so mpirun and srun need not be
                     * installed */
} tws_launch_options;

/* Starts the ranks and waits until all have ended. Errors: TWS_RANK: a rank failed (err names rank and operation);
 * TWS_HANG, TWS_INVALID ...: the code that a rank reported; TWS_INTERRUPTED after Ctrl-C; TWS_ENVIRONMENT: mpirun is
 * missing or does not start. */
tws_code tws_launch(const tws_launch_options *options, tws_error *err);
/* Builds the words of the command that tws_launch() runs, in the arena, NULL after the last. With `printed_only` in
 * options it begins with the plain name of a program that is not installed here. */
tws_code tws_launch_command(const tws_launch_options *options, tws_arena *arena, const char ***words, tws_error *err);

/* Returns the number of threads of a host rank: `configured` or, if that is 0, cores / ranks, at least 1. */
int tws_launch_threads(int64_t configured, int ranks);
int tws_launch_cores(void); /* returns the number of cores that this process may use */
/* Sets the thread variables (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, ...) for an engine that runs inside this process;
 * to be called before the engine's module is loaded. */
void tws_launch_set_threads(int threads);

/* Returns 1 in a rank that an mpirun or srun outside of this program has started, and sets its number and the world
 * size. */
int tws_started_by_other_launcher(int *rank, int *ranks);
/* Returns 1 in a rank if another process has checked the job and its files, and prints the messages. */
int tws_rank_job_is_checked(void);

/* ---- inside a rank ---- */
typedef struct tws_rank_place tws_rank_place; /* launch/protocol.h */
const tws_rank_place *tws_worker_place(void);
int tws_worker_is(void);                     /* returns 1 in a process started by tws_launch() */
int tws_worker_rank(void);                   /* returns the rank number that mpirun has assigned; 0 outside of a rank */
tws_code tws_worker_connect(tws_error *err); /* connects to the launcher, whose output it takes over; to be called
                                              * first */
char *tws_worker_argument(char *argument);   /* decodes an argument of its command line to the launcher's original */
char *tws_worker_activity(size_t *bytes);    /* returns the buffer for this rank's operation; NULL outside of a rank */
uint64_t tws_worker_activity_count(void);    /* returns a number that changes when any rank's reported operation
                                              * changes; 0 outside of a rank */
int tws_worker_asked_to_end(void);           /* returns 1 after the launcher has received SIGTERM, if
                                              * options.ends_itself */
void tws_worker_fail(const tws_error *err);  /* reports to the launcher the error that ends this rank */
void tws_worker_done(void);                  /* reports to the launcher that this rank ends successfully */

#endif
