/* Named-axis topology of ranks: row-major, the last axis varies fastest (as DeepSpeed's ProcessTopology). */
#ifndef TWS_PLAN_TOPOLOGY_H
#define TWS_PLAN_TOPOLOGY_H

#include <stdint.h>
#include "base/status.h"

enum { TWS_MAX_AXES = 6 };

typedef struct tws_topology {
  int axes;
  char name[TWS_MAX_AXES][16]; /* "pipe", "data", "sequence", "expert", "model" */
  int dim[TWS_MAX_AXES];
} tws_topology;

tws_code tws_topology_make(tws_topology *topology, int axes, const char *const *names, const int *dims, tws_error *err);
int tws_topology_world(const tws_topology *topology);
int tws_topology_axis(const tws_topology *topology, const char *name);       /* index, or -1 */
int tws_topology_dim(const tws_topology *topology, const char *name);        /* 0 for an unknown axis */
int tws_topology_rank(const tws_topology *topology, const int *coordinates); /* -1 out of range */
void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates);
/* The ranks of the line through `rank` along `axis`, in order; `ranks` has room for the axis' dimension. */
int tws_topology_axis_ranks(const tws_topology *topology, int rank, int axis, int *ranks);
/* All lines along an axis in DeepSpeed's order: returns how many; lists holds count x dim ranks. */
int tws_topology_comm_lists(const tws_topology *topology, int axis, int *lists);
/* Ranks whose coordinate on `axis` is `index`, in rank order; returns how many. */
int tws_topology_axis_list(const tws_topology *topology, int axis, int index, int *ranks);
/* "pipe_00-model_01": axes not listed in omit (NULL-terminated). */
const char *tws_topology_repr(const tws_topology *topology, int rank, const char *const *omit, char *buffer, int size);

#endif
