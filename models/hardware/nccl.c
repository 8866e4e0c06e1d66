#include "models/hardware/nccl.h"

#include <math.h>

/* Constants of NCCL's source code: ncclTunerConstantsDefaults in src/graph/tuning.cc, and the bandwidths of NVLinks in
 * src/graph/topo.h, in microseconds and GB/s as there. Arrays are by protocol: LL, LL128, Simple. */
enum { NODES_1, NODES_2, NODES_MORE, NODE_CLASSES };

static const double base_us[TWS_NCCL_ALGORITHMS][TWS_NCCL_PROTOCOLS] = {
    {6.8, 14.0, 8.4}, {6.6, 14.0, 8.4}, {0, 0, 0}, {0, 0, 0}, {8.0, 8.0, 8.0}};
static const double nvlink_us[TWS_NCCL_ALGORITHMS][TWS_NCCL_PROTOCOLS] = {
    {0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}, {0, 0, 25}, {0, 0, 25}, {0, 0, 4.0}};
static const double network_us[TWS_NCCL_ALGORITHMS][TWS_NCCL_PROTOCOLS] = {
    {5.0, 8.5, 14.0}, {2.7, 4.0, 14.0}, {0, 0, 18}, {0, 0, 20.9}, {0, 0, 14.0}};

typedef struct constants {
  double link;                     /* usable GB/s of one NVLink */
  double ll_max[NODE_CLASSES];     /* GB/s of LL, all channels together; between nodes see ll_max() below */
  double ring_ll128[NODE_CLASSES]; /* GB/s of one channel with LL128 */
  double tree_ll128[NODE_CLASSES];
  double tree[NODE_CLASSES];
  double nvls_tree[NODE_CLASSES];
  double nvls;    /* GB/s of a port with NVLS; 0: the NVLink switches of this generation cannot reduce */
  int channels;   /* number of channels of a node, as in NCCL's log ("coll channels") */
  double plateau; /* factor of the latency of full rings between nodes */
} constants;

static const constants table[TWS_GENERATION_COUNT] = {
    [TWS_GENERATION_VOLTA] =
        {20.0 / 25, {39, 39, 20.4}, {20, 20, 20}, {20, 20, 20}, {26.5, 18.5, 10}, {26.5, 18.5, 10}, 0, 12, 1.9},
    [TWS_GENERATION_AMPERE] =
        {20.0 / 25, {87.7, 22.5, 19}, {20, 20, 20}, {20, 20, 20}, {24, 23.6, 17.8}, {24, 23.6, 17.8}, 0, 24, 1.4},
    [TWS_GENERATION_HOPPER] = {20.6 / 25,
                               {141, 45, 35},
                               {36.7, 36.7, 36.7},
                               {36.7, 36.7, 29},
                               {38.7, 41.4, 36},
                               {0, 57.7, 45.5},
                               0.85,
                               24,
                               1.4},
    [TWS_GENERATION_BLACKWELL] =
        {40.1 / 50, {282, 90, 70}, {40, 40, 40}, {55.6, 31.67, 20}, {70, 42.8, 24}, {0, 96, 80}, 0.74, 32, 1.4},
};

/* Fraction of the bandwidth that a tree reaches, by protocol and size: element i is for 64 x 2^i bytes. */
static const double tree_reaches[TWS_NCCL_PROTOCOLS][24] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9}};

/* A group of ranks and the bandwidths of its links in bytes/s. */
typedef struct group {
  const tws_cluster *cluster;
  const constants *of;
  int ranks, nodes, per_node, class;
  int channels;
  double port, network; /* bytes/s of a device's port, and of all NICs that the ranks of a node use together */
  int reduces_all;
} group;

static int make_group(const tws_cluster *cluster, int generation, tws_collective collective, int ranks, int per_node,
                      group *g) {
  if (generation <= TWS_GENERATION_NONE || generation >= TWS_GENERATION_COUNT || ranks < 2) return 0;
  if (collective != TWS_COLLECTIVE_ALL_REDUCE && collective != TWS_COLLECTIVE_ALL_GATHER &&
      collective != TWS_COLLECTIVE_REDUCE_SCATTER)
    return 0;
  if (per_node < 1) per_node = 1;
  if (per_node > ranks) per_node = ranks;
  const int nodes = (ranks + per_node - 1) / per_node;
  const int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  const double nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  *g = (group){.cluster = cluster,
               .of = &table[generation],
               .ranks = ranks,
               .nodes = nodes,
               .per_node = per_node,
               .class = nodes == 1   ? NODES_1
                        : nodes == 2 ? NODES_2
                                     : NODES_MORE,
               .port = tws_cluster_port(cluster, per_node) * table[generation].link,
               .network = cluster->inter.bandwidth * nics * per_node / devices /
                          (nodes > cluster->leaf_nodes && cluster->leaf_nodes > 0
                               ? tws_cluster_crowding(cluster, 1.0 / cluster->leaf_nodes)
                               : 1),
               .reduces_all = collective == TWS_COLLECTIVE_ALL_REDUCE};
  /* between nodes NCCL uses two channels for each NIC of the ranks */
  const int between = (int)ceil(2 * nics * per_node / devices);
  g->channels = nodes == 1 || between > g->of->channels ? g->of->channels : between < 2 ? 2 : between;
  return 1;
}

/* Returns the bus bandwidth in bytes/s of rings and trees, without the efficiency of the protocol. */
static double bus(const group *g) {
  return g->nodes == 1 ? g->port : g->per_node == 1 ? g->network : fmin(g->port, g->network);
}

/* Returns the upper bound of the bandwidth of the protocol LL in bytes/s. Between nodes the CPU is the limit, and
 * Intel's CPUs post messages faster than AMD's (getNetOverhead()). */
static double ll_max(const group *g) {
  const int amd = g->cluster->message_s > 1.5e-6;
  return 1e9 * (g->nodes == 1 ? g->of->ll_max[NODES_1]
                              : table[amd ? TWS_GENERATION_AMPERE : TWS_GENERATION_VOLTA].ll_max[g->class]);
}

static double ring_bandwidth(const group *g, tws_nccl_protocol protocol) {
  const double all = bus(g), steps = (g->reduces_all ? 2.0 : 1.0) * (g->ranks - 1);
  const double bandwidth = protocol == TWS_NCCL_LL ? fmin(ll_max(g), all / 2)
                           : protocol == TWS_NCCL_LL128
                               ? fmin(0.92 * all, 1e9 * g->channels * g->of->ring_ll128[g->class])
                               : all;
  return bandwidth * g->ranks / steps;
}

static double tree_bandwidth(const group *g, tws_nccl_protocol protocol) {
  double bandwidth = fmin(0.92 * bus(g), 1e9 * g->channels * g->of->tree[g->class]);
  if (protocol == TWS_NCCL_LL) bandwidth = fmin(bandwidth / 3.8, ll_max(g));
  if (protocol == TWS_NCCL_LL128)
    bandwidth =
        fmin(bandwidth * (g->nodes == 1 ? 7.0 / 9 : 120.0 / 128), 1e9 * g->channels * g->of->tree_ll128[g->class]);
  return bandwidth / 2;
}

/* Returns the bandwidth of NVLS. A port carries all data of the device to the switch and all sums back, and in addition
 * the n-th part that the device requests, so n / (n + 1) of its bandwidth is used for data. NCCL uses 2 (n - 1) / n
 * over 2 (c - 1) / c channels, which is about the same. */
static double nvls_bandwidth(const group *g, tws_nccl_algorithm algorithm) {
  const double inside = g->port * g->of->nvls * g->per_node / (g->per_node + 1);
  if (algorithm == TWS_NCCL_NVLS) return inside;
  const double tree = 1e9 * g->channels * g->of->nvls_tree[g->class];
  const double between = fmin(g->network * (g->nodes == 2 ? 2 : 1), tree);
  return fmin(inside, between * g->ranks / (2.0 * (g->ranks - 1)));
}

static double log2_floor(double n) {
  return n < 2 ? 0 : floor(log2(n));
}

static double latency_us(const group *g, tws_nccl_algorithm algorithm, tws_nccl_protocol protocol, double bytes) {
  const double base = base_us[algorithm][protocol], inside = nvlink_us[algorithm][protocol],
               between =
                   network_us[g->per_node == 1 && algorithm == TWS_NCCL_RING ? TWS_NCCL_TREE : algorithm][protocol],
               nodes = log2_floor(g->nodes), post = (protocol == TWS_NCCL_SIMPLE ? 3 : 1) * 1e6 * g->cluster->message_s;
  const int steps = (g->reduces_all ? 2 : 1) * (g->ranks - 1), outside = (g->reduces_all ? 2 : 1) * (g->nodes - 1);
  double us;
  switch (algorithm) {
    case TWS_NCCL_TREE:
      return base + 2 * ((g->per_node - 1) * inside + nodes * between);
    case TWS_NCCL_NVLS:
      return inside;
    case TWS_NCCL_NVLS_TREE:
      return base + inside + 2 * nodes * between;
    case TWS_NCCL_PAT:
      return base + nodes * between / 3.5 + 2.8 * g->ranks;
    default:
      us = base + (steps - outside) * (g->nodes > 1 ? fmax(inside, post) : inside) + outside * between;
  }
  const int full = bytes / ((double)g->channels * g->ranks) >= 64;
  return protocol == TWS_NCCL_SIMPLE && g->nodes > 1 && g->reduces_all && full ? us * g->of->plateau : us;
}

static int runs(const group *g, tws_nccl_algorithm algorithm, tws_nccl_protocol protocol) {
  if (algorithm > TWS_NCCL_RING && protocol != TWS_NCCL_SIMPLE) return 0;
  switch (algorithm) {
    case TWS_NCCL_RING:
      return 1;
    case TWS_NCCL_TREE:
      return g->reduces_all;
    case TWS_NCCL_NVLS: /* requires an NVLink switch that reduces */
      return g->reduces_all && g->of->nvls > 0 && g->nodes == 1 && g->ranks > 2 && !g->cluster->paired;
    case TWS_NCCL_NVLS_TREE:
      return g->reduces_all && g->of->nvls > 0 && g->nodes > 1 && g->per_node > 2 && !g->cluster->paired;
    default:
      return !g->reduces_all && g->per_node == 1;
  }
}

static double seconds_of(const group *g, double bytes, tws_nccl_choice *choice) {
  const tws_nccl_algorithm algorithm = choice->algorithm;
  const tws_nccl_protocol protocol = choice->protocol;
  double bandwidth = algorithm == TWS_NCCL_RING   ? ring_bandwidth(g, protocol)
                     : algorithm == TWS_NCCL_TREE ? tree_bandwidth(g, protocol)
                     : algorithm == TWS_NCCL_PAT  ? 0.75 * bus(g)
                                                  : nvls_bandwidth(g, algorithm);
  const int size = (int)log2_floor(bytes / 64);
  if (algorithm == TWS_NCCL_TREE && bytes >= 64 && size < 23) bandwidth *= tree_reaches[protocol][size];
  if (algorithm == TWS_NCCL_NVLS_TREE && g->of->channels == table[TWS_GENERATION_BLACKWELL].channels && bytes >= 64 &&
      size < 24)
    bandwidth *= tree_reaches[protocol][size];
  choice->channels = g->channels;
  choice->bandwidth = bandwidth;
  choice->latency_s = 1e-6 * latency_us(g, algorithm, protocol, bytes);
  return choice->seconds = choice->latency_s + (bandwidth > 0 ? bytes / bandwidth : 0);
}

int tws_nccl_choose(const tws_cluster *cluster, int generation, tws_collective collective, int ranks, int per_node,
                    double bytes, tws_nccl_choice *choice) {
  group g;
  int found = 0;
  if (!make_group(cluster, generation, collective, ranks, per_node, &g)) return 0;
  for (int a = 0; a < TWS_NCCL_ALGORITHMS; a++) {
    for (int p = 0; p < TWS_NCCL_PROTOCOLS; p++) {
      tws_nccl_choice next = {.algorithm = (tws_nccl_algorithm)a, .protocol = (tws_nccl_protocol)p};
      if (!runs(&g, next.algorithm, next.protocol)) continue;
      seconds_of(&g, bytes, &next);
      if (!found || next.seconds < choice->seconds) *choice = next;
      found = 1;
    }
  }
  return found;
}
