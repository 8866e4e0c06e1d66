/* Converts another tool's description of a node to a cluster file: the XML that NCCL writes to NCCL_TOPO_DUMP_FILE, and
 * the output of `nvidia-smi topo -m`. */
#ifndef TWS_CONFIG_TOPOLOGY_IMPORT_H
#define TWS_CONFIG_TOPOLOGY_IMPORT_H

#include "base/json.h"
#include "base/status.h"

typedef struct tws_node_description {
  int devices, nics, processors, sm; /* sm: compute capability times 10, such as 80; 0: not known */
  int links, paired;     /* NVLinks of a device; paired: 1: equally many to each device, no switch */
  int sharers;           /* number of devices at one PCIe switch */
  double link_bandwidth; /* bytes/s of one NVLink */
  double pcie_bandwidth; /* bytes/s of one device; 0: not known */
  double nic_bandwidth;  /* bytes/s of one NIC; 0: not known */
  int amd;
  char profile[64]; /* name of the devices' profile; "": not known */
} tws_node_description;

/* Reads a text that is either NCCL's XML or output of nvidia-smi. name: the file's name, for messages. Fails
 * with TWS_INVALID if the text describes no GPU. */
tws_code tws_topology_read(const char *text, const char *name, tws_node_description *out, tws_error *err);
/* Makes a cluster file of `nodes` such nodes. profile: replaces the profile in *node, or NULL. Returns NULL if memory
 * is exhausted. */
cJSON *tws_topology_cluster(const tws_node_description *node, const char *name, const char *profile, int nodes);

#endif
