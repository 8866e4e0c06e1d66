/* Blocks one after another; the threads of a block as contexts. */
#include "tests/emulator/emulator.h"

#include <sys/mman.h>

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
  dim3 index;
  int context;  // the context that it runs on; NONE: it has not begun this block
  bool done;
};
enum { NONE = -1 };

struct Barrier {
  int arrived, turn;
};

Thread threads[MAX_THREADS];
// A context whose thread has ended runs the next thread that has not begun, at once or when a thread waits: a kernel
// without barriers needs a single context, whose stack stays in the cache.
Place contexts[MAX_THREADS];
int idle[MAX_THREADS], idle_count, made;
Place scheduler;  // run_block(), which continues when all threads of a block have ended
const std::function<void()> *body;
int current, count, alive, alive_in_warp[MAX_THREADS / WARP];
int tried, step;  // of this turn: how many threads had their chance to run, the distance from one to the next
Barrier block_barrier, warp_barrier[MAX_THREADS / WARP];
uint64_t slots[2][MAX_THREADS];
struct Fragment {
  uint32_t a[4], b[2];
};
Fragment fragments[2][MAX_THREADS];
// An asynchronous copy of a thread that is not done yet, and the number of groups that were ended before it started.
struct Copy {
  float4 *to;
  const void *from;
  int group;
};
std::vector<Copy> copies[MAX_THREADS];
int groups[MAX_THREADS];

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

// Stacks take memory where they are used.
int make_context() {
  static char *stacks;
  if (!stacks) {
    void *memory = mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) emulated_refuse("no memory for stacks");
    stacks = static_cast<char *>(memory);
  }
  make_place(&contexts[made], stacks + (size_t)made * STACK, run_thread);
  return made++;
}

void choose_thread() {
  current = next_thread();
  emulated_thread = &threads[current].index;
}

// Continues with the current thread, on an idle context or a new one if it has not begun.
void resume(Place *from) {
  Thread *to = &threads[current];
  if (to->context == NONE) to->context = idle_count ? idle[--idle_count] : make_context();
  if (from != &contexts[to->context]) change(from, &contexts[to->context]);
}

// Continues with the next thread; returns when it is the turn of this one again.
void change_thread(Place *from) {
  choose_thread();
  resume(from);
}

// Runs one thread after another, also of later blocks.
void run_thread() {
  for (;;) {
    (*body)();
    Thread *mine = &threads[current];
    const int own = mine->context;
    if (!copies[current].empty()) emulated_refuse("copies that a thread did not wait for");
    mine->done = true;
    --alive_in_warp[current / WARP];
    if (--alive > 0) {
      choose_thread();
      if (threads[current].context == NONE) {
        threads[current].context = own;
        continue;
      }
    }
    idle[idle_count++] = own;
    if (alive == 0)
      change(&contexts[own], &scheduler);
    else
      resume(&contexts[own]);
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
      change_thread(&contexts[threads[current].context]);
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
    t->context = NONE;
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

/* ---- tensor cores ---- */

void emulated_load_matrices(uint32_t *to, const void *row, bool turned) {
  if ((uintptr_t)row % 16 != 0) emulated_refuse("a row of a matrix that is not aligned to 16 bytes");
  const uint64_t *rows = share((uint64_t)(uintptr_t)row) + current / WARP * WARP;
  const int lane = current % WARP, along = lane % 4 * 2, across = lane / 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t element[2];
    for (int i = 0; i < 2; ++i) {
      const char *at = (const char *)(uintptr_t)rows[8 * matrix + (turned ? along + i : across)];
      memcpy(&element[i], at + 2 * (turned ? across : along + i), sizeof element[i]);
    }
    memcpy(&to[matrix], element, sizeof element);
  }
}

static float half_of(uint32_t word, int half, float (*value)(uint16_t)) {
  return value((uint16_t)(half ? word >> 16 : word & 0xffffU));
}

/* Word w of lane l of a left fragment has the elements 2 (l % 4) + 8 (w / 2) and the next one of row l / 4 + 8 (w % 2);
 * of a right one, the same rows (8 w more) of column l / 4. */
void emulated_multiply_add(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1, float (*value)(uint16_t)) {
  Fragment *set = fragments[warp_barrier[current / WARP].turn & 1];
  memcpy(set[current].a, a, sizeof set[current].a);
  set[current].b[0] = b0, set[current].b[1] = b1;
  __syncwarp();
  set += current / WARP * WARP;
  const int lane = current % WARP;
  float left[2][16], right[2][16];
  for (int k = 0; k < 16; ++k)
    for (int i = 0; i < 2; ++i) {
      left[i][k] = half_of(set[lane / 4 * 4 + k % 8 / 2].a[i + k / 8 * 2], k % 2, value);
      right[i][k] = half_of(set[(lane % 4 * 2 + i) * 4 + k % 8 / 2].b[k / 8], k % 2, value);
    }
  for (int i = 0; i < 4; ++i) {
    float product = 0;
    for (int k = 0; k < 16; ++k) product += left[i / 2][k] * right[i % 2][k];
    sum[i] += product;
  }
}

/* ---- asynchronous copies ---- */

static void do_copy(const Copy &copy) {
  if (copy.from)
    memcpy(copy.to, copy.from, sizeof *copy.to);
  else
    memset(copy.to, 0, sizeof *copy.to);
}

void copy_chunk(float4 *to, const void *from, bool inside) {
  if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0) emulated_refuse("a copy that is not aligned to 16 bytes");
  const Copy copy = {to, inside ? from : nullptr, groups[current]};
  if (emulated_random() % 2)
    do_copy(copy);
  else
    copies[current].push_back(copy);
}

void commit_copies() {
  ++groups[current];
}

void emulated_wait_for_copies(int but) {
  std::vector<Copy> *mine = &copies[current];
  size_t done = 0;
  while (done < mine->size() && (*mine)[done].group < groups[current] - but) do_copy((*mine)[done++]);
  mine->erase(mine->begin(), mine->begin() + (std::ptrdiff_t)done);
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
