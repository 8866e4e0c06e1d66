/* A cluster as links (sim/solver.h) and hosts of the engine. Ranks lie on nodes as plan/node_mapping.h says. Each
 * device has a port (NVLink or shared memory) up and down, each NIC likewise; NICs belong to the devices of their
 * node in equal shares. A node's cores are one host, shared by its ranks. */
#ifndef TWS_SIM_PLATFORM_H
#define TWS_SIM_PLATFORM_H

#include "base/memory.h"
#include "estimators/estimators.h"
#include "sim/solver.h"

typedef struct tws_platform {
  const tws_cluster *cluster;
  tws_node_mapping mapping; /* of the ranks: a port for each slot, a link for each NIC */
  double nic_bandwidth;     /* of one NIC link in collectives */
  double nic_message;       /* in messages between two ranks; the larger of the two is what the link carries */
  tws_solver *solver;       /* the links; NULL: timers do not need them */
  int links;
  int first_shared; /* link: those of a node's host lie behind those of devices and NICs */
  int switches;     /* of a node: links to the host that devices share */
  int first_leaf;   /* link: those of leaf switches to what is above them lie behind all others; -1: they have room */
} tws_platform;

/* What the ranks of a node share beside its network, each one link: a switch's link to the host, each way, and the
 * node's memory and disk. */
typedef enum tws_shared_link {
  TWS_LINK_IN,
  TWS_LINK_OUT,
  TWS_LINK_MEMORY,
  TWS_LINK_DISK_READ,
  TWS_LINK_DISK_WRITE
} tws_shared_link;
int tws_platform_shared(const tws_platform *platform, int rank, tws_shared_link kind);

/* Makes the links, and room for hosts in the engine. TWS_INVALID when the cluster has not enough devices, or a link
 * that the ranks need has no bandwidth. */
tws_code tws_platform_make(tws_platform *platform, const tws_machine *machine, int world, int use_links,
                           tws_solver_kind kind, int use_hosts, tws_error *err);
void tws_platform_drop(tws_platform *platform);
/* From now on. What is left of a rank's port, or of the NIC that it uses, each way: a share of 0 to 1, of which a
 * little stays. */
void tws_platform_scale(const tws_platform *platform, int rank, int network, double share, double now_s);
/* Links from one rank to another on (other) nodes; returns how many, those behind them are TWS_NO_LINK. */
enum { TWS_PATH_MAX = 4, TWS_NO_LINK = -1 };
int tws_platform_path(const tws_platform *platform, int from, int to, int links[TWS_PATH_MAX]);
/* Of a collective's flow alone on its links. */
double tws_platform_rate(const tws_platform *platform, const int links[TWS_PATH_MAX]);
double tws_platform_latency(const tws_platform *platform, int from, int to);
/* What a byte takes of these links: more than 1 where flows of its kind leave a part of a NIC unused. */
double tws_platform_load(const tws_platform *platform, const int links[TWS_PATH_MAX], int message);

/* Ways to turn a cluster round that map it to itself: the nodes of each block of `block` nodes move on by one, or in
 * every node the slots by `step`. Ranks and links that some of these turns map to each other have one representative,
 * the first. */
typedef struct tws_turns {
  int block, step; /* 1; all slots: no such turn */
} tws_turns;
/* The rank's image when both are done once. */
int tws_platform_turned(const tws_platform *platform, const tws_turns *turns, int rank);
int tws_platform_representative(const tws_platform *platform, const tws_turns *turns, int rank);
/* Of a device's port or a NIC. */
int tws_platform_representative_link(const tws_platform *platform, const tws_turns *turns, int link);

/* One directed edge of a collective's pattern. */
typedef struct tws_edge {
  int from, to; /* ranks */
  double share; /* of the bytes that the whole ring moves along each edge */
} tws_edge;

/* Edges of the rings that a collective of these ranks runs: inside a node one ring through its ranks; between nodes as
 * many rings as the node has NICs among its ranks' shares, each leaving and entering at ranks of its own, so that all
 * NICs work and each edge is listed once with the sum of its rings. Arena-allocated; returns the number of edges, or -1
 * without memory. */
int tws_platform_rings(const tws_platform *platform, const int *ranks, int size, tws_arena *arena, tws_edge **edges);
/* Ring number `ring` alone, as an order of the ranks; returns how many rings there are. order has room for size. */
int tws_platform_ring(const tws_platform *platform, const int *ranks, int size, int ring, int *order);

#endif
