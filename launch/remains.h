/* What Open MPI leaves on this machine when mpirun is killed: its folder below the temporary one, the ranks' segments
 * of shared memory, and processes. mpirun removes them itself when it ends by itself. */
#ifndef TWS_LAUNCH_REMAINS_H
#define TWS_LAUNCH_REMAINS_H

#include <sys/types.h>

typedef struct tws_remains {
  pid_t mpirun;
  int adopts;       /* this process was a subreaper before */
  char folder[768]; /* mpirun's, ".../ompi.HOST.UID/pid.MPIRUN"; "": not known */
  unsigned job;     /* in the names of segments; 0: not known */
} tws_remains;

/* From here on processes that mpirun leaves become children of this one, which finds them so. */
void tws_remains_begin(tws_remains *remains);
/* From a rank's process that mpirun has started. 1: everything is known. */
int tws_remains_learn(tws_remains *remains, pid_t rank);
/* When mpirun has ended: kills its processes that are left, which have `value` in their environment for the launcher's
 * variable, and removes the rest. Only what belongs to this user is touched, and no link is followed. */
void tws_remains_clear(tws_remains *remains, const char *value);

#endif
