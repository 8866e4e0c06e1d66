/* Ranks of other pipeline stages. */
#ifndef TWS_PLAN_PIPELINE_GRID_H
#define TWS_PLAN_PIPELINE_GRID_H

#include "plan/topology.h"

/* Returns the rank of another stage at the same coordinates as `rank` along all other axes; stages wrap around, so
 * stage + 1 is always valid. */
int tws_pipeline_grid_stage(const tws_topology *topology, int rank, int stage);

#endif
