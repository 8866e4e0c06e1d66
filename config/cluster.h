/* A cluster, on which the ranks run. It is given as a JSON file with "schema": "twinspeed-cluster-1", or as a built-in
 * name with an optional size, NAME[:NODES[xDEVICES]]: "dgx-a100", "dgx-a100:4", "host:2x4" (two nodes of four devices).
 * Bandwidths are bytes/s in one direction, per device or per NIC.
 *
 * Keys of a file, all optional but schema: name, base (a built-in cluster whose values are the defaults), profile,
 * nodes, devices_per_node, cores_per_node, nics_per_node, paired (0 or 1), host_memory, device_memory (bytes, or
 * "512GiB"), host_bandwidth (bytes/s), numa_nodes, intra, inter, host_link (each with bandwidth, bytes/s or "25 GB/s",
 * and latency_s; host_link also with to_host and both_ways), devices_per_host_link, host_copies (to_device, to_host,
 * both_ways: of a whole node), disk (read, write, size), message_bandwidth, message_s, collectives ("rings" or "nccl"),
 * leaf (nodes, oversubscription), samples_per_s (of a node's data loaders), price_per_device_hour (in any currency),
 * and the texts provenance and figures. A link's "class" (boxes.h: "nvlink", "efa", ...) gives its latency_s if that is
 * absent.
 *
 * "host" is this machine: the cores that the process may use, memory within the control group's limit, and as many
 * devices as cores. Any number of ranks may run on a host; the tuner uses at most devices_per_node ranks per node. */
#ifndef TWS_CONFIG_CLUSTER_H
#define TWS_CONFIG_CLUSTER_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_link {
  double bandwidth; /* bytes/s in one direction */
  double latency_s;
} tws_link;

/* Rates of copies between devices and pinned memory of their host, in bytes/s: to the device, to the host, and the sum
 * of both directions while copies run both ways at once. 0: not known. */
typedef struct tws_copy_rates {
  double to_device, to_host, both_ways;
} tws_copy_rates;

typedef struct tws_cluster {
  char name[64];
  char profile[256]; /* hardware profile of the devices: a built-in name or a path (relative to the cluster file) */
  int nodes, devices_per_node;
  int cores_per_node;
  double host_memory_bytes; /* per node */
  double host_bandwidth;    /* bytes/s of the host memory of a node */
  int numa_nodes;           /* number of NUMA nodes of a node, which divide its memory and devices equally, in order */
  double device_memory_bytes;     /* bytes of memory of one device; 0: that of the profile */
  tws_link intra;                 /* port of one device to others of its node: NVLink, PCIe or shared memory */
  int intra_fabric, inter_fabric; /* classes of the links intra and inter (tws_fabric of boxes.h); 0: not given */
  int paired;               /* 1: no switch; each pair of devices has links with an equal part of a port */
  tws_link inter;           /* one NIC */
  double message_bandwidth; /* bytes/s of a NIC in point-to-point messages, if rings reach less; 0: inter's */
  double message_s;         /* seconds between the starts of two messages that a rank posts to other nodes */
  int nics_per_node;
  int builtin;                  /* 1: an unchanged built-in cluster, not a file */
  int box;                      /* if builtin: 1: a server model or cloud instance (boxes.h) */
  int lone_device;              /* if builtin: 1: a single device with an assumed host (job/cluster_name.h) */
  int assumed_nics;             /* 1: nics_per_node is not from a file, but a built-in cluster's or 1 */
  int leaf_nodes;               /* number of nodes per leaf switch, in order; 0: there is one switch */
  double oversubscription;      /* bandwidth of the NICs below a leaf switch / of its uplinks, in each direction */
  int nccl;                     /* 1: algorithms of collectives are NCCL's choices (models/hardware/nccl.h); 0: rings */
  tws_link host_link;           /* PCIe of one device */
  int devices_per_host_link;    /* devices that share a PCIe switch and its host link */
  /* host_copies: rates of copies over one host link; a rate of one direction that is not known is the link's bandwidth,
   * and if both_ways is not known, the directions do not share the link. node_copies: rates of all copies of a node's
   * devices together, while all of them copy; a rate that is not known limits nothing. */
  tws_copy_rates host_copies, node_copies;
  int copies_given; /* 1: the file has host_link or host_copies, so that a profile's measured rates are not used */
  double disk_read, disk_write; /* bytes/s per node, 0: not said */
  double disk_bytes;            /* bytes of a node's disk for offloading; 0: not given, no limit */
  double samples_per_s; /* samples/s that a node's data loaders read and decode; 0: not given, no limit */
  double price_per_device_hour; /* 0: not known */
} tws_cluster;
/* Bytes/s of one NVMe drive on PCIe 4 (round figures), which are assumed for a node's disk if the cluster file has
 * none. */
#define TWS_USUAL_DISK_READ 6e9
#define TWS_USUAL_DISK_WRITE 3e9

/* Returns the bytes/s between a device and near - 1 other devices of its node. If each pair of devices has separate
 * links (`paired`), only some of a port's links are used. */
double tws_cluster_port(const tws_cluster *cluster, int near);
/* Returns the bytes/s of copies over one host link, in one direction while no copy runs the other way. */
double tws_cluster_copy_rate(const tws_cluster *cluster, int to_host);
/* Returns the factor by which transfers slow down if a fraction `share` (0 to 1) of the bytes that the NICs below a
 * leaf switch send leaves the leaf switch; 1 if the uplinks have enough bandwidth. */
double tws_cluster_crowding(const tws_cluster *cluster, double share);
/* Loads a cluster from `spec`, which is a file ("-": standard input) if it contains a slash or ends with .json, else a
 * built-in name. */
tws_code tws_cluster_load(const char *spec, tws_cluster *out, tws_error *err);
tws_code tws_cluster_from_json(const tws_json *json, tws_cluster *out, tws_error *err);
/* tws_cluster_to_json() returns a cluster as the JSON of a cluster file, with all keys whose values are not the
 * defaults (cluster_json.c), or NULL if memory is exhausted; the caller deletes it. tws_cluster_print_schema() writes
 * the JSON Schema of cluster files to `out`. */
cJSON *tws_cluster_to_json(const tws_cluster *cluster);
tws_code tws_cluster_print_schema(tws_text *out, tws_error *err);
/* Sets cluster->nccl from "rings" or "nccl"; fails with TWS_USAGE for another word. */
tws_code tws_cluster_collectives(const char *word, tws_cluster *cluster, tws_error *err);
const char *const *tws_cluster_builtin_names(void); /* NULL-terminated */

#endif
