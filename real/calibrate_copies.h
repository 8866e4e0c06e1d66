/* Rates of copies between devices and pinned memory of their host, in one direction and in both at once, with that
 * memory on the NUMA node near the device. */
#ifndef TWS_REAL_CALIBRATE_COPIES_H
#define TWS_REAL_CALIBRATE_COPIES_H

#include "real/calibrate_device.h"
#include "real/host/numa.h"

/* Rates with memory of one NUMA node. */
typedef struct tws_node_rates {
  int number;   /* of the node, as Linux counts; -1: the kernel chose the node */
  int is_bound; /* 1: the kernel takes memory from that node alone; 0: it may have taken it elsewhere */
  tws_copy_rates rates;
} tws_node_rates;

typedef struct tws_copy_measurement {
  tws_copy_rates rates; /* those that a profile has: of all ranks, each with memory near its device */
  int near;             /* number of the node that rank 0's device is attached to; -1: not known */
  int count;            /* number of nodes that were measured one after the other; 0: the machine has one */
  tws_node_rates nodes[TWS_MOST_NUMA_NODES];
} tws_copy_measurement;

/* Measures the rates of all ranks of the calibration run together, while each of them copies between its device and its
 * own pinned memory. The thread that starts the copies runs on the NUMA node that the device is attached to, and
 * allocates the memory there; a rank that is alone measures memory of all nodes, and without a node that is known to be
 * near it takes the one with the highest rate of both directions. `comm` connects the ranks, all of which call this
 * function and get the same rates; NULL: there is one rank. Copies have at most `most_bytes` bytes (0: 256 MiB). */
tws_code tws_calibrate_copies(const tws_calibrate_device *on, tws_comm *comm, uint64_t most_bytes,
                              tws_copy_measurement *out, tws_error *err);
/* Adds notes with the rates to the measurements: one, and one for each node that was measured. */
tws_code tws_calibrate_note_copies(const tws_copy_measurement *measured, tws_measurements *m, tws_error *err);

#endif
