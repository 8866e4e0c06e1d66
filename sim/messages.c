/* Executes collectives message by message. Each step of a ring's edge is a message. A rank sends a message when it has
 * received the data and its previous message has left; the message arrives after the link's latency. Broadcast and
 * reduce are divided into CHUNKS segments, which are pipelined along a chain.
 *
 * In general messages are flows, which share links with concurrent ones. Two cases are faster. If no other communicator
 * uses any of the links and collectives of the communicator never overlap, a collective's duration does not depend on
 * when it starts, so it is simulated once and reused. If in addition no two edges share a link, as in a single ring, a
 * message takes bytes / bandwidth, and a sweep over steps and edges computes when each starts and arrives, without
 * flows. */
#include <math.h>
#include <string.h>

#include "models/collective.h"
#include "sim/executor.h"

enum { CHUNKS = 64 };
#define SHARED UINT32_MAX /* marks a link that several communicators use */

typedef struct message_edge {
  int from, to;
  int links[TWS_PATH_MAX];
  uint32_t next; /* index of the edge that forwards the messages that arrive here, or TWS_NONE */
  uint32_t steps, sent, got;
  /* busy: 1 while a message is on the edge; ahead: step s requires s + 1 - `ahead` arrivals (ring 1, chain 0) */
  uint8_t busy, ahead;
  uint8_t source;  /* 1: sends without waiting for arrivals */
  double bytes;    /* bytes of one step */
  double posted_s; /* seconds after the start: a rank posts its messages to other nodes one after another */
  double latency_s;
} message_edge;

struct tws_sim_messages {
  uint64_t pending;
  double start_s;
  uint32_t count;
  message_edge edges[];
};

/* A cached duration: that of a collective of a communicator whose links no other communicator uses. */
struct tws_sim_known {
  tws_collective collective;
  uint32_t root;
  uint64_t bytes;
  tws_traffic traffic; /* load factors, since collectives of equal bytes may load links differently */
  double seconds;
  struct tws_sim_known *next;
};

static const tws_communicator *communicator_of(const tws_sim *sim, const tws_rendezvous *met) {
  return &sim->run->communicators[met->communicator];
}

static const tws_op *op_of(const tws_sim *sim, const tws_rendezvous *met, const tws_work **work) {
  const tws_run_member *member = &sim->run->members[met->member_first];
  const tws_plan *plan = sim->ranks[member->rank].plan;
  *work = &plan->works[plan->ops[member->op].work];
  return &plan->ops[member->op];
}

/* Returns the seconds before the first message, without the latency of links, which is added to each message. */
double tws_sim_messages_start(const tws_sim *sim, const tws_rendezvous *met) {
  const tws_communicator *c = communicator_of(sim, met);
  const tws_work *work;
  op_of(sim, met, &work);
  const tws_machine *machine = &sim->request->machine;
  const double hops_s =
      tws_exchange_link_latency_s(machine->cluster, machine->profile, work, c->size,
                                  tws_mapping_ranks_on_first_node(&sim->platform.mapping, c->ranks, c->size));
  return fmax(0, tws_sim_latency(sim, met, 0) - hops_s);
}

/* ---- links that only one communicator uses ---- */

static void use_link(tws_sim *sim, int link, uint32_t communicator) {
  uint32_t *user = &sim->link_users[link];
  *user = *user == 0 || *user == communicator + 1 ? communicator + 1 : SHARED;
}

static void use_path(tws_sim *sim, int from, int to, uint32_t communicator) {
  int links[TWS_PATH_MAX];
  const int count = tws_platform_path(&sim->platform, from, to, links);
  for (int i = 0; i < count; i++) use_link(sim, links[i], communicator);
}

/* Marks the links of the messages (pairs 1) or rings (pairs 0) of a communicator. `order` has room for its ranks. */
static void use_links(tws_sim *sim, uint32_t communicator, int pairs, int *order) {
  const tws_communicator *c = &sim->run->communicators[communicator];
  const tws_sim_pattern *pattern = tws_sim_pattern_of(sim, communicator);
  for (int i = 0; i < pattern->replica_count; i++) {
    const int *ranks = pattern->replicas + (size_t)i * (size_t)c->size;
    for (int from = 0; pairs && from < c->size; from++)
      for (int k = 1; k < c->size; k++) use_path(sim, ranks[from], ranks[(from + k) % c->size], communicator);
    const int rings = pairs ? 0 : tws_platform_ring(&sim->platform, ranks, c->size, 0, order);
    for (int ring = 0; ring < rings; ring++) {
      tws_platform_ring(&sim->platform, ranks, c->size, ring, order);
      for (int at = 0; at < c->size; at++) {
        use_path(sim, order[at], order[(at + 1) % c->size], communicator);
        use_path(sim, order[(at + 1) % c->size], order[at], communicator); /* chains run in both directions */
      }
    }
  }
}

static int links_are_own(tws_sim *sim, uint32_t communicator, int *order) {
  const tws_communicator *c = &sim->run->communicators[communicator];
  const tws_sim_pattern *pattern = tws_sim_pattern_of(sim, communicator);
  for (size_t i = 0; i < (size_t)pattern->replica_count; i++) {
    const int *ranks = pattern->replicas + i * (size_t)c->size;
    const int rings = tws_platform_ring(&sim->platform, ranks, c->size, 0, order);
    for (int ring = 0; ring < rings; ring++) {
      tws_platform_ring(&sim->platform, ranks, c->size, ring, order);
      for (int at = 0; at < c->size; at++) {
        int links[TWS_PATH_MAX];
        const int count = tws_platform_path(&sim->platform, order[at], order[(at + 1) % c->size], links);
        for (int k = 0; k < count; k++)
          if (sim->link_users[links[k]] != communicator + 1) return 0;
      }
    }
  }
  return 1;
}

/* Returns 1 if no two collectives of the communicator overlap, since they are on one stream, or on a channel, whose
 * operations depend on each other. */
static int follow_each_other(const tws_sim *sim, const tws_communicator *c) {
  int stream = -1;
  for (size_t i = 0; i < c->rendezvous_count && !sim->serial; i++) {
    const tws_work *work;
    const tws_op *op = op_of(sim, &sim->run->rendezvous[c->rendezvous[i]], &work);
    if (op->channel != TWS_CHANNEL_NONE) continue;
    if (stream >= 0 && stream != op->stream) return 0;
    stream = op->stream;
  }
  return 1;
}

static void find_alone(tws_sim *sim) {
  const size_t count = sim->run->communicator_count;
  int *order = tws_arena_alloc_unset(sim->arena, (size_t)sim->world, sizeof *order);
  /* per communicator, a bit mask of what it runs: 1: rings, 2: pairwise exchanges, 4: point-to-point messages */
  uint8_t *used = tws_arena_alloc(sim->arena, count + 1, sizeof *used);
  sim->link_users = tws_arena_alloc(sim->arena, (size_t)sim->platform.links + 1, sizeof *sim->link_users);
  if (!order || !used || !sim->link_users) {
    tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
    return;
  }
  for (size_t i = 0; i < sim->run->rendezvous_count; i++) {
    const tws_rendezvous *met = &sim->run->rendezvous[i];
    const tws_work *work;
    op_of(sim, met, &work);
    if (communicator_of(sim, met)->message)
      used[met->communicator] = 4;
    else if (tws_collective_of((tws_collective)work->code)->pattern == TWS_PATTERN_PAIRS)
      used[met->communicator] |= 2;
    else
      used[met->communicator] |= 1;
  }
  for (uint32_t i = 0; i < count && sim->failed == TWS_OK; i++)
    for (int pairs = 0; pairs < 2; pairs++)
      if (sim->run->communicators[i].size > 1 && used[i] & (pairs ? 6 : 1)) use_links(sim, i, pairs, order);
  for (uint32_t i = 0; i < count && sim->failed == TWS_OK; i++)
    sim->patterns[i].alone = used[i] == 1 && sim->run->communicators[i].size > 1 && !sim->request->effects &&
                             follow_each_other(sim, &sim->run->communicators[i]) && links_are_own(sim, i, order);
}

/* ---- messages as flows ---- */

static void try_send(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->transfers[id].messages->edges[index];
  const uint32_t needs = edge->source ? 0 : edge->sent + 1 - edge->ahead;
  if (edge->busy || edge->sent == edge->steps || edge->got < needs) return;
  edge->busy = 1;
  tws_sim_start_flow(sim, edge->links, edge->bytes, 0, tws_sim_tag(TWS_EVENT_SENT, id, index));
}

static void know(tws_sim *sim, uint32_t id, double seconds) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  const tws_work *work;
  const tws_op *op = op_of(sim, met, &work);
  tws_sim_pattern *pattern = &sim->patterns[met->communicator];
  struct tws_sim_known *known = pattern->alone ? tws_arena_alloc(sim->arena, 1, sizeof *known) : NULL;
  if (!known) return; /* out of memory: the collective is simulated again next time */
  *known = (struct tws_sim_known){.collective = (tws_collective)work->code,
                                  .root = op->peer,
                                  .bytes = met->bytes,
                                  .traffic = tws_sim_traffic(sim, met),
                                  .seconds = seconds,
                                  .next = pattern->known};
  pattern->known = known;
}

void tws_sim_message_arrived(tws_sim *sim, uint32_t id, uint32_t index) {
  struct tws_sim_messages *messages = sim->transfers[id].messages;
  const uint32_t next = messages->edges[index].next;
  if (--messages->pending == 0) {
    know(sim, id, sim->now_s - messages->start_s);
    tws_sim_end_transfer(sim, id, sim->now_s);
  } else if (next != TWS_NONE) {
    messages->edges[next].got++;
    try_send(sim, id, next);
  }
}

void tws_sim_message_posted(tws_sim *sim, uint32_t id, uint32_t index) {
  try_send(sim, id, index);
}

void tws_sim_message_sent(tws_sim *sim, uint32_t id, uint32_t index) {
  message_edge *edge = &sim->transfers[id].messages->edges[index];
  const double latency_s = edge->latency_s;
  edge->busy = 0;
  edge->sent++;
  try_send(sim, id, index);
  if (latency_s > 0)
    tws_sim_date(sim, sim->now_s + latency_s, tws_sim_tag(TWS_EVENT_ARRIVED, id, index));
  else
    tws_sim_message_arrived(sim, id, index);
}

/* ---- messages with links of their own ---- */

static int no_link_twice(tws_sim *sim, const struct tws_sim_messages *messages) {
  uint8_t *seen = tws_calloc((size_t)sim->platform.links + 1, 1);
  int once = seen != NULL;
  for (uint32_t i = 0; i < messages->count && once; i++)
    for (int k = 0; k < TWS_PATH_MAX && messages->edges[i].links[k] != TWS_NO_LINK && once; k++)
      once = !seen[messages->edges[i].links[k]]++;
  tws_free(seen);
  return once;
}

/* Returns the seconds until the last message of a ring of `size` edges arrives. at[]: scratch array of 5 x (size +
 * 1). */
static double sweep_ring(const tws_sim *sim, const message_edge *edges, uint32_t size, double *at) {
  double *sent = at, *arrived = sent + size + 1, *before = arrived + size + 1, *takes = before + size + 1,
         *latency = takes + size + 1;
  for (uint32_t i = 0; i < size; i++) {
    sent[i] = 0;
    before[i + 1] = 0; /* before[i + 1]: date in seconds of the last arrival at the sender of edge i + 1 */
    takes[i] = edges[i].bytes / tws_platform_rate(&sim->platform, edges[i].links);
    latency[i] = edges[i].latency_s;
  }
  for (uint32_t step = 0; step < edges[0].steps; step++) {
    before[0] = before[size]; /* the last edge of the ring leads to the sender of the first edge */
    for (uint32_t i = 0; i < size; i++) {
      const double starts = before[i] > sent[i] ? before[i] : sent[i];
      sent[i] = starts + takes[i];
      arrived[i + 1] = sent[i] + latency[i];
    }
    double *const swap = before;
    before = arrived;
    arrived = swap;
  }
  double last = 0;
  for (uint32_t i = 1; i <= size; i++) last = before[i] > last ? before[i] : last;
  return last;
}

/* Returns 1 if an equal collective has been simulated on these links, and writes its duration to *seconds. */
static int is_known(tws_sim *sim, uint32_t id, double *seconds) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  const tws_sim_pattern *pattern = &sim->patterns[met->communicator];
  const tws_work *work;
  const tws_op *op = op_of(sim, met, &work);
  const tws_traffic traffic = tws_sim_traffic(sim, met);
  for (const struct tws_sim_known *k = pattern->known; k; k = k->next)
    if (k->collective == (tws_collective)work->code && k->root == op->peer && k->bytes == met->bytes &&
        k->traffic.inside == traffic.inside && k->traffic.outside == traffic.outside) {
      *seconds = k->seconds;
      return 1;
    }
  return 0;
}

static int sweep(tws_sim *sim, uint32_t id, double *seconds) {
  const struct tws_sim_messages *messages = sim->transfers[id].messages;
  const uint32_t size = (uint32_t)communicator_of(sim, &sim->run->rendezvous[id])->size;
  if (!messages->edges[0].ahead || !no_link_twice(sim, messages)) return 0;
  double *at = tws_realloc(NULL, 5 * ((size_t)size + 1), sizeof *at);
  if (!at) return 0;
  *seconds = 0;
  for (uint32_t first = 0; first < messages->count; first += size)
    *seconds = fmax(*seconds, sweep_ring(sim, messages->edges + first, size, at));
  tws_free(at);
  know(sim, id, *seconds);
  return 1;
}

/* ---- beginning ---- */

static void set_paths(tws_sim *sim, struct tws_sim_messages *messages, double inside) {
  for (uint32_t i = 0; i < messages->count; i++) {
    message_edge *edge = &messages->edges[i];
    tws_platform_path(&sim->platform, edge->from, edge->to, edge->links);
    edge->latency_s = tws_platform_latency(&sim->platform, edge->from, edge->to);
    if (tws_sim_same_node(sim, edge->from, edge->to)) edge->bytes *= inside;
    messages->pending += edge->steps;
  }
}

/* Appends the edges of one ring, or of a chain from or to the root; returns the new count. */
static uint32_t add_ring(message_edge *edges, uint32_t count, const int *order, int size, tws_collective collective,
                         int root, double bytes) {
  const tws_collective_row *row = tws_collective_of(collective);
  const int chain = row->pattern == TWS_PATTERN_CHAIN;
  int start = 0;
  while (chain && start + 1 < size && order[start] != root) start++;
  for (int i = 0; i < size - chain; i++) {
    const int here = order[(start + i) % size], there = order[(start + i + 1) % size];
    const int toward = row->root == TWS_ROOT_RECEIVES; /* the chain runs in reverse, towards the root */
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

static uint32_t add_pairs(const tws_sim *sim, const tws_rendezvous *met, message_edge *edges, uint32_t count,
                          const int *ranks, int root) {
  const tws_work *work;
  op_of(sim, met, &work);
  const tws_collective_row *row = tws_collective_of((tws_collective)work->code);
  const tws_traffic traffic = tws_sim_traffic(sim, met);
  const int size = communicator_of(sim, met)->size;
  const double bytes = tws_collective_pair_bytes(row, size, (double)met->bytes),
               apart_s = traffic.posted ? sim->request->machine.cluster->message_s : 0;
  for (int i = 0; i < size; i++) {
    int posted = 0;
    for (int k = 1; k < size; k++) {
      const int to = (i + k) % size, inside = tws_sim_same_node(sim, ranks[i], ranks[to]);
      if (!tws_collective_moves(row, size, i, to, root)) continue;
      edges[count++] = (message_edge){.from = ranks[i],
                                      .to = ranks[to],
                                      .next = TWS_NONE,
                                      .steps = 1,
                                      .source = 1,
                                      .bytes = bytes * (inside ? 1 : traffic.outside),
                                      .posted_s = inside ? 0 : posted * apart_s};
      posted += !inside;
    }
  }
  return count;
}

static struct tws_sim_messages *make_messages(tws_sim *sim, uint32_t id) {
  const tws_rendezvous *met = &sim->run->rendezvous[id];
  const tws_communicator *c = communicator_of(sim, met);
  const tws_sim_pattern *pattern = tws_sim_pattern_of(sim, met->communicator);
  const tws_work *work;
  const uint32_t root_index = op_of(sim, met, &work)->peer;
  const tws_collective collective = (tws_collective)work->code;
  const tws_collective_row *row = tws_collective_of(collective);
  const int size = c->size, pairs = row->pattern == TWS_PATTERN_PAIRS;
  int *order = tws_calloc((size_t)size, sizeof *order);
  const int rings = order ? tws_platform_ring(&sim->platform, c->ranks, size, 0, order) : 0;
  const size_t per_replica = pairs ? (size_t)size * (size_t)(size - 1) : (size_t)size * (size_t)rings;
  struct tws_sim_messages *messages =
      tws_calloc(1, sizeof *messages + per_replica * (size_t)pattern->replica_count * sizeof(message_edge));
  if (!order || !messages) {
    tws_free(order);
    tws_free(messages);
    return NULL;
  }
  const double pieces = row->pattern == TWS_PATTERN_CHAIN ? (double)CHUNKS * rings : (double)size * rings;
  for (int i = 0; i < pattern->replica_count; i++) {
    const int *ranks = pattern->replicas + (size_t)i * (size_t)size;
    const int root = root_index < (uint32_t)size ? ranks[root_index] : ranks[0];
    if (pairs) messages->count = add_pairs(sim, met, messages->edges, messages->count, ranks, (int)root_index);
    for (int ring = 0; ring < rings && !pairs; ring++) {
      tws_platform_ring(&sim->platform, ranks, size, ring, order);
      messages->count =
          add_ring(messages->edges, messages->count, order, size, collective, root, (double)met->bytes / pieces);
    }
  }
  tws_free(order);
  set_paths(sim, messages, tws_sim_traffic(sim, met).inside);
  messages->start_s = sim->now_s;
  return messages;
}

void tws_sim_begin_messages(tws_sim *sim, uint32_t id) {
  const uint32_t communicator = sim->run->rendezvous[id].communicator;
  double seconds;
  if (!sim->link_users) find_alone(sim);
  if (sim->failed != TWS_OK) return;
  const int alone = sim->patterns[communicator].alone;
  int known = alone && is_known(sim, id, &seconds);
  if (!known) {
    struct tws_sim_messages *messages = sim->transfers[id].messages = make_messages(sim, id);
    if (!messages) {
      tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
      return;
    }
    known = alone && sweep(sim, id, &seconds);
    for (uint32_t i = 0; i < messages->count && !known; i++) {
      const double posted_s = messages->edges[i].posted_s;
      if (posted_s > 0)
        tws_sim_date(sim, sim->now_s + posted_s, tws_sim_tag(TWS_EVENT_POSTED, id, i));
      else
        try_send(sim, id, i);
    }
  }
  if (known) tws_sim_date(sim, sim->now_s + seconds, tws_sim_tag(TWS_EVENT_FLOW, id, 0));
  if (known) sim->transfers[id].pending = 1;
}
