/* A node as other tools describe it, as a cluster file: what NCCL writes to NCCL_TOPO_DUMP_FILE (XML), and what
 * `nvidia-smi topo -m` prints. */
#ifndef TWS_CONFIG_TOPOLOGY_IMPORT_H
#define TWS_CONFIG_TOPOLOGY_IMPORT_H

#include "base/json.h"
#include "base/status.h"

typedef struct tws_node_description {
  int devices, nics, processors, sm; /* sm: 80 for A100; 0: not said */
  int links, paired;     /* NVLinks of a device; of which each other device has an equal part, without a switch */
  int sharers;           /* devices at one PCIe switch */
  double link_bandwidth; /* of one NVLink, bytes/s */
  double pcie_bandwidth; /* of a device, bytes/s; 0: not said */
  double nic_bandwidth;  /* bytes/s; 0: not said */
  int amd;
  char profile[64]; /* that such a device has, "": not known */
} tws_node_description;

/* `name`: of the file, for messages. TWS_INVALID when it describes no GPU. */
tws_code tws_topology_read_xml(const char *text, const char *name, tws_node_description *out, tws_error *err);
tws_code tws_topology_read_matrix(const char *text, const char *name, tws_node_description *out, tws_error *err);
/* As one of these two, whichever it is. */
tws_code tws_topology_read(const char *text, const char *name, tws_node_description *out, tws_error *err);
/* A cluster file of `nodes` such nodes; profile: instead of the one that it knows, or NULL. NULL without memory. */
cJSON *tws_topology_cluster(const tws_node_description *node, const char *name, const char *profile, int nodes);

#endif
