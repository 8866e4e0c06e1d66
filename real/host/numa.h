/* NUMA nodes of this machine, as Linux describes them: their processors, and which one a PCI device is attached to. */
#ifndef TWS_REAL_HOST_NUMA_H
#define TWS_REAL_HOST_NUMA_H

#include "real/host/bind.h"

enum { TWS_MOST_NUMA_NODES = 16 };
/* The NUMA nodes with processors that this process may use, as Linux numbers them, in ascending order. */
typedef struct tws_numa_nodes {
  int count;
  int number[TWS_MOST_NUMA_NODES];
  tws_cpus cpus[TWS_MOST_NUMA_NODES];
} tws_numa_nodes;

/* Reads the nodes from Linux' sysfs; `sysfs`: the folder that is read in place of /sys, for tests; NULL: /sys.
 * allowed: the processors that this process may use. out->count 0: the system states none. */
void tws_numa_read(const char *sysfs, const tws_cpus *allowed, tws_numa_nodes *out);
/* Returns the number of the node that the PCI device `bus` ("0000:3b:00.0") is attached to; -1: the system states
 * none. */
int tws_numa_of_device(const char *sysfs, const char *bus);
/* Returns the index of the node with this number; -1: it is not one of them. */
int tws_numa_index(const tws_numa_nodes *nodes, int number);

#endif
