/* Cleanup after an mpirun that was killed: Open MPI leaves its session folder, the ranks' segments of shared memory,
 * and processes on this machine. mpirun removes them itself when it ends by itself. */
#ifndef TWS_LAUNCH_REMAINS_H
#define TWS_LAUNCH_REMAINS_H

#include <sys/types.h>

typedef struct tws_remains {
  pid_t mpirun;
  int adopts;       /* 1: this process was a subreaper before */
  char folder[768]; /* mpirun's, ".../ompi.HOST.UID/pid.MPIRUN"; "": not known */
  unsigned job;     /* in the names of segments; 0: not known */
} tws_remains;

/* Makes this process a subreaper: orphans of mpirun become its children from here on, and are found as such. */
void tws_remains_begin(tws_remains *remains);
/* Reads mpirun's identifiers from a process of a rank that it has started. Returns 1 if all are known. */
int tws_remains_learn(tws_remains *remains, pid_t rank);
/* To be called when mpirun has ended: kills its remaining processes, which are those that have `value` in their
 * environment as the launcher's variable, and removes the files. Only objects of this user are touched, and no link
 * is followed. */
void tws_remains_clear(tws_remains *remains, const char *value);

#endif
