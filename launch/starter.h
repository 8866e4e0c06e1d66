/* Command lines that start ranks. */
#ifndef TWS_LAUNCH_STARTER_H
#define TWS_LAUNCH_STARTER_H

#include "base/memory.h"
#include "launch/launch.h"

/* Returns 1 if some ranks are on other machines, and connect to the launcher through the network. */
int tws_launch_is_remote(const tws_launch_options *options);

/* Returns the remote shell, a command whose words are separated by blanks; NULL if the starter uses its own means. */
const char *tws_starter_shell(const tws_launch_options *options);
/* Sets environment variables that make mpirun and its ranks start faster, unless they are set. */
void tws_starter_set_environment(void);
/* Returns a file for the starter's standard input that has one line, the secret; -1 if none is needed. */
int tws_starter_input(const char *secret);
/* Escapes an argument: mpirun and mpiexec treat an argument ":" as the end of a command at any position, so arguments
 * that consist of colons get one more, which tws_worker_argument() removes. Allocated in the arena; NULL: no memory. */
const char *tws_launched_argument(const char *argument, tws_arena *arena);

#endif
