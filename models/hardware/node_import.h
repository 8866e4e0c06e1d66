/* A cluster file from a node's description by another tool, completed by what the profile of its devices says. */
#ifndef TWS_MODELS_HARDWARE_NODE_IMPORT_H
#define TWS_MODELS_HARDWARE_NODE_IMPORT_H

#include "config/topology_import.h"

/* Reads the file `from` (NCCL's XML, or what `nvidia-smi topo -m` prints) and makes a cluster of `nodes` such nodes.
 * profile: of the devices, by name or file; NULL: the one that the file names, TWS_USAGE if it names none. The caller
 * deletes *cluster. */
tws_code tws_topology_import(const char *from, const char *profile, int nodes, tws_node_description *node,
                             cJSON **cluster, tws_error *err);

#endif
