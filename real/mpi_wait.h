/* Waiting for other ranks without occupying a core. MPI's own waits poll without a pause, which on an oversubscribed
 * machine takes the time of the ranks that are waited for, and of everything else that runs there. These functions
 * poll for 50 microseconds, and then sleep between polls, each time for an eighth of the time waited so far. */
#ifndef TWS_REAL_MPI_WAIT_H
#define TWS_REAL_MPI_WAIT_H

#include <mpi.h>

/* Waits until all requests are complete and returns MPI's code. It is not for messages of more than some 64 KiB: MPI
 * transfers them in many parts, each in a call of its own, and a sleep between calls would delay every part. */
int tws_mpi_wait(MPI_Request *requests, int count);

/* Returns when all ranks of the communicator have called it: before a collective call that polls until they have. */
int tws_mpi_meet(MPI_Comm ranks);

/* MPI's collectives of the same names, for small data outside of steps. Return MPI's code. */
int tws_mpi_bcast(void *data, int count, MPI_Datatype type, MPI_Comm ranks);
int tws_mpi_gather(const void *send, void *receive, int count, MPI_Datatype type, MPI_Comm ranks);
int tws_mpi_allgather(const void *send, void *receive, int count, MPI_Datatype type, MPI_Comm ranks);
int tws_mpi_allreduce(const void *send, void *receive, MPI_Datatype type, MPI_Op operation, MPI_Comm ranks);

#endif
