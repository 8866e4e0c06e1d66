#include "real/host/bind.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "real/host/host.h"
#include "real/host/internal.h"

#ifdef TWS_HAVE_HWLOC
#include <hwloc.h>

static tws_code no_topology(tws_error *err) {
  return tws_fail(err, TWS_ENVIRONMENT, "set twinspeed.bind_threads to none", "hwloc does not see this machine");
}

/* This machine's topology: hwloc reads it from hundreds of files, so a process loads it once and keeps it. */
static hwloc_topology_t machine;
static pthread_mutex_t machine_lock = PTHREAD_MUTEX_INITIALIZER;

static tws_code load_new(const char *synthetic, hwloc_topology_t *out, tws_error *err) {
  if (hwloc_topology_init(out) != 0) return no_topology(err);
  if ((!synthetic || hwloc_topology_set_synthetic(*out, synthetic) == 0) && hwloc_topology_load(*out) == 0)
    return TWS_OK;
  hwloc_topology_destroy(*out);
  return no_topology(err);
}

/* synthetic: a machine in hwloc's notation; NULL: this one, which unload() keeps. */
static tws_code load(const char *synthetic, hwloc_topology_t *out, tws_error *err) {
  if (synthetic) return load_new(synthetic, out, err);
  hwloc_topology_t loaded = NULL;
  pthread_mutex_lock(&machine_lock);
  const tws_code code = machine ? TWS_OK : load_new(NULL, &loaded, err);
  if (code == TWS_OK && !machine) machine = loaded;
  *out = machine;
  pthread_mutex_unlock(&machine_lock);
  return code;
}

static void unload(hwloc_topology_t topology) {
  if (topology && topology != machine) hwloc_topology_destroy(topology);
}

static hwloc_bitmap_t to_bitmap(const tws_cpus *set) {
  hwloc_bitmap_t out = hwloc_bitmap_alloc();
  for (unsigned i = 0; out && i < TWS_MOST_CPUS; i++)
    if (set->word[i / 64] >> i % 64 & 1) hwloc_bitmap_set(out, i);
  return out;
}

static void from_bitmap(hwloc_const_bitmap_t set, tws_cpus *out) {
  memset(out, 0, sizeof *out);
  for (int i = hwloc_bitmap_first(set); i >= 0 && i < TWS_MOST_CPUS; i = hwloc_bitmap_next(set, i))
    out->word[i / 64] |= UINT64_C(1) << i % 64;
}

tws_code tws_cpus_allowed(tws_cpus *out, tws_error *err) {
  hwloc_topology_t topology;
  TWS_TRY(load(NULL, &topology, err));
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set && hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(set, hwloc_topology_get_allowed_cpuset(topology));
  if (set) hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(topology));
  if (set) from_bitmap(set, out);
  const int ok = set && hwloc_bitmap_weight(set) > 0;
  hwloc_bitmap_free(set);
  return ok ? TWS_OK : no_topology(err);
}

/* Cores with at least one allowed processor, in hwloc's order, in which adjacent cores are close to each other. */
typedef struct cores {
  hwloc_topology_t topology;
  hwloc_bitmap_t allowed;
  hwloc_obj_t *core;
  int count;
} cores;

static void close_cores(cores *c) {
  tws_free(c->core);
  hwloc_bitmap_free(c->allowed);
  unload(c->topology);
}

static tws_code open_cores(const char *synthetic, const tws_cpus *allowed, cores *c, tws_error *err) {
  *c = (cores){.topology = NULL};
  TWS_TRY(load(synthetic, &c->topology, err));
  hwloc_obj_type_t type = HWLOC_OBJ_CORE;
  if (hwloc_get_nbobjs_by_type(c->topology, type) < 1) type = HWLOC_OBJ_PU;
  const int all = hwloc_get_nbobjs_by_type(c->topology, type);
  c->allowed = allowed ? to_bitmap(allowed) : hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(c->topology));
  c->core = tws_calloc((size_t)(all > 0 ? all : 1), sizeof *c->core);
  for (int i = 0; c->core && c->allowed && i < all; i++) {
    hwloc_obj_t core = hwloc_get_obj_by_type(c->topology, type, (unsigned)i);
    if (hwloc_bitmap_intersects(core->cpuset, c->allowed)) c->core[c->count++] = core;
  }
  if (c->count > 0) return TWS_OK;
  close_cores(c);
  return no_topology(err);
}

static int same_numa(const cores *c, int a, int b) {
  return hwloc_bitmap_isequal(c->core[a]->nodeset, c->core[b]->nodeset);
}

tws_code tws_machine_count_parts(const char *synthetic, const tws_cpus *allowed, tws_machine_parts *out,
                                 tws_error *err) {
  cores c;
  TWS_TRY(open_cores(synthetic, allowed, &c, err));
  *out = (tws_machine_parts){.cores = c.count, .numa_nodes = 1};
  for (int i = 1; i < c.count; i++) out->numa_nodes += !same_numa(&c, i - 1, i);
  for (hwloc_obj_t o = c.core[0]; o; o = o->parent) {
    if (o->type == HWLOC_OBJ_L2CACHE) out->second_cache_bytes = o->attr->cache.size;
    if (hwloc_obj_type_is_dcache(o->type) && o->attr->cache.size > 0) out->last_cache_bytes = o->attr->cache.size;
  }
  close_cores(&c);
  return TWS_OK;
}

tws_code tws_cpus_share(const char *synthetic, const tws_cpus *allowed, int index, int count, int threads,
                        tws_cpus *per_thread, int *bound, tws_error *err) {
  cores c;
  TWS_TRY(open_cores(synthetic, allowed, &c, err));
  const int first = (int)((int64_t)c.count * index / count), end = (int)((int64_t)c.count * (index + 1) / count);
  hwloc_bitmap_t part = hwloc_bitmap_alloc();
  int processors = 0;
  for (int i = first; i < end && part; i++) {
    hwloc_bitmap_and(part, c.core[i]->cpuset, c.allowed);
    processors += hwloc_bitmap_weight(part);
  }
  *bound = part && c.count >= count && processors >= threads;
  /* each thread may use all cores of the share that are on one NUMA node */
  for (int t = 0; *bound && t < threads; t++) {
    const int own = first + (int)((int64_t)(end - first) * t / threads);
    hwloc_bitmap_zero(part);
    for (int i = first; i < end; i++)
      if (same_numa(&c, i, own)) hwloc_bitmap_or(part, part, c.core[i]->cpuset);
    hwloc_bitmap_and(part, part, c.allowed);
    from_bitmap(part, &per_thread[t]);
  }
  hwloc_bitmap_free(part);
  close_cores(&c);
  return TWS_OK;
}

typedef struct binding {
  hwloc_topology_t topology;
  const tws_cpus *per_thread;
  hwloc_bitmap_t nodes; /* NUMA nodes on which the share's memory is allocated */
  int has_other_nodes;  /* 1: the machine also has NUMA nodes that are not in `nodes`, so memory must be bound */
  _Atomic int unbound, far_away;
} binding;

static void bind_task(void *arg, int thread, int threads) {
  (void)threads;
  binding *b = arg;
  hwloc_bitmap_t set = to_bitmap(&b->per_thread[thread]);
  if (!set || hwloc_set_cpubind(b->topology, set, HWLOC_CPUBIND_THREAD) != 0) b->unbound = 1;
  hwloc_bitmap_free(set);
  if (!b->has_other_nodes) return;
  const hwloc_membind_policy_t policy =
      hwloc_bitmap_weight(b->nodes) > 1 ? HWLOC_MEMBIND_INTERLEAVE : HWLOC_MEMBIND_BIND;
  if (hwloc_set_membind(b->topology, b->nodes, policy, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
    b->far_away = 1;
}

static void add_nodes(binding *b, const tws_cpus *set) {
  hwloc_bitmap_t cpus = to_bitmap(set), nodes = hwloc_bitmap_alloc();
  if (cpus && nodes) {
    hwloc_cpuset_to_nodeset(b->topology, cpus, nodes);
    hwloc_bitmap_or(b->nodes, b->nodes, nodes);
  }
  hwloc_bitmap_free(cpus);
  hwloc_bitmap_free(nodes);
}

tws_code tws_host_bind(tws_backend *backend, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                       tws_error *err) {
  binding b = {.topology = NULL};
  *bound = *near = 0;
  tws_cpus *per_thread = tws_calloc((size_t)backend->threads, sizeof *per_thread);
  if (!per_thread) return tws_fail(err, TWS_MEMORY, NULL, "no memory to bind threads with");
  b.per_thread = per_thread;
  tws_code code = tws_cpus_share(NULL, allowed, index, count, backend->threads, per_thread, bound, err);
  if (code == TWS_OK && *bound) code = load(NULL, &b.topology, err);
  if (code == TWS_OK && *bound) {
    b.nodes = hwloc_bitmap_alloc();
    for (int t = 0; b.nodes && t < backend->threads; t++) add_nodes(&b, &per_thread[t]);
    b.has_other_nodes =
        b.nodes && hwloc_bitmap_weight(b.nodes) > 0 && hwloc_get_nbobjs_by_type(b.topology, HWLOC_OBJ_NUMANODE) > 1;
    tws_host_pool_run(backend->pool, bind_task, &b);
    *bound = !b.unbound;
    *near = b.has_other_nodes && !b.far_away;
    hwloc_bitmap_free(b.nodes);
  }
  tws_free(per_thread);
  return code;
}

/* ---- one thread on one NUMA node ---- */

struct tws_thread_place {
  hwloc_topology_t topology;
  hwloc_bitmap_t cpus, nodes;
  hwloc_membind_policy_t policy;
  int memory; /* 1: the memory policy was changed */
};

enum { OF_THREAD = HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET };

/* Returns 1 if the kernel accepted that this thread's memory is taken from this node alone. */
static int bind_memory(tws_thread_place *place, int node) {
  hwloc_bitmap_t only = hwloc_bitmap_alloc();
  if (only) hwloc_bitmap_only(only, (unsigned)node);
  place->memory = only && hwloc_get_membind(place->topology, place->nodes, &place->policy, OF_THREAD) == 0 &&
                  hwloc_set_membind(place->topology, only, HWLOC_MEMBIND_BIND, OF_THREAD | HWLOC_MEMBIND_STRICT) == 0;
  hwloc_bitmap_free(only);
  return place->memory;
}

static void free_place(tws_thread_place *place) {
  hwloc_bitmap_free(place->cpus);
  hwloc_bitmap_free(place->nodes);
  tws_free(place);
}

tws_code tws_thread_bind(const tws_cpus *cpus, int node, tws_thread_place **before, int *memory, tws_error *err) {
  hwloc_topology_t topology;
  *before = NULL;
  *memory = 0;
  TWS_TRY(load(NULL, &topology, err));
  tws_thread_place *place = tws_calloc(1, sizeof *place);
  if (!place) return tws_fail(err, TWS_MEMORY, NULL, "no memory to bind a thread with");
  hwloc_bitmap_t wanted = to_bitmap(cpus);
  *place = (tws_thread_place){.topology = topology, .cpus = hwloc_bitmap_alloc(), .nodes = hwloc_bitmap_alloc()};
  const int bound = wanted && place->cpus && place->nodes &&
                    hwloc_get_cpubind(topology, place->cpus, HWLOC_CPUBIND_THREAD) == 0 &&
                    hwloc_set_cpubind(topology, wanted, HWLOC_CPUBIND_THREAD) == 0;
  hwloc_bitmap_free(wanted);
  if (!bound) {
    free_place(place);
    return TWS_OK;
  }
  *memory = bind_memory(place, node);
  *before = place;
  return TWS_OK;
}

void tws_thread_back(tws_thread_place *before) {
  if (!before) return;
  hwloc_set_cpubind(before->topology, before->cpus, HWLOC_CPUBIND_THREAD);
  if (before->memory) hwloc_set_membind(before->topology, before->nodes, before->policy, OF_THREAD);
  free_place(before);
}

const char *tws_bind_library(char *buffer, int size) {
  snprintf(buffer, (size_t)size, "hwloc %s", HWLOC_VERSION);
  return buffer;
}

#else

static tws_code without(tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED,
                  "build with hwloc (Debian: libhwloc-dev), or set twinspeed.bind_threads to none",
                  "this build cannot bind threads");
}

tws_code tws_cpus_allowed(tws_cpus *out, tws_error *err) {
  memset(out, 0, sizeof *out);
  return without(err);
}

tws_code tws_machine_count_parts(const char *synthetic, const tws_cpus *allowed, tws_machine_parts *out,
                                 tws_error *err) {
  (void)synthetic, (void)allowed, (void)out;
  return without(err);
}

tws_code tws_cpus_share(const char *synthetic, const tws_cpus *allowed, int index, int count, int threads,
                        tws_cpus *per_thread, int *bound, tws_error *err) {
  (void)synthetic, (void)allowed, (void)index, (void)count, (void)threads, (void)per_thread, (void)bound;
  return without(err);
}

tws_code tws_host_bind(tws_backend *backend, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                       tws_error *err) {
  (void)backend, (void)allowed, (void)index, (void)count, (void)bound, (void)near;
  return without(err);
}

tws_code tws_thread_bind(const tws_cpus *cpus, int node, tws_thread_place **before, int *memory, tws_error *err) {
  (void)cpus, (void)node;
  *before = NULL;
  *memory = 0;
  return without(err);
}

void tws_thread_back(tws_thread_place *before) {
  (void)before;
}

const char *tws_bind_library(char *buffer, int size) {
  if (size > 0) *buffer = '\0';
  return buffer;
}

#endif
