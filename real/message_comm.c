#include "real/message_comm.h"
#include <string.h>
#include "base/memory.h"
#include "models/collective.h"
#include "real/mpi_wait.h"

/* PIECE: number of elements that a member sums at a time; PART: maximum bytes of a message, far below the limit of
 * MPI's int counts; LARGE: where ranks sleep while they wait, messages above this size are sent only when both sides
 * are ready. */
enum { PIECE = 1 << 16, PART = 1 << 28, LARGE = 1 << 16, TAG_MESSAGE = 1, TAG_READY = 2, TAG_GROUP = 3, TAGS = 16384 };

struct tws_messages {
  MPI_Comm world;
  int busy;              /* ranks sleep while they wait: there are more threads than cores */
  MPI_Request *requests; /* [2 x world] */
  const void **from;     /* [world] addresses of the summands */
  unsigned char *scratch;
  size_t scratch_bytes;
};

/* One collective on one segment. */
typedef struct call {
  tws_messages *m;
  const tws_shared_group *group;
  int near_first, near_last; /* range of members with which this rank exchanges no data here */
  tws_dtype dtype;
  int tag;
  uint64_t size; /* bytes of an element */
} call;

tws_code tws_messages_create(MPI_Comm world, int world_size, int busy, tws_messages **out, tws_error *err) {
  tws_messages *m = tws_calloc(1, sizeof *m);
  if (m) {
    m->world = world;
    m->busy = busy;
    m->requests = tws_calloc((size_t)world_size, 2 * sizeof(MPI_Request));
    m->from = tws_calloc((size_t)world_size, sizeof *m->from);
  }
  *out = m;
  if (m && m->requests && m->from) return TWS_OK;
  tws_messages_destroy(m);
  *out = NULL;
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

void tws_messages_destroy(tws_messages *m) {
  if (!m) return;
  tws_free(m->requests);
  tws_free(m->from);
  tws_free(m->scratch);
  tws_free(m);
}

tws_code tws_messages_check(int code, const char *what, tws_error *err) {
  if (code == MPI_SUCCESS) return TWS_OK;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return tws_fail(err, TWS_RANK, "another rank may have failed: see its message", "MPI %s: %s", what, text);
}

static tws_code need_scratch(tws_messages *m, size_t bytes, tws_error *err) {
  if (m->scratch_bytes >= bytes) return TWS_OK;
  unsigned char *larger = tws_realloc(m->scratch, bytes, 1);
  if (!larger) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a communication buffer of %zu bytes", bytes);
  m->scratch = larger;
  m->scratch_bytes = bytes;
  return TWS_OK;
}

/* Exchanges an empty message with `target` and `source`, so that all three wait at the same time. A large message is
 * transferred in many parts, each in a call of MPI, so both sides must poll without sleeping until it has arrived;
 * after this exchange they poll only when the message can be sent. Returns MPI's code. */
static int meet_peers(const tws_messages *m, int target, int source) {
  const int peers[] = {target, source};
  MPI_Request requests[4];
  int code = MPI_SUCCESS, count = 0;
  for (int i = 0; i < 2 && code == MPI_SUCCESS; i++, count += 2) {
    code = MPI_Irecv(NULL, 0, MPI_BYTE, peers[i], TAG_READY, m->world, &requests[count]);
    if (code == MPI_SUCCESS) code = MPI_Isend(NULL, 0, MPI_BYTE, peers[i], TAG_READY, m->world, &requests[count + 1]);
  }
  return code == MPI_SUCCESS ? tws_mpi_wait(requests, count) : code;
}

/* Sends a message to `target` and receives one from `source` concurrently. Either is MPI_PROC_NULL if there is none. */
static tws_code transfer(const tws_messages *m, int tag, int target, const void *out, int out_bytes, int source,
                         void *in, int in_bytes, tws_error *err) {
  const int large_out = m->busy && out_bytes > LARGE, large_in = m->busy && in_bytes > LARGE;
  MPI_Request requests[2];
  int code = MPI_Irecv(in, in_bytes, MPI_BYTE, source, tag, m->world, &requests[0]);
  if (code == MPI_SUCCESS) code = MPI_Isend(out, out_bytes, MPI_BYTE, target, tag, m->world, &requests[1]);
  if (code == MPI_SUCCESS && (large_out || large_in))
    code = meet_peers(m, large_out ? target : MPI_PROC_NULL, large_in ? source : MPI_PROC_NULL);
  if (code == MPI_SUCCESS)
    code =
        m->busy && !large_out && !large_in ? tws_mpi_wait(requests, 2) : MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  return tws_messages_check(code,
                            target == MPI_PROC_NULL   ? "receive"
                            : source == MPI_PROC_NULL ? "send"
                                                      : "exchange",
                            err);
}

static tws_code send_to(const tws_messages *m, int peer, int tag, const void *data, uint64_t bytes, tws_error *err) {
  const char *from = data;
  do {
    int part = bytes < PART ? (int)bytes : PART;
    TWS_TRY(transfer(m, tag, peer, from, part, MPI_PROC_NULL, NULL, 0, err));
    if (part > 0) from += part;
    bytes -= (uint64_t)part;
  } while (bytes > 0);
  return TWS_OK;
}

static tws_code receive_from(const tws_messages *m, int peer, int tag, void *data, uint64_t bytes, tws_error *err) {
  char *to = data;
  do {
    int part = bytes < PART ? (int)bytes : PART;
    TWS_TRY(transfer(m, tag, MPI_PROC_NULL, NULL, 0, peer, to, part, err));
    if (part > 0) to += part;
    bytes -= (uint64_t)part;
  } while (bytes > 0);
  return TWS_OK;
}

tws_code tws_messages_send(tws_messages *m, int peer, const void *data, uint64_t bytes, tws_error *err) {
  return send_to(m, peer, TAG_MESSAGE, data, bytes, err);
}

tws_code tws_messages_receive(tws_messages *m, int peer, void *data, uint64_t bytes, tws_error *err) {
  return receive_from(m, peer, TAG_MESSAGE, data, bytes, err);
}

/* Sends data to one member and receives from another concurrently, both of any length, in as many messages as
 * needed. */
static tws_code exchange_parts(const call *c, int to, const char *out, uint64_t out_bytes, int from, char *in,
                               uint64_t in_bytes, tws_error *err) {
  while (out_bytes > 0 || in_bytes > 0) {
    const int o = out_bytes < PART ? (int)out_bytes : PART, i = in_bytes < PART ? (int)in_bytes : PART;
    const int target = o ? c->group->ranks[to] : MPI_PROC_NULL, source = i ? c->group->ranks[from] : MPI_PROC_NULL;
    TWS_TRY(transfer(c->m, c->tag, target, out, o, source, in, i, err));
    if (o > 0) out += o; /* without data there is no memory, so NULL must not be advanced */
    if (i > 0) in += i;
    out_bytes -= (uint64_t)o;
    in_bytes -= (uint64_t)i;
  }
  return TWS_OK;
}

/* Enters a dissemination barrier: after round i each member has received a message, directly or indirectly, from 2^i
 * members. */
static tws_code enter_barrier(const call *c, tws_error *err) {
  int n = c->group->size, me = c->group->index;
  char out = 0, in = 0;
  for (int step = 1; step < n; step <<= 1)
    TWS_TRY(exchange_parts(c, (me + step) % n, &out, 1, (me - step + n) % n, &in, 1, err));
  return TWS_OK;
}

/* Sums one share: member m gets `lengths(m)` elements from data + m * stride; this member receives its share from all
 * others and stores the sum in `out`. At most PIECE elements per member. */
static tws_code sum_shards(const call *c, const char *data, uint64_t stride, uint64_t total, uint64_t shard, void *out,
                           tws_error *err) {
  tws_messages *m = c->m;
  int n = c->group->size, me = c->group->index, pending = 0;
  uint64_t mine = (uint64_t)me * shard < total ? total - (uint64_t)me * shard : 0;
  if (mine > shard) mine = shard;
  const int large = m->busy && shard * c->size > LARGE; /* the same on all members */
  TWS_TRY(need_scratch(m, (size_t)n * PIECE * c->size, err));
  if (large) TWS_TRY(enter_barrier(c, err));
  for (int p = 0; p < n; p++) {
    m->from[p] = p == me ? data + (uint64_t)me * stride : (char *)m->scratch + (size_t)p * PIECE * c->size;
    if (p != me && mine > 0)
      TWS_TRY(tws_messages_check(MPI_Irecv(m->scratch + (size_t)p * PIECE * c->size, (int)(mine * c->size), MPI_BYTE,
                                           c->group->ranks[p], c->tag, m->world, &m->requests[pending++]),
                                 "receive", err));
  }
  for (int p = 0; p < n; p++) {
    uint64_t theirs = (uint64_t)p * shard < total ? total - (uint64_t)p * shard : 0;
    if (theirs > shard) theirs = shard;
    if (p != me && theirs > 0)
      TWS_TRY(tws_messages_check(MPI_Isend(data + (uint64_t)p * stride, (int)(theirs * c->size), MPI_BYTE,
                                           c->group->ranks[p], c->tag, m->world, &m->requests[pending++]),
                                 "send", err));
  }
  const int code =
      m->busy && !large ? tws_mpi_wait(m->requests, pending) : MPI_Waitall(pending, m->requests, MPI_STATUSES_IGNORE);
  TWS_TRY(tws_messages_check(code, "wait", err));
  if (mine > 0) tws_ordered_sum(c->dtype, m->from, n, &(void *){out}, 1, mine);
  return TWS_OK;
}

static tws_code reduce_scatter(const call *c, const tws_comm_segment *s, tws_error *err) {
  uint64_t n = (uint64_t)c->group->size;
  for (uint64_t first = 0; first < s->count; first += PIECE) {
    uint64_t length = s->count - first < PIECE ? s->count - first : PIECE;
    TWS_TRY(sum_shards(c, (const char *)s->send + first * c->size, s->count * c->size, n * length, length,
                       (char *)s->receive + first * c->size, err));
  }
  return TWS_OK;
}

/* Works in blocks of size x PIECE elements: every member sums its share of the block into `result` (a range of the
 * receive buffer), then the shares are sent to all members, or to the root. */
static tws_code all_reduce(const call *c, const tws_comm_segment *s, int root, tws_error *err) {
  int n = c->group->size, me = c->group->index;
  for (uint64_t first = 0; first < s->count; first += (uint64_t)n * PIECE) {
    uint64_t left = s->count - first, total = left < (uint64_t)n * PIECE ? left : (uint64_t)n * PIECE;
    uint64_t shard = (total + (uint64_t)n - 1) / (uint64_t)n;
    const char *data = (const char *)s->send + first * c->size;
    char *result = (char *)s->receive + first * c->size;
    TWS_TRY(need_scratch(c->m, ((size_t)n + 1) * PIECE * c->size, err));
    char *sum = (char *)c->m->scratch + (size_t)n * PIECE * c->size;
    TWS_TRY(sum_shards(c, data, shard * c->size, total, shard, sum, err));
    for (int i = 0; i < n; i++) {
      int to = (me + i) % n, from = (me - i + n) % n;
      uint64_t mine = (uint64_t)me * shard < total ? total - (uint64_t)me * shard : 0;
      uint64_t theirs = (uint64_t)from * shard < total ? total - (uint64_t)from * shard : 0;
      if (mine > shard) mine = shard;
      if (theirs > shard) theirs = shard;
      if (root >= 0 && to != root) mine = 0;
      if (root >= 0 && me != root) theirs = 0;
      if (i > 0)
        TWS_TRY(exchange_parts(c, to, sum, mine * c->size, from, result + (uint64_t)from * shard * c->size,
                               theirs * c->size, err));
      else if (mine > 0)
        memcpy(result + (uint64_t)me * shard * c->size, sum, mine * c->size);
    }
  }
  return TWS_OK;
}

/* Exchanges data in pairwise rounds: in round i a member sends to the i-th after it and receives from the i-th before
 * it, if the collective has data between these two. */
static tws_code exchange_pairs(const call *c, const tws_collective_row *row, const tws_comm_segment *s, int root,
                               tws_error *err) {
  const int n = c->group->size, me = c->group->index;
  const uint64_t bytes = s->count * c->size;
  for (int i = 0; i < n; i++) {
    const int to = (me + i) % n, from = (me - i + n) % n;
    const char *out = s->send;
    char *in = s->receive;
    uint64_t sent = s->counts ? (uint64_t)s->counts[to] * c->size : bytes;
    uint64_t received = s->counts ? (uint64_t)s->counts[n + from] * c->size : bytes;
    if (!tws_collective_moves(row, n, me, to, root)) sent = 0;
    if (!tws_collective_moves(row, n, from, me, root)) received = 0;
    if (to >= c->near_first && to < c->near_last) sent = 0;
    if (from >= c->near_first && from < c->near_last) received = 0;
    if (row->sends_parts && sent) out += (uint64_t)to * bytes;
    if (row->receives_parts && received) in += (uint64_t)from * bytes;
    if (i > 0)
      TWS_TRY(exchange_parts(c, to, out, sent, from, in, received, err));
    else if (out != in && received > 0)
      memcpy(in, out, received);
  }
  return TWS_OK;
}

/* Broadcasts along a binomial tree over the members, numbered from the root. */
static tws_code broadcast_tree(const call *c, const tws_comm_segment *s, int root, tws_error *err) {
  int n = c->group->size, place = (c->group->index - root + n) % n;
  uint64_t bytes = s->count * c->size;
  const int *ranks = c->group->ranks;
  if (place == 0 && s->send != s->receive) memcpy(s->receive, s->send, bytes);
  int bit = 1;
  while (bit < n && !(place & bit)) bit <<= 1;
  if (place != 0) TWS_TRY(receive_from(c->m, ranks[(place - bit + root) % n], c->tag, s->receive, bytes, err));
  for (bit >>= 1; bit > 0; bit >>= 1)
    if (place + bit < n) TWS_TRY(send_to(c->m, ranks[(place + bit + root) % n], c->tag, s->receive, bytes, err));
  return TWS_OK;
}

int tws_messages_tag(const tws_shared_group *group) {
  return TAG_GROUP + (int)(group->id % TAGS);
}

static call make_call(tws_messages *m, const tws_shared_group *group, tws_dtype dtype) {
  return (call){.m = m, .group = group, .dtype = dtype, .tag = tws_messages_tag(group), .size = tws_dtype_bytes(dtype)};
}

tws_code tws_messages_collective(tws_messages *messages, const tws_shared_group *group, tws_collective collective,
                                 int root, const tws_comm_segment *s, tws_error *err) {
  const call c = make_call(messages, group, s->dtype);
  const tws_collective_row *row = tws_collective_of(collective);
  if (row->reduces) {
    if (row->sends_parts) return reduce_scatter(&c, s, err);
    return all_reduce(&c, s, row->root == TWS_ROOT_NONE ? -1 : root, err);
  }
  if (row->pattern == TWS_PATTERN_SIGNAL) return enter_barrier(&c, err);
  if (row->pattern == TWS_PATTERN_CHAIN) return broadcast_tree(&c, s, root, err);
  return exchange_pairs(&c, row, s, root, err);
}

tws_code tws_messages_far_pairs(tws_messages *messages, const tws_shared_group *group, int near_first, int near_last,
                                tws_collective collective, int root, const tws_comm_segment *s, tws_error *err) {
  call c = make_call(messages, group, s->dtype);
  c.near_first = near_first;
  c.near_last = near_last;
  return exchange_pairs(&c, tws_collective_of(collective), s, root, err);
}
