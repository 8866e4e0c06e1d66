/* The transport of groups that span nodes: shared memory inside a node, MPI messages between nodes.
 *
 * Members of a node divide what there is to do: each is the handler of a part of every segment and talks to the
 * handlers of the same part on the other nodes alone, so that what all members of a node need crosses the network once.
 * Sums keep the order of the group: a part goes from node to node in that order as float32 (float64 for float64), each
 * handler adds what its node's members have, and the last rounds it once and sends it back. Pieces follow each other,
 * so that the links of both directions are busy. Bytes over the link of a node, of a tensor of S bytes of float32 on N
 * nodes: an all-reduce S in each direction, a reduce-scatter S and S / N, an all-gather S (N - 1) / N. */
#ifndef TWS_REAL_NODE_COMM_H
#define TWS_REAL_NODE_COMM_H

#include "real/message_comm.h"

typedef struct tws_nodes tws_nodes;

/* How a group lies on nodes. nodes: 1 where all its members share memory; 0 where members of a node do not follow each
 * other in the group, which this transport does not take. */
typedef struct tws_span {
  int nodes, mine;        /* of the group; the one this rank is on */
  int *first;             /* [nodes + 1]: the first member of each node */
  int *leaders;           /* [nodes]: the ranks of these */
  int handlers;           /* members of the smallest node */
  tws_shared_group local; /* the members of this node */
} tws_span;

/* node_of: per rank of the world. Free with tws_span_free(). */
tws_code tws_span_make(const tws_shared_group *group, const int *node_of, tws_span *span, tws_error *err);
void tws_span_free(tws_span *span);

/* Of a world of `world_size` ranks; shared and messages must outlive it. */
tws_code tws_nodes_create(MPI_Comm world, int world_size, tws_shared *shared, tws_messages *messages, tws_nodes **out,
                          tws_error *err);
void tws_nodes_destroy(tws_nodes *nodes); /* NULL is allowed */
/* span->nodes > 1, and the segments in memory that the node sees (tws_shared_covers() with the whole group). */
tws_code tws_nodes_collective(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span,
                              tws_collective collective, int root, const tws_comm_segment *segments, int count,
                              tws_error *err);
tws_code tws_nodes_barrier(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span, tws_error *err);

#endif
