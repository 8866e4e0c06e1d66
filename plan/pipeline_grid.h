/* Who comes next in a pipeline. */
#ifndef TWS_PLAN_PIPELINE_GRID_H
#define TWS_PLAN_PIPELINE_GRID_H

#include "plan/topology.h"

/* The rank that differs from `rank` in its stage alone; stages wrap around, so that stage + 1 is who comes next. */
int tws_pipeline_grid_stage(const tws_topology *topology, int rank, int stage);

#endif
