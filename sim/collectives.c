/* What happens when all ranks of a rendezvous are there.
 *
 * Analytic: one timer of the closed formula or measured table.
 * Flow: a timer of the latencies, then one flow per edge of the rings, with all the bytes that the algorithm moves
 * along it; the rendezvous ends with the last flow. Links are shared with whatever else is under way. Message: every
 * step of the ring is a flow followed by a timer of its latency; a rank sends on when it has what it needs and its last
 * message has left. Broadcast and reduce are cut into CHUNKS pieces that follow each other along a chain. */
#include <math.h>

#include "models/collective.h"
#include "sim/adapter.h"
#include "sim/executor.h"

enum { CHUNKS = 64 };

typedef struct message_edge {
  int from, to;
  uint32_t next; /* edge that sends on what arrives here, or TWS_NONE */
  uint32_t steps, sent, got;
  uint8_t busy, ahead; /* ahead: step s needs s + 1 - `ahead` arrivals (ring 1, chain 0) */
  uint8_t source;      /* needs none */
  uint64_t bytes;      /* of one step */
} message_edge;

struct tws_sim_messages {
  uint32_t count;
  message_edge edges[];
};

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

static void end_transfer(tws_sim *sim, uint32_t id, double end_s) {
  const tws_rendezvous met = sim->run->rendezvous[id];
  tws_free(sim->transfers[id].messages);
  sim->transfers[id].messages = NULL;
  const tws_sim_effects *effects = sim->request->effects;
  if (effects && sim->failed == TWS_OK)
    sim->failed = effects->met(effects->user, &sim->run->members[met.member_first], met.needed, end_s, sim->err);
  for (uint32_t i = 0; i < met.needed; i++) {
    const tws_run_member *member = &sim->run->members[met.member_first + i];
    tws_sim_finish(sim, member->rank, member->op, end_s);
  }
}

static void start_links(tws_sim *sim, const int *links, uint64_t bytes, uint64_t tag) {
  if (tws_engine_flow(links, TWS_PATH_MAX, bytes, tag) != 0)
    tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

static void start_flow(tws_sim *sim, int from, int to, uint64_t bytes, uint64_t tag) {
  int links[TWS_PATH_MAX];
  tws_platform_path(&sim->platform, from, to, links);
  start_links(sim, links, bytes, tag);
}

static uint64_t whole_bytes(double bytes) {
  return bytes < 1 ? bytes > 0 : (uint64_t)llround(bytes);
}

/* ---- costs ---- */

/* As the estimators see it: on the first rank's node. */
static int most_on_a_node(const tws_sim *sim, const tws_communicator *c) {
  return tws_mapping_beside_first(&sim->platform.mapping, c->ranks, c->size);
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

/* What passes before the first byte and between the steps: the cost of nothing. */
static double latency_seconds(const tws_sim *sim, const tws_rendezvous *met) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_machine *machine = &sim->request->machine;
  if (communicator_of(sim, met)->message)
    return tws_p2p_seconds(machine->cluster, machine->profile, same_node(sim, c), 0);
  const tws_work *work = work_of(sim, met);
  return tws_collective_seconds(machine->cluster, machine->profile, (tws_collective)work->code, c->size,
                                most_on_a_node(sim, c), 0, (int)work->segments);
}

static tws_collective collective_of(const tws_sim *sim, const tws_rendezvous *met) {
  return (tws_collective)work_of(sim, met)->code;
}

static const tws_collective_row *row_of(const tws_sim *sim, const tws_rendezvous *met) {
  return tws_collective_of(collective_of(sim, met));
}

/* ---- flows ---- */

static uint64_t flow_bytes(const tws_rendezvous *met, const tws_collective_row *row, tws_collective collective,
                           int size, double share) {
  if (!row) return met->bytes;
  if (row->pattern == TWS_PATTERN_PAIRS) return whole_bytes((double)met->bytes / size);
  const double bytes = row->pattern == TWS_PATTERN_CHAIN
                           ? (double)met->bytes
                           : (double)met->bytes * tws_collective_steps(collective, size) / size;
  return whole_bytes(bytes * share);
}

/* Whether a flow is part of a collective that has a root; a chain ends before it comes back to its root. */
static int is_sent(const tws_sim_pattern *pattern, const tws_collective_row *row, const tws_flow *flow, int size,
                   uint32_t root) {
  if (!row) return 1;
  if (row->pattern == TWS_PATTERN_PAIRS) return tws_collective_moves(row, flow->from_index, flow->to_index, (int)root);
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
  for (size_t i = 0; i < flows->count && sim->failed == TWS_OK; i++) {
    const tws_flow *flow = &flows->of[i];
    const uint64_t bytes = flow_bytes(met, row, collective, c->size, flow->share);
    if (bytes == 0 || !is_sent(&sim->patterns[met->communicator], row, flow, c->size, root)) continue;
    const uint64_t tag = tws_sim_tag(TWS_EVENT_FLOW, id, 0);
    transfer->pending++;
    if (row && row->pattern != TWS_PATTERN_PAIRS && row->root == TWS_ROOT_RECEIVES)
      start_flow(sim, flow->to, flow->from, bytes, tag);
    else
      start_links(sim, flow->links, bytes, tag);
  }
  if (transfer->pending == 0) end_transfer(sim, id, tws_engine_now());
}

/* ---- messages ---- */

static void try_send(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->transfers[id].messages->edges[index];
  const uint32_t needs = edge->source ? 0 : edge->sent + 1 - edge->ahead;
  if (edge->busy || edge->sent == edge->steps || edge->got < needs) return;
  edge->busy = 1;
  start_flow(sim, edge->from, edge->to, edge->bytes, tws_sim_tag(TWS_EVENT_SENT, id, index));
}

/* Appends the edges of one ring, or of a chain from or to the root; returns the new count. */
static uint32_t add_ring(message_edge *edges, uint32_t count, const int *order, int size, tws_collective collective,
                         int root, uint64_t bytes) {
  const tws_collective_row *row = tws_collective_of(collective);
  const int chain = row->pattern == TWS_PATTERN_CHAIN;
  int start = 0;
  while (chain && start + 1 < size && order[start] != root) start++;
  for (int i = 0; i < size - chain; i++) {
    const int here = order[(start + i) % size], there = order[(start + i + 1) % size];
    const int toward = row->root == TWS_ROOT_RECEIVES; /* the chain runs backwards, into the root */
    message_edge *edge = &edges[count + (uint32_t)i];
    *edge = (message_edge){.from = toward ? there : here, .to = toward ? here : there, .bytes = bytes};
    edge->steps = chain ? CHUNKS : (uint32_t)tws_collective_steps(collective, size);
    edge->ahead = !chain;
    if (!chain) {
      edge->next = count + (uint32_t)((i + 1) % size);
    } else if (toward) {
      edge->next = i > 0 ? count + (uint32_t)(i - 1) : TWS_NONE;
      edge->source = i == size - 2;
    } else {
      edge->next = i < size - 2 ? count + (uint32_t)(i + 1) : TWS_NONE;
      edge->source = i == 0;
    }
  }
  return count + (uint32_t)(size - chain);
}

static uint32_t add_pairs(message_edge *edges, uint32_t count, const int *ranks, int size,
                          const tws_collective_row *row, int root, uint64_t bytes) {
  for (int i = 0; i < size; i++) {
    for (int k = 1; k < size; k++)
      if (tws_collective_moves(row, i, (i + k) % size, root))
        edges[count++] = (message_edge){
            .from = ranks[i], .to = ranks[(i + k) % size], .next = TWS_NONE, .steps = 1, .source = 1, .bytes = bytes};
  }
  return count;
}

static void begin_messages(tws_sim *sim, uint32_t id) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  tws_sim_transfer *transfer = &sim->transfers[id];
  const tws_communicator *c = communicator_of(sim, met);
  const tws_sim_pattern *pattern = tws_sim_pattern_of(sim, met->communicator);
  const tws_collective collective = collective_of(sim, met);
  const tws_collective_row *row = row_of(sim, met);
  const int size = c->size, pairs = row->pattern == TWS_PATTERN_PAIRS;
  const uint32_t root_index = first_op(sim, met)->peer;
  if (sim->failed != TWS_OK) return;
  int *order = tws_calloc((size_t)size, sizeof *order);
  const int rings = order ? tws_platform_ring(&sim->platform, c->ranks, size, 0, order) : 0;
  const size_t per_replica = pairs ? (size_t)size * (size_t)(size - 1) : (size_t)size * (size_t)rings;
  struct tws_sim_messages *messages =
      tws_calloc(1, sizeof *messages + per_replica * (size_t)pattern->replica_count * sizeof(message_edge));
  if (!order || !messages) {
    tws_free(order);
    tws_free(messages);
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
    return;
  }
  const double pieces = row->pattern == TWS_PATTERN_CHAIN ? (double)CHUNKS * rings : (double)size * rings;
  for (int i = 0; i < pattern->replica_count; i++) {
    const int *ranks = pattern->replicas + (size_t)i * (size_t)size;
    const int root = root_index < (uint32_t)size ? ranks[root_index] : ranks[0];
    if (pairs) {
      messages->count = add_pairs(messages->edges, messages->count, ranks, size, row, (int)root_index,
                                  whole_bytes((double)met->bytes / size));
      continue;
    }
    for (int ring = 0; ring < rings; ring++) {
      tws_platform_ring(&sim->platform, ranks, size, ring, order);
      messages->count = add_ring(messages->edges, messages->count, order, size, collective, root,
                                 whole_bytes((double)met->bytes / pieces));
    }
  }
  tws_free(order);
  transfer->messages = messages;
  for (uint32_t i = 0; i < messages->count; i++) transfer->pending += messages->edges[i].steps;
  for (uint32_t i = 0; i < messages->count; i++) try_send(sim, id, i);
}

static void message_arrived(tws_sim *sim, uint32_t id, uint32_t index) {
  tws_sim_transfer *transfer = &sim->transfers[id];
  const uint32_t next = transfer->messages->edges[index].next;
  if (--transfer->pending == 0) {
    end_transfer(sim, id, tws_engine_now());
  } else if (next != TWS_NONE) {
    transfer->messages->edges[next].got++;
    try_send(sim, id, next);
  }
}

static void message_sent(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->transfers[id].messages->edges[index];
  const double latency = tws_platform_latency(&sim->platform, edge->from, edge->to);
  edge->busy = 0;
  edge->sent++;
  try_send(sim, id, index);
  if (latency > 0)
    tws_sim_timer(sim, tws_engine_now() + latency, tws_sim_tag(TWS_EVENT_ARRIVED, id, index));
  else
    message_arrived(sim, id, index);
}

/* Starting a collective costs what its latency has beyond the hops of its steps, which the messages pay themselves. */
static double message_start_seconds(const tws_sim *sim, const tws_rendezvous *met) {
  const tws_communicator *c = communicator_of(sim, met);
  const int hops = tws_collective_steps(collective_of(sim, met), c->size);
  double longest = 0;
  for (int i = 0; i < c->size; i++)
    longest = fmax(longest, tws_platform_latency(&sim->platform, c->ranks[i], c->ranks[(i + 1) % c->size]));
  return fmax(0, latency_seconds(sim, met) - hops * longest);
}

/* ---- events ---- */

static int by_messages(const tws_sim *sim, const tws_rendezvous *met) {
  return sim->request->fidelity == TWS_FIDELITY_MESSAGE && !communicator_of(sim, met)->message && met->bytes > 0 &&
         row_of(sim, met)->pattern != TWS_PATTERN_SIGNAL;
}

/* Of these seconds those that a slower link does not make longer. */
static double latency_of(const tws_sim *sim, const tws_rendezvous *met, double seconds) {
  const tws_sim_effects *effects = sim->request->effects;
  if (!effects || !effects->takes) return 0;
  const double latency_s = latency_seconds(sim, met);
  return latency_s < seconds ? latency_s : seconds;
}

void tws_sim_meet(tws_sim *sim, uint32_t id) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  tws_sim_transfer *transfer = &sim->transfers[id];
  if (communicator_of(sim, met)->size == 1) {
    end_transfer(sim, id, met->met_s);
    return;
  }
  double seconds;
  if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC)
    seconds = analytic_seconds(sim, met);
  else
    seconds = by_messages(sim, met) ? message_start_seconds(sim, met) : latency_seconds(sim, met);
  if (!(seconds >= 0) || seconds > 1e9) {
    char here[256];
    const tws_run_member *first = first_member(sim, met);
    tws_sim_fail(sim, TWS_INTERNAL, "%s costs %g seconds",
                 tws_run_describe(sim->run, first->rank, first->op, here, sizeof here), seconds);
    return;
  }
  const double first_s = latency_of(sim, met, seconds);
  seconds = first_s + tws_sim_takes(sim, &sim->run->members[met->member_first], met->needed, met->met_s + first_s,
                                    seconds - first_s);
  transfer->end_s = met->met_s + seconds;
  tws_sim_timer(sim, transfer->end_s, tws_sim_tag(TWS_EVENT_RENDEZVOUS, id, 0));
}

void tws_sim_transfer_event(tws_sim *sim, tws_sim_event event, uint32_t id, uint32_t edge) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  tws_sim_transfer *transfer = &sim->transfers[id];
  if (event == TWS_EVENT_SENT) {
    message_sent(sim, id, edge);
  } else if (event == TWS_EVENT_ARRIVED) {
    message_arrived(sim, id, edge);
  } else if (event == TWS_EVENT_FLOW) {
    if (--transfer->pending == 0) end_transfer(sim, id, tws_engine_now());
  } else if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC ||
             (!communicator_of(sim, met)->message && row_of(sim, met)->pattern == TWS_PATTERN_SIGNAL)) {
    end_transfer(sim, id, transfer->end_s);
  } else if (by_messages(sim, met)) {
    begin_messages(sim, id);
  } else {
    begin_flows(sim, id);
  }
}
