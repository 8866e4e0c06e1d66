/* Makes a cluster file from another tool's description of a node and the profile of the node's devices. */
#ifndef TWS_MODELS_HARDWARE_NODE_IMPORT_H
#define TWS_MODELS_HARDWARE_NODE_IMPORT_H

#include "config/topology_import.h"

/* Reads the file `from` (NCCL's XML, or the output of `nvidia-smi topo -m`) and makes a cluster of `nodes` such nodes.
 * profile: name or file of the devices' profile; NULL: the profile that the file names; the function fails with
 * TWS_USAGE if the file names none. The caller deletes *cluster. */
tws_code tws_topology_import(const char *from, const char *profile, int nodes, tws_node_description *node,
                             cJSON **cluster, tws_error *err);

#endif
