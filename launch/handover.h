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
  const char *hostfile; /* path of a file with these hosts and slots, no filter; NULL: hosts are on the command line */
  tws_command_job job;  /* the members `world` and `node` are not used */
  char *const *command; /* ends with NULL */
  int to_stderr;        /* 1: the command's output is passed to standard error, because standard output receives another
                         * document */
  int threads;          /* OpenMP threads per rank if cores are not bound */
  int printed_only;     /* 1: the command line is only printed, so the launcher need not be installed */
} tws_handover;

/* Returns 1 if another program starts this launcher's ranks, not tws_launch(). */
int tws_launcher_hands_over(tws_launcher launcher);
/* Builds the words of the command, in the arena, NULL after the last. Fails with TWS_UNSUPPORTED if nodes have
 * different numbers of ranks and the launcher requires equal ones, and with TWS_ENVIRONMENT if the launcher is not
 * installed. */
tws_code tws_handover_command(const tws_handover *handover, tws_arena *arena, const char ***words, tws_error *err);
/* Runs the command to its end, and forwards signals to it. Fails with TWS_RANK and the command's exit status, or with
 * TWS_INTERRUPTED or TWS_TERMINATED after a signal. */
tws_code tws_handover_run(const tws_handover *handover, tws_error *err);

#endif
