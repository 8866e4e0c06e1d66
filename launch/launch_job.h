/* A job's launcher: its state, which the files of tws_launch() share. It is set up (launch/setup.c), runs until all
 * ranks have ended (launch/launch.c), and is explained (launch/outcome.c). */
#ifndef TWS_LAUNCH_LAUNCH_JOB_H
#define TWS_LAUNCH_LAUNCH_JOB_H

#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include "base/escape.h"
#include "launch/launch.h"
#include "launch/link.h"
#include "launch/mpirun_cleanup.h"
#include "launch/printed.h"
#include "launch/protocol.h"
#include "launch/rank_listener.h"
#include "launch/watch.h"

/* poll() entries for signals, connections and output; the entries of ranks follow */
enum { TWS_LAUNCH_POLLS = 2 + TWS_PRINTED_POLLS };

/* The launcher keeps this state for each rank. */
typedef struct tws_launch_peer {
  tws_link link;
  int known;    /* 1: the rank has connected */
  pid_t pid;    /* process ID; 0: the rank is on another machine */
  int said_end; /* 1: the rank's DONE or FAILED record has arrived */
  double heard_s;
  tws_escape escape[2]; /* state of the escaping of its standard output and error, if they arrive through the network */
} tws_launch_peer;

typedef struct tws_launch_job {
  const tws_launch_options *options;
  int files[TWS_LAUNCH_FILES]; /* files that local ranks receive: standard output, standard error, board */
  char *board;
  int signals, noise; /* signals: descriptor of signals; noise: file with mpirun's own output */
  int remote;         /* 1: ranks connect through the network */
  tws_rank_listener *strangers;
  char name[1024]; /* the launcher's address for the ranks */
  char secret[TWS_SECRET_TEXT + 1];
  int *logs; /* [rank] log file, or -1 */
  tws_printed *printed;
  int waited; /* 1: the output was full when events were last waited for */
  double silence_s;
  int news; /* 1: a rank's current operation has changed, and ranks on other nodes have not been informed yet */
  double told_s;
  sigset_t old_mask;
  tws_launch_peer *peers;
  struct pollfd *polls;
  pid_t mpirun;
  int status, ended; /* status: exit status of mpirun; ended: 1 when mpirun has ended */
  int signal;        /* the signal that asked the launcher to stop */
  int passed_on;     /* 1: SIGTERM was forwarded to ranks that end by themselves */
  tws_watch *watch;
  tws_mpirun_cleanup remains;
  int learned;                /* mpirun's identifiers for the cleanup are known */
  double finish_limit_s;      /* seconds that mpirun has for ending after all ranks have ended successfully */
  double finish_s;            /* the time at which these seconds have passed; 0: not set */
  int finished;               /* 1: mpirun missed that deadline and was ended */
  int killed;                 /* mpirun was ended by a signal that is not the launcher's */
  int stopped_itself;         /* mpirun ended with status 1, and the launcher had not asked it to */
  double dead_s;              /* time at which the first rank ended without a final record */
  int lost;                   /* 1 + a rank of a node that sends nothing; 0: none */
  int first_dead;             /* the first rank that ended without a final record, or -1 */
  int muted;                  /* 1 + a rank whose connection was closed before its last record arrived; 0: none */
  tws_launch_record failure;  /* the first failure that was reported; failure.word 0: none */
  double ask_at_s, kill_at_s; /* times at which mpirun is asked to end (ask_at_s) and killed; 0: not set */
} tws_launch_job;

/* Checks limits, opens the ranks' files, the listener and the watch, and blocks the signals that the launcher reads.
 * After an error too, tws_launch_tear_down() releases what was opened. */
tws_code tws_launch_set_up(tws_launch_job *job, tws_error *err);
void tws_launch_tear_down(tws_launch_job *job);
/* Starts mpirun or srun, which starts the ranks. */
tws_code tws_launch_start(tws_launch_job *job, tws_error *err);

/* Returns how the job has ended: TWS_OK, or the error of its first failure; sets options->failed_rank. */
tws_code tws_launch_explain(const tws_launch_job *job, tws_error *err);

#endif
