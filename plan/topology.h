/* The topology arranges ranks along axes of config/axes.def in row-major order, so the last axis varies fastest (as in
 * DeepSpeed's ProcessTopology). A set of axes divides the ranks into groups: the ranks of a group have equal
 * coordinates on all axes that are not in the set. */
#ifndef TWS_PLAN_TOPOLOGY_H
#define TWS_PLAN_TOPOLOGY_H

#include "base/status.h"
#include "config/axes.h"

enum { TWS_MAX_AXES = TWS_AXIS_COUNT };

typedef struct tws_topology {
  int axes;
  /* the different axes of the topology; it does not contain both an axis and a sub-axis of it */
  tws_axis axis[TWS_MAX_AXES];
  int dim[TWS_MAX_AXES];
} tws_topology;

tws_code tws_topology_make(tws_topology *topology, int axes, const tws_axis *axis, const int *dims, tws_error *err);
int tws_topology_world(const tws_topology *topology);
/* Returns the rank at these coordinates, or -1 if a coordinate is out of range. */
int tws_topology_rank(const tws_topology *topology, const int *coordinates);
void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates);

/* Returns the size of a group. An axis in a set includes all its sub-axes in the topology; an axis that the topology
 * does not have counts as one rank. Members of a group are ordered by their coordinates: axes are taken in the order of
 * config/axes.def, sub-axes in the topology's order, and the last varies fastest. */
int tws_topology_size(const tws_topology *topology, tws_axes set);
/* Returns the rank's index in its group along the axes of the set. */
int tws_topology_index(const tws_topology *topology, int rank, tws_axes set);
/* Returns member number `index` of the rank's group, which differs from `rank` only along the set. */
int tws_topology_member(const tws_topology *topology, int rank, tws_axes set, int index);
/* Writes the ranks of the group of `rank` in the order of the group, and returns their number. `ranks` has room for
 * tws_topology_size() ranks. */
int tws_topology_group(const tws_topology *topology, int rank, tws_axes set, int *ranks);
/* Returns the axes along which ZeRO partitions parameters: all axes along which samples and tokens are divided, except
 * the axis between groups of ranks that each have all partitions (MiCS). */
tws_axes tws_topology_partitions(const tws_topology *topology);
/* Returns the rank's coordinates on the axes that are not in `omit` as text, such as "pipe_00-model_01", which it
 * writes to `buffer`. */
const char *tws_topology_repr(const tws_topology *topology, int rank, tws_axes omit, char *buffer, int size);

/* The position of a rank: per axis, the number of ranks along it and the rank's index. Along axes that the topology
 * does not have it is index 0 of 1 rank. */
typedef struct tws_position {
  int ranks[TWS_AXIS_COUNT], index[TWS_AXIS_COUNT];
} tws_position;
tws_position tws_topology_position(const tws_topology *topology, int rank);

#endif
