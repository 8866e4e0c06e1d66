/* Collectives among GPUs by NCCL. The world's communicator is bootstrapped through the caller's broadcast, each group
 * of the plan is split from it and shares its buffers. Calls never block in the library: every state is polled with a
 * deadline, and the error names the group and the collective. Sums are NCCL's: in its order, bfloat16 rounded at each
 * hop; they repeat bit by bit on the same machines. */
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/memory.h"
#include "real/cuda/internal.h"
#include "real/cuda/module.h"

typedef struct nccl_group {
  ncclComm_t comm; /* NULL: of one rank, collectives are copies */
  int size, index;
  int borrowed; /* the world's communicator */
} nccl_group;

struct tws_comm {
  tws_backend *backend;
  ncclComm_t world;
  int rank, world_size;
  nccl_group *groups;
  uint32_t group_count;
  double deadline_s;
  void *token;        /* device memory for barriers */
  cudaEvent_t latest; /* the last thing started: communicators must not run side by side in different orders */
  int latest_stream;  /* -1: nothing yet */
  int communicators;
};

/* ---- polling ---- */

static tws_code failed(const tws_comm *comm, ncclResult_t result, const char *what, tws_error *err) {
  ncclComm_t source = comm->world;
  return tws_fail(err, TWS_RANK, "NCCL_DEBUG=WARN says more", "NCCL: rank %d: %s: %s: %.300s", comm->rank, what,
                  ncclGetErrorString(result), source ? ncclGetLastError(source) : "");
}

/* Until the communicator is no longer in progress. */
static tws_code settle(const tws_comm *comm, ncclComm_t c, const char *what, tws_error *err) {
  const double end = tws_clock_s() + comm->deadline_s;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(c, &state);
    if (result == ncclSuccess) result = state;
    if (result == ncclSuccess) return TWS_OK;
    if (result != ncclInProgress) return failed(comm, result, what, err);
    if (tws_clock_s() > end)
      return tws_fail(err, TWS_HANG, "is every rank alive? NCCL_DEBUG=INFO shows which connection waits",
                      "NCCL: rank %d: %s: no progress for %g seconds", comm->rank, what, comm->deadline_s);
    usleep(100);
  }
}
/* After a call that may have returned "in progress". */
static tws_code settle_after(const tws_comm *comm, ncclComm_t c, ncclResult_t result, const char *what,
                             tws_error *err) {
  if (result != ncclSuccess && result != ncclInProgress) return failed(comm, result, what, err);
  return settle(comm, c, what, err);
}

/* ---- life ---- */

static tws_code join_world(tws_comm *comm, const tws_cuda_comm_setup *setup, tws_error *err) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (comm->rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return failed(comm, result, "making an identifier", err);
  }
  TWS_TRY(setup->broadcast(setup->user, &id, sizeof id, err));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1; /* children use these buffers */
  const ncclResult_t result = ncclCommInitRankConfig(&comm->world, comm->world_size, id, comm->rank, &config);
  if (result != ncclSuccess && result != ncclInProgress) return failed(comm, result, "joining the world", err);
  comm->communicators = 1;
  return settle(comm, comm->world, "joining the world", err);
}

static int is_world(const tws_comm *comm, const tws_group *group) {
  if (group->size != comm->world_size) return 0;
  for (int i = 0; i < group->size; i++)
    if (group->ranks[i] != i) return 0;
  return 1;
}

/* Every rank comes here for every group. The first rank of a group is its colour. */
static tws_code split(tws_comm *comm, const tws_group *group, nccl_group *out, tws_error *err) {
  char what[96];
  out->size = group->size;
  out->index = group->index;
  if (comm->world_size == 1) return TWS_OK;
  if (is_world(comm, group)) {
    out->comm = comm->world;
    out->borrowed = 1;
    return TWS_OK;
  }
  snprintf(what, sizeof what, "splitting group '%.40s'", group->axis ? group->axis : "?");
  const int color = group->size > 1 ? group->ranks[0] : NCCL_SPLIT_NOCOLOR;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  const ncclResult_t result = ncclCommSplit(comm->world, color, group->index, &out->comm, &config);
  TWS_TRY(settle_after(comm, comm->world, result, what, err));
  if (color == NCCL_SPLIT_NOCOLOR) {
    out->comm = NULL;
    return TWS_OK;
  }
  comm->communicators++;
  return settle(comm, out->comm, what, err);
}

static tws_code prepare(tws_comm *comm, const tws_cuda_comm_setup *setup, tws_error *err) {
  comm->groups = tws_calloc(setup->group_count + 1u, sizeof *comm->groups);
  if (!comm->groups) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  cudaError_t status = cudaMalloc(&comm->token, 256);
  if (status == cudaSuccess) status = cudaMemset(comm->token, 0, 256);
  if (status == cudaSuccess) status = cudaEventCreateWithFlags(&comm->latest, cudaEventDisableTiming);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "setting up NCCL");
  if (comm->world_size > 1) TWS_TRY(join_world(comm, setup, err)); /* one rank needs no library */
  for (uint32_t i = 0; i < setup->group_count; i++) {
    TWS_TRY(split(comm, &setup->groups[i], &comm->groups[i], err));
    comm->group_count = i + 1;
  }
  return TWS_OK;
}

tws_code tws_nccl_create(const tws_cuda_comm_setup *setup, tws_comm **out, tws_error *err) {
  *out = NULL;
  tws_comm *comm = tws_calloc(1, sizeof *comm);
  if (!comm) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  comm->backend = setup->backend;
  comm->rank = setup->rank;
  comm->world_size = setup->world;
  comm->deadline_s = setup->deadline_s > 0 ? setup->deadline_s : 120;
  comm->latest_stream = -1;
  tws_code code = prepare(comm, setup, err);
  if (code != TWS_OK) {
    tws_nccl_abort(comm);
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
  for (uint32_t i = 0; i < comm->group_count; i++)
    if (comm->groups[i].comm && !comm->groups[i].borrowed) close_communicator(comm, comm->groups[i].comm);
  if (comm->world) close_communicator(comm, comm->world);
  if (comm->latest) cudaEventDestroy(comm->latest);
  if (comm->token) cudaFree(comm->token);
  tws_free(comm->groups);
  tws_free(comm);
}

void tws_nccl_abort(tws_comm *comm) {
  if (!comm) return;
  for (uint32_t i = 0; i < comm->group_count; i++) {
    ncclComm_t c = comm->groups[i].comm;
    comm->groups[i].comm = NULL;
    if (c && !comm->groups[i].borrowed) ncclCommAbort(c);
  }
  ncclComm_t world = comm->world;
  comm->world = NULL;
  if (world) ncclCommAbort(world);
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

/* With several communicators everything waits for what was started before, so that all ranks have one order. */
static tws_code begin(tws_comm *comm, int stream, cudaStream_t *out, tws_error *err) {
  TWS_TRY(tws_cuda_stream(comm->backend, stream, out, err));
  if (comm->communicators < 2 || comm->latest_stream < 0 || comm->latest_stream == stream) return TWS_OK;
  const cudaError_t status = cudaStreamWaitEvent(*out, comm->latest, 0);
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "waiting for a collective");
}
static tws_code end(tws_comm *comm, int stream, cudaStream_t s, tws_error *err) {
  comm->latest_stream = stream;
  if (comm->communicators < 2) return TWS_OK;
  const cudaError_t status = cudaEventRecord(comm->latest, s);
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "after a collective");
}

static ncclResult_t all_to_all(const nccl_group *group, const tws_comm_segment *segment, ncclDataType_t type,
                               size_t element, cudaStream_t s) {
  ncclResult_t result = ncclSuccess;
  const size_t part = segment->count * element;
  for (int peer = 0; result == ncclSuccess && peer < group->size; peer++) {
    result = ncclSend((const char *)segment->send + (size_t)peer * part, segment->count, type, peer, group->comm, s);
    if (result == ncclSuccess)
      result = ncclRecv((char *)segment->receive + (size_t)peer * part, segment->count, type, peer, group->comm, s);
  }
  return result;
}

static ncclResult_t start_segment(const tws_comm *comm, const nccl_group *group, tws_collective collective,
                                  ncclDataType_t type, size_t element, int root, const tws_comm_segment *segment,
                                  cudaStream_t s) {
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
    case TWS_COLLECTIVE_ALL_TO_ALL:
      return all_to_all(group, segment, type, element, s);
    case TWS_COLLECTIVE_BARRIER:
      return ncclAllReduce(comm->token, comm->token, 1, ncclInt32, ncclSum, group->comm, s);
    default:
      return ncclInvalidArgument;
  }
}

/* A group of one: what is sent is what is received. */
static tws_code copy_segments(const tws_comm_segment *segments, int count, size_t element, cudaStream_t s,
                              tws_error *err) {
  for (int i = 0; i < count; i++) {
    if (segments[i].send == segments[i].receive || segments[i].count == 0) continue;
    const cudaError_t status = cudaMemcpyAsync(segments[i].receive, segments[i].send, segments[i].count * element,
                                               cudaMemcpyDeviceToDevice, s);
    if (status != cudaSuccess) return tws_cuda_fail(err, status, "a collective of one rank");
  }
  return TWS_OK;
}

static tws_code start_collective(tws_comm *comm, int group, tws_collective collective, tws_dtype dtype, int root,
                                 const tws_comm_segment *segments, int count, tws_stream stream, tws_error *err) {
  static const tws_comm_segment nothing = {NULL, NULL, 0};
  ncclDataType_t type = ncclUint8;
  cudaStream_t s = NULL;
  char what[96];
  if (group < 0 || (uint32_t)group >= comm->group_count)
    return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: no group %d", group);
  const nccl_group *g = &comm->groups[group];
  const size_t element = tws_dtype_bytes(dtype);
  TWS_TRY(tws_cuda_stream(comm->backend, (int)stream, &s, err));
  if (g->size == 1) return copy_segments(segments, count, element, s, err);
  if (!g->comm) return tws_fail(err, TWS_RANK, NULL, "NCCL: rank %d: the communicator was aborted", comm->rank);
  if (collective == TWS_COLLECTIVE_BARRIER) segments = &nothing, count = 1;
  TWS_TRY(data_type(comm, dtype, &type, err));
  TWS_TRY(begin(comm, (int)stream, &s, err));
  snprintf(what, sizeof what, "%s of group %d", tws_collective_name(collective), group);
  ncclResult_t result = ncclGroupStart();
  for (int i = 0; result == ncclSuccess && i < count; i++)
    result = start_segment(comm, g, collective, type, element, root, &segments[i], s);
  const ncclResult_t ended = ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) result = ended;
  TWS_TRY(settle_after(comm, g->comm, result, what, err));
  return end(comm, (int)stream, s, err);
}

static tws_code start_message(tws_comm *comm, int peer, int receives, void *data, uint64_t bytes, tws_stream stream,
                              tws_error *err) {
  cudaStream_t s = NULL;
  char what[64];
  if (peer < 0 || peer >= comm->world_size) return tws_fail(err, TWS_INTERNAL, NULL, "NCCL: no rank %d", peer);
  if (!comm->world) return tws_fail(err, TWS_RANK, NULL, "NCCL: rank %d: the communicator was aborted", comm->rank);
  TWS_TRY(begin(comm, (int)stream, &s, err));
  snprintf(what, sizeof what, "%s rank %d", receives ? "receiving from" : "sending to", peer);
  const ncclResult_t result = receives ? ncclRecv(data, bytes, ncclUint8, peer, comm->world, s)
                                       : ncclSend(data, bytes, ncclUint8, peer, comm->world, s);
  TWS_TRY(settle_after(comm, comm->world, result, what, err));
  return end(comm, (int)stream, s, err);
}

/* ---- the same, waited for ---- */

static tws_code finish(tws_comm *comm, tws_error *err) {
  return tws_cuda_backend.synchronize(comm->backend, err);
}

static tws_code collective_now(tws_comm *comm, int group, tws_collective collective, tws_dtype dtype, int root,
                               const tws_comm_segment *segments, int count, tws_error *err) {
  TWS_TRY(start_collective(comm, group, collective, dtype, root, segments, count, TWS_STREAM_COMPUTE, err));
  return finish(comm, err);
}

static tws_code send_now(tws_comm *comm, int peer, const void *data, uint64_t bytes, tws_error *err) {
  void *from = (void *)(uintptr_t)data; /* only read */
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
