#include "plan/pipeline_grid.h"

int tws_pipeline_grid_stage(const tws_topology *topology, int rank, int stage) {
  const int stages = tws_topology_size(topology, TWS_AXES_PIPE);
  return tws_topology_member(topology, rank, TWS_AXES_PIPE, (stage % stages + stages) % stages);
}
