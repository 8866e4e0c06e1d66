#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

tws_code tws_topology_make(tws_topology *topology, int axes, const char *const *names, const int *dims,
                           tws_error *err) {
  memset(topology, 0, sizeof *topology);
  if (axes < 1 || axes > TWS_MAX_AXES) {
    return tws_fail(err, TWS_INVALID, NULL, "a topology has 1 to %d axes, not %d", TWS_MAX_AXES, axes);
  }
  int64_t world = 1;
  for (int i = 0; i < axes; i++) {
    if (dims[i] < 1) return tws_fail(err, TWS_INVALID, NULL, "axis '%s' has dimension %d", names[i], dims[i]);
    if (tws_topology_axis(topology, names[i]) >= 0) {
      return tws_fail(err, TWS_INVALID, NULL, "axis '%s' is named twice", names[i]);
    }
    world *= dims[i];
    if (world > INT32_MAX) return tws_fail(err, TWS_INVALID, NULL, "the topology has more than 2^31 ranks");
    snprintf(topology->name[i], sizeof topology->name[i], "%s", names[i]);
    topology->dim[i] = dims[i];
    topology->axes = i + 1;
  }
  return TWS_OK;
}

int tws_topology_world(const tws_topology *topology) {
  int world = 1;
  for (int i = 0; i < topology->axes; i++) world *= topology->dim[i];
  return world;
}

int tws_topology_axis(const tws_topology *topology, const char *name) {
  for (int i = 0; i < topology->axes; i++) {
    if (strcmp(topology->name[i], name) == 0) return i;
  }
  return -1;
}

int tws_topology_dim(const tws_topology *topology, const char *name) {
  int axis = tws_topology_axis(topology, name);
  return axis < 0 ? 0 : topology->dim[axis];
}

int tws_topology_rank(const tws_topology *topology, const int *coordinates) {
  int rank = 0;
  for (int i = 0; i < topology->axes; i++) {
    if (coordinates[i] < 0 || coordinates[i] >= topology->dim[i]) return -1;
    rank = rank * topology->dim[i] + coordinates[i];
  }
  return rank;
}

void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates) {
  for (int i = topology->axes - 1; i >= 0; i--) {
    coordinates[i] = rank % topology->dim[i];
    rank /= topology->dim[i];
  }
}

int tws_topology_axis_ranks(const tws_topology *topology, int rank, int axis, int *ranks) {
  int coordinates[TWS_MAX_AXES];
  tws_topology_coordinates(topology, rank, coordinates);
  for (int i = 0; i < topology->dim[axis]; i++) {
    coordinates[axis] = i;
    ranks[i] = tws_topology_rank(topology, coordinates);
  }
  return topology->dim[axis];
}

int tws_topology_comm_lists(const tws_topology *topology, int axis, int *lists) {
  if (axis < 0 || axis >= topology->axes) return 0;
  int count = 0, world = tws_topology_world(topology), coordinates[TWS_MAX_AXES];
  for (int rank = 0; rank < world; rank++) { /* row-major order of ranks is the product order of the other axes */
    tws_topology_coordinates(topology, rank, coordinates);
    if (coordinates[axis] != 0) continue;
    tws_topology_axis_ranks(topology, rank, axis, lists + count * topology->dim[axis]);
    count++;
  }
  return count;
}

int tws_topology_axis_list(const tws_topology *topology, int axis, int index, int *ranks) {
  int count = 0, world = tws_topology_world(topology), coordinates[TWS_MAX_AXES];
  for (int rank = 0; rank < world; rank++) {
    tws_topology_coordinates(topology, rank, coordinates);
    if (coordinates[axis] == index) ranks[count++] = rank;
  }
  return count;
}

const char *tws_topology_repr(const tws_topology *topology, int rank, const char *const *omit, char *buffer, int size) {
  int coordinates[TWS_MAX_AXES], length = 0;
  tws_topology_coordinates(topology, rank, coordinates);
  buffer[0] = 0;
  for (int i = 0; i < topology->axes; i++) {
    int skip = 0;
    for (const char *const *o = omit; o && *o; o++) skip |= strcmp(*o, topology->name[i]) == 0;
    if (skip || length >= size) continue;
    length += snprintf(buffer + length, (size_t)(size - length), "%s%s_%02d", length ? "-" : "", topology->name[i],
                       coordinates[i]);
  }
  return buffer;
}

tws_channel tws_channel_of_axis(const char *axis) {
  if (!axis) return TWS_CHANNEL_REPLICAS;
  if (strcmp(axis, "model") == 0 || strcmp(axis, "sequence") == 0) return TWS_CHANNEL_LAYERS;
  return strcmp(axis, "pipe") == 0 ? TWS_CHANNEL_STAGES : TWS_CHANNEL_REPLICAS;
}
