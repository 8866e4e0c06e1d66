/* Collectives among rank processes.
 *
 * All transports give the same bits. On one node ranks read and write each other's memory: arenas that come from
 * tws_comm_allocate() are mapped by every rank, each rank computes its share of a sum directly from the others'
 * buffers, and waiting is a futex. Groups that span nodes do so within each node, and send messages between nodes
 * (real/node_comm.h). Otherwise, or for memory from elsewhere, data go through MPI in messages of bounded size. Every
 * element of a sum is added in the order of the group's ranks, in float32 (float64 for float64), and rounded once, so
 * results depend neither on timing nor on the transport, nor on which collective computed them (all-reduce, reduce and
 * reduce-scatter agree bit for bit). Element counts may exceed 2^31.
 *
 * A process that was not started by an MPI launcher is a world of one rank and never calls MPI. */
#ifndef TWS_REAL_MPI_COMM_H
#define TWS_REAL_MPI_COMM_H

#include "plan/plan.h"
#include "real/real.h"

/* The transport of collectives. AUTO: shared memory within nodes and MPI messages between them; MESSAGES: only MPI
 * messages; NODES_OF_2, NODES_OF_3: as AUTO, but every two or three ranks are treated as a separate node, for tests. */
typedef enum tws_transport {
  TWS_TRANSPORT_AUTO,
  TWS_TRANSPORT_MESSAGES,
  TWS_TRANSPORT_NODES_OF_2,
  TWS_TRANSPORT_NODES_OF_3
} tws_transport;

/* Start and end the use of MPI in this process. tws_mpi_start() calls MPI_Init if an MPI launcher has started the
 * process, and writes this rank and the number of ranks. */
tws_code tws_mpi_start(int *argc, char ***argv, int *rank, int *world, tws_error *err);
void tws_mpi_stop(void);
/* The ranks of a job are those of an MPI communicator, which functions take as the address of an MPI_Comm; NULL stands
 * for MPI_COMM_WORLD. tws_mpi_rank() and tws_mpi_world() return this process's rank in it and the number of its ranks;
 * without MPI a process is rank 0 of 1. */
int tws_mpi_rank(const void *ranks);
int tws_mpi_world(const void *ranks);
/* Duplicates a communicator, so that messages of the copy do not meet those of others; collective. *copy is NULL if MPI
 * is not in use, and is freed by tws_mpi_free() before MPI ends. */
tws_code tws_mpi_duplicate(const void *ranks, void **copy, tws_error *err);
void tws_mpi_free(void *copy);         /* collective; NULL is allowed */
const char *tws_mpi_description(void); /* returns the library's name and version, "Open MPI 4.1.4" */

/* Broadcasts *data and *bytes of rank 0 to every rank, without a communicator of plans; all ranks have to call it. The
 * other ranks free *data by tws_free(). */
tws_code tws_mpi_broadcast(const void *ranks, void **data, uint64_t *bytes, tws_error *err);

/* Creates a communicator for plans over the ranks of an MPI communicator; collective: every rank calls it, each with
 * its own plan's groups (group i of a collective is groups[i]; they are copied). group_count 0 gives a communicator for
 * tws_comm_barrier() and the helpers alone. `busy`: the ranks' threads outnumber the cores, so that a rank that waits
 * for others soon sleeps instead of polling. */
tws_code tws_comm_create(const void *ranks, const tws_group *groups, uint32_t group_count, tws_transport transport,
                         int busy, tws_comm **out, tws_error *err);
void tws_comm_destroy(tws_comm *comm);
const tws_comm_ops *tws_mpi_comm_ops(void);
int tws_comm_is_shared(const tws_comm *comm); /* returns 1 if the shared-memory transport is in use */

/* Returns the bytes that this rank has sent so far in collectives and messages of plans, as the algorithms of
 * models/collectives.def transfer them; ranks of one node read each other's memory instead. */
double tws_comm_sent_bytes(const tws_comm *comm);

/* Allocates memory that the other ranks of the node can access directly: zeroed, aligned to a page, in huge pages where
 * the kernel provides them. All ranks of the world have to call it; `bytes` may differ between ranks, and if it is 0,
 * *base is NULL. Fails with TWS_MEMORY, naming the size; the failing rank returns before the others are informed. If
 * the transport has no shared memory, it returns TWS_OK and *base stays NULL: the caller then allocates the memory
 * itself. The memory is freed with the communicator. */
tws_code tws_comm_allocate(tws_comm *comm, uint64_t bytes, void **base, tws_error *err);

/* Collective functions over the world that plans do not use. tws_comm_barrier() returns when all ranks have called
 * it. */
tws_code tws_comm_barrier(tws_comm *comm, tws_error *err);
/* Gathers every rank's `bytes` bytes on rank 0, one after another in *all (tws_free), with offsets in *offset[world +
 * 1] (tws_free); other ranks receive NULL. */
tws_code tws_comm_gather(tws_comm *comm, const void *data, uint64_t bytes, unsigned char **all, uint64_t **offset,
                         tws_error *err);
/* Replaces *value by its maximum over all ranks, on every rank. */
tws_code tws_comm_max(tws_comm *comm, double *value, tws_error *err);

/* Returns a rank of the world that has not arrived in the collective in which this rank waits, or -1. It reads shared
 * memory only, and is used by the watchdog. */
int tws_comm_missing(const tws_comm *comm);
int tws_comm_waits(const tws_comm *comm); /* returns 1 if this rank waits for others in a collective; used by the
                                           * watchdog */

#endif
