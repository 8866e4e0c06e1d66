#include "sim/platform.h"

#include <math.h>

#include "sim/adapter.h"

enum { MAX_LINKS = 1 << 20 };

static int port_link(int slot, int down) {
  return 2 * slot + down;
}

static int nic_link(const tws_platform *p, int rank, int down) {
  return 2 * p->mapping.nodes * p->mapping.slots + 2 * tws_mapping_nic(&p->mapping, rank) + down;
}

/* The links of a node are those of each switch (IN, OUT and BOTH), then three that limit all copies of the node, disk
 * read, disk write, and the memory of each NUMA domain. */
enum { OF_SWITCH = TWS_LINK_NODE_IN, BEFORE_MEMORY = TWS_LINK_MEMORY - TWS_LINK_NODE_IN };

static int node_links(const tws_platform *p) {
  return OF_SWITCH * p->switches + BEFORE_MEMORY + (p->cluster->numa_nodes > 1 ? p->cluster->numa_nodes : 1);
}

int tws_platform_shared(const tws_platform *p, int rank, tws_shared_link kind) {
  const int node = tws_mapping_node(&p->mapping, rank);
  const int first = p->first_shared + node * node_links(p);
  const int of_node = first + OF_SWITCH * p->switches + (int)kind - OF_SWITCH;
  if (kind == TWS_LINK_MEMORY) return of_node + tws_mapping_numa(&p->mapping, p->cluster, rank);
  if (kind >= TWS_LINK_NODE_IN) return of_node;
  const int sharers = p->cluster->devices_per_host_link > 1 ? p->cluster->devices_per_host_link : 1;
  return first + OF_SWITCH * (rank % p->mapping.slots / sharers) + (int)kind;
}

/* Returns the rate of copies of one of three links (in, out, both directions together); 0: it is not known. */
static double rate_of(const tws_copy_rates *rates, int link) {
  return link == 0 ? rates->to_device : link == 1 ? rates->to_host : rates->both_ways;
}

int tws_platform_copy_path(const tws_platform *p, int rank, int to_host, int links[TWS_PATH_MAX]) {
  const tws_cluster *c = p->cluster;
  int count = 0;
  links[count++] = tws_platform_shared(p, rank, to_host ? TWS_LINK_OUT : TWS_LINK_IN);
  if (c->host_copies.both_ways > 0) links[count++] = tws_platform_shared(p, rank, TWS_LINK_BOTH);
  if (rate_of(&c->node_copies, to_host) > 0)
    links[count++] = tws_platform_shared(p, rank, to_host ? TWS_LINK_NODE_OUT : TWS_LINK_NODE_IN);
  if (c->node_copies.both_ways > 0) links[count++] = tws_platform_shared(p, rank, TWS_LINK_NODE_BOTH);
  return count;
}

static double shared_bandwidth(const tws_platform *p, int link) {
  const tws_cluster *c = p->cluster;
  const int at = (link - p->first_shared) % node_links(p), of_node = at - OF_SWITCH * p->switches;
  const double disk[2] = {c->disk_read > 0 ? c->disk_read : TWS_USUAL_DISK_READ,
                          c->disk_write > 0 ? c->disk_write : TWS_USUAL_DISK_WRITE};
  if (of_node < 0) return at % OF_SWITCH < 2 ? tws_cluster_copy_rate(c, at % OF_SWITCH) : c->host_copies.both_ways;
  if (of_node < OF_SWITCH) return rate_of(&c->node_copies, of_node);
  if (of_node < BEFORE_MEMORY) return disk[of_node - OF_SWITCH];
  return c->host_bandwidth / (c->numa_nodes > 1 ? c->numa_nodes : 1);
}

static double nic_capacity(const tws_platform *p) {
  return p->nic_message > p->nic_bandwidth ? p->nic_message : p->nic_bandwidth;
}

/* Returns the bytes per second of a leaf switch's uplink or downlink. It is derived from the capacity of NIC links, to
 * which the loads of flows refer (tws_platform_load()). */
static double leaf_bandwidth(const tws_platform *p) {
  const tws_cluster *c = p->cluster;
  return c->leaf_nodes * p->mapping.nics * nic_capacity(p) / c->oversubscription;
}

static double link_bandwidth(const tws_platform *p, int link) {
  if (p->first_leaf >= 0 && link >= p->first_leaf) return leaf_bandwidth(p);
  const double bandwidth = link < port_link(p->mapping.nodes * p->mapping.slots, 0) ? p->cluster->intra.bandwidth
                           : link < p->first_shared                                 ? p->nic_bandwidth
                                                                                    : shared_bandwidth(p, link);
  return bandwidth > 0 ? bandwidth : 1;
}

static int is_nic(const tws_platform *p, int link) {
  return link >= port_link(p->mapping.nodes * p->mapping.slots, 0) && link < p->first_shared;
}

static tws_code set_links(tws_platform *p, tws_solver_kind kind, tws_error *err) {
  const tws_cluster *cluster = p->cluster;
  const tws_node_mapping *m = &p->mapping;
  const int sharers = cluster->devices_per_host_link > 1 ? cluster->devices_per_host_link : 1;
  p->switches = (m->slots + sharers - 1) / sharers;
  const int64_t network = 2 * (int64_t)m->nodes * (m->slots + m->nics);
  const int64_t first_leaf = network + m->nodes * (int64_t)node_links(p);
  const int crowded = cluster->leaf_nodes > 0 && cluster->leaf_nodes < m->nodes && cluster->oversubscription > 1;
  const int64_t links = first_leaf + (crowded ? 2 * ((m->nodes - 1) / cluster->leaf_nodes + 1) : 0);
  if (links > MAX_LINKS)
    return tws_fail(err, TWS_UNSUPPORTED, "simulate analytically, or fewer ranks",
                    "%d ranks need %lld links, more than %d", m->ranks, (long long)links, MAX_LINKS);
  if (m->slots > 1 && m->ranks > 1 && !(cluster->intra.bandwidth > 0))
    return tws_fail(err, TWS_INVALID, "give its \"intra\" bandwidth", "cluster %s has no links inside a node",
                    cluster->name);
  if (m->nodes > 1 && !(p->nic_bandwidth > 0))
    return tws_fail(err, TWS_INVALID, "give its \"inter\" bandwidth", "cluster %s has no links between nodes",
                    cluster->name);
  TWS_TRY(tws_solver_create(kind, (int)links, &p->solver, err));
  p->first_shared = (int)network;
  p->first_leaf = crowded ? (int)first_leaf : -1;
  p->links = (int)links;
  for (int i = 0; i < (int)links; i++)
    tws_solver_capacity(p->solver, i, is_nic(p, i) ? nic_capacity(p) : link_bandwidth(p, i), 0);
  return TWS_OK;
}

tws_code tws_platform_make(tws_platform *p, const tws_machine *machine, int world, int use_links, tws_solver_kind kind,
                           int use_hosts, tws_error *err) {
  const tws_cluster *cluster = machine->cluster;
  const int nodes = cluster->nodes > 0 ? cluster->nodes : 1,
            nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  *p = (tws_platform){.cluster = cluster, .first_leaf = -1, .mapping = tws_machine_mapping(machine, world)};
  if (p->mapping.nodes > nodes)
    return tws_fail(err, TWS_INVALID, "use more nodes or fewer ranks", "%d ranks on cluster %s, which has %d devices",
                    world, cluster->name, nodes * cluster->devices_per_node);
  p->nic_bandwidth = cluster->inter.bandwidth * nics / p->mapping.nics; /* the NICs of one device are one link */
  p->nic_message =
      cluster->message_bandwidth > 0 ? cluster->message_bandwidth * nics / p->mapping.nics : p->nic_bandwidth;
  if (use_links) TWS_TRY(set_links(p, kind, err));
  if (use_hosts && tws_engine_reserve(p->mapping.nodes) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", tws_engine_error());
  return TWS_OK;
}

void tws_platform_drop(tws_platform *p) {
  tws_solver_destroy(p->solver);
}

double tws_platform_rate(const tws_platform *p, const int links[TWS_PATH_MAX]) {
  double least = link_bandwidth(p, links[0]);
  for (int k = 1; k < TWS_PATH_MAX && links[k] != TWS_NO_LINK; k++) least = fmin(least, link_bandwidth(p, links[k]));
  return least;
}

double tws_platform_load(const tws_platform *p, const int links[TWS_PATH_MAX], int message) {
  return is_nic(p, links[0]) ? nic_capacity(p) / (message ? p->nic_message : p->nic_bandwidth) : 1;
}

int tws_platform_path(const tws_platform *p, int from, int to, int links[TWS_PATH_MAX]) {
  const int here = tws_mapping_node(&p->mapping, from), there = tws_mapping_node(&p->mapping, to);
  links[2] = links[3] = TWS_NO_LINK;
  if (here == there) {
    links[0] = port_link(from, 0);
    links[1] = port_link(to, 1);
    return 2;
  }
  links[0] = nic_link(p, from, 0);
  links[1] = nic_link(p, to, 1);
  if (p->first_leaf < 0) return 2;
  const int up = here / p->cluster->leaf_nodes, down = there / p->cluster->leaf_nodes;
  if (up == down) return 2;
  links[2] = p->first_leaf + 2 * up;
  links[3] = p->first_leaf + 2 * down + 1;
  return TWS_PATH_MAX;
}

void tws_platform_scale(const tws_platform *p, int rank, int network, double share, double now_s) {
  /* a link that is down keeps this bandwidth in bytes per second, so that its flows end, but after every deadline */
  const double nothing_bytes_s = 1e-3;
  const double whole = network ? nic_capacity(p) : p->cluster->intra.bandwidth;
  const double left = whole * share > nothing_bytes_s ? whole * share : nothing_bytes_s;
  for (int down = 0; down < 2; down++)
    tws_solver_capacity(p->solver, network ? nic_link(p, rank, down) : port_link(rank, down), left, now_s);
}

double tws_platform_latency(const tws_platform *p, int from, int to) {
  const int same = tws_mapping_node(&p->mapping, from) == tws_mapping_node(&p->mapping, to);
  return same ? p->cluster->intra.latency_s : p->cluster->inter.latency_s;
}

/* ---- rotations ---- */

int tws_platform_image(const tws_platform *p, const tws_symmetry *s, int rank) {
  const int slots = p->mapping.slots, node = rank / slots, slot = rank % slots, first = node - node % s->block;
  return (first + (node - first + 1) % s->block) * slots + (slot + s->step) % slots;
}

int tws_platform_representative(const tws_platform *p, const tws_symmetry *s, int rank) {
  const int slots = p->mapping.slots, node = rank / slots;
  return (node - node % s->block) * slots + rank % slots % s->step;
}

int tws_platform_representative_link(const tws_platform *p, const tws_symmetry *s, int link) {
  const int slots = p->mapping.slots, nics = p->mapping.nics, ports = port_link(p->mapping.nodes * slots, 0);
  if (link < ports) return port_link(tws_platform_representative(p, s, link / 2), link % 2);
  const int nic = (link - ports) / 2, node = nic / nics;
  return ports + 2 * ((node - node % s->block) * nics + nic % nics % (s->step * nics / slots)) + link % 2;
}

/* ---- rings ---- */

/* Returns the end of the block that begins with index `first`: a block is the longest run of successive ranks on one
 * node. A group of a topology has one block per node, or more if its ranks return to a node. */
static int block_end(const tws_platform *p, const int *ranks, int size, int first) {
  int end = first + 1;
  while (end < size && tws_mapping_node(&p->mapping, ranks[end]) == tws_mapping_node(&p->mapping, ranks[first])) end++;
  return end;
}

/* Returns the number of rings of a communicator: the minimum, over its blocks, of the number of NICs that the block's
 * ranks can use; 1 if all ranks are on one node. */
static int ring_count(const tws_platform *p, const int *ranks, int size) {
  int rings = size;
  for (int first = 0, end; first < size; first = end) {
    end = block_end(p, ranks, size, first);
    if (first == 0 && end == size) return 1;
    int nics = 0;
    for (int i = first; i < end; i++)
      nics += i == first || tws_mapping_nic(&p->mapping, ranks[i]) != tws_mapping_nic(&p->mapping, ranks[i - 1]);
    if (nics < rings) rings = nics;
  }
  return rings;
}

/* Returns the position in a block of `length` ranks at which ring number `ring` of `rings` leaves the node; the ring
 * enters it at the next position. */
static int exit_of(int length, int ring, int rings) {
  return (int)((int64_t)(ring + 1) * length / rings) - 1;
}

int tws_platform_ring(const tws_platform *p, const int *ranks, int size, int ring, int *order) {
  const int rings = ring_count(p, ranks, size);
  int at = 0;
  for (int first = 0, end; first < size; first = end) {
    end = block_end(p, ranks, size, first);
    const int length = end - first, exit = exit_of(length, ring, rings);
    for (int i = 1; i <= length; i++) order[at++] = ranks[first + (exit + i) % length];
  }
  return rings;
}

int tws_platform_rings(const tws_platform *p, const int *ranks, int size, tws_arena *arena, tws_edge **edges) {
  const int rings = ring_count(p, ranks, size);
  int blocks = 0, count = 0;
  for (int first = 0; first < size; first = block_end(p, ranks, size, first)) blocks++;
  *edges = tws_arena_alloc(arena, (size_t)size + (size_t)blocks * (size_t)rings, sizeof **edges);
  if (!*edges) return -1;
  for (int first = 0, end; first < size; first = end) {
    end = block_end(p, ranks, size, first);
    const int length = end - first, next = end < size ? end : 0;
    const int next_length = block_end(p, ranks, size, next) - next;
    for (int i = 0; i < length; i++) { /* edges inside the node, for all rings except those that leave the node here */
      int leaving = 0;
      for (int ring = 0; ring < rings && blocks > 1; ring++) leaving += exit_of(length, ring, rings) == i;
      if (length > 1 && leaving < rings)
        (*edges)[count++] =
            (tws_edge){ranks[first + i], ranks[first + (i + 1) % length], (double)(rings - leaving) / rings};
    }
    for (int ring = 0; ring < rings && blocks > 1; ring++) {
      const int enter = (exit_of(next_length, ring, rings) + 1) % next_length;
      (*edges)[count++] = (tws_edge){ranks[first + exit_of(length, ring, rings)], ranks[next + enter], 1.0 / rings};
    }
  }
  return count;
}
