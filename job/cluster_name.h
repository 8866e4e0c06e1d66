/* Loads the cluster that --cluster names: a built-in cluster, a file, or a device by the name of its profile. */
#ifndef TWS_JOB_CLUSTER_NAME_H
#define TWS_JOB_CLUSTER_NAME_H

#include "config/cluster.h"

/* Loads a cluster as tws_cluster_load() does, or, if `spec` is the name of a built-in hardware profile ("rtx-4090"),
 * makes a cluster of one node with one such device. Its link to the host is the device's PCIe (generation 4 if none is
 * published), and its host is assumed (out->lone_device is set; job/assumed.h lists the assumption). Fails with
 * TWS_INVALID for a name that is neither a cluster nor a profile (the message has the nearest names), and for several
 * devices or nodes, whose links no profile states. */
tws_code tws_cluster_named(const char *spec, tws_cluster *out, tws_error *err);

#endif
