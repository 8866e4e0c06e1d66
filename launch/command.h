/* Any command as a rank of a job. */
#ifndef TWS_LAUNCH_COMMAND_H
#define TWS_LAUNCH_COMMAND_H

#include "base/status.h"
#include "launch/hostfile.h"

/* What the command line says of a command's ranks, in addition to what their launcher knows. */
typedef struct tws_command_job {
  const tws_hosts *world; /* all hosts of the job, of which this launcher starts the ranks of one; NULL: its own */
  int node; /* this one; -1: mpirun, mpiexec or srun started the rank, and the environment has its number */
  const char *master_address; /* NULL: the first host */
  int64_t master_port;        /* 0: 29500, unless the environment has one */
  int bind_cores;             /* each rank runs on cores of its own (launch/cores.h) */
  const char *core_list;      /* NULL: all that this process may use */
} tws_command_job;

/* TWS_ENVIRONMENT when there is no such program. To ask before mpirun starts: afterwards only a status without a reason
 * would come back. */
tws_code tws_command_find(const char *name, tws_error *err);
/* Inside a rank: the command, and what became of it. TWS_RANK with the signal or status it ended with. */
tws_code tws_command_run(char **argv, const tws_command_job *job, tws_error *err);
/* Inside a process that another launcher started (node -1): it becomes the command, so this returns on failure only. */
tws_code tws_command_become(char **argv, const tws_command_job *job, tws_error *err);

#endif
