/* Collectives and messages among GPUs by NCCL. The world's communicator is bootstrapped through the caller's broadcast,
 * each group of the plan is split from it, in rank 0's order of groups. Calls never block in the library: every state
 * is polled with a deadline, and the error names the group and the collective. Sums are NCCL's: in its order, bfloat16
 * rounded at each step of the ring or tree; they repeat bit by bit on the same machines.
 *
 * Kernels of NCCL wait on their multiprocessors for the other ranks. The plan's channels (plan/plan.h) serialize, by
 * dependencies, those that ranks could start in different orders; different channels run concurrently: at most 3 such
 * kernels of at most 32 blocks, which fit an A100's 108 multiprocessors together, so that none waits for another's
 * resources. Nothing can deadlock: the whole plan could run one operation after another in its order (the verifier
 * tries that), and streams only remove some of the waiting.
 *
 * Messages between pipeline stages are rendezvous: a send ends when it is received. They run on one stream of one
 * communicator, and so in the order of the plan. Communicators share no buffers: NCCL would serialize those that do. */
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/memory.h"
#include "models/collective.h"
#include "real/cuda/internal.h"
#include "real/cuda/module.h"

enum { MOST_GROUPS = 16, SPINS = 2000 };

#define SYMMETRIC "TWINSPEED_NCCL_SYMMETRIC"
#define COPY_ENGINES "TWINSPEED_NCCL_COPY_ENGINES"

typedef struct nccl_group {
  ncclComm_t comm; /* NULL: the group has one rank, and collectives are copies */
  tws_axes axes;
  int size, index;
  int *ranks;   /* ranks of the world */
  int borrowed; /* 1: it is the world's communicator */
} nccl_group;

typedef struct registered {
  void *base, *handle; /* handle: of ncclCommRegister(), or the window */
  ncclComm_t comm;
} registered;

struct tws_comm {
  tws_backend *backend;
  ncclComm_t world, child; /* child: the communicator that is being split off */
  int rank, world_size;
  nccl_group *groups;
  uint32_t group_count;
  uint32_t order[MOST_GROUPS]; /* indices of this rank's groups in rank 0's order, which is that of collective calls */
  uint32_t ordered;
  const nccl_group *messages; /* the group whose members exchange messages; NULL: the world */
  double deadline_s;
  void *token;            /* device memory for barriers */
  int symmetric;          /* 1: arenas are symmetric windows of every communicator */
  registered *registered; /* memory of arenas that is registered with each communicator */
  size_t registered_count, registered_capacity;
};

/* ---- polling ---- */

static tws_code failed(const tws_comm *comm, ncclResult_t result, const char *what, tws_error *err) {
  ncclComm_t source = comm->world;
  return tws_fail(err, TWS_RANK, "NCCL_DEBUG=WARN says more", "NCCL: rank %d: %s: %s: %.300s", comm->rank, what,
                  ncclGetErrorString(result), source ? ncclGetLastError(source) : "");
}

/* Waits until the communicator is no longer in progress; this takes microseconds, except during the first
 * initialization. */
static tws_code settle(const tws_comm *comm, ncclComm_t c, const char *what, tws_error *err) {
  const double end = tws_clock_s() + comm->deadline_s;
  int looks = 0;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(c, &state);
    if (result == ncclSuccess) result = state;
    if (result == ncclSuccess) return TWS_OK;
    if (result != ncclInProgress) return failed(comm, result, what, err);
    if (tws_clock_s() > end)
      return tws_fail(err, TWS_HANG, "is every rank alive? NCCL_DEBUG=INFO shows which connection waits",
                      "NCCL: rank %d: %s: no progress for %g seconds", comm->rank, what, comm->deadline_s);
    if (++looks < SPINS)
      sched_yield();
    else
      usleep(100);
  }
}
/* Waits after a call that may have returned "in progress". */
static tws_code settle_after(const tws_comm *comm, ncclComm_t c, ncclResult_t result, const char *what,
                             tws_error *err) {
  if (result != ncclSuccess && result != ncclInProgress) return failed(comm, result, what, err);
  return settle(comm, c, what, err);
}

/* ---- creation and destruction ---- */

static ncclConfig_t configuration(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = tws_cuda_env_is_set("TWINSPEED_NCCL_BLOCKING");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (tws_cuda_env_is_set(COPY_ENGINES)) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  return config;
}

static tws_code join_world(tws_comm *comm, const tws_cuda_comm_setup *setup, tws_error *err) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (comm->rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return failed(comm, result, "making an identifier", err);
  }
  TWS_TRY(setup->broadcast(setup->user, &id, sizeof id, err));
  ncclConfig_t config = configuration();
  const ncclResult_t result = ncclCommInitRankConfig(&comm->world, comm->world_size, id, comm->rank, &config);
  if (result != ncclSuccess && result != ncclInProgress) return failed(comm, result, "joining the world", err);
  return settle(comm, comm->world, "joining the world", err);
}

/* The groups that all ranks create, in rank 0's order. Along some axes, some ranks are in no group: only the first and
 * last stages of a pipeline have tied parameters. Rank 0 is the first rank of a group along every axis, so it has a
 * group of each axis. */
typedef struct group_list {
  int32_t count;
  struct {
    tws_axes axes;
    int32_t size;
  } group[MOST_GROUPS];
} group_list;

static tws_code agree(tws_comm *comm, const tws_cuda_comm_setup *setup, group_list *list, tws_error *err) {
  memset(list, 0, sizeof *list);
  if (setup->group_count > MOST_GROUPS)
    return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: %u groups", (unsigned)setup->group_count);
  if (comm->rank == 0) {
    list->count = (int32_t)setup->group_count;
    for (uint32_t i = 0; i < setup->group_count; i++) {
      list->group[i].axes = comm->groups[i].axes;
      list->group[i].size = comm->groups[i].size;
    }
  }
  return setup->broadcast(setup->user, list, sizeof *list, err);
}

/* Returns this rank's group along the axes of the list's entry `at`; if there are several along the same axes, the one
 * with the same index among them as in the list. */
static nccl_group *listed_group(tws_comm *comm, const group_list *list, int at) {
  int earlier = 0;
  for (int i = 0; i < at; i++) earlier += list->group[i].axes == list->group[at].axes;
  for (uint32_t i = 0; i < comm->group_count; i++)
    if (comm->groups[i].axes == list->group[at].axes && earlier-- == 0) return &comm->groups[i];
  return NULL;
}

static int is_world(const tws_comm *comm, const nccl_group *group) {
  for (int i = 0; i < group->size; i++)
    if (group->ranks[i] != i) return 0;
  return group->size == comm->world_size;
}

/* Splits a group from the world's communicator. Every rank calls this for every group of the list, with NULL if it is
 * in none. The group's first rank is passed as the split's color, because the groups of one axis are disjoint. */
static tws_code split(tws_comm *comm, nccl_group *group, tws_axes axes, tws_error *err) {
  char what[96];
  if (group && is_world(comm, group)) { /* all ranks make the same decision */
    group->comm = comm->world;
    group->borrowed = 1;
    return TWS_OK;
  }
  snprintf(what, sizeof what, "splitting group '%.40s'", tws_axes_name(axes));
  ncclConfig_t config = configuration();
  comm->child = NULL;
  const ncclResult_t result = ncclCommSplit(comm->world, group ? group->ranks[0] : NCCL_SPLIT_NOCOLOR,
                                            group ? group->index : 0, &comm->child, &config);
  TWS_TRY(settle_after(comm, comm->world, result, what, err));
  if (!group) return TWS_OK;
  group->comm = comm->child;
  return settle(comm, group->comm, what, err);
}

static tws_code split_all(tws_comm *comm, const group_list *list, tws_error *err) {
  uint32_t found = 0;
  for (int i = 0; i < list->count; i++) {
    nccl_group *group = listed_group(comm, list, i);
    if (group && group->size != list->group[i].size)
      return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: rank %d: group '%s' has %d ranks here, %d on rank 0", comm->rank,
                      tws_axes_name(group->axes), group->size, (int)list->group[i].size);
    if (group) found++, comm->order[comm->ordered++] = (uint32_t)(group - comm->groups);
    if (list->group[i].size > 1) TWS_TRY(split(comm, group, list->group[i].axes, err));
  }
  if (found == comm->group_count) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: rank %d has groups that rank 0 has not", comm->rank);
}

static tws_code copy_groups(tws_comm *comm, const tws_cuda_comm_setup *setup, tws_error *err) {
  comm->groups = tws_calloc(setup->group_count + 1u, sizeof *comm->groups);
  if (!comm->groups) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t i = 0; i < setup->group_count; i++) {
    const tws_group *from = &setup->groups[i];
    nccl_group *to = &comm->groups[i];
    comm->group_count = i + 1;
    to->size = from->size;
    to->index = from->index;
    to->axes = from->axes;
    to->ranks = tws_calloc((size_t)from->size + 1, sizeof *to->ranks);
    if (!to->ranks) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    memcpy(to->ranks, from->ranks, (size_t)from->size * sizeof *to->ranks);
    if (tws_channel_of_axes(from->axes) == TWS_CHANNEL_STAGES && to->size > 1) comm->messages = to;
  }
  return TWS_OK;
}

/* ---- memory that the library may read and write without copies of its own ---- */

/* Registers an arena as a symmetric window: ranks of a communicator access each other's memory at the same offset of
 * their windows. A collective call. */
static ncclResult_t register_window(ncclComm_t c, void *base, size_t bytes, void **handle) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  return ncclCommWindowRegister(c, base, bytes, (ncclWindow_t *)handle, NCCL_WIN_COLL_SYMMETRIC);
#else
  (void)c, (void)base, (void)bytes, (void)handle;
  return ncclInvalidUsage;
#endif
}

static ncclResult_t deregister(const tws_comm *comm, const registered *r) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  if (comm->symmetric) return ncclCommWindowDeregister(r->comm, (ncclWindow_t)r->handle);
#endif
  (void)comm;
  return ncclCommDeregister(r->comm, r->handle);
}

/* Fails unless this rank's arena has as many bytes as rank 0's, as symmetric windows require. */
static tws_code same_size(tws_comm *comm, size_t bytes, tws_error *err) {
  uint64_t mine = bytes, first = 0;
  cudaStream_t s = NULL;
  TWS_TRY(tws_cuda_stream(comm->backend, TWS_STREAM_COMPUTE, &s, err));
  cudaError_t status = cudaMemcpyAsync(comm->token, &mine, sizeof mine, cudaMemcpyHostToDevice, s);
  if (status == cudaSuccess) status = cudaStreamSynchronize(s);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "the size of an arena");
  const ncclResult_t result = ncclBroadcast(comm->token, comm->token, sizeof mine, ncclUint8, 0, comm->world, s);
  TWS_TRY(settle_after(comm, comm->world, result, "the size of an arena", err));
  TWS_TRY(tws_cuda_backend.synchronize(comm->backend, err));
  status = cudaMemcpyAsync(&first, comm->token, sizeof first, cudaMemcpyDeviceToHost, s);
  if (status == cudaSuccess) status = cudaStreamSynchronize(s);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "the size of an arena");
  if (first == mine) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "unset " SYMMETRIC " and " COPY_ENGINES,
                  "symmetric memory: rank %d has an arena of %llu bytes, rank 0 of %llu", comm->rank,
                  (unsigned long long)mine, (unsigned long long)first);
}

static tws_code register_memory(tws_comm *comm, ncclComm_t c, void *base, size_t bytes, tws_error *err) {
  if (tws_reserve(&comm->registered, &comm->registered_capacity, comm->registered_count + 1,
                  sizeof *comm->registered) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  registered *r = &comm->registered[comm->registered_count];
  *r = (registered){.base = base, .comm = c};
  const ncclResult_t result =
      comm->symmetric ? register_window(c, base, bytes, &r->handle) : ncclCommRegister(c, base, bytes, &r->handle);
  TWS_TRY(settle_after(comm, c, result, "registering an arena", err));
  comm->registered_count++;
  return TWS_OK;
}

static void give_back(void *user, void *base) {
  tws_comm *comm = user;
  for (size_t i = comm->registered_count; i-- > 0;) {
    const registered r = comm->registered[i];
    if (r.base != base) continue;
    settle_after(comm, r.comm, deregister(comm, &r), "an arena's end", NULL);
    comm->registered[i] = comm->registered[--comm->registered_count];
  }
  ncclMemFree(base);
}

/* Allocates an arena that can be registered, and registers it with every communicator: NCCL requires that either all
 * ranks pass registered buffers or none does. */
static tws_code take(void *user, size_t bytes, void **base, tws_error *err) {
  tws_comm *comm = user;
  *base = NULL;
  if (comm->symmetric) TWS_TRY(same_size(comm, bytes, err));
  const ncclResult_t result = ncclMemAlloc(base, bytes);
  if (result != ncclSuccess) return failed(comm, result, "memory of an arena", err);
  tws_code code = register_memory(comm, comm->world, *base, bytes, err);
  for (uint32_t i = 0; i < comm->ordered && code == TWS_OK; i++) {
    const nccl_group *group = &comm->groups[comm->order[i]];
    if (group->comm && !group->borrowed) code = register_memory(comm, group->comm, *base, bytes, err);
  }
  if (code == TWS_OK) return TWS_OK;
  give_back(comm, *base);
  *base = NULL;
  return code;
}

/* Called while the host waits for the device: returns an asynchronous error of a communicator. */
static tws_code look(void *user, tws_error *err) {
  const tws_comm *comm = user;
  for (uint32_t i = 0; i <= comm->group_count; i++) {
    const int world = i == comm->group_count;
    ncclComm_t c = world ? comm->world : comm->groups[i].comm;
    ncclResult_t state = ncclSuccess;
    if (!c || (!world && comm->groups[i].borrowed)) continue;
    ncclResult_t result = ncclCommGetAsyncError(c, &state);
    if (result == ncclSuccess) result = state;
    if (result == ncclSuccess || result == ncclInProgress) continue;
    char what[64];
    snprintf(what, sizeof what, "group '%s'", world ? "world" : tws_axes_name(comm->groups[i].axes));
    return failed(comm, result, what, err);
  }
  return TWS_OK;
}

/* Reads from the environment whether arenas are symmetric windows. Windows need plans that place every collective's
 * operands at the same offsets on all ranks; plans of different pipeline stages do not. */
static tws_code choose_memory(tws_comm *comm, tws_error *err) {
  const int engines = tws_cuda_env_is_set(COPY_ENGINES);
  comm->symmetric = engines || tws_cuda_env_is_set(SYMMETRIC);
  if (!comm->symmetric) return TWS_OK;
  if (NCCL_VERSION_CODE < (engines ? NCCL_VERSION(2, 28, 0) : NCCL_VERSION(2, 27, 0)))
    return tws_fail(err, TWS_UNSUPPORTED, "unset it, or build with NCCL 2.28 or later", "this build's NCCL has no %s",
                    engines ? "collectives by copy engines, for which " COPY_ENGINES " asks"
                            : "symmetric memory, for which " SYMMETRIC " asks");
  if (!comm->messages) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "unset it, or train without pipeline parallelism",
                  "%s needs equal plans on all ranks, and pipeline stages differ", engines ? COPY_ENGINES : SYMMETRIC);
}

static tws_code prepare(tws_comm *comm, const tws_cuda_comm_setup *setup, tws_error *err) {
  group_list list;
  TWS_TRY(copy_groups(comm, setup, err));
  TWS_TRY(choose_memory(comm, err));
  cudaError_t status = cudaMalloc(&comm->token, 256);
  if (status == cudaSuccess) status = cudaMemset(comm->token, 0, 256);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "setting up NCCL");
  if (comm->world_size == 1) return TWS_OK; /* a world of one rank needs no NCCL */
  TWS_TRY(join_world(comm, setup, err));
  TWS_TRY(agree(comm, setup, &list, err));
  TWS_TRY(split_all(comm, &list, err));
  tws_cuda_watch(comm->backend, look, comm);
  const tws_cuda_arena_allocator lender = {take, give_back, comm};
  if (comm->symmetric || tws_cuda_env_is_set("TWINSPEED_NCCL_REGISTER"))
    tws_cuda_set_arena_allocator(comm->backend, &lender);
  return TWS_OK;
}

/* Aborts communicators whose ranks may have failed. Only to be called before other code uses them. */
static void abort_all(tws_comm *comm) {
  for (uint32_t i = 0; i < comm->group_count; i++) {
    ncclComm_t c = comm->groups[i].comm;
    comm->groups[i].comm = NULL;
    if (c && !comm->groups[i].borrowed) ncclCommAbort(c);
  }
  if (comm->world) ncclCommAbort(comm->world);
  comm->world = NULL;
}

tws_code tws_nccl_create(const tws_cuda_comm_setup *setup, tws_comm **out, tws_error *err) {
  *out = NULL;
  tws_comm *comm = tws_calloc(1, sizeof *comm);
  if (!comm) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  comm->backend = setup->backend;
  comm->rank = setup->rank;
  comm->world_size = setup->world;
  comm->deadline_s = setup->deadline_s > 0 ? setup->deadline_s : 120;
  tws_code code = prepare(comm, setup, err);
  if (code != TWS_OK) {
    abort_all(comm);
    tws_nccl_destroy(comm);
    return code;
  }
  *out = comm;
  return TWS_OK;
}

static void close_communicator(const tws_comm *comm, ncclComm_t c) {
  const ncclResult_t result = ncclCommFinalize(c);
  if (settle_after(comm, c, result, "leaving", NULL) == TWS_OK)
    ncclCommDestroy(c);
  else
    ncclCommAbort(c);
}

void tws_nccl_destroy(tws_comm *comm) {
  if (!comm) return;
  tws_cuda_watch(comm->backend, NULL, NULL);
  tws_cuda_destroy_graph(comm->backend); /* closing a communicator waits for the graphs that use it */
  for (uint32_t i = 0; i < comm->group_count; i++) {
    if (comm->groups[i].comm && !comm->groups[i].borrowed) close_communicator(comm, comm->groups[i].comm);
    tws_free(comm->groups[i].ranks);
  }
  if (comm->world) close_communicator(comm, comm->world);
  tws_cuda_set_arena_allocator(comm->backend, NULL);
  tws_free(comm->registered);
  if (comm->token) cudaFree(comm->token);
  tws_free(comm->groups);
  tws_free(comm);
}

/* ---- starting work ---- */

static tws_code data_type(const tws_comm *comm, tws_dtype dtype, ncclDataType_t *out, tws_error *err) {
  switch (dtype) {
    case TWS_F32:
      *out = ncclFloat32;
      return TWS_OK;
    case TWS_BF16:
      *out = ncclBfloat16;
      return TWS_OK;
    case TWS_F16:
      *out = ncclFloat16;
      return TWS_OK;
    case TWS_F64:
      *out = ncclFloat64;
      return TWS_OK;
    case TWS_I32:
      *out = ncclInt32;
      return TWS_OK;
    case TWS_U8:
      *out = ncclUint8;
      return TWS_OK;
    default:
      break;
  }
  return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: rank %d: no such type, %d", comm->rank, (int)dtype);
}

/* Starts a message for every pair of ranks between which the collective transfers data. All pairs progress
 * concurrently. */
static ncclResult_t pairs(const nccl_group *group, const tws_collective_row *row, int root,
                          const tws_comm_segment *segment, ncclDataType_t type, cudaStream_t s) {
  ncclResult_t result = ncclGroupStart();
  const size_t part = segment->count * tws_dtype_bytes(segment->dtype);
  for (int peer = 0; result == ncclSuccess && peer < group->size; peer++) {
    const size_t sent_at = row->sends_parts ? (size_t)peer * part : 0,
                 received_at = row->receives_parts ? (size_t)peer * part : 0;
    if (tws_collective_moves(row, group->size, group->index, peer, root))
      result = ncclSend((const char *)segment->send + sent_at, segment->count, type, peer, group->comm, s);
    if (result == ncclSuccess && tws_collective_moves(row, group->size, peer, group->index, root))
      result = ncclRecv((char *)segment->receive + received_at, segment->count, type, peer, group->comm, s);
  }
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

static ncclResult_t start_segment(const tws_comm *comm, const nccl_group *group, tws_collective collective,
                                  ncclDataType_t type, int root, const tws_comm_segment *segment, cudaStream_t s) {
  switch (collective) {
    case TWS_COLLECTIVE_ALL_REDUCE:
      return ncclAllReduce(segment->send, segment->receive, segment->count, type, ncclSum, group->comm, s);
    case TWS_COLLECTIVE_REDUCE:
      return ncclReduce(segment->send, segment->receive, segment->count, type, ncclSum, root, group->comm, s);
    case TWS_COLLECTIVE_ALL_GATHER:
      return ncclAllGather(segment->send, segment->receive, segment->count, type, group->comm, s);
    case TWS_COLLECTIVE_REDUCE_SCATTER:
      return ncclReduceScatter(segment->send, segment->receive, segment->count, type, ncclSum, group->comm, s);
    case TWS_COLLECTIVE_BROADCAST:
      return ncclBroadcast(segment->send, segment->receive, segment->count, type, root, group->comm, s);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    case TWS_COLLECTIVE_ALL_TO_ALL:
      return ncclAlltoAll(segment->send, segment->receive, segment->count, type, group->comm, s);
#endif
    case TWS_COLLECTIVE_BARRIER:
      return ncclAllReduce(comm->token, comm->token, 1, ncclInt32, ncclSum, group->comm, s);
    default:
      break;
  }
  const tws_collective_row *row = tws_collective_of(collective);
  return row->pattern == TWS_PATTERN_PAIRS ? pairs(group, row, root, segment, type, s) : ncclInvalidArgument;
}

/* Copies what a group of one rank sends to what it receives. */
static tws_code copy_segments(const tws_comm_segment *segments, int count, cudaStream_t s, tws_error *err) {
  for (int i = 0; i < count; i++) {
    if (segments[i].send == segments[i].receive || segments[i].count == 0) continue;
    const size_t bytes = segments[i].count * tws_dtype_bytes(segments[i].dtype);
    const cudaError_t status =
        cudaMemcpyAsync(segments[i].receive, segments[i].send, bytes, cudaMemcpyDeviceToDevice, s);
    if (status != cudaSuccess) return tws_cuda_fail(err, status, "a collective of one rank");
  }
  return TWS_OK;
}

static tws_code start_collective(tws_comm *comm, int group, tws_collective collective, int root,
                                 const tws_comm_segment *segments, int count, tws_stream stream, tws_error *err) {
  static const tws_comm_segment nothing = {.dtype = TWS_U8};
  ncclDataType_t type = ncclUint8;
  cudaStream_t s = NULL;
  char what[96];
  if (group < 0 || (uint32_t)group >= comm->group_count)
    return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: no group %d", group);
  const nccl_group *g = &comm->groups[group];
  TWS_TRY(tws_cuda_stream(comm->backend, (int)stream, &s, err));
  if (g->size == 1) return copy_segments(segments, count, s, err);
  if (!g->comm) return tws_fail(err, TWS_RANK, NULL, "NCCL: rank %d: the communicator was aborted", comm->rank);
  if (collective == TWS_COLLECTIVE_BARRIER) segments = &nothing, count = 1;
  /* errors must be found before ncclGroupStart() */
  for (int i = 0; i < count; i++) TWS_TRY(data_type(comm, segments[i].dtype, &type, err));
  snprintf(what, sizeof what, "%s of group '%s'", tws_collective_name(collective), tws_axes_name(g->axes));
  ncclResult_t result = ncclGroupStart();
  for (int i = 0; result == ncclSuccess && i < count; i++) {
    TWS_TRY(data_type(comm, segments[i].dtype, &type, err));
    result = start_segment(comm, g, collective, type, root, &segments[i], s);
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) result = ended;
  return settle_after(comm, g->comm, result, what, err);
}

/* Returns the communicator for messages with a rank, and replaces *peer by the rank's number in it. */
static ncclComm_t for_messages(const tws_comm *comm, int *peer) {
  for (int i = 0; comm->messages && i < comm->messages->size; i++) {
    if (comm->messages->ranks[i] != *peer) continue;
    *peer = i;
    return comm->messages->comm;
  }
  return comm->world;
}

static tws_code start_message(tws_comm *comm, int peer, int receives, void *data, uint64_t bytes, tws_stream stream,
                              tws_error *err) {
  cudaStream_t s = NULL;
  char what[64];
  if (peer < 0 || peer >= comm->world_size) return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: no rank %d", peer);
  int number = peer;
  ncclComm_t c = for_messages(comm, &number);
  if (!c) return tws_fail(err, TWS_RANK, NULL, "NCCL: rank %d: the communicator was aborted", comm->rank);
  TWS_TRY(tws_cuda_stream(comm->backend, (int)stream, &s, err));
  snprintf(what, sizeof what, "%s rank %d", receives ? "receiving from" : "sending to", peer);
  const ncclResult_t result =
      receives ? ncclRecv(data, bytes, ncclUint8, number, c, s) : ncclSend(data, bytes, ncclUint8, number, c, s);
  return settle_after(comm, c, result, what, err);
}

/* ---- blocking variants of the operations above ---- */

static tws_code finish(tws_comm *comm, tws_error *err) {
  return tws_cuda_backend.synchronize(comm->backend, err);
}

static tws_code collective_now(tws_comm *comm, int group, tws_collective collective, int root,
                               const tws_comm_segment *segments, int count, tws_error *err) {
  TWS_TRY(start_collective(comm, group, collective, root, segments, count, TWS_STREAM_COMPUTE, err));
  return finish(comm, err);
}

static tws_code send_now(tws_comm *comm, int peer, const void *data, uint64_t bytes, tws_error *err) {
  void *from = (void *)(uintptr_t)data; /* the library only reads these data */
  TWS_TRY(start_message(comm, peer, 0, from, bytes, TWS_STREAM_COMPUTE, err));
  return finish(comm, err);
}

static tws_code receive_now(tws_comm *comm, int peer, void *data, uint64_t bytes, tws_error *err) {
  TWS_TRY(start_message(comm, peer, 1, data, bytes, TWS_STREAM_COMPUTE, err));
  return finish(comm, err);
}

const tws_comm_ops tws_nccl_ops = {.name = "nccl",
                                   .collective = collective_now,
                                   .send = send_now,
                                   .receive = receive_now,
                                   .start_collective = start_collective,
                                   .start_message = start_message};
