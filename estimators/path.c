/* Computes the costs of a plan's operations on a machine. */
#include <math.h>
#include "base/memory.h"
#include "estimators/estimators.h"
#include "models/hardware/runtime.h"

tws_node_mapping tws_machine_mapping(const tws_machine *machine, int ranks) {
  return tws_node_mapping_of(machine->cluster, tws_profile_cores(machine->profile) > 0, ranks);
}

static int ranks_per_node(const tws_plan *plan, const tws_machine *machine) {
  const tws_node_mapping mapping = tws_machine_mapping(machine, plan->world);
  return tws_mapping_most_on_node(&mapping);
}

/* Returns the bytes per second of host memory that a rank can use: its share of the bandwidth of its NUMA node, or of
 * the node if it has one. */
static double host_bandwidth(const tws_plan *plan, const tws_machine *machine) {
  const tws_cluster *c = machine->cluster;
  if (tws_profile_cores(machine->profile) > 0) return tws_profile_bandwidth(machine->profile);
  if (c->numa_nodes <= 1) return c->host_bandwidth / ranks_per_node(plan, machine);
  const tws_node_mapping mapping = tws_machine_mapping(machine, plan->world);
  return c->host_bandwidth / c->numa_nodes / tws_mapping_most_on_numa(&mapping, c);
}

/* Returns the rates of copies of one rank between its device and pinned memory, while the other ranks of its node copy
 * the same: its share of the link, which the devices of one switch share, and of the node's total. A rate of both
 * directions together that is not known is the sum of the two, which then do not share the link. */
static tws_copy_rates copy_rates(const tws_plan *plan, const tws_machine *machine) {
  const tws_cluster *c = machine->cluster;
  const int ranks = ranks_per_node(plan, machine);
  const int sharers = c->devices_per_host_link < ranks ? c->devices_per_host_link : ranks;
  const double of_link = sharers > 1 ? sharers : 1;
  tws_copy_rates rates = {.to_device = tws_cluster_copy_rate(c, 0) / of_link,
                          .to_host = tws_cluster_copy_rate(c, 1) / of_link,
                          .both_ways = c->host_copies.both_ways / of_link};
  if (c->node_copies.to_device > 0) rates.to_device = fmin(rates.to_device, c->node_copies.to_device / ranks);
  if (c->node_copies.to_host > 0) rates.to_host = fmin(rates.to_host, c->node_copies.to_host / ranks);
  const double most = rates.to_device + rates.to_host;
  rates.both_ways = rates.both_ways > 0 ? fmin(most, rates.both_ways) : most;
  if (c->node_copies.both_ways > 0) rates.both_ways = fmin(rates.both_ways, c->node_copies.both_ways / ranks);
  return rates;
}

/* Returns the seconds of a copy between tiers, while no copy runs the other way: between device and host, or to or from
 * the node's disk. Memory that is not pinned needs one more copy in host memory, since the driver stages it through a
 * pinned buffer. */
static double copy_seconds(const tws_plan *plan, const tws_work *work, const tws_machine *machine) {
  const tws_cluster *c = machine->cluster;
  const int from = work->tiers / TWS_TIER_COUNT, to = work->tiers % TWS_TIER_COUNT;
  const double bytes = (double)work->d[0];
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) {
    const double said = from == TWS_TIER_DISK ? c->disk_read : c->disk_write;
    const double rate = said > 0 ? said : from == TWS_TIER_DISK ? TWS_USUAL_DISK_READ : TWS_USUAL_DISK_WRITE;
    return bytes * ranks_per_node(plan, machine) / rate;
  }
  if (from != TWS_TIER_DEVICE && to != TWS_TIER_DEVICE) return 2 * bytes / host_bandwidth(plan, machine);
  const tws_copy_rates rates = copy_rates(plan, machine);
  const double pageable = from == TWS_TIER_HOST || to == TWS_TIER_HOST ? 2 * bytes / host_bandwidth(plan, machine) : 0;
  return c->host_link.latency_s + bytes / (to == TWS_TIER_DEVICE ? rates.to_device : rates.to_host) + pageable;
}

double tws_plan_work_seconds(const tws_plan *plan, uint32_t index, const tws_machine *machine, int stretch) {
  const tws_work *work = &plan->works[index];
  int cores = tws_profile_cores(machine->profile), ranks = ranks_per_node(plan, machine);
  int threads = plan->threads > 0 ? plan->threads : 1, busy = 1;
  /* only as many ranks as there are cores compute at once; the factor below accounts for time slicing */
  if (cores > 0) {
    int at_once = threads < cores ? cores / threads : 1;
    busy = ranks < at_once ? ranks : at_once;
  }
  if (work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_HOST && cores == 0)
    return tws_profile_host_bytes(machine->profile, work) / host_bandwidth(plan, machine);
  if (work->kind == TWS_OP_COMPUTE) {
    double seconds = tws_kernel_seconds_rereading(machine->profile, work, threads, busy, plan->reread_bytes) +
                     tws_profile_start_s(machine->profile);
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  if (work->kind == TWS_OP_COLLECTIVE) {
    const tws_group *group = &plan->groups[work->group];
    const tws_node_mapping mapping = tws_machine_mapping(machine, plan->world);
    return tws_exchange_seconds(machine->cluster, machine->profile, work, group->size,
                                tws_mapping_ranks_on_first_node(&mapping, group->ranks, group->size));
  }
  if (work->kind == TWS_OP_COPY) {
    if (work->tiers && (cores == 0 || work->place == TWS_PLACE_DISK)) return copy_seconds(plan, work, machine);
    /* each byte is read and written */
    double seconds = 2 * (double)work->d[0] / tws_profile_bandwidth(machine->profile);
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  return tws_p2p_seconds(machine->cluster, machine->profile, 1, (double)work->d[0]);
}

#define LIMITS_MEET 2.5
double tws_launch_slowdown(double device_s, double host_s, int in_turns) {
  const double meet = in_turns ? 1 : LIMITS_MEET;
  return device_s > 0 ? pow(1 + pow(host_s / device_s, meet), 1 / meet) : 1;
}

static int is_device_copy(const tws_work *work) {
  const int from = work->tiers / TWS_TIER_COUNT, to = work->tiers % TWS_TIER_COUNT;
  return work->kind == TWS_OP_COPY && work->tiers && from != TWS_TIER_DISK && to != TWS_TIER_DISK &&
         (from == TWS_TIER_DEVICE) != (to == TWS_TIER_DEVICE);
}

/* Copies of opposite directions share the link while they run at the same time, and a fixed cost of a copy cannot say
 * when that is. So all copies of a plan are lengthened by one factor: copies of a phase (the forward passes, the
 * backward passes, the optimizer phase) are assumed to run both ways at once as far as their bytes allow. In each phase
 * they take the longest of the time of the bytes to the device, that of the bytes to the host, and that of their sum at
 * the rate of both directions together; the factor is the sum of these times over the sum without the last one. */
static double both_ways_factor(const tws_plan *plan, const tws_machine *machine) {
  double bytes[TWS_PHASE_COUNT][2] = {{0}}, alone = 0, shared = 0;
  if (tws_profile_cores(machine->profile) > 0) return 1;
  const tws_copy_rates rates = copy_rates(plan, machine);
  if (!(rates.both_ways < rates.to_device + rates.to_host)) return 1;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].kind == TWS_OP_COPY && is_device_copy(work))
      bytes[plan->ops[i].phase][work->tiers % TWS_TIER_COUNT != TWS_TIER_DEVICE] += (double)work->d[0];
  }
  for (int phase = 0; phase < TWS_PHASE_COUNT; phase++) {
    const double one_way = fmax(bytes[phase][0] / rates.to_device, bytes[phase][1] / rates.to_host);
    alone += one_way;
    shared += fmax(one_way, (bytes[phase][0] + bytes[phase][1]) / rates.both_ways);
  }
  return alone > 0 ? shared / alone : 1;
}

/* All kernels of a rank's forward and backward passes are lengthened by one factor, which is computed from the sums of
 * kernel and launch times; the host also issues the messages between stages. The few launches of the optimizer phase
 * are not counted. */
tws_launches tws_plan_launches(const tws_plan *plan, const tws_machine *machine) {
  const tws_profile *profile = machine->profile;
  const double host_op_s = tws_profile_host_op_s(profile);
  const double message_s = host_op_s * tws_profile_message_launches(profile);
  tws_launches launches = {.factor = 1, .copies = both_ways_factor(plan, machine)};
  double device = 0, host = 0;
  if (!(host_op_s > 0)) return launches;
  uint32_t *times = tws_calloc(plan->work_count + 1u, sizeof *times);
  for (uint32_t i = 0; times && i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (op->phase == TWS_PHASE_STEP) continue;
    if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) host += message_s;
    if (tws_work_is_launched(&plan->works[op->work])) times[op->work]++;
  }
  for (uint32_t w = 0; times && w < plan->work_count; w++) {
    if (!times[w]) continue;
    device += times[w] * tws_plan_work_seconds(plan, w, machine, 1);
    host += times[w] * host_op_s * tws_profile_host_launches(profile, &plan->works[w]);
    launches.in_passes[plan->works[w].code] = 1;
  }
  tws_free(times);
  launches.factor = tws_launch_slowdown(device, host, tws_profile_issues_in_turns(profile));
  return launches;
}

double tws_launches_factor(const tws_launches *launches, const tws_work *work) {
  if (is_device_copy(work)) return launches->copies > 1 ? launches->copies : 1;
  return tws_work_is_launched(work) && launches->in_passes[work->code] ? launches->factor : 1;
}

double tws_plan_launched_seconds(const tws_plan *plan, uint32_t work, const tws_machine *machine, int stretch,
                                 const tws_launches *launches) {
  return tws_plan_work_seconds(plan, work, machine, stretch) * tws_launches_factor(launches, &plan->works[work]);
}

static double message_seconds(const tws_topology *topology, int rank, int peer, uint64_t bytes,
                              const tws_machine *machine) {
  const tws_node_mapping mapping = tws_machine_mapping(machine, tws_topology_world(topology));
  const int same_node = tws_mapping_node(&mapping, rank) == tws_mapping_node(&mapping, peer);
  const int sharers = tws_mapping_sharers(&mapping, topology, rank, peer);
  return tws_p2p_seconds(machine->cluster, machine->profile, same_node, (double)bytes * sharers);
}

double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine) {
  return message_seconds(&plan->topology, plan->rank, (int)peer, (uint64_t)plan->works[work].d[0], machine);
}
