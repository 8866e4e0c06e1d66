#include "real/node_comm.h"
#include <string.h>
#include "base/memory.h"

/* PIECE and PIECE_BYTES: elements and bytes of one block; SLOTS: blocks that may be in flight; GRAIN: the handlers'
 * shares are multiples of this number of elements. */
enum { PIECE = 1 << 16, PIECE_BYTES = 1 << 20, SLOTS = 4, GRAIN = 2048, MAX_MEMBERS = 512 };

struct tws_nodes {
  MPI_Comm world;
  tws_shared *shared;
  tws_messages *messages;
  MPI_Request *requests; /* [world] */
  double slots[SLOTS][PIECE];
  MPI_Request up[SLOTS], down[SLOTS];
};

/* One collective. */
typedef struct call {
  tws_nodes *nodes;
  const tws_shared_group *group;
  const tws_span *span;
  const tws_collective_row *row;
  int root, tag;
  int here;                  /* index of this rank among the members of its node */
  int near_first, near_last; /* range of the group's members that are on this node */
} call;

/* ---- spans ---- */

tws_code tws_span_make(const tws_shared_group *group, const int *node_of, tws_span *span, tws_error *err) {
  const int n = group->size;
  *span = (tws_span){.handlers = n};
  span->first = tws_calloc((size_t)n + 1, sizeof *span->first);
  span->leaders = tws_calloc((size_t)n, sizeof *span->leaders);
  if (!span->first || !span->leaders) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  int nodes = 0, scattered = 0;
  for (int m = 0; m < n; m++) {
    const int node = node_of[group->ranks[m]];
    if (m > 0 && node == node_of[group->ranks[m - 1]]) continue;
    for (int k = 0; k < nodes; k++) scattered |= node_of[span->leaders[k]] == node;
    span->leaders[nodes] = group->ranks[m];
    span->first[nodes++] = m;
  }
  span->first[nodes] = n;
  for (int k = 0; k < nodes; k++) {
    const int members = span->first[k + 1] - span->first[k];
    if (members < span->handlers) span->handlers = members;
    scattered |= members > MAX_MEMBERS;
    if (group->index >= span->first[k] && group->index < span->first[k + 1]) span->mine = k;
  }
  const int first = span->first[span->mine];
  span->local = (tws_shared_group){.id = group->id,
                                   .size = span->first[span->mine + 1] - first,
                                   .index = group->index - first,
                                   .ranks = group->ranks + first};
  span->nodes = scattered ? 0 : nodes;
  return TWS_OK;
}

void tws_span_free(tws_span *span) {
  tws_free(span->first);
  tws_free(span->leaders);
  *span = (tws_span){0};
}

tws_code tws_nodes_create(MPI_Comm world, int world_size, tws_shared *shared, tws_messages *messages, tws_nodes **out,
                          tws_error *err) {
  *out = NULL;
  tws_nodes *nodes = tws_calloc(1, sizeof *nodes);
  MPI_Request *requests = tws_calloc((size_t)world_size, sizeof *requests);
  if (!nodes || !requests) {
    tws_free(requests);
    tws_free(nodes);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  *nodes = (tws_nodes){.world = world, .shared = shared, .messages = messages, .requests = requests};
  for (int i = 0; i < SLOTS; i++) nodes->up[i] = nodes->down[i] = MPI_REQUEST_NULL;
  *out = nodes;
  return TWS_OK;
}

void tws_nodes_destroy(tws_nodes *nodes) {
  if (!nodes) return;
  tws_free(nodes->requests);
  tws_free(nodes);
}

/* ---- messages ---- */

static int node_of_member(const tws_span *span, int member) {
  int node = 0;
  while (member >= span->first[node + 1]) node++;
  return node;
}

/* Returns the rank on another node that handles the same share as this rank. */
static int handler_on(const call *c, int node) {
  return c->group->ranks[c->span->first[node] + c->here % c->span->handlers];
}

static tws_code start_send(const call *c, int rank, const void *data, uint64_t bytes, MPI_Request *request,
                           tws_error *err) {
  return tws_messages_check(MPI_Isend(data, (int)bytes, MPI_BYTE, rank, c->tag, c->nodes->world, request), "send", err);
}

static tws_code receive(const call *c, int rank, void *data, uint64_t bytes, tws_error *err) {
  return tws_messages_check(MPI_Recv(data, (int)bytes, MPI_BYTE, rank, c->tag, c->nodes->world, MPI_STATUS_IGNORE),
                            "receive", err);
}

static tws_code wait_for(MPI_Request *requests, int count, tws_error *err) {
  return tws_messages_check(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE), "wait", err);
}

/* ---- sums ---- */

/* This handler's share of a segment: a range of each region, in blocks. An all-reduce and a reduce have one region,
 * a reduce-scatter one for each member. */
typedef struct share {
  int segment, rotation, lag;
  tws_dtype dtype;
  uint64_t size, wide;            /* size: bytes of an element; wide: bytes of an element of a partial sum */
  uint64_t region;                /* elements of a region */
  uint64_t first, length, pieces; /* this handler's range in each region, elements, and the number of blocks in it */
  uint64_t regions;
} share;

typedef struct piece {
  uint64_t from, at; /* offsets of the block in the sent and in the received data, elements */
  uint64_t count;
  int target; /* member that receives the result; -1: all */
  int node;   /* node of `target`, or -1 */
} piece;

static share make_share(const call *c, int segment, const tws_comm_segment *s) {
  const uint64_t handlers = (uint64_t)c->span->handlers;
  share h = {.segment = segment,
             .lag = 2 * (c->span->nodes - 1 - c->span->mine),
             .dtype = s->dtype,
             .size = tws_dtype_bytes(s->dtype),
             .wide = tws_ordered_sum_wide(s->dtype),
             .region = s->count,
             .regions = c->row->sends_parts ? (uint64_t)c->group->size : 1};
  uint64_t part = (s->count + handlers - 1) / handlers;
  part = (part + GRAIN - 1) / GRAIN * GRAIN;
  h.first = ((uint64_t)c->here + (uint64_t)segment) % handlers * part;
  if (c->here < c->span->handlers && h.first < s->count)
    h.length = s->count - h.first < part ? s->count - h.first : part;
  h.pieces = (h.length + PIECE - 1) / PIECE;
  return h;
}

static piece piece_of(const call *c, const share *h, uint64_t index) {
  const uint64_t region = index / h->pieces, at = h->first + index % h->pieces * PIECE;
  const uint64_t left = h->first + h->length - at;
  piece p = {.from = region * h->region + at, .at = at, .count = left < PIECE ? left : PIECE, .target = -1, .node = -1};
  if (h->regions > 1)
    p.target = (int)region;
  else if (c->row->root != TWS_ROOT_NONE)
    p.target = c->root;
  if (p.target >= 0) p.node = node_of_member(c->span, p.target);
  return p;
}

static char *received_by(const call *c, const share *h, int member, const piece *p) {
  return tws_shared_received(c->nodes->shared, c->group->ranks[member], h->segment) + p->at * h->size;
}

/* Copies data that have arrived in the first member's memory to the other members of this node. */
static void spread(const call *c, const share *h, const piece *p, const void *from) {
  for (int m = c->near_first; m < c->near_last; m++) {
    char *to = received_by(c, h, m, p);
    if (to != from) memcpy(to, from, p->count * h->size);
  }
}

/* Returns the address for a finished block on this node: in the memory of the member that needs it, or in this rank's
 * own. */
static char *landing(const call *c, const share *h, const piece *p) {
  return received_by(c, h, p->target >= 0 ? p->target : c->group->index, p);
}

/* Receives the partial sum, adds the contributions of this node's members, and sends it to the next node; the last node
 * rounds it. */
static tws_code reduce_to_next(const call *c, const share *h, uint64_t index, tws_error *err) {
  tws_nodes *n = c->nodes;
  const piece p = piece_of(c, h, index);
  const int mine = c->span->mine, last = c->span->nodes - 1, slot = (int)(index % SLOTS);
  const void *from[MAX_MEMBERS];
  double *sum = n->slots[slot];
  TWS_TRY(wait_for(&n->up[slot], 1, err));
  if (mine > 0) TWS_TRY(receive(c, handler_on(c, mine - 1), sum, p.count * h->wide, err));
  for (int m = c->near_first; m < c->near_last; m++)
    from[m - c->near_first] = tws_shared_sent(n->shared, c->group->ranks[m], h->segment) + p.from * h->size;
  tws_ordered_sum_part(h->dtype, mine > 0 ? sum : NULL, from, c->near_last - c->near_first, sum, p.count);
  if (mine < last) return start_send(c, handler_on(c, mine + 1), sum, p.count * h->wide, &n->up[slot], err);
  if (p.node >= 0 && p.node != mine) { /* rounded elements are smaller than partial sums, so they are stored in place */
    tws_ordered_sum_round(h->dtype, sum, sum, p.count);
    return start_send(c, handler_on(c, p.node), sum, p.count * h->size, &n->up[slot], err);
  }
  char *to = landing(c, h, &p);
  tws_ordered_sum_round(h->dtype, sum, to, p.count);
  if (p.target < 0) spread(c, h, &p, to);
  return TWS_OK;
}

/* Receives a finished block from the last node's direction, and forwards it to the previous node if all members need
 * it. */
static tws_code return_to_previous(const call *c, const share *h, uint64_t index, tws_error *err) {
  tws_nodes *n = c->nodes;
  const piece p = piece_of(c, h, index);
  const int mine = c->span->mine, last = c->span->nodes - 1, slot = (int)(index % SLOTS);
  if (p.node >= 0)
    return p.node == mine && mine < last ? receive(c, handler_on(c, last), landing(c, h, &p), p.count * h->size, err)
                                         : TWS_OK;
  char *to = landing(c, h, &p);
  if (mine < last) {
    TWS_TRY(receive(c, handler_on(c, mine + 1), to, p.count * h->size, err));
    spread(c, h, &p, to);
  }
  if (mine == 0) return TWS_OK;
  TWS_TRY(wait_for(&n->down[slot], 1, err));
  return start_send(c, handler_on(c, mine - 1), to, p.count * h->size, &n->down[slot], err);
}

/* Sums a segment. Results return while later blocks are still being summed: the lag is two blocks for each node after
 * this one. */
static tws_code sum_segment(const call *c, int segment, const tws_comm_segment *s, tws_error *err) {
  const share h = make_share(c, segment, s);
  const uint64_t pieces = h.pieces * h.regions, lag = (uint64_t)h.lag;
  for (uint64_t t = 0; pieces > 0 && t < pieces + lag; t++) {
    if (t < pieces) TWS_TRY(reduce_to_next(c, &h, t, err));
    if (t >= lag) TWS_TRY(return_to_previous(c, &h, t - lag, err));
  }
  TWS_TRY(wait_for(c->nodes->up, SLOTS, err));
  return wait_for(c->nodes->down, SLOTS, err);
}

/* ---- copies ---- */

/* Receives in blocks, so that copying a block within the node overlaps with the transfer of the next. `from`: the
 * members whose data are received. */
static tws_code take_from(const call *c, int segment, int member, uint64_t done, uint64_t bytes,
                          const tws_comm_segment *s, tws_error *err) {
  const uint64_t place = (uint64_t)member * s->count * tws_dtype_bytes(s->dtype) + done;
  char *to = (char *)s->receive + place;
  TWS_TRY(receive(c, c->group->ranks[member], to, bytes, err));
  for (int m = c->near_first; m < c->near_last; m++)
    if (m != c->group->index)
      memcpy(tws_shared_received(c->nodes->shared, c->group->ranks[m], segment) + place, to, bytes);
  return TWS_OK;
}

/* Gathers a segment: the member with the same index on another node (modulo the size of a smaller node) receives this
 * rank's segment for all members there. */
static tws_code gather_segment(const call *c, int segment, const tws_comm_segment *s, tws_error *err) {
  const tws_span *span = c->span;
  const int nodes = span->nodes, mine = span->mine, local = c->near_last - c->near_first;
  const uint64_t bytes = s->count * tws_dtype_bytes(s->dtype);
  tws_shared_copy(c->nodes->shared, c->group, c->row, c->root, c->near_first, c->near_last, segment, s);
  for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
    const uint64_t n = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
    int sent = 0;
    for (int d = 1; d < nodes; d++) {
      const int to = (mine + d) % nodes, there = span->first[to + 1] - span->first[to];
      TWS_TRY(start_send(c, c->group->ranks[span->first[to] + c->here % there], (const char *)s->send + done, n,
                         &c->nodes->requests[sent++], err));
    }
    for (int d = 1; d < nodes; d++) {
      const int from = (mine - d + nodes) % nodes;
      for (int m = span->first[from]; m < span->first[from + 1]; m++)
        if ((m - span->first[from]) % local == c->here) TWS_TRY(take_from(c, segment, m, done, n, s, err));
    }
    TWS_TRY(wait_for(c->nodes->requests, sent, err));
  }
  return TWS_OK;
}

/* Broadcasts from node to node, beginning at the root's: the first member of each node forwards the data to the next
 * node, and copies them to the members of its own. */
static tws_code broadcast_segment(const call *c, int segment, const tws_comm_segment *s, tws_error *err) {
  const tws_span *span = c->span;
  const int nodes = span->nodes, roots = node_of_member(span, c->root), place = (span->mine - roots + nodes) % nodes;
  const int head = place == 0 ? c->root : c->near_first;
  const uint64_t bytes = s->count * tws_dtype_bytes(s->dtype);
  if (c->group->index != head) {
    if (place == 0) tws_shared_copy(c->nodes->shared, c->group, c->row, c->root, c->root, c->root + 1, segment, s);
    return TWS_OK;
  }
  if (place == 0 && s->send != s->receive) memcpy(s->receive, s->send, bytes);
  for (uint64_t done = 0, index = 0; done < bytes; done += PIECE_BYTES, index++) {
    const uint64_t n = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
    char *at = (char *)s->receive + done;
    const int before = (span->mine - 1 + nodes) % nodes, behind = (span->mine + 1) % nodes;
    if (place > 0) TWS_TRY(receive(c, place == 1 ? c->group->ranks[c->root] : span->leaders[before], at, n, err));
    for (int m = c->near_first; place > 0 && m < c->near_last; m++)
      if (m != head) memcpy(tws_shared_received(c->nodes->shared, c->group->ranks[m], segment) + done, at, n);
    MPI_Request *request = &c->nodes->down[index % SLOTS];
    TWS_TRY(wait_for(request, 1, err));
    if (place + 1 < nodes) TWS_TRY(start_send(c, span->leaders[behind], at, n, request, err));
  }
  return wait_for(c->nodes->down, SLOTS, err);
}

static tws_code exchange_segment(const call *c, tws_collective collective, int segment, const tws_comm_segment *s,
                                 tws_error *err) {
  tws_shared_copy(c->nodes->shared, c->group, c->row, c->root, c->near_first, c->near_last, segment, s);
  return tws_messages_far_pairs(c->nodes->messages, c->group, c->near_first, c->near_last, collective, c->root, s, err);
}

/* ---- a collective ---- */

static tws_code run_segment(const call *c, tws_collective collective, int segment, const tws_comm_segment *s,
                            tws_error *err) {
  if (c->row->reduces) return sum_segment(c, segment, s, err);
  if (c->row->pattern == TWS_PATTERN_CHAIN) return broadcast_segment(c, segment, s, err);
  if (c->row->pattern == TWS_PATTERN_RING) return gather_segment(c, segment, s, err);
  return exchange_segment(c, collective, segment, s, err);
}

static tws_code run_batch(const call *c, tws_collective collective, const tws_comm_segment *segments, int count,
                          tws_error *err) {
  tws_shared *shared = c->nodes->shared;
  tws_shared_expose(shared, tws_collective_parts_of(collective, c->group->size, c->group->index, c->root), segments,
                    count);
  tws_shared_barrier(shared, &c->span->local);
  tws_shared_waits(shared, 1); /* this rank now waits for other nodes, and cannot tell which rank of them is late */
  tws_code code = TWS_OK;
  for (int i = 0; code == TWS_OK && i < count; i++) code = run_segment(c, collective, i, &segments[i], err);
  tws_shared_waits(shared, 0);
  if (code == TWS_OK) tws_shared_barrier(shared, &c->span->local);
  return code;
}

tws_code tws_nodes_collective(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span,
                              tws_collective collective, int root, const tws_comm_segment *segments, int count,
                              tws_error *err) {
  const call c = {.nodes = nodes,
                  .group = group,
                  .span = span,
                  .row = tws_collective_of(collective),
                  .root = root,
                  .tag = tws_messages_tag(group),
                  .here = span->local.index,
                  .near_first = span->first[span->mine],
                  .near_last = span->first[span->mine + 1]};
  for (int first = 0; first < count; first += TWS_SHARED_SEGMENTS) {
    const int n = count - first < TWS_SHARED_SEGMENTS ? count - first : TWS_SHARED_SEGMENTS;
    TWS_TRY(run_batch(&c, collective, segments + first, n, err));
  }
  return TWS_OK;
}

tws_code tws_nodes_barrier(tws_nodes *nodes, const tws_shared_group *group, const tws_span *span, tws_error *err) {
  static const tws_comm_segment nothing;
  tws_code code = TWS_OK;
  tws_shared_barrier(nodes->shared, &span->local);
  if (span->local.index == 0) {
    const tws_shared_group leaders = {group->id, span->nodes, span->mine, span->leaders};
    tws_shared_waits(nodes->shared, 1);
    code = tws_messages_collective(nodes->messages, &leaders, TWS_COLLECTIVE_BARRIER, 0, &nothing, err);
    tws_shared_waits(nodes->shared, 0);
  }
  if (code == TWS_OK) tws_shared_barrier(nodes->shared, &span->local);
  return code;
}
