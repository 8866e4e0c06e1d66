/* The commands that start ranks. */
#ifndef TWS_LAUNCH_STARTER_H
#define TWS_LAUNCH_STARTER_H

#include "base/memory.h"
#include "launch/launch.h"

/* 1: ranks are on other machines as well, and reach the launcher through the network. */
int tws_launch_is_far(const tws_launch_options *options);

/* The remote shell, as words that blanks separate; NULL: the starter has a way of its own. */
const char *tws_starter_shell(const tws_launch_options *options);
/* A file that may be the starter's standard input: a line with the secret, and no more. -1: there is none. */
int tws_starter_input(const char *secret);
/* mpirun and mpiexec treat an argument ":" as the end of a command at any position: arguments of colons get one more
 * colon, which tws_worker_argument() takes away. In the arena; NULL: no memory. */
const char *tws_launched_argument(const char *argument, tws_arena *arena);

#endif
