/* Options that select the hosts of ranks and the launcher that starts them, for subcommands that start ranks. */
#ifndef TWS_CLI_LAUNCH_OPTIONS_H
#define TWS_CLI_LAUNCH_OPTIONS_H

#include "cli/cli.h"
#include "launch/launch.h"

typedef struct tws_launch_flags {
  const char *hostfile, *include, *exclude, *launcher, *remote_shell, *logs, *num_nodes; /* NULL: not given */
  int64_t num_gpus;                                                                      /* 0: not given */
  int elastic;     /* 1: elastic MIN:MAX is accepted */
  int any_command; /* 1: ranks run a foreign command, which every launcher can start, not a subcommand of this
                    * program, which only its own launcher starts */
} tws_launch_flags;

/* Rows for a subcommand's option table: `type` is its options struct, `field` the tws_launch_flags member in it. */
#define TWS_LAUNCH_OPTIONS(type, field)                                                                          \
  TWS_STRING("hostfile", 'H', "FILE", type, field.hostfile,                                                      \
             "hosts and slots, one \"NAME slots=N\" per line "                                                   \
             "(default: /job/hostfile, where there is one)"),                                                    \
      TWS_STRING("include", 'i', "FILTER", type, field.include,                                                  \
                 "use only these: worker-0@worker-1:0,2; without a "                                             \
                 "hostfile localhost:0,2"),                                                                      \
      TWS_STRING("exclude", 'e', "FILTER", type, field.exclude, "use all but these"),                            \
      TWS_STRING("num-nodes", 0, "N", type, field.num_nodes,                                                     \
                 "the first N hosts; MIN:MAX with --restarts: up to MAX, and restarts while MIN remain"),        \
      TWS_INTEGER("num-gpus", 0, "N", type, field.num_gpus, 1, TWS_MAX_SLOTS, "the first N slots of each host"), \
      TWS_STRING("launcher", 0, "NAME", type, field.launcher,                                                    \
                 "program that starts the ranks: local, mpirun, ssh, srun or, "                                  \
                 "as in DeepSpeed, pdsh, openmpi, mpich, impi, mvapich, slurm"),                                 \
      TWS_STRING("remote-shell", 0, "PROGRAM", type, field.remote_shell,                                         \
                 "program that runs a command on a host and forwards its input (default: ssh)"),                 \
      TWS_STRING("logs", 0, "DIR", type, field.logs, "each rank's output into DIR/rank-N.log instead of the terminal")

#define TWS_DEFAULT_HOSTFILE "/job/hostfile" /* names of DeepSpeed's launcher */
/* Reads hosts and launcher into `launch`, and determines the number of ranks. `ranks`: requested number on this
 * machine, or 0. Without a hostfile, if the launcher supports one, the hosts are those of Slurm's allocation, else
 * those of TWS_DEFAULT_HOSTFILE if it exists (TWINSPEED_HOSTFILE names another file). TWS_USAGE: flags contradict each
 * other. The hosts live in the arena. */
tws_code tws_launch_flags_read(const tws_launch_flags *flags, int64_t ranks, tws_arena *arena, tws_hosts *hosts,
                               tws_launch_options *launch, tws_error *err);
/* Returns the path of the hostfile, the given one or the default one; NULL: there is none. */
const char *tws_launch_flags_hostfile(const tws_launch_flags *flags, int64_t ranks);
/* Returns 1 if a flag requests ranks on given hosts. */
int tws_launch_flags_given(const tws_launch_flags *flags);
/* Reports on standard error if the hosts come from the default hostfile. */
void tws_launch_flags_report(const tws_cli *cli, const tws_launch_flags *flags, int64_t ranks);
/* Returns 1 if options of the launcher select devices, which then replaces CUDA_VISIBLE_DEVICES of this environment in
 * the ranks; as in DeepSpeed's launcher, a message names the option. */
int tws_launch_flags_choose_devices(const tws_cli *cli, const tws_launch_flags *flags);
/* Prints the mapping rank -> host -> device to standard output or to standard error; as JSON ("twinspeed-ranks-1") with
 * --json. first: number of the first rank. */
tws_code tws_launch_show(const tws_cli *cli, const tws_hosts *hosts, int first, int to_stdout, tws_error *err);

#endif
