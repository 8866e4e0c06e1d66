/* Time to load samples: nodes read, decode and copy a step's samples while the step before runs. */
#include "estimators/estimators.h"

/* Returns the number of nodes that load samples: those with ranks of the first pipeline stage. Ranks along axes other
 * than data use the same samples. */
static int loading_nodes(const tws_plan_request *request, const tws_machine *machine) {
  const int world = tws_topology_world(&request->topology);
  const tws_node_mapping mapping = tws_machine_mapping(machine, world);
  int count = 0, last = -1;
  for (int rank = 0; rank < world; rank++) { /* the ranks of a node are consecutive */
    const int node = tws_mapping_node(&mapping, rank);
    if (node == last || tws_topology_index(&request->topology, rank, TWS_AXES_PIPE) != 0) continue;
    last = node;
    count++;
  }
  return count > 0 ? count : 1;
}

double tws_loading_s(const tws_plan_request *request, const tws_machine *machine) {
  const tws_config *c = request->config;
  const double rate = machine->cluster->samples_per_s;
  if (!(rate > 0)) return 0;
  const double samples = (double)c->micro_batch_size * (double)c->accumulation_steps *
                         (double)tws_topology_size(&request->topology, TWS_AXES_DATA);
  return samples / (rate * loading_nodes(request, machine));
}

void tws_path_load(double waits_s, tws_path_result *path) {
  if (!(waits_s > 0)) return;
  path->step_s += waits_s;
  path->loading_s += waits_s;
  tws_path_judge(path);
}
