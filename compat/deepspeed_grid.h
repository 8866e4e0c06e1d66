/* Groups of ranks of a job with pipeline stages: DeepSpeed's PipelineParallelGrid over a topology with the axes "pipe"
 * and "data", and at choice "model". */
#ifndef TWS_COMPAT_DEEPSPEED_GRID_H
#define TWS_COMPAT_DEEPSPEED_GRID_H

#include "plan/topology.h"

/* Prime factors in ascending order; returns how many (at most 31). factors has room for 31. */
int tws_prime_factors(int number, int *factors);
/* Builds the topology of a job that chose none: prime factors of the world size go alternately to "pipe" and "data". */
tws_code tws_pipeline_grid_default(int world, tws_topology *topology, tws_error *err);
/* TWS_INVALID unless the axes "pipe" and "data" are there and the topology has `world` ranks. */
tws_code tws_pipeline_grid_check(const tws_topology *topology, int world, tws_error *err);

typedef enum tws_grid_group {
  TWS_GRID_REPLICA, /* all stages and model shards of one data coordinate: norms and overflow ("model parallel") */
  TWS_GRID_DATA,
  TWS_GRID_PIPE,
  TWS_GRID_SLICE, /* along "model"; the rank alone without that axis */
  TWS_GRID_GROUP_COUNT
} tws_grid_group;

/* Ranks of the group of this kind that `rank` is in, ascending; returns how many. ranks has room for the world. */
int tws_pipeline_grid_group(const tws_topology *topology, tws_grid_group kind, int rank, int *ranks);
/* All groups of a kind in the order in which they are created (kinds follow each other as in the enumeration): group
 * number `index`, or 0 ranks past the last. */
int tws_pipeline_grid_nth(const tws_topology *topology, tws_grid_group kind, int index, int *ranks);

#endif
