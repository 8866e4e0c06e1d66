/* Topology of ranks: axes of config/axes.def, row-major, the last one varies fastest (as DeepSpeed's ProcessTopology).
 * A set of axes defines groups: ranks that have equal coordinates on all other axes. */
#ifndef TWS_PLAN_TOPOLOGY_H
#define TWS_PLAN_TOPOLOGY_H

#include "base/status.h"
#include "config/axes.h"

enum { TWS_MAX_AXES = TWS_AXIS_COUNT };

typedef struct tws_topology {
  int axes;
  tws_axis axis[TWS_MAX_AXES]; /* without duplicates, and not both an axis and a sub-axis of it */
  int dim[TWS_MAX_AXES];
} tws_topology;

tws_code tws_topology_make(tws_topology *topology, int axes, const tws_axis *axis, const int *dims, tws_error *err);
int tws_topology_world(const tws_topology *topology);
int tws_topology_rank(const tws_topology *topology, const int *coordinates); /* -1 out of range */
void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates);

/* An axis in a set includes all its sub-axes in the topology; an axis that the topology does not have counts as one
 * rank. Members are ordered by their coordinates: axes in the order of config/axes.def, sub-axes in the topology's
 * order, the last varies fastest. Returns the size of a group. */
int tws_topology_size(const tws_topology *topology, tws_axes set);
/* Returns the rank's index in its group. */
int tws_topology_index(const tws_topology *topology, int rank, tws_axes set);
/* Returns member number `index` of the rank's group, which differs from `rank` only along the set. */
int tws_topology_member(const tws_topology *topology, int rank, tws_axes set, int index);
/* Writes the ranks of the group of `rank`, in order, and returns their number. ranks has room for
 * tws_topology_size(). */
int tws_topology_group(const tws_topology *topology, int rank, tws_axes set, int *ranks);
/* Writes all groups, ordered by their first ranks (DeepSpeed's order), one after another to lists[world], and returns
 * their number. */
int tws_topology_groups(const tws_topology *topology, tws_axes set, int *lists);
/* Writes the ranks whose index in their group is `index`, ascending, and returns their number. */
int tws_topology_ranks_at(const tws_topology *topology, tws_axes set, int index, int *ranks);
/* Returns the axes along which ZeRO partitions parameters: all along which samples and tokens are divided, except the
 * axis of groups that each have all partitions (MiCS). */
tws_axes tws_topology_partitions(const tws_topology *topology);
/* Writes the rank's coordinates on the axes that are not in `omit`: "pipe_00-model_01". */
const char *tws_topology_repr(const tws_topology *topology, int rank, tws_axes omit, char *buffer, int size);

/* The number of ranks along every axis, and a rank's index; index 0 of 1 along axes that the topology does not have. */
typedef struct tws_position {
  int ranks[TWS_AXIS_COUNT], index[TWS_AXIS_COUNT];
} tws_position;
tws_position tws_topology_position(const tws_topology *topology, int rank);

#endif
