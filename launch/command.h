/* Runs any command as the ranks of a job. */
#ifndef TWS_LAUNCH_COMMAND_H
#define TWS_LAUNCH_COMMAND_H

#include "base/status.h"
#include "launch/hostfile.h"

/* Options of the command line for a command's ranks, in addition to those of their launcher. */
typedef struct tws_command_job {
  const tws_hosts *world; /* all hosts of the job, of which this launcher starts the ranks of one; NULL: its own */
  int node; /* index of this host; -1: mpirun, mpiexec or srun started the rank, whose number is in the environment */
  const char *master_address; /* NULL: the first host */
  int64_t master_port;        /* 0: that of the environment, else 29500 */
  int bind_cores;             /* each rank runs on cores of its own (launch/cores.h) */
  const char *core_list;      /* NULL: all that this process may use */
} tws_command_job;

/* TWS_ENVIRONMENT if no such program exists. It is to be called before mpirun starts: afterwards only an exit status
 * without a reason would be reported. */
tws_code tws_command_find(const char *name, tws_error *err);
/* Inside a rank: runs the command to its end. TWS_RANK with the signal or status that it ended with. */
tws_code tws_command_run(char **argv, const tws_command_job *job, tws_error *err);
/* Inside a process that another launcher started (node -1): replaces the process by the command (exec), so it
 * returns on failure only. */
tws_code tws_command_become(char **argv, const tws_command_job *job, tws_error *err);

#endif
