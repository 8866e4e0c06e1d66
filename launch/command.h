/* Runs any command as the ranks of a job. */
#ifndef TWS_LAUNCH_COMMAND_H
#define TWS_LAUNCH_COMMAND_H

#include "base/status.h"
#include "launch/hostfile.h"

/* Options of the command line for a command's ranks, in addition to those of their launcher. */
typedef struct tws_command_job {
  const tws_hosts *world; /* all hosts of the job, if this launcher starts only the ranks of one of them; NULL: the
                           * launcher's own hosts */
  int node; /* index of this host; -1: mpirun, mpiexec or srun started the rank, whose number is in the environment */
  const char *master_address; /* NULL: the first host */
  int64_t master_port;        /* port of the ranks' rendezvous; 0: that of the environment, else 29500 */
  int bind_cores;             /* each rank runs on cores of its own (launch/cores.h) */
  const char *core_list;      /* list of the cores that ranks are bound to; NULL: all that this process may use */
} tws_command_job;

/* Checks that the program exists; fails with TWS_ENVIRONMENT if it does not. To be called before mpirun starts:
 * afterwards only an exit status without a reason would be reported. */
tws_code tws_command_find(const char *name, tws_error *err);
/* Runs the command to its end inside a rank. Fails with TWS_RANK and the command's signal or status. */
tws_code tws_command_run(char **argv, const tws_command_job *job, tws_error *err);
/* Replaces this process, which another launcher started (node -1), by the command (exec). Returns only on failure. */
tws_code tws_command_exec(char **argv, const tws_command_job *job, tws_error *err);

#endif
