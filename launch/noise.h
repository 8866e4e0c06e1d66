/* Parses mpirun's own output, which names the rank that ended a job. */
#ifndef TWS_LAUNCH_NOISE_H
#define TWS_LAUNCH_NOISE_H

#include <stddef.h>

/* Reads the file as one line, without rules and runs of blanks. Returns the rank that mpirun names as the first that
 * failed, or -1. *explains is 1 if mpirun printed an explanation of its own. Open MPI prints one, with a rank or a
 * node, whenever something has failed, and none when a signal asked it to end (SIGTERM, SIGINT, SIGHUP). */
int tws_noise_read(int file, char *text, size_t size, int *explains);

#endif
