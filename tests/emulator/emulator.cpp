/* Blocks one after another; the threads of a block as contexts; and the part of the CUDA runtime that the backend uses,
 * on host memory. What streams do is done at once, but for graphs: they keep what was recorded, and run it in an order
 * drawn anew each time among those that streams and events allow, so that a missing dependency shows. */
#include "tests/emulator/emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

dim3 emulated_block, emulated_block_size, emulated_grid_size;

namespace {

enum { MAX_THREADS = 1024, STACK = 64 << 10, SHARED = 227 << 10, WARP = 32, PAGE = 2 << 20, CONTEXT = 512 << 20 };

struct Thread {
  ucontext_t context;  // to start; jumps afterwards, which cost no system call
  jmp_buf place;
  dim3 index;
  bool started, done;
};

struct Barrier {
  int arrived, turn;
};

Thread threads[MAX_THREADS];
jmp_buf scheduler;
const std::function<void()> *body;
int current, count, alive, alive_in_warp[MAX_THREADS / WARP];
Barrier block_barrier, warp_barrier[MAX_THREADS / WARP];
uint64_t slots[MAX_THREADS];
uint32_t random_state = 1;

void leave() {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

__attribute__((noinline)) void resume(Thread *t) {
  if (_setjmp(scheduler) != 0) return;
  if (t->started) _longjmp(t->place, 1);
  t->started = true;
  setcontext(&t->context);
}

// Whoever comes last opens it; those that have ended are not waited for.
void pass(Barrier *barrier, const int *members) {
  const int turn = barrier->turn;
  ++barrier->arrived;
  while (turn == barrier->turn) {
    if (barrier->arrived >= *members) {
      barrier->arrived = 0;
      ++barrier->turn;
    } else {
      leave();
    }
  }
}

void run_thread() {
  (*body)();
  threads[current].done = true;
  --alive;
  --alive_in_warp[current / WARP];
  _longjmp(scheduler, 1);
}

void run_block() {
  static std::vector<char> stacks((size_t)MAX_THREADS * STACK);
  memset(emulated_memory, 0xff, SHARED);  // NaN
  alive = count;
  block_barrier = Barrier();
  for (int i = 0; i < count; ++i) {
    Thread *t = &threads[i];
    t->started = t->done = false;
    t->index = dim3((unsigned)i, 0, 0);
    warp_barrier[i / WARP] = Barrier();
    alive_in_warp[i / WARP] = (count - i / WARP * WARP < WARP) ? count - i / WARP * WARP : WARP;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = stacks.data() + (size_t)i * STACK;
    t->context.uc_stack.ss_size = STACK;
    t->context.uc_link = nullptr;
    makecontext(&t->context, run_thread, 0);
  }
  while (alive) {
    random_state = random_state * 1664525u + 1013904223u;
    const int first = (int)((random_state >> 8) % (unsigned)count), step = random_state >> 31 ? count - 1 : 1;
    for (int n = 0, i = first; n < count; ++n, i = (i + step) % count)
      if (!threads[i].done) {
        current = i;
        resume(&threads[i]);
      }
  }
}

}  // namespace

static float4 memory[SHARED / sizeof(float4)];
float4 *emulated_memory = memory;

const dim3 &emulated_thread() {
  return threads[current].index;
}
void __syncthreads() {
  pass(&block_barrier, &alive);
}
void __syncwarp() {
  pass(&warp_barrier[current / WARP], &alive_in_warp[current / WARP]);
}

uint64_t emulated_exchange(uint64_t mine, int distance) {
  slots[current] = mine;
  __syncwarp();
  const uint64_t other = slots[current ^ distance];
  __syncwarp();
  return other;
}

unsigned __ballot_sync(unsigned, bool vote) {
  unsigned votes = 0;
  slots[current] = vote;
  __syncwarp();
  for (int i = 0; i < WARP; ++i) votes |= (unsigned)slots[current / WARP * WARP + i] << i;
  __syncwarp();
  return votes;
}

static void run_blocks(dim3 grid, dim3 block, const std::function<void()> &kernel) {
  body = &kernel;
  count = (int)block.x;
  emulated_block_size = block;
  emulated_grid_size = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        emulated_block = dim3(x, y, z);
        run_block();
      }
}

static void refuse(const char *what) {
  fprintf(stderr, "a GPU would refuse: %s\n", what);
  abort();
}

void emulated_start(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                    const std::function<void()> &kernel) {
  const bool possible = grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535 && block.x >= 1 &&
                        block.x <= MAX_THREADS && block.y == 1 && block.z == 1;
  if (!possible || shared_bytes > SHARED) {
    fprintf(stderr, "grid %u %u %u, block %u, %zu bytes\n", grid.x, grid.y, grid.z, block.x, shared_bytes);
    refuse("a launch");
  }
  if (emulated_submit(stream, [=] { run_blocks(grid, block, kernel); }) != cudaSuccess) refuse("a launch");
}

/* ---- streams, events, graphs ---- */

namespace {

struct Node {
  std::function<void()> work;
  std::vector<int> after;
};
typedef std::vector<Node> Graph;

struct Stream {
  int capture;              // in which recording it takes part, 0: none
  std::vector<int> latest;  // nodes that its next one comes after
};
typedef Stream Event;  // what a stream had when it was recorded

Graph *recording;
Stream *origin;
std::vector<Stream *> streams;
int captures;

Stream *of(cudaStream_t s) {
  return reinterpret_cast<Stream *>(s);
}
Event *of(cudaEvent_t e) {
  return reinterpret_cast<Event *>(e);
}
bool is_captured(const Stream *s) {
  return recording && s->capture == captures;
}

// Whether the origin comes after all that was recorded.
bool joined() {
  std::vector<char> seen(recording->size() + 1, 0);
  std::vector<int> open = origin->latest;
  while (!open.empty()) {
    const int n = open.back();
    open.pop_back();
    if (seen[(size_t)n]) continue;
    seen[(size_t)n] = 1;
    for (int before : (*recording)[(size_t)n].after) open.push_back(before);
  }
  return std::count(seen.begin(), seen.end() - 1, 0) == 0;
}

void run_graph(const Graph &graph) {
  std::vector<int> waits(graph.size(), 0), ready;
  std::vector<std::vector<int>> next(graph.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    waits[i] = (int)graph[i].after.size();
    for (int before : graph[i].after) next[(size_t)before].push_back((int)i);
    if (waits[i] == 0) ready.push_back((int)i);
  }
  while (!ready.empty()) {
    random_state = random_state * 1664525u + 1013904223u;
    const size_t at = (random_state >> 8) % ready.size();
    const int n = ready[at];
    ready.erase(ready.begin() + (long)at);
    graph[(size_t)n].work();
    for (int later : next[(size_t)n])
      if (--waits[(size_t)later] == 0) ready.push_back(later);
  }
}

}  // namespace

cudaError_t emulated_submit(cudaStream_t stream, const std::function<void()> &work) {
  if (!recording) {
    work();
    return cudaSuccess;
  }
  Stream *s = of(stream);
  if (!is_captured(s)) return cudaErrorStreamCaptureIsolation;
  recording->push_back({work, s->latest});
  s->latest.assign(1, (int)recording->size() - 1);
  return cudaSuccess;
}

/* After whatever was submitted this way before, on any stream. */
cudaError_t emulated_submit_in_order(cudaStream_t stream, const std::function<void()> &work) {
  static int latest, latest_capture;
  const cudaError_t status = emulated_submit(stream, work);
  if (status != cudaSuccess || !recording) return status;
  Node &node = recording->back();
  const bool known = std::find(node.after.begin(), node.after.end(), latest) != node.after.end();
  if (latest_capture == captures && !known) node.after.push_back(latest);
  latest = (int)recording->size() - 1;
  latest_capture = captures;
  return status;
}

/* ---- the runtime ---- */

extern "C" {

static cudaError_t give(void **out, size_t bytes) {
  if (recording) return cudaErrorStreamCaptureUnsupported;
  *out = bytes < (size_t)1 << 40 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
  if (!*out) return cudaErrorMemoryAllocation;
  memset(*out, 0xff, bytes);
  return cudaSuccess;
}
static std::unordered_map<void *, size_t> device_memory;  // as the driver counts it: whole pages
cudaError_t cudaMalloc(void **out, size_t bytes) {
  const cudaError_t status = give(out, bytes);
  if (status == cudaSuccess) device_memory[*out] = (bytes + PAGE - 1) / PAGE * PAGE;
  return status;
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
  return give(out, bytes);
}
cudaError_t cudaFree(void *memory_) {
  device_memory.erase(memory_);
  free(memory_);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *memory_) {
  return cudaFree(memory_);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return emulated_submit(stream, [=] { memset(to, value, bytes); });
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulated_submit(stream, [=] { memmove(to, from, bytes); });
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *total = (size_t)80 << 30;
  *available = *total - CONTEXT;
  for (const auto &one : device_memory) *available -= one.second;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int) {
  Stream *s = new Stream();
  streams.push_back(s);
  *out = reinterpret_cast<cudaStream_t>(s);
  return recording ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams.erase(std::find(streams.begin(), streams.end(), of(stream)));
  delete of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return is_captured(of(stream)) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event());
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) {
  return cudaEventCreateWithFlags(out, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *of(event) = *of(stream);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  static float now;
  *milliseconds = now += 1;
  return cudaSuccess;
}
/* An event from outside the recording cannot be waited for inside it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Stream *s = of(stream);
  const Event *e = of(event);
  if (is_captured(s) != is_captured(e) && !is_captured(e)) return cudaErrorStreamCaptureIsolation;
  if (!is_captured(e)) return cudaSuccess;
  if (!is_captured(s)) s->latest.clear();
  s->capture = captures;
  for (int n : e->latest)
    if (std::find(s->latest.begin(), s->latest.end(), n) == s->latest.end()) s->latest.push_back(n);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (recording) return cudaErrorIllegalState;
  recording = new Graph();
  origin = of(stream);
  origin->capture = ++captures;
  origin->latest.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  const bool complete = recording && of(stream) == origin && joined();
  *out = reinterpret_cast<cudaGraph_t>(recording);
  recording = nullptr;
  return complete ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  *out = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph *>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph *>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Graph *>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (is_captured(of(stream))) return cudaErrorStreamCaptureUnsupported;
  run_graph(*reinterpret_cast<Graph *>(graph));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *devices) {
  *devices = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->major = 9;
  properties->multiProcessorCount = 13;
  properties->sharedMemPerBlockOptin = SHARED;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  return cudaDriverGetVersion(version);
}
cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t) {
  return "an emulated error";
}
const char *cudaGetErrorName(cudaError_t) {
  return "emulated";
}
}
