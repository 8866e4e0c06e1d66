/* The transport of groups that span nodes (two-level collectives): shared memory within a node, MPI messages between
 * nodes.
 *
 * Members of a node divide the work: each is the handler of a fixed share of every segment, and exchanges messages
 * only with the handlers of the same share on the other nodes, so that data that all members of a node need cross
 * the network once. Sums keep the order of the group: a share goes from node to node in that order as float32
 * (float64 for float64), each handler adds the contributions of its node's members, and the last one rounds the sum
 * once and sends it back. Shares are pipelined in blocks, so that links are busy in both directions. Bytes over the
 * link of a node, for a tensor of S bytes of float32 on N nodes: an all-reduce S in each direction, a reduce-scatter
 * S and S / N, an all-gather S (N - 1) / N. */
#ifndef TWS_REAL_NODE_COMM_H
#define TWS_REAL_NODE_COMM_H

#include "real/message_comm.h"

typedef struct tws_nodes tws_nodes;

/* The distribution of a group's members over nodes. nodes 1: all members share memory; nodes 0: members of a node are
 * not consecutive in the group, which this transport does not support. */
typedef struct tws_span {
  int nodes, mine;        /* nodes: number of nodes of the group; mine: index of this rank's node */
  int *first;             /* [nodes + 1] index in the group of the first member of each node */
  int *leaders;           /* [nodes] rank of the first member of each node */
  int handlers;           /* number of members of each node that exchange data with other nodes: the size of the
                           * smallest node's share of the group */
  tws_shared_group local; /* the members of this node */
} tws_span;

/* Determines the distribution of a group. node_of: [rank of the world] its node. Free it with tws_span_free(). */
tws_code tws_span_make(const tws_shared_group *group, const int *node_of, tws_span *span, tws_error *err);
void tws_span_free(tws_span *span);

/* Creates the transport for a world of `world_size` ranks; shared and messages must outlive it. */
tws_code tws_nodes_create(MPI_Comm world, int world_size, tws_shared *shared, tws_messages *messages, tws_nodes **out,
                          tws_error *err);
void tws_nodes_destroy(tws_nodes *nodes); /* NULL is allowed */
/* Runs a collective of a group on several nodes. Requires span->nodes > 1, and segments in memory that the ranks of a
 * node share (tws_shared_covers() for the whole group). */
tws_code tws_nodes_collective(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span,
                              tws_collective collective, int root, const tws_comm_segment *segments, int count,
                              tws_error *err);
tws_code tws_nodes_barrier(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span, tws_error *err);

#endif
