/* Blocks one after another; the threads of a block as contexts; and the part of the CUDA runtime that the backend uses,
 * on host memory. */
#include "tests/emulator/emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

dim3 emulated_block, emulated_block_size, emulated_grid_size;

namespace {

enum { MAX_THREADS = 1024, STACK = 64 << 10, SHARED = 227 << 10, WARP = 32 };

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

void emulated_launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel) {
  const bool possible = grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535 && block.x >= 1 &&
                        block.x <= MAX_THREADS && block.y == 1 && block.z == 1;
  if (!possible || shared_bytes > SHARED) {
    fprintf(stderr, "a launch that a GPU would refuse: grid %u %u %u, block %u, %zu bytes\n", grid.x, grid.y, grid.z,
            block.x, shared_bytes);
    abort();
  }
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

/* ---- the runtime ---- */

extern "C" {

static cudaError_t give(void **out, size_t bytes) {
  *out = bytes < (size_t)1 << 40 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
  if (!*out) return cudaErrorMemoryAllocation;
  memset(*out, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
  return give(out, bytes);
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
  return give(out, bytes);
}
cudaError_t cudaFree(void *memory_) {
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
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *available = (size_t)64 << 30;
  *total = (size_t)80 << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int) {
  return give((void **)out, 256);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return cudaFree(stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  return give((void **)out, 256);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return cudaFree(event);
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
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
