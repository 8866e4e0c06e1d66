/* The message transport of the communicator: collectives over MPI messages of bounded size, with the summation order
 * of the shared-memory transport. */
#ifndef TWS_REAL_MESSAGE_COMM_H
#define TWS_REAL_MESSAGE_COMM_H

#include <mpi.h>
#include "real/shared_comm.h"

typedef struct tws_messages tws_messages;
/* Creates the transport; collective. `busy`: threads of the ranks outnumber the cores of a machine, so that ranks sleep
 * while they wait for others; equal on all ranks. */
tws_code tws_messages_create(MPI_Comm world, int world_size, int busy, tws_messages **out, tws_error *err);
void tws_messages_destroy(tws_messages *messages);
tws_code tws_messages_collective(tws_messages *messages, const tws_shared_group *group, tws_collective collective,
                                 int root, const tws_comm_segment *segment, tws_error *err);
/* Runs the inter-node part of a pairwise collective: messages between this rank and members outside of [near_first,
 * near_last). */
tws_code tws_messages_far_pairs(tws_messages *messages, const tws_shared_group *group, int near_first, int near_last,
                                tws_collective collective, int root, const tws_comm_segment *segment, tws_error *err);
tws_code tws_messages_send(tws_messages *messages, int peer, const void *data, uint64_t bytes, tws_error *err);
tws_code tws_messages_receive(tws_messages *messages, int peer, void *data, uint64_t bytes, tws_error *err);

/* Fails with TWS_RANK and MPI's error text if `code` is not MPI_SUCCESS. */
tws_code tws_messages_check(int code, const char *what, tws_error *err);
int tws_messages_tag(const tws_shared_group *group);

#endif
