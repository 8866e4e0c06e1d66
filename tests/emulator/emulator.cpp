/* Blocks one after another; the threads of a block as contexts. */
#include "tests/emulator/emulator.h"

#include <cstdio>
#include <set>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

dim3 emulated_block, emulated_block_size, emulated_grid_size;
const dim3 *emulated_thread;

namespace {

// Stacks are not a power of two apart: their hot lines would share one set of every cache.
enum { MAX_THREADS = 1024, STACK = (64 << 10) + 5 * 64, SHARED = 227 << 10, WARP = 32, UNASKED = 48 << 10 };

// The state of a suspended context that change() restores.
#ifdef __x86_64__
typedef void *Place;  // the top of its stack, where its registers are
#else
typedef ucontext_t Place;
#endif

struct Thread {
  Place place;
  dim3 index;
  bool started, done;
};

struct Barrier {
  int arrived, turn;
};

Thread threads[MAX_THREADS];
Place scheduler;  // run_block(), which continues when all threads of a block have ended
const std::function<void()> *body;
int current, count, alive, alive_in_warp[MAX_THREADS / WARP];
int tried, step;  // of this turn: how many threads had their chance to run, the distance from one to the next
Barrier block_barrier, warp_barrier[MAX_THREADS / WARP];
uint64_t slots[2][MAX_THREADS];

}  // namespace

// Barriers change contexts all the time, and glibc's functions for it take longer than most of what runs between two.
#ifdef __x86_64__
extern "C" __attribute__((visibility("hidden"))) void emulated_change(Place *from, const Place *to);
__asm__(
    ".text\n.hidden emulated_change\n.globl emulated_change\n.type emulated_change,@function\nemulated_change:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq (%rsi),%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emulated_change,.-emulated_change\n");

static void change(Place *from, const Place *to) {
  emulated_change(from, to);
}

// Makes a context that calls `run`, which does not return, on an empty stack.
static void make_place(Place *place, char *stack, void (*run)()) {
  enum { REGISTERS = 6 };
  void **top = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(stack + STACK) / 16 * 16);
  *--top = nullptr;  // where `run` would return to
  *--top = reinterpret_cast<void *>(run);
  for (int i = 0; i < REGISTERS; ++i) *--top = nullptr;
  *place = top;
}
#else
static void change(Place *from, const Place *to) {
  swapcontext(from, to);
}

static void make_place(Place *place, char *stack, void (*run)()) {
  getcontext(place);
  place->uc_stack.ss_sp = stack;
  place->uc_stack.ss_size = STACK;
  place->uc_link = nullptr;
  makecontext(place, run, 0);
}
#endif

namespace {

void run_thread();

// The next thread that has not ended, in an order drawn anew when each had its chance.
int next_thread() {
  for (int i = current;;) {
    if (++tried < count) {
      i += step;
      if (i >= count) i -= count;
    } else {
      const uint32_t random = emulated_random();
      tried = 0;
      i = (int)(random / 2 % (unsigned)count);
      step = random % 2 ? count - 1 : 1;
    }
    if (!threads[i].done) return i;
  }
}

// Continues with the next thread; returns when it is the turn of this one again.
void change_thread(Place *from) {
  static std::vector<char> stacks((size_t)MAX_THREADS * STACK);
  current = next_thread();
  Thread *to = &threads[current];
  if (!to->started) make_place(&to->place, stacks.data() + (size_t)current * STACK, run_thread);
  to->started = true;
  emulated_thread = &to->index;
  if (from != &to->place) change(from, &to->place);
}

// Each thread goes from block to block: only its first start makes a context.
void run_thread() {
  for (;;) {
    (*body)();
    Thread *mine = &threads[current];
    mine->done = true;
    --alive_in_warp[current / WARP];
    if (--alive == 0)
      change(&mine->place, &scheduler);
    else
      change_thread(&mine->place);
  }
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
      change_thread(&threads[current].place);
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
  tried = count;
  change_thread(&scheduler);
}

}  // namespace

static float4 memory[SHARED / sizeof(float4)];
float4 *emulated_memory = memory;

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
  properties->l2CacheSize = 1 << 20; /* calibration fills memory of twice this size */
  properties->sharedMemPerBlockOptin = SHARED;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute name, int value) {
  if (name != cudaFuncAttributeMaxDynamicSharedMemorySize || value > SHARED) return cudaErrorInvalidValue;
  allowed.insert((size_t)value);
  return cudaSuccess;
}
}
