/* Computes the seconds of communication from the profile's measured tables if it has them, else from closed formulas of
 * rings over the cluster's links. */
#include <math.h>
#include "models/collective.h"
#include "models/hardware/nccl.h"
#include "models/hardware/profile_internal.h"

static const tws_traffic every_piece = {1, 1, 1};

/* Returns the fraction (0 to 1) of the NICs below a leaf switch over which rings leave the leaf switch: the NICs of one
 * node, because a ring visits all nodes of a leaf switch before it leaves it. */
static double leaves_of_ring(const tws_cluster *cluster) {
  return cluster->leaf_nodes > 0 ? 1.0 / cluster->leaf_nodes : 0;
}

/* Returns the fraction of the data sent to other nodes that crosses to another leaf switch, if a rank sends equally to
 * all nodes. */
static double leaves_of_pairs(const tws_cluster *cluster, int nodes) {
  return nodes > cluster->leaf_nodes && nodes > 1 ? (double)(nodes - cluster->leaf_nodes) / (nodes - 1) : 0;
}

/* Returns the link with the smallest bandwidth of a ring through `per_node` ranks of every node. The ring shares a
 * node's NICs with the rings of the node's other devices: devices / per_node groups of the same kind run
 * concurrently. */
static tws_link ring_link(const tws_cluster *cluster, int ranks, int per_node) {
  const double port = tws_cluster_port(cluster, ranks < per_node ? ranks : per_node);
  if (ranks <= per_node) return (tws_link){port, cluster->intra.latency_s};
  tws_link link = cluster->inter;
  int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  int nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  link.bandwidth *= (double)nics * per_node / devices;
  if (ranks > per_node * cluster->leaf_nodes) link.bandwidth /= tws_cluster_crowding(cluster, leaves_of_ring(cluster));
  if (per_node > 1 && port < link.bandwidth) link.bandwidth = port;
  return link;
}

/* Returns the mean latency of the edges of a chain, one in per_node of which leaves the node. */
static double hop_latency(const tws_cluster *cluster, int ranks, int per_node) {
  if (ranks <= per_node) return cluster->intra.latency_s;
  return (cluster->inter.latency_s + (per_node - 1) * cluster->intra.latency_s) / per_node;
}

/* The times of an all-to-all. Every rank sends a segment to every other rank: through its port to ranks of its own
 * node, and concurrently through its share of the node's NICs to other nodes. If only the root sends or receives, the
 * root's time is that of the collective. */
typedef struct pairs_time {
  double moving;  /* seconds of the transfers, through the port or the NIC, whichever takes longer */
  double posting; /* seconds until the last message for another node is posted and sent */
} pairs_time;

static pairs_time pairs_of(const tws_cluster *cluster, const tws_traffic *traffic, const tws_collective_row *row,
                           int ranks, int per_node, double bytes) {
  int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  int nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1, near = per_node < ranks ? per_node : ranks;
  double piece = bytes / ranks, port = tws_cluster_port(cluster, near),
         share = cluster->inter.bandwidth * nics / devices;
  share /= tws_cluster_crowding(cluster, leaves_of_pairs(cluster, (ranks + near - 1) / near));
  double inside = port > 0 ? traffic->inside * (near - 1) * piece / port : 0,
         leaves = share > 0 ? traffic->outside * piece / share : 0;
  const int posted = row->root == TWS_ROOT_RECEIVES || !traffic->posted ? 1 : ranks - near;
  return (pairs_time){fmax(inside, (ranks - near) * leaves),
                      near < ranks ? (posted - 1) * cluster->message_s + leaves : 0};
}

static double pairs_seconds(const tws_cluster *cluster, const tws_traffic *traffic, tws_collective collective,
                            int ranks, int per_node, double bytes) {
  const pairs_time time = pairs_of(cluster, traffic, tws_collective_of(collective), ranks, per_node, bytes);
  return fmax(time.moving, time.posting) +
         tws_collective_steps(collective, ranks) * ring_link(cluster, ranks, per_node).latency_s;
}

/* Returns the seconds in which every rank of a ring sends `bytes` bytes to the next rank. Only the last rank of a node
 * uses a NIC, which it shares with other groups if the node has fewer NICs than groups that do so concurrently. */
static double shift_seconds(const tws_cluster *cluster, int ranks, int per_node, double bytes) {
  const tws_link port = {tws_cluster_port(cluster, 2), cluster->intra.latency_s}, nic = cluster->inter;
  const int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  const double groups = (double)devices / per_node, nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  const double share = nic.bandwidth * fmin(1, nics / groups);
  const double inside = per_node > 1 ? (port.bandwidth > 0 ? bytes / port.bandwidth : 0) + port.latency_s : 0;
  if (ranks <= per_node) return inside;
  return fmax(inside, (share > 0 ? bytes / share : 0) + nic.latency_s);
}

/* Returns the number of rings: one for each NIC of the ranks of a node. Each ring forwards a part of every segment; all
 * run concurrently. */
static int rings_of(const tws_cluster *cluster, int per_node) {
  const int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  const int rings = (int)((int64_t)cluster->nics_per_node * per_node / devices);
  return rings < 1 ? 1 : rings > per_node ? per_node : rings;
}

/* Returns the seconds of `steps` steps of a ring of which one edge in per_node leaves the node. The last segment
 * arrives along the critical path: at each step it advances by one edge, or waits while the narrowest link transfers
 * another segment. The seconds for passing all edges of a node, or for the same number of waits, whichever are more,
 * count; the remaining steps are edges inside the node, or waits. The node's rings (rings_of) run at the same time;
 * inside the node each of them takes an equal share of a port during the fraction of time in which it sends through
 * that port (processor sharing). */
static double ring_seconds(const tws_cluster *cluster, int ranks, int per_node, int steps, double piece) {
  const tws_link link = ring_link(cluster, ranks, per_node);
  const double narrowest = link.bandwidth > 0 ? piece / link.bandwidth : 0;
  if (ranks <= per_node || per_node == 1) return steps * (narrowest + link.latency_s);
  const double rings = rings_of(cluster, per_node), near = per_node - 1, whole = tws_cluster_port(cluster, per_node),
               port = whole > 0 ? piece / whole : 0, leaves = narrowest + cluster->inter.latency_s,
               alone = port / rings;
  const double step = fmax(narrowest, (leaves + near * (alone + cluster->intra.latency_s)) / per_node);
  const double load = step > 0 ? (1 - 1 / rings) * port / step : 0, hop = alone / (1 - load) + cluster->intra.latency_s;
  const int nodes = leaves + near * hop > per_node * narrowest ? (steps - 1) / per_node : 0;
  return (nodes + 1) * leaves + nodes * near * hop + (steps - 1 - nodes * per_node) * fmax(narrowest, hop);
}

static double formula_seconds(const tws_cluster *cluster, const tws_traffic *traffic, tws_collective collective,
                              int ranks, int per_node, double bytes) {
  const tws_link link = ring_link(cluster, ranks, per_node);
  const int steps = tws_collective_steps(collective, ranks);
  const double moved = link.bandwidth > 0 ? bytes / link.bandwidth : 0,
               hops = steps * hop_latency(cluster, ranks, per_node);
  switch (tws_collective_of(collective)->pattern) {
    case TWS_PATTERN_RING:
      return ring_seconds(cluster, ranks, per_node, steps, bytes / ranks);
    case TWS_PATTERN_CHAIN:
      return moved + hops;
    case TWS_PATTERN_PAIRS:
      if (tws_collective_of(collective)->to_next) return shift_seconds(cluster, ranks, per_node, bytes);
      return pairs_seconds(cluster, traffic, collective, ranks, per_node, bytes);
    case TWS_PATTERN_SIGNAL:
      break;
  }
  return hops;
}

/* Returns the measured seconds, interpolated for a number of ranks between two measured ones; returns a negative number
 * unless there are measurements for a smaller and for a larger number of ranks. */
static double table_seconds(const tws_profile *profile, tws_collective collective, int ranks, double bytes) {
  const tws_collective_table *below = NULL, *above = NULL;
  for (size_t i = 0; i < profile->collective_count; i++) {
    const tws_collective_table *table = &profile->collectives[i];
    if (table->collective != collective) continue;
    if (table->ranks <= ranks && (below == NULL || table->ranks > below->ranks)) below = table;
    if (table->ranks >= ranks && (above == NULL || table->ranks < above->ranks)) above = table;
  }
  if (below == NULL || above == NULL) return -1;
  double low = tws_curve_seconds(&below->curve, bytes, profile->launch_s);
  if (below->ranks == above->ranks) return low;
  double high = tws_curve_seconds(&above->curve, bytes, profile->launch_s);
  return low * pow(high / low, log((double)ranks / below->ranks) / log((double)above->ranks / below->ranks));
}

/* Returns 1 and writes the choice of NCCL's model if the cluster requests NCCL's algorithms; returns 0 otherwise, or if
 * the profile has a measured table for this collective, which takes precedence. */
static int chosen(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective, int ranks,
                  int per_node, double bytes, tws_nccl_choice *choice) {
  if (!cluster->nccl || profile == NULL) return 0;
  if (ranks <= per_node && table_seconds(profile, collective, ranks, bytes) >= 0) return 0;
  return tws_nccl_choose(cluster, profile->generation, collective, ranks, per_node, bytes, choice);
}

const char *tws_collective_algorithm(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                                     int ranks, int per_node, double bytes) {
  static const char *const names[TWS_NCCL_ALGORITHMS] = {[TWS_NCCL_TREE] = "tree",
                                                         [TWS_NCCL_RING] = "ring",
                                                         [TWS_NCCL_NVLS] = "nvls",
                                                         [TWS_NCCL_NVLS_TREE] = "nvls-tree",
                                                         [TWS_NCCL_PAT] = "pat"};
  tws_nccl_choice choice;
  if (per_node < 1) per_node = 1;
  return chosen(cluster, profile, collective, ranks, per_node, bytes, &choice) ? names[choice.algorithm] : NULL;
}

static double collective_seconds(const tws_cluster *cluster, const tws_profile *profile, const tws_traffic *traffic,
                                 tws_collective collective, int ranks, int per_node, double bytes, int segments) {
  if (per_node < 1) per_node = 1;
  if (bytes < 0) bytes = 0;
  double start = profile != NULL ? profile->launch_s : 0;
  /* Segments coalesced into one call share its latency, but each adds the time of one kernel launch. */
  double pieces = segments > 1 ? (segments - 1) * start : 0;
  if (profile != NULL && ranks <= per_node) {
    double measured = table_seconds(profile, collective, ranks, bytes);
    if (measured >= 0) return measured + pieces;
  }
  tws_nccl_choice choice;
  if (chosen(cluster, profile, collective, ranks, per_node, bytes, &choice)) return choice.seconds + start + pieces;
  return formula_seconds(cluster, traffic, collective, ranks, per_node, bytes) + start + pieces;
}

/* Returns the factor by which a collective's seconds are multiplied, from corrections and from measurements of
 * links. */
static double factor_of(const tws_profile *profile, tws_collective collective) {
  const double factor = profile != NULL ? profile->correction.collective[collective] : 0;
  return (factor > 0 ? factor : 1) * (profile != NULL ? tws_profile_scale(profile, TWS_SCALE_LINKS) : 1);
}

static double whole_seconds(const tws_cluster *cluster, const tws_profile *profile, const tws_traffic *traffic,
                            tws_collective collective, int ranks, int per_node, double bytes, int segments) {
  if (ranks < 2) return 0;
  if (profile != NULL && profile->float_reductions && collective == TWS_COLLECTIVE_ALL_REDUCE) bytes *= 2;
  const double seconds = collective_seconds(cluster, profile, traffic, collective, ranks, per_node, bytes, segments);
  const double factor = factor_of(profile, collective);
  const int lists = collective == TWS_COLLECTIVE_ALL_GATHER || collective == TWS_COLLECTIVE_REDUCE_SCATTER;
  const double parts = profile != NULL && lists ? profile->part_s * ranks * (segments > 1 ? segments : 1) : 0;
  return seconds * factor + parts + (profile != NULL ? profile->hand_over_s : 0);
}

double tws_collective_seconds(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                              int ranks, int per_node, double bytes, int segments) {
  return whole_seconds(cluster, profile, &every_piece, collective, ranks, per_node, bytes, segments);
}

/* ---- tokens that are routed to experts ---- */

/* Returns the expected number of parts (ranks or nodes) to which a token is sent, if `experts` experts are divided
 * equally among `parts` parts, and the token chooses `choices` experts at random. */
static double touched(double parts, double experts, int64_t choices) {
  double missed = 1;
  for (int64_t i = 0; i < choices; i++)
    missed *= fmax(0, experts - experts / parts - (double)i) / (experts - (double)i);
  return parts * (1 - missed);
}

/* Returns the expected number of parts to which a token is sent. If a token chooses experts only from some groups of
 * experts, it is at most the expected number of parts that have these groups. */
static double parts_of_a_token(const tws_work *work, int parts) {
  const double all = touched(parts, (double)work->d[2], work->d[3]);
  return work->d[4] > parts ? fmin(all, touched(parts, (double)work->d[4], work->d[5]))
                            : fmin(all, work->d[4] > 0 ? (double)(parts * work->d[5]) / (double)work->d[4] : all);
}

/* Returns the share of the exchanged bytes that remains after casts to a smaller type. */
static double share_on_the_way(const tws_work *work) {
  return work->d[6] > 0 && work->d[0] > 0 ? (double)work->d[6] / (double)work->d[0] : 1;
}

static int sends_tokens(const tws_profile *profile, const tws_work *work, int ranks) {
  return profile && profile->runtime && profile->runtime->sends_once && work->d[0] > 0 && work->d[1] > 0 && ranks > 1;
}

/* Returns the load of an all-to-all (tws_traffic), before casts to smaller types reduce it. */
static tws_traffic traffic_of(const tws_profile *profile, const tws_work *work, int ranks, int per_node) {
  const double piece = (double)work->d[0] / ranks, tokens = (double)work->d[1];
  const int near = per_node < ranks ? per_node : ranks;
  if (!sends_tokens(profile, work, ranks)) return every_piece;
  if (profile->experts_overlap) return (tws_traffic){0};
  const double *reached = profile->runtime->dispatch_reached;
  tws_traffic traffic = {.inside = 1, .outside = 1};
  /* Inside a node, a token is sent to all ranks that have its experts, except its own rank and the rank that forwards
   * it. */
  if (near > 1) traffic.inside = tokens * parts_of_a_token(work, ranks) / (near * piece) / reached[0];
  if (ranks > near) {
    const double nodes = (double)ranks / near, leaving = parts_of_a_token(work, (int)nodes) * (nodes - 1) / nodes;
    traffic.outside = tokens * leaving / ((ranks - near) * piece) / reached[1];
  }
  return traffic;
}

tws_traffic tws_traffic_of(const tws_profile *profile, const tws_work *work, int ranks, int per_node) {
  const double share = share_on_the_way(work);
  tws_traffic traffic = traffic_of(profile, work, ranks, per_node);
  traffic.inside *= share;
  traffic.outside *= share;
  return traffic;
}

/* Returns the seconds of the casts before and after an all-to-all. They read one type and write the other, for all
 * slots or only for the data that are sent and received. */
static double casts_seconds(const tws_profile *profile, const tws_work *work, int ranks) {
  const double share = share_on_the_way(work);
  if (!profile || work->d[6] <= 0 || ranks < 2) return 0;
  const double bytes = sends_tokens(profile, work, ranks) ? (double)work->d[1] * (1 + parts_of_a_token(work, ranks))
                                                          : 2 * (double)work->d[0];
  return (1 + share) * bytes / (profile->bandwidth * profile->bandwidth_efficiency) + 2 * profile->launch_s;
}

/* Returns the seconds in which a rank of the host copies its own part into the output of an all-gather (d[7] of the
 * work): it reads and writes each byte once. Calibration measures gathers whose own part lies in the output. NCCL
 * copies own parts while it sends them. */
static double own_part_seconds(const tws_profile *profile, const tws_work *work, int ranks) {
  if (!profile || profile->backend != TWS_BACKEND_HOST) return 0;
  if (work->code != TWS_COLLECTIVE_ALL_GATHER || ranks < 2) return 0;
  return 2 * (double)work->d[7] / (profile->bandwidth * profile->bandwidth_efficiency);
}

/* Returns the seconds of a collective in which a rank handles data that it neither sends nor receives. */
static double local_seconds(const tws_profile *profile, const tws_work *work, int ranks) {
  return casts_seconds(profile, work, ranks) + own_part_seconds(profile, work, ranks);
}

double tws_exchange_seconds(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                            int per_node) {
  const tws_traffic traffic = traffic_of(profile, work, ranks, per_node);
  return whole_seconds(cluster, profile, &traffic, (tws_collective)work->code, ranks, per_node,
                       share_on_the_way(work) * (double)work->d[0], (int)work->segments) +
         local_seconds(profile, work, ranks);
}

double tws_exchange_link_latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work,
                                   int ranks, int per_node) {
  const tws_traffic traffic = traffic_of(profile, work, ranks, per_node);
  return ranks < 2
             ? 0
             : formula_seconds(cluster, &traffic, (tws_collective)work->code, ranks, per_node < 1 ? 1 : per_node, 0);
}

/* Returns the seconds of a collective's latency that overlap with its transfers. */
static double hidden_seconds(const tws_cluster *cluster, const tws_traffic *traffic, tws_collective collective,
                             int ranks, int per_node, double bytes) {
  const tws_collective_row *row = tws_collective_of(collective);
  if (row->to_next) return 0;
  if (row->pattern == TWS_PATTERN_PAIRS)
    return pairs_of(cluster, traffic, row, ranks, per_node, bytes).moving +
           pairs_seconds(cluster, traffic, collective, ranks, per_node, 0) -
           pairs_seconds(cluster, traffic, collective, ranks, per_node, bytes);
  if (row->pattern != TWS_PATTERN_RING) return 0;
  const int steps = tws_collective_steps(collective, ranks);
  const double piece = bytes / ranks, bandwidth = ring_link(cluster, ranks, per_node).bandwidth;
  const double moved = bandwidth > 0 ? steps * piece / bandwidth : 0;
  return ring_seconds(cluster, ranks, per_node, steps, 0) + moved -
         ring_seconds(cluster, ranks, per_node, steps, piece);
}

static double latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_traffic *traffic,
                        tws_collective collective, int ranks, int per_node, double bytes, int segments) {
  const double nothing = whole_seconds(cluster, profile, traffic, collective, ranks, per_node, 0, segments);
  const double factor = factor_of(profile, collective);
  tws_nccl_choice choice, least;
  if (per_node < 1) per_node = 1;
  if (ranks > 1 && chosen(cluster, profile, collective, ranks, per_node, bytes, &choice) &&
      chosen(cluster, profile, collective, ranks, per_node, 0, &least))
    return nothing + (choice.latency_s - least.seconds) * factor;
  if (ranks <= per_node || bytes <= 0) return nothing;
  const double hidden = hidden_seconds(cluster, traffic, collective, ranks, per_node, bytes);
  return fmax(0, nothing - hidden * factor);
}

double tws_collective_latency_s(const tws_cluster *cluster, const tws_profile *profile, tws_collective collective,
                                int ranks, int per_node, double bytes, int segments) {
  return latency_s(cluster, profile, &every_piece, collective, ranks, per_node, bytes, segments);
}

double tws_exchange_latency_s(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                              int per_node, double bytes) {
  const tws_traffic traffic = traffic_of(profile, work, ranks, per_node);
  return latency_s(cluster, profile, &traffic, (tws_collective)work->code, ranks, per_node,
                   share_on_the_way(work) * bytes, (int)work->segments) +
         local_seconds(profile, work, ranks);
}

double tws_exchange_ring_factor(const tws_cluster *cluster, const tws_profile *profile, const tws_work *work, int ranks,
                                int per_node) {
  const tws_collective collective = (tws_collective)work->code;
  const double bytes = (double)work->d[0];
  tws_nccl_choice choice;
  if (per_node < 1) per_node = 1;
  if (ranks < 2 || bytes <= 0 || !chosen(cluster, profile, collective, ranks, per_node, bytes, &choice)) return 1;
  const double ring = tws_collective_steps(collective, ranks) / (double)ranks,
               narrowest = ring_link(cluster, ranks, per_node).bandwidth;
  return narrowest > 0 && choice.bandwidth > 0 ? narrowest / (ring * choice.bandwidth) : 1;
}

static double p2p_seconds(const tws_cluster *cluster, const tws_profile *profile, int same_node, double bytes) {
  double start = profile != NULL ? profile->launch_s + profile->hand_over_s : 0;
  if (profile != NULL && same_node && profile->p2p.count > 0) return tws_curve_seconds(&profile->p2p, bytes, start);
  const tws_link *link = same_node ? &cluster->intra : &cluster->inter;
  const double rate = same_node                        ? tws_cluster_port(cluster, 2)
                      : cluster->message_bandwidth > 0 ? cluster->message_bandwidth
                                                       : link->bandwidth;
  return link->latency_s + (rate > 0 ? bytes / rate : 0) + start;
}

double tws_p2p_seconds(const tws_cluster *cluster, const tws_profile *profile, int same_node, double bytes) {
  const double seconds = p2p_seconds(cluster, profile, same_node, bytes);
  const double message = profile != NULL ? profile->correction.message : 0;
  return seconds * (message > 0 ? message : 1) * (profile != NULL ? tws_profile_scale(profile, TWS_SCALE_LINKS) : 1);
}
