/* Commands that another program starts and supervises: pdsh, or the mpirun or srun of an MPI library, with the
 * command lines of DeepSpeed's launchers of these names (deepspeed/launcher/multinode_runner.py). Two things differ
 * from DeepSpeed: hosts are listed on the command line, in no temporary file, so that filters work with all
 * launchers; and each rank is `twinspeed launch --world_info=... -- COMMAND`, which finds its number in the
 * launcher's variables, as DeepSpeed's launcher_helper.py does, and then executes the command. */
#ifndef TWS_LAUNCH_HANDOVER_H
#define TWS_LAUNCH_HANDOVER_H

#include "base/memory.h"
#include "launch/command.h"
#include "launch/launch.h"

typedef struct tws_handover {
  tws_launcher launcher;
  const tws_hosts *hosts;
  const char *hostfile; /* a file with these hosts and slots, without a filter; NULL: the hosts are named */
  tws_command_job job;  /* world and node are not read */
  char *const *command; /* ends with NULL */
  int to_stderr;        /* its output goes to standard error: standard output has another document */
  int threads;          /* per rank, where cores are not bound */
  int printed_only;     /* for a person to read: the launcher need not be installed */
} tws_handover;

/* Returns 1 if another program starts this launcher's ranks, not tws_launch(). */
int tws_launcher_hands_over(tws_launcher launcher);
/* The words of the command, in the arena, NULL after the last. TWS_UNSUPPORTED: nodes have different numbers of
 * ranks, and the launcher requires equal ones; TWS_ENVIRONMENT: the launcher is not installed. */
tws_code tws_handover_command(const tws_handover *handover, tws_arena *arena, const char ***words, tws_error *err);
/* Runs the command to its end, and forwards signals. TWS_RANK with the status that it ended with; TWS_INTERRUPTED,
 * TWS_TERMINATED. */
tws_code tws_handover_run(const tws_handover *handover, tws_error *err);

#endif
