/* twinspeed remote-shell COUNT SHELL... HOST COMMAND...: the hidden subcommand that mpirun calls in place of a remote
 * shell. It executes that shell with the job's secret on standard input: on the other machine one line of it is read
 * into the environment of Open MPI's daemon, from which the ranks read it. The secret is thus on no command line, and
 * crosses the network only inside the remote shell's connection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/number.h"
#include "cli/cli.h"
#include "launch/protocol.h"
#include "launch/starter.h"

/* First command of the remote machine's shell, in Bourne shell syntax as Open MPI's own commands. */
#define READ_SECRET "read " TWS_SECRET_VARIABLE " && export " TWS_SECRET_VARIABLE " && "

static tws_code run_remote_shell(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  int words = 0;
  const char *secret = getenv(TWS_SECRET_VARIABLE);
  (void)cli, (void)raw;
  if (argc < 4 || !tws_text_int(argv[0], NULL, 1, argc - 3, &words) || !secret)
    return tws_fail(err, TWS_USAGE, "start ranks with: twinspeed train --hostfile FILE ...",
                    "remote-shell is called by mpirun");
  tws_arena *arena = tws_arena_create();
  char **command = arena ? tws_arena_alloc(arena, (size_t)argc + 1, sizeof *command) : NULL;
  const int input = tws_starter_input(secret);
  const int host = words + 1;
  char *first = arena ? tws_arena_printf(arena, "%s%s", READ_SECRET, argv[host + 1]) : NULL;
  tws_code code = TWS_OK;
  if (!command || !first) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && (input < 0 || dup2(input, STDIN_FILENO) < 0))
    code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a pipe: %s", strerror(errno));
  if (code == TWS_OK) {
    for (int i = 1; i < argc; i++) command[i - 1] = argv[i];
    command[host] = first;
    unsetenv(TWS_SECRET_VARIABLE);
    execvp(command[0], command);
    code = tws_fail(err, TWS_ENVIRONMENT, "give --remote-shell PROGRAM", "cannot start %.200s: %s", command[0],
                    strerror(errno));
  }
  tws_arena_destroy(arena);
  return code;
}

const tws_verb tws_verb_remote_shell = {.name = "remote-shell",
                                        .summary = "a remote shell that transmits a job's secret (called by mpirun)",
                                        .usage = "COUNT SHELL... HOST COMMAND...",
                                        .options = (const tws_option[]){TWS_OPTIONS_END},
                                        .arguments_max = -1,
                                        .arguments_rest = 1,
                                        .hidden = 1,
                                        .run = run_remote_shell};
