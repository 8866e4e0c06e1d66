/* The part of NCCL that real/cuda/nccl_comm.c uses, over MPI among the processes of a job on the host. Everything is a
 * rendezvous and runs in the order in which the host starts it, also in graphs: stricter than the library. Ranks that
 * enter different collectives, or the same one with other sizes, end the job. So do buffers that are not the device's,
 * what is done for the first time while a step is recorded (the library connects then), and closing what a graph still
 * holds. Communicators do not block: after every call they are in progress until they have been asked a few times, and
 * take nothing meanwhile. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/runtime.h"

struct ncclComm {
  MPI_Comm mpi;
  int rank, size;
  int busy; /* how often it still says that it is in progress */
  bool finalized, blocking;
  ncclComm_t child, *child_to; /* being split off */
  std::shared_ptr<int> held;   /* by work that is not done, and by graphs */
  std::set<std::string> known; /* what was done before */
  std::vector<std::pair<char *, size_t>> registered;
  bool symmetric; /* registered memory is symmetric windows */
};

namespace {

struct Task {
  ncclComm *comm;
  std::shared_ptr<int> held;
  cudaStream_t stream;
  bool message, receives;
  int peer;
  void *buffer;
  size_t bytes;
  std::function<void()> collective;
};

std::vector<Task> pending;
int depth;
std::map<char *, size_t> memory; /* that can be registered */
std::multiset<char *> registrations;

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclBfloat16:
    case ncclFloat16:
      return 2;
    default:
      return 1;
  }
}

/* The sum over ranks, in their order. */
template <typename T, typename S, typename Load, typename Store>
void sum_as(const char *all, int ranks, size_t first, size_t count, size_t stride, void *out, Load load, Store store) {
  for (size_t i = 0; i < count; ++i) {
    S sum = 0;
    for (int r = 0; r < ranks; ++r) {
      T x;
      memcpy(&x, all + (size_t)r * stride + (first + i) * sizeof(T), sizeof x);
      sum += load(x);
    }
    const T y = store(sum);
    memcpy(static_cast<char *>(out) + i * sizeof(T), &y, sizeof y);
  }
}

void sum_up(const std::vector<char> &all, int ranks, size_t first, size_t count, ncclDataType_t type, void *out) {
  const size_t stride = all.size() / (size_t)ranks;
  if (type == ncclFloat32)
    sum_as<float, float>(
        all.data(), ranks, first, count, stride, out, [](float x) { return x; }, [](float x) { return x; });
  else if (type == ncclFloat64)
    sum_as<double, double>(
        all.data(), ranks, first, count, stride, out, [](double x) { return x; }, [](double x) { return x; });
  else if (type == ncclInt32)
    sum_as<int, int>(
        all.data(), ranks, first, count, stride, out, [](int x) { return x; }, [](int x) { return x; });
  else if (type == ncclFloat16)
    sum_as<__half, float>(
        all.data(), ranks, first, count, stride, out, [](__half x) { return __half2float(x); },
        [](float x) { return __float2half_rn(x); });
  else
    sum_as<__nv_bfloat16, float>(
        all.data(), ranks, first, count, stride, out, [](__nv_bfloat16 x) { return __bfloat162float(x); },
        [](float x) { return __float2bfloat16_rn(x); });
}

/* Waits without occupying a core, which other ranks may need to arrive: MPI polls all the time. */
void wait_for(std::vector<MPI_Request> requests) {
  int done = 0;
  for (unsigned polls = 0;; ++polls) {
    MPI_Testall((int)requests.size(), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done) return;
    if (polls > 50) usleep(std::min(1000U, 2 * polls)); /* an eighth of a longer wait, or less */
  }
}
void meet(MPI_Comm ranks) {
  MPI_Request request;
  MPI_Ibarrier(ranks, &request);
  wait_for({request});
}

std::vector<char> gather(const ncclComm *comm, const void *from, size_t bytes) {
  std::vector<char> mine(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
  std::vector<char> all(bytes * (size_t)comm->size);
  MPI_Request request;
  MPI_Iallgather(mine.data(), (int)bytes, MPI_BYTE, all.data(), (int)bytes, MPI_BYTE, comm->mpi, &request);
  wait_for({request});
  return all;
}

void same_everywhere(const ncclComm *comm, const char *name, size_t count, int type, int root, int64_t from = 0,
                     int64_t to = 0) {
  const int64_t mine[6] = {name[0] * 256 + name[strlen(name) - 1], (int64_t)count, type, root, from, to};
  meet(comm->mpi);
  const std::vector<char> all = gather(comm, mine, sizeof mine);
  for (int r = 0; r < comm->size; ++r)
    if (memcmp(all.data() + (size_t)r * sizeof mine, mine, sizeof mine) != 0) {
      fprintf(stderr, "rank %d of %d enters %s of %zu elements, rank %d something else\n", comm->rank, comm->size, name,
              count, r);
      MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

/* The messages of a group make progress together. */
void run_all(const std::vector<Task> &tasks) {
  std::vector<MPI_Request> requests;
  for (const Task &t : tasks) {
    if (!t.message) {
      t.collective();
      continue;
    }
    requests.emplace_back();
    if (t.receives)
      MPI_Irecv(t.buffer, (int)t.bytes, MPI_BYTE, t.peer, 0, t.comm->mpi, &requests.back());
    else
      MPI_Issend(t.buffer, (int)t.bytes, MPI_BYTE, t.peer, 0, t.comm->mpi, &requests.back());
  }
  wait_for(requests);
}

ncclResult_t in_progress(ncclComm *comm) {
  if (comm->blocking) return ncclSuccess;
  comm->busy = 1 + (int)(emulated_random() % 3);
  return ncclInProgress;
}

ncclResult_t flush() {
  if (depth || pending.empty()) return ncclSuccess;
  const std::vector<Task> tasks = pending;
  pending.clear();
  if (emulated_submit_in_order(tasks[0].stream, [=] { run_all(tasks); }) != cudaSuccess) return ncclUnhandledCudaError;
  ncclResult_t result = ncclSuccess;
  for (const Task &t : tasks)
    if (in_progress(t.comm) == ncclInProgress) result = ncclInProgress;
  return result;
}

bool is_ready(ncclComm *comm, cudaStream_t stream, const std::string &what) {
  if (comm->busy || comm->finalized) return false;
  if (comm->known.insert(what).second && emulated_is_recorded(stream))
    emulated_refuse("a connection of NCCL that is made while a step is recorded");
  return true;
}
/* Where a communicator has registered memory, every buffer lies in it, except for single words. */
void check_buffer(const ncclComm *comm, const void *data, size_t bytes) {
  if (bytes && !emulated_is_device(data, bytes)) emulated_refuse("a collective on memory that is not the device's");
  bool there = bytes <= sizeof(int64_t) || comm->registered.empty();
  for (const auto &r : comm->registered) there |= data >= r.first && (const char *)data + bytes <= r.first + r.second;
  if (!there) emulated_refuse("a collective on memory that is not registered");
}

/* Returns the offset of a buffer in its symmetric window; 0: it is in none. */
int64_t offset_of(const ncclComm *comm, const void *data) {
  for (const auto &r : comm->registered)
    if (comm->symmetric && data >= r.first && data < r.first + r.second) return (const char *)data - r.first + 1;
  return 0;
}

ncclResult_t add_message(ncclComm *comm, cudaStream_t stream, int peer, const void *data, size_t bytes, bool receives) {
  if (peer < 0 || peer >= comm->size) return ncclInvalidArgument;
  if (!is_ready(comm, stream, (receives ? "from " : "to ") + std::to_string(peer))) return ncclInvalidArgument;
  check_buffer(comm, data, bytes);
  pending.push_back({comm, comm->held, stream, true, receives, peer, const_cast<void *>(data), bytes, nullptr});
  return flush();
}

/* `sent` and `received`: how many times `count` elements there are. */
ncclResult_t add(ncclComm *comm, cudaStream_t stream, const char *name, size_t count, ncclDataType_t type, int root,
                 const void *from, size_t sent, const void *to, size_t received, const std::function<void()> &work) {
  if (!is_ready(comm, stream, name)) return ncclInvalidArgument;
  check_buffer(comm, from, sent * count * size_of(type));
  check_buffer(comm, to, received * count * size_of(type));
  /* Buffers that other ranks access have the same offset on all ranks; those of a rank alone (the part that it gathers,
   * what it keeps of a sum) may differ. */
  const std::string what = name;
  const int64_t from_at = what == "all-gather" || what == "broadcast" ? 0 : offset_of(comm, from);
  const int64_t to_at = what == "reduce-scatter" || what == "reduce" ? 0 : offset_of(comm, to);
  pending.push_back({comm, comm->held, stream, false, false, 0, nullptr, 0, [=] {
                       same_everywhere(comm, name, count, type, root, from_at, to_at);
                       work();
                     }});
  return flush();
}

ncclResult_t make(MPI_Comm mpi, const ncclConfig_t *config, ncclComm_t *out) {
  ncclComm *comm = new ncclComm();
  const char *asked = getenv("TWINSPEED_NCCL_BLOCKING");
  if (config->blocking != (asked && *asked == '1')) emulated_refuse("a communicator that blocks, or not, unasked");
  const char *engines = getenv("TWINSPEED_NCCL_COPY_ENGINES");
  if ((config->CTAPolicy == NCCL_CTA_POLICY_ZERO) != (engines && *engines == '1'))
    emulated_refuse("a communicator that leaves collectives to copy engines, or not, unasked");
  comm->blocking = config->blocking == 1;
  comm->mpi = mpi;
  MPI_Comm_rank(mpi, &comm->rank);
  MPI_Comm_size(mpi, &comm->size);
  comm->held = std::make_shared<int>(0);
  *out = comm;
  return in_progress(comm);
}

}  // namespace

extern "C" {

const char *ncclGetErrorString(ncclResult_t) {
  return "an emulated error";
}
const char *ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 7, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  MPI_Comm mpi;
  meet(MPI_COMM_WORLD);
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  const ncclResult_t result = make(mpi, config, out);
  return id.internal[5] == 7 && (*out)->rank == rank && (*out)->size == ranks ? result : ncclInvalidArgument;
}
/* The parent is in progress, and the child is not there before it is done. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
  MPI_Comm mpi;
  if (comm->busy || comm->finalized) return ncclInvalidArgument;
  same_everywhere(comm, "split", 0, 0, 0);
  MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &mpi);
  *out = nullptr;
  if (comm->blocking) {
    if (mpi != MPI_COMM_NULL) make(mpi, config, out);
    return ncclSuccess;
  }
  if (mpi != MPI_COMM_NULL) make(mpi, config, &comm->child);
  comm->child_to = out;
  return in_progress(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
  if (!comm) return ncclInvalidArgument;
  *state = comm->busy ? ncclInProgress : ncclSuccess;
  if (comm->busy && --comm->busy == 0 && comm->child) {
    *comm->child_to = comm->child;
    comm->child = nullptr;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->busy || comm->finalized) return ncclInvalidArgument;
  if (comm->held.use_count() > 1)
    emulated_refuse("a communicator is closed that a graph or work still holds: it waits");
  if (!comm->registered.empty()) emulated_refuse("a communicator is closed that has memory registered");
  comm->finalized = true;
  return in_progress(comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->busy || !comm->finalized) return ncclInvalidUsage;
  MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void **out, size_t bytes) {
  if (cudaMalloc(out, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  memory[static_cast<char *>(*out)] = bytes;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void *address) {
  if (!memory.erase(static_cast<char *>(address))) emulated_refuse("memory goes back to NCCL that is not its own");
  if (registrations.count(static_cast<char *>(address))) emulated_refuse("memory goes back that is registered");
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *address, size_t bytes, void **handle) {
  char *base = static_cast<char *>(address);
  if (comm->busy || comm->finalized) return ncclInvalidArgument;
  if (!memory.count(base) || memory[base] < bytes) emulated_refuse("memory is registered that is not NCCL's");
  comm->registered.push_back({base, bytes});
  *handle = base;
  registrations.insert(base);
  return in_progress(comm);
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
  if (comm->busy || comm->finalized) return ncclInvalidArgument;
  for (size_t i = 0; i < comm->registered.size(); ++i)
    if (comm->registered[i].first == handle) {
      comm->registered.erase(comm->registered.begin() + (long)i);
      registrations.erase(registrations.find(static_cast<char *>(handle)));
      return in_progress(comm);
    }
  return ncclInvalidArgument;
}
/* Windows are registered by all ranks of a communicator together, with the same size. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *address, size_t bytes, ncclWindow_t *window, int flags) {
  if (flags != NCCL_WIN_COLL_SYMMETRIC || comm->busy || comm->finalized) return ncclInvalidArgument;
  same_everywhere(comm, "window", bytes, flags, 0);
  comm->symmetric = true;
  return ncclCommRegister(comm, address, bytes, reinterpret_cast<void **>(window));
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (comm->busy || comm->finalized) return ncclInvalidArgument;
  same_everywhere(comm, "gone", 0, 0, 0);
  return ncclCommDeregister(comm, window);
}
ncclResult_t ncclGroupStart(void) {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
  --depth;
  return flush();
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(comm, stream, peer, data, count * size_of(type), false);
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add_message(comm, stream, peer, data, count * size_of(type), true);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return add(comm, stream, "all-reduce", count, type, 0, from, 1, to, 1,
             [=] { sum_up(gather(comm, from, count * size_of(type)), comm->size, 0, count, type, to); });
}
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return add(comm, stream, "reduce", count, type, root, from, 1, to, comm->rank == root, [=] {
    const std::vector<char> all = gather(comm, from, count * size_of(type));
    if (comm->rank == root) sum_up(all, comm->size, 0, count, type, to);
  });
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return add(comm, stream, "reduce-scatter", count, type, 0, from, (size_t)comm->size, to, 1, [=] {
    const size_t all = count * (size_t)comm->size;
    sum_up(gather(comm, from, all * size_of(type)), comm->size, count * (size_t)comm->rank, count, type, to);
  });
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, "all-gather", count, type, 0, from, 1, to, (size_t)comm->size, [=] {
    const std::vector<char> all = gather(comm, from, count * size_of(type));
    memcpy(to, all.data(), all.size());
  });
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, "broadcast", count, type, root, from, comm->rank == root, to, 1, [=] {
    if (comm->rank == root) memmove(to, from, count * size_of(type));
    MPI_Bcast(to, (int)(count * size_of(type)), MPI_BYTE, root, comm->mpi);
  });
}
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  if (from == to) return ncclInvalidArgument;
  return add(comm, stream, "all-to-all", count, type, 0, from, (size_t)comm->size, to, (size_t)comm->size, [=] {
    const int bytes = (int)(count * size_of(type));
    MPI_Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm->mpi);
  });
}
}
