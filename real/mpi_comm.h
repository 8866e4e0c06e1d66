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

/* Choice of a transport. MESSAGES uses MPI messages alone; NODES_OF_2 and NODES_OF_3 are AUTO as if every two or
 * three ranks were a node of their own, for tests. */
typedef enum tws_transport {
  TWS_TRANSPORT_AUTO,
  TWS_TRANSPORT_MESSAGES,
  TWS_TRANSPORT_NODES_OF_2,
  TWS_TRANSPORT_NODES_OF_3
} tws_transport;

/* Process-wide life cycle. start: calls MPI_Init when an MPI launcher has started the process. */
tws_code tws_mpi_start(int *argc, char ***argv, int *rank, int *world, tws_error *err);
void tws_mpi_stop(void);
int tws_mpi_rank(void);
int tws_mpi_world(void);
const char *tws_mpi_description(void); /* "Open MPI 4.1.4" */

/* Collective, without a communicator: broadcasts *data and *bytes of rank 0 to every rank; the other ranks free
 * *data (tws_free). */
tws_code tws_mpi_broadcast(void **data, uint64_t *bytes, tws_error *err);

/* Collective over the world: every rank calls it, each with its own plan's groups (group i of a collective is
 * groups[i]; they are copied). group_count 0 gives a communicator for tws_comm_barrier() and the helpers alone.
 * `busy`: the ranks' threads outnumber the cores, and waiting yields at once instead of spinning. */
tws_code tws_comm_create(const tws_group *groups, uint32_t group_count, tws_transport transport, int busy,
                         tws_comm **out, tws_error *err);
void tws_comm_destroy(tws_comm *comm);
const tws_comm_ops *tws_mpi_comm_ops(void);
int tws_comm_is_shared(const tws_comm *comm); /* 1: the shared-memory transport is in use */

/* Memory that the other ranks of the node can access directly: zeroed, aligned to a page, in huge pages where the
 * kernel provides them. Collective over the world (bytes may differ and be 0: *base is then NULL). TWS_MEMORY names
 * the size; the failing rank returns before the others are informed. *base stays NULL with TWS_OK if the transport
 * has no shared memory: the caller then allocates by itself. Freed with the communicator. */
tws_code tws_comm_allocate(tws_comm *comm, uint64_t bytes, void **base, tws_error *err);

/* World-wide helpers, outside plans. */
tws_code tws_comm_barrier(tws_comm *comm, tws_error *err);
/* Rank 0 receives every rank's `bytes` one after another in *all (tws_free), at offsets *offset[world + 1]
 * (tws_free); other ranks get NULL. */
tws_code tws_comm_gather(tws_comm *comm, const void *data, uint64_t bytes, unsigned char **all, uint64_t **offset,
                         tws_error *err);
tws_code tws_comm_max(tws_comm *comm, double *value, tws_error *err); /* in place, on every rank */

/* A rank (of the world) that has not arrived in the collective that this rank waits in, or -1. For the watchdog;
 * reads only shared memory. */
int tws_comm_missing(const tws_comm *comm);
int tws_comm_waits(const tws_comm *comm); /* 1: this rank waits for others in a collective; for the watchdog too */

#endif
