/* The platform represents a cluster by links (sim/solver.h) and hosts of the engine. Ranks are placed on nodes by
 * plan/node_mapping.h. Each device has a port (NVLink or shared memory) with one link out and one in, and so has each
 * NIC; the NICs of a node are divided evenly among its devices. The cores of a node are one host, which its ranks
 * share. */
#ifndef TWS_SIM_PLATFORM_H
#define TWS_SIM_PLATFORM_H

#include "base/memory.h"
#include "estimators/estimators.h"
#include "sim/solver.h"

typedef struct tws_platform {
  const tws_cluster *cluster;
  /* nodes, NICs and slots of the ranks: there is a port for each slot, and a link for each NIC */
  tws_node_mapping mapping;
  double nic_bandwidth; /* bytes per second of one NIC link in collectives */
  /* bytes per second of one NIC link in messages between two ranks; the capacity of the link is the larger of the
   * two */
  double nic_message;
  tws_solver *solver; /* solver of the flows over the links; NULL: analytic fidelity has no flows */
  int links;
  int first_shared; /* index of the first link of a node's host; the links of devices and NICs come before */
  int switches;     /* number of PCIe switches of a node; the devices of a switch share its links to the host */
  /* index of the first uplink of leaf switches, which come after all other links; -1: uplinks do not limit flows */
  int first_leaf;
} tws_platform;

/* Resources, in addition to the network, that the ranks of a node share. Each is one link: a switch's link to the host
 * in each direction and both directions together, the same for all copies of a node, the node's disk in each direction,
 * and the memory of each NUMA node. */
typedef enum tws_shared_link {
  TWS_LINK_IN,
  TWS_LINK_OUT,
  TWS_LINK_BOTH,
  TWS_LINK_NODE_IN,
  TWS_LINK_NODE_OUT,
  TWS_LINK_NODE_BOTH,
  TWS_LINK_DISK_READ,
  TWS_LINK_DISK_WRITE,
  TWS_LINK_MEMORY
} tws_shared_link;
int tws_platform_shared(const tws_platform *platform, int rank, tws_shared_link kind);

/* Creates the links, and hosts in the engine. Fails with TWS_INVALID if the cluster has too few devices, or if a link
 * that the ranks need has no bandwidth. */
tws_code tws_platform_make(tws_platform *platform, const tws_machine *machine, int world, int use_links,
                           tws_solver_kind kind, int use_hosts, tws_error *err);
void tws_platform_drop(tws_platform *platform);
/* Scales the bandwidth of a rank's port (network 0), or of the NIC that it uses (network 1), in both directions from
 * date `now_s` on. `share` is 0 to 1; at 0 a tiny bandwidth remains, so that flows end. */
void tws_platform_scale(const tws_platform *platform, int rank, int network, double share, double now_s);
/* Writes the links of the path from one rank to another and returns their number; it writes TWS_NO_LINK to the
 * remaining elements. */
enum { TWS_PATH_MAX = 4, TWS_NO_LINK = -1 };
int tws_platform_path(const tws_platform *platform, int from, int to, int links[TWS_PATH_MAX]);
/* Writes the links of a copy between a rank's device and pinned memory of its host, and returns their number. Links
 * whose rate is not known limit nothing, and are left out. */
int tws_platform_copy_path(const tws_platform *platform, int rank, int to_host, int links[TWS_PATH_MAX]);
/* tws_platform_rate() returns the bandwidth in bytes per second of a collective's flow on idle links,
 * tws_platform_latency() the seconds of latency between two ranks. */
double tws_platform_rate(const tws_platform *platform, const int links[TWS_PATH_MAX]);
double tws_platform_latency(const tws_platform *platform, int from, int to);
/* Returns the number of bytes of link capacity that one byte of a flow uses: more than 1 if flows of its kind cannot
 * use a NIC's whole bandwidth. */
double tws_platform_load(const tws_platform *platform, const int links[TWS_PATH_MAX], int message);

/* Two rotations that map a cluster to itself: one rotates the nodes within each block of `block` nodes by one, the
 * other rotates the slots within every node by `step`. Ranks and links that such rotations map to each other have one
 * representative, the first of them. */
typedef struct tws_symmetry {
  int block, step; /* block 1: nodes are not rotated; step equal to the number of slots: slots are not rotated */
} tws_symmetry;
/* tws_platform_image() returns the rank to which the symmetry maps a rank by its rotation of nodes and then of slots in
 * a node; tws_platform_representative() returns the rank that is simulated in place of a rank. */
int tws_platform_image(const tws_platform *platform, const tws_symmetry *symmetry, int rank);
int tws_platform_representative(const tws_platform *platform, const tws_symmetry *symmetry, int rank);
/* Returns the representative of a link, which has to be a device's port or a NIC. */
int tws_platform_representative_link(const tws_platform *platform, const tws_symmetry *symmetry, int link);

/* One directed edge of a collective's pattern. */
typedef struct tws_edge {
  int from, to; /* global numbers of the ranks */
  double share; /* fraction of the bytes that a whole ring sends along each edge */
} tws_edge;

/* Builds the edges of the rings that a collective of these ranks uses, and returns their number, or -1 if out of
 * memory. The edges are allocated in `arena`. Inside a node there is one ring. Between nodes there are as many rings as
 * NICs that the node's ranks can use; in each ring another rank leaves the node and another enters it, so that all NICs
 * are used. Each edge is listed once, with the sum of the shares of its rings. */
int tws_platform_rings(const tws_platform *platform, const int *ranks, int size, tws_arena *arena, tws_edge **edges);
/* Writes the order of the ranks in ring number `ring` to order[size], and returns the number of rings. */
int tws_platform_ring(const tws_platform *platform, const int *ranks, int size, int ring, int *order);

#endif
