#include "models/hardware/node_import.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "models/hardware/profile.h"
#include "models/hardware/runtime.h"

enum { MOST_BYTES = 16 << 20 };

/* Adds the figures that depend on the GPU's generation, because `nvidia-smi topo -m` counts NVLinks, but gives neither
 * their rate nor the compute capability. */
static void add_generation(tws_node_description *node, const tws_profile *profile) {
  const double BLACKWELL_LINK = 50e9; /* bytes/s of one NVLink 5, one direction */
  if (node->sm == 0 && tws_profile_generation(profile) >= TWS_GENERATION_HOPPER) node->sm = 90;
  if (tws_profile_generation(profile) >= TWS_GENERATION_BLACKWELL) node->link_bandwidth = BLACKWELL_LINK;
}

tws_code tws_topology_import(const char *from, const char *profile, int nodes, tws_node_description *node,
                             cJSON **cluster, tws_error *err) {
  char *text, name[64];
  size_t length;
  tws_profile *of_devices;
  TWS_TRY(tws_read_file(from, MOST_BYTES, &text, &length, err));
  const tws_code code = tws_topology_read(text, from, node, err);
  tws_free(text);
  TWS_TRY(code);
  if (!profile && !node->profile[0])
    return tws_fail(err, TWS_USAGE, "add --profile, such as h100-sxm", "%s does not say which GPUs these are", from);
  TWS_TRY(tws_profile_load(profile ? profile : node->profile, &of_devices, err));
  add_generation(node, of_devices);
  tws_profile_destroy(of_devices);
  const char *slash = strrchr(from, '/');
  snprintf(name, sizeof name, "%.63s", slash ? slash + 1 : from);
  *cluster = tws_topology_cluster(node, name, profile, nodes);
  return *cluster ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}
