/* Which ranks' plans say what all ranks of a job need and do. */
#include "estimators/representatives.h"

#include <string.h>

/* Where the members of a rank's group along an axis lie: what a collective among them costs depends on nothing else. */
typedef struct placement {
  int on_first_node, nodes;
} placement;

static placement place(const tws_topology *topology, const int *axes, int axis_count, int rank, int per_node) {
  int at[TWS_MAX_AXES], size = 1, first_node = -1, last_node = -1;
  placement found = {0, 0};
  tws_topology_coordinates(topology, rank, at);
  for (int i = 0; i < axis_count; i++) size *= topology->dim[axes[i]];
  for (int member = 0; member < size; member++) {
    for (int i = axis_count, left = member; i-- > 0; left /= topology->dim[axes[i]])
      at[axes[i]] = left % topology->dim[axes[i]];
    const int node = tws_topology_rank(topology, at) / per_node;
    if (first_node < 0) first_node = node;
    found.on_first_node += node == first_node;
    found.nodes += node != last_node;
    last_node = node;
  }
  return found;
}

/* Groups that replicas and parameters are shared in: data with sequence, and each other axis alone. */
static int list_groups(const tws_topology *topology, int groups[TWS_MAX_AXES + 1][2], int *sizes) {
  int count = 0, data = tws_topology_axis(topology, "data"), sequence = tws_topology_axis(topology, "sequence");
  for (int axis = 0; axis < topology->axes; axis++) {
    groups[count][0] = axis;
    sizes[count++] = 1;
  }
  if (data >= 0 && sequence >= 0) {
    groups[count][0] = data;
    groups[count][1] = sequence;
    sizes[count++] = 2;
  }
  return count;
}

/* Messages from a stage to the next leave the node, and share its NICs, on all replicas alike. */
static int messages_are_even(const tws_topology *topology, const tws_machine *machine, int pipe, int per_node) {
  const int world = tws_topology_world(topology);
  int *outside = tws_calloc((size_t)topology->dim[pipe], sizeof *outside), even = outside != NULL;
  for (int rank = 0; rank < world && even; rank++) {
    int at[TWS_MAX_AXES];
    tws_topology_coordinates(topology, rank, at);
    const int stage = at[pipe];
    at[pipe] = (stage + 1) % topology->dim[pipe];
    const int peer = tws_topology_rank(topology, at);
    const int here = rank / per_node == peer / per_node ? -1 : tws_message_sharers(topology, machine, rank, peer);
    if (outside[stage] == 0) outside[stage] = here;
    even = outside[stage] == here;
  }
  tws_free(outside);
  return even;
}

int tws_placement_is_even(const tws_topology *topology, const tws_machine *machine) {
  const int world = tws_topology_world(topology), per_node = tws_machine_slots(machine, world);
  int groups[TWS_MAX_AXES + 1][2], sizes[TWS_MAX_AXES + 1];
  if (world <= per_node) return 1;
  const int count = list_groups(topology, groups, sizes);
  for (int g = 0; g < count; g++) {
    placement first = {0, 0};
    for (int rank = 0; rank < world; rank++) {
      int at[TWS_MAX_AXES], begins = 1;
      tws_topology_coordinates(topology, rank, at);
      for (int i = 0; i < sizes[g]; i++) begins &= at[groups[g][i]] == 0;
      if (!begins) continue; /* each group once, from its first rank */
      const placement here = place(topology, groups[g], sizes[g], rank, per_node);
      if (rank == 0) first = here;
      if (here.on_first_node != first.on_first_node || here.nodes != first.nodes) return 0;
    }
  }
  const int pipe = tws_topology_axis(topology, "pipe");
  return pipe < 0 || topology->dim[pipe] < 2 || messages_are_even(topology, machine, pipe, per_node);
}

/* Tensor-parallel ranks differ in who holds which bias, which is more than constants where parameters are gathered;
 * sequence-parallel ones in which rows of a table of positions they leave to others. */
static int stands_for_others(const tws_plan_request *request, const int *at) {
  const tws_topology *t = &request->topology;
  for (int axis = 0; axis < t->axes; axis++) {
    const char *name = t->name[axis];
    if (strcmp(name, "pipe") == 0 || strcmp(name, "sequence") == 0) continue;
    if (strcmp(name, "model") == 0 && request->config->zero.stage == 3) continue;
    if (at[axis] != 0) return 0;
  }
  return 1;
}

tws_code tws_representatives(const tws_plan_request *request, const tws_machine *machine, int **ranks, int *count,
                             tws_error *err) {
  const tws_topology *t = &request->topology;
  const int world = tws_topology_world(t), even = tws_placement_is_even(t, machine);
  const int pipe = tws_topology_axis(t, "pipe");
  const int stages = pipe < 0 ? 1 : t->dim[pipe];
  *count = 0;
  *ranks = tws_calloc((size_t)world, sizeof **ranks);
  if (!*ranks) return tws_fail(err, TWS_MEMORY, NULL, "no memory for %d ranks", world);
  for (int stage = 0; stage < stages; stage++) /* by stage, in each the first of the axes first */
    for (int rank = 0; rank < world; rank++) {
      int at[TWS_MAX_AXES];
      tws_topology_coordinates(t, rank, at);
      if (pipe >= 0 && at[pipe] != stage) continue;
      if (!even || stands_for_others(request, at)) (*ranks)[(*count)++] = rank;
    }
  return TWS_OK;
}
