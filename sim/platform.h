/* Represents a cluster by links (sim/solver.h) and hosts of the engine. Ranks are placed on nodes by
 * plan/node_mapping.h. Each device has a port (NVLink or shared memory) with one link out and one in, and so has each
 * NIC; the NICs of a node are divided evenly among its devices. A node's cores are one host, shared by its ranks. */
#ifndef TWS_SIM_PLATFORM_H
#define TWS_SIM_PLATFORM_H

#include "base/memory.h"
#include "estimators/estimators.h"
#include "sim/solver.h"

typedef struct tws_platform {
  const tws_cluster *cluster;
  tws_node_mapping mapping; /* of the ranks: a port for each slot, a link for each NIC */
  double nic_bandwidth;     /* of one NIC link in collectives */
  double nic_message;       /* in messages between two ranks; the link has the larger of the two */
  tws_solver *solver;       /* the links; NULL: analytic fidelity needs none */
  int links;
  int first_shared; /* index of the first link of a node's host: after those of devices and NICs */
  int switches;     /* PCIe switches of a node: links to the host that devices share */
  int first_leaf;   /* index of the first uplink of leaf switches, after all others; -1: uplinks do not limit flows */
} tws_platform;

/* Resources that the ranks of a node share in addition to its network, one link each: a switch's link to the host in
 * each direction, and the node's memory and disk. */
typedef enum tws_shared_link {
  TWS_LINK_IN,
  TWS_LINK_OUT,
  TWS_LINK_MEMORY,
  TWS_LINK_DISK_READ,
  TWS_LINK_DISK_WRITE
} tws_shared_link;
int tws_platform_shared(const tws_platform *platform, int rank, tws_shared_link kind);

/* Creates the links, and hosts in the engine. TWS_INVALID if the cluster has too few devices, or a link that the ranks
 * need has no bandwidth. */
tws_code tws_platform_make(tws_platform *platform, const tws_machine *machine, int world, int use_links,
                           tws_solver_kind kind, int use_hosts, tws_error *err);
void tws_platform_drop(tws_platform *platform);
/* Scales the bandwidth of a rank's port, or of the NIC that it uses, in both directions from now on: share is 0 to 1,
 * and a tiny bandwidth is kept at 0. */
void tws_platform_scale(const tws_platform *platform, int rank, int network, double share, double now_s);
/* Writes the links of the path from one rank to another and returns their number; the remaining elements are
 * TWS_NO_LINK. */
enum { TWS_PATH_MAX = 4, TWS_NO_LINK = -1 };
int tws_platform_path(const tws_platform *platform, int from, int to, int links[TWS_PATH_MAX]);
/* Return the bandwidth of a collective's flow on idle links, and the latency between two ranks. */
double tws_platform_rate(const tws_platform *platform, const int links[TWS_PATH_MAX]);
double tws_platform_latency(const tws_platform *platform, int from, int to);
/* Returns the link capacity that a byte takes: more than 1 if flows of its kind cannot use a NIC's whole bandwidth. */
double tws_platform_load(const tws_platform *platform, const int links[TWS_PATH_MAX], int message);

/* Rotations that map a cluster to itself: of the nodes within each block of `block` nodes by one, and of the slots
 * within every node by `step`. Ranks and links that such rotations map to each other have one representative, the
 * first. */
typedef struct tws_symmetry {
  int block, step; /* block 1, or step = slots: no rotation of that kind */
} tws_symmetry;
/* Return the image of a rank under both rotations, and its representative. */
int tws_platform_image(const tws_platform *platform, const tws_symmetry *symmetry, int rank);
int tws_platform_representative(const tws_platform *platform, const tws_symmetry *symmetry, int rank);
/* Returns the representative of a device's port or of a NIC. */
int tws_platform_representative_link(const tws_platform *platform, const tws_symmetry *symmetry, int link);

/* One directed edge of a collective's pattern. */
typedef struct tws_edge {
  int from, to; /* ranks */
  double share; /* fraction of the bytes that a whole ring sends along each edge */
} tws_edge;

/* Builds the edges of the rings that a collective of these ranks uses. Inside a node there is one ring; between nodes
 * there are as many rings as NICs that the node's ranks can use, each with its own rank that leaves and enters the
 * node, so that all NICs are used. Each edge is listed once with the sum of the shares of its rings. Arena-allocated;
 * returns the number of edges, or -1 without memory. */
int tws_platform_rings(const tws_platform *platform, const int *ranks, int size, tws_arena *arena, tws_edge **edges);
/* Writes the order of the ranks in ring number `ring` to order[size], and returns the number of rings. */
int tws_platform_ring(const tws_platform *platform, const int *ranks, int size, int ring, int *order);

#endif
