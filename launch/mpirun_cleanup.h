/* Cleanup after an mpirun that was killed: Open MPI leaves its session folder, the ranks' segments of shared memory,
 * and processes on this machine. mpirun removes them itself when it ends by itself. */
#ifndef TWS_LAUNCH_MPIRUN_CLEANUP_H
#define TWS_LAUNCH_MPIRUN_CLEANUP_H

#include <sys/types.h>

typedef struct tws_mpirun_cleanup {
  pid_t mpirun;
  int adopts;       /* 1: this process was a subreaper before */
  char folder[768]; /* mpirun's session folder, ".../ompi.HOST.UID/pid.MPIRUN"; "": not known */
  unsigned job;     /* job number in the names of shared-memory segments; 0: not known */
} tws_mpirun_cleanup;

/* Makes this process a subreaper: from then on orphans of mpirun become its children, so that they can be found. */
void tws_mpirun_cleanup_begin(tws_mpirun_cleanup *remains);
/* Reads mpirun's identifiers from a process of a rank that it has started. Returns 1 if all are known. */
int tws_mpirun_cleanup_identify(tws_mpirun_cleanup *remains, pid_t rank);
/* To be called when mpirun has ended: kills its remaining processes, which are those that have `value` in their
 * environment as the launcher's variable, and removes the files. Only objects of this user are touched, and no link
 * is followed. */
void tws_mpirun_cleanup_run(tws_mpirun_cleanup *remains, const char *value);

#endif
