/* Reads what --cluster names: a built-in cluster, a file, or a device by the name of its profile. */
#ifndef TWS_JOB_CLUSTER_NAME_H
#define TWS_JOB_CLUSTER_NAME_H

#include "config/cluster.h"

/* tws_cluster_load(), and for the name of a built-in hardware profile ("rtx-4090") a node with one such device: the
 * link to the host is that of the device's PCIe (generation 4 where none is published), and the host is assumed
 * (out->lone_device is set; job/assumed.h lists it). TWS_INVALID: a name that is neither, with the nearest ones, and
 * several devices or nodes of a device, whose links no profile states. */
tws_code tws_cluster_named(const char *spec, tws_cluster *out, tws_error *err);

#endif
