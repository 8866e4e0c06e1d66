/* CPU and memory binding of a rank's threads, by hwloc. The cores that a process may use are divided among the ranks
 * of a node that may use the same ones. A rank whose share spans NUMA nodes has each thread on one of them, so that
 * a thread is close to the memory that it works on. */
#ifndef TWS_REAL_HOST_BIND_H
#define TWS_REAL_HOST_BIND_H

#include "real/real.h"

enum { TWS_CPUS_WORDS = 64, TWS_MOST_CPUS = 64 * TWS_CPUS_WORDS };
/* A set of processors, numbered as the operating system does. */
typedef struct tws_cpus {
  uint64_t word[TWS_CPUS_WORDS];
} tws_cpus;

typedef struct tws_machine_parts {
  int cores, numa_nodes; /* numbers of cores and NUMA nodes that this process may use */
  /* bytes of the second-level cache of the first of these cores, and of the last-level cache that it shares with
   * others; 0: unknown. sysconf() is no substitute: in some virtual machines it returns the whole host's cache. */
  uint64_t second_cache_bytes, last_cache_bytes;
} tws_machine_parts;

/* Determines the processors that this process may use. Fails with TWS_UNSUPPORTED if this build has no hwloc. */
tws_code tws_cpus_allowed(tws_cpus *out, tws_error *err);
/* Counts cores and NUMA nodes, and reads the sizes of caches. synthetic: a machine in hwloc's synthetic notation
 * ("numa:2 core:4 pu:2"), for tests; NULL: this one. `allowed` NULL: all processors. */
tws_code tws_machine_count_parts(const char *synthetic, const tws_cpus *allowed, tws_machine_parts *out,
                                 tws_error *err);
/* Computes share `index` of `count` ranks that share `allowed`: for each thread the processors that it may use,
 * whole cores of one NUMA node. *bound 0: there are fewer cores than ranks, or a share has fewer processors than
 * threads, and threads are not to be bound. */
tws_code tws_cpus_share(const char *synthetic, const tws_cpus *allowed, int index, int count, int threads,
                        tws_cpus *per_thread, int *bound, tws_error *err);
/* Binds the backend's threads as tws_cpus_share() computes; memory that they touch first is allocated on their
 * share's NUMA nodes, interleaved where there are several. If the system forbids it (containers do), the kernel
 * places both: *bound and *near report the result. `allowed` is the set that the ranks of this node share. */
tws_code tws_host_bind(tws_backend *backend, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                       tws_error *err);
/* Processors and memory policy of a thread before tws_thread_bind(). */
typedef struct tws_thread_place tws_thread_place;
/* Binds the calling thread to these processors, and lets the kernel take memory that the thread allocates from the NUMA
 * node `node` alone, numbered as the operating system does. *memory 1: the kernel accepted that memory policy, which
 * containers may forbid. *before is to be given to tws_thread_back(), which restores the thread and frees it; NULL:
 * the thread could not be bound. */
tws_code tws_thread_bind(const tws_cpus *cpus, int node, tws_thread_place **before, int *memory, tws_error *err);
void tws_thread_back(tws_thread_place *before);
/* Returns the name and version of hwloc, "hwloc 2.9.0"; "" in a build without it. */
const char *tws_bind_library(char *buffer, int size);

#endif
