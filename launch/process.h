/* Information about other processes of this machine, from /proc. */
#ifndef TWS_LAUNCH_PROCESS_H
#define TWS_LAUNCH_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

/* Returns the state of a process as ps(1) prints it ('R', 'S', 'T': stopped, 't': stopped by a debugger, 'Z' ...), and
 * sets *parent (may be NULL); 0 if there is no such process, or it cannot be read. */
char tws_process_state(pid_t pid, pid_t *parent);
/* Returns 1 if this is the state of a stopped process. */
int tws_process_is_stopped(char state);
/* Reads a variable of the environment that a process was started with. Returns 0 if it has none of this name, or cannot
 * be read. */
int tws_process_variable(pid_t pid, const char *name, char *value, size_t size);
/* Returns the CPU clock ticks used by all descendants of a process, except the processes in `apart` (zeros are skipped)
 * and their descendants. The number changes while any of them runs. */
unsigned long long tws_process_descendant_ticks(pid_t root, const pid_t *apart, int count);
/* Writes up to `room` children of a process and returns how many there are. */
int tws_process_children(pid_t parent, pid_t *children, int room);

#endif
