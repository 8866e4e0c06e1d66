/* A training that is started again when ranks of it have failed: with those that are left, from the last whole
 * checkpoint. What an attempt does, the caller says; here is decided whether there is another one, of how many ranks,
 * on which hosts, and from which checkpoint. */
#ifndef TWS_LAUNCH_SUPERVISE_H
#define TWS_LAUNCH_SUPERVISE_H

#include "job/recovery.h"
#include "launch/launch.h"

/* The attempt that is made next. The supervisor changes it between attempts. Its texts are the caller's, or live in the
 * arena or in this structure, which therefore stays where it is. */
typedef struct tws_supervised {
  tws_job_spec job;          /* ranks: 0 where they follow from the configuration; cluster: NULL where none was named */
  tws_hosts hosts;           /* that `launch.hosts` leads to; in the arena */
  tws_launch_options launch; /* hosts NULL: this machine; least_nodes: with fewer hosts there is no further attempt */
  tws_arena *arena;
  const char *save;                     /* folder that checkpoints are saved to; NULL: none, and no further attempt */
  const char *resume, *tag, *init_from; /* where it begins, as in tws_train_options; NULL: not given */
  char *found_tag;                      /* `tag` where it is the newest that was there: TWS_TAG_SIZE characters, which
                                         * may become a newer one; NULL: the user named it */
  int64_t restarts;                     /* further attempts at most */
  int force;                            /* 1 from the second attempt on: files of the one before are replaced */
  int own_cluster;                      /* the job named no cluster, and `job.cluster` follows from the hosts */
  int failed_rank;                      /* of the last attempt; -1: none has failed. -1 at first */
  tws_recovery_point point;             /* that the last attempt began from; set by tws_supervise() */
} tws_supervised;

/* Runs the job to its end or its failure. */
typedef tws_code (*tws_attempt)(void *user, const tws_supervised *now, tws_error *err);

/* Ranks of the job and of the launch as its hosts have slots, and its cluster where it named none. TWS_INVALID: there
 * is no slot. */
tws_code tws_supervised_place(tws_supervised *s, tws_error *err);

/* Makes attempts until one ends well or no other may follow (tws_recovery_goes_on()); the code and the error are those
 * of the last one. In a rank that follows another process there is one attempt. What happens in between goes to the
 * log, as warnings; log may be NULL. */
tws_code tws_supervise(tws_supervised *s, tws_attempt attempt, void *user, const tws_log *log, tws_error *err);

#endif
