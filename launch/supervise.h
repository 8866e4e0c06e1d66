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
  tws_job_spec job;          /* ranks: 0 where they follow from the configuration; cluster: NULL where none was named */
  tws_hosts hosts;           /* the hosts of `launch.hosts`; in the arena */
  tws_launch_options launch; /* hosts NULL: this machine; least_nodes: with fewer hosts there is no further attempt */
  tws_arena *arena;
  const char *save;                     /* folder of checkpoints; NULL: none, and no further attempt */
  const char *resume, *tag, *init_from; /* start of the training, as in tws_train_options; NULL: not given */
  char *found_tag;                      /* `tag` if it is the newest checkpoint, found by search: TWS_TAG_SIZE
                                           characters, which may be overwritten by a newer one; NULL: the user named
                                           it */
  int64_t restarts;                     /* further attempts at most */
  int force;                            /* 1 from the second attempt on: files of the previous one are replaced */
  int own_cluster;                      /* the job named no cluster, and `job.cluster` follows from the hosts */
  int failed_rank;                      /* rank that failed in the last attempt; -1: none; -1 at first */
  tws_recovery_point point;             /* start of the last attempt; set by tws_supervise() */
} tws_supervised;

/* Runs the job to its end or its failure. */
typedef tws_code (*tws_attempt)(void *user, const tws_supervised *now, tws_error *err);

/* Sets the numbers of ranks to the slots of the hosts, and the job's cluster where it named none. TWS_INVALID: there
 * is no slot. */
tws_code tws_supervised_place(tws_supervised *s, tws_error *err);

/* Makes attempts until one succeeds or no other may follow (tws_recovery_goes_on()); code and error are those of the
 * last one. In a rank that follows another process there is one attempt. Failures in between are logged as warnings;
 * log may be NULL. */
tws_code tws_supervise(tws_supervised *s, tws_attempt attempt, void *user, const tws_log *log, tws_error *err);

#endif
