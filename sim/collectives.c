/* What happens when all ranks of a meeting are there.
 *
 * Analytic: one timer of the closed formula or measured table.
 * Flow: a timer of the latencies, then one flow per edge of the rings, with all the bytes that the algorithm moves
 * along it; the meeting ends with the last flow. Links are shared with whatever else is under way. Message: every step
 * of the ring is a flow followed by a timer of its latency; a rank sends on when it has what it needs and its last
 * message has left. Broadcast and reduce are cut into CHUNKS pieces that follow each other along a chain. */
#include <math.h>

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

static const tws_op *first_op(const tws_sim *sim, const tws_sim_meeting *meeting) {
  const tws_sim_member *member = &sim->members[meeting->member_first];
  return &sim->ranks[member->rank].plan->ops[member->op];
}

static const tws_work *meeting_work(const tws_sim *sim, const tws_sim_meeting *meeting) {
  return &sim->ranks[sim->members[meeting->member_first].rank].plan->works[first_op(sim, meeting)->work];
}

static void end_meeting(tws_sim *sim, uint32_t id, double end_s) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  tws_free(meeting->messages);
  meeting->messages = NULL;
  for (uint32_t i = 0; i < meeting->needed; i++) {
    const tws_sim_member *member = &sim->members[meeting->member_first + i];
    tws_sim_finish(sim, member->rank, member->op, end_s);
  }
}

static void start_flow(tws_sim *sim, int from, int to, uint64_t bytes, uint64_t tag) {
  int links[TWS_PATH_MAX];
  const int count = tws_platform_path(&sim->platform, from, to, links);
  if (tws_engine_flow(links, count, bytes, tag) != 0) tws_sim_fail(sim, TWS_ENVIRONMENT, "%s", tws_engine_error());
}

static uint64_t whole_bytes(double bytes) {
  return bytes < 1 ? bytes > 0 : (uint64_t)llround(bytes);
}

/* ---- costs ---- */

static int most_on_a_node(const tws_sim *sim, const tws_sim_party *party) {
  int same = 0; /* as the estimators see it: on the first rank's node */
  for (int i = 0; i < party->size; i++)
    same += tws_platform_node(&sim->platform, party->ranks[i]) == tws_platform_node(&sim->platform, party->ranks[0]);
  return same;
}

static int same_node(const tws_sim *sim, const tws_sim_party *party) {
  return tws_platform_node(&sim->platform, party->ranks[0]) == tws_platform_node(&sim->platform, party->ranks[1]);
}

static double analytic_seconds(tws_sim *sim, const tws_sim_meeting *meeting) {
  double longest = 0;
  if (meeting->kind == TWS_OP_SEND) {
    const tws_op *op = first_op(sim, meeting);
    return tws_plan_message_seconds(sim->ranks[sim->members[meeting->member_first].rank].plan, op->peer, op->work,
                                    &sim->request->machine);
  }
  for (uint32_t i = 0; i < meeting->needed; i++) {
    const tws_sim_member *member = &sim->members[meeting->member_first + i];
    longest = fmax(longest, tws_sim_cost(sim, member->rank, sim->ranks[member->rank].plan->ops[member->op].work));
  }
  return longest;
}

/* What passes before the first byte and between the steps: the cost of nothing. */
static double latency_seconds(const tws_sim *sim, const tws_sim_meeting *meeting) {
  const tws_sim_party *party = &sim->parties[meeting->party];
  const tws_machine *machine = &sim->request->machine;
  if (meeting->kind == TWS_OP_SEND)
    return tws_p2p_seconds(machine->cluster, machine->profile, same_node(sim, party), 0);
  const tws_work *work = meeting_work(sim, meeting);
  return tws_collective_seconds(machine->cluster, machine->profile, (tws_collective)work->code, party->size,
                                most_on_a_node(sim, party), 0, (int)work->segments);
}

static int ring_steps(int collective, int size) {
  switch (collective) {
    case TWS_COLLECTIVE_ALL_REDUCE:
      return 2 * (size - 1);
    case TWS_COLLECTIVE_ALL_GATHER:
    case TWS_COLLECTIVE_REDUCE_SCATTER:
      return size - 1;
    default:
      return 0;
  }
}

static int is_chain(int collective) {
  return collective == TWS_COLLECTIVE_BROADCAST || collective == TWS_COLLECTIVE_REDUCE;
}

/* ---- groups that communicate ---- */

/* The parties whose flows a meeting stands for: its own; with folded ranks also those that the same ranks elsewhere
 * make, because they do the same at the same time. Elsewhere is along all axes on which neither the party's ranks nor
 * the simulated ones differ. */
static int lines_of(tws_sim *sim, const tws_sim_party *party, const int **lines) {
  const tws_topology *topology = &sim->ranks[0].plan->topology;
  *lines = party->ranks;
  if (!sim->request->fold || tws_topology_world(topology) != sim->world) return 1;
  const unsigned fixed = sim->classes | tws_sim_axes(topology, party->ranks, party->size);
  int count = 1, at[TWS_MAX_AXES] = {0}, coordinates[TWS_MAX_AXES];
  for (int axis = 0; axis < topology->axes; axis++)
    if (!(fixed >> axis & 1)) count *= topology->dim[axis];
  int *all = tws_arena_alloc(sim->arena, (size_t)count * (size_t)party->size, sizeof *all);
  if (!all) {
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
    return 1;
  }
  for (int line = 0; line < count; line++) {
    for (int i = 0; i < party->size; i++) {
      tws_topology_coordinates(topology, party->ranks[i], coordinates);
      for (int axis = 0; axis < topology->axes; axis++)
        if (!(fixed >> axis & 1)) coordinates[axis] = at[axis];
      all[line * party->size + i] = tws_topology_rank(topology, coordinates);
    }
    for (int axis = topology->axes - 1; axis >= 0; axis--) { /* the next combination */
      if (fixed >> axis & 1) continue;
      if (++at[axis] < topology->dim[axis]) break;
      at[axis] = 0;
    }
  }
  *lines = all;
  return count;
}

/* The pattern of a party is made once. */
static void make_pattern(tws_sim *sim, tws_sim_party *party) {
  party->line_count = lines_of(sim, party, &party->lines);
  if (party->message) return;
  party->edges = tws_arena_alloc(sim->arena, (size_t)party->line_count, sizeof *party->edges);
  party->edge_counts = tws_arena_alloc(sim->arena, (size_t)party->line_count, sizeof *party->edge_counts);
  for (int i = 0; i < party->line_count && party->edges && party->edge_counts; i++) {
    party->edge_counts[i] = tws_platform_rings(&sim->platform, party->lines + (size_t)i * (size_t)party->size,
                                               party->size, sim->arena, &party->edges[i]);
    if (party->edge_counts[i] < 0) party->edges = NULL;
  }
  if (!party->edges || !party->edge_counts) tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
}

/* ---- flows ---- */

static void flow_pairs(tws_sim *sim, uint32_t id, const int *line) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  const int size = sim->parties[meeting->party].size;
  const uint64_t bytes = whole_bytes((double)meeting->bytes / size);
  for (int i = 0; i < size && bytes > 0; i++) {
    for (int k = 1; k < size; k++) {
      meeting->pending++;
      start_flow(sim, line[i], line[(i + k) % size], bytes, tws_sim_tag(TWS_EVENT_FLOW, id, 0));
    }
  }
}

static void flow_rings(tws_sim *sim, uint32_t id, int collective, int line) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  const tws_sim_party *party = &sim->parties[meeting->party];
  const int size = party->size;
  const double bytes =
      is_chain(collective) ? (double)meeting->bytes : (double)meeting->bytes * ring_steps(collective, size) / size;
  const uint32_t root_index = first_op(sim, meeting)->peer;
  const int root =
      is_chain(collective) && root_index < (uint32_t)size ? party->lines[(size_t)line * (size_t)size + root_index] : -1;
  for (int i = 0; i < party->edge_counts[line]; i++) {
    const tws_edge *edge = &party->edges[line][i];
    const uint64_t amount = whole_bytes(bytes * edge->share);
    if (edge->to == root || amount == 0) continue; /* a chain ends before it comes back to its root */
    meeting->pending++;
    if (collective == TWS_COLLECTIVE_REDUCE)
      start_flow(sim, edge->to, edge->from, amount, tws_sim_tag(TWS_EVENT_FLOW, id, 0));
    else
      start_flow(sim, edge->from, edge->to, amount, tws_sim_tag(TWS_EVENT_FLOW, id, 0));
  }
}

static void begin_flows(tws_sim *sim, uint32_t id) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  tws_sim_party *party = &sim->parties[meeting->party];
  if (!party->lines) make_pattern(sim, party);
  if (meeting->kind == TWS_OP_SEND) {
    for (int line = 0; line < party->line_count && meeting->bytes > 0 && sim->failed == TWS_OK; line++) {
      meeting->pending++;
      start_flow(sim, party->lines[2 * line], party->lines[2 * line + 1], meeting->bytes,
                 tws_sim_tag(TWS_EVENT_FLOW, id, 0));
    }
  } else {
    const int collective = meeting_work(sim, meeting)->code;
    for (int line = 0; line < party->line_count && sim->failed == TWS_OK; line++) {
      if (collective == TWS_COLLECTIVE_ALL_TO_ALL)
        flow_pairs(sim, id, party->lines + (size_t)line * (size_t)party->size);
      else
        flow_rings(sim, id, collective, line);
    }
  }
  if (meeting->pending == 0) end_meeting(sim, id, tws_engine_now());
}

/* ---- messages ---- */

static void try_send(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->meetings[id].messages->edges[index];
  const uint32_t needs = edge->source ? 0 : edge->sent + 1 - edge->ahead;
  if (edge->busy || edge->sent == edge->steps || edge->got < needs) return;
  edge->busy = 1;
  start_flow(sim, edge->from, edge->to, edge->bytes, tws_sim_tag(TWS_EVENT_SENT, id, index));
}

/* Appends the edges of one ring, or of a chain from or to the root; returns the new count. */
static uint32_t add_ring(message_edge *edges, uint32_t count, const int *order, int size, int collective, int root,
                         uint64_t bytes) {
  const int chain = is_chain(collective);
  int start = 0;
  while (chain && start + 1 < size && order[start] != root) start++;
  for (int i = 0; i < size - chain; i++) {
    const int here = order[(start + i) % size], there = order[(start + i + 1) % size];
    const int toward = collective == TWS_COLLECTIVE_REDUCE; /* the chain runs backwards, into the root */
    message_edge *edge = &edges[count + (uint32_t)i];
    *edge = (message_edge){.from = toward ? there : here, .to = toward ? here : there, .bytes = bytes};
    edge->steps = chain ? CHUNKS : (uint32_t)ring_steps(collective, size);
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

static uint32_t add_pairs(message_edge *edges, uint32_t count, const int *line, int size, uint64_t bytes) {
  for (int i = 0; i < size; i++) {
    for (int k = 1; k < size; k++)
      edges[count++] = (message_edge){
          .from = line[i], .to = line[(i + k) % size], .next = TWS_NONE, .steps = 1, .source = 1, .bytes = bytes};
  }
  return count;
}

static void begin_messages(tws_sim *sim, uint32_t id) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  tws_sim_party *party = &sim->parties[meeting->party];
  const int collective = meeting_work(sim, meeting)->code, size = party->size;
  const uint32_t root_index = first_op(sim, meeting)->peer;
  if (!party->lines) make_pattern(sim, party);
  if (sim->failed != TWS_OK) return;
  int *order = tws_calloc((size_t)size, sizeof *order);
  const int rings = order ? tws_platform_ring(&sim->platform, party->ranks, size, 0, order) : 0;
  const size_t per_line =
      collective == TWS_COLLECTIVE_ALL_TO_ALL ? (size_t)size * (size_t)(size - 1) : (size_t)size * (size_t)rings;
  struct tws_sim_messages *messages =
      tws_calloc(1, sizeof *messages + per_line * (size_t)party->line_count * sizeof(message_edge));
  if (!order || !messages) {
    tws_free(order);
    tws_free(messages);
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
    return;
  }
  const double pieces = is_chain(collective) ? (double)CHUNKS * rings : (double)size * rings;
  for (int i = 0; i < party->line_count; i++) {
    const int *line = party->lines + (size_t)i * (size_t)size;
    const int root = root_index < (uint32_t)size ? line[root_index] : line[0];
    if (collective == TWS_COLLECTIVE_ALL_TO_ALL) {
      messages->count =
          add_pairs(messages->edges, messages->count, line, size, whole_bytes((double)meeting->bytes / size));
      continue;
    }
    for (int ring = 0; ring < rings; ring++) {
      tws_platform_ring(&sim->platform, line, size, ring, order);
      messages->count = add_ring(messages->edges, messages->count, order, size, collective, root,
                                 whole_bytes((double)meeting->bytes / pieces));
    }
  }
  tws_free(order);
  meeting->messages = messages;
  for (uint32_t i = 0; i < messages->count; i++) meeting->pending += messages->edges[i].steps;
  for (uint32_t i = 0; i < messages->count; i++) try_send(sim, id, i);
}

static void message_arrived(tws_sim *sim, uint32_t id, uint32_t index) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  const uint32_t next = meeting->messages->edges[index].next;
  if (--meeting->pending == 0) {
    end_meeting(sim, id, tws_engine_now());
  } else if (next != TWS_NONE) {
    meeting->messages->edges[next].got++;
    try_send(sim, id, next);
  }
}

static void message_sent(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->meetings[id].messages->edges[index];
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
static double message_start_seconds(const tws_sim *sim, const tws_sim_meeting *meeting) {
  const tws_sim_party *party = &sim->parties[meeting->party];
  const int collective = meeting_work(sim, meeting)->code;
  const int hops = collective == TWS_COLLECTIVE_ALL_REDUCE ? 2 * (party->size - 1) : party->size - 1;
  double longest = 0;
  for (int i = 0; i < party->size; i++)
    longest = fmax(longest, tws_platform_latency(&sim->platform, party->ranks[i], party->ranks[(i + 1) % party->size]));
  return fmax(0, latency_seconds(sim, meeting) - hops * longest);
}

/* ---- events ---- */

static int by_messages(const tws_sim *sim, const tws_sim_meeting *meeting) {
  return sim->request->fidelity == TWS_FIDELITY_MESSAGE && meeting->kind == TWS_OP_COLLECTIVE && meeting->bytes > 0 &&
         meeting_work(sim, meeting)->code != TWS_COLLECTIVE_BARRIER;
}

void tws_sim_arrive(tws_sim *sim, uint32_t rank, uint32_t op) {
  const uint32_t id = sim->ranks[rank].ops[op].meeting;
  tws_sim_meeting *meeting = &sim->meetings[id];
  const double ready_s = sim->ranks[rank].ops[op].ready_s;
  if (ready_s > meeting->start_s) meeting->start_s = ready_s;
  if (++meeting->arrived < meeting->needed) return;
  if (sim->parties[meeting->party].size == 1) {
    end_meeting(sim, id, meeting->start_s);
    return;
  }
  double seconds;
  if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC)
    seconds = analytic_seconds(sim, meeting);
  else
    seconds = by_messages(sim, meeting) ? message_start_seconds(sim, meeting) : latency_seconds(sim, meeting);
  if (!(seconds >= 0) || seconds > 1e9) {
    char here[256];
    tws_sim_fail(sim, TWS_INTERNAL, "%s costs %g seconds", tws_sim_describe(sim, rank, op, here, sizeof here), seconds);
    return;
  }
  meeting->end_s = meeting->start_s + seconds;
  tws_sim_timer(sim, meeting->end_s, tws_sim_tag(TWS_EVENT_MEETING, id, 0));
}

void tws_sim_meeting_event(tws_sim *sim, tws_sim_event event, uint32_t id, uint32_t edge) {
  tws_sim_meeting *meeting = &sim->meetings[id];
  if (event == TWS_EVENT_SENT) {
    message_sent(sim, id, edge);
  } else if (event == TWS_EVENT_ARRIVED) {
    message_arrived(sim, id, edge);
  } else if (event == TWS_EVENT_FLOW) {
    if (--meeting->pending == 0) end_meeting(sim, id, tws_engine_now());
  } else if (sim->request->fidelity == TWS_FIDELITY_ANALYTIC ||
             (meeting->kind == TWS_OP_COLLECTIVE && meeting_work(sim, meeting)->code == TWS_COLLECTIVE_BARRIER)) {
    end_meeting(sim, id, meeting->end_s);
  } else if (by_messages(sim, meeting)) {
    begin_messages(sim, id);
  } else {
    begin_flows(sim, id);
  }
}
