/* Restarts a training when ranks of it have failed: on the remaining hosts, from the last complete checkpoint. The
 * caller says what an attempt does; this file decides whether there is another one, with how many ranks, on which
 * hosts, and from which checkpoint. */
#ifndef TWS_LAUNCH_SUPERVISE_H
#define TWS_LAUNCH_SUPERVISE_H

#include "job/recovery.h"
#include "launch/launch.h"

/* The next attempt. The supervisor changes it between attempts. Its texts belong to the caller, the arena or this
 * structure, which therefore must not be moved. */
typedef struct tws_supervised {
  tws_job_spec job;          /* job.ranks 0: it follows from the configuration; job.cluster NULL: the user named none */
  tws_hosts hosts;           /* the hosts that `launch.hosts` points to; in the arena */
  tws_launch_options launch; /* launch.hosts NULL: this machine; launch.least_nodes: minimum number of hosts for a
                              * further attempt */
  tws_arena *arena;
  const char *save;                     /* folder of checkpoints; NULL: none, and no further attempt is made */
  const char *resume, *tag, *init_from; /* initial state of the training, as in tws_train_options; NULL: not given */
  /* equals `tag` if that tag is the newest checkpoint found by search; TWS_TAG_SIZE characters, overwritten when a
   * newer checkpoint is found. NULL: the user named the tag */
  char *found_tag;
  int64_t restarts;         /* maximum number of further attempts */
  int force;                /* 1 from the second attempt on: output files of the previous attempt are
                                         * replaced */
  int own_cluster;          /* 1: the user named no cluster, and `job.cluster` is derived from the hosts */
  int failed_rank;          /* rank that failed in the last attempt; -1: none */
  tws_recovery_point point; /* state that the last attempt started from; set by tws_supervise() */
} tws_supervised;

/* Runs one attempt, until the job ends or fails. */
typedef tws_code (*tws_attempt)(void *user, const tws_supervised *now, tws_error *err);

/* Sets the numbers of ranks to the numbers of slots of the hosts, and the job's cluster if the user named none. Fails
 * with TWS_INVALID if there is no slot. */
tws_code tws_supervised_place(tws_supervised *s, tws_error *err);

/* Makes attempts until one succeeds or no other may follow (tws_recovery_continues()); returns the code and error of
 * the last one. In a rank, whose restarts the launching process decides, there is one attempt. Failures in between are
 * logged as warnings; log may be NULL. */
tws_code tws_supervise(tws_supervised *s, tws_attempt attempt, void *user, const tws_log *log, tws_error *err);

#endif
