#include "plan/pipeline_grid.h"

#include <stddef.h>

int tws_prime_factors(int number, int *factors) {
  int count = 0;
  for (int64_t prime = 2; prime * prime <= number; prime++) {
    while (number % prime == 0) {
      factors[count++] = (int)prime;
      number = (int)(number / prime);
    }
  }
  if (number > 1) factors[count++] = number;
  return count;
}

tws_code tws_pipeline_grid_default(int world, tws_topology *topology, tws_error *err) {
  int factors[31], dims[2] = {1, 1};
  if (world < 1) return tws_fail(err, TWS_INVALID, NULL, "a job of %d ranks", world);
  int count = tws_prime_factors(world, factors);
  for (int i = 0; i < count; i++) dims[i % 2] *= factors[i];
  return tws_topology_make(topology, 2, (const char *const[]){"pipe", "data"}, dims, err);
}

tws_code tws_pipeline_grid_check(const tws_topology *topology, int world, tws_error *err) {
  for (int i = 0; i < 2; i++) {
    const char *axis = i ? "data" : "pipe";
    if (tws_topology_axis(topology, axis) < 0) {
      return tws_fail(err, TWS_INVALID, "give the axis a dimension of 1 when nothing is divided along it",
                      "a topology with pipeline stages has to have the axis '%s'", axis);
    }
  }
  if (tws_topology_world(topology) != world) {
    return tws_fail(err, TWS_INVALID, "the product of the axes is the number of ranks",
                    "the topology has %d ranks and the job %d", tws_topology_world(topology), world);
  }
  return TWS_OK;
}

static int axis_of(const tws_topology *topology, tws_grid_group kind) {
  static const char *const names[TWS_GRID_GROUP_COUNT] = {"data", "data", "pipe", "model"};
  return tws_topology_axis(topology, names[kind]);
}

int tws_pipeline_grid_group(const tws_topology *topology, tws_grid_group kind, int rank, int *ranks) {
  int axis = axis_of(topology, kind), coordinates[TWS_MAX_AXES];
  if (axis < 0) {
    ranks[0] = rank;
    return 1;
  }
  if (kind != TWS_GRID_REPLICA) return tws_topology_axis_ranks(topology, rank, axis, ranks);
  tws_topology_coordinates(topology, rank, coordinates);
  return tws_topology_axis_list(topology, axis, coordinates[axis], ranks);
}

int tws_pipeline_grid_nth(const tws_topology *topology, tws_grid_group kind, int index, int *ranks) {
  int axis = axis_of(topology, kind), coordinates[TWS_MAX_AXES], world = tws_topology_world(topology);
  if (index < 0) return 0;
  if (kind == TWS_GRID_REPLICA && axis >= 0) {
    return index < topology->dim[axis] ? tws_topology_axis_list(topology, axis, index, ranks) : 0;
  }
  for (int rank = 0; rank < world; rank++) { /* groups follow each other by their first ranks */
    tws_topology_coordinates(topology, rank, coordinates);
    if (axis >= 0 && coordinates[axis] != 0) continue;
    if (index-- == 0) return tws_pipeline_grid_group(topology, kind, rank, ranks);
  }
  return 0;
}

int tws_pipeline_grid_stage(const tws_topology *topology, int rank, int stage) {
  int axis = tws_topology_axis(topology, "pipe"), coordinates[TWS_MAX_AXES];
  if (axis < 0) return rank;
  int stages = topology->dim[axis];
  tws_topology_coordinates(topology, rank, coordinates);
  coordinates[axis] = (stage % stages + stages) % stages;
  return tws_topology_rank(topology, coordinates);
}
