/* What Linux says of other processes of this machine, through /proc. */
#ifndef TWS_LAUNCH_PROCESS_H
#define TWS_LAUNCH_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

/* Its state as ps(1) prints it ('R', 'S', 'T': stopped, 't': stopped by a debugger, 'Z' ...) and its parent, which may
 * be NULL; 0: there is no such process, or it cannot be seen. */
char tws_process_state(pid_t pid, pid_t *parent);
/* 1 for the states of a stopped process. */
int tws_process_is_stopped(char state);
/* The value of a variable in the environment that a process was started with; 0: it has none, or it cannot be read. */
int tws_process_variable(pid_t pid, const char *name, char *value, size_t size);
/* Clock ticks of processor time that the descendants of a process have used, but for those of `apart` (0s are skipped):
 * a number that changes while they do anything. */
unsigned long long tws_process_ticks_below(pid_t root, const pid_t *apart, int count);
/* Up to `room` children of a process; how many there are of them. */
int tws_process_children(pid_t parent, pid_t *children, int room);

#endif
