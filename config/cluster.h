/* A cluster: what the ranks run on. JSON file with "schema": "twinspeed-cluster-1", or a built-in name with an
 * optional size, NAME[:NODES[xDEVICES]]: "dgx-a100", "dgx-a100:4", "host:2x4" (two nodes of four devices).
 * Bandwidths are bytes/s in one direction, per device or per NIC.
 *
 * Keys of a file, all optional but schema: name, base (a built-in to start from), profile, nodes, devices_per_node,
 * cores_per_node, nics_per_node, paired (0 or 1), host_memory, device_memory (bytes, or "512GiB"), host_bandwidth
 * (bytes/s), numa_nodes, intra, inter, host_link (each with bandwidth, bytes/s or "25 GB/s", and latency_s),
 * devices_per_host_link, disk (read, write, size), message_bandwidth, message_s, collectives ("rings" or "nccl"),
 * leaf (nodes, oversubscription), samples_per_s (of a node's data loaders), price_per_device_hour (in whatever
 * currency), and for people provenance and figures. A link's "class" (boxes.h: "nvlink", "efa", ...) gives its
 * latency_s where that is absent.
 *
 * "host" is this machine: cores that the process may use, memory within the control group's limit, as many devices as
 * cores. Any number of ranks may be asked of a host; devices_per_node is what a tuner tries. */
#ifndef TWS_CONFIG_CLUSTER_H
#define TWS_CONFIG_CLUSTER_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_link {
  double bandwidth; /* bytes/s, one direction */
  double latency_s;
} tws_link;

typedef struct tws_cluster {
  char name[64];
  char profile[256]; /* hardware profile: a built-in name or a path (relative to the cluster file) */
  int nodes, devices_per_node;
  int cores_per_node;
  double host_memory_bytes; /* per node */
  double host_bandwidth;    /* bytes/s of a node's memory */
  int numa_nodes;           /* parts of a node, each with an equal part of that; devices are near one each, in order */
  double device_memory_bytes;     /* 0: the profile's */
  tws_link intra;                 /* one device's NVLink (or shared memory) port */
  int intra_fabric, inter_fabric; /* tws_fabric of boxes.h: classes of these links; 0: not said */
  int paired;               /* no switch: each pair of a node's devices has links of its own, equal parts of a port */
  tws_link inter;           /* one NIC */
  double message_bandwidth; /* bytes/s of one NIC in messages between two ranks, where rings reach less; 0: inter's */
  double message_s;         /* from the start of one message that a rank sends to other nodes to that of the next */
  int nics_per_node;
  int builtin;                  /* a built-in cluster, as it is: no file */
  int box;                      /* then: a box or an instance by its name (boxes.h) */
  int lone_device;              /* then: one device by its profile's name, with an assumed host (job/cluster_name.h) */
  int assumed_nics;             /* no file says nics_per_node: a built-in cluster's, or 1 */
  int leaf_nodes;               /* nodes per leaf switch, in order; 0: all are at one */
  double oversubscription;      /* what a leaf's NICs send at most over what leaves it, each way; with leaf_nodes */
  int nccl;                     /* collectives as NCCL chooses them (models/hardware/nccl.h); 0: rings */
  tws_link host_link;           /* PCIe of one device */
  int devices_per_host_link;    /* devices that share a PCIe switch and its host link */
  double disk_read, disk_write; /* bytes/s per node, 0: not said */
  double disk_bytes;            /* per node, of what offloading may take; 0: not said, and not a limit */
  double samples_per_s; /* that a node's data loaders read, decode and hand over; 0: not said, and not a limit */
  double price_per_device_hour; /* 0: not known */
} tws_cluster;
/* Bytes/s of one NVMe drive on PCIe 4, taken for a node's disk where nothing is said of it: round figures. */
#define TWS_USUAL_DISK_READ 6e9
#define TWS_USUAL_DISK_WRITE 3e9

/* Bytes/s of a device's port towards near - 1 others of its node, which is less than all of it where pairs have links
 * of their own. */
double tws_cluster_port(const tws_cluster *cluster, int near);
/* Returns the factor by which transfers take longer if `share` of what a leaf's NICs send leaves the leaf: 1 where the
 * uplinks have room for it. */
double tws_cluster_crowding(const tws_cluster *cluster, double share);
/* `spec` is read as a file ("-": standard input) when it contains a slash or ends with .json. */
tws_code tws_cluster_load(const char *spec, tws_cluster *out, tws_error *err);
tws_code tws_cluster_from_json(const tws_json *json, tws_cluster *out, tws_error *err);
/* A cluster as a file, with all keys that say something (cluster_json.c), and the JSON Schema of such files. NULL: no
 * memory. The caller deletes them. */
cJSON *tws_cluster_to_json(const tws_cluster *cluster);
tws_code tws_cluster_print_schema(tws_text *out, tws_error *err);
/* "rings" or "nccl"; TWS_USAGE for another word. */
tws_code tws_cluster_collectives(const char *word, tws_cluster *cluster, tws_error *err);
const char *const *tws_cluster_builtin_names(void); /* NULL-terminated */

#endif
