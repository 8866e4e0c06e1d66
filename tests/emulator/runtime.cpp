/* The part of the CUDA runtime that the backend uses, on host memory and as strict as the real one can be.
 *
 * Work of a stream is done when the host waits for it, in an order drawn anew each time among those that streams and
 * events allow, so that a missing wait or dependency shows; graphs keep the recorded work and run the same way. Device
 * memory lies between guard pages and can only be touched while a device's work runs. A call that must not be made
 * while a stream is recorded corrupts the recording. */
#include "tests/emulator/runtime.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace {

enum { HOST_PAGE = 4096, DEVICE_PAGE = 2 << 20, CONTEXT = 512 << 20, ALIGNMENT = 256 };
enum { BEFORE = 0xFF, BEHIND = 0xA5, LARGE = 128 << 10, WORKSPACE = 32 << 20, STEP = 64 << 20, FILLED = 256 << 10 };
const size_t TOTAL = (size_t)80 << 30;

uint32_t random_state = 1;

struct Node {
  std::function<void()> work;
  std::vector<long> after;
  double milliseconds;
};
struct Recording {
  std::vector<Node> nodes;
  bool spoiled;
};
struct Program { /* an instantiated graph */
  std::vector<Node> nodes;
  int running;
};
struct Stream {
  int capture;                   /* the recording that it takes part in or, of an event, took part in; 0: none */
  std::vector<long> latest;      /* what its next work comes after */
  std::vector<long> latest_node; /* the same in the recording */
  double at;                     /* when the latest is done, in milliseconds */
};
struct Event : Stream {
  bool timed, recorded;
};

/* Work that was submitted since emulated_trace(): for tests of dependencies. */
struct Traced {
  long number;
  std::vector<long> after;
};
bool tracing, first_of_work;
double work_milliseconds;
std::vector<Traced> trace;

std::map<long, Node> pending; /* what streams were given, by its number */
long numbers;
Recording *recording;
Stream *origin;
Stream legacy; /* the stream NULL */
int captures;
double waited; /* when the latest that the host has waited for was done: nothing new begins earlier */

Stream *of(cudaStream_t s) {
  return s ? reinterpret_cast<Stream *>(s) : &legacy;
}
Event *of(cudaEvent_t e) {
  return reinterpret_cast<Event *>(e);
}
bool is_captured(const Stream *s) {
  return recording && s->capture == captures;
}
cudaError_t last_error = cudaSuccess; /* until somebody asks */
cudaError_t spoil(cudaError_t status) {
  if (recording) recording->spoiled = true;
  return last_error = status;
}
void join(std::vector<long> *to, const std::vector<long> &from) {
  for (long n : from)
    if (std::find(to->begin(), to->end(), n) == to->end()) to->push_back(n);
}

/* ---- memory ---- */

struct Allocation {
  char *map, *begin; /* reserved addresses; the first that can be touched */
  size_t bytes, rounded, inside, mapped;
  bool device;
};
std::map<char *, Allocation> allocations; /* by address */
int open_count;

const Allocation *find(const void *address, size_t bytes) {
  char *at = static_cast<char *>(const_cast<void *>(address));
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return nullptr;
  const auto &found = *--next;
  return at + bytes <= found.first + found.second.bytes ? &found.second : nullptr;
}

bool in_host_function;

void protect(const Allocation &a, bool open) {
  mprotect(a.begin, a.inside, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect_device(bool open) {
  for (const auto &one : allocations)
    if (one.second.device) protect(one.second, open);
}

/* While it is closed, the host cannot touch device memory. */
void open_memory(bool open) {
  open_count += open ? 1 : -1;
  if (open_count == (open ? 1 : 0)) protect_device(open);
}

/* Empties the files of a folder, for tests of a disk that fails while a step runs. */
void cut_files(const char *folder) {
  DIR *list = opendir(folder);
  for (const dirent *one = list ? readdir(list) : nullptr; one; one = readdir(list)) {
    const int fd = openat(dirfd(list), one->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, 0) != 0) perror(one->d_name);
    if (fd >= 0) close(fd);
  }
  if (list) closedir(list);
}

/* A function of the host cannot touch device memory either, nor call the runtime. */
void call_host(cudaHostFn_t function, void *user) {
  protect_device(false);
  in_host_function = true;
  const char *cut = getenv("EMULATED_CUT_FILES");
  if (cut) cut_files(cut);
  function(user);
  in_host_function = false;
  protect_device(true);
}

/* Reserves an allocation's addresses, with guards before and after it. From some size on its memory consists of huge
 * pages, since open_memory() takes as long as there are pages. */
bool reserve(Allocation *a) {
  const size_t page = a->rounded >= LARGE ? DEVICE_PAGE : HOST_PAGE;
  a->inside = (a->rounded + page - 1) / page * page;
  a->mapped = a->inside + page + HOST_PAGE;
  void *map = mmap(nullptr, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return false;
  a->map = static_cast<char *>(map);
  a->begin = a->map + page - (uintptr_t)a->map % page;
  if (page == DEVICE_PAGE) madvise(a->begin, a->inside, MADV_HUGEPAGE);
  return true;
}

cudaError_t give(void **out, size_t bytes, bool device) {
  *out = nullptr;
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return cudaSuccess;
  if (bytes > TOTAL) return cudaErrorMemoryAllocation;
  Allocation a = {};
  a.bytes = bytes;
  a.rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  a.device = device;
  if (!reserve(&a)) return cudaErrorMemoryAllocation;
  protect(a, true);
  char *at = a.begin + a.inside - a.rounded; /* what goes too far meets the guard */
  /* All bytes are NaN, those before the allocation too. A workspace of many megabytes, whose parts begin at multiples
   * of STEP, has NaN where these begin: touching all of it takes longer than a short training. */
  memset(a.begin, BEFORE, (size_t)(at - a.begin));
  const size_t step = a.rounded < WORKSPACE ? bytes : STEP, filled = a.rounded < WORKSPACE ? bytes : FILLED;
  for (size_t i = 0; i < bytes; i += step) memset(at + i, BEFORE, std::min(bytes - i, filled));
  memset(at + bytes, BEHIND, a.rounded - bytes);
  allocations[at] = a;
  if (device) protect(a, false);
  *out = at;
  return cudaSuccess;
}

/* ---- running ---- */

/* Work that is run now: how many of the work that it comes after are not done, and what comes after it. */
struct Due {
  int before;
  std::vector<long> next;
};

/* The wanted and all that they come after, as far as it is not done. */
std::map<long, Due> due_for(std::vector<long> open) {
  std::map<long, Due> due;
  while (!open.empty()) {
    const long n = open.back();
    open.pop_back();
    const auto found = pending.find(n);
    if (found == pending.end() || !due.emplace(n, Due()).second) continue;
    open.insert(open.end(), found->second.after.begin(), found->second.after.end());
  }
  for (auto &one : due)
    for (long before : pending[one.first].after) {
      const auto earlier = due.find(before);
      if (earlier == due.end()) continue;
      earlier->second.next.push_back(one.first);
      ++one.second.before;
    }
  return due;
}

void run(const std::vector<long> &wanted) {
  std::map<long, Due> due = due_for(wanted);
  std::vector<long> ready;
  for (const auto &one : due)
    if (one.second.before == 0) ready.push_back(one.first);
  if (ready.empty()) return;
  open_memory(true);
  while (!ready.empty()) {
    const size_t at = emulated_random() % ready.size();
    const long n = ready[at];
    ready.erase(ready.begin() + (long)at);
    pending[n].work();
    pending.erase(n);
    for (long later : due[n].next)
      if (--due[later].before == 0) ready.push_back(later);
  }
  open_memory(false);
}

void run_everything() {
  std::vector<long> all;
  for (const auto &one : pending) all.push_back(one.first);
  run(all);
}

void run_program(const std::vector<Node> &nodes) {
  std::vector<int> waits(nodes.size(), 0), ready;
  std::vector<std::vector<int>> next(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    waits[i] = (int)nodes[i].after.size();
    for (long before : nodes[i].after) next[(size_t)before].push_back((int)i);
    if (waits[i] == 0) ready.push_back((int)i);
  }
  while (!ready.empty()) {
    const size_t at = emulated_random() % ready.size();
    const int n = ready[at];
    ready.erase(ready.begin() + (long)at);
    nodes[(size_t)n].work();
    for (int later : next[(size_t)n])
      if (--waits[(size_t)later] == 0) ready.push_back(later);
  }
}

/* Nodes without a predecessor begin together; edges lead to later nodes only. */
double milliseconds_of(const std::vector<Node> &nodes) {
  std::vector<double> done;
  double last = 0;
  for (const Node &node : nodes) {
    double start = 0;
    for (long before : node.after) start = std::max(start, done[(size_t)before]);
    done.push_back(start + node.milliseconds);
    last = std::max(last, done.back());
  }
  return last;
}

void wait_for(const Stream *s) {
  if (in_host_function) emulated_refuse("a function of the host waits for the device");
  run(s->latest);
  waited = std::max(waited, s->at);
}

// Returns true if the origin comes after all recorded work.
bool joined() {
  std::vector<char> seen(recording->nodes.size() + 1, 0);
  std::vector<long> open = origin->latest_node;
  while (!open.empty()) {
    const long n = open.back();
    open.pop_back();
    if (seen[(size_t)n]) continue;
    seen[(size_t)n] = 1;
    for (long before : recording->nodes[(size_t)n].after) open.push_back(before);
  }
  return std::count(seen.begin(), seen.end() - 1, 0) == 0;
}

bool is_pending(const Stream *s) {
  for (long n : s->latest)
    if (pending.count(n)) return true;
  return false;
}

}  // namespace

uint32_t emulated_random() {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}
void emulated_refuse(const char *what) {
  fprintf(stderr, "a GPU would not do this: %s\n", what);
  abort();
}
bool emulated_is_device(const void *address, size_t bytes) {
  const Allocation *a = find(address, bytes);
  return a && a->device;
}
bool emulated_is_recorded(cudaStream_t stream) {
  return is_captured(of(stream));
}

cudaError_t emulated_submit(cudaStream_t stream, const std::function<void()> &work, double milliseconds) {
  if (in_host_function) emulated_refuse("work that a function of the host starts");
  Stream *s = of(stream);
  if (recording) {
    if (!is_captured(s)) return spoil(stream ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureImplicit);
    recording->nodes.push_back({work, s->latest_node, milliseconds});
    s->latest_node.assign(1, (long)recording->nodes.size() - 1);
    return recording->spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  if (tracing) {
    milliseconds = first_of_work ? work_milliseconds : 0;
    first_of_work = false;
    trace.push_back({numbers + 1, s->latest});
  }
  pending[++numbers] = {work, s->latest, milliseconds};
  s->at = std::max(s->at, waited) + milliseconds;
  s->latest.assign(1, numbers);
  return cudaSuccess;
}

cudaError_t emulated_submit_in_order(cudaStream_t stream, const std::function<void()> &work) {
  static long latest, latest_node, latest_capture;
  static double latest_at;
  if (!recording) of(stream)->at = std::max(of(stream)->at, latest_at);
  const cudaError_t status = emulated_submit(stream, work);
  if (status != cudaSuccess) return status;
  if (!recording) {
    if (pending.count(latest)) join(&pending[numbers].after, {latest});
    latest = numbers;
    latest_at = of(stream)->at;
    return status;
  }
  if (latest_capture == captures) join(&recording->nodes.back().after, {latest_node});
  latest_node = (long)recording->nodes.size() - 1;
  latest_capture = captures;
  return status;
}

/* ---- for tests (tests/emulator/trace.h) ---- */

extern "C" {
__attribute__((visibility("default"))) void emulated_trace(int on) {
  tracing = on != 0;
  trace.clear();
}
__attribute__((visibility("default"))) long emulated_traced(void) {
  return (long)trace.size();
}
__attribute__((visibility("default"))) void emulated_work(double milliseconds) {
  work_milliseconds = milliseconds;
  first_of_work = true;
}
__attribute__((visibility("default"))) long emulated_node(long index, long *after, int most, int *count) {
  const Traced &one = trace[(size_t)index];
  *count = (int)one.after.size();
  for (int i = 0; i < *count && i < most; ++i) after[i] = one.after[(size_t)i];
  return one.number;
}
}

/* ---- the runtime ---- */

extern "C" {

cudaError_t cudaMalloc(void **out, size_t bytes) {
  return give(out, bytes, true);
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
  return give(out, bytes, false);
}
/* Waits for the device. The place stays forbidden. */
static cudaError_t take_back(void *address, bool device) {
  if (!address) return cudaSuccess;
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  const auto found = allocations.find(static_cast<char *>(address));
  if (found == allocations.end() || found->second.device != device) return cudaErrorInvalidValue;
  run_everything();
  const Allocation a = found->second;
  protect(a, true);
  for (size_t i = a.bytes; i < a.rounded; ++i)
    if (found->first[i] != (char)BEHIND) emulated_refuse("a write past the end of an allocation");
  const size_t before = (size_t)(found->first - a.begin);
  if (before && (a.begin[0] != (char)BEFORE || memcmp(a.begin, a.begin + 1, before - 1) != 0))
    emulated_refuse("a write before the beginning of an allocation");
  allocations.erase(found);
  mmap(a.map, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return cudaSuccess;
}
cudaError_t cudaFree(void *address) {
  return take_back(address, true);
}
cudaError_t cudaFreeHost(void *address) {
  return take_back(address, false);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *total = TOTAL;
  *available = TOTAL - CONTEXT;
  for (const auto &one : allocations) /* whole pages, as the driver counts */
    if (one.second.device) *available -= (one.second.bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  if (!find(to, bytes)) emulated_refuse("memory to set that is not the device's");
  return emulated_submit(stream, [=] { memset(to, value, bytes); });
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
/* Pageable memory is read before the call returns, and written before it returns; recordings do not take it. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const Allocation *target = find(to, bytes), *source = find(from, bytes);
  if ((!target && find(to, 1)) || (!source && find(from, 1))) emulated_refuse("a copy beyond an allocation");
  if (kind == cudaMemcpyDeviceToDevice && !(target && source)) emulated_refuse("a copy of memory not the device's");
  if (recording && !(target && source)) return spoil(cudaErrorStreamCaptureUnsupported);
  if (!source) {
    const std::vector<char> staged(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
    return emulated_submit(stream, [=] { memcpy(to, staged.data(), bytes); });
  }
  const cudaError_t status = emulated_submit(stream, [=] { memmove(to, from, bytes); });
  if (!target) wait_for(of(stream));
  return status;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user) {
  return emulated_submit(stream, [=] { call_host(function, user); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) {
  if (flags != cudaStreamNonBlocking) emulated_refuse("a stream that waits for the stream NULL");
  *out = reinterpret_cast<cudaStream_t>(new Stream());
  return recording ? spoil(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (is_captured(of(stream))) return spoil(cudaErrorStreamCaptureUnsupported);
  delete of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_captured(of(stream))) return spoil(cudaErrorStreamCaptureUnsupported);
  wait_for(of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const bool busy = is_pending(of(stream));
  const cudaError_t status = cudaStreamSynchronize(stream);
  return status == cudaSuccess && busy ? cudaErrorNotReady : status; /* done when asked again */
}
cudaError_t cudaDeviceSynchronize(void) {
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  run_everything();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  Event *e = new Event();
  e->timed = !(flags & cudaEventDisableTiming);
  *out = reinterpret_cast<cudaEvent_t>(e);
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
  if (recording && !is_captured(of(stream))) return spoil(cudaErrorStreamCaptureIsolation);
  static_cast<Stream &>(*of(event)) = *of(stream);
  of(event)->at = std::max(of(event)->at, waited);
  of(event)->recorded = true;
  if (!is_captured(of(stream))) of(event)->capture = 0;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  if (of(event)->capture) return cudaErrorCapturedEvent;
  wait_for(of(event));
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t second) {
  for (const Event *e : {of(first), of(second)}) {
    if (!e->timed || !e->recorded || e->capture) return cudaErrorInvalidResourceHandle;
    if (is_pending(e)) return cudaErrorNotReady;
  }
  *milliseconds = (float)(of(second)->at - of(first)->at);
  return cudaSuccess;
}
/* An event from outside the recording cannot be waited for inside it, nor one of a recording afterwards. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Stream *s = of(stream);
  const Event *e = of(event);
  if (!e->recorded) return cudaSuccess;
  if (is_captured(e)) {
    if (!is_captured(s)) s->latest_node.clear();
    s->capture = captures;
    join(&s->latest_node, e->latest_node);
    return cudaSuccess;
  }
  if (recording) return spoil(cudaErrorStreamCaptureIsolation);
  if (e->capture) return cudaErrorCapturedEvent;
  join(&s->latest, e->latest);
  s->at = std::max(s->at, e->at);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (recording) return cudaErrorIllegalState;
  if (!stream) return cudaErrorStreamCaptureUnsupported;
  recording = new Recording();
  origin = of(stream);
  origin->capture = ++captures;
  origin->latest_node.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  *out = nullptr;
  if (!recording) return cudaErrorIllegalState;
  Recording *ended = recording;
  cudaError_t status = of(stream) != origin ? cudaErrorStreamCaptureUnmatched
                       : ended->spoiled     ? cudaErrorStreamCaptureInvalidated
                       : joined()           ? cudaSuccess
                                            : cudaErrorStreamCaptureUnjoined;
  recording = nullptr;
  if (status != cudaSuccess) last_error = status;
  if (status == cudaSuccess)
    *out = reinterpret_cast<cudaGraph_t>(ended);
  else
    delete ended;
  return status;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  if (getenv("EMULATED_NO_GRAPHS")) return spoil(cudaErrorMemoryAllocation); /* for tests of what comes then */
  *out = reinterpret_cast<cudaGraphExec_t>(new Program{reinterpret_cast<Recording *>(graph)->nodes, 0});
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Recording *>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  Program *program = reinterpret_cast<Program *>(graph);
  if (program->running) emulated_refuse("a graph is destroyed while it runs");
  delete program;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Program *program = reinterpret_cast<Program *>(graph);
  if (recording) return spoil(cudaErrorStreamCaptureUnsupported);
  ++program->running;
  return emulated_submit(
      stream,
      [=] {
        run_program(program->nodes);
        --program->running;
      },
      milliseconds_of(program->nodes));
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
cudaError_t cudaDriverGetVersion(int *version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  return cudaDriverGetVersion(version);
}
cudaError_t cudaGetLastError(void) {
  const cudaError_t last = last_error;
  last_error = cudaSuccess;
  return last;
}
const char *cudaGetErrorString(cudaError_t) {
  return "an emulated error";
}
const char *cudaGetErrorName(cudaError_t) {
  return "emulated";
}
}
