/* Blocks one after another; the threads of a block as contexts. */
#include "tests/emulator/emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <set>
#include <vector>

dim3 emulated_block, emulated_block_size, emulated_grid_size;

namespace {

// Stacks are not a power of two apart: their hot lines would share one set of every cache.
enum { MAX_THREADS = 1024, STACK = (64 << 10) + 5 * 64, SHARED = 227 << 10, WARP = 32, UNASKED = 48 << 10 };

struct Thread {
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
uint64_t slots[2][MAX_THREADS];

void leave() {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

// A thread goes from block to block: only its first start costs system calls.
void run_thread() {
  for (;;) {
    (*body)();
    threads[current].done = true;
    --alive;
    --alive_in_warp[current / WARP];
    leave();
  }
}

void start(int thread) {
  static std::vector<char> stacks((size_t)MAX_THREADS * STACK);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks.data() + (size_t)thread * STACK;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, run_thread, 0);
  setcontext(&context);
}

__attribute__((noinline)) void resume(Thread *t) {
  if (_setjmp(scheduler) != 0) return;
  if (t->started) _longjmp(t->place, 1);
  t->started = true;
  start(current);
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

void run_block(size_t shared_bytes) {
  memset(emulated_memory, 0xff, shared_bytes);  // NaN
  alive = count;
  block_barrier = Barrier();
  for (int i = 0; i < count; ++i) {
    Thread *t = &threads[i];
    t->done = false;
    t->index = dim3((unsigned)i, 0, 0);
    warp_barrier[i / WARP] = Barrier();
    alive_in_warp[i / WARP] = (count - i / WARP * WARP < WARP) ? count - i / WARP * WARP : WARP;
  }
  while (alive) {
    const uint32_t random = emulated_random();
    const int first = (int)(random / 2 % (unsigned)count), step = random % 2 ? count - 1 : 1;
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

// Values written before one barrier are read before the next: two alternating sets of slots need no other barrier.
static uint64_t *share(uint64_t mine) {
  uint64_t *set = slots[warp_barrier[current / WARP].turn & 1];
  set[current] = mine;
  __syncwarp();
  return set;
}

uint64_t emulated_exchange(uint64_t mine, int distance) {
  return share(mine)[current ^ distance];
}

unsigned __ballot_sync(unsigned, bool vote) {
  const uint64_t *set = share(vote) + current / WARP * WARP;
  unsigned votes = 0;
  for (int i = 0; i < WARP; ++i) votes |= (unsigned)set[i] << i;
  return votes;
}

static void run_blocks(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel) {
  body = &kernel;
  count = (int)block.x;
  emulated_block_size = block;
  emulated_grid_size = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        emulated_block = dim3(x, y, z);
        run_block(shared_bytes);
      }
}

/* Shared memory beyond what every kernel may have, as asked for. */
static std::set<size_t> allowed;

void emulated_start(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, bool *loaded,
                    const std::function<void()> &kernel) {
  const bool possible = grid.x && grid.y && grid.z && grid.x <= 0x7fffffffU && grid.y <= 65535 && grid.z <= 65535 &&
                        block.x >= 1 && block.x <= MAX_THREADS && block.y == 1 && block.z == 1;
  if (!possible || shared_bytes > SHARED || (shared_bytes > UNASKED && !allowed.count(shared_bytes))) {
    fprintf(stderr, "grid %u %u %u, block %u, %zu bytes of shared memory\n", grid.x, grid.y, grid.z, block.x,
            shared_bytes);
    emulated_refuse("a launch");
  }
  if (!*loaded && emulated_is_recorded(stream)) emulated_refuse("a kernel that is loaded while a step is recorded");
  *loaded = true;
  if (emulated_submit(stream, [=] { run_blocks(grid, block, shared_bytes, kernel); }) != cudaSuccess)
    emulated_refuse("a launch");
}

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "emulated device");
  properties->major = 9;
  properties->multiProcessorCount = 13;
  properties->sharedMemPerBlockOptin = SHARED;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute name, int value) {
  if (name != cudaFuncAttributeMaxDynamicSharedMemorySize || value > SHARED) return cudaErrorInvalidValue;
  allowed.insert((size_t)value);
  return cudaSuccess;
}
}
