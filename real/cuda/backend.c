/* The CUDA backend: device, streams, arenas, copies, dispatch of kernels, and recording of steps as a CUDA graph. One
 * host thread calls it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/log.h"
#include "base/memory.h"
#include "models/rope.h"
#include "real/cuda/cuda.h"
#include "real/cuda/fused.h"
#include "real/cuda/internal.h"
#include "real/cuda/module.h"
#include "real/operands.h"

typedef struct arena {
  char *base;
  uint64_t bytes;
  tws_tier tier;
  int lent; /* 1: the memory was allocated by the backend's allocator */
} arena;

typedef struct device_stream {
  cudaStream_t stream; /* NULL: the stream was not used yet */
  cudaEvent_t event;   /* recorded when all streams are joined */
  char *workspace;     /* TWS_CUDA_STREAM_BYTES: the products' workspace, then scratch; NULL: no kernel has run here */
} device_stream;

struct tws_backend {
  int device, multiprocessors, shared_bytes, capability;
  device_stream streams[TWS_STREAM_COUNT];
  tws_cuda_gemm *gemm;
  tws_cuda_fused *fused; /* NULL: cuDNN is not available */
  int deterministic;
  arena arenas[16];
  int arena_count;
  tws_cuda_arena_allocator allocator; /* allocator.take NULL: there is no allocator */
  tws_cuda_memory memory;
  tws_code (*look)(void *user, tws_error *err); /* called while the host waits; NULL: no callback */
  void *look_user;
  cudaGraphExec_t step;    /* the recorded step; NULL: none */
  char own_attention[256]; /* reason why attention of a 16-bit type ran without cuDNN; empty: none ran without cuDNN, or
                            * the user requested that */
  int recording;
  cudaEvent_t *marks, *signals;
  uint32_t mark_count, signal_count;
  char name[128];
};

#define TRY_CUDA(call, what)                                              \
  do {                                                                    \
    const cudaError_t status_ = (call);                                   \
    if (status_ != cudaSuccess) return tws_cuda_fail(err, status_, what); \
  } while (0)

/* Sets a variable that the driver reads when it starts. Streams that share a hardware queue wait for each other, which
 * must not happen to a kernel that waits for another rank; so there are more queues than streams. */
static void prepare_environment(void) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

tws_code tws_cuda_device_count(int *count, tws_error *err) {
  *count = 0;
  prepare_environment();
  TRY_CUDA(cudaGetDeviceCount(count), "looking for devices");
  return *count > 0 ? TWS_OK : tws_cuda_fail(err, cudaErrorNoDevice, "looking for devices");
}

/* ---- streams ---- */

tws_code tws_cuda_stream(tws_backend *backend, int stream, cudaStream_t *out, tws_error *err) {
  if (stream < 0 || stream >= TWS_STREAM_COUNT) return tws_fail(err, TWS_INTERNAL, NULL, "no stream %d", stream);
  device_stream *l = &backend->streams[stream];
  if (!l->stream) {
    TRY_CUDA(cudaEventCreateWithFlags(&l->event, cudaEventDisableTiming), "an event");
    /* Streams of communication and copies have the highest priority, so that work queued on the compute stream does not
     * delay them. */
    int least = 0, greatest = 0;
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    const int priority = stream == TWS_STREAM_COMPUTE ? least : greatest;
    TRY_CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, priority), "a stream");
  }
  *out = l->stream;
  return TWS_OK;
}

/* Returns a stream for kernels, which has a workspace. */
static tws_code kernel_stream(tws_backend *backend, tws_stream stream, device_stream **out, tws_error *err) {
  cudaStream_t unused = NULL;
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &unused, err));
  device_stream *l = &backend->streams[stream];
  if (!l->workspace) {
    void *memory = NULL;
    TRY_CUDA(cudaMalloc(&memory, TWS_CUDA_STREAM_BYTES), "the workspace of a stream");
    l->workspace = memory;
    backend->memory.workspace += TWS_CUDA_STREAM_BYTES;
  }
  *out = l;
  return TWS_OK;
}

/* Makes the list long enough for event number `index`. */
static tws_code reserve_events(cudaEvent_t **events, uint32_t *count, uint32_t index, tws_error *err) {
  if (index < *count) return TWS_OK;
  const uint32_t more = index + 1024;
  cudaEvent_t *grown = tws_realloc(*events, more, sizeof *grown);
  if (!grown) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  memset(grown + *count, 0, (more - *count) * sizeof *grown);
  *events = grown;
  *count = more;
  return TWS_OK;
}

static tws_code cuda_signal(tws_backend *backend, tws_stream stream, uint32_t event, tws_error *err) {
  cudaStream_t s = NULL;
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &s, err));
  TWS_TRY(reserve_events(&backend->signals, &backend->signal_count, event, err));
  if (!backend->signals[event])
    TRY_CUDA(cudaEventCreateWithFlags(&backend->signals[event], cudaEventDisableTiming), "an event");
  TRY_CUDA(cudaEventRecord(backend->signals[event], s), "recording an event");
  return TWS_OK;
}

/* Makes a stream wait for an event. The wait refers to the latest record of the event, so the event may be recorded
 * again immediately. */
static tws_code cuda_wait(tws_backend *backend, tws_stream stream, uint32_t event, tws_error *err) {
  cudaStream_t s = NULL;
  if (event >= backend->signal_count || !backend->signals[event])
    return tws_fail(err, TWS_INTERNAL, NULL, "event %u was never signalled", (unsigned)event);
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &s, err));
  TRY_CUDA(cudaStreamWaitEvent(s, backend->signals[event], 0), "waiting for an event");
  return TWS_OK;
}

/* Runs a host function in the order of a stream: the driver calls it on a thread of its own. In a recorded step it is a
 * host node of the graph. */
static tws_code cuda_call(tws_backend *backend, tws_stream stream, void (*function)(void *user), void *user,
                          tws_error *err) {
  cudaStream_t s = NULL;
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &s, err));
  TRY_CUDA(cudaLaunchHostFunc(s, function, user), "work on the host's cores");
  return TWS_OK;
}

void tws_cuda_watch(tws_backend *backend, tws_code (*look)(void *user, tws_error *err), void *user) {
  backend->look = look;
  backend->look_user = user;
}

/* Waits until a stream is idle. NCCL's kernels may wait for ranks that have failed; then the communicator's error ends
 * the wait. */
static tws_code wait_for_stream(tws_backend *backend, cudaStream_t stream, cudaError_t *status, tws_error *err) {
  enum { SPINS = 64 };
  if (!backend->look) {
    *status = cudaStreamSynchronize(stream);
    return TWS_OK;
  }
  double next = tws_clock_s() + 1e-3;
  for (int i = 0; (*status = cudaStreamQuery(stream)) == cudaErrorNotReady; i++) {
    if (i % SPINS) continue;
    sched_yield();
    if (tws_clock_s() < next) continue;
    TWS_TRY(backend->look(backend->look_user, err));
    next = tws_clock_s() + 1e-3;
  }
  return TWS_OK;
}

static tws_code cuda_synchronize(tws_backend *backend, tws_error *err) {
  for (int i = 0; i < TWS_STREAM_COUNT; i++) {
    cudaError_t status = cudaSuccess;
    if (!backend->streams[i].stream) continue;
    TWS_TRY(wait_for_stream(backend, backend->streams[i].stream, &status, err));
    if (status == cudaSuccess) continue;
    char what[64];
    snprintf(what, sizeof what, "work on stream %s", tws_stream_name((tws_stream)i));
    return tws_cuda_fail(err, status, what);
  }
  return TWS_OK;
}

/* ---- a step as a graph ---- */

static tws_code wait_for_all(tws_backend *backend, int waiting, int on, tws_error *err) {
  TRY_CUDA(cudaEventRecord(backend->streams[on].event, backend->streams[on].stream), "recording an event");
  TRY_CUDA(cudaStreamWaitEvent(backend->streams[waiting].stream, backend->streams[on].event, 0),
           "waiting for a stream");
  return TWS_OK;
}

/* Joins the compute stream with all others by events. fork 1: the other streams wait for it; 0: it waits for them. */
static tws_code join_streams(tws_backend *backend, int fork, tws_error *err) {
  for (int i = 0; i < TWS_STREAM_COUNT; i++) {
    if (i == TWS_STREAM_COMPUTE || !backend->streams[i].stream) continue;
    TWS_TRY(fork ? wait_for_all(backend, i, TWS_STREAM_COMPUTE, err)
                 : wait_for_all(backend, TWS_STREAM_COMPUTE, i, err));
  }
  return TWS_OK;
}

/* Destroys the recorded step, and an unfinished recording after a failed operation: streams that record cannot do other
 * work. */
void tws_cuda_destroy_graph(tws_backend *backend) {
  cudaGraph_t graph = NULL;
  if (backend->recording) cudaStreamEndCapture(backend->streams[TWS_STREAM_COMPUTE].stream, &graph);
  backend->recording = 0;
  if (graph) cudaGraphDestroy(graph);
  if (backend->step) cudaGraphExecDestroy(backend->step);
  backend->step = NULL;
}

/* Clears the error of a failed recording, so that it is not attributed to the next launch. */
static void give_up(tws_backend *backend) {
  tws_cuda_destroy_graph(backend);
  (void)cudaGetLastError();
}

static tws_code keep_step(tws_backend *backend, tws_error *err) {
  cudaGraph_t graph = NULL;
  TWS_TRY(join_streams(backend, 0, err));
  backend->recording = 0;
  cudaError_t status = cudaStreamEndCapture(backend->streams[TWS_STREAM_COMPUTE].stream, &graph);
  if (status == cudaSuccess) /* communication keeps its priority, which without the flag would be that of this stream */
    status = cudaGraphInstantiate(&backend->step, graph, cudaGraphInstantiateFlagUseNodePriority);
  if (graph) cudaGraphDestroy(graph);
  if (status == cudaSuccess) return TWS_OK;
  backend->step = NULL;
  return tws_cuda_fail(err, status, "making a step's graph");
}

static tws_code begin_step(tws_backend *backend, tws_error *err) {
  cudaStream_t stream = NULL;
  TWS_TRY(tws_cuda_stream(backend, TWS_STREAM_COMPUTE, &stream, err));
  TWS_TRY(cuda_synchronize(backend, err));
  TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a step");
  backend->recording = 1;
  return join_streams(backend, 1, err);
}

static tws_code cuda_record(tws_backend *backend, int on, tws_error *err) {
  if (on < 0) {
    give_up(backend);
    return TWS_OK;
  }
  if (on && tws_cuda_env_is_set("TWINSPEED_CUDA_EAGER"))
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "operations are started one by one, as TWINSPEED_CUDA_EAGER says");
  if (!on && !backend->recording) return tws_fail(err, TWS_INTERNAL, NULL, "nothing is being recorded");
  if (on) tws_cuda_destroy_graph(backend);
  const tws_code code = on ? begin_step(backend, err) : keep_step(backend, err);
  if (code != TWS_OK) give_up(backend);
  return code;
}

static tws_code cuda_replay(tws_backend *backend, tws_error *err) {
  if (!backend->step) return tws_fail(err, TWS_INTERNAL, NULL, "no step was recorded");
  TRY_CUDA(cudaGraphLaunch(backend->step, backend->streams[TWS_STREAM_COMPUTE].stream), "starting a step");
  return TWS_OK;
}

/* ---- time stamps ---- */

static tws_code cuda_mark(tws_backend *backend, tws_stream stream, uint32_t index, tws_error *err) {
  cudaStream_t s = NULL;
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &s, err));
  TWS_TRY(reserve_events(&backend->marks, &backend->mark_count, index, err));
  if (!backend->marks[index]) TRY_CUDA(cudaEventCreate(&backend->marks[index]), "an event");
  TRY_CUDA(cudaEventRecord(backend->marks[index], s), "recording an event");
  return TWS_OK;
}

static tws_code cuda_marked(tws_backend *backend, uint32_t count, double *seconds, tws_error *err) {
  TWS_TRY(cuda_synchronize(backend, err));
  for (uint32_t i = 0; i < count; i++) {
    float milliseconds = 0.0F;
    if (i >= backend->mark_count || !backend->marks[i] || !backend->marks[0])
      return tws_fail(err, TWS_INTERNAL, NULL, "moment %u was not marked", (unsigned)i);
    TRY_CUDA(cudaEventElapsedTime(&milliseconds, backend->marks[0], backend->marks[i]), "reading an event");
    seconds[i] = (double)milliseconds * 1e-3;
  }
  return TWS_OK;
}

/* ---- creation and destruction ---- */

static void cuda_destroy(tws_backend *backend) {
  if (!backend) return;
  tws_cuda_destroy_graph(backend);
  cuda_synchronize(backend, NULL);
  for (uint32_t i = 0; i < backend->mark_count; i++)
    if (backend->marks[i]) cudaEventDestroy(backend->marks[i]);
  for (uint32_t i = 0; i < backend->signal_count; i++)
    if (backend->signals[i]) cudaEventDestroy(backend->signals[i]);
  tws_free(backend->marks);
  tws_free(backend->signals);
  tws_cuda_gemm_destroy(backend->gemm);
  tws_cuda_fused_destroy(backend->fused);
  for (int i = 0; i < TWS_STREAM_COUNT; i++) {
    device_stream *l = &backend->streams[i];
    if (l->workspace) cudaFree(l->workspace);
    if (l->event) cudaEventDestroy(l->event);
    if (l->stream) cudaStreamDestroy(l->stream);
  }
  tws_free(backend);
}

static tws_code examine_device(tws_backend *backend, int device, tws_error *err) {
  struct cudaDeviceProp properties;
  int count = 0;
  TWS_TRY(tws_cuda_device_count(&count, err));
  if (device < 0 || device >= count)
    return tws_fail(err, TWS_ENVIRONMENT, "is CUDA_VISIBLE_DEVICES as intended?", "no CUDA device %d: there are %d",
                    device, count);
  TRY_CUDA(cudaSetDevice(device), "taking the device");
  TRY_CUDA(cudaGetDeviceProperties(&properties, device), "properties of the device");
  if (properties.major < 8)
    return tws_fail(err, TWS_ENVIRONMENT, "compute capability 8.0 (A100) or later is needed for bf16",
                    "%s has compute capability %d.%d", properties.name, properties.major, properties.minor);
  backend->device = device;
  backend->multiprocessors = properties.multiProcessorCount;
  backend->shared_bytes = (int)properties.sharedMemPerBlockOptin;
  backend->capability = 10 * properties.major + properties.minor;
  snprintf(backend->name, sizeof backend->name, "%.100s", properties.name);
  return TWS_OK;
}

static tws_code prepare(tws_backend *backend, int device, tws_error *err) {
  device_stream *unused = NULL;
  size_t available = 0, total = 0;
  TWS_TRY(examine_device(backend, device, err));
  TWS_TRY(tws_cuda_gemm_create(&backend->gemm, err));
  backend->deterministic = tws_cuda_env_is_set("TWINSPEED_CUDA_DETERMINISTIC");
  if (!tws_cuda_env_is_set("TWINSPEED_CUDA_OWN_ATTENTION")) {
    const tws_code code = tws_cuda_fused_create(NULL, &backend->fused, err);
    if (code != TWS_OK && code != TWS_UNSUPPORTED) return code;
  }
  TWS_TRY(kernel_stream(backend, TWS_STREAM_COMPUTE, &unused, err));
  TRY_CUDA(cudaMemGetInfo(&available, &total), "asking for free memory");
  backend->memory.context = total - available - backend->memory.workspace;
  return TWS_OK;
}

static tws_code cuda_create(int device, int threads, tws_backend **out, tws_error *err) {
  (void)threads;
  *out = NULL;
  tws_backend *backend = tws_calloc(1, sizeof *backend);
  if (!backend) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = prepare(backend, device, err);
  if (code != TWS_OK) {
    cuda_destroy(backend);
    return code;
  }
  *out = backend;
  return TWS_OK;
}

tws_code tws_cuda_memory_of(const tws_backend *backend, tws_cuda_memory *out, tws_error *err) {
  size_t available = 0, total = 0;
  TRY_CUDA(cudaMemGetInfo(&available, &total), "asking for free memory");
  *out = backend->memory;
  out->total = total;
  out->used = total - available;
  for (int i = 0; i < backend->arena_count; i++)
    if (backend->arenas[i].tier == TWS_TIER_DEVICE) out->arenas += backend->arenas[i].bytes;
  const uint64_t known = out->arenas + out->workspace + out->context;
  out->libraries = out->used > known ? out->used - known : 0;
  return TWS_OK;
}

const char *tws_cuda_describe(const tws_backend *backend, char *buffer, int size) {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  const int n = snprintf(buffer, (size_t)size, "%s%sCUDA %d.%d, driver for CUDA %d.%d, cuBLASLt %zu",
                         backend ? backend->name : "", backend ? ", " : "", runtime / 1000, runtime % 1000 / 10,
                         driver / 1000, driver % 1000 / 10, tws_cuda_gemm_version());
  if (!backend || !backend->fused || n <= 0 || n >= size) return buffer;
  snprintf(buffer + n, (size_t)(size - n), ", cuDNN %zu", tws_cuda_fused_version(backend->fused));
  return buffer;
}

/* ---- memory ---- */

static tws_code host_memory(arena *a, tws_error *err) {
  void *memory = NULL;
  if (a->tier == TWS_TIER_PINNED) {
    TRY_CUDA(cudaHostAlloc(&memory, a->bytes, cudaHostAllocDefault), "pinned memory");
    memset(memory, 0, a->bytes);
  } else {
    memory = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  a->base = memory;
  return TWS_OK;
}

static void release_memory(const tws_backend *backend, const arena *a) {
  if (a->lent)
    backend->allocator.give_back(backend->allocator.user, a->base);
  else if (a->tier == TWS_TIER_DEVICE)
    cudaFree(a->base);
  else if (a->tier == TWS_TIER_PINNED)
    cudaFreeHost(a->base);
  else
    munmap(a->base, a->bytes);
}

void tws_cuda_set_arena_allocator(tws_backend *backend, const tws_cuda_arena_allocator *allocator) {
  backend->allocator = allocator ? *allocator : (tws_cuda_arena_allocator){NULL, NULL, NULL};
}

static tws_code device_memory(const tws_backend *backend, arena *a, tws_error *err) {
  void *base = NULL;
  if (backend->allocator.take) TWS_TRY(backend->allocator.take(backend->allocator.user, a->bytes, &base, err));
  a->lent = base != NULL;
  if (!base) TRY_CUDA(cudaMalloc(&base, a->bytes), "device memory");
  a->base = base;
  cudaError_t status = cudaMemset(base, 0, a->bytes);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  if (status == cudaSuccess) return TWS_OK;
  release_memory(backend, a);
  return tws_cuda_fail(err, status, "clearing device memory");
}

static tws_code cuda_allocate(tws_backend *backend, tws_tier tier, uint64_t bytes, void **base, tws_error *err) {
  const int most = (int)(sizeof backend->arenas / sizeof *backend->arenas);
  *base = NULL;
  if (bytes == 0) bytes = 1;
  if (backend->arena_count == most) return tws_fail(err, TWS_INTERNAL, NULL, "more than %d arenas", most);
  arena a = {.bytes = bytes, .tier = tier};
  tws_code code = tier == TWS_TIER_DEVICE ? device_memory(backend, &a, err) : host_memory(&a, err);
  if (code != TWS_OK)
    return tws_fail_in(err, code, "the %s arena of %.3f GiB", tws_tier_name(tier), (double)bytes / 1073741824.0);
  backend->arenas[backend->arena_count++] = a;
  *base = a.base;
  return TWS_OK;
}

static void cuda_release(tws_backend *backend, tws_tier tier, void *base) {
  (void)tier;
  if (backend->recording) tws_cuda_destroy_graph(backend);
  cuda_synchronize(backend, NULL);
  tws_cuda_destroy_graph(backend); /* the recorded step may use this memory */
  for (int i = 0; i < backend->arena_count; i++)
    if (backend->arenas[i].base == base) {
      release_memory(backend, &backend->arenas[i]);
      backend->arenas[i] = backend->arenas[--backend->arena_count];
      return;
    }
}

/* Returns 1 if copies with this address can be asynchronous: it lies in device or pinned memory of this backend. */
static int is_ours(const tws_backend *backend, const void *address) {
  for (int i = 0; i < backend->arena_count; i++) {
    const arena *a = &backend->arenas[i];
    if (a->tier != TWS_TIER_DEVICE && a->tier != TWS_TIER_PINNED) continue;
    if ((const char *)address >= a->base && (const char *)address < a->base + a->bytes) return 1;
  }
  return 0;
}

static tws_code cuda_copy(tws_backend *backend, void *to, const void *from, uint64_t bytes, tws_stream stream,
                          tws_error *err) {
  cudaStream_t s = NULL;
  if (bytes == 0) return TWS_OK;
  TWS_TRY(tws_cuda_stream(backend, (int)stream, &s, err));
  const int pageable = !is_ours(backend, to) || !is_ours(backend, from);
  if (pageable && backend->recording)
    return tws_fail(
        err, TWS_ENVIRONMENT, "set pin_memory to true",
        "memory that is offloaded to is not pinned (pin_memory is false), and a recording has no copies of it");
  /* the driver may read pageable memory before earlier work of the stream has written it */
  if (pageable) {
    cudaError_t status = cudaSuccess;
    TWS_TRY(wait_for_stream(backend, s, &status, err));
    TRY_CUDA(status, "work before a copy");
  }
  TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s), "a copy");
  if (pageable) TRY_CUDA(cudaStreamSynchronize(s), "a copy");
  return TWS_OK;
}

/* ---- work ---- */

static const tws_cuda_function functions[TWS_KERNEL_COUNT] = {
#define OPERATOR(id, name, ...) [TWS_KERNEL_##id] = tws_cuda_##name,
#include "models/operators.def"
};

/* Runs attention by cuDNN; *done 0: nothing was started. If tensor cores would have been useful, the reason is
 * recorded. */
static tws_code fused_attention(tws_backend *backend, const device_stream *l, const tws_cuda_call *call, int *done,
                                tws_error *err) {
  const tws_cuda_fused_workspace workspace = {l->workspace, TWS_CUDA_STREAM_BYTES, backend->deterministic,
                                              !backend->deterministic && !backend->recording};
  tws_error why = {0};
  const tws_code code = tws_cuda_fused_attention(backend->fused, call, &workspace, &why);
  *done = code == TWS_OK;
  if (code == TWS_OK) return TWS_OK;
  if (code != TWS_UNSUPPORTED) {
    if (err) *err = why;
    return code;
  }
  if (call->work->dtype != TWS_F32 && !backend->own_attention[0] &&
      !tws_cuda_env_is_set("TWINSPEED_CUDA_OWN_ATTENTION"))
    snprintf(backend->own_attention, sizeof backend->own_attention, "attention runs without tensor cores: %.190s",
             why.message);
  return TWS_OK;
}

static const char *cuda_slower(const tws_backend *backend) {
  return backend->own_attention[0] ? backend->own_attention : NULL;
}

static tws_code start_kernel(tws_backend *backend, device_stream *l, tws_cuda_call *call, tws_error *err) {
  call->stream = l->stream;
  call->scratch = l->workspace + TWS_CUDA_WORKSPACE_BYTES;
  call->scratch_bytes = TWS_CUDA_SCRATCH_BYTES;
  call->multiprocessors = backend->multiprocessors;
  call->capability = backend->capability;
  call->shared_bytes = backend->shared_bytes;
  if (call->work->code == TWS_KERNEL_ATTENTION || call->work->code == TWS_KERNEL_ATTENTION_GRAD) {
    int done = 0;
    TWS_TRY(fused_attention(backend, l, call, &done, err));
    if (done) return TWS_OK;
  }
  const tws_cuda_gemm_workspace workspace = {l->workspace, TWS_CUDA_WORKSPACE_BYTES,
                                             !backend->deterministic && !backend->recording};
  call->gemm = backend->gemm;
  call->gemm_workspace = &workspace;
  return functions[call->work->code](call, err);
}

static tws_code cuda_run(tws_backend *backend, const tws_work *work, const tws_arguments *arguments,
                         void *const *operand, const tws_dtype *dtype, int operand_count, tws_stream stream,
                         tws_error *err) {
  device_stream *l = NULL;
  TWS_TRY(tws_check_operands(work, operand, dtype, operand_count, "this GPU backend", err));
  if (stream == TWS_STREAM_HOST)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s on the host's cores was given to the device",
                    tws_kernel_name((tws_kernel)work->code));
  TWS_TRY(kernel_stream(backend, stream, &l, err));
  tws_cuda_call call = {.work = work,
                        .argument = (arguments ? arguments : &tws_no_arguments)->a,
                        .operand = operand,
                        .dtype = dtype,
                        .count = operand_count};
  tws_code code = start_kernel(backend, l, &call, err);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", tws_kernel_name((tws_kernel)work->code));
  return TWS_OK;
}

/* Returns 1 for the works of tws_operands_supported(), except shapes that no kernel of this backend supports. */
static int cuda_supports(const tws_work *work) {
  if (!tws_operands_supported(work)) return 0;
  if (work->code == TWS_KERNEL_ATTENTION || work->code == TWS_KERNEL_ATTENTION_GRAD) return work->d[4] <= 256;
  if (work->code == TWS_KERNEL_ROPE || work->code == TWS_KERNEL_ROPE_GRAD) return tws_rope_check(work, NULL) == TWS_OK;
  return 1;
}

const tws_backend_ops tws_cuda_backend = {.name = "cuda",
                                          .create = cuda_create,
                                          .destroy = cuda_destroy,
                                          .allocate = cuda_allocate,
                                          .release = cuda_release,
                                          .run = cuda_run,
                                          .copy = cuda_copy,
                                          .signal = cuda_signal,
                                          .wait = cuda_wait,
                                          .call = cuda_call,
                                          .synchronize = cuda_synchronize,
                                          .supports = cuda_supports,
                                          .record = cuda_record,
                                          .replay = cuda_replay,
                                          .mark = cuda_mark,
                                          .marked = cuda_marked,
                                          .slower = cuda_slower};
