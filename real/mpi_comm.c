#include "real/mpi_comm.h"
#include <inttypes.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "base/system.h"
#include "models/collective.h"
#include "real/mpi_wait.h"
#include "real/node_comm.h"

struct tws_comm {
  MPI_Comm world;
  int rank, world_size;
  tws_shared_group everyone; /* the group of all ranks, with id 0 */
  tws_shared_group *groups;  /* [group of the plan] */
  uint32_t group_count;
  int *ranks;         /* memory of the groups' lists of ranks */
  MPI_Comm node;      /* communicator of the ranks that share memory with this one */
  int *node_of;       /* [rank of the world] number of its node, which is the lowest rank there */
  tws_span *spans;    /* [group of the plan] distribution over nodes; the last one is that of `everyone` */
  tws_nodes *nodes;   /* NULL: all ranks are on one node */
  tws_shared *shared; /* NULL: only messages are used */
  tws_messages *messages;
  atomic_int waits; /* 1: this rank waits for messages */
  double sent;      /* bytes that this rank has sent in collectives and messages of plans */
};

/* Returns 1 if MPI is initialized and not finalized, according to MPI itself. */
static int mpi_is_on(void) {
  int on = 0, off = 0;
  MPI_Initialized(&on);
  MPI_Finalized(&off);
  return on && !off;
}

static int started_by_launcher(void) {
  static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
    if (getenv(signs[i])) return 1;
  return 0;
}

tws_code tws_mpi_start(int *argc, char ***argv, int *rank, int *world, tws_error *err) {
  *rank = 0;
  *world = 1;
  if (!mpi_is_on()) {
    if (!started_by_launcher()) return TWS_OK;
    int provided = 0;
    tws_mpi_skips_devices();
    const int started = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) == MPI_SUCCESS;
    tws_mpi_skipped_devices();
    if (!started)
      return tws_fail(err, TWS_ENVIRONMENT, "is openmpi-bin installed, and does `mpirun -n 2 hostname` work?",
                      "MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, world);
  return TWS_OK;
}

void tws_mpi_stop(void) {
  if (!mpi_is_on()) return;
  tws_mpi_meet(MPI_COMM_WORLD);
  MPI_Finalize();
}

static MPI_Comm communicator_of(const void *ranks) {
  return ranks ? *(const MPI_Comm *)ranks : MPI_COMM_WORLD;
}

int tws_mpi_rank(const void *ranks) {
  int rank = 0;
  if (mpi_is_on()) MPI_Comm_rank(communicator_of(ranks), &rank);
  return rank;
}

int tws_mpi_world(const void *ranks) {
  int world = 1;
  if (mpi_is_on()) MPI_Comm_size(communicator_of(ranks), &world);
  return world;
}

tws_code tws_mpi_duplicate(const void *ranks, void **copy, tws_error *err) {
  *copy = NULL;
  if (!mpi_is_on()) return TWS_OK;
  MPI_Comm *made = tws_calloc(1, sizeof *made);
  if (!made) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_mpi_meet(communicator_of(ranks));
  if (MPI_Comm_dup(communicator_of(ranks), made) != MPI_SUCCESS) {
    tws_free(made);
    return tws_fail(err, TWS_RANK, NULL, "MPI does not duplicate the communicator");
  }
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  *copy = made;
  return TWS_OK;
}

void tws_mpi_free(void *copy) {
  if (copy && mpi_is_on()) MPI_Comm_free(copy);
  tws_free(copy);
}

const char *tws_mpi_description(void) {
#ifdef OMPI_MAJOR_VERSION
#define TWS_TEXT_(x) #x
#define TWS_TEXT(x) TWS_TEXT_(x)
  return "Open MPI " TWS_TEXT(OMPI_MAJOR_VERSION) "." TWS_TEXT(OMPI_MINOR_VERSION) "." TWS_TEXT(OMPI_RELEASE_VERSION);
#else
  return "MPI";
#endif
}

/* ---- groups ---- */

/* Compares lists of ranks, each preceded by its length, in the form in which ranks exchange them. */
static int compare_lists(const void *left, const void *right) {
  const int *a = *(const int *const *)left, *b = *(const int *const *)right;
  for (int i = 0; i <= a[0] && i <= b[0]; i++)
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

/* Numbers the distinct groups of the whole world in the same order on every rank: a group's id is its position + 1 (0:
 * all ranks). */
static tws_code number_groups(tws_comm *comm, const int *lists, int integers, tws_error *err) {
  int *lengths = tws_calloc((size_t)comm->world_size, 2 * sizeof *lengths), *all = NULL, total = 0, count = 0;
  const int **sorted = NULL;
  tws_code code = TWS_MEMORY;
  if (lengths) {
    int *starts = lengths + comm->world_size;
    if (comm->world_size > 1)
      tws_mpi_allgather(&integers, lengths, 1, MPI_INT, comm->world);
    else
      lengths[0] = integers;
    for (int r = 0; r < comm->world_size; r++) {
      starts[r] = total;
      total += lengths[r];
    }
    all = tws_calloc((size_t)total + 1, sizeof *all);
    sorted = tws_calloc((size_t)total + 1, sizeof *sorted);
    if (all && sorted) {
      if (comm->world_size > 1)
        MPI_Allgatherv(lists, integers, MPI_INT, all, lengths, starts, MPI_INT, comm->world);
      else if (integers > 0)
        memcpy(all, lists, (size_t)integers * sizeof *all);
      for (int i = 0; i < total; i += all[i] + 1) sorted[count++] = all + i;
      qsort(sorted, (size_t)count, sizeof *sorted, compare_lists);
      int distinct = 0;
      for (int i = 0; i < count; i++)
        if (i == 0 || compare_lists(&sorted[i], &sorted[i - 1]) != 0) sorted[distinct++] = sorted[i];
      count = distinct;
      code = TWS_OK;
    }
  }
  const int *list = lists;
  for (uint32_t g = 0; code == TWS_OK && g < comm->group_count; g++, list += *list + 1) {
    const int *const *found = bsearch(&list, sorted, (size_t)count, sizeof *sorted, compare_lists);
    comm->groups[g].id = (uint32_t)(found - (const int *const *)sorted) + 1;
  }
  comm->everyone.id = (uint32_t)count; /* holds the number of groups until the caller sets it to 0 */
  tws_free(lengths);
  tws_free(all);
  tws_free(sorted);
  return code == TWS_OK ? code : tws_fail(err, code, NULL, "out of memory");
}

static tws_code copy_groups(tws_comm *comm, const tws_group *groups, uint32_t group_count, tws_error *err) {
  size_t integers = 0;
  for (uint32_t g = 0; g < group_count; g++) integers += (size_t)groups[g].size + 1;
  comm->groups = tws_calloc((size_t)group_count + 1, sizeof *comm->groups);
  comm->ranks = tws_calloc(integers + (size_t)comm->world_size, sizeof *comm->ranks);
  if (!comm->groups || !comm->ranks) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  comm->group_count = group_count;
  int *to = comm->ranks;
  for (uint32_t g = 0; g < group_count; g++) {
    *to++ = groups[g].size;
    comm->groups[g] = (tws_shared_group){.size = groups[g].size, .index = groups[g].index, .ranks = to};
    for (int i = 0; i < groups[g].size; i++) *to++ = groups[g].ranks[i];
    if (groups[g].index < 0 || groups[g].index >= groups[g].size || groups[g].ranks[groups[g].index] != comm->rank)
      return tws_fail(err, TWS_INTERNAL, NULL, "group %u does not hold rank %d at its index", (unsigned)g, comm->rank);
  }
  comm->everyone = (tws_shared_group){.size = comm->world_size, .index = comm->rank, .ranks = to};
  for (int r = 0; r < comm->world_size; r++) *to++ = r;
  return number_groups(comm, comm->ranks, (int)integers, err);
}

/* ---- nodes ---- */

static tws_code find_nodes(tws_comm *comm, tws_transport transport, tws_error *err) {
  const int together = (int)transport;
  TWS_TRY(tws_messages_check(tws_mpi_meet(comm->world), "nodes", err));
  const int failed = together > 1
                         ? MPI_Comm_split(comm->world, comm->rank / together, comm->rank, &comm->node)
                         : MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm->node);
  TWS_TRY(tws_messages_check(failed, "nodes", err));
  int first = comm->rank;
  comm->node_of = tws_calloc((size_t)comm->world_size, sizeof *comm->node_of);
  if (!comm->node_of) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  TWS_TRY(tws_messages_check(tws_mpi_bcast(&first, 1, MPI_INT, comm->node), "nodes", err));
  return tws_messages_check(tws_mpi_allgather(&first, comm->node_of, 1, MPI_INT, comm->world), "nodes", err);
}

static tws_code make_spans(tws_comm *comm, tws_error *err) {
  int several = 0;
  comm->spans = tws_calloc((size_t)comm->group_count + 1, sizeof *comm->spans);
  if (!comm->spans) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t g = 0; g <= comm->group_count; g++)
    TWS_TRY(
        tws_span_make(g < comm->group_count ? &comm->groups[g] : &comm->everyone, comm->node_of, &comm->spans[g], err));
  for (int r = 1; r < comm->world_size; r++) several |= comm->node_of[r] != comm->node_of[0];
  return several ? tws_nodes_create(comm->world, comm->world_size, comm->shared, comm->messages, &comm->nodes, err)
                 : TWS_OK;
}

tws_code tws_comm_create(const void *ranks, const tws_group *groups, uint32_t group_count, tws_transport transport,
                         int busy, tws_comm **out, tws_error *err) {
  *out = NULL;
  tws_comm *comm = tws_calloc(1, sizeof *comm);
  if (!comm) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  comm->world = communicator_of(ranks);
  comm->node = MPI_COMM_NULL;
  comm->rank = tws_mpi_rank(ranks);
  comm->world_size = tws_mpi_world(ranks);
  tws_code code = copy_groups(comm, groups, group_count, err);
  uint32_t distinct = comm->everyone.id;
  comm->everyone.id = 0;
  if (code == TWS_OK && comm->world_size > 1) {
    int any = busy; /* both sides of a message wait in the same way */
    code = tws_messages_check(tws_mpi_allreduce(&busy, &any, MPI_INT, MPI_MAX, comm->world), "all-reduce", err);
    if (code == TWS_OK) code = tws_messages_create(comm->world, comm->world_size, any, &comm->messages, err);
    if (code == TWS_OK) code = find_nodes(comm, transport, err);
    if (code == TWS_OK && transport != TWS_TRANSPORT_MESSAGES)
      code = tws_shared_create(comm->world, comm->node, distinct + 1, busy, &comm->shared, err);
    if (code == TWS_OK && comm->shared) code = make_spans(comm, err);
  }
  if (code != TWS_OK) {
    tws_comm_destroy(comm);
    return code;
  }
  *out = comm;
  return TWS_OK;
}

void tws_comm_destroy(tws_comm *comm) {
  if (!comm) return;
  for (uint32_t g = 0; comm->spans && g <= comm->group_count; g++) tws_span_free(&comm->spans[g]);
  tws_free(comm->spans);
  tws_nodes_destroy(comm->nodes);
  tws_shared_destroy(comm->shared);
  tws_messages_destroy(comm->messages);
  if (comm->node != MPI_COMM_NULL && mpi_is_on()) MPI_Comm_free(&comm->node);
  tws_free(comm->node_of);
  tws_free(comm->groups);
  tws_free(comm->ranks);
  tws_free(comm);
}

/* ---- operations ---- */

/* Copies what a group of one rank sends to what it receives. */
static void copy_segments(const tws_comm_segment *segments, int count) {
  for (int i = 0; i < count; i++)
    if (segments[i].send != segments[i].receive)
      memmove(segments[i].receive, segments[i].send, segments[i].count * tws_dtype_bytes(segments[i].dtype));
}

/* Marks this rank as waiting for messages (`begins`), or as no longer waiting; a rank that waits does not compute.
 * Other ranks of the node and the watchdog read the mark. */
static void waits(tws_comm *comm, int begins) {
  atomic_store(&comm->waits, begins);
  if (comm->shared) tws_shared_waits(comm->shared, begins);
}

/* Checks counts that are known only at run time: those of the used slots of an all-to-all. */
static tws_code check_counts(const tws_shared_group *group, const tws_comm_segment *s, tws_error *err) {
  for (int i = 0; s->counts && i < 2 * group->size; i++)
    if (s->counts[i] < 0 || (uint64_t)s->counts[i] > s->count)
      return tws_fail(err, TWS_RANK, "raise the capacity that the plan was made for",
                      "%d elements are %s rank %d, and there is room for %" PRIu64, s->counts[i],
                      i < group->size ? "sent to" : "expected from", group->ranks[i % group->size], s->count);
  return TWS_OK;
}

/* Runs a collective. `index`: the plan's group, or the number of groups for the group of all ranks. */
static tws_code run_collective(tws_comm *comm, uint32_t index, tws_collective collective, int root,
                               const tws_comm_segment *segments, int count, tws_error *err) {
  static const tws_comm_segment nothing;
  const tws_shared_group *group = index < comm->group_count ? &comm->groups[index] : &comm->everyone;
  const tws_span *span = comm->shared ? &comm->spans[index] : NULL;
  for (int i = 0; i < count && tws_collective_of(collective)->reduces; i++)
    if (!tws_ordered_sum_supports(segments[i].dtype))
      return tws_fail(err, TWS_UNSUPPORTED, "use fp32, bf16 or fp16", "%s of %s is not supported on the host",
                      tws_collective_name(collective), tws_dtype_name(segments[i].dtype));
  if (root < 0 || root >= group->size)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s: root %d of a group of %d", tws_collective_name(collective), root,
                    group->size);
  if (group->size == 1) {
    copy_segments(segments, count);
    return TWS_OK;
  }
  if (collective == TWS_COLLECTIVE_BARRIER && span && span->nodes == 1) {
    tws_shared_barrier(comm->shared, group);
    return TWS_OK;
  }
  if (collective == TWS_COLLECTIVE_BARRIER && span && span->nodes > 1)
    return tws_nodes_barrier(comm->nodes, group, span, err);
  if (collective == TWS_COLLECTIVE_BARRIER)
    return tws_messages_collective(comm->messages, group, collective, 0, &nothing, err);
  for (int i = 0; i < count; i++) TWS_TRY(check_counts(group, &segments[i], err));
  if (span && span->nodes > 0 && tws_shared_covers(comm->shared, collective, group, root, segments, count)) {
    if (span->nodes > 1) return tws_nodes_collective(comm->nodes, group, span, collective, root, segments, count, err);
    tws_shared_collective(comm->shared, group, collective, root, segments, count);
    return TWS_OK;
  }
  tws_code code = TWS_OK;
  waits(comm, 1);
  for (int i = 0; code == TWS_OK && i < count; i++)
    code = tws_messages_collective(comm->messages, group, collective, root, &segments[i], err);
  waits(comm, 0);
  return code;
}

/* Counts the bytes that this rank sends in a collective, by the segments that it was given. */
static void count_sent(tws_comm *comm, const tws_shared_group *group, tws_collective collective, int root,
                       const tws_comm_segment *segments, int count) {
  const tws_collective_row *row = tws_collective_of(collective);
  for (int i = 0; i < count; i++) {
    const tws_comm_segment *s = &segments[i];
    const double element = (double)tws_dtype_bytes(s->dtype);
    const int parts = row->sends_parts || row->receives_parts ? group->size : 1;
    for (int to = 0; s->counts && to < group->size; to++)
      if (to != group->index) comm->sent += (double)s->counts[to] * element;
    if (!s->counts)
      comm->sent +=
          tws_collective_sent_bytes(collective, group->size, group->index, root, (double)s->count * element * parts);
  }
}

double tws_comm_sent_bytes(const tws_comm *comm) {
  return comm->sent;
}

static tws_code comm_collective(tws_comm *comm, int group, tws_collective collective, int root,
                                const tws_comm_segment *segments, int count, tws_error *err) {
  if (group < 0 || (uint32_t)group >= comm->group_count)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s: no group %d", tws_collective_name(collective), group);
  count_sent(comm, &comm->groups[group], collective, root, segments, count);
  return run_collective(comm, (uint32_t)group, collective, root, segments, count, err);
}

static tws_code check_peer(const tws_comm *comm, int peer, tws_error *err) {
  if (peer < 0 || peer >= comm->world_size || peer == comm->rank)
    return tws_fail(err, TWS_INTERNAL, NULL, "no message between rank %d and rank %d of %d", comm->rank, peer,
                    comm->world_size);
  return TWS_OK;
}

static tws_code comm_send(tws_comm *comm, int peer, const void *data, uint64_t bytes, tws_error *err) {
  TWS_TRY(check_peer(comm, peer, err));
  comm->sent += (double)bytes;
  waits(comm, 1);
  tws_code code = tws_messages_send(comm->messages, peer, data, bytes, err);
  waits(comm, 0);
  return code;
}

static tws_code comm_receive(tws_comm *comm, int peer, void *data, uint64_t bytes, tws_error *err) {
  TWS_TRY(check_peer(comm, peer, err));
  waits(comm, 1);
  tws_code code = tws_messages_receive(comm->messages, peer, data, bytes, err);
  waits(comm, 0);
  return code;
}

tws_code tws_comm_allocate(tws_comm *comm, uint64_t bytes, void **base, tws_error *err) {
  *base = NULL;
  return comm->shared ? tws_shared_allocate(comm->shared, bytes, base, err) : TWS_OK;
}

const tws_comm_ops *tws_mpi_comm_ops(void) {
  static const tws_comm_ops ops = {.name = "mpi",
                                   .collective = comm_collective,
                                   .send = comm_send,
                                   .receive = comm_receive,
                                   .allocate = tws_comm_allocate};
  return &ops;
}

int tws_comm_is_shared(const tws_comm *comm) {
  return comm->shared != NULL;
}

int tws_comm_missing(const tws_comm *comm) {
  return comm->shared ? tws_shared_missing(comm->shared) : -1;
}

int tws_comm_waits(const tws_comm *comm) {
  return atomic_load(&comm->waits) || (comm->shared && tws_shared_is_waiting(comm->shared));
}

/* ---- helpers outside plans ---- */

tws_code tws_comm_barrier(tws_comm *comm, tws_error *err) {
  return run_collective(comm, comm->group_count, TWS_COLLECTIVE_BARRIER, 0, NULL, 0, err);
}

tws_code tws_comm_max(tws_comm *comm, double *value, tws_error *err) {
  if (comm->world_size == 1) return TWS_OK;
  waits(comm, 1);
  const int failed = tws_mpi_allreduce(MPI_IN_PLACE, value, MPI_DOUBLE, MPI_MAX, comm->world) != MPI_SUCCESS;
  waits(comm, 0);
  return failed ? tws_fail(err, TWS_RANK, NULL, "MPI all-reduce failed") : TWS_OK;
}

tws_code tws_mpi_broadcast(const void *ranks, void **data, uint64_t *bytes, tws_error *err) {
  const uint64_t most = UINT64_C(1) << 28;
  if (tws_mpi_world(ranks) == 1) return TWS_OK;
  int failed = tws_mpi_bcast(bytes, 1, MPI_UINT64_T, communicator_of(ranks)) != MPI_SUCCESS;
  if (tws_mpi_rank(ranks) != 0) *data = tws_calloc((size_t)*bytes + 1, 1);
  if (!*data) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint64_t done = 0; done < *bytes && !failed; done += most) {
    const uint64_t n = *bytes - done < most ? *bytes - done : most;
    failed = MPI_Bcast((char *)*data + done, (int)n, MPI_BYTE, 0, communicator_of(ranks)) != MPI_SUCCESS;
  }
  return failed ? tws_fail(err, TWS_RANK, NULL, "MPI broadcast failed") : TWS_OK;
}

static tws_code gather(tws_comm *comm, const void *data, uint64_t bytes, unsigned char **all, uint64_t **offset,
                       tws_error *err) {
  int world = comm->world_size, root = comm->rank == 0;
  *all = NULL;
  *offset = NULL;
  uint64_t *sizes = root ? tws_calloc((size_t)world + 1, sizeof *sizes) : NULL;
  if (root && !sizes) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (world > 1)
    tws_mpi_gather(&bytes, sizes, 1, MPI_UINT64_T, comm->world);
  else
    sizes[0] = bytes;
  if (!root) return bytes ? tws_messages_send(comm->messages, 0, data, bytes, err) : TWS_OK;
  uint64_t total = 0;
  for (int r = 0; r <= world; r++) {
    uint64_t size = r < world ? sizes[r] : 0;
    sizes[r] = total;
    total += size;
  }
  unsigned char *buffer = tws_calloc(total + 1, 1);
  tws_code code = buffer ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && bytes > 0) memcpy(buffer, data, bytes);
  for (int r = 1; code == TWS_OK && r < world; r++)
    if (sizes[r + 1] > sizes[r])
      code = tws_messages_receive(comm->messages, r, buffer + sizes[r], sizes[r + 1] - sizes[r], err);
  if (code != TWS_OK) {
    tws_free(buffer);
    tws_free(sizes);
    return code;
  }
  *all = buffer;
  *offset = sizes;
  return TWS_OK;
}

tws_code tws_comm_gather(tws_comm *comm, const void *data, uint64_t bytes, unsigned char **all, uint64_t **offset,
                         tws_error *err) {
  waits(comm, 1);
  const tws_code code = gather(comm, data, bytes, all, offset, err);
  waits(comm, 0);
  return code;
}
