/* Starting ranks: `twinspeed rank-worker VERB ...` once per rank under mpirun or srun, and everything that can go
 * wrong.
 *
 * The launcher keeps a socket to each rank. Through it a rank gets the launcher's standard output and error (so
 * mpirun's own chatter never mixes with them) and a line of shared memory in which it says what it is doing; where
 * ranks are on other nodes too, they send both through the network, every second. A rank that ends without saying
 * goodbye has died, and the launcher names it and what it was doing; a node of which nothing is heard is lost; a job in
 * which nothing happens for the deadline is ended (launch/watch.h). The first failure is reported once; then every rank
 * is ended: SIGTERM, and SIGKILL after five seconds. What a killed mpirun leaves is removed (launch/remains.h). Ranks
 * also end when the launcher disappears, so there are no orphans. */
#ifndef TWS_LAUNCH_LAUNCH_H
#define TWS_LAUNCH_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include "base/log.h"
#include "base/status.h"
#include "launch/hostfile.h"

/* Who starts the ranks. AUTO: Open MPI's mpirun, on this machine without a remote shell, on others through one. */
typedef enum tws_launcher {
  TWS_LAUNCHER_AUTO,
  TWS_LAUNCHER_LOCAL,  /* mpirun, here and nowhere else */
  TWS_LAUNCHER_MPIRUN, /* mpirun, which finds its way to the nodes by itself (a batch system, else ssh) */
  TWS_LAUNCHER_SSH,    /* mpirun, through a remote shell */
  TWS_LAUNCHER_SRUN,   /* Slurm's srun, within an allocation */
  /* DeepSpeed's launchers, which start and watch the ranks of a command by themselves (launch/handover.h) */
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
  const tws_hosts *hosts; /* where ranks go, in their order; NULL: `ranks` of them on this machine */
  tws_launcher launcher;
  const char *remote_shell; /* of SSH, instead of ssh: called with the host and a command; NULL */
  const char *log_folder;   /* what a rank writes goes into FOLDER/rank-N.log as well; NULL */
  const tws_log *log;       /* where every rank was, when one of them hangs; NULL */
  tws_progress *progress;   /* told of the step at which rank 0 says that it is; begun by the caller; NULL */
  double deadline_s;        /* status 124 when nothing happens for so long, from the start on; 0: never */
  int ranks;
  int threads;                  /* per rank: OMP_NUM_THREADS, OPENBLAS_NUM_THREADS */
  const char *const *arguments; /* what follows `twinspeed rank-worker`: the verb and its arguments */
  int argument_count;
  int ends_itself;  /* SIGTERM is passed on as tws_worker_asked_to_end(), and ranks that end well end the job well; a
                       second one ends them as ever */
  int least_nodes;  /* for who starts a job again: with fewer it does not go on; 0: any number will do */
  int *failed_rank; /* becomes the rank that failed, or one of the node that was lost; NULL: not of interest */
  int silent;       /* the ranks' standard output is dropped */
  int to_stderr;    /* it goes to standard error: standard output has another document */
  int printed_only; /* tws_launch_command() is for a person to read: mpirun and srun need not be there */
} tws_launch_options;

/* Runs to the end of all ranks. TWS_RANK: a rank failed (err names rank and operation); TWS_HANG, TWS_INVALID ...: the
 * code a rank reported; TWS_INTERRUPTED after Ctrl-C; TWS_ENVIRONMENT: mpirun is missing or does not start. */
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

/* 1 in a rank that somebody else's mpirun or srun has started: which of how many it is. */
int tws_started_elsewhere(int *rank, int *ranks);
/* 1 in a rank for which another process has looked at the job and its files, and speaks. */
int tws_rank_follows(void);

/* ---- inside a rank ---- */
typedef struct tws_rank_place tws_rank_place; /* launch/protocol.h */
const tws_rank_place *tws_worker_place(void);
int tws_worker_is(void);                     /* 1 in a process started by tws_launch() */
int tws_worker_rank(void);                   /* as mpirun numbers it; 0 outside */
tws_code tws_worker_connect(tws_error *err); /* take over the launcher's output; call it first */
char *tws_worker_argument(char *argument);   /* one of its command line, as the launcher was given it */
char *tws_worker_activity(size_t *bytes);    /* where to say what this rank is doing; NULL outside */
uint64_t tws_worker_news(void);              /* another number when some rank's line has changed; 0 outside */
int tws_worker_asked_to_end(void);           /* 1 once the launcher was, with ends_itself */
void tws_worker_fail(const tws_error *err);  /* tell the launcher why this rank ends */
void tws_worker_done(void);                  /* tell the launcher that this rank ends well */

#endif
