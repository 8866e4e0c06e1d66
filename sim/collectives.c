/* Executes a collective or message when all its ranks have arrived, according to the fidelity:
 *
 *   analytic  one timer with the time of the closed formula or measured table
 *   flow      a timer with the latencies, then one flow per edge of the rings with all bytes that the algorithm sends
 *             along it; the collective ends with the last flow. Concurrent flows share links
 *   simgrid   the same flows in SimGrid's network model
 *   message   sim/messages.c */
#include <math.h>
#include <string.h>

#include "models/collective.h"
#include "sim/alone.h"
#include "sim/executor.h"

static const tws_communicator *communicator_of(const tws_sim *sim, const tws_rendezvous *met) {
  return &sim->run->communicators[met->communicator];
}

static const tws_run_member *first_member(const tws_sim *sim, const tws_rendezvous *met) {
  return &sim->run->members[met->member_first];
}

static const tws_op *first_op(const tws_sim *sim, const tws_rendezvous *met) {
  const tws_run_member *member = first_member(sim, met);
  return &sim->ranks[member->rank].plan->ops[member->op];
}

static const tws_work *work_of(const tws_sim *sim, const tws_rendezvous *met) {
  return &sim->ranks[first_member(sim, met)->rank].plan->works[first_op(sim, met)->work];
}

void tws_sim_end_transfer(tws_sim *sim, uint32_t id, double end_s) {
  const tws_rendezvous met = sim->run->rendezvous[id];
  tws_free(sim->transfers[id].messages);
  sim->transfers[id].messages = NULL;
  const tws_sim_effects *effects = sim->request->effects;
  if (effects && effects->met && sim->failed == TWS_OK)
    sim->failed = effects->met(effects->user, &sim->run->members[met.member_first], met.needed, end_s, sim->err);
  for (uint32_t i = 0; i < met.needed; i++) {
    const tws_run_member *member = &sim->run->members[met.member_first + i];
    tws_sim_finish(sim, member->rank, member->op, end_s);
  }
}

void tws_sim_start_flow(tws_sim *sim, const int *links, double bytes, int message, uint64_t tag) {
  bytes *= tws_platform_load(&sim->platform, links, message);
  int count = 2;
  while (count < TWS_PATH_MAX && links[count] != TWS_NO_LINK) count++;
  if (sim->failed == TWS_OK)
    sim->failed = tws_solver_flow(sim->platform.solver, links, count, bytes, sim->now_s, tag, sim->err);
}

/* ---- costs ---- */

/* Returns the number of ranks of a communicator on its first rank's node, as the estimators count them. */
static int most_on_a_node(const tws_sim *sim, const tws_communicator *c) {
  return tws_mapping_ranks_on_first_node(&sim->platform.mapping, c->ranks, c->size);
}

static int same_node(const tws_sim *sim, const tws_communicator *c) {
  const tws_node_mapping *m = &sim->platform.mapping;
  return tws_mapping_node(m, c->ranks[0]) == tws_mapping_node(m, c->ranks[1]);
}

static double analytic_seconds(tws_sim *sim, const tws_rendezvous *met) {
  double longest = 0;
  if (communicator_of(sim, met)->message) {
    const tws_op *op = first_op(sim, met);
    return tws_plan_message_seconds(sim->ranks[first_member(sim, met)->rank].plan, op->peer, op->work,
                                    &sim->request->machine);
  }
  for (uint32_t i = 0; i < met->needed; i++) {
    const tws_run_member *member = &sim->run->members[met->member_first + i];
    longest = fmax(longest, tws_sim_cost(sim, member->rank, sim->ranks[member->rank].plan->ops[member->op].work));
  }
  return longest;
}

/* Several rings through a node share its ports in bursts, but the formula models only the average load. For a
 * communicator of few ranks the rings are simulated message by message, once for each number of bytes, and the
 * difference from the time of the flows becomes a wait before the flows. */
enum { MOST_RANKS_ALONE = 64 };
struct tws_sim_ring_wait {
  tws_collective collective;
  double bytes, seconds;
  struct tws_sim_ring_wait *next;
};

static int is_simulated_alone(const tws_sim *sim, const tws_rendezvous *met, int near, double bytes) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_node_mapping *m = &sim->platform.mapping;
  return tws_fidelity_has_flows(sim->request->fidelity) && c->size <= MOST_RANKS_ALONE && near > 1 && c->size > near &&
         c->size % near == 0 && bytes > 0 && m->slots % m->nics == 0 && !sim->request->machine.cluster->nccl &&
         sim->platform.first_leaf < 0 &&
         tws_collective_of((tws_collective)work_of(sim, met)->code)->pattern == TWS_PATTERN_RING;
}

/* Returns the seconds by which the start of a collective's flows is delayed, in addition to the latency of a collective
 * of 0 bytes, so that the flows end when its messages would; below 0: the formula's latency applies. */
static double rings_wait_s(const tws_sim *sim, const tws_rendezvous *met, int near, double bytes) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_cluster *cluster = sim->request->machine.cluster;
  const tws_collective collective = (tws_collective)work_of(sim, met)->code;
  struct tws_sim_ring_wait **list = &sim->patterns[met->communicator].waits, *wait;
  int order[MOST_RANKS_ALONE];
  for (wait = *list; wait; wait = wait->next)
    if (wait->collective == collective && wait->bytes == bytes) return wait->seconds;
  const int rings = tws_platform_ring(&sim->platform, c->ranks, c->size, 0, order),
            steps = tws_collective_steps(collective, c->size);
  const double piece = bytes / c->size, port = tws_cluster_port(cluster, near), nics = cluster->nics_per_node,
               devices = cluster->devices_per_node > near ? cluster->devices_per_node : near;
  double seconds = rings > 1 ? tws_ring_collective_s(cluster, near, rings, steps, piece / rings) : -1;
  /* share of the rings that cross the most loaded port of a device; the NICs are the other possible bottleneck */
  const double passes = rings < near ? 1 : (rings - 1.0) / rings;
  if (seconds >= 0)
    seconds =
        fmax(0, seconds - steps * piece * fmax(passes / port, devices / (cluster->inter.bandwidth * nics * near)));
  wait = tws_arena_alloc(sim->arena, 1, sizeof *wait);
  if (!wait) return -1;
  *wait = (struct tws_sim_ring_wait){collective, bytes, seconds, *list};
  *list = wait;
  return seconds;
}

double tws_sim_latency(const tws_sim *sim, const tws_rendezvous *met, double bytes) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_machine *machine = &sim->request->machine;
  if (c->message) return tws_p2p_seconds(machine->cluster, machine->profile, same_node(sim, c), 0);
  const tws_work *work = work_of(sim, met);
  const int near = most_on_a_node(sim, c);
  const double late_s = is_simulated_alone(sim, met, near, bytes) ? rings_wait_s(sim, met, near, bytes) : -1;
  if (late_s < 0) return tws_exchange_latency_s(machine->cluster, machine->profile, work, c->size, near, bytes);
  return late_s + tws_exchange_latency_s(machine->cluster, machine->profile, work, c->size, near, 0) -
         tws_exchange_link_latency_s(machine->cluster, machine->profile, work, c->size, near);
}

static tws_collective collective_of(const tws_sim *sim, const tws_rendezvous *met) {
  return (tws_collective)work_of(sim, met)->code;
}

static const tws_collective_row *row_of(const tws_sim *sim, const tws_rendezvous *met) {
  return tws_collective_of(collective_of(sim, met));
}

int tws_sim_same_node(const tws_sim *sim, int rank, int other) {
  return tws_mapping_node(&sim->platform.mapping, rank) == tws_mapping_node(&sim->platform.mapping, other);
}

/* If pairs of devices have links of their own, a collective inside a node uses only some of a port's links, so its
 * bytes are scaled up to the port's whole bandwidth. */
tws_traffic tws_sim_traffic(const tws_sim *sim, const tws_rendezvous *met) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_machine *machine = &sim->request->machine;
  const int near = most_on_a_node(sim, c);
  const double port = tws_cluster_port(machine->cluster, near);
  tws_traffic traffic =
      c->message ? (tws_traffic){1, 1, 1} : tws_traffic_of(machine->profile, work_of(sim, met), c->size, near);
  if (port > 0) traffic.inside *= machine->cluster->intra.bandwidth / port;
  return traffic;
}

/* ---- flows ---- */

static double flow_bytes(const tws_rendezvous *met, const tws_collective_row *row, tws_collective collective, int size,
                         double share) {
  if (!row) return (double)met->bytes;
  if (row->pattern == TWS_PATTERN_PAIRS) return tws_collective_pair_bytes(row, size, (double)met->bytes);
  const double bytes = row->pattern == TWS_PATTERN_CHAIN
                           ? (double)met->bytes
                           : (double)met->bytes * tws_collective_steps(collective, size) / size;
  return bytes * share;
}

/* Returns 1 if the collective with this root sends along a flow; a chain has no flow back to its root. */
static int is_sent(const tws_sim_pattern *pattern, const tws_collective_row *row, const tws_flow *flow, int size,
                   uint32_t root) {
  if (!row) return 1;
  if (row->pattern == TWS_PATTERN_PAIRS)
    return tws_collective_moves(row, size, flow->from_index, flow->to_index, (int)root);
  if (row->pattern != TWS_PATTERN_CHAIN || root >= (uint32_t)size) return 1;
  return flow->to != pattern->replicas[(size_t)flow->replica * (size_t)size + root];
}

static void begin_flows(tws_sim *sim, uint32_t id) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  const tws_communicator *c = communicator_of(sim, met);
  const tws_collective_row *row = c->message ? NULL : row_of(sim, met);
  const tws_collective collective = row ? collective_of(sim, met) : (tws_collective)0;
  const uint32_t root = first_op(sim, met)->peer;
  const tws_flows *flows = tws_sim_flows(sim, met->communicator, row);
  tws_sim_transfer *transfer = &sim->transfers[id];
  const tws_traffic traffic = tws_sim_traffic(sim, met);
  const tws_machine *machine = &sim->request->machine;
  const double slowdown = row ? tws_exchange_ring_factor(machine->cluster, machine->profile, work_of(sim, met), c->size,
                                                         most_on_a_node(sim, c))
                              : 1;
  for (size_t i = 0; i < flows->count && sim->failed == TWS_OK; i++) {
    const tws_flow *flow = &flows->of[i];
    const double part = tws_sim_same_node(sim, flow->from, flow->to) ? traffic.inside : traffic.outside;
    const double bytes = slowdown * part * flow_bytes(met, row, collective, c->size, flow->share);
    if (!(bytes > 0) || !is_sent(&sim->patterns[met->communicator], row, flow, c->size, root)) continue;
    const uint64_t tag = tws_sim_tag(TWS_EVENT_FLOW, id, 0);
    transfer->pending++;
    int links[TWS_PATH_MAX];
    memcpy(links, flow->links, sizeof links);
    if (row && row->pattern != TWS_PATTERN_PAIRS && row->root == TWS_ROOT_RECEIVES)
      tws_platform_path(&sim->platform, flow->to, flow->from, links);
    tws_sim_start_flow(sim, links, bytes, row == NULL, tag);
  }
  if (transfer->pending == 0) tws_sim_end_transfer(sim, id, sim->now_s);
}

/* ---- events ---- */

static int by_messages(const tws_sim *sim, const tws_rendezvous *met) {
  return sim->request->fidelity == TWS_FIDELITY_MESSAGE && !communicator_of(sim, met)->message && met->bytes > 0 &&
         row_of(sim, met)->pattern != TWS_PATTERN_SIGNAL;
}

/* Returns how many of the `seconds` of a collective are latency, which does not depend on a link's bandwidth. */
static double latency_of(const tws_sim *sim, const tws_rendezvous *met, double seconds) {
  const tws_sim_effects *effects = sim->request->effects;
  if (!effects || !effects->takes) return 0;
  const double latency_s = tws_sim_latency(sim, met, (double)met->bytes);
  return latency_s < seconds ? latency_s : seconds;
}

void tws_sim_start_rendezvous(tws_sim *sim, uint32_t id) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  tws_sim_transfer *transfer = &sim->transfers[id];
  if (communicator_of(sim, met)->size == 1) {
    tws_sim_end_transfer(sim, id, met->met_s);
    return;
  }
  double seconds;
  if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC)
    seconds = analytic_seconds(sim, met);
  else
    seconds = by_messages(sim, met) ? tws_sim_messages_start(sim, met) : tws_sim_latency(sim, met, (double)met->bytes);
  if (!(seconds >= 0) || seconds > 1e9) {
    char here[256];
    const tws_run_member *first = first_member(sim, met);
    tws_sim_fail(sim, TWS_INTERNAL, "%s costs %g seconds",
                 tws_run_describe(sim->run, first->rank, first->op, here, sizeof here), seconds);
    return;
  }
  const double first_s = latency_of(sim, met, seconds);
  seconds = first_s + tws_sim_perturbed_s(sim, &sim->run->members[met->member_first], met->needed, met->met_s + first_s,
                                          seconds - first_s);
  transfer->end_s = met->met_s + seconds;
  tws_sim_timer(sim, transfer->end_s, tws_sim_tag(TWS_EVENT_RENDEZVOUS, id, 0));
}

void tws_sim_transfer_event(tws_sim *sim, tws_sim_event event, uint32_t id, uint32_t edge) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  tws_sim_transfer *transfer = &sim->transfers[id];
  if (event == TWS_EVENT_POSTED) {
    tws_sim_message_posted(sim, id, edge);
  } else if (event == TWS_EVENT_SENT) {
    tws_sim_message_sent(sim, id, edge);
  } else if (event == TWS_EVENT_ARRIVED) {
    tws_sim_message_arrived(sim, id, edge);
  } else if (event == TWS_EVENT_FLOW) {
    if (--transfer->pending == 0) tws_sim_end_transfer(sim, id, sim->now_s);
  } else if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC ||
             (!communicator_of(sim, met)->message && row_of(sim, met)->pattern == TWS_PATTERN_SIGNAL)) {
    tws_sim_end_transfer(sim, id, transfer->end_s);
  } else if (by_messages(sim, met)) {
    tws_sim_begin_messages(sim, id);
  } else {
    begin_flows(sim, id);
  }
}
