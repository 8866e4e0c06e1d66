/* Where a rank's threads run and where its memory lies, by hwloc. The cores that a process may use are shared out among
 * the ranks of a node that may use the same; a share is cut where it reaches over NUMA nodes, so that a thread and the
 * part of the memory that it works on are near each other. */
#ifndef TWS_REAL_HOST_BIND_H
#define TWS_REAL_HOST_BIND_H

#include "real/real.h"

enum { TWS_CPUS_WORDS = 64, TWS_MOST_CPUS = 64 * TWS_CPUS_WORDS };
/* A set of processors, in the numbers of the operating system. */
typedef struct tws_cpus {
  uint64_t word[TWS_CPUS_WORDS];
} tws_cpus;

typedef struct tws_machine_parts {
  int cores, numa_nodes; /* of those that this process may use */
} tws_machine_parts;

/* What this process may use; TWS_UNSUPPORTED: this build has no hwloc. */
tws_code tws_cpus_allowed(tws_cpus *out, tws_error *err);
/* synthetic: a machine in hwloc's words ("numa:2 core:4 pu:2"), for tests; NULL: this one. `allowed` NULL: all. */
tws_code tws_machine_look(const char *synthetic, const tws_cpus *allowed, tws_machine_parts *out, tws_error *err);
/* Of `count` ranks that share `allowed` the share of number `index`: per thread the processors that it may use, whole
 * cores of one NUMA node. *bound 0: there are fewer cores than ranks, or a share has fewer processors than threads, and
 * nothing is to be bound. */
tws_code tws_cpus_share(const char *synthetic, const tws_cpus *allowed, int index, int count, int threads,
                        tws_cpus *per_thread, int *bound, tws_error *err);
/* Binds the backend's threads to what tws_cpus_share() gave; memory that they touch first lies on their share's NUMA
 * nodes, in turn where these are several. A system that forbids to say so (containers do) leaves both to the kernel:
 * *bound, *near say what was done. `allowed` is that of the ranks beside this one. */
tws_code tws_host_bind(tws_backend *backend, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                       tws_error *err);
/* "hwloc 2.9.0", "" without. */
const char *tws_bind_library(char *buffer, int size);

#endif
