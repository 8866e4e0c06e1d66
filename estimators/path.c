/* What an operation of a plan costs on a machine. */
#include <math.h>

#include "estimators/estimators.h"

int tws_machine_slots(const tws_machine *machine, int ranks) {
  const int nodes = machine->cluster->nodes > 0 ? machine->cluster->nodes : 1;
  const int devices = machine->cluster->devices_per_node > 0 ? machine->cluster->devices_per_node : 1;
  return tws_profile_cores(machine->profile) > 0 ? (ranks + nodes - 1) / nodes : devices;
}

int tws_machine_most_on_node(const tws_machine *machine, int ranks) {
  const int slots = tws_machine_slots(machine, ranks);
  return slots < ranks ? slots : ranks;
}

static int node_slots(const tws_plan *plan, const tws_machine *machine) {
  return tws_machine_slots(machine, plan->world);
}

static int ranks_per_node(const tws_plan *plan, const tws_machine *machine) {
  return tws_machine_most_on_node(machine, plan->world);
}

static int group_per_node(const tws_group *group, int slots) {
  int same = 0;
  for (int i = 0; i < group->size; i++) same += group->ranks[i] / slots == group->ranks[0] / slots;
  return same;
}

/* Of the node's memory, a rank's share. */
static double host_bandwidth(const tws_plan *plan, const tws_machine *machine) {
  if (tws_profile_cores(machine->profile) > 0) return tws_profile_bandwidth(machine->profile);
  return machine->cluster->host_bandwidth / ranks_per_node(plan, machine);
}

/* Between tiers: over the device's link to its host, or from and to the node's disk. */
static double copy_seconds(const tws_plan *plan, const tws_work *work, const tws_machine *machine) {
  const tws_cluster *c = machine->cluster;
  const int from = work->tiers / TWS_TIER_COUNT, to = work->tiers % TWS_TIER_COUNT;
  const double bytes = (double)work->d[0];
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) {
    const double rate = from == TWS_TIER_DISK ? c->disk_read : c->disk_write;
    return rate > 0 ? bytes * ranks_per_node(plan, machine) / rate : INFINITY;
  }
  if (from != TWS_TIER_DEVICE && to != TWS_TIER_DEVICE) return 2 * bytes / host_bandwidth(plan, machine);
  return c->host_link.latency_s + bytes / c->host_link.bandwidth;
}

double tws_plan_work_seconds(const tws_plan *plan, uint32_t index, const tws_machine *machine, int stretch) {
  const tws_work *work = &plan->works[index];
  int cores = tws_profile_cores(machine->profile), ranks = ranks_per_node(plan, machine);
  int threads = plan->threads > 0 ? plan->threads : 1, busy = 1;
  if (cores > 0) { /* ranks that run at once: those that outnumber the cores take turns, which is stretched below */
    int at_once = threads < cores ? cores / threads : 1;
    busy = ranks < at_once ? ranks : at_once;
  }
  if (work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_HOST && cores == 0)
    return tws_work_bytes(work) / host_bandwidth(plan, machine);
  if (work->kind == TWS_OP_COMPUTE) {
    double seconds = tws_kernel_seconds(machine->profile, work, threads, busy);
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  if (work->kind == TWS_OP_COLLECTIVE) {
    const tws_group *group = &plan->groups[work->group];
    return tws_collective_seconds(machine->cluster, machine->profile, (tws_collective)work->code, group->size,
                                  group_per_node(group, node_slots(plan, machine)), (double)work->d[0],
                                  (int)work->segments);
  }
  if (work->kind == TWS_OP_COPY) {
    if (work->tiers && (cores == 0 || work->place == TWS_PLACE_DISK)) return copy_seconds(plan, work, machine);
    double seconds = 2 * (double)work->d[0] / tws_profile_bandwidth(machine->profile); /* read and written */
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  return tws_p2p_seconds(machine->cluster, machine->profile, 1, (double)work->d[0]);
}

/* ---- messages ---- */

/* NICs are dealt to a node's slots in order. */
static int nic_of(const tws_cluster *cluster, int slots, int rank) {
  int nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  if (nics > slots) nics = slots;
  return (int)((int64_t)(rank % slots) * nics / slots);
}

/* How many ranks of `rank`'s node and pipeline stage have a message for (or from) stage `other` on the same NIC. */
static int nic_sharers(const tws_topology *topology, const tws_cluster *cluster, int slots, int rank, int axis,
                       int other) {
  int first = rank / slots * slots, count = 0, mine[TWS_MAX_AXES], theirs[TWS_MAX_AXES];
  const int world = tws_topology_world(topology);
  tws_topology_coordinates(topology, rank, mine);
  for (int q = first; q < first + slots && q < world; q++) {
    tws_topology_coordinates(topology, q, theirs);
    if (theirs[axis] != mine[axis] || nic_of(cluster, slots, q) != nic_of(cluster, slots, rank)) continue;
    theirs[axis] = other;
    count += tws_topology_rank(topology, theirs) / slots != first / slots;
  }
  return count;
}

int tws_message_sharers(const tws_topology *topology, const tws_machine *machine, int rank, int peer) {
  int axis = tws_topology_axis(topology, "pipe"), mine[TWS_MAX_AXES], theirs[TWS_MAX_AXES];
  const int slots = tws_machine_slots(machine, tws_topology_world(topology));
  if (axis < 0 || rank / slots == peer / slots) return 1;
  tws_topology_coordinates(topology, rank, mine);
  tws_topology_coordinates(topology, peer, theirs);
  for (int i = 0; i < topology->axes; i++) {
    if (i != axis && mine[i] != theirs[i]) return 1;
  }
  int here = nic_sharers(topology, machine->cluster, slots, rank, axis, theirs[axis]);
  int there = nic_sharers(topology, machine->cluster, slots, peer, axis, mine[axis]);
  return here > there ? here : there;
}

double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine) {
  int slots = node_slots(plan, machine);
  return tws_p2p_seconds(
      machine->cluster, machine->profile, plan->rank / slots == (int)peer / slots,
      (double)plan->works[work].d[0] * tws_message_sharers(&plan->topology, machine, plan->rank, (int)peer));
}
