/* Topology of ranks: axes of config/axes.def, row-major, the last one varies fastest (as DeepSpeed's ProcessTopology).
 * A group is made from a set of axes: the ranks that agree on all other coordinates. */
#ifndef TWS_PLAN_TOPOLOGY_H
#define TWS_PLAN_TOPOLOGY_H

#include "base/status.h"
#include "config/axes.h"

enum { TWS_MAX_AXES = TWS_AXIS_COUNT };

typedef struct tws_topology {
  int axes;
  tws_axis axis[TWS_MAX_AXES]; /* each once, and never beside a part of itself */
  int dim[TWS_MAX_AXES];
} tws_topology;

tws_code tws_topology_make(tws_topology *topology, int axes, const tws_axis *axis, const int *dims, tws_error *err);
int tws_topology_world(const tws_topology *topology);
int tws_topology_rank(const tws_topology *topology, const int *coordinates); /* -1 out of range */
void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates);

/* An axis of a set stands for the parts of it that the topology has; those that it does not have count as one rank.
 * Members are ordered by their coordinates: axes in the order of the table, parts of one in the topology's order, the
 * last varies fastest. */
int tws_topology_size(const tws_topology *topology, tws_axes set);
/* The rank's place in its group. */
int tws_topology_index(const tws_topology *topology, int rank, tws_axes set);
/* The member number `index` of the rank's group: it differs from `rank` along the set alone. */
int tws_topology_member(const tws_topology *topology, int rank, tws_axes set, int index);
/* The ranks of the group that `rank` is in, in order; returns how many. ranks has room for tws_topology_size(). */
int tws_topology_group(const tws_topology *topology, int rank, tws_axes set, int *ranks);
/* All groups, by their first ranks (DeepSpeed's order): returns how many; lists holds as many ranks as there are. */
int tws_topology_groups(const tws_topology *topology, tws_axes set, int *lists);
/* Ranks whose place along the set is `index`, ascending; returns how many. */
int tws_topology_ranks_at(const tws_topology *topology, tws_axes set, int index, int *ranks);
/* Along which ZeRO partitions parameters: all that samples and tokens are divided along, but for groups that each have
 * all partitions (MiCS). */
tws_axes tws_topology_partitions(const tws_topology *topology);
/* "pipe_00-model_01": axes that the set does not cover. */
const char *tws_topology_repr(const tws_topology *topology, int rank, tws_axes omit, char *buffer, int size);

/* How many ranks there are along every axis, and which of them a rank is: 0 of 1 along those that there are none of. */
typedef struct tws_position {
  int ranks[TWS_AXIS_COUNT], index[TWS_AXIS_COUNT];
} tws_position;
tws_position tws_topology_position(const tws_topology *topology, int rank);

#endif
